"""What a drafted token costs a step, by the number of requests, and what it costs to do without look-ahead.

Every draft is wrong, so all steps give one token per request.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.request import Request, SamplingParams
from mini_vllm.speculation.drafts import NgramDrafter

NUM_REQUESTS, QUICK_NUM_REQUESTS = (1, 4, 16, 64), (1, 4)
NUM_DRAFTED = (1, 3, 7)
CONTEXT, STEPS = 200, 24
#: Drafts are always computed, and always preferred to look-ahead.
ALWAYS = StepCosts((DraftCost(1, -100.0, -1.0),), no_lookahead=-1.0)


class WrongDrafter(NgramDrafter):
    """Guesses the token 0."""

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        return [0] * max_tokens

    def advance(self, request: Request, token_ids: list[int]) -> None:
        pass


def run(arguments: argparse.Namespace) -> None:
    model, rounds, num_steps = arguments.model, arguments.rounds, STEPS
    all_num_requests: Sequence[int] = arguments.requests or NUM_REQUESTS
    if arguments.quick:
        rounds, num_steps, all_num_requests = 1, 2, QUICK_NUM_REQUESTS
    loaded = load(model)
    print(f"{model}: a step at contexts of {CONTEXT}, ms, and the cost of a drafted token per request, in plain steps")
    print(f"{'requests':>8} {'look-ahead':>11} {'plain':>7} "
          + " ".join(f"{f'+{n}':>7} {'cost':>5}" for n in NUM_DRAFTED))
    told = []
    for number in all_num_requests:
        engines = [decoding_engine(loaded, number, 0, True), decoding_engine(loaded, number, 0, False),
                   *(decoding_engine(loaded, number, num_drafted, False) for num_drafted in NUM_DRAFTED)]
        taken = [[step_ms(engine, num_steps) for engine in engines] for _ in range(rounds)]
        ahead, plain, *drafted_ms = (statistics.median(each[nth] for each in taken) for nth in range(len(engines)))
        costs = [statistics.median((each[2 + nth] - each[1]) / each[1] / drafted for each in taken)
                 for nth, drafted in enumerate(NUM_DRAFTED)]
        print(f"{number:>8} {ahead:>11.2f} {plain:>7.2f} "
              + " ".join(f"{ms:>7.2f} {cost:>5.2f}" for ms, cost in zip(drafted_ms, costs)), flush=True)
        told.append(f"{costs[1]:.2f} for {number}")
    print(f"In short: on {model} a drafted token costs this share of a plain step: {', '.join(told)}")


def decoding_engine(loaded: LoadedModel, num_requests: int, num_drafted: int, looks_ahead: bool) -> LLMEngine:
    """Return an engine whose requests all decode and do not end."""
    params = SamplingParams(max_tokens=40 * STEPS, temperature=0.0, ignore_eos=True)
    num_blocks = num_requests * (-(-(CONTEXT + 40 * STEPS) // 32) + 2) + 2
    engine = LLMEngine(EngineConfig(
        model=loaded.name, num_blocks=num_blocks, enable_prefix_caching=False, max_num_seqs=num_requests,
        max_num_batched_tokens=max(1024, 8 * num_requests), num_speculative_tokens=num_drafted,
        enable_lookahead=looks_ahead), loaded=loaded)
    if engine.speculation is not None:
        engine.speculation.drafter, engine.speculation.costs = WrongDrafter(), ALWAYS
    for index in range(num_requests):
        engine.add_request([1 + (7 * index + i) % 90 for i in range(CONTEXT)], params, str(index))
    started: set[str] = set()
    while len(started) < num_requests:
        started.update(output.request_id for output in engine.step())
    for _ in range(4):
        engine.step()
    return engine


def step_ms(engine: LLMEngine, num_steps: int) -> float:
    """Return the average time of a step."""
    mx.synchronize()
    start_s = time.perf_counter()
    for _ in range(num_steps):
        engine.step()
    mx.synchronize()
    return (time.perf_counter() - start_s) / num_steps * 1e3
