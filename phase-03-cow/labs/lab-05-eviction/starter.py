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
        raise NotImplementedError("Task 1: Fifo.__init__")

    def freed(self, block: Block) -> None:
        """Record that no request uses ``block`` any more.

        After: it may be evicted; a new block is last in the order.
        """
        raise NotImplementedError("Task 1: Fifo.freed")

    def taken(self, block: Block) -> None:
        """Record that ``block``, which was free, is in use again. After: it may not be evicted; it keeps its place."""
        raise NotImplementedError("Task 1: Fifo.taken")

    def evict(self) -> Block:
        """Return the block that entered first among those that may be evicted. After: it is forgotten.

        Raises RuntimeError if no block may be evicted.
        """
        raise NotImplementedError("Task 1: Fifo.evict")


# ---------------------------------------------------------------------------------------------- Task 2


class LeastRecentlyFreed:
    """The policy of the engine's free queue: it evicts the block that has been free longest.

    On every trace it has exactly the same hits as the engine.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make a policy for an empty cache of ``num_blocks`` blocks."""
        raise NotImplementedError("Task 2: LeastRecentlyFreed.__init__")

    def freed(self, block: Block) -> None:
        """Record that no request uses ``block`` any more.

        After: it may be evicted, after all other blocks that may be evicted now.
        """
        raise NotImplementedError("Task 2: LeastRecentlyFreed.freed")

    def taken(self, block: Block) -> None:
        """Record that ``block``, which was free, is in use again.

        After: it may not be evicted; the other blocks keep their order.
        """
        raise NotImplementedError("Task 2: LeastRecentlyFreed.taken")

    def evict(self) -> Block:
        """Return the block that was freed longest ago among those that may be evicted. After: it is forgotten.

        Raises RuntimeError if no block may be evicted.
        """
        raise NotImplementedError("Task 2: LeastRecentlyFreed.evict")


# ---------------------------------------------------------------------------------------------- Task 3


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

    def __init__(self, num_blocks: int) -> None:
        """Make a policy for an empty cache of ``num_blocks`` blocks, at least 1."""
        raise NotImplementedError("Task 3: EvictionPolicy.__init__")

    def freed(self, block: Block) -> None:
        """Record that no request uses ``block`` any more. After: it may be evicted."""
        raise NotImplementedError("Task 3: EvictionPolicy.freed")

    def taken(self, block: Block) -> None:
        """Record that ``block``, which was free, is in use again. After: it may not be evicted."""
        raise NotImplementedError("Task 3: EvictionPolicy.taken")

    def evict(self) -> Block:
        """Return a block that may be evicted: the one that you expect to need least. After: it has left the cache.

        As long as there are blocks that may be evicted, the result is one of them. Raises RuntimeError if there is
        none.
        """
        raise NotImplementedError("Task 3: EvictionPolicy.evict")
