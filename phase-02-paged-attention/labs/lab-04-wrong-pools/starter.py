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


def test_giving_out(pools):
    """``get_new_blocks(n)`` gives out the ``n`` blocks that have been free longest, in that order.

    Each of them has one owner then. All free blocks can be given out, the last one included. It raises ValueError if
    ``n`` is negative.
    """
    raise NotImplementedError("Task 1: test_giving_out")


def test_freeing(pools):
    """``free_blocks`` drops an owner from each block; blocks with no owner left join the queue in the order given.

    One call may contain a block twice if it has two owners. RuntimeError, and no other error, if a block has no owner
    to drop; RuntimeError if one call drops more owners than a block has.
    """
    raise NotImplementedError("Task 2: test_freeing")


def test_sharing(pools):
    """``touch`` adds an owner to each block. After: a free block has left the queue, wherever in the queue it was; no
    other block has moved. A block with several owners is free when the last of them has left, not before.
    """
    raise NotImplementedError("Task 3: test_sharing")


def test_finding_and_forgetting(pools):
    """``get_cached_block`` finds what ``cache_full_blocks`` cached, while the block is in use and while it is free.

    The content is forgotten when ``get_new_blocks`` gives the block out again, by ``evict_blocks``, by
    ``reset_prefix_cache``, and at no other time. Looking changes nothing. If two blocks hold the same content, either
    may be found, and when one is forgotten the other is found.
    """
    raise NotImplementedError("Task 4: test_finding_and_forgetting")


def test_a_refused_call_changes_nothing(pools):
    """A call that raises has left owners, hashes, the free queue and its order as they were.

    Try it with calls that can get half-way before they are refused: ``get_new_blocks`` with more than are free,
    ``free_blocks`` with a block that is in use and then the null block, ``cache_full_blocks`` with two blocks and one
    hash. The docstrings of lab 2.1 say what each of them raises.
    """
    raise NotImplementedError("Task 5: test_a_refused_call_changes_nothing")
