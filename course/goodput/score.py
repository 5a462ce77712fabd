"""Lab 4.4: the score of a scheduling policy, compared with the naive policy, the engine's scheduler and the bound.

    python -m course.goodput.score                  the goodput of these three on every trace
    python -m course.goodput.score FILE --seed 7    also that of FILE's SchedulingPolicy, on other traces
"""

from __future__ import annotations

from course.goodput.arena import IllegalPlan, Limits, Plan, RequestState, Trace, blocks_for, num_good
from course.goodput.bound import most_good
from course.goodput.engine import EngineScheduler
from course.goodput.traces import FIXED, make_trace
from course.lab.contest import Contest


def naive(trace: Trace) -> int:
    """Count the good requests with static batches: see lab 4.4's ``StaticBatches``."""
    return num_good(trace, StaticBatches)


def reference(trace: Trace) -> int:
    """Count the good requests with the engine's own scheduler."""
    return num_good(trace, EngineScheduler)


class StaticBatches:
    """A batch is served until all its requests have ended; each reserves blocks for its longest possible output."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._batch: set[int] = set()

    def plan(self, now_us: int, requests: tuple[RequestState, ...]) -> Plan:
        batch = [request for request in requests if request.request_id in self._batch]
        batch = batch or self._next_batch(requests)
        self._batch = {request.request_id for request in batch}
        budget, tokens = self._limits.max_num_batched_tokens, {}
        for request in batch:
            n = min(request.num_tokens - request.num_computed_tokens, budget)
            budget -= n
            if n:
                tokens[request.request_id] = n
        return tokens, []

    def _next_batch(self, requests: tuple[RequestState, ...]) -> list[RequestState]:
        num_free, batch = self._limits.num_blocks, []
        for request in requests[:self._limits.max_num_seqs]:
            num_free -= blocks_for(request.num_prompt_tokens + request.max_tokens, self._limits.block_size)
            if num_free < 0:
                break
            batch.append(request)
        return batch


CONTEST = Contest(
    "course.goodput.score", "SchedulingPolicy", [*FIXED, *(f"random {number}" for number in range(4))], make_trace,
    play=num_good, foul=IllegalPlan, naive=naive, reference=reference, bound=most_good,
    title="goodput, %", scale=lambda trace: 100 / len(trace.arrivals), unit="{:.0f} good requests",
    max_drop=15.0)
score, table, total, landmarks = CONTEST.score, CONTEST.table, CONTEST.total, CONTEST.landmarks

if __name__ == "__main__":
    CONTEST.main()
