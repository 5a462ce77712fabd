"""Adapters for simpler parts: copy-on-write for a pool and a manager, preemption for a scheduler.

A part without such a feature becomes the base of a class of this module, which calls the part's own methods:

    block_pool        no fork_block       CopyOnWrite over it
    kv_cache_manager  no fork             Forking over it
                      no give_back_slots  GivingBack over it
                      no forget_unwritten Forgetting over it
    scheduler         no preempt          Preempting over it
    sampler           no sample           SamplesByRules over it

A part that implements some of a feature must implement all of it: anything missing is then rejected, not added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request
from mini_vllm.sampler import Sampler
from mini_vllm.scheduler import Scheduler

# At run time the adapters have no base: a subclass combines an adapter with any part. For the type checker, their bases
# are the reference's parts.
if TYPE_CHECKING:
    from mini_vllm.block_pool import BlockPool as _Pool
    from mini_vllm.kv_cache import KVCacheManager as _Manager
    from mini_vllm.scheduler import Scheduler as _Scheduler
else:
    _Pool = _Manager = _Scheduler = object


class CopyOnWrite(_Pool):
    """A pool with shared blocks, on top of one without copies."""

    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_blocks, enable_caching)
        self.num_forks = 0
        self.pending_copies: list[tuple[KVCacheBlock, KVCacheBlock]] = []
        self._kept_for_copy: set[int] = set()

    def fork_block(self, block: KVCacheBlock) -> KVCacheBlock:
        num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
        if block.is_null or num_owners == 0:
            raise RuntimeError(f"fork_block: block {block.block_id} has no owner, so no request may write to it")
        if num_owners == 1:
            return block
        copy = self.get_new_blocks(1)[0]
        block.ref_cnt -= 1
        self.num_forks += 1
        self.pending_copies.append((block, copy))
        return copy

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Free blocks. If a pending copy needs a block, its last owner leaves its reference to the copy."""
        blocks = [*blocks]
        needed = {block for copy in self.pending_copies for block in copy}
        staying = []
        for block, num_drops in Counter(block for block in blocks if block in needed).items():
            num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
            if num_drops > num_owners:
                raise RuntimeError(f"free_blocks: block {block.block_id} is freed {num_drops} times, "
                                   f"but has {num_owners} owners")
            if num_drops == block.ref_cnt:
                staying.append(block)
        for block in staying:
            blocks.remove(block)
        super().free_blocks(blocks)
        self._kept_for_copy.update(block.block_id for block in staying)

    def finish_copies(self) -> None:
        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]
        self.pending_copies = []
        self._kept_for_copy = set()
        super().free_blocks(kept)


class SamplesByRules:
    """What the reference's sampler builds on ``greedy`` and ``draw``, for a sampler that has only these."""

    draw_and_check, choose, sample = Sampler.draw_and_check, Sampler.choose, Sampler.sample


class Forking(_Manager):
    """A manager whose tables can be forked, on top of one that only finds prefixes. It reads and writes ``_tables``."""

    def fork(self, parent: Request, child: Request) -> None:
        table = list(self._tables.get(parent.request_id, []))
        self.block_pool.touch(table)
        if table:
            self._tables[child.request_id] = table

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Copy shared blocks of the table that the new tokens would write into, then allocate."""
        table, size = self._tables.get(request.request_id, []), self.block_size
        num_blocks = -(-(request.num_computed_tokens + num_new_tokens) // size)
        written = range(request.num_computed_tokens // size, min(num_blocks, len(table)))
        shared = [index for index in written if table[index].ref_cnt > 1]
        num_fresh = max(num_blocks - len(table), 0)
        if shared and len(shared) + num_fresh > self.block_pool.get_num_free_blocks():
            return None
        for index in shared:
            table[index] = self.block_pool.fork_block(table[index])
        fresh = super().allocate_slots(request, num_new_tokens, new_computed_blocks, num_new_computed_tokens)
        return fresh if fresh is None else [*(table[index] for index in shared), *fresh]

    def finish_step(self) -> None:
        self.block_pool.finish_copies()

    def check_integrity(self) -> None:
        """Check the part's own state, unless a copy is pending: the part's check counts only tables."""
        if self.block_pool.pending_copies:
            self.block_pool.check_integrity()
        else:
            super().check_integrity()


class GivingBack(_Manager):
    """A manager that can shorten a table after a step, on top of one whose tables only grow. It writes ``_tables``."""

    def give_back_slots(self, request: Request) -> None:
        table = self._tables.get(request.request_id, [])
        num_kept = -(-request.num_computed_tokens // self.block_size)
        unused = table[num_kept:]
        del table[num_kept:]
        self.block_pool.free_blocks(reversed(unused))


class Forgetting(_Manager):
    """A manager that can remove from the index what a planned step will not write, on top of one that cannot."""

    forget_unwritten = KVCacheManager.forget_unwritten


class Preempting(_Scheduler):
    """A scheduler that can take a request's blocks back, which is needed after a failed step."""

    num_preemptions = 0
    preempt = Scheduler.preempt
