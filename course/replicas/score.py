"""Lab 6.3: the score of a router, compared with round robin, the engine's router and a bound.

    python -m course.replicas.score                  the times of these three on every trace
    python -m course.replicas.score FILE --seed 7    also those of FILE's CacheAwareRouter, on other traces
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.lab.load_module import load_file
from course.replicas.arena import COST, MAX_NUM_BATCHED_TOKENS, Arrival, MakeRouter, Result, Trace, answer, serve
from course.replicas.traces import KINDS, fixed_traces, trace_like
from mini_vllm.router import CacheAwareRouter
from mini_vllm.routing.simple import RoundRobinRouter


@dataclass(frozen=True)
class ScoreLine:
    """The mean times to the first token on one trace, in seconds."""

    trace: str
    #: None if no router was given.
    yours: Result | None
    naive: Result
    reference: Result
    bound_s: float


def score(make_router: MakeRouter | None, seed: int | None = None) -> list[ScoreLine]:
    """Return one line per trace. With ``seed``, the traces are others of the same kinds.

    Raise BadRouter if the router returns what it must not.
    """
    return [line_of(trace, None if make_router is None else serve(trace, make_router))
            for trace in traces_of_score(seed)]


def traces_of_score(seed: int | None = None) -> tuple[Trace, ...]:
    return fixed_traces() if seed is None else tuple(trace_like(kind, seed) for kind in KINDS)


def line_of(trace: Trace, yours: Result | None) -> ScoreLine:
    return ScoreLine(trace.name, yours, naive(trace), reference(trace), bound_s(trace))


def total(lines: Sequence[ScoreLine]) -> float:
    """Return the number to improve: the percentage of the gap between naive and bound that the router closes.

    It is the mean over all lines. Round robin has 0. The bound has 100; no router has more. A router that is worse than
    round robin has less than 0. Raise ValueError if a line has no result of a router.
    """
    ways = []
    for line in lines:
        if line.yours is None:
            raise ValueError(f"total: the line of {line.trace!r} has no result of a router")
        ways.append(way(line, line.yours))
    return 100.0 * statistics.fmean(ways)


def landmarks(lines: Sequence[ScoreLine]) -> Mapping[str, float]:
    """Return the totals of the known solutions, by name."""
    of_reference = 100.0 * statistics.fmean(way(line, line.reference) for line in lines)
    return {"naive": 0.0, "reference": of_reference, "bound": 100.0}


def way(line: ScoreLine, result: Result) -> float:
    """Return the share of the gap between naive and bound that a result closes: 0 for naive, 1 for the bound."""
    return (line.naive.first_token_s - result.first_token_s) / (line.naive.first_token_s - line.bound_s)


# ---------------------------------------------------------------------------------------------- naive, reference, bound


def round_robin(replicas: Iterable[str] = (), *, max_blocks: int) -> RoundRobinRouter:
    return RoundRobinRouter(replicas)


@functools.lru_cache(maxsize=128)
def naive(trace: Trace) -> Result:
    """Serve a trace in turns."""
    return serve(trace, round_robin)


@functools.lru_cache(maxsize=128)
def reference(trace: Trace) -> Result:
    """Serve a trace with the engine's own router."""
    return serve(trace, CacheAwareRouter)


@functools.lru_cache(maxsize=128)
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


# ---------------------------------------------------------------------------------------------- the table


def table(lines: Sequence[ScoreLine]) -> str:
    """Format the lines: the times in milliseconds, and cached tokens and the busiest replica's share in percent."""
    has_yours = all(line.yours is not None for line in lines)
    whose = "yours" if has_yours else "reference"
    rows = [f"{'':<16}{'first token, ms':^37}{f'of {whose}, %':>19}",
            f"{'':<16}{'round robin':>12}{'reference':>11}{'bound':>7}{'yours':>7}{'cached':>9}{'busiest':>10}"]
    for line in lines:
        result = line.yours or line.reference
        yours = "–" if line.yours is None else f"{1000 * line.yours.first_token_s:.0f}"
        rows.append(f"{line.trace:<16}{1000 * line.naive.first_token_s:>12.0f}"
                    f"{1000 * line.reference.first_token_s:>11.0f}{1000 * line.bound_s:>7.0f}{yours:>7}"
                    f"{100 * result.cached:>9.1f}{100 * result.busiest:>10.1f}")
    of_yours, of_reference = f"{total(lines):.1f}" if has_yours else "–", landmarks(lines)["reference"]
    return "\n".join([*rows, f"{'score':<16}{0.0:>12.1f}{of_reference:>11.1f}{100.0:>7.0f}{of_yours:>7}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m course.replicas.score", description="Score a router.")
    parser.add_argument("file", nargs="?", type=Path, help="a file that contains a class CacheAwareRouter")
    parser.add_argument("--seed", type=int, help="take other traces of the same kinds (default: those of the score)")
    arguments = parser.parse_args()
    if sys.stderr.isatty():
        print(f"Scoring {arguments.file or 'the known solutions'} …", file=sys.stderr)
    make_router = load_file(arguments.file).CacheAwareRouter if arguments.file else None
    print(table(score(make_router, arguments.seed)))


if __name__ == "__main__":
    main()
