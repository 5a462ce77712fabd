"""The invariants of a running engine, checked from outside: the pieces' own claims are not trusted."""

from __future__ import annotations

from collections import Counter, defaultdict

from mini_vllm.block_pool import BlockHash, KVCacheBlock
from mini_vllm.engine import LLMEngine
from mini_vllm.request import Request
from mini_vllm.scheduler import SchedulerOutput


class BrokenInvariant(Exception):
    """A violated rule of the engine, and how it was violated."""

    def __init__(self, rule: str, finding: str) -> None:
        super().__init__(f"{finding}. The rule: {rule}")
        self.rule, self.finding = rule, finding


FREE = "a block is in the free queue if and only if its ref_cnt is 0, and the null block never is"
OWNERS = "ref_cnt is the number of tables, and of pending copies, that hold a block"
SLOTS = "a request has a slot for every token that is computed"
TABLE = "a table has exactly the blocks that its tokens need; looking ahead may add one token"
WRITTEN = "a block that several requests share is never written: the writer forks it first"
CONTENT = "a block in the index contains the tokens that its key names"
COPIES = "every pending copy is made before anything is written"
LIMITS = "a step computes at most max_num_batched_tokens tokens, for at most max_num_seqs sequences"
ORDER = "requests that compute one token come first in a batch"
HOME = "when every request has ended, all blocks are free again"


class Audit:
    """Checks an engine after each plan and after each step. Raises BrokenInvariant."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        schedule = engine.scheduler.schedule

        def audited() -> SchedulerOutput:
            plan = schedule()
            self.check_plan(plan)
            return plan

        engine.scheduler.schedule = audited  # type: ignore[method-assign]  # of this one scheduler

    def check_plan(self, plan: SchedulerOutput) -> None:
        scheduler = self.engine.scheduler
        numbers = list(plan.num_scheduled_tokens.values())
        num_running = sum(request.num_sequences for request in scheduler.running)
        if sum(numbers) > scheduler.max_num_batched_tokens or num_running > scheduler.max_num_seqs:
            raise BrokenInvariant(LIMITS, f"the step has {sum(numbers)} tokens (at most "
                                          f"{scheduler.max_num_batched_tokens}), and {num_running} sequences run (at "
                                          f"most {scheduler.max_num_seqs})")
        if sorted(numbers, key=lambda number: number > 1) != numbers:
            raise BrokenInvariant(ORDER, f"the batch computes {numbers} tokens, in this order")
        pending = {(source.block_id, copy.block_id) for source, copy in scheduler.kv_cache.block_pool.pending_copies}
        if not pending <= set(plan.copies):
            raise BrokenInvariant(COPIES, f"the copies {sorted(pending - set(plan.copies))} are not planned")
        self.check_blocks()

    def check_blocks(self) -> None:
        """Check the pool, the tables, and the index entries of their blocks."""
        pool = self.engine.kv_cache.block_pool
        free_ids = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        if len(free_ids) != len(set(free_ids)) or pool.null_block.block_id in free_ids:
            raise BrokenInvariant(FREE, f"the free queue reads {free_ids[:20]}")
        if pool.get_num_free_blocks() != len(free_ids):
            raise BrokenInvariant(FREE, f"{len(free_ids)} blocks are in the free queue, and get_num_free_blocks says "
                                        f"{pool.get_num_free_blocks()}")
        is_free, holders = set(free_ids), self._holders()
        in_copies = Counter(block.block_id for copy in pool.pending_copies for block in set(copy))
        for block in pool.blocks[1:]:
            if (block.ref_cnt == 0) != (block.block_id in is_free):
                place = "in" if block.block_id in is_free else "not in"
                raise BrokenInvariant(FREE, f"block {block.block_id} has ref_cnt {block.ref_cnt} and is {place} the "
                                            "free queue")
            num_tables = len(holders[block.block_id])
            if not 0 <= block.ref_cnt - num_tables <= (in_copies[block.block_id] > 0):
                raise BrokenInvariant(OWNERS, f"block {block.block_id} has ref_cnt {block.ref_cnt}, and {num_tables} "
                                              "tables name it")
            self._check_content(block, holders[block.block_id])

    def _holders(self) -> dict[int, list[tuple[Request, int]]]:
        """Return block id → the requests whose tables name the block, and at which index."""
        holders: dict[int, list[tuple[Request, int]]] = defaultdict(list)
        kv_cache = self.engine.kv_cache
        for request in list(self.engine.scheduler.requests.values()):
            table = kv_cache.get_block_ids(request.request_id)
            if request.num_computed_tokens > len(table) * kv_cache.block_size:
                raise BrokenInvariant(SLOTS, f"request {request.request_id!r} has {request.num_computed_tokens} tokens "
                                             f"computed, and {len(table)} blocks of {kv_cache.block_size}")
            if len(table) > -(-(request.num_tokens + 1) // kv_cache.block_size):
                raise BrokenInvariant(TABLE, f"request {request.request_id!r} has {request.num_tokens} tokens, and "
                                             f"{len(table)} blocks of {kv_cache.block_size}")
            for index, block_id in enumerate(table):
                holders[block_id].append((request, index))
        return holders

    def _check_content(self, block: KVCacheBlock, holders: list[tuple[Request, int]]) -> None:
        """Check that all holders of a block, and the index, agree on its tokens."""
        size = self.engine.kv_cache.block_size
        contents = []
        for request, index in holders:
            start, end = index * size, min((index + 1) * size, request.num_computed_tokens)
            contents.append(request.all_token_ids[start:max(end, start)])
        for request_and_index, content in zip(holders, contents):
            shortest = min(len(content), len(contents[0]))
            if content[:shortest] != contents[0][:shortest]:
                ids = [request.request_id for request in (holders[0][0], request_and_index[0])]
                raise BrokenInvariant(WRITTEN, f"block {block.block_id} is held by {ids[0]!r} and {ids[1]!r}, "
                                               "which have different tokens there")
        key = block.block_hash
        if isinstance(key, BlockHash):
            for content in contents:
                shortest = min(len(content), len(key.token_ids))
                if tuple(content[:shortest]) != key.token_ids[:shortest]:
                    raise BrokenInvariant(CONTENT, f"block {block.block_id} is found by the tokens "
                                                   f"{list(key.token_ids)[:8]}…, and holds {list(content)[:8]}…")

    def check_end(self) -> None:
        """Check that all blocks are free once no request is left."""
        pool = self.engine.kv_cache.block_pool
        num_free = len(pool.free_block_queue.get_all_free_blocks())
        if num_free != len(pool.blocks) - 1:
            raise BrokenInvariant(HOME, f"{num_free} of {len(pool.blocks) - 1} blocks are free at the end")
