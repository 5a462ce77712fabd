"""Copy on write: a block may have many readers, but only a sole owner writes into it.

    before                  fork_block(5)            copies made             written
    A ─┐                    A ── 5 [a b c _]         A ── 5 [a b c _]        A ── 5 [a b c x]
       ├─ 5 [a b c _]            ┊ pending
    B ─┘                    B ── 8 [? ? ? ?]         B ── 8 [a b c _]        B ── 8 [a b c y]

The pool moves no numbers. It keeps the books and a list of copies, ``pending_copies``. Once a step, whoever owns the
memory makes all of them, in no particular order, then writes the step's new tokens; ``finish_copies`` reports that the
copies are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mini_vllm.block_pool import FreeKVCacheBlockQueue, KVCacheBlock


class BlockPool:
    """The blocks of one model's K/V cache, handed out by reference count, copied when a shared one is to be written.

    Every method does its checking before its first write: a call that raises has changed nothing. The index of lab 2.1
    is left out, so ``enable_caching`` has no effect here; the engine's pool has both.
    """

    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}, must be at least 1: block 0 is the null block")
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        #: Block 0 pads block tables. It is never given out and never freed.
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True
        #: Copies (source, destination) that must be made before anything is written.
        self.pending_copies: list[tuple[KVCacheBlock, KVCacheBlock]] = []
        #: Ids of blocks whose last owner left while a pending copy needed them: their one reference is the copy's.
        self._kept_for_copy: set[int] = set()

    # ---- given: as in lab 2.1

    def get_num_free_blocks(self) -> int:
        """How many blocks can be given out now."""
        return self.free_block_queue.num_free_blocks

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Give out the ``n`` blocks that have been free longest, each with ``ref_cnt`` 1. Given.

        Raises ValueError if ``n`` is negative or fewer are free; none is taken then.
        """
        if not 0 <= n <= self.get_num_free_blocks():
            raise ValueError(f"get_new_blocks({n}): only {self.get_num_free_blocks()} blocks are free")
        blocks = self.free_block_queue.popleft_n(n)
        for block in blocks:
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add an owner to each block; a free one leaves the queue. Given.

        Raises RuntimeError if one is the null block or not of this pool; nothing changes then.
        """
        for block in blocks:
            self._check_mine(block, "touch")
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def _check_mine(self, block: KVCacheBlock, caller: str) -> None:
        """Raise RuntimeError unless ``block`` is one of this pool that may have owners. Given: call it first."""
        if block.is_null:
            raise RuntimeError(f"{caller}: block {block.block_id} is the null block, which has no owners")
        if not 0 <= block.block_id < self.num_blocks or self.blocks[block.block_id] is not block:
            raise RuntimeError(f"{caller}: block {block.block_id} is not a block of this pool")

    # ---- Tasks 1 and 2

    def fork_block(self, block: KVCacheBlock) -> KVCacheBlock:
        """Return a block that the caller, an owner of ``block``, may write: ``block`` itself if no one else owns it.

        A private block (``ref_cnt`` 1) comes back as it is, and nothing changes, not even when no block is free.
        For a shared one (``ref_cnt`` above 1) return what ``_fork_shared`` gives.
        Raises RuntimeError if ``block`` is free (nobody may write to it), the null block, or not of this pool; nothing
        changes then.
        """
        # TASK 1: BlockPool.fork_block
        self._check_mine(block, "fork_block")
        if block.ref_cnt == 0:
            raise RuntimeError(f"fork_block: block {block.block_id} is free, nobody may write to it")
        if block.ref_cnt == 1:
            return block
        return self._fork_shared(block)
        # END TASK

    def _fork_shared(self, block: KVCacheBlock) -> KVCacheBlock:
        """Take a fresh block to copy ``block`` into, and move the caller's reference to it.

        Before: ``block`` has at least two owners.
        After: the fresh block (``get_new_blocks``) has ``ref_cnt`` 1, ``block`` one owner less, and the pair
        ``(block, fresh block)`` is the last of ``pending_copies``. No content is copied here. Returns the fresh block.
        Raises ValueError if no block is free (``get_new_blocks`` does); nothing changes then.
        """
        # TASK 2: BlockPool._fork_shared
        copy = self.get_new_blocks(1)[0]
        block.ref_cnt -= 1
        self.pending_copies.append((block, copy))
        return copy
        # END TASK

    # ---- Task 3

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop an owner from each block; those nobody owns any more join the queue's end, in the order given.

        The exception: a block that a pending copy needs, as source or as destination, does not join the queue when its
        last owner leaves. The copy takes that owner's reference over: ``ref_cnt`` stays 1, and the block's id goes into
        ``_kept_for_copy`` until ``finish_copies``. While other owners are left, it is a block like any other.
        A block may come twice if it has two owners. A reference that a copy has taken over is not an owner.
        Raises RuntimeError if a block has no owner to drop, is the null block, or is not of this pool; nothing changes
        then.
        """
        # TASK 3: BlockPool.free_blocks
        blocks = list(blocks)
        num_drops: Counter[int] = Counter()
        for block in blocks:
            self._check_mine(block, "free_blocks")
            num_drops[block.block_id] += 1
            num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
            if num_drops[block.block_id] > num_owners:
                raise RuntimeError(f"free_blocks: block {block.block_id} is freed {num_drops[block.block_id]} times, "
                                   f"but has {num_owners} owners")
        needed = {block.block_id for copy in self.pending_copies for block in copy}
        for block in blocks:
            if block.ref_cnt == 1 and block.block_id in needed:
                self._kept_for_copy.add(block.block_id)
                continue
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)
        # END TASK

    # ---- Task 4

    def finish_copies(self) -> None:
        """Say that all pending copies have been made.

        After: ``pending_copies`` and ``_kept_for_copy`` are empty. The references of the blocks that were kept are
        dropped, lowest block id first, so that a block without owners joins the queue. Blocks that have owners stay
        with them. Harmless when nothing is pending.
        """
        # TASK 4: BlockPool.finish_copies
        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]
        self.pending_copies = []
        self._kept_for_copy = set()
        self.free_blocks(kept)
        # END TASK

    def check_integrity(self) -> None:
        """Raise RuntimeError if the pool contradicts itself. Given: call it whenever you are in doubt."""
        free = self.free_block_queue.get_all_free_blocks()
        free_ids = {block.block_id for block in free}
        if not len(free) == len(free_ids) == self.get_num_free_blocks():
            raise RuntimeError(f"block pool integrity: the queue holds {[block.block_id for block in free]}, "
                               f"but {self.get_num_free_blocks()} blocks are counted")
        if self.null_block.ref_cnt or 0 in free_ids:
            raise RuntimeError("block pool integrity: the null block is owned or in the free queue")
        for block in self.blocks[1:]:
            if block.ref_cnt < 0 or (block.ref_cnt == 0) != (block.block_id in free_ids):
                raise RuntimeError(f"block pool integrity: free queue and ref_cnt disagree: {block}")
        for source, copy in self.pending_copies:
            if not (source.ref_cnt and copy.ref_cnt):
                raise RuntimeError(f"block pool integrity: one side of the pending copy {source.block_id} → "
                                   f"{copy.block_id} is free")
