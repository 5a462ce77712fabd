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


def test_giving_out(pools):
    """Check that ``get_new_blocks(n)`` gives out the ``n`` blocks that have been free longest, in that order.

    Each of these blocks then has one owner. All free blocks can be given out, including the last one. The call raises
    ValueError if ``n`` is negative.
    """
    raise NotImplementedError("Task 1: test_giving_out")


def test_freeing(pools):
    """Check that ``free_blocks`` drops an owner from each block, and queues blocks without owners in the order given.

    One call may contain a block twice if it has two owners. ``free_blocks`` raises RuntimeError, and no other error, if
    a block has no owner to drop; RuntimeError if one call drops more owners than a block has.
    """
    raise NotImplementedError("Task 2: test_freeing")


def test_sharing(pools):
    """Check that ``touch`` adds an owner to each block. After: a free block has left the queue, wherever it was in the
    queue; no other block has moved. A block with several owners is free when the last owner has left, not before.
    """
    raise NotImplementedError("Task 3: test_sharing")


def test_finding_and_forgetting(pools):
    """Check that ``get_cached_block`` finds content that ``cache_full_blocks`` cached, in a block in use or free.

    The content is forgotten when ``get_new_blocks`` gives the block out again, by ``evict_blocks``, by
    ``reset_prefix_cache``, and at no other time. A lookup changes nothing. If two blocks hold the same content, a
    lookup may return either; when one block is forgotten, a lookup finds the other.
    """
    raise NotImplementedError("Task 4: test_finding_and_forgetting")


def test_a_refused_call_changes_nothing(pools):
    """Check that a call that raises has not changed owners, hashes, the free queue or its order.

    Try calls that can get half-way before they raise: ``get_new_blocks`` with more blocks than are free,
    ``free_blocks`` with a block in use and then the null block, ``cache_full_blocks`` with two blocks and one hash. The
    docstrings of lab 2.1 say what each of them raises.
    """
    raise NotImplementedError("Task 5: test_a_refused_call_changes_nothing")
