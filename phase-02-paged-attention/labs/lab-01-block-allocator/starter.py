"""The block allocator: blocks, the queue of free blocks, and the pool that allocates blocks and finds them again.

    given out                        free, oldest first
    ┌───────────────┐   free_blocks   ┌──────────────────────────────┐
    │ ref_cnt >= 1  │ ──────────────▶ │ head ⇄ 7 ⇄ 3 ⇄ 9 ⇄ … ⇄ tail  │
    └───────────────┘ ◀────────────── └──────────────────────────────┘
                      get_new_blocks: from the left (evicts the old content)
                      touch: from anywhere  (uses the content again)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class KVCacheBlock:
    """One block of the KV cache: its id, its number of owners, and the hash of its content."""

    block_id: int
    ref_cnt: int = 0
    #: Set while the block is in the index. Only full blocks are indexed.
    block_hash: Hashable | None = None
    is_null: bool = False
    #: Links of the free queue. Only the queue may change them. Both are None while the block is not in the queue.
    prev_free: KVCacheBlock | None = None
    next_free: KVCacheBlock | None = None

    def reset_hash(self) -> None:
        """Forget the content of the block. After: ``block_hash`` is None, everything else is unchanged."""
        raise NotImplementedError("Task 1: KVCacheBlock.reset_hash")

    def __repr__(self) -> str:  # the generated __repr__ would follow the links through the queue
        links = [None if b is None else b.block_id for b in (self.prev_free, self.next_free)]
        return (f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, block_hash={self.block_hash}, "
                f"is_null={self.is_null}, prev_free={links[0]}, next_free={links[1]})")


class FreeKVCacheBlockQueue:
    """Free blocks in the order they will be reused, oldest first.

    A deque would be O(1) at both ends, but a prefix hit removes a block from the *middle*. Links stored on the blocks
    make that O(1) and need no allocation. The queue always contains a fake head and a fake tail, so that no operation
    needs a special case for the ends:

        head ⇄ 4 ⇄ 7 ⇄ 2 ⇄ tail          empty: head ⇄ tail

    A block that is not in the queue has both links None. However long the queue is, every method except
    ``get_all_free_blocks`` costs O(1) per block that it adds or removes.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self._head = KVCacheBlock(block_id=-1)
        self._tail = KVCacheBlock(block_id=-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        for block in blocks:
            self.append(block)

    def append(self, block: KVCacheBlock) -> None:
        """Add ``block`` at the end, just before the fake tail: it will be reused last. O(1).

        After: ``block`` is linked in both directions between the old last block (or the fake head) and the fake tail,
        and the count is 1 higher. Raises RuntimeError if ``block`` is already in a queue; nothing changes then.
        """
        raise NotImplementedError("Task 1: FreeKVCacheBlockQueue.append")

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return all free blocks in a new list, oldest first. The queue does not change. O(n)."""
        raise NotImplementedError("Task 1: FreeKVCacheBlockQueue.get_all_free_blocks")

    def remove(self, block: KVCacheBlock) -> None:
        """Unlink ``block`` from any place in the queue, in O(1).

        After: its neighbours point at each other, both links of ``block`` are None, and the count is 1 lower.
        Raises RuntimeError if ``block`` is not in a queue; nothing changes then.
        """
        raise NotImplementedError("Task 2: FreeKVCacheBlockQueue.remove")

    def popleft(self) -> KVCacheBlock:
        """Remove the oldest free block from the queue and return it. Raises ValueError if the queue is empty."""
        raise NotImplementedError("Task 3: FreeKVCacheBlockQueue.popleft")

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Remove the ``n`` oldest free blocks from the queue and return them, oldest first.

        Raises ValueError if ``n`` is negative or fewer than ``n`` blocks are free; no block is removed then.
        """
        raise NotImplementedError("Task 3: FreeKVCacheBlockQueue.popleft_n")

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append ``blocks`` in order. Two different blocks never have the same ``block_id``.

        Raises RuntimeError if a block is already in a queue or occurs twice in ``blocks``; no block is appended then.
        """
        raise NotImplementedError("Task 3: FreeKVCacheBlockQueue.append_n")


def hash_block_tokens(parent_hash: int | None, token_ids: Iterable[int], extra_keys: tuple | None = None) -> int:
    """Hash one full block *in its context*: the parent's hash represents all tokens before the block.

    ``parent_hash`` is the hash of the previous block in the sequence, or None for the first block; 0 is a valid hash.
    Extra keys, such as the name of a tenant or an adapter, give equal tokens different hashes.

    Returns:
    - without extra keys (None or empty): ``hash((parent_hash, tuple(token_ids)))``
    - with extra keys, given as a tuple or a list: ``hash((parent_hash, tuple(token_ids), tuple(extra_keys)))``

    Example::

        >>> hash_block_tokens(7, [1, 2]) == hash((7, (1, 2)))
        True
    """
    raise NotImplementedError("Task 4: hash_block_tokens")


class BlockPool:
    """All blocks of one model's KV cache. The pool counts the owners of each block, and finds full blocks by hash.

    Every method does all its checks before its first write: a call that raises has changed nothing. However large the
    pool is, every method except ``reset_prefix_cache`` and ``check_integrity`` costs O(1) per block that is passed to
    it or returned by it.
    """

    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}, must be at least 1: block 0 is the null block")
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        #: Block 0 pads block tables. It is never given out, never freed, and does not count towards usage.
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True
        #: Hash → the blocks that hold this content, by block id. Two requests that compute the same block at the same
        #: time produce twins; either twin may serve a hit.
        self._cached: dict[Hashable, dict[int, KVCacheBlock]] = {}
        #: The number of blocks with cached content that were given out again. Each twin counts as one.
        self.num_evictions = 0

    def get_num_free_blocks(self) -> int:
        """Return the number of blocks that can be given out now."""
        raise NotImplementedError("Task 5: BlockPool.get_num_free_blocks")

    def get_usage(self) -> float:
        """Return the fraction of the pool that is in use, from 0.0 to 1.0.

        Leave the null block out of numerator and denominator. The result is 0.0 for a pool with only the null block.
        """
        raise NotImplementedError("Task 5: BlockPool.get_usage")

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Give out the ``n`` blocks that have been free longest.

        This is the only method that evicts cached content to make room. Call ``_maybe_evict`` only for a block that has
        a hash: you write ``_maybe_evict`` in task 8, and before task 7 no block has a hash.

        After:
        - each of these blocks has ``ref_cnt`` 1 and no hash
        - the index does not contain any of these blocks (``_maybe_evict``)
        - ``num_evictions`` is higher by 1 per block that had a hash; twins count, and 0 is a hash
        Returns:
        - these blocks, starting with the block that has been free longest
        Raises:
        - ValueError if ``n`` is negative or fewer than ``n`` blocks are free (``popleft_n``); nothing changes then

        Example::

            >>> [block.block_id for block in BlockPool(4).get_new_blocks(2)]
            [1, 2]
        """
        raise NotImplementedError("Task 5: BlockPool.get_new_blocks")

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one owner from each block, in the order given.

        After:
        - each block has lost one owner per occurrence in ``blocks``, which may be any iterable
        - a block without owners is in the free queue; it joined the end when it lost its last owner
        - the index is unchanged: a later request may still find each block
        Raises:
        - RuntimeError if a block occurs more often in ``blocks`` than it has owners; nothing changes then
        - RuntimeError if ``_check_mine`` rejects a block (the null block, another pool's block); nothing changes then

        Example::

            >>> pool = BlockPool(5)
            >>> pool.free_blocks(reversed(pool.get_new_blocks(3)))
            >>> [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
            [4, 3, 2, 1]
        """
        raise NotImplementedError("Task 5: BlockPool.free_blocks")

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add an owner to each block. A free block leaves the queue, from any place in it, in O(1).

        A block that occurs twice in ``blocks`` gets two owners.
        Raises RuntimeError if ``_check_mine`` rejects a block (the null block, another pool's block); nothing changes
        then.
        """
        raise NotImplementedError("Task 6: BlockPool.touch")

    def cache_full_blocks(self, blocks: Sequence[KVCacheBlock], hashes: Sequence[Hashable]) -> None:
        """Make full blocks findable: ``blocks[i]`` holds the content whose hash is ``hashes[i]``.

        Do all checks before the first write: a call that raises has changed nothing.

        After:
        - each block has its hash, and the index contains it under that hash, next to its twins
        - a block that was already indexed under an equal hash is still indexed under it
        - every hash except None is accepted, for example 0, a string or a tuple
        - hashes beyond the last block are ignored, whatever they are
        - if caching is off, nothing has changed, and no call raises
        Raises:
        - ValueError or TypeError if ``_check_hashes`` rejects the hashes: too few of them, a None, an unhashable value
        - RuntimeError if ``_check_mine`` rejects a block: the null block, another pool's block
        - RuntimeError if a block is free, even if it is indexed under this hash
        - RuntimeError if a block is indexed under another hash
        - RuntimeError if a block occurs twice in ``blocks``, with two different hashes

        Example::

            >>> pool = BlockPool(4)
            >>> blocks = pool.get_new_blocks(2)
            >>> pool.cache_full_blocks(blocks, [111, 222])
            >>> pool.get_cached_block(222).block_id
            2
        """
        raise NotImplementedError("Task 7: BlockPool.cache_full_blocks")

    def get_cached_block(self, block_hash: Hashable) -> KVCacheBlock | None:
        """Return a block that holds this content, whether it is in use or free; None if there is none.

        A lookup changes nothing.
        """
        raise NotImplementedError("Task 7: BlockPool.get_cached_block")

    def _maybe_evict(self, block: KVCacheBlock) -> None:
        """Forget the content of ``block`` if it is indexed.

        After: its hash is None and the index does not contain it; a twin under the same hash is still found; an entry
        of the index without blocks is deleted.
        """
        raise NotImplementedError("Task 8: BlockPool._maybe_evict")

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Remove blocks from the index, whether they are in use or free.

        Their owners and their places in the free queue do not change. ``block_ids`` may be any iterable. A block that
        is not indexed does not change, and an id may occur twice. No block is given out, so ``num_evictions`` does not
        change.
        Raises ValueError if ``_check_ids`` rejects an id, even if caching is off; nothing changes then.
        """
        raise NotImplementedError("Task 8: BlockPool.evict_blocks")

    def reset_prefix_cache(self) -> None:
        """Forget all cached content: empty the index and reset every hash. ``num_evictions`` does not change.

        Raises RuntimeError while any block is in use, with the number of these blocks in the message; nothing changes
        then.
        """
        raise NotImplementedError("Task 8: BlockPool.reset_prefix_cache")

    def _check_mine(self, block: KVCacheBlock, caller: str) -> None:
        """Raise RuntimeError unless ``block`` is a block of this pool that may have owners. Given: call it first.

        ``caller`` is the name of your method. The error message contains it.
        """
        if block.is_null:
            raise RuntimeError(f"{caller}: block {block.block_id} is the null block, which has no owners")
        if not 0 <= block.block_id < self.num_blocks or self.blocks[block.block_id] is not block:
            raise RuntimeError(f"{caller}: block {block.block_id} is not a block of this pool")

    def _check_hashes(self, blocks: Sequence[KVCacheBlock], hashes: Sequence[Hashable]) -> None:
        """Raise an error unless each block has a hash that a dictionary accepts. Given, for ``cache_full_blocks``.

        The error is a ValueError for too few hashes or a None, and a TypeError for an unhashable value. Hashes beyond
        the last block are not checked.
        """
        if len(hashes) < len(blocks):
            raise ValueError(f"cache_full_blocks: {len(blocks)} blocks, but only {len(hashes)} hashes")
        for block, block_hash in zip(blocks, hashes):
            if block_hash is None:
                raise ValueError(f"cache_full_blocks: the hash of block {block.block_id} is None")
            hash(block_hash)  # raises TypeError, for example for a list

    def _check_ids(self, block_ids: Sequence[int]) -> None:
        """Raise ValueError unless each id is the id of a block of this pool. Given, for ``evict_blocks``."""
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks:
                raise ValueError(f"evict_blocks: block id {block_id} is not between 0 and {self.num_blocks - 1}")

    def check_integrity(self) -> None:
        """Raise RuntimeError if the state of the pool is inconsistent. Given: call it whenever you are in doubt."""
        free_ids = [block.block_id for block in self.free_block_queue.get_all_free_blocks()]
        if len(free_ids) != self.get_num_free_blocks() or len(set(free_ids)) != len(free_ids) or 0 in free_ids:
            raise RuntimeError(f"the free queue contains {free_ids}, but the count is {self.get_num_free_blocks()}")
        is_free = set(free_ids)
        for block in self.blocks[1:]:
            if (block.ref_cnt == 0) != (block.block_id in is_free):
                raise RuntimeError(f"in the free queue: {block.block_id in is_free}, but ref_cnt is {block.ref_cnt}: "
                                   f"{block}")
            if block.block_hash is not None and self._cached.get(block.block_hash, {}).get(block.block_id) is not block:
                raise RuntimeError(f"a block has a hash, but the index does not contain it: {block}")
        for block_hash, twins in self._cached.items():
            for block in twins.values():
                if block.block_hash != block_hash:
                    raise RuntimeError(f"indexed under {block_hash}: {block}")
