"""Lab 4.4: the score of a scheduling policy, compared with the naive policy, the engine's scheduler and the bound.

    python -m course.goodput.score                  the goodput of these three on every trace
    python -m course.goodput.score FILE --seed 7    also that of FILE's SchedulingPolicy, with other random traces
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.goodput.arena import Limits, Plan, PolicyClass, RequestState, Trace, blocks_for, num_good
from course.goodput.bound import most_good
from course.goodput.engine import EngineScheduler
from course.goodput.traces import fixed_traces, random_trace
from course.lab.load_module import load_file

NUM_RANDOM_TRACES = 4


@dataclass(frozen=True)
class ScoreLine:
    """Goodput on one trace: requests that met both of their times / requests, 0.0 to 1.0."""

    trace: str
    #: None if no policy was given.
    yours: float | None
    naive: float
    reference: float
    bound: float


def score(policy_class: PolicyClass | None, seed: int | None = None) -> list[ScoreLine]:
    """Return one line per fixed trace, then one for each of four random traces, which ``seed`` selects (None: seed 0).

    Raise IllegalPlan if a plan of the policy breaks a rule.
    """
    return [line_of(trace, None if policy_class is None else num_good(trace, policy_class))
            for trace in traces_of_score(seed)]


def traces_of_score(seed: int | None = None) -> list[Trace]:
    first = NUM_RANDOM_TRACES * (seed or 0)
    return fixed_traces() + [random_trace(first + i) for i in range(NUM_RANDOM_TRACES)]


def line_of(trace: Trace, num_good_of_yours: int | None) -> ScoreLine:
    """Return the line of a trace on which a policy has this number of good requests."""
    num = len(trace.arrivals)
    yours = None if num_good_of_yours is None else num_good_of_yours / num
    return ScoreLine(trace.name, yours, naive(trace) / num, reference(trace) / num, most_good(trace) / num)


def total(lines: Sequence[ScoreLine]) -> float:
    """Return the number to improve: the percentage of the gap between naive and bound that the policy closes.

    It is the mean over all lines, so a trace on which every policy does well counts no more than any other. The naive
    policy has 0. The bound has 100; no policy has more. A policy that is worse than naive has less than 0. Raise
    ValueError if a line has no goodput of a policy.
    """
    ways = []
    for line in lines:
        if line.yours is None:
            raise ValueError(f"total: the line of {line.trace!r} has no goodput of a policy")
        ways.append(_way(line, line.yours))
    return 100.0 * sum(ways) / len(ways)


def landmarks(lines: Sequence[ScoreLine]) -> Mapping[str, float]:
    """Return the totals of the known solutions, by name."""
    of_reference = 100.0 * sum(_way(line, line.reference) for line in lines) / len(lines)
    return {"naive": 0.0, "reference": of_reference, "bound": 100.0}


def _way(line: ScoreLine, goodput: float) -> float:
    """Return the share of the gap between naive and bound that ``goodput`` closes: 0 for naive, 1 for the bound.

    If naive and bound are equal, return 1 for that goodput and 0 for any other.
    """
    if line.bound == line.naive:
        return 1.0 if goodput == line.bound else 0.0
    return (goodput - line.naive) / (line.bound - line.naive)


# ---------------------------------------------------------------------------------------------- naive and reference


@functools.lru_cache(maxsize=128)
def naive(trace: Trace) -> int:
    """Count the good requests with static batches: see lab 4.4's ``StaticBatches``."""
    return num_good(trace, StaticBatches)


@functools.lru_cache(maxsize=128)
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


# ---------------------------------------------------------------------------------------------- the table


def table(lines: Sequence[ScoreLine]) -> str:
    """Format the lines as a table of goodput in percent; the last row is the percentage of the gap that is closed."""
    has_yours = all(line.yours is not None for line in lines)
    rows = [f"{'goodput, %':<12}{'naive':>8}{'reference':>11}{'bound':>9}{'yours':>8}"]
    for line in lines:
        yours = "–" if line.yours is None else f"{100 * line.yours:.1f}"
        rows.append(f"{line.trace:<12}{100 * line.naive:>8.1f}{100 * line.reference:>11.1f}{100 * line.bound:>9.1f}"
                    f"{yours:>8}")
    of_yours, of_reference = f"{total(lines):.1f}" if has_yours else "–", landmarks(lines)["reference"]
    return "\n".join([*rows, f"{'total':<12}{0.0:>8.1f}{of_reference:>11.1f}{100.0:>9.1f}{of_yours:>8}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m course.goodput.score", description="Score a scheduling policy.")
    parser.add_argument("file", nargs="?", type=Path, help="a file that contains a class SchedulingPolicy")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random traces (default: 0)")
    arguments = parser.parse_args()
    if sys.stderr.isatty():
        print(f"Scoring {arguments.file or 'the known solutions'} …", file=sys.stderr)
    policy_class = load_file(arguments.file).SchedulingPolicy if arguments.file else None
    print(table(score(policy_class, arguments.seed)))


if __name__ == "__main__":
    main()
