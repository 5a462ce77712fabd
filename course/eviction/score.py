"""Lab 3.5: the score of an eviction policy, compared with the naive policy, the engine's and the optimum.

    python -m course.eviction.score                  the hit rates of these three on every trace
    python -m course.eviction.score FILE --seed 7    also those of FILE's EvictionPolicy, on other traces
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from course.eviction.arena import Block, IllegalEviction, Trace, num_hits
from course.eviction.traces import FIXED, make_trace
from course.lab.contest import Contest
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request

#: The next use of a block that is never requested again: after all requests.
_NEVER = 1 << 60


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


CONTEST = Contest(
    "course.eviction.score", "EvictionPolicy", [*FIXED, *(f"random {number}" for number in range(5))], make_trace,
    play=num_hits, foul=IllegalEviction, naive=naive, reference=reference, bound=optimum, bound_name="optimum",
    title="hit rate, %", scale=lambda trace: 100 / trace.num_asked, unit="{:.0f} hits", num_unseen=2, margin=0.2)
score, table, total, landmarks = CONTEST.score, CONTEST.table, CONTEST.total, CONTEST.landmarks

if __name__ == "__main__":
    CONTEST.main()
