"""The prefix tree: all cached content as one trie over physical blocks.

A node *is* a block, together with the tokens that the block holds. Its key is the chained BlockHash, which names its
parent. Its only reference count is the block's own. There is no second store: when a request finishes, its blocks keep
their hashes and so stay in the tree. When the pool gives a block to another request, that block leaves the tree.

    root ──▶ [once upon a time] ──▶ [there lived a king] ──▶ [who had three sons]     full blocks, found by hash
                                                       └───▶ [and no]                 a half-filled tail
    match("once upon a time there lived a king who was old"):
        blocks 1 and 2 whole, and one token ("who") of block 3

The pool finds a full block by its key. The tree adds a list of each node's children, sorted by their tokens, so that a
match can end *inside* a block. In this order, the children that share the most tokens with a text are next to the
position where the text itself would be inserted. That holds for any number of children:

    [1 7 4 2]  [1 7 5]  [1 7 5 3]  [1 7 5 8]  [1 9 0 6]         1 7 5 6 would be inserted before [1 7 5 8]; it shares
               └────── begin with 1 7 5 ─────┘                  3 tokens with that child, and no child shares more
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

    #: The blocks in which every token matches.
    blocks: list[KVCacheBlock]
    #: One more block, whose first ``num_partial_tokens`` tokens match.
    partial_block: KVCacheBlock | None
    num_partial_tokens: int
    #: The length of the match: the tokens of ``blocks`` plus ``num_partial_tokens``.
    num_tokens: int


@dataclass(frozen=True)
class PrefixTreeStats:
    num_nodes: int
    num_tokens: int
    #: The number of nodes whose block is in use. They cannot be evicted.
    num_nodes_in_use: int


class _Child(NamedTuple):
    """A block that was hung under a parent. Children are compared as tuples: first by their tokens."""

    tokens: tuple[int, ...]
    block_id: int
    block: KVCacheBlock


class PrefixTree:
    """The cached blocks as a tree. A node is a block with a ``block_hash``.

    The pool finds a node by its key. The tree finds it among the children of its parent.

    ``extra_keys`` (for example, a tenant's salt) are part of every key. Equal texts with different extra keys never
    match each other. None and () both mean that there are no extra keys.
    """

    def __init__(self, block_pool: BlockPool, block_size: int) -> None:
        self.block_pool = block_pool
        self.block_size = block_size
        #: A parent's key → its children, sorted. First blocks have no parent: their extra keys are used instead.
        self._children: dict[object, list[_Child]] = {}
        #: Block id → its place in ``_children``. Each block hangs in one place only, so stale children cannot pile up.
        self._places: dict[int, tuple[object, _Child]] = {}

    # ---- given: which block hangs where

    def _hang(self, block: KVCacheBlock, parent: BlockHash | None, tokens: Sequence[int],
              extra_keys: tuple | None) -> None:
        """Hang ``block``, which holds ``tokens``, under ``parent``; take it down from its old place first. Given."""
        self._take_down(block.block_id)
        place, child = _place(parent, extra_keys), _Child(tuple(tokens), block.block_id, block)
        insort(self._children.setdefault(place, []), child)
        self._places[block.block_id] = place, child

    def _take_down(self, block_id: int) -> None:
        """Take a block down from its place in the tree, if it has one. Given."""
        if block_id in self._places:
            place, child = self._places.pop(block_id)
            siblings = self._children[place]
            del siblings[bisect_left(siblings, child)]
            if not siblings:
                del self._children[place]

    def _hanging_under(self, parent: BlockHash | None, extra_keys: tuple | None) -> list[_Child]:
        """Return the children that were hung under ``parent``, sorted by their tokens. Given.

        The result is the tree's own list, not a copy. ``_take_down`` shortens it; do not change it in any other way.

        The pool does not tell the tree when it gives a block to another request, so some children may be *stale*: the
        ``block_hash`` of their block is None, or names another text. Take down each stale child that you meet, so that
        no later lookup meets it.
        """
        return self._children.get(_place(parent, extra_keys), [])

    # ---- Tasks 1 and 3: look up

    def match(self, token_ids: Sequence[int], extra_keys: tuple | None = None) -> PrefixMatch:
        """Find the longest cached prefix of ``token_ids``.

        In Task 1 the match ends with a whole block. Task 3 adds a part of one more block.

        The key of a block is ``BlockHash(parent's key, its tokens, extra_keys)``; a first block has the parent None.
        ``get_cached_block`` finds a block by its key and proves the match: it compares the two keys, then their
        parents, and so on, until both keys have the same parent *object*.

        After:
        - the pool is unchanged: no block is touched, no count changes, and the free queue keeps its order
        - finding the last block of a long text costs no more than finding the first
        Returns:
        - ``blocks``: the whole blocks of ``token_ids`` that the pool finds, from the front up to the first miss
        - ``partial_block``: the child of the last whole block (of the root, if there is none) that shares the longest
          prefix with the tokens that follow; None if no child shares a token
        - ``num_partial_tokens``: the number of tokens that ``partial_block`` shares; 0 if it is None
        - if several children share the same number of tokens: a child that holds only the shared tokens, so that the
          request that adopts it can append without a copy
        - ``num_tokens``: at most ``len(token_ids)``; all of ``token_ids`` may match

        Example::

            >>> pool = BlockPool(9)
            >>> tree = PrefixTree(pool, block_size=4)
            >>> tree.donate([1, 2, 3, 4, 5, 6, 7, 8], pool.get_new_blocks(2))
            >>> found = tree.match([1, 2, 3, 4, 5, 6, 70, 71])
            >>> [block.block_id for block in found.blocks], found.partial_block.block_id, found.num_tokens
            ([1], 2, 6)
        """
        # TASK 1: PrefixTree.match
        size = self.block_size
        blocks: list[KVCacheBlock] = []
        parent = None
        while (len(blocks) + 1) * size <= len(token_ids):
            tokens = token_ids[len(blocks) * size:(len(blocks) + 1) * size]
            block = self.block_pool.get_cached_block(BlockHash(parent, tokens, extra_keys))
            if block is None:
                break
            blocks.append(block)
            parent = block.block_hash
        rest = token_ids[len(blocks) * size:(len(blocks) + 1) * size]
        partial, num_partial = self._longest_child(parent, rest, extra_keys)
        return PrefixMatch(blocks, partial, num_partial, len(blocks) * size + num_partial)
        # END TASK

    # ---- Task 2: making full blocks findable

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None, with_tail: bool = False) -> None:
        """Make the blocks that hold the first ``num_tokens`` of ``token_ids`` findable; the default is all tokens.

        ``blocks`` is a request's table: ``blocks[i]`` holds the tokens from ``i * block_size`` on. Tokens beyond
        ``num_tokens`` exist, but their K/V is not written. ``_insert_one`` indexes one block. ``_insert_tail`` (Task 4)
        indexes the tokens that remain after the full blocks. ``insert`` is called for every decoded token.

        After:
        - every block that the first ``num_tokens`` tokens fill is found by its key; the parent in that key is the key
          of the block before it
        - if a block has a twin (another block with the same content), it has the twin's key *object*, and both are
          found
        - a block that is full now has a key of all its tokens, even if its old key named fewer than ``block_size``
          (Task 4)
        - if ``with_tail``, the remaining tokens, which fill no block, are found under a key of just these tokens
        - but if another block already holds these remaining tokens, the block of ``blocks`` that holds them gets no key
        - no token beyond ``num_tokens`` is found; without ``with_tail``, the remaining tokens are not found either
        - only blocks after the last block that had a full key are visited, not the whole table from the front

        Example::

            >>> pool = BlockPool(9)
            >>> tree, table = PrefixTree(pool, block_size=4), pool.get_new_blocks(3)
            >>> tree.insert([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], table)
            >>> [block.block_hash and block.block_hash.token_ids for block in table]
            [(1, 2, 3, 4), (5, 6, 7, 8), None]
        """
        # TASK 2: PrefixTree.insert
        size = self.block_size
        num_tokens = len(token_ids) if num_tokens is None else num_tokens
        end = num_tokens // size
        start = end
        while start > 0 and (blocks[start - 1].block_hash is None
                             or len(blocks[start - 1].block_hash.token_ids) < size):
            start -= 1
        parent = blocks[start - 1].block_hash if start else None
        for index in range(start, end):
            parent = self._insert_one(parent, token_ids[index * size:(index + 1) * size], extra_keys, blocks[index])
        tail = token_ids[end * size:num_tokens]
        if with_tail and len(tail):
            self._insert_tail(parent, tail, extra_keys, blocks[end])
        # END TASK

    def _insert_one(self, parent: BlockHash | None, tokens: Sequence[int], extra_keys: tuple | None,
                    block: KVCacheBlock) -> BlockHash:
        """Index ``block``, which holds ``tokens`` after ``parent``, and return its key.

        After:
        - the pool finds ``block`` by its key, and ``block`` hangs under ``parent`` (``_hang``)
        - if the pool has a twin (another block with the same content), both blocks have the twin's key *object*: all
          twins share one chain
        - a block that was indexed with fewer tokens, and has grown since, has the longer key (Task 4); the pool refuses
          to give a block a second key

        Example: block 1 is found as 1 2 3 4. ``_insert_one(None, [1, 2, 3, 4], None, block 7)`` returns the key object
        of block 1, and block 7 has the same key object.
        """
        # TASK 2: PrefixTree._insert_one
        key = BlockHash(parent, tokens, extra_keys)
        twin = self.block_pool.get_cached_block(key)
        if twin is not None:
            key = twin.block_hash
        if block.block_hash is not None and block.block_hash != key:
            self.block_pool.evict_blocks([block.block_id])
        self.block_pool.cache_full_blocks([block], [key])
        self._hang(block, parent, tokens, extra_keys)
        return key
        # END TASK

    # ---- Task 3: inside a block

    def _is_child(self, child: _Child, parent: BlockHash | None, extra_keys: tuple | None) -> bool:
        """Check whether the block of ``child`` still holds ``child.tokens`` after ``parent``.

        The block was hung under ``parent`` at some time. Its ``block_hash`` says what it holds now. A key without extra
        keys always has None as its ``extra_keys``, never ().

        Returns:
        - True if the key names exactly these tokens, a parent equal to ``parent``, and these extra keys
        - False if the key is None: the pool gave the block to another request, or forgot its content
        - False if the key names another token at some position: the block holds another text now
        - False if the key names another parent
        - False if the key names other extra keys

        Example: block 2 was hung as 5 6 7 8 after 1 2 3 4. Then the pool gave it to another request, and now it is
        found as 5 6 7 8 after 9 9 9 9. The result is False.
        """
        # TASK 3: PrefixTree._is_child
        key = child.block.block_hash
        if key is None or key.token_ids != child.tokens:
            return False
        return key.parent == parent and key.extra_keys == (extra_keys or None)
        # END TASK

    def _longest_child(self, parent: BlockHash | None, rest: Sequence[int],
                       extra_keys: tuple | None) -> tuple[KVCacheBlock | None, int]:
        """Find the child of ``parent`` whose tokens share the longest prefix with ``rest``.

        The list of ``_hanging_under`` is sorted. The picture at the top of this file shows where to look in it.

        After:
        - each stale child that this lookup meets is taken down (``_take_down``), so that no later lookup meets it
        - of n children that are not stale, it looks at O(log n), even if they all begin with the same tokens
        Returns:
        - the block of that child, and the number of tokens it shares; stale children (``_is_child``) are skipped
        - if several children share the same number of tokens: a child that holds *only* the shared tokens, so that
          the request that adopts it can append without a copy
        - ``(None, 0)`` if ``rest`` is empty or no child begins with its first token

        Example: the children are [1 7 4 2], [1 7 5] and [1 7 5 3]. For 1 7 5 6, return the block of [1 7 5], and 3.
        """
        # TASK 3: PrefixTree._longest_child
        rest, siblings = tuple(rest), self._hanging_under(parent, extra_keys)
        while siblings:
            index = bisect_left(siblings, (rest,))
            neighbours = siblings[max(index - 1, 0):index + 1]
            length = max(_num_shared(child.tokens, rest) for child in neighbours)
            if length == 0:
                break
            child = siblings[bisect_left(siblings, (rest[:length],))]
            if self._is_child(child, parent, extra_keys):
                return child.block, length
            self._take_down(child.block_id)
        return None, 0
        # END TASK

    # ---- Task 4: the half-filled tail

    def _insert_tail(self, parent: BlockHash | None, tail: Sequence[int], extra_keys: tuple | None,
                     block: KVCacheBlock) -> None:
        """Index ``block``, which holds ``tail`` after ``parent`` and has room left, under a key of just these tokens.

        If a child of ``parent`` begins with all of ``tail``, the tail can be found already, and ``block`` gets no key:
        a second block with the same tokens would only make lookups slower.
        A block that was indexed with fewer tokens, and has grown since, gets the longer key (``_insert_one``).
        """
        # TASK 4: PrefixTree._insert_tail
        if self._longest_child(parent, tail, extra_keys)[1] < len(tail):
            self._insert_one(parent, tail, extra_keys, block)
        # END TASK

    # ---- Task 5

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None) -> None:
        """Free the blocks of a finished request, and keep its first ``num_tokens`` tokens, which have K/V, findable.

        After:
        - the first ``num_tokens`` tokens (by default all), including the half-filled tail, are found, and no others
        - every block in ``blocks`` has one owner less, including the blocks after the last token
        - the last block was freed first, so that the head of a text, which other texts share, is evicted last
        - ``blocks``, the caller's list, is unchanged

        Example::

            >>> pool = BlockPool(6)
            >>> PrefixTree(pool, block_size=4).donate([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], pool.get_new_blocks(3))
            >>> [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
            [4, 5, 3, 2, 1]
        """
        # TASK 5: PrefixTree.donate
        self.insert(token_ids, blocks, num_tokens, extra_keys, with_tail=True)
        self.block_pool.free_blocks(reversed(blocks))
        # END TASK

    # ---- Task 6

    def evict(self, num_blocks: int) -> int:
        """Forget the content of up to ``num_blocks`` free blocks, leaves before their parents.

        After:
        - the ``num_blocks`` least recently used of the free blocks with a key (all of them, if there are fewer) have
          lost their keys
        - blocks in use are unchanged
        - the free queue is in the same order
        Returns:
        - the number of blocks whose content was forgotten; free blocks without a key do not count

        Example: the free queue is 4 5 3 2 1, and blocks 1, 2 and 3 hold a text. ``evict(2)`` forgets blocks 3 and 2.
        """
        # TASK 6: PrefixTree.evict
        unused = [block.block_id for block in self.block_pool.free_block_queue.get_all_free_blocks()
                  if block.block_hash is not None]
        victims = unused[:num_blocks]
        self.block_pool.evict_blocks(victims)
        return len(victims)
        # END TASK

    def evict_unused(self) -> int:
        """Forget the content of all free blocks. Return the number of blocks whose content was forgotten."""
        # TASK 6: PrefixTree.evict_unused
        return self.evict(self.block_pool.num_blocks)
        # END TASK

    # ---- Task 7

    def clear(self) -> None:
        """Forget all cached content, in the pool and in the tree.

        Raises RuntimeError while blocks are in use, with their number in the message
        (``block_pool.reset_prefix_cache`` raises it); nothing changes then.
        """
        # TASK 7: PrefixTree.clear
        self.block_pool.reset_prefix_cache()
        self._children = {}
        self._places = {}
        # END TASK

    @property
    def stats(self) -> PrefixTreeStats:
        """The number of nodes, the number of tokens that they hold, and the number of nodes in use.

        Each call counts again, over all blocks of the pool, in O(num_blocks). A node is a block with a ``block_hash``.
        """
        # TASK 7: PrefixTree.stats
        nodes = [block for block in self.block_pool.blocks if block.block_hash is not None]
        return PrefixTreeStats(num_nodes=len(nodes),
                               num_tokens=sum(len(block.block_hash.token_ids) for block in nodes),
                               num_nodes_in_use=sum(block.ref_cnt > 0 for block in nodes))
        # END TASK


def _place(parent: BlockHash | None, extra_keys: tuple | None) -> object:
    """Return the key of ``_children`` for a parent. First blocks have no parent; their extra keys take its place."""
    return parent if parent is not None else ("root", extra_keys or None)


def _num_shared(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Count the first tokens that both sequences have in common, up to the first difference or the end of either."""
    # TASK 3: _num_shared
    length = 0
    while length < min(len(tokens), len(others)) and tokens[length] == others[length]:
        length += 1
    return length
    # END TASK
