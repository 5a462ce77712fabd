"""Lab 3.5: the score of an eviction policy, beside the naive one's, the engine's and the best there could be.

    python -m course.eviction.score                  the three marks on every trace
    python -m course.eviction.score FILE --seed 7    and those of FILE's EvictionPolicy, with other random traces
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
#: The next use of what nobody asks for again: after all requests.
_NEVER = 1 << 60


@dataclass(frozen=True)
class ScoreLine:
    """Hit rates on one trace: blocks found, of all blocks asked for, 0.0 to 1.0."""

    trace: str
    #: None if no policy was given.
    yours: float | None
    naive: float
    reference: float
    optimum: float


def score(policy_class: PolicyClass | None, seed: int | None = None) -> list[ScoreLine]:
    """A line for every fixed trace, then one for each of five random ones, which ``seed`` chooses (None: seed 0).

    Raises IllegalEviction if the policy names a block that cannot go.
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
    """One number to chase: how much of the way from the naive policy to the optimum is yours, in percent.

    The mean over all lines, so a trace on which everybody hits much counts no more than another. 0 is as good as the
    naive policy, 100 is the optimum, which nobody reaches who cannot see the future, and less than 0 is possible.
    Raises ValueError for lines without a policy's rate.
    """
    ways = []
    for line in lines:
        if line.yours is None:
            raise ValueError(f"total: the line of {line.trace!r} has no policy's hit rate")
        ways.append(_way(line, line.yours))
    return 100.0 * sum(ways) / len(ways)


def _way(line: ScoreLine, rate: float) -> float:
    """The part of the way from naive to optimum. Where the two are equal there is none: 1 for who is there, too."""
    if line.optimum == line.naive:
        return 1.0 if rate == line.optimum else 0.0
    return (rate - line.naive) / (line.optimum - line.naive)


# ---------------------------------------------------------------------------------------------- the three marks


def naive(trace: Trace) -> int:
    """Hits if the block goes that came into the cache first, however often it was used since."""
    return num_hits(trace, _Naive)


class _Naive:
    def __init__(self, num_blocks: int) -> None:
        #: All blocks in the cache, in the order in which they came → whether nobody uses them.
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
    """Hits of the engine itself: the trace is run through its KVCacheManager, a block of one token for each block.

    A block's key is its token. One more token follows, because the manager finds all tokens but the last.
    """
    manager = KVCacheManager(trace.num_blocks + 1, block_size=1)  # block 0 is the null block
    hits = 0
    for number, chain in enumerate(trace.requests):
        request = Request(str(number), [*(block.key for block in chain), 0])
        found, num_found = manager.get_computed_blocks(request)
        hits += num_found
        if num_found == len(chain):  # allocate_slots would want a slot to write; here is none
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
    """The most hits that any policy can have, one that knows the future included: Belady's rule.

    The block goes, of those that do not run, whose next use is farthest away; of several the deepest. Why nothing is
    better: a parent's next use is never later than its child's, because who asks for the child asks for the parent.
    So children go first, every cached block can be reached, and a hit is a block that is there: plain paging, with
    requests for sets of pages. If some best policy lets q go where the rule lets p go, whose next use is not sooner,
    then let p go instead and do as that policy does, until it lets p go or asks for q: it never has fewer hits.
    """
    uses: defaultdict[int, list[int]] = defaultdict(lambda: [_NEVER])
    for number in range(len(trace.requests) - 1, -1, -1):
        for block in trace.requests[number]:
            uses[block.key].append(number)  # the next one is last
    cached: dict[int, int] = {}  # key → its next use
    farthest: list[tuple[int, int, int]] = []  # (-next use, -depth, key); what has been used since is stale
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


# ---------------------------------------------------------------------------------------------- to look at


def table(lines: Sequence[ScoreLine]) -> str:
    """The lines in columns, hit rates in percent, and below them the part of the way from naive to optimum."""
    has_yours = all(line.yours is not None for line in lines)
    rows = [f"{'hit rate, %':<12}{'naive':>8}{'reference':>11}{'optimum':>9}{'yours':>8}"]
    for line in lines:
        yours = "–" if line.yours is None else f"{100 * line.yours:.1f}"
        rows.append(f"{line.trace:<12}{100 * line.naive:>8.1f}{100 * line.reference:>11.1f}{100 * line.optimum:>9.1f}"
                    f"{yours:>8}")
    of_reference = 100.0 * sum(_way(line, line.reference) for line in lines) / len(lines)
    of_yours = f"{total(lines):.1f}" if has_yours else "–"
    return "\n".join([*rows, f"{'total':<12}{0.0:>8.1f}{of_reference:>11.1f}{100.0:>9.1f}{of_yours:>8}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m course.eviction.score",
                                     description="The score of an eviction policy.")
    parser.add_argument("file", nargs="?", type=Path, help="a file with a class EvictionPolicy")
    parser.add_argument("--seed", type=int, default=0, help="which random traces (default: 0)")
    arguments = parser.parse_args()
    policy_class = load_file(arguments.file).EvictionPolicy if arguments.file else None
    print(table(score(policy_class, arguments.seed)))


if __name__ == "__main__":
    main()
