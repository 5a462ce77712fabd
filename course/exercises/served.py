"""Runs of the real engine for the proofs of answers: prompts of token ids are served one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.trace.files import TraceStep


def steps_of(prompts: Sequence[Sequence[int]], max_tokens: int, *, n: int = 1, **sizes: int) -> list[TraceStep]:
    """Serve ``prompts`` one by one and return the last one's steps; ``sizes`` are settings of ``EngineConfig``."""
    from mini_vllm.engine import LLMEngine  # imported here because most answers are checked without MLX
    from mini_vllm.engine_config import EngineConfig
    from mini_vllm.request import SamplingParams
    from mini_vllm.trace.recorder import StepTrace
    trace = StepTrace()
    engine = LLMEngine(EngineConfig(**sizes), trace=trace)  # type: ignore[arg-type]
    first_step = 0
    for token_ids in prompts:
        first_step = len(trace.steps)
        engine.add_request(list(token_ids), SamplingParams(max_tokens=max_tokens, n=n, seed=1, ignore_eos=True))
        while engine.has_unfinished_requests():
            engine.step()
    return trace.steps[first_step:]


def num_computed(steps: Sequence[TraceStep]) -> int:
    """Count the tokens that the model computed in these steps."""
    return sum(num_new for step in steps for _, num_new in step["tokens"].values())
