"""Tests of a block pool. Each must pass on every right pool and fail on some wrong ones.

A test is a function ``test_…(pools)``. It makes a fresh pool with ``pools.BlockPool(num_blocks)``, calls it, and says
with ``assert`` and ``pytest.raises`` what must hold. You may add as many as you like; each counts by itself.

What a test may use is what lab 2.1 promises of the pool:

    pool.get_new_blocks(n)   pool.free_blocks(blocks)   pool.touch(blocks)
    pool.cache_full_blocks(blocks, hashes)   pool.get_cached_block(hash)   pool.evict_blocks(block_ids)
    pool.reset_prefix_cache()   pool.get_num_free_blocks()   pool.get_usage()   pool.num_evictions
    pool.blocks   pool.null_block   pool.free_block_queue.get_all_free_blocks()   oldest first
    block.block_id   block.ref_cnt   block.block_hash   block.is_null

``pools.KVCacheBlock(block_id)`` makes a block of no pool. A hash is any value that can be a key: 111 will do. There is
no ``check_integrity()`` here: what it would find, your tests have to find.
"""

from __future__ import annotations

import pytest


def test_the_null_block_is_never_given_out(pools):
    """Given, as an example. It catches the pool that gives out the null block, and no other."""
    pool = pools.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    numbers = [block.block_id for block in blocks]
    assert pool.null_block not in blocks, f"get_new_blocks(2) of a fresh pool of 4 gave {numbers}: 0 is the null block"


def test_giving_out(pools):
    """``get_new_blocks(n)`` gives out the ``n`` blocks that have been free longest, in that order.

    Each has one owner now. All that are free can be had, the last one too. ValueError if ``n`` is negative.
    """
    pool = pools.BlockPool(6)
    blocks = pool.get_new_blocks(3)
    assert _ids(blocks) == [1, 2, 3], "a fresh pool gives the lowest ids first"
    assert [block.ref_cnt for block in blocks] == [1, 1, 1], "each has one owner"
    assert pool.get_num_free_blocks() == 2, "two are left"
    pool.free_blocks(blocks)
    assert _ids(pool.get_new_blocks(2)) == [4, 5], "4 and 5 have been free longest"
    assert _ids(pool.get_new_blocks(3)) == [1, 2, 3], "then those freed later, the last one too"
    assert pool.get_num_free_blocks() == 0, "all are given out"
    assert pool.get_new_blocks(0) == [], "none can always be had"
    pool = pools.BlockPool(4)
    with pytest.raises(ValueError):
        pool.get_new_blocks(-1)
    assert _free(pool) == [1, 2, 3], "the queue is as it was"


def test_freeing(pools):
    """``free_blocks`` drops an owner from each block. Those that nobody owns now join the queue in the order given.

    A block may come twice if it has two owners. RuntimeError, and no other, if a block has no owner to drop;
    RuntimeError if one call drops more owners than a block has.
    """
    pool = pools.BlockPool(6)
    a, b, c = pool.get_new_blocks(3)
    pool.free_blocks([b, c, a])
    assert _free(pool) == [4, 5, 2, 3, 1], "they join in the order given"
    assert [block.ref_cnt for block in (a, b, c)] == [0, 0, 0], "nobody owns them"

    pool = pools.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    pool.touch([a])
    pool.free_blocks([a, a])
    assert a.ref_cnt == 0 and _free(pool) == [3, 1], "both owners left in one call"
    with pytest.raises(RuntimeError):
        pool.free_blocks([a])

    pool = pools.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    with pytest.raises(RuntimeError):
        pool.free_blocks([b, b])

    pool = pools.BlockPool(4)
    free_block = pool.blocks[3]
    with pytest.raises(RuntimeError):
        pool.free_blocks([free_block])


def test_sharing(pools):
    """``touch`` adds an owner to each block. After: a free one has left the queue, from wherever it stood; no other
    block has moved. A block with several owners is free when the last of them has left, not before.
    """
    pool = pools.BlockPool(6)
    blocks = pool.get_new_blocks(4)
    pool.free_blocks(blocks)
    assert _free(pool) == [5, 1, 2, 3, 4], "freed in order"
    pool.touch([blocks[1]])
    assert blocks[1].ref_cnt == 1, "one owner"
    assert _free(pool) == [5, 1, 3, 4], "it left the queue from the middle, the others stand as they stood"
    pool.touch([blocks[1]])
    assert blocks[1].ref_cnt == 2, "two owners"
    assert _free(pool) == [5, 1, 3, 4], "it had left before"
    pool.free_blocks([blocks[1]])
    assert blocks[1].ref_cnt == 1 and _free(pool) == [5, 1, 3, 4], "the other owner still has it"
    pool.free_blocks([blocks[1]])
    assert blocks[1].ref_cnt == 0 and _free(pool) == [5, 1, 3, 4, 2], "the last owner left"


def test_finding_and_forgetting(pools):
    """``get_cached_block`` finds what ``cache_full_blocks`` cached, while the block is in use and while it is free.

    It is forgotten when the block is given out again by ``get_new_blocks``, or by ``evict_blocks``, and at no other
    time. Looking changes nothing. Of two blocks with one content either may be found, and when one is forgotten the
    other is found.
    """
    pool = pools.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    pool.cache_full_blocks([a, b], [111, 222])
    assert pool.get_cached_block(111) is a and pool.get_cached_block(222) is b, "found while in use"
    assert a.ref_cnt == 1, "looking is not owning"
    pool.free_blocks([a, b])
    assert pool.get_cached_block(111) is a and pool.get_cached_block(222) is b, "found while free"
    assert a.ref_cnt == 0 and _free(pool) == [3, 1, 2], "looking moves nothing"
    pool.touch([b])
    assert pool.get_cached_block(222) is b, "a hit is still found"
    pool.free_blocks([b])
    assert _ids(pool.get_new_blocks(2)) == [3, 1], "3 and 1 have been free longest"
    assert pool.get_cached_block(111) is None, "1 was given out"
    assert a.block_hash is None, "and has no hash"
    assert pool.get_cached_block(222) is b, "2 was not"
    pool.evict_blocks([2])
    assert pool.get_cached_block(222) is None, "evicted"

    pool = pools.BlockPool(4)
    a, b, c = pool.get_new_blocks(3)
    pool.cache_full_blocks([a, b], [111, 111])
    assert pool.get_cached_block(111) in (a, b), "either twin"
    pool.free_blocks([a])
    pool.get_new_blocks(1)
    assert pool.get_cached_block(111) is b, "one twin is left"
    pool.evict_blocks([2])
    assert pool.get_cached_block(111) is None, "none is left"


def test_a_refused_call_changes_nothing(pools):
    """A call that raises has left owners, hashes, the free queue and its order as they were.

    Try it with calls that can get half-way before they are refused: ``get_new_blocks`` with more than are free,
    ``free_blocks`` with a block that is in use and then the null block, ``cache_full_blocks`` with two blocks and one
    hash. What each of them raises stands in lab 2.1.
    """
    pool = pools.BlockPool(6)
    a, b = pool.get_new_blocks(2)
    pool.free_blocks([a])
    pool.cache_full_blocks([b], [222])
    before = _state(pool)
    with pytest.raises(ValueError):
        pool.get_new_blocks(5)
    assert _state(pool) == before, "too many were asked for"
    with pytest.raises(RuntimeError):
        pool.free_blocks([b, pool.null_block])
    assert _state(pool) == before, "the null block was freed"
    with pytest.raises(RuntimeError):
        pool.free_blocks([b, b])
    assert _state(pool) == before, "freed twice"

    pool = pools.BlockPool(6)
    a, b = pool.get_new_blocks(2)
    before = _state(pool)
    with pytest.raises(ValueError):
        pool.cache_full_blocks([a, b], [111])
    assert _state(pool) == before, "one hash for two blocks"
    assert pool.get_cached_block(111) is None, "nothing was indexed"


def _ids(blocks):
    return [block.block_id for block in blocks]


def _free(pool):
    return _ids(pool.free_block_queue.get_all_free_blocks())


def _state(pool):
    return [(block.ref_cnt, block.block_hash) for block in pool.blocks], _free(pool), pool.get_num_free_blocks()
