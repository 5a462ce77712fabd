"""What is cached: one trie over physical blocks.

A node *is* a block together with the tokens it stands for. Its key is the chained BlockHash, which names its parent;
its only reference count is the block's own. There is no second store: a finished request leaves its blocks in the tree
by leaving their hashes on, and a block that is given out again has left it.

    root ──▶ [once upon a time] ──▶ [there lived a king] ──▶ [who had three sons]     full blocks, found by hash
                                                       └───▶ [and no]                 a half-filled tail
    match("once upon a time there lived a king who was old"):
        blocks 1 and 2 whole, and one token ("who") of block 3

The pool finds a full block by its key. What the tree adds is the list of a node's children, sorted by their tokens, so
that a match can end *inside* a block. However many children there are, those that share most with a text stand next to
where it would stand:

    [1 7 4 2]  [1 7 5]  [1 7 5 3]  [1 7 5 8]  [1 9 0 6]         1 7 5 6 would stand before [1 7 5 8], so 3 tokens
               └────── begin with 1 7 5 ─────┘                  are the most it shares with any of them

The module is a little longer than most: to match, to insert and to evict is one piece of work in lab 3.3.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from mini_vllm.block_pool import BlockHash, BlockPool, ExtraKeys, KVCacheBlock
from mini_vllm.caching.block_index import BlockIndex, key_of

#: Of children that share as much, at most this many are asked for their age: as many as run at once by default.
MAX_EQUALS = 64


@dataclass(frozen=True)
class PrefixMatch:
    """The longest cached prefix of a sequence."""

    #: Blocks whose every token matches.
    blocks: list[KVCacheBlock]
    #: One more block, of which the first ``num_partial_tokens`` match.
    partial_block: KVCacheBlock | None
    num_partial_tokens: int
    #: All of it: the tokens of ``blocks`` and those of ``partial_block``.
    num_tokens: int


@dataclass(frozen=True)
class PrefixTreeStats:
    """How much of the pool can be found. A node is a block that has a ``block_hash``."""

    num_nodes: int
    num_tokens: int
    #: Nodes whose block is in use, and so cannot be evicted.
    num_nodes_in_use: int


class _Child(NamedTuple):
    """A block that was inserted under a parent. As tuples, children sort by their tokens, then by age."""

    tokens: tuple[int, ...]
    ticket: int
    block: KVCacheBlock


class PrefixTree(BlockIndex):
    """A BlockIndex that also knows the children of every node: hits may end inside a block, and tails are kept.

    Lookup, insertion and removal look at O(log n) of a node's n children, whatever these have in common. A list also
    moves all that stands after what comes or goes: with 100,000 children less than 0.1 ms.

    Nobody tells the tree when the pool gives a block to someone else, so some children are *stale*: their block's
    ``block_hash`` is None, or says that it stands for something else now. A lookup that meets one takes it down.
    """

    def __init__(self, block_pool: BlockPool, block_size: int) -> None:
        super().__init__(block_pool, block_size)
        #: Parent's key (for the first block of a text: its extra keys) → its children, sorted.
        self._children: dict[object, list[_Child]] = {}
        #: Block id → where it stands in ``_children``. One entry a block, so what is stale cannot pile up.
        self._places: dict[int, tuple[object, _Child]] = {}
        self._tickets = itertools.count()

    def match(self, token_ids: Sequence[int],
              extra_keys: tuple | None = None) -> PrefixMatch:  # type: ignore[type-arg]  # the published signature has it bare
        """Walk whole blocks from the front, then go as far as possible into one more.

        No block is touched and no count changes; the tree forgets the stale children that it meets.
        """
        blocks = self._match_blocks(token_ids, extra_keys)
        num_whole = len(blocks) * self.block_size
        rest = token_ids[num_whole:num_whole + self.block_size]
        partial, num_partial = self._longest_child(key_of(blocks[-1]) if blocks else None, rest, extra_keys)
        return PrefixMatch(blocks, partial, num_partial, num_whole + num_partial)

    def _longest_child(self, parent: BlockHash | None, rest: Sequence[int],
                       extra_keys: ExtraKeys) -> tuple[KVCacheBlock | None, int]:
        """The child of ``parent`` that shares most tokens with ``rest``, and how many.

        Of those that share as many the oldest is taken: one that the step at hand is yet to write cannot be copied. If
        one has no further tokens, so that it may be written on without a copy, then it is the oldest, because a tail
        is not inserted once another child begins with it.
        """
        rest, siblings = tuple(rest), self._children.get(_place(parent, extra_keys), [])
        while True:
            index = bisect_left(siblings, (rest,))
            neighbours = siblings[max(index - 1, 0):index + 1]
            length = max((_num_shared(child.tokens, rest) for child in neighbours), default=0)
            if length == 0:
                return None, 0
            first = bisect_left(siblings, (rest[:length],))
            end = bisect_left(siblings, ((*rest[:length], math.inf),), first)  # no token id is as large
            child = min(siblings[first:min(end, first + MAX_EQUALS)], key=attrgetter("ticket"))
            if self._is_child(child, parent, extra_keys):
                return child.block, length
            self._remove(child.block.block_id)  # stale

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None,  # type: ignore[type-arg]  # the published signature has it bare
               with_tail: bool = False) -> None:
        """Make the blocks that hold the first ``num_tokens`` of ``token_ids`` findable.

        Blocks that are findable already stay as they are. A last, half-filled block is inserted only ``with_tail``.
        """
        num_tokens = len(token_ids) if num_tokens is None else num_tokens
        end = num_tokens // self.block_size
        tail = token_ids[end * self.block_size:num_tokens] if with_tail else ()
        if len(tail):
            key_of(blocks[end])  # which raises, if it must, before anything changes
        super().insert(token_ids, blocks, num_tokens, extra_keys)
        if len(tail):
            self._insert_tail(key_of(blocks[end - 1]) if end else None, tail, extra_keys, blocks[end])

    def _insert_one(self, parent: BlockHash | None, tokens: Sequence[int], extra_keys: ExtraKeys,
                    block: KVCacheBlock) -> BlockHash:
        """Index ``block``, and make it a child of ``parent``; it stands nowhere else any more."""
        key = super()._insert_one(parent, tokens, extra_keys, block)
        self._remove(block.block_id)
        place, child = _place(parent, extra_keys), _Child(key.token_ids, next(self._tickets), block)
        insort(self._children.setdefault(place, []), child)
        self._places[block.block_id] = place, child
        return key

    def _insert_tail(self, parent: BlockHash | None, tail: Sequence[int], extra_keys: ExtraKeys,
                     block: KVCacheBlock) -> None:
        """Index a half-filled block, unless a child of ``parent`` begins with all of ``tail``: that one is found
        already, and a second would only be one more to look at."""
        if self._longest_child(parent, tail, extra_keys)[1] < len(tail):
            self._insert_one(parent, tail, extra_keys, block)

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None) -> None:  # type: ignore[type-arg]  # the published signature has it bare
        """A request is done: its ``num_tokens`` computed tokens stay findable, its references go."""
        for block in blocks:
            key_of(block)  # which raises, if it must, before anything changes
        self.insert(token_ids, blocks, num_tokens, extra_keys, with_tail=True)
        for block in blocks:
            if block.block_hash is None:
                self._remove(block.block_id)  # it may still stand where it stood before this request had it
        super().donate(token_ids, blocks, num_tokens, extra_keys)

    def evict(self, num_blocks: int) -> int:
        """Forget the content of up to ``num_blocks`` blocks nobody uses, least recently used first, leaves first.

        The free queue is in that order: a request gives its last block back first. Returns how many were forgotten.
        It reads all of that queue, O(free blocks): for tests and by hand, the engine needs no such call.
        """
        if num_blocks < 0:
            raise ValueError(f"evict: num_blocks is {num_blocks}, must be 0 or more")
        victims = [block.block_id for block in self.block_pool.free_block_queue.get_all_free_blocks()
                   if block.block_hash is not None][:num_blocks]
        self.block_pool.evict_blocks(victims)
        for block_id in victims:
            self._remove(block_id)
        return len(victims)

    def evict_unused(self) -> int:
        """Forget all content that nobody uses."""
        return self.evict(self.block_pool.num_blocks)

    def clear(self) -> None:
        """Forget everything. Raises RuntimeError, which says how many, while any block is in use."""
        super().clear()
        self._children, self._places = {}, {}

    @property
    def stats(self) -> PrefixTreeStats:
        """Counted anew at each call: O(num_blocks)."""
        nodes = [(block, key) for block in self.block_pool.blocks if (key := key_of(block)) is not None]
        return PrefixTreeStats(num_nodes=len(nodes), num_tokens=sum(len(key.token_ids) for _, key in nodes),
                               num_nodes_in_use=len([block for block, _ in nodes if block.ref_cnt > 0]))

    def _is_child(self, child: _Child, parent: BlockHash | None, extra_keys: ExtraKeys) -> bool:
        """Whether the block still holds what it was inserted with."""
        key = child.block.block_hash
        return (isinstance(key, BlockHash) and key.token_ids == child.tokens and key.parent == parent
                and (parent is not None or key.extra_keys == (extra_keys or None)))

    def _remove(self, block_id: int) -> None:
        if block_id not in self._places:
            return
        place, child = self._places.pop(block_id)
        siblings = self._children[place]
        del siblings[bisect_left(siblings, child)]
        if not siblings:
            del self._children[place]


def _place(parent: BlockHash | None, extra_keys: ExtraKeys) -> object:
    return parent if parent is not None else ("root", extra_keys or None)


def _num_shared(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    for index, (mine, other) in enumerate(zip(tokens, others)):
        if mine != other:
            return index
    return min(len(tokens), len(others))
