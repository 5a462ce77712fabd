"""The KV cache manager: block tables over the pool, and the search for a cached prefix.

    request A  tokens 0………31 32………63 64…70        block table A: [4, 9, 2]
    request B  tokens 0………31 32………63 64…………95 96   block table B: [4, 9, 7, 5]
                      └── the same 64 tokens ──┘     blocks 4 and 9 have ref_cnt 2 and exist once

The convention, once for all: slots ``0 … num_computed_tokens + num_new_tokens - 1`` must exist when a step runs, and
position ``p`` lives in ``table[p // block_size]`` at offset ``p % block_size``. So a new block is taken exactly when
``ceil(that many slots / block_size)`` exceeds the table's length.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.block_pool import BlockHash, BlockPool, KVCacheBlock
from mini_vllm.request import Request

DEFAULT_BLOCK_SIZE = 32


@dataclass(frozen=True)
class PrefixCacheStats:
    """What the prefix cache did since the last reset.

    A request counts when it gets its first slots, with the tokens it has at that moment (``num_tokens``). One that was
    freed and comes back counts again. With caching off requests count, too, and nothing is ever found.
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

    It reads ``request.num_computed_tokens`` and never writes it: the scheduler advances it once a step is planned.
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
        """How many blocks ``num_tokens`` tokens need: a block that is begun counts as a whole one."""
        return (num_tokens + self.block_size - 1) // self.block_size

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request, as block ids in the order of its tokens; empty if it holds nothing."""
        return [b.block_id for b in self._tables[request_id]] if request_id in self._tables else []

    # ---- Tasks 2 and 5: the same method, first without hits, then with them

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before | hits: new_computed_blocks | num_new_tokens ]
              in the table      adopted here, not copied    slots made here

        ``new_computed_blocks`` are what ``get_computed_blocks`` found; they hold ``num_new_computed_tokens`` tokens, by
        default all they can (other values belong to a later lab). Call ``_check_arguments`` first, it is given; then,
        from task 5 on, ``_check_hits``.
        After: the request's table is its old blocks, then the hits with one more owner each (``touch``), then just as
        many fresh blocks as the convention above asks for, with the tokens of the hits among the computed ones. If
        caching is on, ``_index_full_blocks`` is told how many tokens are computed once this step has run: one for each
        slot of the convention, those of the hits included, but no more than exist. When a request that holds nothing
        gets slots, it counts in the statistics: one query, for ``request.num_tokens`` tokens as of now, of which those
        of the hits were found.
        Returns the fresh blocks, in order; the list is empty if the last block still has room. Both lists, the hits and
        the one returned, stay the caller's: a later call does not change them.
        Returns None if too few blocks are free for these tokens, and nothing has changed: neither tables, owners, queue
        order and index, nor the statistics, and nothing is kept of a request that held nothing. What the rest of the
        request will need does not matter yet. A hit that stands in the free queue is about to leave it, so it is no
        room for fresh blocks. A hit that is in use takes no room.
        """
        hits = [*(new_computed_blocks or ())]
        found = self.block_size * len(hits) if num_new_computed_tokens is None else num_new_computed_tokens
        self._check_arguments(request, num_new_tokens, hits, found)
        self._check_hits(request, hits)
        key = request.request_id
        held = [*self._tables.get(key, ()), *hits]
        slots = request.num_computed_tokens + found + num_new_tokens
        missing = self._num_blocks_for(slots) - len(held)
        room = self.block_pool.get_num_free_blocks() - [b.ref_cnt for b in hits].count(0)
        if missing > room:
            return None
        is_new = key not in self._tables
        self.block_pool.touch(hits)
        fresh = self.block_pool.get_new_blocks(missing if missing > 0 else 0)
        self._tables[key] = held + fresh
        if is_new:
            self._num_queries, self._num_query_tokens, self._num_hit_tokens = (
                self._num_queries + 1, self._num_query_tokens + request.num_tokens, self._num_hit_tokens + found)
        if self.enable_caching:
            self._index_full_blocks(request, slots if slots < request.num_tokens else request.num_tokens)
        return list(fresh)

    def _check_arguments(self, request: Request, num_new_tokens: int, hits: list[KVCacheBlock],
                         num_hit_tokens: int) -> None:
        """Raise unless the arguments of allocate_slots make sense. Given."""
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
        """Give the blocks of ``request`` back, last one first: others share the head of a sequence, so keep it longest.

        After: it holds nothing; the manager keeps nothing of it, or a server would grow with every request it served.
        Harmless when it held nothing before.
        """
        if request.request_id in self._tables:
            table = self._tables.pop(request.request_id)
            while table:
                self.block_pool.free_blocks([table.pop()])

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

        A block's key chains to that of the block before it. Blocks that have a ``block_hash`` already keep it, and
        it is the parent for the next: only blocks that have none are hashed, not the whole sequence for every decoded
        token.
        """
        full = self._tables.get(request.request_id, [])[:num_tokens // self.block_size]
        first = len(full)
        while first and full[first - 1].block_hash is None:
            first -= 1
        keys = [full[first - 1].block_hash if first else None]
        for index in range(first, len(full)):
            keys.append(self._hash_of(request, index, keys[-1]))
        self.block_pool.cache_full_blocks(full[first:], keys[1:])

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """The longest cached prefix of ``request``: its blocks, and how many tokens they hold. Nothing changes.

        Walks full blocks from the front and stops at the first miss: what comes after it is not hashed. At least one
        token is left to compute, because a step needs a token to give logits for the next one: at most
        ``(num_tokens - 1) // block_size`` blocks. All tokens count, not only those of the prompt: a request that was
        freed and comes back finds what it decoded, too.
        With caching off the answer is always ``([], 0)``.
        """
        def walk():
            key = None
            for index in range((request.num_tokens - 1) // self.block_size if self.enable_caching else 0):
                key = self._hash_of(request, index, key)
                yield self.block_pool.get_cached_block(key)
        blocks = list(itertools.takewhile(lambda block: block is not None, walk()))
        return blocks, self.block_size * len(blocks)

    # ---- Task 5, beside the hits in allocate_slots

    def _check_hits(self, request: Request, hits: list[KVCacheBlock]) -> None:
        """Raise RuntimeError unless each of ``hits`` still holds the tokens of ``request`` at its place.

        ``allocate_slots`` calls it before anything changes. Between the lookup and now, a free block may have been
        given to someone else; its ``block_hash`` tells. Ask the block, not the index, which may name another block of
        the same content by now.
        """
        chain = itertools.accumulate([None, *range(len(hits))], lambda parent, index: self._hash_of(request, index, parent))
        for block, key in zip(hits, itertools.islice(chain, 1, None)):
            if not (block.block_hash is not None and block.block_hash == key):
                raise RuntimeError(f"block {block.block_id} holds something else")

    # ---- Task 6

    @property
    def stats(self) -> PrefixCacheStats:
        """Queries, tokens asked for, tokens found, and blocks evicted, since the last reset.

        Counted by ``allocate_slots``, see there; the pool counts evictions since it was made (``num_evictions``).
        """
        return PrefixCacheStats(num_queries=self._num_queries, num_query_tokens=self._num_query_tokens,
                                num_hit_tokens=self._num_hit_tokens,
                                num_evicted_blocks=self.block_pool.num_evictions - self._num_evictions_before)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content and start the statistics anew.

        Raises RuntimeError while any block is in use (the pool does); nothing changes then.
        """
        self.block_pool.reset_prefix_cache()
        self._num_queries = self._num_query_tokens = self._num_hit_tokens = 0
        self._num_evictions_before = self.block_pool.num_evictions

    def check_integrity(self) -> None:
        """Raise RuntimeError if pool and tables disagree. Given: call it whenever you are in doubt."""
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        for block in self.block_pool.blocks:
            if block.ref_cnt != owners[block.block_id]:
                raise RuntimeError(f"block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables name it")
