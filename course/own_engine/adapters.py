"""Adapters: what a simpler part lacks, so that the engine can create and call it like the reference's.

An adapter is combined with the part into one class (``build_parts.complete``), in which ``super()`` is the part. It
adds methods and attributes, or translates what the part takes and returns.

    slot              what the part lacks                            adapter
    block_pool        fork_block: copy-on-write                      CopyOnWrite
    kv_cache_manager  fork                                           Forking
                      give_back_slots: a shorter table after a step  GivingBack
                      forget_unwritten: what no step will write      Forgetting
                      tree_class                                     WithoutTree
                      the recent hit rate                            CountingAllHits
    request_queue     a clock                                        Clock
    scheduler         preempt, needed after a failed step            Preempting
                      plans with a field for drafts                  Planning
    sampler           choose and sample, built on draw               Sampling
    model_runner      step_ahead                                     NotAhead
    drafter           guesses for several requests in one call       OneByOne
    grammar           the length of the shortest output              AnyLength

A part that implements some of a feature must implement all of it: anything missing is then rejected, not added.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mini_vllm.backend import mx
from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.kv_cache import KVCacheManager, PrefixCacheStats
from mini_vllm.request import Request
from mini_vllm.sampler import Sampler
from mini_vllm.scheduler import Scheduler, SchedulerOutput

# At run time the adapters have no base: a subclass combines an adapter with any part. For the type checker, their bases
# are the reference's parts.
if TYPE_CHECKING:
    from mini_vllm.block_pool import BlockPool as _Pool
    from mini_vllm.kv_cache import KVCacheManager as _Manager
    from mini_vllm.scheduler import Scheduler as _Scheduler
    from mini_vllm.speculation.drafts import NgramDrafter as _Drafter
else:
    _Pool = _Manager = _Scheduler = _Drafter = object


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


class WithoutTree(_Manager):
    """A manager that is given no tree, because it takes none: its hits are whole blocks."""

    def __init__(self, num_blocks: int, block_size: int, enable_caching: bool = True, *, pool_class: Any,
                 tree_class: Any = None) -> None:
        super().__init__(num_blocks, block_size, enable_caching, pool_class=pool_class)


class CountingAllHits(_Manager):
    """A manager whose recent hit rate, if it counts none, is that of all requests."""

    @property
    def stats(self) -> PrefixCacheStats:
        stats = super().stats
        if hasattr(stats, "recent_hit_rate"):
            return stats
        return PrefixCacheStats(stats.num_queries, stats.num_query_tokens, stats.num_hit_tokens,
                                stats.num_evicted_blocks, deque([(stats.num_query_tokens, stats.num_hit_tokens)]))


class Clock:
    """A queue that can be asked for the time, for the live page."""

    clock = staticmethod(time.monotonic)


class Preempting(_Scheduler):
    """A scheduler that can take a request's blocks back, which is needed after a failed step."""

    preempt = Scheduler.preempt


class Planning(_Scheduler):
    """A scheduler whose plans are the engine's ``SchedulerOutput``, which has a field for drafts."""

    _own_plan: Any = None

    def schedule(self) -> SchedulerOutput:
        plan = self._own_plan = super().schedule()
        if isinstance(plan, SchedulerOutput):
            return plan
        return SchedulerOutput(plan.num_scheduled_tokens, plan.requests, plan.copies, plan.preempted, plan.finished)

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """Give the part its own plan back: it may have fields of its own."""
        super().update_from_output(output if isinstance(self._own_plan, SchedulerOutput) else self._own_plan, token_ids)


class SchedulerDefaults:
    """What the engine sets or reads, for a scheduler that does not know it."""

    num_preemptions = 0
    max_num_chunk_tokens = None
    preempt_for_priority = False


class Sampling:
    """A sampler with ``choose`` and ``sample``, which the reference builds on ``greedy`` and ``draw``."""

    draw_and_check, choose, sample = Sampler.draw_and_check, Sampler.choose, Sampler.sample


class NotAhead:
    """A runner that cannot compute a step before its input tokens are known. The engine does not ask it to."""

    can_step_ahead = False

    def step_ahead(self, token_ids: mx.array, block_tables: Sequence[Sequence[int]],
                   context_lens: Sequence[int]) -> mx.array:
        raise NotImplementedError


class OneByOne(_Drafter):
    """A drafter that guesses for one request after the other."""

    def propose_all(self, requests: Sequence[Request], max_tokens: Sequence[int]) -> list[list[int]]:
        return [list(self.propose(request, number))[:number] if number else []
                for request, number in zip(requests, max_tokens)]


class DrafterDefaults:
    """A drafter that does not say what a guess costs."""

    cost_per_token = 0.0


class RunnerDefaults:
    """A runner that has ``step_ahead``, and does not say that it may be called."""

    can_step_ahead = True


class AnyLength:
    """A grammar that does not say how many tokens its shortest output has."""

    def num_tokens_needed(self) -> None:
        return None
