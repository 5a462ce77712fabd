"""Block tables that fork: n continuations of one prompt store the prompt once.

    prompt of 10 tokens, block size 4             fork, then one token each

    parent: [1, 2, 3]                             parent: [1, 2, 3]    writes into 3 in place, it is private by then
                   └ tokens 8, 9, two slots       child:  [1, 2, 4]    block 3 was copied into block 4 first
                                                           │  └ ref_cnt 2
                                                           └─── ref_cnt 2

The convention is that of lab 2.2: slots ``0 … num_computed_tokens + num_new_tokens - 1`` must exist when a step runs,
and position ``p`` lives in ``table[p // block_size]`` at offset ``p % block_size``. The new tokens are written to
positions ``num_computed_tokens`` and up. All before that is only read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mini_vllm.block_pool import BlockPool, KVCacheBlock
from mini_vllm.request import Request

DEFAULT_BLOCK_SIZE = 32


class KVCacheManager:
    """Block tables of all requests, over one pool. A block may be in many tables; only a private one is written.

    It reads ``request.num_computed_tokens`` and never writes it. The prefix cache of lab 2.2 is left out, so nothing is
    indexed, whatever ``enable_caching`` says; the engine's manager has both.
    """

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE, enable_caching: bool = True, *,
                 pool_class: type[BlockPool] = BlockPool) -> None:
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"block_size is {block_size!r}, must be a whole number of tokens, at least 1")
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, int) or num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks!r}, must be a whole number, at least 2: "
                             "block 0 is the null block and holds no tokens")
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.block_pool = pool_class(num_blocks, enable_caching)
        #: Request id → its blocks, in the order of its tokens. A request that holds nothing has no entry.
        self._tables: dict[str, list[KVCacheBlock]] = {}

    # ---- given

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request, as block ids in the order of its tokens; empty if it holds nothing. Given."""
        return [block.block_id for block in self._tables.get(request_id, [])]

    def _num_blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens need. Given."""
        return -(-num_tokens // self.block_size)

    def _allocate_first_slots(self, request: Request, num_new_tokens: int) -> list[KVCacheBlock] | None:
        """allocate_slots for a request that holds nothing, so that nothing is shared: as in lab 2.2. Given."""
        num_blocks = self._num_blocks_for(num_new_tokens)
        if num_blocks > self.block_pool.get_num_free_blocks():
            return None
        blocks = self.block_pool.get_new_blocks(num_blocks)
        self._tables[request.request_id] = list(blocks)
        return blocks

    def _check_arguments(self, request: Request, num_new_tokens: int, hits: Sequence[KVCacheBlock],
                         num_hit_tokens: int) -> None:
        """Raise unless the arguments of allocate_slots make sense. Given."""
        who = f"allocate_slots for request {request.request_id!r}"
        if num_new_tokens < 1:
            raise ValueError(f"{who}: num_new_tokens is {num_new_tokens}, must be at least 1")
        if hits or num_hit_tokens:
            raise ValueError(f"{who}: {len(hits)} computed blocks with {num_hit_tokens} tokens; "
                             "this lab has no prefix cache, so there are no hits")
        num_table_slots = len(self._tables.get(request.request_id, [])) * self.block_size
        if request.num_computed_tokens > num_table_slots:
            raise RuntimeError(f"{who}: num_computed_tokens is {request.num_computed_tokens}, "
                               f"but its table has only {num_table_slots} slots")

    # ---- Task 1

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` share every block of ``parent``, the half-filled tail included. No block is taken or copied.

        After: the child's table names the same blocks, and each has one more owner (``touch``). The two tables are two
        lists: what happens to one later does not show in the other. If the parent holds nothing, neither does the
        child. Neither request is written.
        Raises RuntimeError if ``child`` holds blocks already; nothing changes then.
        """
        # TASK 1: KVCacheManager.fork
        if child.request_id in self._tables:
            raise RuntimeError(f"fork: request {child.request_id!r} holds "
                               f"{len(self._tables[child.request_id])} blocks already")
        table = list(self._tables.get(parent.request_id, []))
        self.block_pool.touch(table)
        if table:
            self._tables[child.request_id] = table
        # END TASK

    # ---- Task 2

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before: only read | num_new_tokens: written now ]

        The first slots of a request are given. You write what follows: ``table`` is the request's own list of blocks.
        A block of it that the new tokens are written into, and that has other owners too, is forked first
        (``block_pool.fork_block``), and the copy takes its place in the table. A private one is written in place. A
        shared one that is not written now stays shared. Behind them come as many fresh blocks as the convention asks
        for.
        Returns the blocks newly taken from the pool: the forked ones in the order of the table, then the fresh ones.
        The list is empty if there are none.
        Returns None if the forked and the fresh blocks together do not fit, and nothing has changed.
        """
        self._check_arguments(request, num_new_tokens, new_computed_blocks or (), num_new_computed_tokens or 0)
        table = self._tables.get(request.request_id)
        if table is None:
            return self._allocate_first_slots(request, num_new_tokens)
        # TASK 2: KVCacheManager.allocate_slots
        first_slot = request.num_computed_tokens
        num_blocks = self._num_blocks_for(first_slot + num_new_tokens)
        written = range(first_slot // self.block_size, min(num_blocks, len(table)))
        shared = [index for index in written if table[index].ref_cnt > 1]
        num_fresh = max(num_blocks - len(table), 0)
        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():
            return None

        for index in shared:
            table[index] = self.block_pool.fork_block(table[index])
        forked = [table[index] for index in shared]
        fresh = self.block_pool.get_new_blocks(num_fresh)
        table += fresh
        return forked + fresh
        # END TASK

    # ---- Task 3

    def free(self, request: Request) -> None:
        """Give the blocks of ``request`` back, last one first. Those that others share stay with the others.

        After: it holds nothing, and each of its blocks has one owner less. Harmless when it held nothing before.
        """
        # TASK 3: KVCacheManager.free
        table = self._tables.pop(request.request_id, [])
        self.block_pool.free_blocks(reversed(table))
        # END TASK

    def check_integrity(self) -> None:
        """Raise RuntimeError if pool and tables disagree. Given: call it whenever you are in doubt.

        Every reference belongs to a table, except that a pending copy may hold one of each of its two blocks.
        """
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        needed = {block.block_id for copy in self.block_pool.pending_copies for block in copy}
        for block in self.block_pool.blocks:
            num_without_table = block.ref_cnt - owners[block.block_id]
            if not 0 <= num_without_table <= (block.block_id in needed):
                raise RuntimeError(f"KV cache integrity: block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables name it")
