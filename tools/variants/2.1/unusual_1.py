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


def _link(left: KVCacheBlock, right: KVCacheBlock) -> None:
    left.next_free, right.prev_free = right, left


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
        if (block.prev_free, block.next_free) != (None, None):
            raise RuntimeError(f"block {block.block_id} is queued")
        before = self._tail.prev_free
        _link(before, block)
        _link(block, self._tail)
        self.num_free_blocks += 1

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """All free blocks, oldest first, by walking the links. The queue does not change. O(n)."""
        def walk(block):
            while block is not self._tail:
                yield block
                block = block.next_free
        return [*walk(self._head.next_free)]

    def remove(self, block: KVCacheBlock) -> None:
        """Unlink ``block`` from wherever it stands, in O(1).

        After: its neighbours point at each other, both links of ``block`` are None, the count is one less.
        Raises RuntimeError if ``block`` is in no queue; nothing changes then.
        """
        before, after = block.prev_free, block.next_free
        if before is None:
            raise RuntimeError(f"block {block.block_id} is not queued")
        _link(before, after)
        block.prev_free, block.next_free = None, None
        self.num_free_blocks -= 1

    def popleft(self) -> KVCacheBlock:
        """Take the oldest free block out of the queue and return it. Raises ValueError if there is none."""
        if not self.num_free_blocks:
            raise ValueError("no free block")
        first = self._head.next_free
        self.remove(first)
        return first

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the ``n`` oldest free blocks, oldest first.

        Raises ValueError if ``n`` is negative or there are fewer than ``n``; none is taken then.
        """
        if not 0 <= n <= self.num_free_blocks:
            raise ValueError(f"cannot take {n} of {self.num_free_blocks}")
        taken, last = [], self._head
        while len(taken) < n:
            last = last.next_free
            taken.append(last)
        _link(self._head, last.next_free if n else self._head.next_free)
        for block in taken:
            block.prev_free = block.next_free = None
        self.num_free_blocks -= n
        return taken

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append ``blocks`` in order.

        Raises RuntimeError if one of them is in a queue already or comes twice in ``blocks``; none is appended then.
        """
        blocks = tuple(blocks)
        if len(set(map(id, blocks))) < len(blocks) or any(block.prev_free is not None for block in blocks):
            raise RuntimeError("a block is queued, or comes twice")
        chain = [self._tail.prev_free, *blocks, self._tail]
        for left, right in zip(chain, chain[1:]):
            _link(left, right)
        self.num_free_blocks += len(blocks)


def hash_block_tokens(parent_hash: int | None, token_ids: Iterable[int], extra_keys: tuple | None = None) -> int:
    """Hash one full block *in its context*: the parent's hash stands for every token before it.

    ``parent_hash`` is the hash of the block before it in the sequence, None for the first; 0 is a hash like any other.
    Without extra keys (None or an empty tuple) the result is ``hash((parent_hash, tuple(token_ids)))``. With them
    (another tenant, another adapter), equal texts get different hashes: ``tuple(extra_keys)`` becomes a third element
    of that tuple.
    """
    return hash((parent_hash, tuple(token_ids)) + ((tuple(extra_keys),) if extra_keys else ()))


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
        usable = self.num_blocks - 1
        return (usable - self.get_num_free_blocks()) / max(usable, 1)

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Give out the ``n`` blocks that have been free longest, each with ``ref_cnt`` 1 and no hash.

        One that still holds cached content (``block_hash`` is set) is evicted from the index now, by ``_maybe_evict``,
        and ``num_evictions`` is one more: this is the only place where cached content is lost to make room. Call
        ``_maybe_evict`` for no other block: it is Task 8, and before Task 7 no block has a hash.
        Raises ValueError if ``n`` is negative or fewer are free; none is taken then.
        """
        new = self.free_block_queue.popleft_n(n)
        for block in new:
            block.ref_cnt += 1
        for block in filter(lambda block: block.block_hash is not None, new):
            self._maybe_evict(block)
            self.num_evictions += 1
        return new

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop an owner from each block, in the order given; one that nobody owns any more joins the queue's end then.

        It stays indexed: a later request may still find it. A block may come twice if it has two owners.
        Raises RuntimeError if a block has no owner to drop, is the null block, or is not of this pool; nothing changes
        then.
        """
        blocks = [*blocks]
        for block in blocks:
            self._check_mine(block, "free_blocks")
        for block, times in Counter(blocks).items():
            if times > block.ref_cnt:
                raise RuntimeError(f"block {block.block_id} would have {block.ref_cnt - times} owners")
        emptied = []
        for block in blocks:
            block.ref_cnt -= 1
            if not block.ref_cnt:
                emptied.append(block)
        self.free_block_queue.append_n(emptied)

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add an owner to each block; a free one leaves the queue, from wherever it stands, in O(1).

        A block that comes twice gets two owners.
        Raises RuntimeError if one is the null block or not of this pool; nothing changes then.
        """
        for block in blocks:
            self._check_mine(block, "touch")
        for block, times in Counter(blocks).items():
            if not block.ref_cnt:
                self.free_block_queue.remove(block)
            block.ref_cnt += times

    def cache_full_blocks(self, blocks: Sequence[KVCacheBlock], hashes: Sequence[Hashable]) -> None:
        """Make full blocks findable: ``blocks[i]`` holds the content whose hash is ``hashes[i]``.

        After: each block has its hash and stands in the index under it, beside its twins. Hashes beyond the last block
        are ignored. A block indexed under the same hash already stays as it is. Any hash but None will do, 0 too.
        Does nothing, whatever it is given, if caching is off.
        Raises ValueError if there are fewer hashes than blocks or a block's hash is None; TypeError if a block's hash
        is something that ``hash()`` refuses; RuntimeError if a block is free, whatever it is indexed under, is the
        null block, is not of this pool, or is or would be indexed under another hash; nothing changes then.
        """
        if self.enable_caching:
            if len(blocks) > len(hashes):
                raise ValueError("too few hashes")
            wanted = {}
            for i, block in enumerate(blocks):
                key = hashes[i]
                if key is None:
                    raise ValueError("None is no hash")
                self._check_mine(block, "cache_full_blocks")
                if not block.ref_cnt:
                    raise RuntimeError(f"block {block.block_id} is free")
                if len({key, wanted.setdefault(block, key), key if block.block_hash is None else block.block_hash}) > 1:
                    raise RuntimeError(f"block {block.block_id} has another hash")
            for block, key in wanted.items():
                if block.block_hash is None:
                    block.block_hash = key
                    if key not in self._cached:
                        self._cached[key] = {}
                    self._cached[key][block.block_id] = block

    def get_cached_block(self, block_hash: Hashable) -> KVCacheBlock | None:
        """A block that holds this content, in use or free, or None. Looking changes nothing."""
        for block in self._cached.get(block_hash, {}).values():
            return block

    def _maybe_evict(self, block: KVCacheBlock) -> None:
        """Forget the content of ``block`` if it is indexed.

        After: its hash is None and the index does not name it; a twin under the same hash is still found; an entry
        with no block left is gone.
        """
        key = block.block_hash
        if key is not None:
            self._cached[key].pop(block.block_id)
            self._cached[key] or self._cached.pop(key)
            block.reset_hash()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Take blocks out of the index, wherever they are; they stay with their owners or in the queue.

        A block that is not indexed is left alone, and an id may come twice. Nothing is given out, so ``num_evictions``
        stays as it is.
        Raises ValueError if an id is not one of the pool's; nothing changes then.
        """
        ids = set(block_ids)
        if not ids <= set() and (min(ids) < 0 or max(ids) >= self.num_blocks):
            raise ValueError(f"not all of the pool: {ids}")
        for i in ids:
            self._maybe_evict(self.blocks[i])

    def reset_prefix_cache(self) -> None:
        """Forget all cached content: the index is empty and no block has a hash. ``num_evictions`` stays as it is.

        Raises RuntimeError, which says how many blocks, while any block is in use; nothing changes then.
        """
        owned = [block for block in self.blocks if block.ref_cnt]
        if owned:
            raise RuntimeError(f"{len(owned)} blocks in use")
        for twins in list(self._cached.values()):
            for block in list(twins.values()):
                self._maybe_evict(block)

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
