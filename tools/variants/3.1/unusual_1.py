"""Copy on write: a block may have many readers, but only a sole owner writes into it.

    before                  fork_block(5)            copies made             written
    A ─┐                    A ── 5 [a b c _]         A ── 5 [a b c _]        A ── 5 [a b c x]
       ├─ 5 [a b c _]            ┊ pending
    B ─┘                    B ── 8 [? ? ? ?]         B ── 8 [a b c _]        B ── 8 [a b c y]

The pool moves no numbers. It keeps the books and a list of copies, ``pending_copies``. Once a step, whoever owns the
memory makes all of them, in no particular order, then writes the step's new tokens; ``finish_copies`` reports that the
copies are made.

The pool of lab 2.1 is the base. Whose file that is in tests and in ``course run``, the lab's page says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from course.base import lab_2_1 as base

KVCacheBlock = base.KVCacheBlock


class BlockPool(base.BlockPool):
    """The pool of lab 2.1, whose shared blocks are copied when one of their owners wants to write.

    From the base come the blocks, the free queue and the index: ``get_new_blocks``, ``touch``, ``cache_full_blocks``,
    ``get_cached_block``, ``evict_blocks``, ``get_usage`` and the rest. New is a second kind of reference: beside its
    owners, a pending copy may hold one. Every method does its checking before its first write: a call that raises has
    changed nothing.
    """

    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_blocks, enable_caching)
        #: Copies (source, destination) that must be made before anything is written.
        self.pending_copies: list[tuple[KVCacheBlock, KVCacheBlock]] = []
        #: Ids of blocks whose last owner left while a pending copy needed them. One reference of each is the copy's.
        self._kept_for_copy: set[int] = set()
        #: How many copies were asked for since the pool was made.
        self.num_forks = 0

    # ---- Tasks 1 and 2

    def fork_block(self, block: KVCacheBlock) -> KVCacheBlock:
        """Return a block that the caller, an owner of ``block``, may write: ``block`` itself if no one else owns it.

        A block has as many owners as ``ref_cnt`` says, less one if it is in ``_kept_for_copy``: that reference is the
        copy's, and a copy writes nothing.
        A private block (one owner) comes back as it is, and nothing changes, not even when no block is free. For a
        shared one (two or more) return what ``_fork_shared`` gives.
        Raises RuntimeError if ``block`` has no owner (nobody may write to it), is the null block, or is not of this
        pool (``_check_mine`` of the base raises for these two); nothing changes then.
        """
        self._check_mine(block, "fork_block")
        match self._owners_of(block):
            case 0:
                raise RuntimeError("nobody owns what is to be forked")
            case 1:
                return block
            case _:
                return self._fork_shared(block)

    def _fork_shared(self, block: KVCacheBlock) -> KVCacheBlock:
        """Take a fresh block to copy ``block`` into, and move the caller's reference to it.

        Before: ``block`` has at least two owners.
        After: the fresh block (``get_new_blocks``) has ``ref_cnt`` 1, ``block`` one owner less, the pair
        ``(block, fresh block)`` is the last of ``pending_copies``, and ``num_forks`` is one more. No content is copied
        here. Returns the fresh block. It has no hash: it is going to hold what its owner writes. ``block`` keeps its
        hash, and is found as before.
        Raises ValueError if no block is free (``get_new_blocks`` does); nothing changes then.
        """
        fresh = self.get_new_blocks(1)[0]
        self.num_forks, block.ref_cnt = self.num_forks + 1, block.ref_cnt - 1
        self.pending_copies = self.pending_copies + [(block, fresh)]
        return fresh

    def _owners_of(self, block):
        return block.ref_cnt - 1 if block.block_id in self._kept_for_copy else block.ref_cnt

    def _is_needed(self, block):
        return any(block is side for pair in self.pending_copies for side in pair)

    # ---- Task 3

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop an owner from each block; those nobody owns any more join the queue's end, in the order given.

        The exception: a block that a pending copy needs, as source or as destination, does not join the queue when its
        last owner leaves. The copy takes that owner's reference over: ``ref_cnt`` stays 1, and the block's id goes into
        ``_kept_for_copy`` until ``finish_copies``. If it has a hash, it keeps it, and can be found and touched. While
        other owners are left, it is a block like any other: the base's ``free_blocks`` knows what to do.
        ``pending_copies`` stays as it is, even if neither side of a copy has an owner left.
        ``blocks`` may be an iterator, such as ``reversed(table)``, which can be walked once. A block may come twice if
        it has two owners. A reference that a copy has taken over is not an owner.
        Raises RuntimeError if a block has no owner to drop, is the null block, or is not of this pool; nothing changes
        then. So check all blocks before the first call of ``super().free_blocks``: its own check compares with
        ``ref_cnt``, and would drop the copy's reference.
        """
        left = {}       # what would be left of each block's owners
        plan = []       # the blocks in order, and whether it is the last owner that goes
        for block in blocks:
            self._check_mine(block, "free_blocks")
            left.setdefault(block.block_id, self._owners_of(block))
            left[block.block_id] -= 1
            if left[block.block_id] < 0:
                raise RuntimeError("one owner too many leaves")
            plan.append((block, left[block.block_id] == 0))
        for block, is_last in plan:
            if is_last and block.block_id not in self._kept_for_copy and self._is_needed(block):
                self._kept_for_copy = self._kept_for_copy | {block.block_id}
                continue
            block.ref_cnt -= 1
            if not block.ref_cnt:
                self.free_block_queue.append(block)

    # ---- Task 4

    def finish_copies(self) -> None:
        """Say that all pending copies have been made.

        After: ``pending_copies`` and ``_kept_for_copy`` are empty. The references of the blocks that were kept are
        dropped, lowest block id first, so that a block without owners joins the queue. Blocks that have owners stay
        with them. Harmless when nothing is pending.
        """
        kept, self._kept_for_copy, self.pending_copies = sorted(self._kept_for_copy), set(), []
        for block_id in kept:
            block = self.blocks[block_id]
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)

    def check_integrity(self) -> None:
        """As in the base; and both sides of a pending copy are held, and only they are kept for one. Given."""
        super().check_integrity()
        needed = set()
        for source, copy in self.pending_copies:
            if not (source.ref_cnt and copy.ref_cnt):
                raise RuntimeError(f"one side of the pending copy {source.block_id} → {copy.block_id} is free")
            needed |= {source.block_id, copy.block_id}
        if not self._kept_for_copy <= needed:
            raise RuntimeError(f"kept for a copy: {sorted(self._kept_for_copy)}, but copies need only {sorted(needed)}")
