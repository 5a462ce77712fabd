"""``course bench``: the cost of an operation of the block pool, in a small and in a large pool."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable

from mini_vllm.block_pool import BlockPool, KVCacheBlock

POOL_SIZES = (1_000, 1_000_000)
#: Operations per timed round: the same for every pool, so that only the size of the pool differs.
OPERATIONS_PER_ROUND = 250
NUM_ROUNDS = 60


class AllocatorBench:
    """One pool in which every block has been used, cached and freed. Each round uses other blocks.

    A round first reads the blocks it will use, and their neighbours, so that the clock measures the steps of an
    operation, and not the CPU's cache misses.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool, self._rng = pool, random.Random(0)
        blocks = pool.get_new_blocks(pool.num_blocks - 1)
        self._cache(blocks)
        pool.free_blocks(blocks)

    def allocate(self) -> float:
        taken: list[KVCacheBlock] = []
        seconds = self._timed(lambda _: taken.extend(self.pool.get_new_blocks(1)), range(OPERATIONS_PER_ROUND))
        self._cache(taken)
        self.pool.free_blocks(taken)
        return seconds

    def free(self) -> float:
        taken = self.pool.get_new_blocks(OPERATIONS_PER_ROUND)
        self._cache(taken)
        return self._timed(lambda block: self.pool.free_blocks((block,)), taken)

    def hit(self) -> float:
        """Find a block by its hash and remove it from the queue, as a prefix hit does."""
        blocks = self._anywhere()

        def find(block_hash: object) -> None:
            block = self.pool.get_cached_block(block_hash)
            assert block is not None
            self.pool.touch((block,))

        seconds = self._timed(find, [block.block_hash for block in blocks])
        self.pool.free_blocks(blocks)
        return seconds

    def middle_removal(self) -> float:
        blocks = self._anywhere()
        seconds = self._timed(self.pool.free_block_queue.remove, blocks)
        self.pool.free_block_queue.append_n(blocks)
        return seconds

    def _timed(self, operation: Callable[..., None], arguments: Iterable[object]) -> float:
        start_s = time.perf_counter()
        for argument in arguments:
            operation(argument)
        return time.perf_counter() - start_s

    def _anywhere(self) -> list[KVCacheBlock]:
        blocks = [self.pool.blocks[i] for i in self._rng.sample(range(1, self.pool.num_blocks), OPERATIONS_PER_ROUND)]
        for block in blocks:
            _ = [near.ref_cnt for near in (block, block.prev_free, block.next_free) if near is not None]
            self.pool.get_cached_block(block.block_hash)
        return blocks

    def _cache(self, blocks: list[KVCacheBlock]) -> None:
        self.pool.cache_full_blocks(blocks, [block.block_id for block in blocks])


def print_allocator(pool_class: type[BlockPool] = BlockPool, sizes: tuple[int, int] = POOL_SIZES,
                    rounds: int = NUM_ROUNDS) -> None:
    """Print operations per second in both pools, as medians of rounds in turns."""
    small, large = sizes
    print(f"{'operations per second':<21} {f'{small:,} blocks':>16} {f'{large:,} blocks':>18} {'cost ratio':>11}")
    benches = [AllocatorBench(pool_class(num_blocks + 1)) for num_blocks in sizes]
    ratios = []
    gc.collect()
    gc.disable()
    try:
        for name in ("allocate", "free", "hit", "middle_removal"):
            times = [[getattr(bench, name)() for bench in benches] for _ in range(rounds)]
            small_s, large_s = (statistics.median(column) for column in zip(*times))
            ratios.append(large_s / small_s)
            print(f"{name.replace('_', ' '):<21} {OPERATIONS_PER_ROUND / small_s:>16,.0f} "
                  f"{OPERATIONS_PER_ROUND / large_s:>18,.0f} {ratios[-1]:>10.2f}x")
    finally:
        gc.enable()
    for bench in benches:
        num_free = bench.pool.get_num_free_blocks()
        assert num_free == bench.pool.num_blocks - 1, f"{num_free} of {bench.pool.num_blocks - 1} blocks were freed"
    print(f"In short: with {large:,} blocks, an operation of the block pool takes {min(ratios):.2f} to "
          f"{max(ratios):.2f} times as long as with {small:,}")
