"""Lab 3.5: what to forget. Three eviction policies for a prefix cache; the third is yours to invent.

    freed(block)    nobody uses it any more: it stays in the cache, and may be forgotten from now on
    taken(block)    a request uses it again: it must not be forgotten
    evict()         the cache is full and a request needs room: which block goes?

A block may go if it was freed and not taken since. A block that the cache does not hold may come in at any time, also
one that went before: the policy hears of it when its request ends, by ``freed``. A request frees its last block first.
``taken`` is not always a hit: of the request A ─ B ─ C, if A went and B and C are still there, all three are computed
again, B and C in their old places. The policy hears taken(B), taken(C), and in the end freed(C), freed(B), freed(A).
All three policies are asked the same questions. Nobody tells them what comes next.
"""

from __future__ import annotations

from collections import OrderedDict

from course.eviction_arena import Block

# ---------------------------------------------------------------------------------------------- Task 1


class Fifo:
    """First in, first out. A block comes in when it is freed for the first time, or the first time since it went.

    To be used again changes nothing about its place: it only cannot go while it is in use.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, all of them empty."""
        self._order: dict[Block, None] = {}  # all that came in and have not gone, first come first
        self._free: set[Block] = set()

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go; if it is new it stands last."""
        if block not in self._order:
            self._order[block] = None
        self._free.add(block)

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; it keeps its place."""
        self._free.discard(block)

    def evict(self) -> Block:
        """Of the blocks that may go, the one that came first. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        for block in self._order:
            if block in self._free:
                del self._order[block]
                self._free.remove(block)
                return block
        raise RuntimeError("Fifo.evict: no block may go")


# ---------------------------------------------------------------------------------------------- Task 2


class LeastRecentlyFreed:
    """What the engine's free queue does: the block goes that has been free longest.

    On every trace it has exactly the hits of the engine.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, all of them empty."""
        self._queue: OrderedDict[Block, None] = OrderedDict()

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go, after all others that may."""
        self._queue[block] = None
        self._queue.move_to_end(block)

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; the others keep their order."""
        self._queue.pop(block, None)

    def evict(self) -> Block:
        """The block that was freed longest ago, of those that may go. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        if not self._queue:
            raise RuntimeError("LeastRecentlyFreed.evict: no block may go")
        block, _ = self._queue.popitem(last=False)
        return block


# ---------------------------------------------------------------------------------------------- Task 3


class EvictionPolicy:
    """Your own. It must be legal, and forget; beyond that, better counts: the steps are in the README.

    A policy that is asked the same gives the same answers, whatever comes later; two policies know nothing of each
    other. At any time it remembers at most ``4 * num_blocks`` different blocks, those that went included, in whatever
    form and wherever it keeps them. Numbers of its own that name no block do not count, but what it keeps does not grow
    with the number of requests.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, at least 1, all of them empty."""
        self._num_blocks = num_blocks
        self._once: OrderedDict[Block, None] = OrderedDict()  # may go, used once; least recently freed first
        self._often: OrderedDict[Block, None] = OrderedDict()  # may go, used more often
        self._uses: OrderedDict[int, int] = OrderedDict()  # key → how often it was freed, of those freed last

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go."""
        uses = self._uses.pop(block.key, 0) + 1
        self._uses[block.key] = uses
        while len(self._uses) > 2 * self._num_blocks:
            self._uses.popitem(last=False)
        queue = self._once if uses == 1 else self._often
        queue[block] = None

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go."""
        self._once.pop(block, None)
        self._often.pop(block, None)

    def evict(self) -> Block:
        """A block that may go, whichever you think is missed least. After: it is not in the cache any more.

        As long as there are blocks that may go, it is one of them. Raises RuntimeError if there is none.
        """
        if not self._once and not self._often:
            raise RuntimeError("EvictionPolicy.evict: no block may go")
        if not self._often or len(self._once) > 0.05 * self._num_blocks:
            queue = self._once
        else:
            queue = self._often
        block, _ = queue.popitem(last=False)
        return block
