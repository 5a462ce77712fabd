"""Tests for a block pool. Each test must pass on every right pool and fail on some wrong pools.

A test is a function ``test_…(pools)``. It makes a fresh pool with ``pools.BlockPool(num_blocks)``, calls its methods,
and checks the results with ``assert`` and ``pytest.raises``. You may add more tests; each test is judged separately.

A test may use only what lab 2.1 promises about the pool:

    pool.get_new_blocks(n)   pool.free_blocks(blocks)   pool.touch(blocks)
    pool.cache_full_blocks(blocks, hashes)   pool.get_cached_block(hash)   pool.evict_blocks(block_ids)
    pool.reset_prefix_cache()   pool.get_num_free_blocks()   pool.get_usage()   pool.num_evictions
    pool.blocks   pool.null_block   pool.free_block_queue.get_all_free_blocks(), oldest first
    block.block_id   block.ref_cnt   block.block_hash   block.is_null

``pools.KVCacheBlock(block_id)`` makes a block that belongs to no pool. A hash is any value that can be a key of a dict,
such as 111. There is no ``check_integrity()`` here: your tests must find the errors that it would find.
"""

from __future__ import annotations

import pytest


def test_the_null_block_is_never_given_out(pools):
    """Check that the null block is not given out. Given as an example: it catches one wrong pool and no other."""
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
    """Return the visible state of a pool: the free blocks in order, and the owners and the hash of each block."""
    blocks = [(block.ref_cnt, block.block_hash, block.is_null) for block in pool.blocks]
    return free_ids(pool), pool.get_num_free_blocks(), pool.num_evictions, blocks


# END SOLUTION ONLY
def test_giving_out(pools):
    """Check that ``get_new_blocks(n)`` gives out the ``n`` blocks that have been free longest, in that order.

    Each of these blocks then has one owner. All free blocks can be given out, including the last one. The call raises
    ValueError if ``n`` is negative.
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
    """Check that ``free_blocks`` drops an owner from each block, and queues blocks without owners in the order given.

    One call may contain a block twice if it has two owners. ``free_blocks`` raises RuntimeError, and no other error, if
    a block has no owner to drop; RuntimeError if one call drops more owners than a block has.
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
    assert shared.ref_cnt == 0, f"both owners of block 1 left in one call; its ref_cnt is {shared.ref_cnt}"
    # END TASK


def test_sharing(pools):
    """Check that ``touch`` adds an owner to each block. After: a free block has left the queue, wherever it was in the
    queue; no other block has moved. A block with several owners is free when the last owner has left, not before.
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
    """Check that ``get_cached_block`` finds content that ``cache_full_blocks`` cached, in a block in use or free.

    The content is forgotten when ``get_new_blocks`` gives the block out again, by ``evict_blocks``, by
    ``reset_prefix_cache``, and at no other time. A lookup changes nothing. If two blocks hold the same content, a
    lookup may return either; when one block is forgotten, a lookup finds the other.
    """
    # TASK 4: test_finding_and_forgetting
    pool = pools.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    pool.cache_full_blocks([a], [111])
    before = state(pool)
    assert pool.get_cached_block(111) is a, "block 1 is in use and was cached under 111"
    assert pool.get_cached_block(222) is None, "nothing was cached under 222"
    assert state(pool) == before, f"two lookups changed the state from {before} to {state(pool)}"
    pool.free_blocks([a])
    assert pool.get_cached_block(111) is a, "block 1 is free and was not given out again, but 111 is not found"
    pool.touch([a])
    assert pool.get_cached_block(111) is a, "block 1 got a new owner, but 111 is not found"

    pool = pools.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    pool.cache_full_blocks([a], [111])
    pool.free_blocks([a])
    pool.free_blocks([b])
    pool.get_new_blocks(2)
    assert pool.get_cached_block(111) is None, "block 1 was given out again, but 111 is still found"

    for gone, left in ((0, 1), (1, 0)):
        pool = pools.BlockPool(4)
        twins = pool.get_new_blocks(2)
        pool.cache_full_blocks(twins, [111, 111])
        assert pool.get_cached_block(111) in twins, "blocks 1 and 2 were both cached under 111"
        pool.evict_blocks([twins[gone].block_id])
        assert pool.get_cached_block(111) is twins[left], f"block {gone + 1} was evicted; its twin still holds 111"
        pool.evict_blocks([twins[left].block_id])
        assert pool.get_cached_block(111) is None, "both blocks that held 111 were evicted"
    # END TASK


def test_a_refused_call_changes_nothing(pools):
    """Check that a call that raises has not changed owners, hashes, the free queue or its order.

    Try calls that can get half-way before they raise: ``get_new_blocks`` with more blocks than are free,
    ``free_blocks`` with a block in use and then the null block, ``cache_full_blocks`` with two blocks and one hash. The
    docstrings of lab 2.1 say what each of them raises.
    """
    # TASK 5: test_a_refused_call_changes_nothing
    pool = pools.BlockPool(6)
    a, b, c = pool.get_new_blocks(3)
    before = state(pool)
    with pytest.raises(ValueError):
        pool.get_new_blocks(3)
    assert state(pool) == before, f"get_new_blocks(3) with 2 free raised, but {before} became {state(pool)}"
    with pytest.raises(RuntimeError):
        pool.free_blocks([a, pool.null_block])
    assert state(pool) == before, f"freeing 1 and the null block raised, but {before} became {state(pool)}"
    with pytest.raises(ValueError):
        pool.cache_full_blocks([a, b], [111])
    assert state(pool) == before, f"caching 2 blocks with 1 hash raised, but {before} became {state(pool)}"
    assert pool.get_cached_block(111) is None, "caching 2 blocks with 1 hash raised, but 111 is found"
    # END TASK
