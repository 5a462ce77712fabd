"""``course bench``: the cost of an operation of the block pool, in a small and in a large pool."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from mini_vllm.block_pool import BlockPool, KVCacheBlock

POOL_SIZES = (1_000, 1_000_000)
#: Operations per timed round: the same for every pool, so that only the size of the pool differs.
OPERATIONS_PER_ROUND = 250
NUM_ROUNDS = 60
OPERATIONS = ("allocate", "free", "hit", "middle removal")


def full_pool(pool: BlockPool) -> BlockPool:
    """Return the pool after every block has been used, cached and freed."""
    pool.free_blocks(_cached(pool, pool.get_new_blocks(pool.num_blocks - 1)))
    return pool


def time_round(pool: BlockPool, rng: random.Random) -> list[float]:
    """Return the seconds of each of OPERATIONS; the last two are about blocks from anywhere in the queue."""
    def find(block: KVCacheBlock) -> None:
        found = pool.get_cached_block(block.block_hash)
        assert found is not None
        pool.touch((found,))

    taken: list[KVCacheBlock] = []
    allocate_s = _seconds(lambda _: taken.extend(pool.get_new_blocks(1)), range(OPERATIONS_PER_ROUND))
    free_s = _seconds(lambda block: pool.free_blocks((block,)), _cached(pool, taken))
    blocks = _anywhere(pool, rng)
    hit_s = _seconds(find, blocks)
    pool.free_blocks(blocks)
    blocks = _anywhere(pool, rng)
    removal_s = _seconds(pool.free_block_queue.remove, blocks)
    pool.free_block_queue.append_n(blocks)
    return [allocate_s, free_s, hit_s, removal_s]


def _anywhere(pool: BlockPool, rng: random.Random) -> list[KVCacheBlock]:
    """Choose blocks. They and their neighbours are read first, so that no cache miss of the CPU is timed."""
    blocks = [pool.blocks[i] for i in rng.sample(range(1, pool.num_blocks), OPERATIONS_PER_ROUND)]
    for block in blocks:
        _ = [near.ref_cnt for near in (block, block.prev_free, block.next_free) if near is not None]
        pool.get_cached_block(block.block_hash)
    return blocks


def _cached(pool: BlockPool, blocks: list[KVCacheBlock]) -> list[KVCacheBlock]:
    pool.cache_full_blocks(blocks, [block.block_id for block in blocks])
    return blocks


def _seconds(operation: Callable[[Any], object], arguments: Iterable[object]) -> float:
    start_s = time.perf_counter()
    for argument in arguments:
        operation(argument)
    return time.perf_counter() - start_s


def print_allocator(pool_class: type[BlockPool] = BlockPool, sizes: tuple[int, int] = POOL_SIZES,
                    rounds: int = NUM_ROUNDS) -> None:
    """Print operations per second in both pools, as medians of rounds in turns."""
    small, large = sizes
    print(f"{'operations per second':<21} {f'{small:,} blocks':>16} {f'{large:,} blocks':>18} {'cost ratio':>11}")
    pools, rng, ratios = [full_pool(pool_class(num_blocks + 1)) for num_blocks in sizes], random.Random(0), []
    gc.collect()
    gc.disable()
    try:
        taken_s = [[time_round(pool, rng) for pool in pools] for _ in range(rounds)]
    finally:
        gc.enable()
    for number, name in enumerate(OPERATIONS):
        small_s, large_s = (statistics.median(each[size][number] for each in taken_s) for size in (0, 1))
        ratios.append(large_s / small_s)
        print(f"{name:<21} {OPERATIONS_PER_ROUND / small_s:>16,.0f} {OPERATIONS_PER_ROUND / large_s:>18,.0f} "
              f"{ratios[-1]:>10.2f}x")
    print(f"In short: with {large:,} blocks, an operation of the block pool takes {min(ratios):.2f} to "
          f"{max(ratios):.2f} times as long as with {small:,}")
