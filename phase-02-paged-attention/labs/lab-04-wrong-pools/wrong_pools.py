"""Block pools for your tests: two right pools, and many wrong pools that each break one promise of lab 2.1.

Nothing here is hidden, but you learn more if you find the sealed pools without reading on. ``hand_out`` makes the pools
for your test. It makes a fresh class each time, which has only the promised methods, and looks the same for right and
wrong pools. The class reads iterable arguments once, into lists, so a test cannot see how a pool reads them.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm import block_pool as engine


@dataclass(frozen=True)
class Kind:
    """A kind of pool: its two classes, and for a wrong pool also its task and a description of its bug."""

    name: str
    pool_class: type
    block_class: type
    task: int = 0
    story: str = ""
    is_sealed: bool = False

    def __str__(self) -> str:
        return "a sealed pool, whose bug is not described" if self.is_sealed else f"the pool that {self.story}"


def hand_out(kind: Kind) -> types.SimpleNamespace:
    """Return what a test gets as ``pools``: a new class ``BlockPool``, and ``KVCacheBlock``."""
    pool_class = kind.pool_class

    class BlockPool:
        """A pool of lab 2.1 with the methods that this lab promises."""

        def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
            self.__pool = pool_class(num_blocks, enable_caching)

        blocks = property(lambda self: self.__pool.blocks)
        null_block = property(lambda self: self.__pool.null_block)
        num_evictions = property(lambda self: self.__pool.num_evictions)
        free_block_queue = property(lambda self: self.__pool.free_block_queue)

        def get_num_free_blocks(self) -> int:
            return self.__pool.get_num_free_blocks()

        def get_usage(self) -> float:
            return self.__pool.get_usage()

        def get_new_blocks(self, n: int) -> list[Any]:
            return self.__pool.get_new_blocks(n)

        def free_blocks(self, blocks: Iterable[Any]) -> None:
            return self.__pool.free_blocks(list(blocks))

        def touch(self, blocks: Sequence[Any]) -> None:
            return self.__pool.touch(list(blocks))

        def cache_full_blocks(self, blocks: Sequence[Any], hashes: Sequence[Hashable]) -> None:
            return self.__pool.cache_full_blocks(list(blocks), list(hashes))

        def get_cached_block(self, block_hash: Hashable) -> Any | None:
            return self.__pool.get_cached_block(block_hash)

        def evict_blocks(self, block_ids: Iterable[int]) -> None:
            return self.__pool.evict_blocks(list(block_ids))

        def reset_prefix_cache(self) -> None:
            return self.__pool.reset_prefix_cache()

    return types.SimpleNamespace(BlockPool=without_a_name(BlockPool), KVCacheBlock=kind.block_class)


def without_a_name(pool_class: type) -> type:
    """Give the class the same name as all other pools, so that the name does not tell a test which pool it got."""
    pool_class.__module__, pool_class.__name__, pool_class.__qualname__ = "pools", "BlockPool", "BlockPool"
    return pool_class


# ---- a right pool that is built differently


class PlainBlock:
    """A block without links."""

    def __init__(self, block_id: int, ref_cnt: int = 0, block_hash: Hashable | None = None,
                 is_null: bool = False) -> None:
        self.block_id, self.ref_cnt, self.block_hash, self.is_null = block_id, ref_cnt, block_hash, is_null

    def reset_hash(self) -> None:
        self.block_hash = None


class PlainQueue:
    """A read-only list in place of the free queue. It has only the method that a test may use."""

    def __init__(self, blocks: list[PlainBlock]) -> None:
        self._blocks = blocks

    def get_all_free_blocks(self) -> list[PlainBlock]:
        return list(self._blocks)


class PlainPool:
    """A pool that keeps the promises of lab 2.1 with plain lists: slow, but right. A lookup finds the newest twin.

    Its error messages share no word with the engine's: a test must not compare words, because they are not promised.
    """

    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError("too few")
        self.enable_caching = enable_caching
        self.blocks = [PlainBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.num_evictions = 0
        self._free = self.blocks[1:]
        self._cached: list[PlainBlock] = []
        self.free_block_queue = PlainQueue(self._free)

    def get_num_free_blocks(self) -> int:
        return len(self._free)

    def get_usage(self) -> float:
        num_usable = len(self.blocks) - 1
        return 1.0 - len(self._free) / num_usable if num_usable else 0.0

    def get_new_blocks(self, n: int) -> list[PlainBlock]:
        if n < 0 or n > len(self._free):
            raise ValueError("impossible amount")
        blocks = self._free[:n]
        del self._free[:n]
        for block in blocks:
            self.num_evictions += block in self._cached
            self._forget(block)
            block.ref_cnt = 1
        return blocks

    def free_blocks(self, blocks: Iterable[PlainBlock]) -> None:
        blocks = list(blocks)
        for block in blocks:
            self._refuse_strangers(block)
            if blocks.count(block) > block.ref_cnt:
                raise RuntimeError("dropped too often")
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self._free.append(block)

    def touch(self, blocks: Sequence[PlainBlock]) -> None:
        for block in blocks:
            self._refuse_strangers(block)
        for block in blocks:
            if block in self._free:
                self._free.remove(block)
            block.ref_cnt += 1

    def cache_full_blocks(self, blocks: Sequence[PlainBlock], hashes: Sequence[Hashable]) -> None:
        if not self.enable_caching:
            return
        if len(hashes) < len(blocks):
            raise ValueError("too few keys")
        keys: dict[PlainBlock, Hashable] = {}
        for block, block_hash in zip(blocks, hashes):
            self._refuse_strangers(block)
            if block_hash is None:
                raise ValueError("missing key")
            if block in self._free:
                raise RuntimeError("still unused")
            if block.block_hash not in (None, block_hash) or keys.setdefault(block, block_hash) != block_hash:
                raise RuntimeError("different content")
        for block, block_hash in zip(blocks, hashes):
            if block.block_hash is None:
                block.block_hash = block_hash
                self._cached.append(block)

    def get_cached_block(self, block_hash: Hashable) -> PlainBlock | None:
        twins = [block for block in self._cached if block.block_hash == block_hash]
        return twins[-1] if twins else None

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        block_ids = list(block_ids)
        if any(block_id not in range(len(self.blocks)) for block_id in block_ids):
            raise ValueError("out of range")
        for block_id in block_ids:
            self._forget(self.blocks[block_id])

    def reset_prefix_cache(self) -> None:
        if len(self._free) < len(self.blocks) - 1:
            raise RuntimeError("still busy")
        for block in self.blocks:
            self._forget(block)

    def _forget(self, block: PlainBlock) -> None:
        if block in self._cached:
            self._cached.remove(block)
        block.reset_hash()

    def _refuse_strangers(self, block: PlainBlock) -> None:
        if block is self.null_block or not any(block is mine for mine in self.blocks):
            raise RuntimeError("foreign or reserved")


class LinkedPool(engine.BlockPool):
    """The engine's pool, unchanged. It is a subclass, as the wrong pools are."""


RIGHT = (Kind("linked", without_a_name(LinkedPool), engine.KVCacheBlock, story="is the engine's pool"),
         Kind("plain", without_a_name(PlainPool), PlainBlock, story="is built from plain lists"))

# ---- the wrong pools

WRONG: dict[str, Kind] = {}


def wrong(task: int, story: str, is_sealed: bool = False) -> Callable[[type], type]:
    """Register a pool in ``WRONG`` under the name of its class."""
    def register(pool_class: type) -> type:
        WRONG[pool_class.__name__] = Kind(pool_class.__name__, pool_class, engine.KVCacheBlock, task, story, is_sealed)
        return without_a_name(pool_class)
    return register


@wrong(0, "gives out the null block like any other block")
class GivesOutTheNullBlock(engine.BlockPool):
    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_blocks, enable_caching)
        others = self.free_block_queue.popleft_n(num_blocks - 1)
        self.free_block_queue.append_n([self.null_block, *others])


# Task 1: giving out


@wrong(1, "gives out the free blocks with the lowest ids, not the blocks that have been free longest")
class LowestNumberFirst(engine.BlockPool):
    def get_new_blocks(self, n: int) -> list[engine.KVCacheBlock]:
        queue = self.free_block_queue
        if 0 <= n <= queue.num_free_blocks:
            queue.append_n(sorted(queue.popleft_n(queue.num_free_blocks), key=lambda block: block.block_id))
        return super().get_new_blocks(n)


@wrong(1, "never gives out its last free block")
class KeepsTheLastOne(engine.BlockPool):
    def get_new_blocks(self, n: int) -> list[engine.KVCacheBlock]:
        if 0 < n and n == self.get_num_free_blocks():
            raise ValueError(f"get_new_blocks({n}): only {n - 1} blocks can be given out")
        return super().get_new_blocks(n)


@wrong(1, "returns an empty list when asked for a negative number of blocks")
class LessThanNothing(engine.BlockPool):
    def get_new_blocks(self, n: int) -> list[engine.KVCacheBlock]:
        return super().get_new_blocks(max(n, 0))


# Task 2: freeing


@wrong(2, "queues the blocks of one call in reverse order")
class Backwards(engine.BlockPool):
    def free_blocks(self, blocks: Iterable[engine.KVCacheBlock]) -> None:
        super().free_blocks([*blocks][::-1])


@wrong(2, "does nothing when a block without owners is freed")
class ShrugsAtADoubleFree(engine.BlockPool):
    def free_blocks(self, blocks: Iterable[engine.KVCacheBlock]) -> None:
        super().free_blocks([block for block in blocks if block.ref_cnt > 0 or block.pool is not self])


@wrong(2, "raises a different error from the promised one when a block without owners is freed")
class AnotherError(engine.BlockPool):
    def free_blocks(self, blocks: Iterable[engine.KVCacheBlock]) -> None:
        blocks = list(blocks)
        for block in blocks:
            if block.ref_cnt == 0 and block.pool is self:
                raise KeyError(block.block_id)
        super().free_blocks(blocks)


@wrong(2, "accepts a single call that drops more owners than a block has")
class LooksAtEachBlockAlone(engine.BlockPool):
    def free_blocks(self, blocks: Iterable[engine.KVCacheBlock]) -> None:
        num_drops: Counter[engine.KVCacheBlock] = Counter()
        kept = []
        for block in blocks:
            num_drops[block] += 1
            if num_drops[block] <= max(block.ref_cnt, 1):
                kept.append(block)
        super().free_blocks(kept)


@wrong(2, "rejects a block that occurs twice in one call, although it has two owners", is_sealed=True)
class EveryBlockOnce(engine.BlockPool):
    def free_blocks(self, blocks: Iterable[engine.KVCacheBlock]) -> None:
        blocks = list(blocks)
        if len(set(blocks)) < len(blocks):
            raise RuntimeError("free_blocks: a block occurs twice")
        super().free_blocks(blocks)


# Task 3: sharing


def _free_what_may_be_queued(self: engine.BlockPool, blocks: Iterable[engine.KVCacheBlock]) -> None:
    """Free blocks in a pool whose ``touch`` leaves owned blocks in the queue.

    A block that still has owners stays in its place. When all its owners have left, it moves to the end of the queue,
    like any other block.
    """
    blocks = list(blocks)
    num_drops = Counter(blocks)
    if all(block.pool is self and num_drops[block] <= block.ref_cnt for block in blocks):  # else it raises
        for block in num_drops:
            if block.next_free is not None and num_drops[block] == block.ref_cnt:
                self.free_block_queue.remove(block)
    engine.BlockPool.free_blocks(self, blocks)


@wrong(3, "adds an owner to a free block but leaves the block in the free queue")
class LeavesItAmongTheFree(engine.BlockPool):
    free_blocks = _free_what_may_be_queued

    def touch(self, blocks: Sequence[engine.KVCacheBlock]) -> None:
        places = self.free_block_queue.get_all_free_blocks()
        super().touch(blocks)
        self.free_block_queue.popleft_n(self.free_block_queue.num_free_blocks)
        self.free_block_queue.append_n(places)


@wrong(3, "frees a shared block when its first owner leaves")
class FirstToLeaveTakesAll(engine.BlockPool):
    def free_blocks(self, blocks: Iterable[engine.KVCacheBlock]) -> None:
        blocks = list(blocks)
        super().free_blocks(blocks)
        left = [block for block in dict.fromkeys(blocks) if block.ref_cnt > 0]
        super().free_blocks([block for block in left for _ in range(block.ref_cnt)])


@wrong(3, "removes the block that has been free longest from the queue, whichever block was touched", is_sealed=True)
class TakesAnotherOut(engine.BlockPool):
    free_blocks = _free_what_may_be_queued

    def touch(self, blocks: Sequence[engine.KVCacheBlock]) -> None:
        for block in blocks:
            self._check_mine(block, "touch")
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.popleft()
            block.ref_cnt += 1


# Task 4: finding and forgetting


@wrong(4, "forgets the content of a block as soon as the block is free")
class ForgetsWhatIsFree(engine.BlockPool):
    def free_blocks(self, blocks: Iterable[engine.KVCacheBlock]) -> None:
        blocks = list(blocks)
        super().free_blocks(blocks)
        self.evict_blocks([block.block_id for block in blocks if block.ref_cnt == 0])


@wrong(4, "still finds content whose block was given to a new owner")
class FindsWhatIsGone(engine.BlockPool):
    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_blocks, enable_caching)
        #: Content whose block was given out again. No later call removes an entry.
        self._gone: dict[Hashable, engine.KVCacheBlock] = {}

    def get_new_blocks(self, n: int) -> list[engine.KVCacheBlock]:
        held = {block: block.block_hash for block in self.blocks if block.block_hash is not None}
        blocks = super().get_new_blocks(n)
        self._gone.update((held[block], block) for block in blocks if block in held)
        return blocks

    def get_cached_block(self, block_hash: Hashable) -> engine.KVCacheBlock | None:
        return super().get_cached_block(block_hash) or self._gone.get(block_hash)


@wrong(4, "forgets both blocks with the same content when one of them is evicted")
class OneTwinGoesBothGo(engine.BlockPool):
    def _maybe_evict(self, block: engine.KVCacheBlock) -> None:
        twins = list(self._cached.get(block.block_hash, {}).values())
        super()._maybe_evict(block)
        for twin in twins:
            super()._maybe_evict(twin)


@wrong(4, "adds an owner to a block when it is looked up")
class LookingIsOwning(engine.BlockPool):
    def get_cached_block(self, block_hash: Hashable) -> engine.KVCacheBlock | None:
        block = super().get_cached_block(block_hash)
        if block is not None:
            self.touch([block])
        return block


@wrong(4, "forgets the content of a free block when the block is touched", is_sealed=True)
class AHitIsForgotten(engine.BlockPool):
    def touch(self, blocks: Sequence[engine.KVCacheBlock]) -> None:
        free = [block.block_id for block in blocks if block.ref_cnt == 0]
        super().touch(blocks)
        self.evict_blocks(free)


# Task 5: a call that raises has changed nothing


@wrong(5, "frees some of the blocks before it notices that it must reject the call")
class FreesUntilItStumbles(engine.BlockPool):
    def free_blocks(self, blocks: Iterable[engine.KVCacheBlock]) -> None:
        blocks = list(blocks)
        try:
            super().free_blocks(blocks)
        except RuntimeError:
            for block in blocks:
                super().free_blocks([block])


@wrong(5, "indexes some of the blocks before it notices that hashes are missing")
class CachesUntilItStumbles(engine.BlockPool):
    def cache_full_blocks(self, blocks: Sequence[engine.KVCacheBlock], hashes: Sequence[Hashable]) -> None:
        if len(hashes) < len(blocks):
            super().cache_full_blocks(blocks[:len(hashes)], hashes)
        super().cache_full_blocks(blocks, hashes)


@wrong(5, "takes all free blocks when too few are free, and puts them back in reverse order", is_sealed=True)
class PutsBackInAnotherOrder(engine.BlockPool):
    def __init__(self, num_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_blocks, enable_caching)
        #: The queue after the last rejected call, so that a second rejected call does not restore the right order.
        self._put_back: list[engine.KVCacheBlock] = []

    def get_new_blocks(self, n: int) -> list[engine.KVCacheBlock]:
        queue = self.free_block_queue
        if n > queue.num_free_blocks and queue.get_all_free_blocks() != self._put_back:
            self._put_back = queue.popleft_n(queue.num_free_blocks)[::-1]
            queue.append_n(self._put_back)
        return super().get_new_blocks(n)
