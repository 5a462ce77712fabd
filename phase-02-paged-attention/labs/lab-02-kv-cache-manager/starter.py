"""The KV cache manager: it keeps the block tables of all requests and finds cached prefixes.

    request A  tokens 0………31 32………63 64…70        block table A: [4, 9, 2]
    request B  tokens 0………31 32………63 64…………95 96   block table B: [4, 9, 7, 5]
                      └── the same 64 tokens ──┘     blocks 4 and 9 are shared: ref_cnt 2

The convention: slots ``0 … num_computed_tokens + num_new_tokens - 1`` must exist when a step runs, and position ``p``
is in ``table[p // block_size]`` at offset ``p % block_size``. So the manager takes a new block exactly when
``ceil(number of slots / block_size)`` exceeds the length of the table.
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
    """Statistics of the prefix cache since the last reset.

    A request is counted when it gets its first slots, with all tokens that it has at that moment (``num_tokens``). A
    request that was freed and comes back is counted again. With caching off, requests are counted but nothing is found.
    """

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_blocks: int = 0

    @property
    def hit_rate(self) -> float:
        return self.num_hit_tokens / self.num_query_tokens if self.num_query_tokens else 0.0


class KVCacheManager:
    """The block tables of all requests, over one pool.

    The manager reads ``request.num_computed_tokens`` and never writes it: only the scheduler advances it.
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
        #: Request id → its blocks, in the order of its tokens. A request without blocks has no entry.
        self._tables: dict[str, list[KVCacheBlock]] = {}
        self._num_queries = self._num_query_tokens = self._num_hit_tokens = self._num_evictions_before = 0

    # ---- Task 1

    def _num_blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks for 1 or more tokens. A partly filled block counts as a whole block."""
        raise NotImplementedError("Task 1: KVCacheManager._num_blocks_for")

    def get_block_ids(self, request_id: str) -> list[int]:
        """Return the block table of a request as a new list of block ids, in the order of its tokens.

        The list is empty for a request without blocks, and the call leaves no entry for such a request.
        """
        raise NotImplementedError("Task 1: KVCacheManager.get_block_ids")

    # ---- Tasks 2 and 5: the same method, first without hits, then with them

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``, or return None if too few blocks are free.

            [ computed before | hits: new_computed_blocks | num_new_tokens ]
              in the table      adopted here, not copied    slots made here

        The number of slots is the number of tokens in this picture. Task 2 is this method without hits. A free hit is
        about to leave the queue, so it cannot be used as a fresh block; a hit in use takes no free block.

        Before:
        - ``new_computed_blocks`` are the hits that ``get_computed_blocks`` found, in any sequence; None means no hits
        - ``num_new_computed_tokens`` is the number of tokens in the hits; None, not 0, means all that they can hold
        After:
        - the table is the request's old blocks, then the hits with one more owner each, then the fresh blocks
        - the table has exactly the number of blocks that its slots need, or its old number of blocks if that is larger
        - if caching is on, each block that is filled by the first n tokens is findable, where n is the number of slots
          (hits included), at most ``request.num_tokens``; call ``_index_full_blocks(request, n)`` of task 4 for this
        - for the index, only blocks without a ``block_hash`` were hashed; if caching is off, nothing was hashed
        - a request that had no blocks before is counted in the statistics: one query, the current
          ``request.num_tokens`` as requested tokens, and the tokens of the hits as found tokens
        - the list of hits and the returned list belong to the caller: the table is a separate list
        Returns:
        - the fresh blocks, in order; an empty list if the table had enough slots
        - None if too few blocks are free for these tokens; what the rest of the request will need does not matter
        - with None, nothing has changed: tables, owners, queue order, index and statistics are as before
        - with None, the manager stores nothing about a request that had no blocks
        Raises:
        - ValueError or RuntimeError if ``_check_arguments`` (given) rejects the arguments; nothing changes then
        - RuntimeError if the ``block_hash`` of a hit shows that it no longer holds the request's tokens
          (``_check_hits``, task 5), even if too few blocks are free; nothing changes then

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
        """Raise ValueError or RuntimeError unless the arguments of ``allocate_slots`` are valid. Given."""
        who = f"allocate_slots for request {request.request_id!r}"
        if num_new_tokens < 1:
            raise ValueError(f"{who}: num_new_tokens is {num_new_tokens}, must be at least 1")
        if num_hit_tokens != len(hits) * self.block_size:
            raise ValueError(f"{who}: num_new_computed_tokens is {num_hit_tokens}, but {len(hits)} computed blocks "
                             f"hold {len(hits) * self.block_size} tokens")
        table = self._tables.get(request.request_id, [])
        if hits and table:
            raise RuntimeError(f"{who}: it holds {len(table)} blocks already; "
                               "computed blocks may be passed only in the first call")
        if request.num_computed_tokens > len(table) * self.block_size:
            raise RuntimeError(f"{who}: num_computed_tokens is {request.num_computed_tokens}, "
                               f"but its table has only {len(table) * self.block_size} slots")

    # ---- Task 3

    def free(self, request: Request) -> None:
        """Free the blocks of ``request``, last block first: the head of a sequence is shared most and kept longest.

        After: the request has no blocks; the manager stores nothing about it, so that memory does not grow with every
        request. It is not an error if the request had no blocks before.
        """
        raise NotImplementedError("Task 3: KVCacheManager.free")

    # ---- Task 4

    def _hash_of(self, request: Request, index: int, parent: BlockHash | None) -> BlockHash:
        """Return the key of block ``index`` of ``request``. ``parent`` is the key of the block before it. Given.

        A BlockHash is a number that also stores its tokens, the extra keys of its request (for example a tenant) and
        its parent, the key of the block before it. The pool's dictionary finds a block by the number and *proves* the
        hit with the other data: it can tell two blocks apart even if their numbers collide.
        """
        tokens = request.all_token_ids[index * self.block_size:(index + 1) * self.block_size]
        return BlockHash(parent, tokens, request.extra_keys)

    def _index_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Index every block that is filled by the first ``num_tokens`` tokens (``block_pool.cache_full_blocks``).

        The parent of a block's key is the key of the block before it. A block that already has a ``block_hash`` keeps
        it, and this hash is the parent for the next block. Only blocks without a hash are hashed, not the whole
        sequence for every decoded token.
        """
        raise NotImplementedError("Task 4: KVCacheManager._index_full_blocks")

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Find the longest cached prefix of ``request``. Nothing changes.

        After:
        - no block after the first miss was hashed; with caching off, nothing was hashed
        Returns:
        - the full blocks of that prefix in a new list, first block first, and the number of tokens that they hold
        - at most ``(num_tokens - 1) // block_size`` blocks: a step must compute a token to get logits for the next
          token, so at least one token is left to compute
        - all tokens count, not only the prompt: a request that was freed and comes back also finds its decoded tokens
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

    # ---- Task 5, in addition to the hits in allocate_slots

    def _check_hits(self, request: Request, hits: list[KVCacheBlock]) -> None:
        """Raise RuntimeError unless each hit still holds the tokens of ``request`` at its position.

        ``allocate_slots`` calls this method before it changes anything. Since the lookup, a free block may have been
        given to another request; its ``block_hash`` shows this. Check the block, not the index: by now the index may
        return another block with the same content.
        """
        raise NotImplementedError("Task 5: KVCacheManager._check_hits")

    # ---- Task 6

    @property
    def stats(self) -> PrefixCacheStats:
        """Queries, requested tokens, found tokens and evicted blocks since the last reset.

        ``allocate_slots`` counts the first three. The pool counts evictions since it was made (``num_evictions``).
        """
        raise NotImplementedError("Task 6: KVCacheManager.stats")

    def reset_prefix_cache(self) -> None:
        """Forget all cached content and reset the statistics to 0. The pool's ``num_evictions`` is not reset.

        Raises RuntimeError while any block is in use (the pool raises it); nothing changes then.
        """
        raise NotImplementedError("Task 6: KVCacheManager.reset_prefix_cache")

    def check_integrity(self) -> None:
        """Raise RuntimeError if the pool and the tables are inconsistent. Given: call it whenever you are in doubt."""
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        for block in self.block_pool.blocks:
            if block.ref_cnt != owners[block.block_id]:
                raise RuntimeError(f"block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables contain it")
