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
        self._line = []   # [block, may it go]

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go; if it is new it stands last."""
        for place in self._line:
            if place[0] == block:
                place[1] = True
                return
        self._line.append([block, True])

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; it keeps its place."""
        next(place for place in self._line if place[0] == block)[1] = False

    def evict(self) -> Block:
        """Of the blocks that may go, the one that came first. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        index = next((index for index, (_, may_go) in enumerate(self._line) if may_go), None)
        if index is None:
            raise RuntimeError("nobody may go")
        return self._line.pop(index)[0]


# ---------------------------------------------------------------------------------------------- Task 2


class LeastRecentlyFreed:
    """What the engine's free queue does: the block goes that has been free longest.

    On every trace it has exactly the hits of the engine.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, all of them empty."""
        self._line = []

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go, after all others that may."""
        self._line.insert(0, block)

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; the others keep their order."""
        self._line = [other for other in self._line if other != block]

    def evict(self) -> Block:
        """The block that was freed longest ago, of those that may go. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        *self._line, block = self._line or [None]
        if block is None:
            raise RuntimeError("nobody may go")
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
        self._limit = 2 * num_blocks
        self._few = max(1, num_blocks * 7 // 100)
        self._lines = ([], [])   # used once, used again
        self._seen = []          # keys, oldest first

    def freed(self, block: Block) -> None:
        """Nobody uses ``block`` any more. After: it may go."""
        again = block.key in self._seen
        if again:
            self._seen.remove(block.key)
        self._seen.append(block.key)
        self._seen = self._seen[-self._limit:]
        self._lines[again].append(block)

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go."""
        for line in self._lines:
            if block in line:
                line.remove(block)

    def evict(self) -> Block:
        """A block that may go, whichever you think is missed least. After: it is not in the cache any more.

        As long as there are blocks that may go, it is one of them. Raises RuntimeError if there is none.
        """
        once, often = self._lines
        if not (once or often):
            raise RuntimeError("nobody may go")
        line = once if len(once) > self._few or not often else often
        return line.pop(0)
