"""How close a choice was: where two runs of the same request differ, rounding may have decided between two tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.logit_rules import make_key
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import gumbel_noise


def gap_at_first_difference(loaded: LoadedModel, prompt: Sequence[int], params: SamplingParams, first: Sequence[int],
                            second: Sequence[int]) -> float:
    """Return by how much one of two tokens won where the outputs ``first`` and ``second`` part; 0.0 if they are equal.

    Greedy choices compare logits. Draws compare the sums of score and noise. Filters are not considered. The result is
    infinite if one of the tokens is not among the 20 most likely ones, or if one output is only longer.
    """
    index = next((i for i, (one, other) in enumerate(zip(first, second)) if one != other), min(len(first), len(second)))
    if index == max(len(first), len(second)):
        return 0.0
    if index == min(len(first), len(second)):
        return math.inf
    engine = LLMEngine(EngineConfig(model=loaded.name, max_num_seqs=1), loaded=loaded)
    engine.add_request([*prompt, *first[:index]], SamplingParams(max_tokens=1, temperature=0, logprobs=20))
    (output,) = engine.step()
    likely = output.outputs[0].logprobs[0].top  # type: ignore[index]  # they were asked for
    scores = {token_id: each.logprob for token_id, each in likely.items()}
    tokens = (first[index], second[index])
    if any(token not in scores for token in tokens):
        return math.inf
    if params.temperature == 0:
        sums = [scores[token] for token in tokens]
    else:
        key = make_key(params.seed)
        keys = mx.array([[key[0], (key[1] + index) % 2 ** 32]], dtype=mx.uint32)
        noise = gumbel_noise(keys, loaded.config.vocab_size)
        sums = [scores[token] / params.temperature + noise[0, token].item() for token in tokens]
    return float(abs(sums[0] - sums[1]))
