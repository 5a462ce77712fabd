"""Checks that a step does not cost more in a larger pool: writing tokens never copies the pool."""

from __future__ import annotations

import argparse
import statistics
import time

from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import DEFAULT_MODEL, load
from mini_vllm.request import SamplingParams

POOL_SIZES = (64, 4096)
#: The number of decoding requests, and the length of a prompt that arrives in every round.
CASES = ((1, 0), (8, 0), (3, 200))
STEPS_PER_ROUND = 10
ROUNDS = 20


def run(arguments: argparse.Namespace) -> None:
    num_rounds = 1 if arguments.quick else ROUNDS
    loaded = load(DEFAULT_MODEL)
    small, large = POOL_SIZES
    print(f"a step of {DEFAULT_MODEL}, ms, median of {num_rounds} interleaved rounds")
    print(f"{'requests':<28} {f'{small} blocks':>12} {f'{large} blocks':>12} {'ratio':>7}")
    ratios = []
    for num_decoding, num_prompt_tokens in CASES:
        engines = [LLMEngine(EngineConfig(num_blocks=num_blocks, enable_prefix_caching=False), loaded=loaded)
                   for num_blocks in POOL_SIZES]
        params = SamplingParams(max_tokens=(num_rounds + 3) * STEPS_PER_ROUND, temperature=0, ignore_eos=True)
        for engine in engines:
            for i in range(num_decoding):
                engine.add_request([5 + i] * 8, params)
        for engine in engines:
            while len(engine.step()) < num_decoding:
                pass
            _step_ms(engine, num_decoding, num_prompt_tokens)
        rounds = [[_step_ms(engine, num_decoding, num_prompt_tokens) for engine in engines] for _ in range(num_rounds)]
        times = [statistics.median(column) for column in zip(*rounds)]
        ratio = statistics.median(b / a for a, b in rounds)
        name = f"{num_decoding} decoding" + (f", a prompt of {num_prompt_tokens}" if num_prompt_tokens else "")
        print(f"{name:<28} {times[0]:>12.2f} {times[1]:>12.2f} {ratio:>6.2f}x")
        ratios.append(ratio)
    print(f"In short: a step takes {min(ratios):.2f} to {max(ratios):.2f} times as long with {large} blocks as with "
          f"{small}, with or without a prompt in the step: writing never copies the pool")


def _step_ms(engine: LLMEngine, num_decoding: int, num_prompt_tokens: int) -> float:
    """Return the milliseconds per step over one round of steps; with a prompt, over the steps until its output."""
    decoding: list[int] = []
    start = time.perf_counter()
    prompt_id: str | None = None
    if num_prompt_tokens:
        prompt_id = engine.add_request([7] * num_prompt_tokens, SamplingParams(max_tokens=1, ignore_eos=True))
    while len(decoding) < STEPS_PER_ROUND:
        ids = {output.request_id for output in engine.step()}
        decoding.append(len(ids - {prompt_id}))
        if prompt_id in ids:
            break
    step_ms = (time.perf_counter() - start) / len(decoding) * 1e3
    if set(decoding) != {num_decoding}:
        raise RuntimeError(f"{num_decoding} requests should have got a token in every step, but {decoding} did")
    return step_ms
