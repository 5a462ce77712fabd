"""What a request generates alone: the expected result for the engine fuzzer.

The engine for this has enough blocks, no prefix cache, no lookahead, and a step of MLX's operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fuzz.faults import Poison
from fuzz.work import Work
from mini_vllm.beam_search import Beam
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import CompletionOutput, RequestOutput, SamplingParams

#: Two tokens whose logits differ by less than this may swap when a sum is computed in another order.
TIE = 1e-4
LOGPROB_TOLERANCE = 1e-3


class Alone:
    """Runs requests alone and caches their outputs, because a request is asked for more than once."""

    def __init__(self, loaded: LoadedModel, max_model_len: int | None) -> None:
        self.loaded, self.max_model_len = loaded, max_model_len
        self._outputs: dict[str, RequestOutput] = {}

    def make_engine(self) -> LLMEngine:
        return LLMEngine(EngineConfig(block_size=32, num_blocks=80, max_num_seqs=8, max_num_batched_tokens=512,
                                      max_model_len=self.max_model_len, enable_prefix_caching=False,
                                      enable_lookahead=False, native=False), loaded=self.loaded)

    def output(self, prompt: list[int], params: SamplingParams, poison: Poison | None = None) -> RequestOutput:
        key = f"{prompt} {params} {poison}"
        if key not in self._outputs:
            engine = self.make_engine()
            engine.add_request(prompt, params, "alone")
            if poison is not None:
                poison.put_into(engine, "alone", params.n)
            outputs: list[RequestOutput] = []
            while engine.has_unfinished_requests():
                outputs = engine.step()
            self._outputs[key] = outputs[0]
        return self._outputs[key]

    def is_tie(self, work: Work, got: CompletionOutput, wanted: CompletionOutput, index: int) -> bool:
        """Check whether a bias of TIE also makes the request choose the other token when it is alone."""
        pushes = {got.token_ids[index]: TIE}, {wanted.token_ids[index]: -TIE}
        for push in pushes:
            bias = dict(work.params.logit_bias or {})
            bias |= {token: bias.get(token, 0.0) + change for token, change in push.items()}
            pushed = self.output(work.prompt, replace(work.params, logit_bias=bias), work.poison).outputs[got.index]
            if pushed.token_ids[:index + 1] == got.token_ids[:index + 1]:
                return True
        return False


def are_same_beams(beams: Sequence[Beam], expected: Sequence[Beam]) -> bool:
    """Check whether both lists contain the same continuations, or continuations with the same scores."""
    return [beam.token_ids for beam in beams] == [beam.token_ids for beam in expected] or (
        len(beams) == len(expected) and all(math.isclose(a.score, b.score, abs_tol=LOGPROB_TOLERANCE)
                                            for a, b in zip(beams, expected)))
