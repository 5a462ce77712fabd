"""Which blocks a request's tokens live in: block tables over the pool, and the search for a cached prefix.

    request A  tokens 0………31 32………63 64…70        block table A: [4, 9, 2]
    request B  tokens 0………31 32………63 64…………95 96   block table B: [4, 9, 7, 5]
                      └── the same 64 tokens ──┘     blocks 4 and 9 have ref_cnt 2 and exist once

The convention, once for all: slots ``0 … num_computed_tokens + num_new_tokens - 1`` must exist when a step runs, and
position ``p`` lives in ``table[p // block_size]`` at offset ``p % block_size``. So a new block is taken exactly when
``ceil(that many slots / block_size)`` exceeds the table's length.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.block_pool import BlockHash, BlockPool, KVCacheBlock
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request

DEFAULT_BLOCK_SIZE = 32
#: Requests over which ``recent_hit_rate`` looks back.
HIT_RATE_WINDOW = 100


@dataclass(frozen=True)
class PrefixCacheStats:
    """What the prefix cache did since the last reset.

    A request counts once, when it gets its first slots. What it finds again after a preemption does not count.
    """

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_blocks: int = 0
    #: Of the last HIT_RATE_WINDOW requests alone.
    recent_hit_rate: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.num_hit_tokens / self.num_query_tokens if self.num_query_tokens else 0.0


class KVCacheManager:
    """Block tables of all requests, over one pool.

    It reads ``request.num_computed_tokens`` and never writes it: the scheduler advances it once a step is planned.
    """

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE, enable_caching: bool = True, *,
                 pool_class: type[BlockPool] = BlockPool, tree_class: type[PrefixTree] | None = None) -> None:
        """With a ``tree_class``, hits may end inside a block, and finished requests leave their half-filled tails."""
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"block_size is {block_size!r}, must be a whole number of tokens, at least 1")
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, int) or num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks!r}, must be a whole number, at least 2: "
                             "block 0 is the null block and holds no tokens")
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.block_pool = pool_class(num_blocks, enable_caching)
        self.prefix_tree = tree_class(self.block_pool, block_size) if tree_class and enable_caching else None
        self._tables: dict[str, list[KVCacheBlock]] = {}
        #: Indexed blocks of which the planned step has yet to write a part → how many of their tokens are there now.
        #: Others may adopt them whole, since a step writes before it reads; only what is there can be copied, since it
        #: copies before it writes.
        self._num_written: dict[int, int] = {}
        self._num_queries = self._num_query_tokens = self._num_hit_tokens = self._num_evictions_before = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=HIT_RATE_WINDOW)

    # ---- the three calls of a request's life

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """The longest cached prefix of ``request``: its blocks, and how many tokens they hold. Nothing changes.

        At least one token is left to compute, because a step needs a token to give logits for the next one. Without a
        prefix tree only whole blocks are found.
        """
        if self.prefix_tree is not None:
            match = self.prefix_tree.match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)
            half, num_half = match.partial_block, match.num_partial_tokens
            if half is not None:
                num_half = min(num_half, self._num_written.get(half.block_id, num_half))
            return match.blocks + [half] * (num_half > 0), len(match.blocks) * self.block_size + num_half
        blocks: list[KVCacheBlock] = []
        if self.enable_caching:
            parent = None
            for index in range((request.num_tokens - 1) // self.block_size):
                block = self.block_pool.get_cached_block(self._hash_of(request, index, parent))
                if block is None:
                    break
                blocks.append(block)
                parent = block.block_hash  # the stored chain, so that the next proof ends after one block
        return blocks, len(blocks) * self.block_size

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before | hits: new_computed_blocks | num_new_tokens ]
              in the table      adopted here, not copied    slots made here

        None means that it does not fit now, and nothing has changed: a hit that stands in the free queue is about to
        leave it, so it is no room for new blocks. Shared blocks that the new tokens would write into are forked first.
        """
        hits = list(new_computed_blocks or ())
        num_hit_tokens = len(hits) * self.block_size if num_new_computed_tokens is None else num_new_computed_tokens
        self._check_arguments(request, num_new_tokens, hits, num_hit_tokens)

        table = self._tables.get(request.request_id, []) + hits
        first_slot = request.num_computed_tokens + num_hit_tokens
        num_slots = first_slot + num_new_tokens
        written = range(first_slot // self.block_size, min(self._num_blocks_for(num_slots), len(table)))
        forked = [i for i in written if self._must_fork(request, i, table[i], table[i] in hits, first_slot)]
        num_new_blocks = max(self._num_blocks_for(num_slots) - len(table), 0)
        num_free_hits = sum(block.ref_cnt == 0 for block in hits)
        if len(forked) + num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self.block_pool.touch(hits)
        taken = []
        for i in forked:
            block = table[i]
            self.block_pool.touch([block])  # for the index, which may be the only one beside us to rely on the block
            table[i] = self.block_pool.fork_block(block)
            taken.append(table[i])
            self.block_pool.free_blocks([block])
        fresh = self.block_pool.get_new_blocks(num_new_blocks)
        if request.request_id not in self._tables and request.num_preemptions == 0:
            self._num_queries += 1
            self._num_query_tokens += request.num_tokens
            self._num_hit_tokens += num_hit_tokens
            self._recent.append((request.num_tokens, num_hit_tokens))
        self._tables[request.request_id] = table + fresh
        self._index_full_blocks(request, min(num_slots, request.num_tokens))
        self._note_unwritten(request, first_slot)
        return taken + fresh

    def finish_step(self) -> None:
        """The planned step has run: its copies are made and its K/V is written."""
        self.block_pool.finish_copies()
        self._num_written.clear()

    def free(self, request: Request) -> None:
        """Give the blocks of ``request`` back, last one first: the head of a prompt is worth keeping longest.

        What it holds stays findable; with a prefix tree, the half-filled tail too, but not what a planned step was to
        write and now will not.
        """
        table = self._tables.pop(request.request_id, [])
        if not table or self.prefix_tree is None:
            self.block_pool.free_blocks(reversed(table))
            return
        num_written = min(request.num_computed_tokens, request.num_tokens)
        unwritten = [i for i, block in enumerate(table) if block.block_id in self._num_written]
        if unwritten:
            self.block_pool.evict_blocks(table[i].block_id for i in unwritten)
            first = unwritten[0]
            num_written = min(num_written, first * self.block_size + self._num_written[table[first].block_id])
        self.prefix_tree.donate(request.all_token_ids, table, num_written, request.extra_keys)

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` share every block of ``parent``, the half-filled tail included. No tensor is copied here."""
        if child.request_id in self._tables:
            raise RuntimeError(f"fork: request {child.request_id!r} holds "
                               f"{len(self._tables[child.request_id])} blocks already")
        table = list(self._tables.get(parent.request_id, []))
        self.block_pool.touch(table)
        if table:
            self._tables[child.request_id] = table

    # ---- views

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request; empty if it holds nothing."""
        return [block.block_id for block in self._tables.get(request_id, [])]

    @property
    def stats(self) -> PrefixCacheStats:
        asked, found = (sum(column) for column in zip(*self._recent)) if self._recent else (0, 0)
        return PrefixCacheStats(self._num_queries, self._num_query_tokens, self._num_hit_tokens,
                                self.block_pool.num_evictions - self._num_evictions_before,
                                found / asked if asked else 0.0)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content and start the statistics anew. Raises RuntimeError while any block is in use."""
        if self.prefix_tree is not None:
            self.prefix_tree.clear()
        else:
            self.block_pool.reset_prefix_cache()
        self._num_queries = self._num_query_tokens = self._num_hit_tokens = 0
        self._recent.clear()
        self._num_evictions_before = self.block_pool.num_evictions

    def check_integrity(self) -> None:
        """Raise RuntimeError if pool and tables disagree: every reference belongs to a table or to a pending copy."""
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        owners.update(self.block_pool._kept_for_copy)
        for block in self.block_pool.blocks:
            if block.ref_cnt != owners[block.block_id]:
                raise RuntimeError(f"KV cache integrity: block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables name it")

    # ---- inside

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _note_unwritten(self, request: Request, first_slot: int) -> None:
        if self.prefix_tree is None:
            return
        table, size = self._tables[request.request_id], self.block_size
        for index in range(first_slot // size, len(table)):
            key = table[index].block_hash
            if key is not None and index * size + len(key.token_ids) > first_slot:
                self._num_written.setdefault(table[index].block_id, max(first_slot - index * size, 0))

    def _must_fork(self, request: Request, index: int, block: KVCacheBlock, is_hit: bool, first_slot: int) -> bool:
        """Whether tokens about to be written from ``first_slot`` on would change what others, or the index, rely on."""
        if block.ref_cnt + is_hit > 1:
            return True
        if not isinstance(block.block_hash, BlockHash):
            return False
        start = index * self.block_size
        offset = max(first_slot - start, 0)
        named = block.block_hash.token_ids[offset:]
        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])

    def _hash_of(self, request: Request, index: int, parent: BlockHash | None) -> BlockHash:
        """The key of the block of ``request`` at ``index``, given its parent's."""
        tokens = request.all_token_ids[index * self.block_size:(index + 1) * self.block_size]
        return BlockHash(parent, tokens, request.extra_keys)

    def _index_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Index the blocks that ``num_tokens`` existing tokens fill and that are not indexed yet."""
        if not self.enable_caching:
            return
        table = self._tables[request.request_id]
        if self.prefix_tree is not None:
            self.prefix_tree.insert(request.all_token_ids, table, num_tokens, request.extra_keys)
            return
        end = num_tokens // self.block_size
        start = end
        while start > 0 and table[start - 1].block_hash is None:
            start -= 1
        parent = table[start - 1].block_hash if start else None
        hashes = []
        for index in range(start, end):
            block_hash = self._hash_of(request, index, parent)
            twin = self.block_pool.get_cached_block(block_hash)
            parent = twin.block_hash if twin else block_hash  # one chain of objects for all twins: proofs stay short
            hashes.append(parent)
        self.block_pool.cache_full_blocks(table[start:end], hashes)

    def _check_arguments(self, request: Request, num_new_tokens: int, hits: list[KVCacheBlock],
                         num_hit_tokens: int) -> None:
        who = f"allocate_slots for request {request.request_id!r}"
        if num_new_tokens < 1:
            raise ValueError(f"{who}: num_new_tokens is {num_new_tokens}, must be at least 1")
        if self._num_blocks_for(num_hit_tokens) != len(hits):
            raise ValueError(f"{who}: num_new_computed_tokens is {num_hit_tokens}, which does not end in the last of "
                             f"{len(hits)} computed blocks of {self.block_size} tokens")
        table = self._tables.get(request.request_id)
        if hits and table:
            raise RuntimeError(f"{who}: it holds {len(table)} blocks already; "
                               "computed blocks come with the first call only")
        if request.num_computed_tokens > len(table or ()) * self.block_size:
            raise RuntimeError(f"{who}: num_computed_tokens is {request.num_computed_tokens}, "
                               f"but its table has only {len(table or ()) * self.block_size} slots")
        parent = None
        for index in range(num_hit_tokens // self.block_size):
            parent = self._hash_of(request, index, parent)
            if hits[index].block_hash != parent:
                raise RuntimeError(f"{who}: block {hits[index].block_id} does not hold its tokens "
                                   f"{index * self.block_size} to {(index + 1) * self.block_size - 1} (any more): "
                                   "was it given to someone else since the lookup?")
            parent = hits[index].block_hash
        num_half = num_hit_tokens % self.block_size
        if num_half:
            half, start = hits[-1], num_hit_tokens - num_half
            tokens = tuple(request.all_token_ids[start:num_hit_tokens])
            key = half.block_hash
            if key is None or key.parent != parent or key.token_ids[:num_half] != tokens:
                raise RuntimeError(f"{who}: block {half.block_id} does not hold its tokens {start} to "
                                   f"{num_hit_tokens - 1} (any more): was it given to someone else since the lookup?")
