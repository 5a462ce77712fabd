"""Tests of a block pool. Each must pass on every right pool and fail on some wrong ones.

A test is a function ``test_…(pools)``. It makes a fresh pool with ``pools.BlockPool(num_blocks)``, calls it, and says
with ``assert`` and ``pytest.raises`` what must hold. You may add as many tests as you like; each counts by itself.

What a test may use is what lab 2.1 promises of the pool:

    pool.get_new_blocks(n)   pool.free_blocks(blocks)   pool.touch(blocks)
    pool.cache_full_blocks(blocks, hashes)   pool.get_cached_block(hash)   pool.evict_blocks(block_ids)
    pool.reset_prefix_cache()   pool.get_num_free_blocks()   pool.get_usage()   pool.num_evictions
    pool.blocks   pool.null_block   pool.free_block_queue.get_all_free_blocks(), oldest first
    block.block_id   block.ref_cnt   block.block_hash   block.is_null

``pools.KVCacheBlock(block_id)`` makes a block that belongs to no pool. A hash is any value that can be a key of a dict,
such as 111. There is no ``check_integrity()`` here: your tests must find what it would find.
"""

from __future__ import annotations

import pytest


def test_the_null_block_is_never_given_out(pools):
    """Given, as an example. It catches the pool that gives out the null block, and no other."""
    pool = pools.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    numbers = [block.block_id for block in blocks]
    assert pool.null_block not in blocks, f"get_new_blocks(2) of a fresh pool of 4 gave {numbers}: 0 is the null block"


# SOLUTION ONLY
def ids(blocks):
    return [block.block_id for block in blocks]


def free_ids(pool):
    return ids(pool.free_block_queue.get_all_free_blocks())


def state(pool):
    """All that can be seen of a pool: the free blocks in their order, the owners and the hash of each block."""
    blocks = [(block.ref_cnt, block.block_hash, block.is_null) for block in pool.blocks]
    return free_ids(pool), pool.get_num_free_blocks(), pool.num_evictions, blocks


# END SOLUTION ONLY
def test_giving_out(pools):
    """``get_new_blocks(n)`` gives out the ``n`` blocks that have been free longest, in that order.

    Each of them has one owner then. All free blocks can be given out, the last one included. It raises ValueError if
    ``n`` is negative.
    """
    # TASK 1: test_giving_out
    pool = pools.BlockPool(6)
    blocks = pool.get_new_blocks(3)
    assert ids(blocks) == [1, 2, 3], f"get_new_blocks(3) of a fresh pool of 6 gave {ids(blocks)}"
    pool.free_blocks(blocks[1:2])
    got = pool.get_new_blocks(3)
    assert ids(got) == [4, 5, 2], f"4 and 5 have been free longest, then 2; get_new_blocks(3) gave {ids(got)}"
    assert [block.ref_cnt for block in got] == [1, 1, 1], "a block that was just given out has one owner"
    with pytest.raises(ValueError):
        pool.get_new_blocks(-1)
    # END TASK


def test_freeing(pools):
    """``free_blocks`` drops an owner from each block; blocks with no owner left join the queue in the order given.

    One call may contain a block twice if it has two owners. RuntimeError, and no other error, if a block has no owner
    to drop; RuntimeError if one call drops more owners than a block has.
    """
    # TASK 2: test_freeing
    pool = pools.BlockPool(6)
    a, b, c = pool.get_new_blocks(3)
    pool.free_blocks([c, a])
    assert free_ids(pool) == [4, 5, 3, 1], f"free_blocks([3, 1]) with 4, 5 free: the queue reads {free_ids(pool)}"
    with pytest.raises(RuntimeError):
        pool.free_blocks([a])
    with pytest.raises(RuntimeError):
        pool.free_blocks([b, b])

    pool = pools.BlockPool(6)
    (shared,) = pool.get_new_blocks(1)
    pool.touch([shared])
    pool.free_blocks([shared, shared])
    assert shared.ref_cnt == 0, f"both owners of block 1 left in one call, its ref_cnt is {shared.ref_cnt}"
    # END TASK


def test_sharing(pools):
    """``touch`` adds an owner to each block. After: a free block has left the queue, wherever in the queue it was; no
    other block has moved. A block with several owners is free when the last of them has left, not before.
    """
    # TASK 3: test_sharing
    pool = pools.BlockPool(6)
    blocks = pool.get_new_blocks(3)
    for block in blocks:
        pool.free_blocks([block])
    middle = blocks[1]
    pool.touch([middle])
    assert middle.ref_cnt == 1, f"touch(block 2), which was free: its ref_cnt is {middle.ref_cnt}"
    assert free_ids(pool) == [4, 5, 1, 3], f"touch(block 2) with 4, 5, 1, 2, 3 free: the queue reads {free_ids(pool)}"
    pool.touch([middle])
    pool.free_blocks([middle])
    assert middle.ref_cnt == 1, f"one of two owners of block 2 left: its ref_cnt is {middle.ref_cnt}"
    pool.free_blocks([middle])
    assert free_ids(pool) == [4, 5, 1, 3, 2], f"both owners of block 2 left: the queue reads {free_ids(pool)}"
    # END TASK


def test_finding_and_forgetting(pools):
    """``get_cached_block`` finds what ``cache_full_blocks`` cached, while the block is in use and while it is free.

    The content is forgotten when ``get_new_blocks`` gives the block out again, by ``evict_blocks``, by
    ``reset_prefix_cache``, and at no other time. Looking changes nothing. If two blocks hold the same content, either
    may be found, and when one is forgotten the other is found.
    """
    # TASK 4: test_finding_and_forgetting
    pool = pools.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    pool.cache_full_blocks([a], [111])
    before = state(pool)
    assert pool.get_cached_block(111) is a, "block 1 is in use and was cached under 111"
    assert pool.get_cached_block(222) is None, "nothing was cached under 222"
    assert state(pool) == before, f"two looks at the index made {state(pool)} of {before}"
    pool.free_blocks([a])
    assert pool.get_cached_block(111) is a, "block 1 is free and was not given out again: 111 is not found"
    pool.touch([a])
    assert pool.get_cached_block(111) is a, "block 1 was free and got an owner: 111 is not found"

    pool = pools.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    pool.cache_full_blocks([a], [111])
    pool.free_blocks([a])
    pool.free_blocks([b])
    pool.get_new_blocks(2)
    assert pool.get_cached_block(111) is None, "block 1 was given out again: 111 is still found"

    for gone, left in ((0, 1), (1, 0)):
        pool = pools.BlockPool(4)
        twins = pool.get_new_blocks(2)
        pool.cache_full_blocks(twins, [111, 111])
        assert pool.get_cached_block(111) in twins, "blocks 1 and 2 were both cached under 111"
        pool.evict_blocks([twins[gone].block_id])
        assert pool.get_cached_block(111) is twins[left], f"of two blocks that hold 111, block {gone + 1} was evicted"
        pool.evict_blocks([twins[left].block_id])
        assert pool.get_cached_block(111) is None, "both blocks that held 111 were evicted"
    # END TASK


def test_a_refused_call_changes_nothing(pools):
    """A call that raises has left owners, hashes, the free queue and its order as they were.

    Try it with calls that can get half-way before they are refused: ``get_new_blocks`` with more than are free,
    ``free_blocks`` with a block that is in use and then the null block, ``cache_full_blocks`` with two blocks and one
    hash. The docstrings of lab 2.1 say what each of them raises.
    """
    # TASK 5: test_a_refused_call_changes_nothing
    pool = pools.BlockPool(6)
    a, b, c = pool.get_new_blocks(3)
    before = state(pool)
    with pytest.raises(ValueError):
        pool.get_new_blocks(3)
    assert state(pool) == before, f"get_new_blocks(3) with 2 free was refused, and {before} became {state(pool)}"
    with pytest.raises(RuntimeError):
        pool.free_blocks([a, pool.null_block])
    assert state(pool) == before, f"freeing 1 and the null block was refused, and {before} became {state(pool)}"
    with pytest.raises(ValueError):
        pool.cache_full_blocks([a, b], [111])
    assert state(pool) == before, f"caching 2 blocks, 1 hash, was refused, and {before} became {state(pool)}"
    assert pool.get_cached_block(111) is None, "caching 2 blocks, 1 hash, was refused, and 111 is found"
    # END TASK
