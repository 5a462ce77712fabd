"""The index of cached prefixes: which blocks already hold the beginning of a text.

    NoIndex       finds nothing: caching is off
    BlockIndex    finds whole blocks by their keys
    PrefixTree    is exact to the token: a hit may end inside a block

A block is cached while it has a key, its ``block_hash``: a chained BlockHash, which names its parent. There is no other
store: a finished request leaves its blocks findable by not clearing their keys, and a block that is given out again is
no longer found. By their keys the blocks form a trie:

    root ──▶ [once upon a time] ──▶ [there lived a king] ──▶ [who had three sons]     full blocks, found by hash
                                                       └───▶ [and no]                 a half-filled tail
    match("once upon a time there lived a king who was old"):
        blocks 1 and 2 whole, and one token ("who") of block 3

The pool finds a full block by its key. The tree adds a list of each node's children, sorted by their tokens, so that a
match can end *inside* a block. No child shares more with a text than the two neighbours of the text's position in that
order:

    [1 7 4 2]  [1 7 5]  [1 7 5 3]  [1 7 5 8]  [1 9 0 6]         1 7 5 6 sorts before [1 7 5 8], so 3 tokens
               └────── begin with 1 7 5 ─────┘                  are the most it shares with any of them
"""

from __future__ import annotations

import itertools
import math
import reprlib
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, Protocol

from mini_vllm.block_pool import BlockHash, BlockPool, ExtraKeys, KVCacheBlock

#: Among children that share the same number of tokens, the oldest of at most this many is taken. The number is the
#: default limit on running sequences.
MAX_EQUALS = 64


@dataclass(frozen=True)
class PrefixMatch:
    """The longest cached prefix of a sequence."""

    #: Blocks whose every token matches.
    blocks: list[KVCacheBlock]
    #: One more block, of which the first ``num_partial_tokens`` match. Only a tree finds one.
    partial_block: KVCacheBlock | None
    num_partial_tokens: int
    #: The total: the tokens of ``blocks`` and those of ``partial_block``.
    num_tokens: int


class PrefixIndex(Protocol):
    """The methods that the manager calls.

    ``blocks`` is always a request's table: ``blocks[i]`` begins at ``i * block_size``.
    """

    def match(self, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> PrefixMatch: ...

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None: ...

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None: ...

    def clear(self) -> None: ...


class BlockIndex:
    """Finds whole blocks by their keys."""

    def __init__(self, block_pool: BlockPool, block_size: int) -> None:
        self.block_pool = block_pool
        self.block_size = block_size

    def match(self, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> PrefixMatch:
        """Return the longest cached prefix of ``token_ids``. No owner is added, and no count changes."""
        blocks = self._match_blocks(token_ids, extra_keys)
        return PrefixMatch(blocks, None, 0, len(blocks) * self.block_size)

    def _match_blocks(self, token_ids: Sequence[int], extra_keys: ExtraKeys) -> list[KVCacheBlock]:
        """Match whole blocks from the front, up to the first miss."""
        size, parent = self.block_size, None
        blocks: list[KVCacheBlock] = []
        for start in range(0, len(token_ids) - size + 1, size):
            block = self.block_pool.get_cached_block(BlockHash(parent, token_ids[start:start + size], extra_keys))
            if block is None:
                break
            blocks.append(block)
            # The stored key is the next key's parent, so the next comparison ends after one block.
            parent = key_of(block)
        return blocks

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        """Make the blocks that the first ``num_tokens`` of ``token_ids`` fill findable; the default is all tokens.

        Blocks that are already findable stay as they are. This is called for every decoded token, so it walks
        backwards, to the nearest findable block.
        """
        size = self.block_size
        end = (len(token_ids) if num_tokens is None else num_tokens) // size
        start = end
        while start > 0 and not self._is_whole(blocks[start - 1]):
            start -= 1
        parent = key_of(blocks[start - 1]) if start else None
        for index in range(start, end):
            parent = self._insert_one(parent, token_ids[index * size:(index + 1) * size], extra_keys, blocks[index])

    def _is_whole(self, block: KVCacheBlock) -> bool:
        """Check whether ``block`` is findable as a whole."""
        key = key_of(block)
        return key is not None and len(key.token_ids) == self.block_size

    def _insert_one(self, parent: BlockHash | None, tokens: Sequence[int], extra_keys: ExtraKeys,
                    block: KVCacheBlock) -> BlockHash:
        """Index ``block``, which holds ``tokens`` after ``parent``, and return its key.

        A block that was indexed with fewer tokens, and has grown since, gets the longer key instead of the old one.
        """
        key = BlockHash(parent, tokens, extra_keys)
        twin = self.block_pool.get_cached_block(key)
        if twin is not None and isinstance(twin.block_hash, BlockHash):
            key = twin.block_hash  # one chain of objects for all blocks of equal content: comparisons stay short
        if key_of(block) not in (None, key):
            self.block_pool.evict_blocks([block.block_id])
        self.block_pool.cache_full_blocks([block], [key])
        return key

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        """Drop the references of a finished request; findable blocks stay findable. A half-filled last block is lost.

        The last block is freed first, so that the start of a prompt, which most requests share, is evicted last.
        """
        self.block_pool.free_blocks(reversed(blocks))

    def clear(self) -> None:
        """Forget everything. Raise RuntimeError, with the number of blocks in use, while there are any."""
        self.block_pool.reset_prefix_cache()


class NoIndex(BlockIndex):
    """Finds nothing and stores nothing."""

    def match(self, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> PrefixMatch:
        return PrefixMatch([], None, 0, 0)

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        return


def key_of(block: KVCacheBlock) -> BlockHash | None:
    """Return the key of ``block``: its tokens and what precedes them. Return None if the block is not findable.

    The pool accepts any hash. Raise RuntimeError for one that is not a BlockHash: it can find a block, but it does not
    say what the block holds.
    """
    key = block.block_hash
    if key is None or isinstance(key, BlockHash):
        return key
    raise RuntimeError(f"block {block.block_id} is cached under {reprlib.repr(key)}, which is of type "
                       f"{type(key).__name__}; a prefix index needs a BlockHash, which knows its tokens and its parent")


@dataclass(frozen=True)
class PrefixTreeStats:
    """Counters of the findable blocks. A node is a block that has a ``block_hash``."""

    num_nodes: int
    num_tokens: int
    #: Nodes whose block is in use and therefore cannot be evicted.
    num_nodes_in_use: int


class _Child(NamedTuple):
    """A block that was inserted under a parent. As tuples, children sort by their tokens, then by age."""

    tokens: tuple[int, ...]
    ticket: int
    block: KVCacheBlock


class PrefixTree(BlockIndex):
    """A BlockIndex that also knows the children of every node.

    Hits may end inside a block, and half-filled last blocks (tails) are kept.

    Lookup, insertion and removal look at O(log n) of a node's n children, whatever tokens these share. Insertion and
    removal also shift the rest of a list: with 100,000 children that takes less than 0.1 ms.

    The tree is not told when the pool gives a block to another request, so some children are *stale*: their block's
    ``block_hash`` is None, or names other content. A lookup that finds a stale child removes it.
    """

    def __init__(self, block_pool: BlockPool, block_size: int) -> None:
        super().__init__(block_pool, block_size)
        #: Parent's key (for the first block of a text: its extra keys) → its children, sorted.
        self._children: dict[object, list[_Child]] = {}
        #: Block id → its entry in ``_children``. There is one entry per block, so stale children cannot pile up.
        self._places: dict[int, tuple[object, _Child]] = {}
        self._tickets = itertools.count()

    def match(self, token_ids: Sequence[int],
              extra_keys: tuple | None = None) -> PrefixMatch:  # type: ignore[type-arg]  # the published signature has it bare
        """Match whole blocks from the front, then as many tokens as possible of one more block.

        No owner is added and no count changes; the tree removes the stale children that it finds.
        """
        blocks = self._match_blocks(token_ids, extra_keys)
        num_whole = len(blocks) * self.block_size
        rest = token_ids[num_whole:num_whole + self.block_size]
        partial, num_partial = self._longest_child(key_of(blocks[-1]) if blocks else None, rest, extra_keys)
        return PrefixMatch(blocks, partial, num_partial, num_whole + num_partial)

    def _longest_child(self, parent: BlockHash | None, rest: Sequence[int],
                       extra_keys: ExtraKeys) -> tuple[KVCacheBlock | None, int]:
        """Return the child of ``parent`` that shares the most tokens with ``rest``, and how many it shares.

        If several children share equally many tokens, the oldest is taken, because a block that the current step has
        yet to write cannot be copied. If one of these children contains only the shared tokens, a request may even
        extend it without a copy. Such a child is always the oldest of them: a tail is not inserted if another child
        already begins with it.
        """
        rest, siblings = tuple(rest), self._children.get(_place(parent, extra_keys), [])
        while True:
            index = bisect_left(siblings, (rest,))
            neighbours = siblings[max(index - 1, 0):index + 1]
            length = max((_num_shared(child.tokens, rest) for child in neighbours), default=0)
            if length == 0:
                return None, 0
            first = bisect_left(siblings, (rest[:length],))
            end = bisect_left(siblings, ((*rest[:length], math.inf),), first)  # no token id is this large
            child = min(siblings[first:min(end, first + MAX_EQUALS)], key=attrgetter("ticket"))
            if self._is_child(child, parent, extra_keys):
                return child.block, length
            self._remove(child.block.block_id)  # stale

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None,  # type: ignore[type-arg]  # the published signature has it bare
               with_tail: bool = False) -> None:
        """Make the blocks that hold the first ``num_tokens`` of ``token_ids`` findable.

        Blocks that are already findable stay as they are. A half-filled last block is inserted only ``with_tail``.
        """
        num_tokens = len(token_ids) if num_tokens is None else num_tokens
        end = num_tokens // self.block_size
        tail = token_ids[end * self.block_size:num_tokens] if with_tail else ()
        super().insert(token_ids, blocks, num_tokens, extra_keys)
        if len(tail):
            self._insert_tail(key_of(blocks[end - 1]) if end else None, tail, extra_keys, blocks[end])

    def _insert_one(self, parent: BlockHash | None, tokens: Sequence[int], extra_keys: ExtraKeys,
                    block: KVCacheBlock) -> BlockHash:
        """Index ``block`` and make it a child of ``parent`` only; an earlier entry of the block is removed."""
        key = super()._insert_one(parent, tokens, extra_keys, block)
        self._remove(block.block_id)
        place, child = _place(parent, extra_keys), _Child(key.token_ids, next(self._tickets), block)
        insort(self._children.setdefault(place, []), child)
        self._places[block.block_id] = place, child
        return key

    def _insert_tail(self, parent: BlockHash | None, tail: Sequence[int], extra_keys: ExtraKeys,
                     block: KVCacheBlock) -> None:
        """Index a half-filled block, unless a child of ``parent`` begins with all of ``tail``.

        Such a child is found already; a second one would only make lookups longer.
        """
        if self._longest_child(parent, tail, extra_keys)[1] < len(tail):
            self._insert_one(parent, tail, extra_keys, block)

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None) -> None:  # type: ignore[type-arg]  # the published signature has it bare
        """Keep the ``num_tokens`` computed tokens of a finished request findable, and drop its references."""
        self.insert(token_ids, blocks, num_tokens, extra_keys, with_tail=True)
        for block in blocks:
            if block.block_hash is None:
                self._remove(block.block_id)  # it may still have an entry from before this request owned it
        super().donate(token_ids, blocks, num_tokens, extra_keys)

    def evict(self, num_blocks: int) -> int:
        """Forget the content of up to ``num_blocks`` unused blocks, least recently used first, leaves first.

        The free queue is in that order: a request gives its last block back first. Return how many blocks were
        forgotten. This reads the whole free queue, O(free blocks). It is for tests and manual use; the engine does not
        call it.
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
        """Forget the content of all unused blocks and return their number."""
        return self.evict(self.block_pool.num_blocks)

    def clear(self) -> None:
        """Forget everything. Raise RuntimeError, with the number of blocks in use, while there are any."""
        super().clear()
        self._children, self._places = {}, {}

    @property
    def stats(self) -> PrefixTreeStats:
        """Counters of the tree, computed at each call: O(num_blocks)."""
        nodes = [(block, key) for block in self.block_pool.blocks if (key := key_of(block)) is not None]
        return PrefixTreeStats(num_nodes=len(nodes), num_tokens=sum(len(key.token_ids) for _, key in nodes),
                               num_nodes_in_use=len([block for block, _ in nodes if block.ref_cnt > 0]))

    def _is_child(self, child: _Child, parent: BlockHash | None, extra_keys: ExtraKeys) -> bool:
        """Check whether the block of ``child`` still holds the content it was inserted with."""
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
    """Return the length of the common prefix of two sequences."""
    for index, (mine, other) in enumerate(zip(tokens, others)):
        if mine != other:
            return index
    return min(len(tokens), len(others))
