"""The cost of an operation of the block pool in a small and in a large pool."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable

from mini_vllm.block_pool import BlockPool, KVCacheBlock

ALLOCATOR_POOL_SIZES = (1_000, 1_000_000)
#: Operations per timed round: the same for every pool, so that only the size of the pool differs.
OPERATIONS_PER_ROUND = 250
NUM_ROUNDS = 60


class AllocatorBench:
    """One pool in which every block has been used, cached and freed. Each round uses other blocks.

    A round first reads the blocks it will use, and their neighbours, so that the clock measures the steps of an
    operation. With ``cold`` it does not: a random block among 10⁶ then also causes a few cache misses, as in any
    structure of that size. ``look`` is the control: it only reads a field.
    """

    def __init__(self, num_blocks: int, rng: random.Random, cold: bool,
                 pool_class: type[BlockPool] = BlockPool) -> None:
        self.rng = rng
        self.cold = cold
        self.pool = pool_class(num_blocks + 1)
        blocks = self.pool.get_new_blocks(num_blocks)
        self._cache(blocks)
        self.pool.free_blocks(blocks)

    def allocate(self) -> float:
        pool, taken = self.pool, []
        start = time.perf_counter()
        for _ in range(OPERATIONS_PER_ROUND):
            taken.extend(pool.get_new_blocks(1))
        elapsed = time.perf_counter() - start
        self._cache(taken)
        pool.free_blocks(taken)
        return elapsed

    def free(self) -> float:
        pool = self.pool
        taken = pool.get_new_blocks(OPERATIONS_PER_ROUND)
        self._cache(taken)
        start = time.perf_counter()
        for block in taken:
            pool.free_blocks((block,))
        return time.perf_counter() - start

    def hit(self) -> float:
        """Find a block by its hash and remove it from the queue, as a prefix hit does."""
        pool = self.pool
        found: list[KVCacheBlock] = []
        hashes = [block.block_hash for block in self._anywhere()]
        if not self.cold:
            for block_hash in hashes:
                pool.get_cached_block(block_hash)
        start = time.perf_counter()
        for block_hash in hashes:
            block = pool.get_cached_block(block_hash)
            assert block is not None
            pool.touch((block,))
            found.append(block)
        elapsed = time.perf_counter() - start
        pool.free_blocks(found)
        return elapsed

    def middle_removal(self) -> float:
        queue = self.pool.free_block_queue
        blocks = self._anywhere()
        start = time.perf_counter()
        for block in blocks:
            queue.remove(block)
        elapsed = time.perf_counter() - start
        queue.append_n(blocks)
        return elapsed

    def look(self) -> float:
        blocks = self._anywhere()
        start = time.perf_counter()
        for block in blocks:
            block.ref_cnt  # noqa: B018
        return time.perf_counter() - start

    def _anywhere(self) -> list[KVCacheBlock]:
        block_ids = self.rng.sample(range(1, self.pool.num_blocks), OPERATIONS_PER_ROUND)
        blocks = [self.pool.blocks[block_id] for block_id in block_ids]
        if not self.cold:
            for block in blocks:
                _ = [near.ref_cnt for near in (block, block.prev_free, block.next_free) if near is not None]
        return blocks

    def _cache(self, blocks: list[KVCacheBlock]) -> None:
        self.pool.cache_full_blocks(blocks, [block.block_id for block in blocks])


def run_allocator(cold: bool = False, rounds: int = NUM_ROUNDS, pool_class: type[BlockPool] = BlockPool,
                  sizes: tuple[int, int] = ALLOCATOR_POOL_SIZES) -> dict[str, tuple[float, float]]:
    """Measure seconds per round in the small and in the large pool, as the median of interleaved rounds."""
    rng = random.Random(0)
    benches = [AllocatorBench(num_blocks, rng, cold, pool_class) for num_blocks in sizes]
    results: dict[str, tuple[float, float]] = {}
    gc.collect()
    gc.disable()
    try:
        for name in ("allocate", "free", "hit", "middle_removal", *(["look"] if cold else [])):
            operations: list[Callable[[], float]] = [getattr(bench, name) for bench in benches]
            times = [[operation() for operation in operations] for _ in range(rounds)]
            results[name] = tuple(statistics.median(column) for column in zip(*times))
    finally:
        gc.enable()
    for bench in benches:
        num_free = bench.pool.get_num_free_blocks()
        assert num_free == bench.pool.num_blocks - 1, f"{num_free} of {bench.pool.num_blocks - 1} blocks were freed"
    benches[0].pool.check_integrity()  # only the small pool is checked: a plain pool may take n² steps for the check
    return results


def print_allocator(cold: bool, rounds: int = NUM_ROUNDS, pool_class: type[BlockPool] = BlockPool,
                    sizes: tuple[int, int] = ALLOCATOR_POOL_SIZES) -> None:
    small, large = sizes
    print(f"{'operations per second':<21} {f'{small:,} blocks':>16} {f'{large:,} blocks':>18} {'cost ratio':>11}")
    ratios = []
    for name, (small_s, large_s) in run_allocator(cold, rounds, pool_class, sizes).items():
        ratio = large_s / small_s
        if name != "look":
            ratios.append(ratio)
        small_rate, large_rate = OPERATIONS_PER_ROUND / small_s, OPERATIONS_PER_ROUND / large_s
        print(f"{name.replace('_', ' '):<21} {small_rate:>16,.0f} {large_rate:>18,.0f} {ratio:>10.2f}x")
    print(f"In short: with {large:,} blocks, an operation of the block pool takes {min(ratios):.2f} to "
          f"{max(ratios):.2f} times as long as with {small:,}")
