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
        raise NotImplementedError("Task 1: Fifo.__init__")

    def freed(self, block: Block) -> None:
        """No request uses ``block`` any more. After: it may go; if it is new, it is the last one."""
        raise NotImplementedError("Task 1: Fifo.freed")

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; it keeps its place."""
        raise NotImplementedError("Task 1: Fifo.taken")

    def evict(self) -> Block:
        """Of the blocks that may go, the one that came first. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        raise NotImplementedError("Task 1: Fifo.evict")


# ---------------------------------------------------------------------------------------------- Task 2


class LeastRecentlyFreed:
    """What the engine's free queue does: the block that has been free longest goes.

    On every trace it has exactly the hits of the engine.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, all of them empty."""
        raise NotImplementedError("Task 2: LeastRecentlyFreed.__init__")

    def freed(self, block: Block) -> None:
        """No request uses ``block`` any more. After: it may go, after all others that may."""
        raise NotImplementedError("Task 2: LeastRecentlyFreed.freed")

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go; the others keep their order."""
        raise NotImplementedError("Task 2: LeastRecentlyFreed.taken")

    def evict(self) -> Block:
        """The block that was freed longest ago, of those that may go. After: it is forgotten.

        Raises RuntimeError if no block may go.
        """
        raise NotImplementedError("Task 2: LeastRecentlyFreed.evict")


# ---------------------------------------------------------------------------------------------- Task 3


class EvictionPolicy:
    """Your own. It must be legal, and forget; beyond that, a better hit rate gives more points: see the README.

    - In one run of Python the same calls get the same answers, whatever comes later. Two policies know nothing of each
      other.
    - At any time it remembers at most ``4 * num_blocks`` different blocks, those that went included: as blocks, as keys
      or in text, in its own variables, those of its class and those of its file.
    - Numbers that name no block do not count as blocks, but what it keeps there does not grow with the number of
      requests.
    """

    def __init__(self, num_blocks: int) -> None:
        """A policy for a cache of ``num_blocks`` blocks, at least 1, all of them empty."""
        raise NotImplementedError("Task 3: EvictionPolicy.__init__")

    def freed(self, block: Block) -> None:
        """No request uses ``block`` any more. After: it may go."""
        raise NotImplementedError("Task 3: EvictionPolicy.freed")

    def taken(self, block: Block) -> None:
        """``block``, which may go, is in use again. After: it may not go."""
        raise NotImplementedError("Task 3: EvictionPolicy.taken")

    def evict(self) -> Block:
        """A block that may go, the one that you expect to be missed least. After: it is not in the cache any more.

        As long as there are blocks that may go, it is one of them. Raises RuntimeError if there is none.
        """
        raise NotImplementedError("Task 3: EvictionPolicy.evict")
