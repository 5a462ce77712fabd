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

    ``extra_keys`` (a tenant's salt, say) are part of every key. Equal texts with different extra keys never meet. None
    and () both mean that there are none.
    """

    def __init__(self, block_pool: BlockPool, block_size: int) -> None:
        self.block_pool = block_pool
        self.block_size = block_size
        #: Parent's key (for the first block of a text: its extra keys) → its children, sorted.
        self._children: dict[object, list[_Child]] = {}
        #: Block id → where it hangs in ``_children``. A block hangs in one place, so stale children cannot pile up.
        self._places: dict[int, tuple[object, _Child]] = {}

    # ---- given: which block hangs where

    def _hang(self, block: KVCacheBlock, parent: BlockHash | None, tokens: Sequence[int],
              extra_keys: tuple | None) -> None:
        """Hang ``block``, which holds ``tokens``, under ``parent``, and take it down from where it hung. Given."""
        self._take_down(block.block_id)
        place, child = _place(parent, extra_keys), _Child(tuple(tokens), block.block_id, block)
        insort(self._children.setdefault(place, []), child)
        self._places[block.block_id] = place, child

    def _take_down(self, block_id: int) -> None:
        """Take a block down from where it hangs, if it hangs anywhere. Given."""
        if block_id in self._places:
            place, child = self._places.pop(block_id)
            siblings = self._children[place]
            del siblings[bisect_left(siblings, child)]
            if not siblings:
                del self._children[place]

    def _hanging_under(self, parent: BlockHash | None, extra_keys: tuple | None) -> list[_Child]:
        """The children that were hung under ``parent``, sorted by their tokens. Given.

        It is the tree's own list, which ``_take_down`` shortens; change it in no other way.

        The pool does not tell the tree when it gives a block out again, so some of the children may be *stale*: their
        block's ``block_hash`` is None, or names another text. Take down those that you meet, so that each is met once.
        """
        return self._children.get(_place(parent, extra_keys), [])

    # ---- Tasks 1 and 3: looking

    def match(self, token_ids: Sequence[int], extra_keys: tuple | None = None) -> PrefixMatch:
        """Find the longest cached prefix of ``token_ids``. In Task 1 it ends with a whole block; Task 3 adds a part.

        The key of a block is ``BlockHash(parent's key, its tokens, extra_keys)``; the parent of a first block is None.
        ``get_cached_block`` finds a block by its key and proves it: two keys are compared back through their ancestors,
        until both have the same parent *object*.

        After:
        - the pool is as it was: no block is touched, no count changes, and the free queue keeps its order
        - to find the last block of a long text costs no more than to find the first
        Returns:
        - ``blocks``: the whole blocks of ``token_ids`` that the pool finds, from the front up to the first miss
        - ``partial_block``: the child of the last of them (of the root, if there are none) that shares the longest
          beginning with the tokens that follow, ``num_partial_tokens`` of them; None and 0 if no child shares any
        - if several share equally many: one without further tokens, so that its adopter can write on without a copy
        - ``num_tokens``: at most ``len(token_ids)``; all of ``token_ids`` may match

        Example::

            >>> pool = BlockPool(9)
            >>> tree = PrefixTree(pool, block_size=4)
            >>> tree.donate([1, 2, 3, 4, 5, 6, 7, 8], pool.get_new_blocks(2))
            >>> found = tree.match([1, 2, 3, 4, 5, 6, 70, 71])
            >>> [block.block_id for block in found.blocks], found.partial_block.block_id, found.num_tokens
            ([1], 2, 6)
        """
        raise NotImplementedError("Task 1: PrefixTree.match")

    # ---- Task 2: making full blocks findable

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None, with_tail: bool = False) -> None:
        """Make the blocks that hold the first ``num_tokens`` of ``token_ids`` findable; by default all of them.

        ``blocks`` is a request's table: ``blocks[i]`` holds the tokens from ``i * block_size`` on. Tokens beyond
        ``num_tokens`` exist, but their K/V is not written. ``_insert_one`` indexes a block, ``_insert_tail`` (Task 4)
        what is left after the full ones. This is called for every token that is decoded.

        After:
        - every block that ``num_tokens`` tokens fill is found by its key; its parent is the key of the block before it
        - a block with a twin, another block of the same content, has the twin's key *object*, and both are found
        - a block whose key named fewer than ``block_size`` tokens, and that is full now, has the longer key (Task 4)
        - if ``with_tail``, the tokens that fill no block are found, too, under a key of just these tokens
        - but if they are found in another block already, their block gets no key
        - no token beyond ``num_tokens`` is found, and without ``with_tail`` none that fills no block
        - only blocks after the last one that had a full key are visited, not the table from its front

        Example::

            >>> pool = BlockPool(9)
            >>> tree, table = PrefixTree(pool, block_size=4), pool.get_new_blocks(3)
            >>> tree.insert([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], table)
            >>> [block.block_hash and block.block_hash.token_ids for block in table]
            [(1, 2, 3, 4), (5, 6, 7, 8), None]
        """
        raise NotImplementedError("Task 2: PrefixTree.insert")

    def _insert_one(self, parent: BlockHash | None, tokens: Sequence[int], extra_keys: tuple | None,
                    block: KVCacheBlock) -> BlockHash:
        """Index ``block``, which holds ``tokens`` after ``parent``, and return its key.

        After:
        - the pool finds ``block`` by its key, and ``block`` hangs under ``parent`` (``_hang``)
        - if the pool has a twin, another block of the same content, both have the twin's key *object*: one chain for
          all twins
        - a block that was indexed with fewer tokens, and has grown since, has the longer key (Task 4); the pool refuses
          to give a block a second key

        Example: block 1 is found as 1 2 3 4. ``_insert_one(None, [1, 2, 3, 4], None, block 7)`` returns the key object
        of block 1, and block 7 has it, too.
        """
        raise NotImplementedError("Task 2: PrefixTree._insert_one")

    # ---- Task 3: inside a block

    def _is_child(self, child: _Child, parent: BlockHash | None, extra_keys: tuple | None) -> bool:
        """Whether the block of ``child``, which was hung under ``parent`` once, still holds ``child.tokens`` after it.

        Its ``block_hash`` tells. Without extra keys, that always says None for them, and never ().

        Returns:
        - True if that key names just these tokens, a parent equal to ``parent``, and these extra keys
        - False if it is None: the pool has given the block out again, or has forgotten its content
        - False if it names another token in the place of one of these: the block holds another text now
        - False if it names another parent
        - False if it names other extra keys

        Example: block 2 was hung as 5 6 7 8 after 1 2 3 4. The pool gave it out again, and it is found as 5 6 7 8 after
        9 9 9 9: False.
        """
        raise NotImplementedError("Task 3: PrefixTree._is_child")

    def _longest_child(self, parent: BlockHash | None, rest: Sequence[int],
                       extra_keys: tuple | None) -> tuple[KVCacheBlock | None, int]:
        """Find the child of ``parent`` whose tokens share the longest beginning with ``rest``.

        ``_hanging_under`` is sorted. The picture at the top of this file says where to look.

        After:
        - a stale child that it meets is taken down (``_take_down``): no later lookup meets it again
        - of n children that are not stale, it looks at O(log n), however alike they begin
        Returns:
        - the block of that child, and how many tokens it shares; stale children (``_is_child``) are passed over
        - if several share equally many: one that has no *further* tokens, so that its adopter can write on without a
          copy
        - ``(None, 0)`` if ``rest`` is empty or no child begins with its first token

        Example: the children are [1 7 4 2], [1 7 5] and [1 7 5 3]. For 1 7 5 6 it returns the block of [1 7 5], and 3.
        """
        raise NotImplementedError("Task 3: PrefixTree._longest_child")

    # ---- Task 4: the half-filled tail

    def _insert_tail(self, parent: BlockHash | None, tail: Sequence[int], extra_keys: tuple | None,
                     block: KVCacheBlock) -> None:
        """Index ``block``, which holds ``tail`` after ``parent`` and has room left, under a key of just these tokens.

        If a child of ``parent`` begins with all of ``tail``, the tail is found already, and ``block`` gets no key for
        it: a second block would only be one more to look at.
        A block that was indexed with fewer tokens and has grown since gets a longer key (``_insert_one``).
        """
        raise NotImplementedError("Task 4: PrefixTree._insert_tail")

    # ---- Task 5

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: tuple | None = None) -> None:
        """A request is done: its ``num_tokens`` computed tokens stay findable, its references go.

        After:
        - the first ``num_tokens`` tokens (by default all), the half-filled tail included, are found, and no others
        - every block of ``blocks`` has one owner less, also those after the last token
        - the last block was freed first, so that the head of a text, which other texts share, is evicted last
        - ``blocks``, the caller's list, is as it was

        Example::

            >>> pool = BlockPool(6)
            >>> PrefixTree(pool, block_size=4).donate([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], pool.get_new_blocks(3))
            >>> [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
            [4, 5, 3, 2, 1]
        """
        raise NotImplementedError("Task 5: PrefixTree.donate")

    # ---- Task 6

    def evict(self, num_blocks: int) -> int:
        """Forget the content of up to ``num_blocks`` free blocks, leaves before their parents.

        After:
        - of the free blocks with a key, the ``num_blocks`` least recently used ones (all, if there are fewer) have none
        - blocks in use are as they were
        - the free queue is in the same order
        Returns:
        - how many were forgotten; free blocks without a key do not count

        Example: the free queue is 4 5 3 2 1, and blocks 1, 2 and 3 hold a text. ``evict(2)`` forgets blocks 3 and 2.
        """
        raise NotImplementedError("Task 6: PrefixTree.evict")

    def evict_unused(self) -> int:
        """Forget the content of all free blocks. Returns how many blocks were forgotten."""
        raise NotImplementedError("Task 6: PrefixTree.evict_unused")

    # ---- Task 7

    def clear(self) -> None:
        """Forget everything, in the pool and in the tree.

        Raises RuntimeError while blocks are in use, with their number in the message
        (``block_pool.reset_prefix_cache`` does so); nothing changes then.
        """
        raise NotImplementedError("Task 7: PrefixTree.clear")

    @property
    def stats(self) -> PrefixTreeStats:
        """How many nodes there are, how many tokens they stand for, and how many of them are in use.

        Counted over the pool's blocks at each call, O(num_blocks): a node is a block that has a ``block_hash``.
        """
        raise NotImplementedError("Task 7: PrefixTree.stats")


def _place(parent: BlockHash | None, extra_keys: tuple | None) -> object:
    """Under what a block's children are kept. First blocks of a text have no parent: there the extra keys decide."""
    return parent if parent is not None else ("root", extra_keys or None)


def _num_shared(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens the two have in common at their beginning, up to the first that differs or the end of one."""
    raise NotImplementedError("Task 3: _num_shared")
