"""A decode step must not cost more because the pool is larger: writing a token never copies the pool."""

from __future__ import annotations

import statistics
import time

from mini_vllm.engine import EngineConfig, LLMEngine
from mini_vllm.loader import DEFAULT_MODEL, load
from mini_vllm.request import SamplingParams

POOL_SIZES = (64, 4096)
NUM_REQUESTS = (1, 8)
STEPS_PER_ROUND = 10
ROUNDS = 20


def print_pool() -> None:
    loaded = load(DEFAULT_MODEL)
    small, large = POOL_SIZES
    print(f"a decode step of {DEFAULT_MODEL}, ms, median of {ROUNDS} interleaved rounds")
    print(f"{'requests':>8} {f'{small} blocks':>12} {f'{large} blocks':>12} {'ratio':>7}")
    for num_requests in NUM_REQUESTS:
        engines = [LLMEngine(EngineConfig(num_blocks=num_blocks), loaded=loaded) for num_blocks in POOL_SIZES]
        params = SamplingParams(max_tokens=(ROUNDS + 2) * STEPS_PER_ROUND, temperature=0, ignore_eos=True)
        for engine in engines:
            for i in range(num_requests):
                engine.add_request([5 + i] * 8, params)
        for engine in engines:
            _run(engine)
        rounds = [[_run(engine) for engine in engines] for _ in range(ROUNDS)]
        times = [statistics.median(column) for column in zip(*rounds)]
        ratio = statistics.median(b / a for a, b in rounds)
        print(f"{num_requests:>8} {times[0]:>12.2f} {times[1]:>12.2f} {ratio:>6.2f}x")


def _run(engine: LLMEngine) -> float:
    start = time.perf_counter()
    for _ in range(STEPS_PER_ROUND):
        engine.step()
    return (time.perf_counter() - start) / STEPS_PER_ROUND * 1e3
