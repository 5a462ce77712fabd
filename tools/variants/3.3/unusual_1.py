"""The prefix tree: what is cached, as one trie over physical blocks.

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
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mini_vllm.block_pool import BlockHash, BlockPool, KVCacheBlock


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
    num_nodes: int
    num_tokens: int
    #: Nodes whose block is in use, and so cannot be evicted.
    num_nodes_in_use: int


class _Child(NamedTuple):
    """A block that was hung under a parent. Children compare as tuples do: by their tokens first."""

    tokens: tuple[int, ...]
    block_id: int
    block: KVCacheBlock


class PrefixTree:
    """A node is a block with a ``block_hash``; the pool finds it by that key, the tree among its parent's children.

    ``extra_keys`` (a tenant's salt, say) are part of every key. Equal texts with different extra keys never meet.
    """

    def __init__(self, block_pool: BlockPool, block_size: int) -> None:
        self.block_pool = block_pool
        self.block_size = block_size
        #: Parent's key (for the first block of a text: its extra keys) → its children, sorted.
        self._children: dict[object, list[_Child]] = {}
        #: Block id → where it hangs in ``_children``. A block hangs in one place, so what is stale cannot pile up.
        self._places: dict[int, tuple[object, _Child]] = {}

    # ---- given: who hangs where

    def _hang(self, block: KVCacheBlock, parent: BlockHash | None, tokens: Sequence[int],
              extra_keys: tuple | None) -> None:
        """Make ``block``, which holds ``tokens``, a child of ``parent``; where it hung before, it hangs no more. Given.
        """
        self._take_down(block.block_id)
        place, child = _place(parent, extra_keys), _Child(tuple(tokens), block.block_id, block)
        insort(self._children.setdefault(place, []), child)
        self._places[block.block_id] = place, child

    def _take_down(self, block_id: int) -> None:
        """Let a block hang nowhere. Harmless if it does. Given."""
        if block_id in self._places:
            place, child = self._places.pop(block_id)
            siblings = self._children[place]
            del siblings[bisect_left(siblings, child)]
            if not siblings:
                del self._children[place]

    def _hanging_under(self, parent: BlockHash | None, extra_keys: tuple | None) -> list[_Child]:
        """The children that were hung under ``parent``, sorted by their tokens. Given.

        It is the tree's own list: ``_take_down`` takes out of it, nobody else changes it.

        Nobody tells the tree when the pool gives a block to someone else, so some of them may be *stale*: their
        block's ``block_hash`` is None, or says that it stands for something else now.
        """
        return self._children.get(_place(parent, extra_keys), [])

    # ---- Tasks 1 and 3: looking

    def match(self, token_ids: Sequence[int], extra_keys: tuple | None = None) -> PrefixMatch:
        """The longest cached prefix of ``token_ids``. Only looks: no block is touched, no count changes.

        All of ``token_ids`` may match. That one token is left to compute is the manager's care: it does not ask for it.

        Task 1: walk whole blocks from the front. The key of a block is ``BlockHash(parent's key, its tokens,
        extra_keys)``, the first block's parent is None, and ``block_pool.get_cached_block(key)`` finds and proves it.
        Stop at the first miss, or when less than a whole block of tokens is left. As the next parent take the
        ``block_hash`` of the block that was found, not the equal key you have just made: chains shared by object are
        compared in one step, so the last block costs no more than the first. There is no partial block yet (None, 0).

        Task 3: then ask ``_longest_child`` how far the *next* tokens, at most ``block_size`` of them, go into one more
        block. The match is never longer than ``token_ids``.
        """
        walked = []
        def go(parent, depth):
            begin = depth * self.block_size
            tokens = token_ids[begin:begin + self.block_size]
            if len(tokens) == self.block_size:
                block = self.block_pool.get_cached_block(BlockHash(parent, tokens, extra_keys))
                if block is not None:
                    walked.append(block)
                    return block.block_hash
            return False
        parent, depth = None, 0
        while (key := go(parent, depth)) is not False:
            parent, depth = key, depth + 1
        last, count = self._longest_child(parent, token_ids[depth * self.block_size:][:self.block_size], extra_keys)
        return PrefixMatch(blocks=walked, partial_block=last, num_partial_tokens=count,
                           num_tokens=depth * self.block_size + count)

    # ---- Task 2: making full blocks findable

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None, with_tail: bool = False) -> None:
        """Make the blocks that hold the first ``num_tokens`` of ``token_ids`` findable; by default all of them.

        ``blocks`` is a request's table: ``blocks[i]`` holds the tokens from ``i * block_size`` on. Tokens beyond
        ``num_tokens`` exist, but their K/V is not written; they must not be found.

        Every block that ``num_tokens`` tokens fill goes through ``_insert_one``, each key the parent of the
        next. This is called for every token that is decoded, so do not start from the front: go back from the last
        full block to the nearest one that is indexed *as a full block* and go on from its ``block_hash``.

        If ``with_tail``, and tokens are left that do not fill a block, they go to ``_insert_tail`` (Task 4).
        """
        count = len(token_ids) if num_tokens is None else num_tokens
        num_full, num_left = divmod(count, self.block_size)
        missing, key = [], None
        for index in reversed(range(num_full)):
            known = blocks[index].block_hash
            if known is not None and len(known.token_ids) == self.block_size:
                key = known
                break
            missing.append(index)
        while missing:
            index = missing.pop()
            piece = tuple(token_ids[index * self.block_size + i] for i in range(self.block_size))
            key = self._insert_one(key, piece, extra_keys, blocks[index])
        if with_tail and num_left:
            self._insert_tail(key, tuple(token_ids[count - num_left:count]), extra_keys, blocks[num_full])

    def _insert_one(self, parent: BlockHash | None, tokens: Sequence[int], extra_keys: tuple | None,
                    block: KVCacheBlock) -> BlockHash:
        """Index ``block``, which holds ``tokens`` after ``parent``, and return its key.

        After: the pool finds it under its key (``cache_full_blocks``), and it hangs under ``parent`` (``_hang``).
        If the pool has a twin already, another block of the same content, then the twin's key *object* is used for
        this block too: one chain for all twins. Both stay findable.

        Task 4: a block that was indexed with fewer tokens, and has grown since, has a shorter key. The pool refuses a
        second one, so take the old one out first (``block_pool.evict_blocks``, by block id).
        """
        key = BlockHash(parent, tokens, extra_keys)
        twin = self.block_pool.get_cached_block(key)
        if twin is not None:
            key = twin.block_hash
        if block.block_hash is not None and block.block_hash != key:
            self.block_pool.evict_blocks([block.block_id])
        self.block_pool.cache_full_blocks([block], [key])
        self._hang(block, parent, tokens, extra_keys)
        return key

    # ---- Task 3: inside a block

    def _is_child(self, child: _Child, parent: BlockHash | None, extra_keys: tuple | None) -> bool:
        """Whether the block of ``child``, which was hung under ``parent`` once, holds its tokens after it *now*.

        Its ``block_hash`` tells: None means that it was given to someone else. A key of other tokens, of another
        parent, or with other extra keys, means that it stands for another text by now.
        No extra keys may be written as None or as (); a BlockHash always says None.
        """
        return child.block.block_hash == BlockHash(parent, child.tokens, extra_keys) if child.block.block_hash is not None else False

    def _longest_child(self, parent: BlockHash | None, rest: Sequence[int],
                       extra_keys: tuple | None) -> tuple[KVCacheBlock | None, int]:
        """The child of ``parent`` whose tokens share the longest beginning with ``rest``, and how many they share.

        ``(None, 0)`` if ``rest`` is empty or no child begins with its first token. Stale children are passed over and
        taken down: nobody meets them twice.
        Of children that share equally many, one that has no *further* tokens is better: its adopter may write on
        without a copy.

        Among n children that are not stale this looks at O(log n), however alike they begin: with a token that opens
        every text, all first blocks of the cache begin alike. ``_hanging_under`` is sorted; the picture at the top of
        this file says where to look.
        """
        rest = tuple(rest)
        while True:
            children = self._hanging_under(parent, extra_keys)
            low, high, depth = 0, len(children), 0
            while depth < len(rest):
                begin = bisect_left(children, (rest[:depth + 1],), low, high)
                end = bisect_left(children, (rest[:depth] + (rest[depth] + 1,),), begin, high)
                if begin == end:
                    break
                low, high, depth = begin, end, depth + 1
            if depth == 0:
                return None, 0
            if self._is_child(children[low], parent, extra_keys):
                return children[low].block, depth
            self._take_down(children[low].block_id)

    # ---- Task 4: the half-filled tail

    def _insert_tail(self, parent: BlockHash | None, tail: Sequence[int], extra_keys: tuple | None,
                     block: KVCacheBlock) -> None:
        """Index ``block``, which holds ``tail`` after ``parent`` and has room left, under a key of just these tokens.

        Unless a child of ``parent`` begins with all of ``tail``: then it is found already, and a second block would
        only be one more to look at.
        A block that was indexed with fewer tokens and has grown since is indexed anew: ``_insert_one`` sees to it.
        """
        _, num_shared = self._longest_child(parent, tail, extra_keys)
        if num_shared < len(tail):
            self._insert_one(parent, tail, extra_keys, block)

    # ---- Task 5

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None) -> None:
        """A request is done: its ``num_tokens`` computed tokens stay findable, its references go.

        After: all of ``num_tokens``, the half-filled tail included, can be matched; every block of ``blocks`` has one
        owner less; ``blocks`` itself, the caller's list, is as it was.
        The last block goes first, so that the head of a prompt, which most others share, is evicted last.
        """
        self.insert(token_ids, blocks, num_tokens=num_tokens, extra_keys=extra_keys, with_tail=True)
        for block in blocks[::-1]:
            self.block_pool.free_blocks([block])

    # ---- Task 6

    def evict(self, num_blocks: int) -> int:
        """Forget the content of up to ``num_blocks`` blocks nobody uses, least recently used first, leaves first.

        Returns how many were forgotten. A block in use is never among them, and free blocks that hold nothing cached
        do not count. The free queue is in the right order already: a request gives its last block back first.
        """
        num_forgotten = 0
        for block in self.block_pool.free_block_queue.get_all_free_blocks():
            if num_forgotten < num_blocks and block.block_hash is not None:
                self.block_pool.evict_blocks(iter((block.block_id,)))
                num_forgotten += 1
        return num_forgotten

    def evict_unused(self) -> int:
        """Forget all content that nobody uses. Returns how many blocks were forgotten."""
        return self.evict(len(self.block_pool.blocks))

    # ---- Task 7

    def clear(self) -> None:
        """Forget everything, in the pool and in the tree.

        Raises RuntimeError, which says how many, while any block is in use (``block_pool.reset_prefix_cache`` does);
        nothing changes then.
        """
        self.block_pool.reset_prefix_cache()
        self._children, self._places = {}, {}

    @property
    def stats(self) -> PrefixTreeStats:
        """How many nodes there are, how many tokens they stand for, and how many of them are in use.

        Counted over the pool's blocks at each call, O(num_blocks): a node is a block that has a ``block_hash``.
        """
        nodes = [block for block in self.block_pool.blocks if block.block_hash is not None]
        return PrefixTreeStats(num_nodes=len(nodes),
                               num_tokens=sum(len(block.block_hash.token_ids) for block in nodes),
                               num_nodes_in_use=sum(1 for block in nodes if block.ref_cnt > 0))


def _place(parent: BlockHash | None, extra_keys: tuple | None) -> object:
    """Under what a block's children are kept. First blocks of a text have no parent: there the extra keys decide."""
    return parent if parent is not None else ("root", extra_keys or None)


def _num_shared(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens the two have in common at their beginning, up to the first that differs or the end of one."""
    from itertools import takewhile
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, others)))
