"""Block tables: which blocks hold a request's tokens, and the search for a cached prefix.

    request A  tokens 0………31 32………63 64…70         block table A: [4, 9, 2]
    request B  tokens 0………31 32………63 64…………95 96   block table B: [4, 9, 7, 5]
                      └─ the same ─┘               blocks 4 and 9 have ref_cnt 2 and exist once

The convention, everywhere: slots ``0 … num_computed_tokens + num_new_tokens - 1`` must exist when a step runs, and
position ``p`` is in ``table[p // block_size]`` at offset ``p % block_size``. So a new block is taken exactly when
``ceil(number of slots / block_size)`` exceeds the table's length.

**Findable before it is written.** Full blocks enter the index when their slots are made, so that requests of one step
share them: each layer of the model writes before it reads. If the step then does not write a request's blocks, because
the request is preempted, aborted or fails, they must leave the index: ``forget_unwritten`` removes them. With a tree,
``free`` does so too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mini_vllm.block_pool import BlockHash, BlockPool, KVCacheBlock
from mini_vllm.prefix_tree import BlockIndex, NoIndex, PrefixIndex, key_of
from mini_vllm.request import Request

DEFAULT_BLOCK_SIZE = 32
#: The number of requests that ``recent_hit_rate`` covers.
HIT_RATE_WINDOW = 100


@dataclass
class PrefixCacheStats:
    """Counters of the prefix cache since the last reset.

    A request counts once, when it gets its first slots. Tokens that it finds again after a preemption do not count.
    """

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_blocks: int = 0
    #: The tokens of each of the most recent requests, and how many of them were found.
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=HIT_RATE_WINDOW))

    def count(self, num_query_tokens: int, num_hit_tokens: int) -> None:
        """Count a request that got its first slots."""
        self.num_queries += 1
        self.num_query_tokens += num_query_tokens
        self.num_hit_tokens += num_hit_tokens
        self.recent.append((num_query_tokens, num_hit_tokens))

    @property
    def hit_rate(self) -> float:
        return self.num_hit_tokens / self.num_query_tokens if self.num_query_tokens else 0.0

    @property
    def recent_hit_rate(self) -> float:
        """The hit rate of only the last HIT_RATE_WINDOW requests."""
        num_query_tokens = sum(num_tokens for num_tokens, _ in self.recent)
        return sum(num_hits for _, num_hits in self.recent) / num_query_tokens if num_query_tokens else 0.0


class KVCacheManager:
    """The block tables of all requests, over one pool.

    It reads ``request.num_computed_tokens`` and never writes it: the scheduler advances it when a step is planned, the
    engine for accepted drafts.
    """

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE, enable_caching: bool = True, *,
                 pool_class: type[BlockPool] = BlockPool,
                 tree_class: Callable[[BlockPool, int], PrefixIndex] | None = None) -> None:
        """Create an empty cache.

        With a ``tree_class``, hits may end inside a block, and a request that ends or is preempted leaves its
        half-filled last block findable. Without one, hits are whole blocks.
        """
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"block_size is {block_size!r}, must be a whole number of tokens, at least 1")
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, int) or num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks!r}, must be a whole number, at least 2: "
                             "block 0 is the null block and holds no tokens")
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.block_pool = pool_class(num_blocks, enable_caching)
        #: None without a tree. Lookups go to ``_index``.
        self.prefix_tree = tree_class(self.block_pool, block_size) if tree_class and enable_caching else None
        self._index: PrefixIndex = (BlockIndex if enable_caching else NoIndex)(self.block_pool, block_size)
        if self.prefix_tree is not None:
            self._index = self.prefix_tree
        #: Request id → its blocks, in the order of its tokens. A request without blocks has no entry.
        self._tables: dict[str, list[KVCacheBlock]] = {}
        #: Block that the planned step has yet to write → number of its tokens that are already written. Such a block
        #: may be findable, and shared as a whole, because each layer of the model writes before it reads. Only its
        #: written part may be copied, because a step makes its copies first. Empty without a tree; see
        #: ``_note_unwritten``.
        self._num_written: dict[int, int] = {}
        self._stats = PrefixCacheStats()
        self._num_evictions_before = 0

    # ---- a request's blocks: found, made, written, given back, shared

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Return the longest cached prefix of ``request``: its blocks, and the number of tokens they hold.

        At least one token is left to compute, because a step needs a token to produce logits for the next one. Without
        a prefix tree only whole blocks are found. No owner is added, and no statistics change.
        """
        match = self._index.match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)
        num_whole_tokens, half = len(match.blocks) * self.block_size, match.partial_block
        if half is None:
            return match.blocks, num_whole_tokens
        num_half = min(match.num_partial_tokens, self._num_written.get(half.block_id, match.num_partial_tokens))
        return match.blocks + [half] * (num_half > 0), num_whole_tokens + num_half

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before | hits: new_computed_blocks | num_new_tokens ]
              in the table      adopted here, not copied    slots made here

        Return None, and change nothing, if they do not fit. Hits in the free queue do not count as free. Shared blocks
        that the new tokens would write into are forked first.
        """
        if num_new_tokens == 1 and not new_computed_blocks and self._has_own_slot(request):
            return []
        hits = list(new_computed_blocks or ())
        num_hit_tokens = len(hits) * self.block_size if num_new_computed_tokens is None else num_new_computed_tokens
        held = self._tables.get(request.request_id, [])
        check_arguments(request, num_new_tokens, held, hits, num_hit_tokens, self.block_size)
        check_hits(request, hits, num_hit_tokens, self.block_size)

        table = held + hits
        first_slot = request.num_computed_tokens + num_hit_tokens
        num_slots = first_slot + num_new_tokens
        num_blocks = self._num_blocks_for(num_slots)
        written = range(first_slot // self.block_size, min(num_blocks, len(table)))
        forked = [i for i in written if self._must_fork(request, i, table[i], table[i] in hits, first_slot)]
        num_new_blocks = max(num_blocks - len(table), 0)
        num_free_hits = sum(block.ref_cnt == 0 for block in hits)
        if len(forked) + num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self.block_pool.touch(hits)
        copies = [self._fork_block(table, index) for index in forked]
        fresh = self.block_pool.get_new_blocks(num_new_blocks)
        if not held and request.num_preemptions == 0:
            self._stats.count(request.num_tokens, num_hit_tokens)
        table += fresh
        self._tables[request.request_id] = table
        self._index.insert(request.all_token_ids, table, min(num_slots, request.num_tokens), request.extra_keys)
        self._note_unwritten(table, first_slot, num_slots, copies + fresh)
        return copies + fresh

    def finish_step(self) -> None:
        """Declare the planned step done: its copies are made and its K/V is written."""
        self.block_pool.finish_copies()
        self._num_written.clear()

    def give_back_slots(self, request: Request) -> None:
        """Give back the slots after the computed tokens of ``request``: those of drafts that turned out wrong.

        Blocks that accepted drafts have filled become findable.
        """
        table = self._tables.get(request.request_id, [])
        num_kept = self._num_blocks_for(request.num_computed_tokens)
        unused = table[num_kept:]
        del table[num_kept:]
        self.block_pool.free_blocks(reversed(unused))
        self._index.insert(request.all_token_ids, table, request.num_computed_tokens, request.extra_keys)

    def forget_unwritten(self, request: Request) -> list[int]:
        """Remove the blocks that a planned step was to write for ``request``, and will not write, from the index.

        ``request.num_computed_tokens`` must be the number before that step. Return the ids of these blocks. The request
        keeps them.
        """
        unwritten = self.get_block_ids(request.request_id)[request.num_computed_tokens // self.block_size:]
        self.block_pool.evict_blocks(unwritten)
        return unwritten

    def free(self, request: Request) -> None:
        """Give the blocks of ``request`` back, last one first: the start of a prompt is worth keeping longest.

        Their content stays findable; with a prefix tree, so does the half-filled last block. K/V that a planned step
        would have written, and now will not write, is not findable.
        """
        table = self._tables.get(request.request_id)
        if table is None:
            return
        num_written = min(request.num_computed_tokens, request.num_tokens)
        unwritten = [index for index, block in enumerate(table) if block.block_id in self._num_written]
        if unwritten:
            first = unwritten[0]
            num_written = min(num_written, first * self.block_size + self._num_written[table[first].block_id])
            self.block_pool.evict_blocks(table[index].block_id for index in unwritten)
        self._index.donate(request.all_token_ids, table, num_written, request.extra_keys)
        del self._tables[request.request_id]

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` share every block of ``parent``, including the half-filled last one.

        No tensor is copied here.
        """
        if child.request_id in self._tables:
            raise RuntimeError(f"fork: request {child.request_id!r} holds "
                               f"{len(self._tables[child.request_id])} blocks already")
        table = list(self._tables.get(parent.request_id, []))
        self.block_pool.touch(table)
        if table:
            self._tables[child.request_id] = table

    # ---- views

    def get_block_ids(self, request_id: str) -> list[int]:
        """Return the block table of a request; an empty list if it has no blocks."""
        return [block.block_id for block in self._tables.get(request_id, [])]

    @property
    def stats(self) -> PrefixCacheStats:
        """Return a copy of the counters."""
        return replace(self._stats, recent=self._stats.recent.copy(),
                       num_evicted_blocks=self.block_pool.num_evictions - self._num_evictions_before)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content and reset the statistics. Raise RuntimeError while any block is in use."""
        self._index.clear()
        self._stats = PrefixCacheStats()
        self._num_evictions_before = self.block_pool.num_evictions

    def check_integrity(self) -> None:
        """Raise RuntimeError if pool and tables disagree: each reference must belong to a table or a pending copy."""
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        owners.update(self.block_pool._kept_for_copy)
        for block in self.block_pool.blocks:
            if block.ref_cnt != owners[block.block_id]:
                raise RuntimeError(f"KV cache integrity: block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables and pending copies name it")

    # ---- inside

    def _has_own_slot(self, request: Request) -> bool:
        """Check whether the next token goes into a block that only ``request`` owns and that the token does not fill.

        Then no block is taken, forked or indexed. This is true for all decoded tokens except one per block.
        """
        index, offset = divmod(request.num_computed_tokens, self.block_size)
        table = self._tables.get(request.request_id, ())
        if index != len(table) - 1 or offset == self.block_size - 1:
            return False
        block = table[index]
        if block.ref_cnt != 1 or block.block_hash is not None:
            return False
        if self.prefix_tree is not None:
            self._num_written.setdefault(block.block_id, offset)
        return True

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _must_fork(self, request: Request, index: int, block: KVCacheBlock, is_hit: bool, first_slot: int) -> bool:
        """Check whether ``block`` must be copied before tokens are written into it from ``first_slot`` on.

        It must be copied if another request owns it, whatever is written. Otherwise it must be copied only if its key,
        by which the index finds it, names tokens at or after the first written offset that are not the request's.
        """
        if block.ref_cnt + is_hit > 1:
            return True
        key = key_of(block)
        if key is None:
            return False
        start = index * self.block_size
        offset = max(first_slot - start, 0)
        named = key.token_ids[offset:]
        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])

    def _fork_block(self, table: list[KVCacheBlock], index: int) -> KVCacheBlock:
        """Replace the block at ``index`` by a copy, and return the copy. The original block is unchanged."""
        block = table[index]
        self.block_pool.touch([block])  # a second owner: otherwise fork_block would not copy a private block
        table[index] = self.block_pool.fork_block(block)
        self.block_pool.free_blocks([block])
        return table[index]

    def _note_unwritten(self, table: list[KVCacheBlock], first_slot: int, num_slots: int,
                        taken: list[KVCacheBlock]) -> None:
        """Record which blocks the planned step will write from ``first_slot`` on, and how much of each is written.

        An existing record of a block in ``taken`` is stale: it belongs to a request that was freed before the step.
        """
        if self.prefix_tree is None:
            return  # hits are whole blocks, which are never copied
        for block in taken:
            self._num_written.pop(block.block_id, None)
        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):
            self._num_written.setdefault(table[index].block_id, max(first_slot - index * self.block_size, 0))


def check_arguments(request: Request, num_new_tokens: int, table: Sequence[KVCacheBlock],
                    hits: Sequence[KVCacheBlock], num_hit_tokens: int, block_size: int) -> None:
    """Raise unless the numbers fit each other. ``table`` is the request's block table before the hits are added."""
    who = f"allocate_slots for request {request.request_id!r}"
    if num_new_tokens < 1:
        raise ValueError(f"{who}: num_new_tokens is {num_new_tokens}, must be at least 1")
    if -(-num_hit_tokens // block_size) != len(hits):
        raise ValueError(f"{who}: num_new_computed_tokens is {num_hit_tokens}, which does not fit {len(hits)} computed "
                         f"blocks of {block_size} tokens: the last token must be in the last block")
    if hits and table:
        raise RuntimeError(f"{who}: it holds {len(table)} blocks already; "
                           "computed blocks may be passed only in the first call")
    if request.num_computed_tokens > len(table) * block_size:
        raise RuntimeError(f"{who}: num_computed_tokens is {request.num_computed_tokens}, "
                           f"but its table has only {len(table) * block_size} slots")


def check_hits(request: Request, hits: Sequence[KVCacheBlock], num_hit_tokens: int, block_size: int) -> None:
    """Raise RuntimeError unless each of ``hits`` still holds the tokens of ``request`` at its position.

    Since the lookup a free block may have been given to another request; its key shows that.
    """
    parent: BlockHash | None = None
    for index, block in enumerate(hits):
        start = index * block_size
        end = min(start + block_size, num_hit_tokens)
        key = key_of(block)
        if (key is None or key.parent != parent or key.extra_keys != (request.extra_keys or None)
                or key.token_ids[:end - start] != tuple(request.all_token_ids[start:end])):
            raise RuntimeError(f"allocate_slots for request {request.request_id!r}: block {block.block_id} does not "
                               f"hold its tokens {start} to {end - 1}; was it given to another request after the "
                               "lookup?")
        parent = key
