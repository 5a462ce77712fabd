"""Lab 3.5: what to forget. Three eviction policies for a prefix cache; the third is yours to invent.

    freed(block)    no request uses it any more: it stays in the cache, and may be forgotten from now on
    taken(block)    a request uses it again: it must not be forgotten
    evict()         the cache is full and a request needs room: which block goes?

A block may go if it was freed and not taken since. A block that the cache does not hold may come in at any time, even
one that went before: the policy hears of it when its request ends, by ``freed``. A request frees its last block first.
Blocks are compared by ``==``: ``taken`` may name a block by another object than ``freed`` did.
``taken`` is not always a hit: of the request A ─ B ─ C, if A went and B and C are still there, all three are computed
again, B and C in their old places. The policy hears taken(B), taken(C), and in the end freed(C), freed(B), freed(A).
All three policies are asked the same questions. No call says what comes next.
"""

from __future__ import annotations

from collections import OrderedDict

from course.eviction_arena import Block

# ---------------------------------------------------------------------------------------------- Task 1


class Fifo:
    """First in, first out. A block comes in when it is freed for the first time, or the first time since it went.

    A block that is used again keeps its place: it only cannot go while it is in use.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, all of them empty."""
        # TASK 1: Fifo.__init__
        #: All blocks that are in the cache, in the order in which they came → whether they may go.
        self._may_go: dict[Block, bool] = {}
        # END TASK

    def freed(self, block: Block) -> None:
        """No request uses ``block`` any more. After: it may go; if it is new, it is the last one."""
        # TASK 1: Fifo.freed
        self._may_go[block] = True
        # END TASK

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; it keeps its place."""
        # TASK 1: Fifo.taken
        self._may_go[block] = False
        # END TASK

    def evict(self) -> Block:
        """Of the blocks that may go, the one that came first. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        # TASK 1: Fifo.evict
        for block, may_go in self._may_go.items():
            if may_go:
                del self._may_go[block]
                return block
        raise RuntimeError(f"evict: none of {len(self._may_go)} blocks may go")
        # END TASK


# ---------------------------------------------------------------------------------------------- Task 2


class LeastRecentlyFreed:
    """What the engine's free queue does: the block that has been free longest goes.

    On every trace it has exactly the hits of the engine.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, all of them empty."""
        # TASK 2: LeastRecentlyFreed.__init__
        self._queue: OrderedDict[Block, None] = OrderedDict()
        # END TASK

    def freed(self, block: Block) -> None:
        """No request uses ``block`` any more. After: it may go, after all others that may."""
        # TASK 2: LeastRecentlyFreed.freed
        self._queue[block] = None
        # END TASK

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; the others keep their order."""
        # TASK 2: LeastRecentlyFreed.taken
        del self._queue[block]
        # END TASK

    def evict(self) -> Block:
        """The block that was freed longest ago, of those that may go. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        # TASK 2: LeastRecentlyFreed.evict
        if not self._queue:
            raise RuntimeError("evict: no block may go")
        return self._queue.popitem(last=False)[0]
        # END TASK


# ---------------------------------------------------------------------------------------------- Task 3


# SOLUTION ONLY
#: The share of the cache that blocks which were used again may fill undisturbed.
PROTECTED_SHARE = 0.8


# END SOLUTION ONLY
class EvictionPolicy:
    """Your own. It must be legal, and forget; beyond that, a better hit rate gives more points: see the README.

    - In one run of Python the same calls get the same answers, whatever comes later. Two policies know nothing of each
      other.
    - At any time it remembers at most ``4 * num_blocks`` different blocks, those that went included: as blocks, as keys
      or in text, in its own variables, those of its class and those of its file.
    - Numbers that name no block do not count as blocks, but what it keeps there does not grow with the number of
      requests.
    """

    # SOLUTION ONLY
    # Two queues, as in segmented LRU and 2Q. A block that was used once is in _once, one that was used again in _again.
    # Those of _once go first, so a document that is asked for once pushes out nothing but other documents. If _again
    # grows too large, its oldest blocks get a last chance in _once. A block that went lately is remembered by its key
    # alone, a ghost: if it comes back, it was needed, and is not new.
    #
    # In both queues a child is before its parent, because it is freed before it, and a request that uses the child uses
    # the parent. So leaves go first.
    # END SOLUTION ONLY
    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, at least 1, all of them empty."""
        # TASK 3: EvictionPolicy.__init__
        self._num_blocks = num_blocks
        self._num_protected = int(PROTECTED_SHARE * num_blocks)
        self._once: OrderedDict[Block, None] = OrderedDict()
        self._again: OrderedDict[Block, None] = OrderedDict()
        self._in_use: set[Block] = set()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        # END TASK

    def freed(self, block: Block) -> None:
        """No request uses ``block`` any more. After: it may go."""
        # TASK 3: EvictionPolicy.freed
        if block not in self._in_use and block.key not in self._ghosts:
            self._once[block] = None
            return
        self._in_use.discard(block)
        self._ghosts.pop(block.key, None)
        self._again[block] = None
        if len(self._again) > self._num_protected:
            self._once[self._again.popitem(last=False)[0]] = None
        # END TASK

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go."""
        # TASK 3: EvictionPolicy.taken
        del (self._once if block in self._once else self._again)[block]
        self._in_use.add(block)
        # END TASK

    def evict(self) -> Block:
        """A block that may go, the one that you expect to be missed least. After: it is not in the cache any more.

        As long as there are blocks that may go, it is one of them. Raises RuntimeError if there is none.
        """
        # TASK 3: EvictionPolicy.evict
        queue = self._once or self._again
        if not queue:
            raise RuntimeError(f"evict: no block may go, {len(self._in_use)} are in use")
        block = queue.popitem(last=False)[0]
        self._ghosts[block.key] = None
        if len(self._ghosts) > self._num_blocks:
            self._ghosts.popitem(last=False)
        return block
        # END TASK
