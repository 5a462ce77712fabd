"""The block allocator: blocks, the queue of free ones, and the pool that gives them out and finds them again.

    given out                        free, oldest first
    ┌───────────────┐   free_blocks   ┌──────────────────────────────┐
    │ ref_cnt >= 1  │ ──────────────▶ │ head ⇄ 7 ⇄ 3 ⇄ 9 ⇄ … ⇄ tail  │
    └───────────────┘ ◀────────────── └──────────────────────────────┘
                      get_new_blocks: from the left (what it held is forgotten now)
                      touch: from anywhere  (what it holds is used again)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class KVCacheBlock:
    """One page of the K/V cache: its number, who uses it, and what it holds. It knows nothing of lists."""

    block_id: int
    ref_cnt: int = 0
    #: Set while the block is full and findable by its content.
    block_hash: Hashable | None = None
    is_null: bool = False
    #: Links of the free queue, which alone may touch them. Both are None while the block is outside it.
    prev_free: KVCacheBlock | None = None
    next_free: KVCacheBlock | None = None

    def reset_hash(self) -> None:
        """Forget what the block holds. After: ``block_hash`` is None, all else as before."""
        setattr(self, 'block_hash', None)

    def __repr__(self) -> str:  # the generated one would follow the links through the whole queue
        links = [None if b is None else b.block_id for b in (self.prev_free, self.next_free)]
        return (f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, block_hash={self.block_hash}, "
                f"is_null={self.is_null}, prev_free={links[0]}, next_free={links[1]})")


class FreeKVCacheBlockQueue:
    """Free blocks in the order they will be reused, oldest first.

    A deque would give O(1) at both ends, but a prefix hit takes a block out of the *middle*; links stored on the
    blocks themselves make that O(1) and cost no allocation. A fake head and a fake tail are always there, so that no
    operation has a special case for the ends:

        head ⇄ 4 ⇄ 7 ⇄ 2 ⇄ tail          empty: head ⇄ tail

    A block that is not in the queue has both links None. However long the queue is, every method but
    ``get_all_free_blocks`` is O(1) for each block that it takes or gives.
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
        """Put ``block`` at the end, just before the fake tail: it will be reused last. O(1).

        After: it is linked both ways between the old last block (or the fake head) and the fake tail, and the count is
        one more. Raises RuntimeError if ``block`` is in a queue already; nothing changes then.
        """
        self.append_n((block,))

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """All free blocks, oldest first, by walking the links. The queue does not change. O(n)."""
        backwards, block = [], self._tail
        while (block := block.prev_free) is not self._head:
            backwards.append(block)
        return backwards[::-1]

    def remove(self, block: KVCacheBlock) -> None:
        """Unlink ``block`` from wherever it stands, in O(1).

        After: its neighbours point at each other, both links of ``block`` are None, the count is one less.
        Raises RuntimeError if ``block`` is in no queue; nothing changes then.
        """
        if block.next_free is None:
            raise RuntimeError(f"remove: {block}")
        block.next_free.prev_free, block.prev_free.next_free = block.prev_free, block.next_free
        block.next_free = block.prev_free = None
        self.num_free_blocks += -1

    def popleft(self) -> KVCacheBlock:
        """Take the oldest free block out of the queue and return it. Raises ValueError if there is none."""
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the ``n`` oldest free blocks, oldest first.

        Raises ValueError if ``n`` is negative or there are fewer than ``n``; none is taken then.
        """
        if n < 0 or n > self.num_free_blocks:
            raise ValueError(f"{n} of {self.num_free_blocks}")
        taken = []
        for _ in range(n):
            taken += [self._head.next_free]
            self.remove(taken[-1])
        return taken

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append ``blocks`` in order.

        Raises RuntimeError if one of them is in a queue already or comes twice in ``blocks``; none is appended then.
        """
        fresh = {}
        for place, block in enumerate(blocks):
            if block.next_free is not None or fresh.setdefault(id(block), place) != place:
                raise RuntimeError(f"append_n: {block}")
        for block in blocks:
            block.prev_free, block.next_free = self._tail.prev_free, self._tail
            block.prev_free.next_free = block.next_free.prev_free = block
        self.num_free_blocks += len(fresh)


def hash_block_tokens(parent_hash: int | None, token_ids: Iterable[int], extra_keys: tuple | None = None) -> int:
    """Hash one full block *in its context*: the parent's hash stands for every token before it.

    ``parent_hash`` is the hash of the block before it in the sequence, None for the first; 0 is a hash like any other.
    Without extra keys (None or an empty tuple) the result is ``hash((parent_hash, tuple(token_ids)))``. With them
    (another tenant, another adapter), equal texts get different hashes: ``tuple(extra_keys)`` becomes a third element
    of that tuple.
    """
    content = [parent_hash, tuple(token_ids)]
    if extra_keys is not None and len(extra_keys) > 0:
        content.append(tuple(extra_keys))
    return hash(tuple(content))


class BlockPool:
    """All blocks of one model's K/V cache, handed out by reference count, found again by hash.

    Every method does its checking before its first write: a call that raises has changed nothing. However large the
    pool is, every method but ``reset_prefix_cache`` and ``check_integrity`` is O(1) for each block that it takes or
    gives.
    """

    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}, must be at least 1: block 0 is the null block")
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        #: Block 0 pads block tables. It is never given out, never freed, and not counted in the usage.
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True
        #: Hash → the blocks that hold this content, by block id. Two requests that compute the same block at the same
        #: time make twins; either may serve a hit.
        self._cached: dict[Hashable, dict[int, KVCacheBlock]] = {}
        #: How many blocks with cached content were given out again. Twins count one each.
        self.num_evictions = 0

    def get_num_free_blocks(self) -> int:
        """How many blocks can be given out now."""
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """The part of the pool that is in use, 0.0 to 1.0. The null block counts neither above nor below the line.

        A pool that has only the null block is 0.0 in use.
        """
        try:
            return 1 - self.get_num_free_blocks() / (self.num_blocks - 1)
        except ZeroDivisionError:
            return 0.0

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Give out the ``n`` blocks that have been free longest, each with ``ref_cnt`` 1 and no hash.

        One that still holds cached content (``block_hash`` is set) is evicted from the index now, by ``_maybe_evict``,
        and ``num_evictions`` is one more: this is the only place where cached content is lost to make room. Call
        ``_maybe_evict`` for no other block: it is Task 8, and before Task 7 no block has a hash.
        Raises ValueError if ``n`` is negative or fewer are free; none is taken then.
        """
        if n not in range(self.get_num_free_blocks() + 1):
            raise ValueError(f"{n} of {self.get_num_free_blocks()}")
        out = []
        while n:
            n -= 1
            block = self.free_block_queue.popleft()
            if block.block_hash is not None:
                self.num_evictions += 1
                self._maybe_evict(block)
            block.ref_cnt = 1
            out.append(block)
        return out

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop an owner from each block, in the order given; one that nobody owns any more joins the queue's end then.

        It stays indexed: a later request may still find it. A block may come twice if it has two owners.
        Raises RuntimeError if a block has no owner to drop, is the null block, or is not of this pool; nothing changes
        then.
        """
        order = list(blocks)
        left = {}
        for block in order:
            self._check_mine(block, "free_blocks")
            left[block] = left.get(block, block.ref_cnt) - 1
            if left[block] < 0:
                raise RuntimeError(f"free_blocks: {block}")
        last_place = {block: place for place, block in enumerate(order)}
        for block, count in left.items():
            block.ref_cnt = count
        for block in sorted(left, key=last_place.__getitem__):
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add an owner to each block; a free one leaves the queue, from wherever it stands, in O(1).

        A block that comes twice gets two owners.
        Raises RuntimeError if one is the null block or not of this pool; nothing changes then.
        """
        [self._check_mine(block, "touch") for block in blocks]
        for block in blocks:
            block.ref_cnt += 1
            if block.ref_cnt == 1:
                self.free_block_queue.remove(block)

    def cache_full_blocks(self, blocks: Sequence[KVCacheBlock], hashes: Sequence[Hashable]) -> None:
        """Make full blocks findable: ``blocks[i]`` holds the content whose hash is ``hashes[i]``.

        After: each block has its hash and stands in the index under it, beside its twins. Hashes beyond the last block
        are ignored. A block indexed under the same hash already stays as it is. Any hash but None will do, 0 too.
        Does nothing, whatever it is given, if caching is off.
        Raises ValueError if there are fewer hashes than blocks or a block's hash is None; TypeError if a block's hash
        is something that ``hash()`` refuses; RuntimeError if a block is free, whatever it is indexed under, is the
        null block, is not of this pool, or is or would be indexed under another hash; nothing changes then.
        """
        if not self.enable_caching:
            return None
        blocks = list(blocks)
        hashes = list(hashes)[:len(blocks)]
        if len(hashes) != len(blocks) or any(h is None for h in hashes):
            raise ValueError(f"{len(blocks)} blocks, hashes {hashes}")
        pairs = list(zip(blocks, hashes))
        for h in hashes:
            {h}
        names = {}
        for block, h in pairs:
            self._check_mine(block, "cache_full_blocks")
            names.setdefault(block.block_id, {h}).add(h)
            if block.block_hash is not None:
                names[block.block_id].add(block.block_hash)
            if block.ref_cnt < 1 or len(names[block.block_id]) > 1:
                raise RuntimeError(f"cache_full_blocks: {block} and {h}")
        for block, h in pairs:
            if block.block_hash is None:
                self._cached.setdefault(h, {}).update({block.block_id: block})
                block.block_hash = h

    def get_cached_block(self, block_hash: Hashable) -> KVCacheBlock | None:
        """A block that holds this content, in use or free, or None. Looking changes nothing."""
        twins = self._cached.get(block_hash)
        return next(reversed(twins.values())) if twins else None

    def _maybe_evict(self, block: KVCacheBlock) -> None:
        """Forget the content of ``block`` if it is indexed.

        After: its hash is None and the index does not name it; a twin under the same hash is still found; an entry
        with no block left is gone.
        """
        twins = {} if block.block_hash is None else self._cached[block.block_hash]
        if twins.pop(block.block_id, None) is not None:
            if len(twins) == 0:
                del self._cached[block.block_hash]
            block.reset_hash()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Take blocks out of the index, wherever they are; they stay with their owners or in the queue.

        A block that is not indexed is left alone, and an id may come twice. Nothing is given out, so ``num_evictions``
        stays as it is.
        Raises ValueError if an id is not one of the pool's; nothing changes then.
        """
        chosen = []
        for i in block_ids:
            if i < 0 or i >= len(self.blocks):
                raise ValueError(f"evict_blocks: {i}")
            chosen.append(self.blocks[i])
        while chosen:
            self._maybe_evict(chosen.pop())

    def reset_prefix_cache(self) -> None:
        """Forget all cached content: the index is empty and no block has a hash. ``num_evictions`` stays as it is.

        Raises RuntimeError, which says how many blocks, while any block is in use; nothing changes then.
        """
        in_use = self.num_blocks - self.get_num_free_blocks() - 1
        if in_use:
            raise RuntimeError(f"reset_prefix_cache while {in_use} in use")
        self.evict_blocks(range(self.num_blocks))

    def _check_mine(self, block: KVCacheBlock, caller: str) -> None:
        """Raise RuntimeError unless ``block`` may have owners here. Given: call it first."""
        if block.is_null:
            raise RuntimeError(f"{caller}: block {block.block_id} is the null block, which has no owners")
        if not 0 <= block.block_id < self.num_blocks or self.blocks[block.block_id] is not block:
            raise RuntimeError(f"{caller}: block {block.block_id} is not a block of this pool")

    def check_integrity(self) -> None:
        """Raise RuntimeError if the pool contradicts itself. Given: call it whenever you are in doubt."""
        free_ids = [block.block_id for block in self.free_block_queue.get_all_free_blocks()]
        if len(free_ids) != self.get_num_free_blocks() or len(set(free_ids)) != len(free_ids) or 0 in free_ids:
            raise RuntimeError(f"the free queue reads {free_ids}, the count is {self.get_num_free_blocks()}")
        is_free = set(free_ids)
        for block in self.blocks[1:]:
            if (block.ref_cnt == 0) != (block.block_id in is_free):
                raise RuntimeError(f"in the free queue: {block.block_id in is_free}, but {block}")
            if block.block_hash is not None and self._cached.get(block.block_hash, {}).get(block.block_id) is not block:
                raise RuntimeError(f"it has a hash, but the index does not name it: {block}")
        for block_hash, twins in self._cached.items():
            for block in twins.values():
                if block.block_hash != block_hash:
                    raise RuntimeError(f"indexed under {block_hash}: {block}")
