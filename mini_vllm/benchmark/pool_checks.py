"""The cost of the block pool's checks: the pool next to one of the same shape without checks."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

from mini_vllm.block_pool import BlockPool, FreeKVCacheBlockQueue, KVCacheBlock

POOL_SIZE = 1_001
#: Blocks per call: one more for a decoding request, a small table, a table of 2,000 tokens.
RUN_LENGTHS = (1, 8, 64)
#: Blocks that a timed round takes and gives back.
BLOCKS_PER_ROUND = 2048
NUM_ROUNDS = 200


class UncheckedQueue(FreeKVCacheBlockQueue):
    """The free queue without checks."""

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        blocks = []
        block: Any = self._head.next_free
        for _ in range(n):
            blocks.append(block)
            after = block.next_free
            block.prev_free = block.next_free = None
            block = after
        self._head.next_free = block
        block.prev_free = self._head
        self.num_free_blocks -= n
        return blocks

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        last: Any = self._tail.prev_free
        for block in blocks:
            last.next_free = block
            block.prev_free = last
            last = block
        last.next_free = self._tail
        self._tail.prev_free = last
        self.num_free_blocks += len(blocks)

    def remove(self, block: Any) -> None:
        before, after = block.prev_free, block.next_free
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1


class UncheckedPool(BlockPool):
    """The block pool without checks, as if no caller ever made a mistake. Otherwise it does all that the pool does."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.free_block_queue = UncheckedQueue(self.free_block_queue.popleft_n(num_blocks - 1))

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        blocks = self.free_block_queue.popleft_n(n)
        for block in blocks:
            if block.block_hash is not None:
                self._maybe_evict(block)
                self.num_evictions += 1
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        queue = self.free_block_queue
        for block in blocks:
            if block.ref_cnt == 0:
                queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        needed = {block for copy in self.pending_copies for block in copy} if self.pending_copies else ()
        freed = []
        for block in blocks:
            if block.ref_cnt == 1 and block in needed:
                self._kept_for_copy.add(block.block_id)
                continue
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                freed.append(block)
        self.free_block_queue.append_n(freed)


def allocate_and_free(pool: BlockPool, run_length: int) -> float:
    start = time.perf_counter()
    for _ in range(BLOCKS_PER_ROUND // run_length):
        pool.free_blocks(pool.get_new_blocks(run_length))
    return time.perf_counter() - start


def touch_and_free(pool: BlockPool, run_length: int) -> float:
    """Time a prefix hit on unused blocks, and its end."""
    blocks = pool.blocks[100:100 + run_length]
    start = time.perf_counter()
    for _ in range(BLOCKS_PER_ROUND // run_length):
        pool.touch(blocks)
        pool.free_blocks(blocks)
    return time.perf_counter() - start


def run_checks(rounds: int = NUM_ROUNDS) -> dict[tuple[str, int], tuple[float, float, float]]:
    """Return (operation, run length) → seconds per block, checked and unchecked, and their ratio; medians of rounds in
    turn."""
    pools = [BlockPool(POOL_SIZE), UncheckedPool(POOL_SIZE)]
    results: dict[tuple[str, int], tuple[float, float, float]] = {}
    gc.collect()
    gc.disable()
    try:
        for operation in (allocate_and_free, touch_and_free):
            for run_length in RUN_LENGTHS:
                times = [[operation(pool, run_length) / BLOCKS_PER_ROUND for pool in pools] for _ in range(rounds)]
                checked, unchecked = (statistics.median(column) for column in zip(*times))
                ratio = statistics.median(with_checks / without for with_checks, without in times)
                results[operation.__name__, run_length] = checked, unchecked, ratio
    finally:
        gc.enable()
    for pool in pools:
        pool.check_integrity()
    return results


def print_checks(rounds: int = NUM_ROUNDS) -> None:
    print(f"{'ns per block':<20} {'blocks per call':>15} {'the pool':>10} {'without checks':>16} {'ratio':>7}")
    results = run_checks(rounds)
    for (name, run_length), (checked_s, unchecked_s, ratio) in results.items():
        print(f"{name.replace('_', ' '):<20} {run_length:>15} {checked_s * 1e9:>10.0f} {unchecked_s * 1e9:>16.0f} "
              f"{ratio:>6.2f}x")
    ratios = [ratio for _, _, ratio in results.values()]
    print(f"In short: with its checks, the pool takes {min(ratios):.2f} to {max(ratios):.2f} times as long as without")
