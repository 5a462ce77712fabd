"""Lab 3.5: the score of an eviction policy, compared with the naive policy, the engine's and the optimum.

    python -m course.eviction.score                  the hit rates of these three on every trace
    python -m course.eviction.score FILE --seed 7    also those of FILE's EvictionPolicy, with other random traces
"""

from __future__ import annotations

import argparse
import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course.eviction.arena import Block, PolicyClass, Trace, num_hits
from course.eviction.traces import fixed_traces, random_trace
from course.lab.load_module import load_file
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request

NUM_RANDOM_TRACES = 5
#: The next use of a block that is never requested again: after all requests.
_NEVER = 1 << 60


@dataclass(frozen=True)
class ScoreLine:
    """Hit rates on one trace: blocks found / blocks requested, 0.0 to 1.0."""

    trace: str
    #: None if no policy was given.
    yours: float | None
    naive: float
    reference: float
    optimum: float


def score(policy_class: PolicyClass | None, seed: int | None = None) -> list[ScoreLine]:
    """Return one line per fixed trace, then one for each of five random traces, which ``seed`` selects (None: seed 0).

    Raise IllegalEviction if the policy names a block that cannot be evicted.
    """
    first = NUM_RANDOM_TRACES * (seed or 0)
    traces = fixed_traces() + [random_trace(first + i) for i in range(NUM_RANDOM_TRACES)]
    return [_line(trace, policy_class) for trace in traces]


def _line(trace: Trace, policy_class: PolicyClass | None) -> ScoreLine:
    num_asked = trace.num_asked
    yours = None if policy_class is None else num_hits(trace, policy_class) / num_asked
    return ScoreLine(trace.name, yours, naive(trace) / num_asked, reference(trace) / num_asked,
                     optimum(trace) / num_asked)


def total(lines: Sequence[ScoreLine]) -> float:
    """Return the number to improve: the percentage of the gap between naive and optimum that the policy closes.

    It is the mean over all lines, so a trace on which every policy has many hits counts no more than any other. The
    naive policy has 0. The optimum has 100, which no policy can reach without knowing the future. A policy that is
    worse than naive has less than 0. Raise ValueError if a line has no hit rate of a policy.
    """
    ways = []
    for line in lines:
        if line.yours is None:
            raise ValueError(f"total: the line of {line.trace!r} has no hit rate of a policy")
        ways.append(_way(line, line.yours))
    return 100.0 * sum(ways) / len(ways)


def landmarks(lines: Sequence[ScoreLine]) -> dict[str, float]:
    """Return the scores of the naive policy, of the reference and of the optimum."""
    of_reference = 100.0 * sum(_way(line, line.reference) for line in lines) / len(lines)
    return {"naive": 0.0, "reference": of_reference, "optimum": 100.0}


def _way(line: ScoreLine, rate: float) -> float:
    """Return the share of the gap between naive and optimum that ``rate`` closes: 0 for naive, 1 for optimum.

    If naive and optimum are equal, return 1 for that rate and 0 for any other.
    """
    if line.optimum == line.naive:
        return 1.0 if rate == line.optimum else 0.0
    return (rate - line.naive) / (line.optimum - line.naive)


# ---------------------------------------------------------------------------------------------- the three hit rates


def naive(trace: Trace) -> int:
    """Count the hits of first in, first out, in which a hit does not change a block's place in the order."""
    return num_hits(trace, _Naive)


class _Naive:
    def __init__(self, num_blocks: int) -> None:
        #: Block → whether it is unused. Contains all blocks in the cache, in the order in which they entered.
        self._is_free: dict[Block, bool] = {}

    def freed(self, block: Block) -> None:
        self._is_free[block] = True

    def taken(self, block: Block) -> None:
        self._is_free[block] = False

    def evict(self) -> Block:
        block = next(block for block, is_free in self._is_free.items() if is_free)
        del self._is_free[block]
        return block


def reference(trace: Trace) -> int:
    """Count the engine's hits: run the trace through its KVCacheManager, with a block size of one token.

    Each block of the trace becomes one token, its key. One more token follows, because the manager never finds the
    last token of a request.
    """
    manager = KVCacheManager(trace.num_blocks + 1, block_size=1)  # block 0 is the null block
    hits = 0
    for number, chain in enumerate(trace.requests):
        request = Request(str(number), [*(block.key for block in chain), 0])
        found, num_found = manager.get_computed_blocks(request)
        hits += num_found
        if num_found == len(chain):  # allocate_slots would need a slot to write; there is none
            manager.block_pool.touch(found)
            manager.block_pool.free_blocks(reversed(found))
            continue
        if manager.allocate_slots(request, len(chain) - num_found, found) is None:
            raise ValueError(f"a request of {len(chain)} blocks does not fit a cache of {trace.num_blocks}")
        request.num_computed_tokens = len(chain)
        manager.finish_step()
        manager.free(request)
    return hits


def optimum(trace: Trace) -> int:
    """Count the hits of Belady's rule: the most that any policy can have, even one that knows the future.

    Among the blocks that are not in use, evict the one whose next use is farthest away; among several, the deepest.

    The proof that no policy is better: A parent's next use is never later than its child's, because a request for the
    child includes the parent. So children are evicted first, and every cached block can be reached and is a hit when it
    is requested. This is plain paging, with requests for sets of pages. Suppose that an optimal policy evicts q where
    the rule evicts p, whose next use is not sooner than that of q. Evict p instead, and follow that policy until it
    evicts p or q is requested. This never has fewer hits.
    """
    uses: defaultdict[int, list[int]] = defaultdict(lambda: [_NEVER])
    for number in range(len(trace.requests) - 1, -1, -1):
        for block in trace.requests[number]:
            uses[block.key].append(number)  # the next use is last
    cached: dict[int, int] = {}  # key → its next use
    farthest: list[tuple[int, int, int]] = []  # (-next use, -depth, key); stale once the block was used again
    hits = 0
    for chain in trace.requests:
        running = {block.key for block in chain}
        num_missing = len(running - cached.keys())
        hits += len(chain) - num_missing
        while len(cached) + num_missing > trace.num_blocks:
            next_use, _, key = heapq.heappop(farthest)
            if cached.get(key) == -next_use and key not in running:
                del cached[key]
        for block in chain:
            uses[block.key].pop()
            cached[block.key] = uses[block.key][-1]
            heapq.heappush(farthest, (-cached[block.key], -block.depth, block.key))
    return hits


# ---------------------------------------------------------------------------------------------- the table


def table(lines: Sequence[ScoreLine]) -> str:
    """Format the lines as a table of hit rates in percent; the last row is the percentage of the gap that is closed."""
    has_yours = all(line.yours is not None for line in lines)
    rows = [f"{'hit rate, %':<12}{'naive':>8}{'reference':>11}{'optimum':>9}{'yours':>8}"]
    for line in lines:
        yours = "–" if line.yours is None else f"{100 * line.yours:.1f}"
        rows.append(f"{line.trace:<12}{100 * line.naive:>8.1f}{100 * line.reference:>11.1f}{100 * line.optimum:>9.1f}"
                    f"{yours:>8}")
    of_yours = f"{total(lines):.1f}" if has_yours else "–"
    of_naive, of_reference, of_optimum = landmarks(lines).values()
    return "\n".join([*rows, f"{'total':<12}{of_naive:>8.1f}{of_reference:>11.1f}{of_optimum:>9.1f}{of_yours:>8}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m course.eviction.score",
                                     description="Score an eviction policy.")
    parser.add_argument("file", nargs="?", type=Path, help="a file that contains a class EvictionPolicy")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random traces (default: 0)")
    arguments = parser.parse_args()
    policy_class = load_file(arguments.file).EvictionPolicy if arguments.file else None
    print(table(score(policy_class, arguments.seed)))


if __name__ == "__main__":
    main()
