"""Copy on write: a block may have many readers, but only a sole owner writes into it.

    before                  fork_block(5)            copies made             written
    A ─┐                    A ── 5 [a b c _]         A ── 5 [a b c _]        A ── 5 [a b c x]
       ├─ 5 [a b c _]            ┊ pending
    B ─┘                    B ── 8 [? ? ? ?]         B ── 8 [a b c _]        B ── 8 [a b c y]

The pool moves no numbers. It counts references and keeps a list of copies, ``pending_copies``. Once per step the owner
of the memory makes all of them, in no particular order, and then writes the step's new tokens. ``finish_copies``
reports that the copies are made.

The pool of lab 2.1 is the base. The lab's page says whose file that is in tests and in ``course run``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from course.base import lab_2_1 as base

KVCacheBlock = base.KVCacheBlock


class BlockPool(base.BlockPool):
    """The pool of lab 2.1, whose shared blocks are copied when one of their owners wants to write.

    From the base come the blocks, the free queue and the index: ``get_new_blocks``, ``touch``, ``cache_full_blocks``,
    ``get_cached_block``, ``evict_blocks``, ``get_usage`` and the rest. New is a second kind of reference: a pending
    copy may hold one, in addition to the owners. Every method does its checking before its first write: a call that
    raises has changed nothing.
    """

    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_blocks, enable_caching)
        #: Copies (source, destination) that must be made before anything is written, oldest first.
        self.pending_copies: list[tuple[KVCacheBlock, KVCacheBlock]] = []
        #: Ids of blocks whose last owner left while a pending copy needed them. One reference of each is the copy's.
        self._kept_for_copy: set[int] = set()
        #: How many copies were asked for since the pool was made.
        self.num_forks = 0

    # ---- Tasks 1 and 2

    def fork_block(self, block: KVCacheBlock) -> KVCacheBlock:
        """Return a block that the caller, an owner of ``block``, may write: ``block`` itself if it has no other owner.

        A block has ``ref_cnt`` owners, or one less if it is in ``_kept_for_copy``: that reference is the copy's, and a
        copy writes nothing. ``_fork_shared``, task 2, is only for shared blocks.

        After:
        - a private block: nothing has changed
        - a shared block: the caller owns the returned block in its place
        Returns:
        - a private block (one owner): the block itself, even if no block is free
        - a shared block (two or more owners): a fresh block, into which ``block`` will be copied
        Raises:
        - RuntimeError if ``block`` has no owner: it is free, or only a copy holds it
        - RuntimeError for what ``_check_mine`` of the base refuses: the null block and blocks of another pool
        - ValueError if ``block`` is shared and no block is free

        Example::

            >>> pool = BlockPool(4)
            >>> (block,) = pool.get_new_blocks(1)
            >>> pool.fork_block(block).block_id  # private
            1
            >>> pool.touch([block])
            >>> pool.fork_block(block).block_id  # shared
            2
        """
        raise NotImplementedError("Task 1: BlockPool.fork_block")

    def _fork_shared(self, block: KVCacheBlock) -> KVCacheBlock:
        """Take a fresh block to copy ``block`` into, and move the caller's reference to it. No content is copied here.

        Before:
        - ``block`` has at least two owners
        After:
        - ``block`` has one owner less
        - ``block`` keeps its hash, and is found as before
        - ``(block, fresh block)`` is the last of ``pending_copies``
        - ``num_forks`` is one more
        Returns:
        - the block that ``get_new_blocks`` gives: it has one owner, and no hash, because its content is going to change
        Raises:
        - ValueError if no block is free, as ``get_new_blocks`` does

        Example::

            >>> pool = BlockPool(4)
            >>> (block,) = pool.get_new_blocks(1)
            >>> pool.touch([block])
            >>> copy = pool.fork_block(block)
            >>> copy.block_id, copy.ref_cnt, block.ref_cnt
            (2, 1, 1)
            >>> pool.pending_copies == [(block, copy)], pool.num_forks
            (True, 1)
        """
        raise NotImplementedError("Task 2: BlockPool._fork_shared")

    # ---- Task 3

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop an owner from each block. A block without owners joins the queue's end, unless a pending copy needs it.

        A copy needs both its blocks, source and destination. When the last owner of such a block leaves, the copy takes
        that owner's reference over:

            ref_cnt 1: an owner's    →    ref_cnt 1: the copy's, the block's id is in _kept_for_copy

        The copy's reference is not an owner. The base's ``free_blocks`` does not know that: it compares with
        ``ref_cnt``.

        Before:
        - ``blocks`` may be an iterator, such as ``reversed(table)``, which can be walked once
        - a block may be in ``blocks`` twice if it has two owners
        After:
        - each block has lost one owner for each time that it is in ``blocks``
        - a block that lost its last owner, and that no pending copy needs, is at the queue's end; several are there in
          the order in which they lost it
        - a block that lost its last owner, and that a pending copy needs, is not in the queue: its ``ref_cnt`` stays 1,
          and its id is in ``_kept_for_copy`` until ``finish_copies``
        - such a block keeps its hash, and can be found and touched
        - ``pending_copies`` is as before, even if neither side of a copy has an owner left
        Raises:
        - RuntimeError if a block is in ``blocks`` more often than it has owners
        - RuntimeError for what ``_check_mine`` of the base refuses: the null block and blocks of another pool

        Example::

            >>> pool = BlockPool(4)
            >>> (block,) = pool.get_new_blocks(1)
            >>> pool.touch([block])
            >>> copy = pool.fork_block(block)
            >>> pool.free_blocks([block])  # its last owner; it is still to be copied
            >>> block.ref_cnt, [free.block_id for free in pool.free_block_queue.get_all_free_blocks()]
            (1, [3])
        """
        raise NotImplementedError("Task 3: BlockPool.free_blocks")

    # ---- Task 4

    def finish_copies(self) -> None:
        """Report that all pending copies have been made. If none is pending, nothing changes.

        After:
        - ``pending_copies`` and ``_kept_for_copy`` are empty
        - each block that was kept has lost the copy's reference
        - kept blocks that have no owner are at the queue's end, lowest block id first
        - blocks that have owners stay with them

        Example::

            >>> pool = BlockPool(4)
            >>> (block,) = pool.get_new_blocks(1)
            >>> pool.touch([block])
            >>> copy = pool.fork_block(block)
            >>> pool.free_blocks([block])
            >>> pool.finish_copies()
            >>> block.ref_cnt, [free.block_id for free in pool.free_block_queue.get_all_free_blocks()]
            (0, [3, 1])
        """
        raise NotImplementedError("Task 4: BlockPool.finish_copies")

    def check_integrity(self) -> None:
        """As in the base. Also: both sides of a pending copy are held, and only they are kept for a copy. Given."""
        super().check_integrity()
        needed = set()
        for source, copy in self.pending_copies:
            if not (source.ref_cnt and copy.ref_cnt):
                raise RuntimeError(f"one side of the pending copy {source.block_id} → {copy.block_id} is free")
            needed |= {source.block_id, copy.block_id}
        if not self._kept_for_copy <= needed:
            raise RuntimeError(f"kept for a copy: {sorted(self._kept_for_copy)}, but copies need only {sorted(needed)}")
