"""Copy on write: many requests may read a block, but only a sole owner writes into it.

    before                  fork_block(5)            copies made             written
    A ─┐                    A ── 5 [a b c _]         A ── 5 [a b c _]        A ── 5 [a b c x]
       ├─ 5 [a b c _]            ┊ pending
    B ─┘                    B ── 8 [? ? ? ?]         B ── 8 [a b c _]        B ── 8 [a b c y]

The pool itself copies nothing. It counts references and keeps a list of copies, ``pending_copies``. Once per step the
model runner makes all of these copies, in no particular order, and then writes the step's new tokens. After that,
``finish_copies`` tells the pool that the copies have been made.

The base class is the pool of lab 2.1. The lab's page says which file that is in tests and in ``course run``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from course.base import lab_2_1 as base

KVCacheBlock = base.KVCacheBlock


class BlockPool(base.BlockPool):
    """The pool of lab 2.1, extended with copy on write: an owner that wants to write into a shared block gets a copy.

    The base provides the blocks, the free queue and the index: ``get_new_blocks``, ``touch``, ``cache_full_blocks``,
    ``get_cached_block``, ``evict_blocks``, ``get_usage`` and the rest. This class adds a second kind of reference: a
    pending copy may hold a reference to a block, in addition to the block's owners. Every method does all its checks
    before its first change: a call that raises an error changes nothing.
    """

    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_blocks, enable_caching)
        #: Copies (source, destination) that must be made before anything is written, oldest first.
        self.pending_copies: list[tuple[KVCacheBlock, KVCacheBlock]] = []
        #: Ids of blocks that lost their last owner while a pending copy needed them. The copy holds one reference to
        #: each of these blocks.
        self._kept_for_copy: set[int] = set()
        #: The number of copies that were requested since the pool was created.
        self.num_forks = 0

    # ---- Tasks 1 and 2

    def fork_block(self, block: KVCacheBlock) -> KVCacheBlock:
        """Return a block that the caller may write into. The caller is one of the owners of ``block``.

        A block has ``ref_cnt`` owners, or one less if its id is in ``_kept_for_copy``: one of the references then
        belongs to a copy, and a copy is not an owner. Call ``_fork_shared`` (task 2) only for shared blocks.

        After:
        - if ``block`` is private, nothing has changed
        - if ``block`` is shared, the caller owns the returned block instead of ``block``
        Returns:
        - if ``block`` is private (it has one owner): ``block`` itself, even if no block is free
        - if ``block`` is shared (it has two or more owners): a fresh block, into which ``block`` will be copied
        Raises:
        - RuntimeError if ``block`` has no owner: it is free, or only a copy holds it
        - RuntimeError if ``block`` is the null block or belongs to another pool: ``_check_mine`` of the base raises it
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
        # TASK 1: BlockPool.fork_block
        self._check_mine(block, "fork_block")
        num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
        if num_owners == 0:
            raise RuntimeError(f"fork_block: block {block.block_id} has no owner, so it must not be written")
        if num_owners == 1:
            return block
        return self._fork_shared(block)
        # END TASK

    def _fork_shared(self, block: KVCacheBlock) -> KVCacheBlock:
        """Move the caller's reference from ``block`` to a fresh block, and request a copy of ``block`` into that block.

        This method only puts the copy on the list. The content is copied later.

        Before:
        - ``block`` has at least two owners
        After:
        - ``block`` has lost one owner
        - ``block`` keeps its hash, and a lookup finds it as before
        - ``(block, fresh block)`` is the last entry of ``pending_copies``
        - ``num_forks`` is one higher
        Returns:
        - the fresh block that ``get_new_blocks`` returns: it has one owner, and no hash, because its content is going
          to change
        Raises:
        - ValueError if no block is free: ``get_new_blocks`` raises it

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
        # TASK 2: BlockPool._fork_shared
        copy = self.get_new_blocks(1)[0]
        block.ref_cnt -= 1
        self.num_forks += 1
        self.pending_copies.append((block, copy))
        return copy
        # END TASK

    # ---- Task 3

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Remove one owner from each block. Free each block that has no owner left, unless a pending copy needs it.

        A copy needs both of its blocks, the source and the destination. When the last owner of such a block leaves, the
        copy takes over that owner's reference:

            ref_cnt 1: held by an owner    →    ref_cnt 1: held by the copy; the block's id is in _kept_for_copy

        The copy's reference is not an owner. The ``free_blocks`` of the base does not know this: its check counts every
        reference in ``ref_cnt`` as an owner.

        Before:
        - ``blocks`` may be an iterator, such as ``reversed(table)``, which can be iterated over only once
        - ``blocks`` may contain a block twice if the block has two owners
        After:
        - each block has lost one owner for each time that ``blocks`` contains it
        - a block that lost its last owner is at the end of the queue if no pending copy needs it; several such blocks
          are there in the order in which they lost their last owner
        - a block that lost its last owner is not in the queue if a pending copy needs it: its ``ref_cnt`` stays 1, and
          its id is in ``_kept_for_copy`` until ``finish_copies``
        - a block that is kept for a copy keeps its hash, and it can be found and touched
        - ``pending_copies`` is unchanged, even if neither block of a copy has an owner left
        Raises:
        - RuntimeError if ``blocks`` contains a block more often than the block has owners
        - RuntimeError if ``blocks`` contains the null block or a block of another pool: ``_check_mine`` of the base
          raises it

        Example::

            >>> pool = BlockPool(4)
            >>> (block,) = pool.get_new_blocks(1)
            >>> pool.touch([block])
            >>> copy = pool.fork_block(block)
            >>> pool.free_blocks([block])  # its last owner leaves, but the copy is still pending
            >>> block.ref_cnt, [free.block_id for free in pool.free_block_queue.get_all_free_blocks()]
            (1, [3])
        """
        # TASK 3: BlockPool.free_blocks
        blocks = list(blocks)
        for block, num_drops in Counter(blocks).items():
            self._check_mine(block, "free_blocks")
            num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
            if num_drops > num_owners:
                raise RuntimeError(f"free_blocks: block {block.block_id} is freed {num_drops} times, "
                                   f"but has {num_owners} owners")
        needed = {block.block_id for copy in self.pending_copies for block in copy}
        for block in blocks:
            if block.ref_cnt == 1 and block.block_id in needed:
                self._kept_for_copy.add(block.block_id)
            else:
                super().free_blocks([block])
        # END TASK

    # ---- Task 4

    def finish_copies(self) -> None:
        """Clear the list of pending copies, which have all been made, and release the blocks that were kept for them.

        If no copy is pending, nothing changes.

        After:
        - ``pending_copies`` and ``_kept_for_copy`` are empty
        - each block that was kept has lost the copy's reference
        - kept blocks without an owner are at the end of the queue, lowest block id first
        - blocks that have owners keep all their owners

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
        # TASK 4: BlockPool.finish_copies
        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]
        self.pending_copies = []
        self._kept_for_copy = set()
        self.free_blocks(kept)
        # END TASK

    def check_integrity(self) -> None:
        """Raise RuntimeError if the pool is inconsistent. This method is given.

        In addition to the checks of the base: both blocks of a pending copy must have a reference, and only such blocks
        may be kept for a copy.
        """
        super().check_integrity()
        needed = set()
        for source, copy in self.pending_copies:
            if not (source.ref_cnt and copy.ref_cnt):
                raise RuntimeError(f"one side of the pending copy {source.block_id} → {copy.block_id} is free")
            needed |= {source.block_id, copy.block_id}
        if not self._kept_for_copy <= needed:
            raise RuntimeError(f"kept for a copy: {sorted(self._kept_for_copy)}, but copies need only {sorted(needed)}")
