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
        self._came, self._may_go, self._count = {}, {}, 0

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go; if it is new it stands last."""
        if block.key not in self._came:
            self._count += 1
            self._came[block.key] = self._count
        self._may_go[block.key] = block

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; it keeps its place."""
        del self._may_go[block.key]

    def evict(self) -> Block:
        """Of the blocks that may go, the one that came first. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        if len(self._may_go) == 0:
            raise RuntimeError("nothing may go")
        key = min(self._may_go, key=lambda key: self._came[key])
        self._came.pop(key)
        return self._may_go.pop(key)


# ---------------------------------------------------------------------------------------------- Task 2


class LeastRecentlyFreed:
    """What the engine's free queue does: the block goes that has been free longest.

    On every trace it has exactly the hits of the engine.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, all of them empty."""
        self._clock, self._since = 0, {}

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go, after all others that may."""
        self._clock += 1
        self._since[block] = self._clock

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; the others keep their order."""
        del self._since[block]

    def evict(self) -> Block:
        """The block that was freed longest ago, of those that may go. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        try:
            oldest = min(self._since.items(), key=lambda item: item[1])[0]
        except ValueError:
            raise RuntimeError("nothing may go") from None
        del self._since[oldest]
        return oldest


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
        self._size = num_blocks
        self._clock = 0
        self._known = {}     # key -> (uses, when it was freed last)
        self._may_go = set()

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go."""
        self._clock += 1
        uses, _ = self._known.get(block.key, (0, 0))
        self._known[block.key] = (min(uses + 1, 2), self._clock)
        self._may_go.add(block)
        if len(self._known) > 2 * self._size:
            gone = {block.key for block in self._may_go}
            oldest = min((key for key in self._known), key=lambda key: (key in gone, self._known[key][1]))
            del self._known[oldest]

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go."""
        self._may_go.remove(block)

    def evict(self) -> Block:
        """A block that may go, whichever you think is missed least. After: it is not in the cache any more.

        As long as there are blocks that may go, it is one of them. Raises RuntimeError if there is none.
        """
        if not self._may_go:
            raise RuntimeError("nothing may go")
        once = [block for block in self._may_go if self._known[block.key][0] == 1]
        often = [block for block in self._may_go if self._known[block.key][0] > 1]
        pick = once if len(once) > 0.05 * self._size or not often else often
        block = min(pick, key=lambda block: self._known[block.key][1])
        self._may_go.discard(block)
        return block
