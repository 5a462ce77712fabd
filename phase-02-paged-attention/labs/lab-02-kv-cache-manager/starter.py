"""The KV cache manager: block tables over the pool, and the search for a cached prefix.

    request A  tokens 0………31 32………63 64…70        block table A: [4, 9, 2]
    request B  tokens 0………31 32………63 64…………95 96   block table B: [4, 9, 7, 5]
                      └── the same 64 tokens ──┘     blocks 4 and 9 have ref_cnt 2 and exist once

The convention: slots ``0 … num_computed_tokens + num_new_tokens - 1`` must exist when a step runs, and position ``p``
is in ``table[p // block_size]`` at offset ``p % block_size``. So a new block is taken exactly when
``ceil(number of slots / block_size)`` exceeds the table's length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.block_pool import BlockHash, BlockPool, KVCacheBlock
from mini_vllm.request import Request

DEFAULT_BLOCK_SIZE = 32


@dataclass(frozen=True)
class PrefixCacheStats:
    """What the prefix cache did since the last reset.

    A request counts when it gets its first slots, with the tokens that it has at that moment (``num_tokens``). A
    request that was freed and comes back counts again. With caching off requests are counted, and nothing is found.
    """

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_blocks: int = 0

    @property
    def hit_rate(self) -> float:
        return self.num_hit_tokens / self.num_query_tokens if self.num_query_tokens else 0.0


class KVCacheManager:
    """Block tables of all requests, over one pool.

    It reads ``request.num_computed_tokens`` and never writes it: the scheduler advances it when a step is planned.
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
        self._num_queries = self._num_query_tokens = self._num_hit_tokens = self._num_evictions_before = 0

    # ---- Task 1

    def _num_blocks_for(self, num_tokens: int) -> int:
        """The number of blocks for 1 or more tokens: a block that is begun counts as a whole one."""
        raise NotImplementedError("Task 1: KVCacheManager._num_blocks_for")

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request, as a new list of block ids in the order of its tokens.

        It is empty for a request that holds nothing, and asking leaves no entry behind.
        """
        raise NotImplementedError("Task 1: KVCacheManager.get_block_ids")

    # ---- Tasks 2 and 5: the same method, first without hits, then with them

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``, or return None if there is too little.

            [ computed before | hits: new_computed_blocks | num_new_tokens ]
              in the table      adopted here, not copied    slots made here

        The number of slots is the number of tokens in this picture. Task 2 is this method without hits. A free hit is
        about to leave the queue, so it is no room for fresh blocks; a hit in use takes no room.

        Before:
        - ``new_computed_blocks`` are the hits that ``get_computed_blocks`` found, in any sequence; None means no hits
        - ``num_new_computed_tokens`` is the number of tokens in the hits; None, not 0, means all that they can hold
        After:
        - the table is the request's old blocks, then the hits with one more owner each, then the fresh blocks
        - the table has just as many blocks as its slots need, or as many as before if that is more
        - if caching is on, each block that the first n tokens fill is findable, where n is the number of slots (hits
          included), at most ``request.num_tokens``; ``_index_full_blocks(request, n)`` of task 4 does it
        - for that, only blocks without a ``block_hash`` were hashed; if caching is off, nothing was hashed
        - a request that held nothing before is counted in the statistics: one query, ``request.num_tokens`` tokens
          asked for (as of now), the tokens of the hits found
        - the list of hits and the returned list stay the caller's: the table is another list
        Returns:
        - the fresh blocks, in order; an empty list if the table had enough slots
        - None if too few blocks are free for these tokens, whatever the rest of the request will need
        - with None, nothing has changed: tables, owners, queue order, index and statistics are as before
        - with None, nothing is kept of a request that held nothing
        Raises:
        - ValueError or RuntimeError for what ``_check_arguments`` refuses, which is given; nothing changes then
        - RuntimeError if a hit does not hold its tokens any more, which its ``block_hash`` tells (``_check_hits``, task
          5), even if there is too little room; nothing changes then

        Example::

            >>> manager = KVCacheManager(num_blocks=8, block_size=4)
            >>> a, b = Request("a", list(range(10))), Request("b", list(range(10)))
            >>> [block.block_id for block in manager.allocate_slots(a, 10)]
            [1, 2, 3]
            >>> hits, num_cached = manager.get_computed_blocks(b)
            >>> [block.block_id for block in manager.allocate_slots(b, 10 - num_cached, hits)]
            [4]
            >>> manager.get_block_ids("b")
            [1, 2, 4]
        """
        raise NotImplementedError("Task 2: KVCacheManager.allocate_slots")

    def _check_arguments(self, request: Request, num_new_tokens: int, hits: list[KVCacheBlock],
                         num_hit_tokens: int) -> None:
        """Raise ValueError or RuntimeError unless the arguments of allocate_slots make sense. Given."""
        who = f"allocate_slots for request {request.request_id!r}"
        if num_new_tokens < 1:
            raise ValueError(f"{who}: num_new_tokens is {num_new_tokens}, must be at least 1")
        if num_hit_tokens != len(hits) * self.block_size:
            raise ValueError(f"{who}: num_new_computed_tokens is {num_hit_tokens}, but {len(hits)} computed blocks "
                             f"hold {len(hits) * self.block_size} tokens")
        table = self._tables.get(request.request_id, [])
        if hits and table:
            raise RuntimeError(f"{who}: it holds {len(table)} blocks already; "
                               "computed blocks come with the first call only")
        if request.num_computed_tokens > len(table) * self.block_size:
            raise RuntimeError(f"{who}: num_computed_tokens is {request.num_computed_tokens}, "
                               f"but its table has only {len(table) * self.block_size} slots")

    # ---- Task 3

    def free(self, request: Request) -> None:
        """Give the blocks of ``request`` back, last one first: the head of a sequence is shared most and kept longest.

        After: it holds nothing; the manager keeps nothing of it, or a server would grow with every request it served.
        It is no error if the request held nothing before.
        """
        raise NotImplementedError("Task 3: KVCacheManager.free")

    # ---- Task 4

    def _hash_of(self, request: Request, index: int, parent: BlockHash | None) -> BlockHash:
        """The key of the block of ``request`` at ``index``, given the key of the block before it. Given.

        A BlockHash is a number that knows its tokens, the extra keys of its request (a tenant, say) and its parent, the
        key of the block before it. The pool's dictionary finds by the number and *proves* by the rest: two blocks whose
        numbers collide are still told apart.
        """
        tokens = request.all_token_ids[index * self.block_size:(index + 1) * self.block_size]
        return BlockHash(parent, tokens, request.extra_keys)

    def _index_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make every block that the first ``num_tokens`` tokens fill findable (``block_pool.cache_full_blocks``).

        A block's key chains to that of the block before it. Blocks that have a ``block_hash`` already keep it, and it
        is the parent for the next: only blocks that have none are hashed, not the whole sequence for every decoded
        token.
        """
        raise NotImplementedError("Task 4: KVCacheManager._index_full_blocks")

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Find the longest cached prefix of ``request``. Nothing changes.

        After:
        - what comes after the first block that misses was not hashed; with caching off, nothing was hashed
        Returns:
        - the full blocks of that prefix in a new list, first block first, and the number of tokens that they hold
        - at most ``(num_tokens - 1) // block_size`` blocks: a step needs a token to give logits for the next one, so at
          least one token is left to compute
        - all tokens count, not only those of the prompt: a request that was freed and comes back finds what it decoded
        - ``([], 0)`` if caching is off

        Example::

            >>> manager = KVCacheManager(num_blocks=8, block_size=4)
            >>> a, b = Request("a", list(range(12))), Request("b", list(range(12)))
            >>> taken = manager.allocate_slots(a, 12)
            >>> blocks, num_cached = manager.get_computed_blocks(b)
            >>> [block.block_id for block in blocks], num_cached
            ([1, 2], 8)
        """
        raise NotImplementedError("Task 4: KVCacheManager.get_computed_blocks")

    # ---- Task 5, besides the hits in allocate_slots

    def _check_hits(self, request: Request, hits: list[KVCacheBlock]) -> None:
        """Raise RuntimeError unless each of ``hits`` still holds the tokens of ``request`` at its place.

        ``allocate_slots`` calls it before anything changes. Since the lookup, a free block may have been given to
        another request; its ``block_hash`` tells. Ask the block, not the index, which may name another block of the
        same content by now.
        """
        raise NotImplementedError("Task 5: KVCacheManager._check_hits")

    # ---- Task 6

    @property
    def stats(self) -> PrefixCacheStats:
        """Queries, tokens asked for, tokens found, and blocks evicted, since the last reset.

        Counted by ``allocate_slots``, see there; the pool counts evictions since it was made (``num_evictions``).
        """
        raise NotImplementedError("Task 6: KVCacheManager.stats")

    def reset_prefix_cache(self) -> None:
        """Forget all cached content and start the statistics again at 0; the pool's ``num_evictions`` goes on.

        Raises RuntimeError while any block is in use (the pool does); nothing changes then.
        """
        raise NotImplementedError("Task 6: KVCacheManager.reset_prefix_cache")

    def check_integrity(self) -> None:
        """Raise RuntimeError if pool and tables disagree. Given: call it whenever you are in doubt."""
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        for block in self.block_pool.blocks:
            if block.ref_cnt != owners[block.block_id]:
                raise RuntimeError(f"block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables name it")
