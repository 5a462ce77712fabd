"""Block ownership: the pool, its free queue, and the index from a prefix's hash to the blocks that hold it.

    given out                        free, oldest first
    ┌───────────────┐   free_blocks   ┌──────────────────────────────┐
    │ ref_cnt >= 1  │ ──────────────▶ │ head ⇄ 7 ⇄ 3 ⇄ 9 ⇄ … ⇄ tail  │
    └───────────────┘ ◀────────────── └──────────────────────────────┘
                      get_new_blocks: from the left (the block's content is forgotten)
                      touch: from anywhere  (the block's content is used again)

A freed block keeps its hash: it is free *and* still findable, until it is given out again.

The module is longer than most: the labs and the engine import the block, the queue, the keys and the pool from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

#: Part of a block's key, in addition to its tokens. It keeps equal texts of different tenants or adapters apart.
ExtraKeys = tuple[Hashable, ...] | None


@dataclass(eq=False, slots=True)
class KVCacheBlock:
    """One block of the KV cache: its number, its reference count and its content.

    It does not know which list it is in.
    """

    block_id: int
    ref_cnt: int = 0
    #: Set while the block can be found by its content: it is full, or it is a half-filled block in a prefix tree.
    block_hash: Hashable | None = None
    is_null: bool = False
    #: Links of the free queue; only the queue may touch them. Both are None while the block is not in the queue.
    prev_free: KVCacheBlock | None = None
    next_free: KVCacheBlock | None = None
    #: The pool that owns the block; None for the null block, and for a block created without a pool.
    pool: BlockPool | None = field(default=None, init=False)

    def reset_hash(self) -> None:
        self.block_hash = None

    def __repr__(self) -> str:  # the generated one would follow the links through the whole queue
        links = [None if b is None else b.block_id for b in (self.prev_free, self.next_free)]
        return (f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, block_hash={self.block_hash}, "
                f"is_null={self.is_null}, prev_free={links[0]}, next_free={links[1]})")


class FreeKVCacheBlockQueue:
    """Free blocks in the order they will be reused, oldest first.

    A deque would give O(1) at both ends, but a prefix hit takes a block out of the *middle*; links stored on the blocks
    themselves make that O(1) and cost no allocation. A fake head and a fake tail are always present, so that no
    operation has a special case for the ends:

        head ⇄ 4 ⇄ 7 ⇄ 2 ⇄ tail          empty: head ⇄ tail
    """

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self._head = KVCacheBlock(block_id=-1)
        self._tail = KVCacheBlock(block_id=-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        self.append_n(list(blocks))

    def popleft(self) -> KVCacheBlock:
        """Take the oldest free block. Raise ValueError if there is none."""
        if self.num_free_blocks == 0:
            raise ValueError("popleft from an empty free queue: 0 free blocks")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the ``n`` oldest free blocks, oldest first. Raise ValueError, and take none, if fewer are free."""
        if not 0 <= n <= self.num_free_blocks:
            raise ValueError(f"popleft_n({n}): there are {self.num_free_blocks} free blocks")
        blocks: list[KVCacheBlock] = []
        first = self._head.next_free
        for _ in range(n):
            assert first is not None
            blocks.append(first)
            after = first.next_free
            first.prev_free = first.next_free = None
            first = after
        assert first is not None
        self._head.next_free = first
        first.prev_free = self._head
        self.num_free_blocks -= n
        return blocks

    def remove(self, block: KVCacheBlock) -> None:
        """Unlink ``block`` from anywhere in the queue, in O(1). Raise RuntimeError if it is in no queue."""
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise RuntimeError(f"remove: block {block.block_id} is not in the free queue")
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put ``block`` at the end: it will be reused last. Raise RuntimeError if it is already in a queue."""
        if block.prev_free is not None or block.next_free is not None:
            raise RuntimeError(f"append: block {block.block_id} is in a free queue already")
        self._link_last([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append ``blocks`` in order.

        Raise RuntimeError, and append none, if one is already in a queue or occurs twice.
        """
        seen: set[int] = set()
        for block in blocks:
            if block.prev_free is not None or block.next_free is not None or block.block_id in seen:
                raise RuntimeError(f"append_n: block {block.block_id} is in a free queue already, or appears twice")
            seen.add(block.block_id)
        self._link_last(blocks)

    def _link_last(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append like ``append_n``, without checks. The caller guarantees distinct blocks that are in no queue."""
        last = self._tail.prev_free
        for block in blocks:
            assert last is not None
            last.next_free = block
            block.prev_free = last
            last = block
        assert last is not None
        last.next_free = self._tail
        self._tail.prev_free = last
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return all free blocks, oldest first. O(n): for tests and pictures."""
        blocks: list[KVCacheBlock] = []
        block = self._head.next_free
        while block is not None and block is not self._tail:
            blocks.append(block)
            block = block.next_free
        return blocks


def hash_block_tokens(parent_hash: int | None, token_ids: Iterable[int],
                      extra_keys: tuple | None = None) -> int:  # type: ignore[type-arg]  # the published signature has it bare
    """Hash one full block *in its context*: the parent's hash stands for every token before it.

    Equal tokens after different prefixes have different K/V, so they must have different hashes.
    """
    if extra_keys:
        return hash((parent_hash, tuple(token_ids), tuple(extra_keys)))
    return hash((parent_hash, tuple(token_ids)))


class BlockHash(int):
    """A block's chained hash together with its tokens, so that a dictionary hit is proof of equal content.

    The number selects the bucket; two BlockHashes are equal only if their tokens, extra keys and all ancestors are
    equal. A BlockHash also equals a bare int of the same value, which is convenient in tests but proves nothing.
    """

    parent: BlockHash | None
    token_ids: tuple[int, ...]
    extra_keys: ExtraKeys

    def __new__(cls, parent: BlockHash | None, token_ids: Iterable[int], extra_keys: ExtraKeys = None) -> BlockHash:
        token_ids = tuple(token_ids)
        self = super().__new__(cls, hash_block_tokens(parent, token_ids, extra_keys))
        self.parent, self.token_ids, self.extra_keys = parent, token_ids, extra_keys or None
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockHash):
            return int.__eq__(self, other)
        mine: BlockHash | None = self
        theirs: BlockHash | None = other
        while mine is not theirs:  # usually both chains share an object, and the walk ends at its first step
            if (mine is None or theirs is None or mine.token_ids != theirs.token_ids
                    or mine.extra_keys != theirs.extra_keys):
                return False
            mine, theirs = mine.parent, theirs.parent
        return True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


class BlockPool:
    """All blocks of one model's KV cache: reference-counted, and found again by hash.

    Every method does all its checks before its first write: a call that raises has changed nothing.
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
        for block in self.blocks[1:]:
            block.pool = self
        #: Two requests that compute the same block leave two blocks with the same content; either may serve a hit.
        self._cached: dict[Hashable, dict[int, KVCacheBlock]] = {}
        #: How many cached blocks were given out again, losing their content.
        self.num_evictions = 0
        self.num_forks = 0
        #: Copies (source, destination) that the step must make before it writes; see fork_block.
        self.pending_copies: list[tuple[KVCacheBlock, KVCacheBlock]] = []
        self._kept_for_copy: set[int] = set()

    # ---- ownership

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Give out the ``n`` blocks that have been free longest, each with ``ref_cnt`` 1 and no hash.

        This is the only place where cached content is lost to make room. Raise ValueError if ``n`` is negative, or if
        fewer blocks are free.
        """
        queue = self.free_block_queue
        if n < 0:
            raise ValueError(f"get_new_blocks({n}): the number of blocks must be at least 0")
        if n > queue.num_free_blocks:
            raise ValueError(f"get_new_blocks({n}): only {queue.num_free_blocks} blocks are free")
        blocks = queue.popleft_n(n)
        for block in blocks:
            if block.block_hash is not None:
                self._maybe_evict(block)
                self.num_evictions += 1
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add an owner to each block. A free block leaves the free queue, from any position."""
        for block in blocks:
            if block.pool is not self:
                self._check_mine(block, "touch")  # raises; calling it for every block would cost more than the rest
        queue = self.free_block_queue
        for block in blocks:
            if block.ref_cnt == 0:
                queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop an owner from each block. Blocks without an owner join the free queue, in the order given.

        They stay indexed: a later request may still find them. Raise RuntimeError if a block has no owner to drop.
        """
        blocks = [*blocks]
        for block in blocks:
            if block.ref_cnt != 1 or block.pool is not self:
                break
        else:  # the usual case: blocks of this pool, each with one owner
            if not self.pending_copies and (len(blocks) == 1 or len(set(blocks)) == len(blocks)):
                for block in blocks:
                    block.ref_cnt = 0
                self.free_block_queue._link_last(blocks)
                return
        self._free_with_care(blocks)

    def _free_with_care(self, blocks: list[KVCacheBlock]) -> None:
        """Free ``blocks`` when some have several owners, belong to a pending copy, or are invalid."""
        for block, num_drops in Counter(blocks).items():
            self._check_mine(block, "free_blocks")
            num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
            if num_drops > num_owners:
                raise RuntimeError(f"free_blocks: block {block.block_id} is freed {num_drops} times, "
                                   f"but has {num_owners} owners")
        needed = {block for copy in self.pending_copies for block in copy}
        for block in blocks:
            if block.ref_cnt == 1 and block in needed:
                self._kept_for_copy.add(block.block_id)  # the last owner leaves; the copy takes over its reference
                continue
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)

    # ---- copy-on-write

    def fork_block(self, block: KVCacheBlock) -> KVCacheBlock:
        """Return a block its owner may write: ``block`` itself if it is private, otherwise a new block to copy it into.

        The owner's reference moves from ``block`` to the new one, and the pair is added to ``pending_copies``. Neither
        block is reused before ``finish_copies``. Raise ValueError if no block is free.
        """
        self._check_mine(block, "fork_block")
        num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
        if num_owners == 0:
            raise RuntimeError(f"fork_block: block {block.block_id} is free, so no request may write to it")
        if num_owners == 1:
            return block
        copy = self.get_new_blocks(1)[0]
        block.ref_cnt -= 1
        self.num_forks += 1
        self.pending_copies.append((block, copy))
        return copy

    def finish_copies(self) -> None:
        """Declare all pending copies done. Blocks held only for a copy become free."""
        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]
        self.pending_copies = []
        self._kept_for_copy = set()
        self.free_blocks(kept)

    # ---- the index

    def cache_full_blocks(self, blocks: Sequence[KVCacheBlock], hashes: Sequence[Hashable]) -> None:
        """Make full blocks findable, ``blocks[i]`` under ``hashes[i]``; hashes beyond the last block are ignored.

        Raise ValueError for too few hashes or a hash of None, TypeError for an unhashable one, and RuntimeError for a
        block that is free or already has another hash.
        """
        if not self.enable_caching:
            return
        if len(hashes) < len(blocks):
            raise ValueError(f"cache_full_blocks: {len(blocks)} blocks, but only {len(hashes)} hashes")
        given: dict[int, Hashable] = {}
        for block, block_hash in zip(blocks, hashes):
            self._check_mine(block, "cache_full_blocks")
            if block_hash is None:
                raise ValueError(f"cache_full_blocks: the hash of block {block.block_id} is None")
            hash(block_hash)  # raises TypeError for what the index could not hold
            if block.ref_cnt == 0:
                raise RuntimeError(f"cache_full_blocks: block {block.block_id} is free, so it belongs to no request")
            held = given.setdefault(block.block_id, block_hash) if block.block_hash is None else block.block_hash
            if held != block_hash:
                raise RuntimeError(f"cache_full_blocks: block {block.block_id} is indexed already, "
                                   f"under {held}, not under {block_hash}")
        for block, block_hash in zip(blocks, hashes):
            block.block_hash = block_hash
            self._cached.setdefault(block_hash, {})[block.block_id] = block

    def get_cached_block(self, block_hash: Hashable) -> KVCacheBlock | None:
        """Return a block with this content, whether it is in use or free; None if there is none.

        The lookup does not change the block's owners.
        """
        twins = self._cached.get(block_hash)
        return next(iter(twins.values())) if twins else None

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Remove blocks from the index. They stay with their owners or in the free queue.

        No block is given out, so this does not count in ``num_evictions``.
        """
        block_ids = list(block_ids)
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks:
                raise ValueError(f"evict_blocks: block id {block_id} is not between 0 and {self.num_blocks - 1}")
        for block_id in block_ids:
            self._maybe_evict(self.blocks[block_id])

    def reset_prefix_cache(self) -> None:
        """Forget all cached content. Raise RuntimeError while any block is in use."""
        num_used = self.num_blocks - 1 - self.get_num_free_blocks()
        if num_used:
            raise RuntimeError(f"reset_prefix_cache: refused, {num_used} of {self.num_blocks - 1} blocks are in use")
        self._cached = {}
        for block in self.blocks:
            block.reset_hash()

    def _maybe_evict(self, block: KVCacheBlock) -> None:
        """Forget the content of ``block`` if it is indexed. Other blocks under the same hash stay indexed."""
        twins = self._cached.get(block.block_hash) if block.block_hash is not None else None
        if twins is not None and twins.get(block.block_id) is block:
            del twins[block.block_id]
            if not twins:
                del self._cached[block.block_hash]
        block.reset_hash()

    # ---- numbers

    def get_num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """Return the used fraction of the pool, 0.0 to 1.0; the null block does not count."""
        num_usable = self.num_blocks - 1
        return 1.0 - self.get_num_free_blocks() / num_usable if num_usable else 0.0

    def _check_mine(self, block: KVCacheBlock, caller: str) -> None:
        if block.pool is not self:
            kind = "the null block, which has no owners" if block.is_null else "not a block of this pool"
            raise RuntimeError(f"{caller}: block {block.block_id} is {kind}")

    def check_integrity(self) -> None:
        """Raise RuntimeError if the pool contradicts itself. O(num_blocks): for tests, after every operation."""
        free_ids, null = self._check_queue(), self.null_block
        _ensure(null is self.blocks[0] and null.is_null and null.ref_cnt == 0 and null.block_hash is None
                and null.block_id not in free_ids, "the null block was changed, or is in the free queue: {}", null)
        for block in self.blocks[1:]:
            _ensure((block.ref_cnt == 0) == (block.block_id in free_ids), "free queue and ref_cnt disagree: {}", block)
            is_linked = block.prev_free is not None or block.next_free is not None
            _ensure(block.ref_cnt >= 0 and is_linked == (block.ref_cnt == 0), "impossible state: {}", block)
            _ensure(block.pool is self and not block.is_null, "not a block that can be allocated: {}", block)
            _ensure(block.block_hash is None or block in self._cached.get(block.block_hash, {}).values(),
                    "hashed but not indexed: {}", block)
        for block_hash, twins in self._cached.items():
            _ensure(bool(twins), "an empty entry is left in the index under {}", block_hash)
            for block_id, block in twins.items():
                _ensure(block is self.blocks[block_id] and block.block_hash == block_hash,
                        "indexed under {}, but holds {}", block_hash, block)
        for source, copy in self.pending_copies:
            _ensure(source.ref_cnt > 0 and copy.ref_cnt > 0,
                    "one side of the pending copy {} → {} is free", source.block_id, copy.block_id)

    def _check_queue(self) -> set[int]:
        """Follow the links of the free queue in both directions and return the ids of its blocks."""
        queue, free_ids = self.free_block_queue, set()
        block = queue._head
        while block is not queue._tail:
            after = block.next_free
            if after is None or after.prev_free is not block:
                raise RuntimeError(f"block pool integrity: the free queue is broken after {block}")
            _ensure(after.block_id not in free_ids, "the free queue runs in a circle at {}", after)
            block = after
            free_ids.add(block.block_id)
        free_ids.remove(queue._tail.block_id)
        _ensure(len(free_ids) == queue.num_free_blocks,
                "{} blocks are queued, {} counted", len(free_ids), queue.num_free_blocks)
        return free_ids


def _ensure(condition: bool, complaint: str, *values: object) -> None:
    if not condition:
        raise RuntimeError("block pool integrity: " + complaint.format(*values))
