"""Lab 6.3: the score of a router, compared with round robin, the engine's router and a bound.

    python -m course.replicas.score                  the times of these three on every trace
    python -m course.replicas.score FILE --seed 7    also those of FILE's CacheAwareRouter, on other traces
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from course.lab.contest import Contest
from course.replicas.arena import COST, MAX_NUM_BATCHED_TOKENS, Arrival, BadRouter, Result, Trace, answer, serve
from course.replicas.traces import KINDS, make_trace
from mini_vllm.router import CacheAwareRouter, RoundRobinRouter


def round_robin(replicas: Iterable[str] = (), *, max_blocks: int) -> RoundRobinRouter:
    return RoundRobinRouter(replicas)


def naive(trace: Trace) -> Result:
    """Serve a trace in turns."""
    return serve(trace, round_robin)


def reference(trace: Trace) -> Result:
    """Serve a trace with the engine's own router."""
    return serve(trace, CacheAwareRouter)


def bound_s(trace: Trace) -> float:
    """Return a mean time to the first token that no router can beat.

    Every request is computed at once, alone on a replica of its own, whose cache has everything that was or will be
    computed before it: the prompts and answers of all requests that arrive earlier. (A replica serves first come, first
    served. Only an outage sends requests back to the end of a queue, so before an outage all requests up to it count.)
    """
    texts = [arrival.token_ids + tuple(answer(arrival.token_ids, arrival.num_new)) for arrival in trace.arrivals]
    last_outage_s = max((outage.from_s for outage in trace.outages), default=0.0)
    times = []
    for number, arrival in enumerate(trace.arrivals):
        until_s = max(arrival.at_s, last_outage_s)
        num_cached = max((_num_common(arrival.token_ids, text) for other, text in enumerate(texts)
                          if other != number and trace.arrivals[other].at_s <= until_s), default=0)
        times.append(_alone_s(arrival, min(num_cached, len(arrival.token_ids) - 1)))
    return statistics.fmean(times)


def _alone_s(arrival: Arrival, num_cached: int) -> float:
    num_tokens = len(arrival.token_ids) - num_cached
    num_steps = -(-num_tokens // MAX_NUM_BATCHED_TOKENS)
    return num_steps * COST.step_s + num_tokens * COST.token_s


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    for number, (token, its) in enumerate(zip(one, other)):
        if token != its:
            return number
    return min(len(one), len(other))


CONTEST = Contest(
    "course.replicas.score", "CacheAwareRouter", list(KINDS), make_trace, play=serve, foul=BadRouter,
    naive=naive, reference=reference, bound=bound_s, value=lambda result: result.first_token_s,
    title="first token, ms", scale=lambda trace: 1000, unit="{:.3f} s to the first token",
    columns={"cached, %": lambda result: 100 * result.cached, "busiest, %": lambda result: 100 * result.busiest},
    is_from_reference=False, num_unseen=2, max_drop=20.0)
score, table, total, landmarks = CONTEST.score, CONTEST.table, CONTEST.total, CONTEST.landmarks

if __name__ == "__main__":
    CONTEST.main()
