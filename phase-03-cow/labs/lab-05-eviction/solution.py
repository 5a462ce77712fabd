"""Lab 3.5: what to forget. Three eviction policies for a prefix cache; you invent the third.

    freed(block)    no request uses the block any more: it stays in the cache, and may be evicted from now on
    taken(block)    a request uses the block again: it must not be evicted
    evict()         the cache is full and a request needs room: which block is evicted?

A block may be evicted if it was freed and not taken since. A new block may enter the cache at any time, and so may a
block that was evicted before. The policy learns about it from ``freed``, when the request ends. A request frees its
last block first.

Blocks are compared by ``==``: for the same block, ``taken`` may get another object than ``freed`` did.

``taken`` does not always mean a hit. Suppose that A was evicted, B and C are still cached, and a request asks for
A ─ B ─ C. Then all three blocks are computed again, B and C in their old places. The policy gets taken(B), taken(C),
and at the end freed(C), freed(B), freed(A).

All three policies get the same calls. No call says anything about future requests.
"""

from __future__ import annotations

from collections import OrderedDict

from course.eviction_arena import Block

# ---------------------------------------------------------------------------------------------- Task 1


class Fifo:
    """First in, first out.

    A block enters when it is freed for the first time, or for the first time since its eviction. A block that is used
    again keeps its place in the order. While it is in use, it cannot be evicted.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make a policy for an empty cache of ``num_blocks`` blocks."""
        # TASK 1: Fifo.__init__
        #: Block → whether it may be evicted. Contains all blocks in the cache, in the order in which they entered.
        self._may_go: dict[Block, bool] = {}
        # END TASK

    def freed(self, block: Block) -> None:
        """Record that no request uses ``block`` any more.

        After: it may be evicted; a new block is last in the order.
        """
        # TASK 1: Fifo.freed
        self._may_go[block] = True
        # END TASK

    def taken(self, block: Block) -> None:
        """Record that ``block``, which was free, is in use again. After: it may not be evicted; it keeps its place."""
        # TASK 1: Fifo.taken
        self._may_go[block] = False
        # END TASK

    def evict(self) -> Block:
        """Return the block that entered first among those that may be evicted. After: it is forgotten.

        Raises RuntimeError if no block may be evicted.
        """
        # TASK 1: Fifo.evict
        for block, may_go in self._may_go.items():
            if may_go:
                del self._may_go[block]
                return block
        raise RuntimeError(f"evict: none of {len(self._may_go)} blocks may be evicted")
        # END TASK


# ---------------------------------------------------------------------------------------------- Task 2


class LeastRecentlyFreed:
    """The policy of the engine's free queue: it evicts the block that has been free longest.

    On every trace it has exactly the same hits as the engine.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make a policy for an empty cache of ``num_blocks`` blocks."""
        # TASK 2: LeastRecentlyFreed.__init__
        self._queue: OrderedDict[Block, None] = OrderedDict()
        # END TASK

    def freed(self, block: Block) -> None:
        """Record that no request uses ``block`` any more.

        After: it may be evicted, after all other blocks that may be evicted now.
        """
        # TASK 2: LeastRecentlyFreed.freed
        self._queue[block] = None
        # END TASK

    def taken(self, block: Block) -> None:
        """Record that ``block``, which was free, is in use again.

        After: it may not be evicted; the other blocks keep their order.
        """
        # TASK 2: LeastRecentlyFreed.taken
        del self._queue[block]
        # END TASK

    def evict(self) -> Block:
        """Return the block that was freed longest ago among those that may be evicted. After: it is forgotten.

        Raises RuntimeError if no block may be evicted.
        """
        # TASK 2: LeastRecentlyFreed.evict
        if not self._queue:
            raise RuntimeError("evict: no block may be evicted")
        return self._queue.popitem(last=False)[0]
        # END TASK


# ---------------------------------------------------------------------------------------------- Task 3


# SOLUTION ONLY
#: The largest share of the cache that protected blocks may fill: blocks that were used again.
PROTECTED_SHARE = 0.8


# END SOLUTION ONLY
class EvictionPolicy:
    """Your own policy. It must follow these rules; beyond them, a better hit rate gives more points (see the README).

    - Within one Python process, the same calls get the same answers, no matter which requests come later. Two policies
      know nothing about each other.
    - At any time it remembers at most ``4 * num_blocks`` different blocks, including evicted ones. This limit covers
      everything that it stores as blocks, as keys or in text, in its own variables, those of its class and those of its
      file.
    - Numbers that identify no block do not count as blocks. But the data in these variables must not grow with the
      number of requests.
    """

    # SOLUTION ONLY
    # Two queues, as in segmented LRU and 2Q. Blocks that were used once are in _once, blocks that were used again in
    # _again. Blocks in _once are evicted first, so a document that is requested once evicts only other documents. If
    # _again grows too large, its oldest blocks get a last chance in _once. The policy remembers the keys of recently
    # evicted blocks, called ghosts: if such a block returns, it was evicted too early, and does not count as new.
    #
    # In both queues a child comes before its parent: the child is freed first, and a request that uses the child also
    # uses the parent. So leaves are evicted first.
    # END SOLUTION ONLY
    def __init__(self, num_blocks: int) -> None:
        """Make a policy for an empty cache of ``num_blocks`` blocks, at least 1."""
        # TASK 3: EvictionPolicy.__init__
        self._num_blocks = num_blocks
        self._num_protected = int(PROTECTED_SHARE * num_blocks)
        self._once: OrderedDict[Block, None] = OrderedDict()
        self._again: OrderedDict[Block, None] = OrderedDict()
        self._in_use: set[Block] = set()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        # END TASK

    def freed(self, block: Block) -> None:
        """Record that no request uses ``block`` any more. After: it may be evicted."""
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
        """Record that ``block``, which was free, is in use again. After: it may not be evicted."""
        # TASK 3: EvictionPolicy.taken
        del (self._once if block in self._once else self._again)[block]
        self._in_use.add(block)
        # END TASK

    def evict(self) -> Block:
        """Return a block that may be evicted: the one that you expect to need least. After: it has left the cache.

        As long as there are blocks that may be evicted, the result is one of them. Raises RuntimeError if there is
        none.
        """
        # TASK 3: EvictionPolicy.evict
        queue = self._once or self._again
        if not queue:
            raise RuntimeError(f"evict: no block may be evicted, {len(self._in_use)} are in use")
        block = queue.popitem(last=False)[0]
        self._ghosts[block.key] = None
        if len(self._ghosts) > self._num_blocks:
            self._ghosts.popitem(last=False)
        return block
        # END TASK
