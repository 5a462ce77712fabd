"""The pool without checks does what the pool does; otherwise comparing their times would say nothing."""

import random

import pytest

from mini_vllm.benchmark.pool_checks import RUN_LENGTHS, UncheckedPool, run_checks
from mini_vllm.block_pool import BlockPool
from mini_vllm.test_block_pool import ids, snapshot


@pytest.mark.parametrize("seed", range(5))
def test_both_pools_live_through_the_same(seed):
    rng = random.Random(seed)
    pools = [BlockPool(30), UncheckedPool(30)]
    owned: list[int] = []
    for step in range(300):
        kind = rng.choice(["get", "touch", "free", "free", "cache", "fork", "finish"])
        few = rng.sample(owned, rng.randint(0, min(len(owned), 4)))
        if kind == "get":
            n = rng.randint(0, min(5, pools[0].get_num_free_blocks()))
            got, expected = (ids(pool.get_new_blocks(n)) for pool in pools)
            assert got == expected
            owned += got
        elif kind == "touch":
            few += rng.sample(range(1, 30), 2)
            for pool in pools:
                pool.touch([pool.blocks[i] for i in few])
            owned += few
        elif kind == "free":
            for pool in pools:
                pool.free_blocks([pool.blocks[i] for i in few])
            for i in few:
                owned.remove(i)
        elif kind == "cache" and few and pools[0].blocks[few[0]].block_hash is None:
            for pool in pools:
                pool.cache_full_blocks([pool.blocks[few[0]]], [1000 + step])
        elif kind == "fork" and few and pools[0].get_num_free_blocks():
            copy, _ = (pool.fork_block(pool.blocks[few[0]]).block_id for pool in pools)
            owned.remove(few[0])
            owned.append(copy)
        elif kind == "finish":
            for pool in pools:
                pool.finish_copies()
        assert snapshot(pools[0]) == snapshot(pools[1])
        pools[0].check_integrity()
        pools[1].check_integrity()


def test_every_operation_is_measured_in_runs_of_every_length():
    results = run_checks(rounds=1)
    assert list(results) == [(name, length) for name in ("allocate_and_free", "touch_and_free")
                             for length in RUN_LENGTHS]
    assert all(seconds > 0 for times in results.values() for seconds in times)
