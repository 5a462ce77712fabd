"""The KV cache manager: block tables over the pool, and the search for a cached prefix.

    request A  tokens 0………31 32………63 64…70        block table A: [4, 9, 2]
    request B  tokens 0………31 32………63 64…………95 96   block table B: [4, 9, 7, 5]
                      └── the same 64 tokens ──┘     blocks 4 and 9 have ref_cnt 2 and exist once

The convention, once for all: slots ``0 … num_computed_tokens + num_new_tokens - 1`` must exist when a step runs, and
position ``p`` lives in ``table[p // block_size]`` at offset ``p % block_size``. So a new block is taken exactly when
``ceil(that many slots / block_size)`` exceeds the table's length.
"""

from __future__ import annotations

import operator
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
        whole, rest = divmod(num_tokens, self.block_size)
        return whole + bool(rest)

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request, as block ids in the order of its tokens; empty if it holds nothing."""
        try:
            table = self._tables[request_id]
        except KeyError:
            return []
        return list(map(operator.attrgetter("block_id"), table))

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
        hits = [] if new_computed_blocks is None else list(new_computed_blocks)
        if num_new_computed_tokens is None:
            num_new_computed_tokens = len(hits) * self.block_size
        self._check_arguments(request, num_new_tokens, hits, num_new_computed_tokens)
        self._check_hits(request, hits)
        num_slots = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        have = len(self._tables.get(request.request_id, ())) + len(hits)
        want = max(have, self._num_blocks_for(num_slots))
        leaving = len({block.block_id for block in hits if not block.ref_cnt})
        if want - have + leaving > self.block_pool.get_num_free_blocks():
            return None
        if request.request_id not in self._tables:
            self._tables[request.request_id] = []
            self._num_queries += 1
            self._num_query_tokens += request.num_tokens
            self._num_hit_tokens += num_new_computed_tokens
        table = self._tables[request.request_id]
        for block in hits:
            self.block_pool.touch([block])
            table.append(block)
        while len(table) < want:
            table += self.block_pool.get_new_blocks(1)
        if self.enable_caching:
            self._index_full_blocks(request, sorted((num_slots, request.num_tokens))[0])
        return table[have:]

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
        self.block_pool.free_blocks(reversed(self._tables.pop(request.request_id, ())))

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
        parent = None
        for index, block in zip(range(num_tokens // self.block_size), self._tables.get(request.request_id, ())):
            if block.block_hash is None:
                self.block_pool.cache_full_blocks((block,), (self._hash_of(request, index, parent),))
            parent = block.block_hash

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """The longest cached prefix of ``request``: its blocks, and how many tokens they hold. Nothing changes.

        Walks full blocks from the front and stops at the first miss: what comes after it is not hashed. At least one
        token is left to compute, because a step needs a token to give logits for the next one: at most
        ``(num_tokens - 1) // block_size`` blocks. All tokens count, not only those of the prompt: a request that was
        freed and comes back finds what it decoded, too.
        With caching off the answer is always ``([], 0)``.
        """
        if not self.enable_caching:
            return [], 0

        def longest(index, parent):
            if (index + 1) * self.block_size >= request.num_tokens:
                return []
            key = self._hash_of(request, index, parent)
            block = self.block_pool.get_cached_block(key)
            return [] if block is None else [(block, key)]

        blocks, key = [], None
        while step := longest(len(blocks), key):
            block, key = step[0]
            blocks.append(block)
        return blocks, sum(self.block_size for _ in blocks)

    # ---- Task 5, beside the hits in allocate_slots

    def _check_hits(self, request: Request, hits: list[KVCacheBlock]) -> None:
        """Raise RuntimeError unless each of ``hits`` still holds the tokens of ``request`` at its place.

        ``allocate_slots`` calls it before anything changes. Between the lookup and now, a free block may have been
        given to someone else; its ``block_hash`` tells. Ask the block, not the index, which may name another block of
        the same content by now.
        """
        parent = None
        for index in range(len(hits)):
            parent = self._hash_of(request, index, parent)
            if {hits[index].block_hash} != {parent}:
                raise RuntimeError(f"{hits[index]} is stale")

    # ---- Task 6

    @property
    def stats(self) -> PrefixCacheStats:
        """Queries, tokens asked for, tokens found, and blocks evicted, since the last reset.

        Counted by ``allocate_slots``, see there; the pool counts evictions since it was made (``num_evictions``).
        """
        return PrefixCacheStats(*(getattr(self, "_" + name) for name in ("num_queries", "num_query_tokens", "num_hit_tokens")),
                                self.block_pool.num_evictions - self._num_evictions_before)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content and start the statistics anew.

        Raises RuntimeError while any block is in use (the pool does); nothing changes then.
        """
        self.block_pool.reset_prefix_cache()
        for name in ("_num_queries", "_num_query_tokens", "_num_hit_tokens"):
            setattr(self, name, 0)
        self._num_evictions_before = self.block_pool.num_evictions

    def check_integrity(self) -> None:
        """Raise RuntimeError if pool and tables disagree. Given: call it whenever you are in doubt."""
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        for block in self.block_pool.blocks:
            if block.ref_cnt != owners[block.block_id]:
                raise RuntimeError(f"block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables name it")
