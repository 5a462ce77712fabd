"""Lab 2.1, the block allocator. Each test pins one rule; its failure says which."""

import contextlib

import pytest


@contextlib.contextmanager
def must_raise(error, call):
    """The call must be refused. An unwritten body is no refusal, though NotImplementedError is a RuntimeError."""
    try:
        yield
    except NotImplementedError:
        raise
    except error:
        return
    pytest.fail(f"{call} was accepted, expected a {error.__name__}", pytrace=False)


def ids(blocks):
    return [block.block_id for block in blocks]


def make_queue(lab, block_ids):
    """A queue of fresh blocks, and the blocks by id."""
    blocks = {block_id: lab.KVCacheBlock(block_id) for block_id in block_ids}
    return lab.FreeKVCacheBlockQueue(list(blocks.values())), blocks


def read(queue):
    """The queue read forwards, proved to read the same backwards and to agree with its count."""
    blocks = queue.get_all_free_blocks()
    for left, right in zip(blocks, blocks[1:]):
        assert left.next_free is right, f"block {left.block_id} comes before {right.block_id}, but does not point at it"
        assert right.prev_free is left, (f"block {right.block_id} follows {left.block_id}, but its prev_free points "
                                         "elsewhere: both directions must be linked")
    assert queue.num_free_blocks == len(blocks), (f"num_free_blocks is {queue.num_free_blocks}, but walking the queue "
                                                  f"finds {ids(blocks)}: the count must follow every change")
    return ids(blocks)


def free_ids(pool):
    return read(pool.free_block_queue)


def state(pool):
    """What a call that fails must leave alone."""
    return free_ids(pool), [(block.ref_cnt, block.block_hash) for block in pool.blocks]


def assert_sound(pool):
    """Invariants 1 and 2: free iff unowned; free + owned + null = all."""
    free = free_ids(pool)
    for block in pool.blocks[1:]:
        assert (block.block_id in free) == (block.ref_cnt == 0), (
            f"block {block.block_id} has ref_cnt {block.ref_cnt} and is {'' if block.block_id in free else 'not '}in "
            "the free queue: a block is free iff nobody owns it")
    assert 0 not in free, "the null block is in the free queue: it is never given out"


def assert_unchanged(pool, before, call):
    assert state(pool) == before, (f"{call} raised, as it should, but changed the pool: queue and (ref_cnt, hash) were "
                                   f"{before}, are {state(pool)}. Check everything first, then change")


# ---- Task 1


@pytest.mark.points(1)
def test_task_1_reset_hash_forgets_the_hash_only(lab):
    block = lab.KVCacheBlock(block_id=3, ref_cnt=2, block_hash=99)
    block.reset_hash()
    got = (block.block_id, block.ref_cnt, block.block_hash)
    assert got == (3, 2, None), f"after reset_hash() (id, ref_cnt, hash) is {got}, expected (3, 2, None)"


@pytest.mark.points(1)
def test_task_1_append_puts_blocks_at_the_end_in_order(lab):
    queue, blocks = make_queue(lab, [4, 7])
    queue.append(lab.KVCacheBlock(2))
    got = read(queue)
    assert got == [4, 7, 2], f"a queue of 4, 7 after append(block 2) reads {got}, expected [4, 7, 2]"
    assert all(block.prev_free is not None and block.next_free is not None for block in blocks.values()), \
        "a queued block has two neighbours, at the ends the fake head and the fake tail: neither link may be None"


@pytest.mark.points(1)
def test_task_1_an_empty_queue_reads_empty(lab):
    queue, _ = make_queue(lab, [])
    queue.append(lab.KVCacheBlock(5))
    assert read(queue) == [5], f"an empty queue after append(block 5) reads {read(queue)}, expected [5]"
    assert read(make_queue(lab, [])[0]) == [], "a queue made from no blocks must read empty"


@pytest.mark.points(1)
@pytest.mark.parametrize("which", [1, 2, 3])
def test_task_1_append_refuses_a_block_that_is_queued(lab, which):
    queue, blocks = make_queue(lab, [1, 2, 3])
    with must_raise(RuntimeError, f"append(block {which}), which is queued already,"):
        queue.append(blocks[which])
    assert read(queue) == [1, 2, 3], f"append(block {which}), queued already, raised but left {read(queue)}"


# ---- Task 2


@pytest.mark.points(3)
@pytest.mark.parametrize("which, left", [(2, [1, 3]), (1, [2, 3]), (3, [1, 2])])
def test_task_2_remove_from_the_middle_keeps_order(lab, which, left):
    queue, blocks = make_queue(lab, [1, 2, 3])
    queue.remove(blocks[which])
    got = read(queue)
    assert got == left, (f"after remove(block {which}) from 1→2→3 the queue reads {got}, expected {left}: "
                         "the neighbours of a removed block must point at each other")


@pytest.mark.points(2)
def test_task_2_a_removed_block_has_no_links_and_can_come_back(lab):
    queue, blocks = make_queue(lab, [1, 2, 3])
    queue.remove(blocks[2])
    links = (blocks[2].prev_free, blocks[2].next_free)
    assert links == (None, None), f"after remove(block 2) its links are {links}: a block outside the queue has none"
    queue.append(blocks[2])
    assert read(queue) == [1, 3, 2], f"block 2, removed and appended again, must be last; the queue is {read(queue)}"


@pytest.mark.points(2)
def test_task_2_remove_refuses_a_block_that_is_not_queued(lab):
    queue, blocks = make_queue(lab, [1, 2, 3])
    queue.remove(blocks[2])
    for stranger in (blocks[2], lab.KVCacheBlock(9)):
        with must_raise(RuntimeError, f"remove(block {stranger.block_id}), which is not queued,"):
            queue.remove(stranger)
        assert read(queue) == [1, 3], f"remove(block {stranger.block_id}) raised but left {read(queue)}, not [1, 3]"


@pytest.mark.points(3)
@pytest.mark.task(2)
def test_free_queue_o1_middle_removal(lab):
    """Counts the blocks that remove() looks at: the block and its two neighbours, however long the queue."""
    looked_at = set()

    class Spy(lab.KVCacheBlock):
        def __getattribute__(self, name):
            if name in ("prev_free", "next_free"):
                looked_at.add(object.__getattribute__(self, "block_id"))
            return object.__getattribute__(self, name)

        def __eq__(self, other):  # list.remove() compares instead of following links
            looked_at.add(object.__getattribute__(self, "block_id"))
            return self is other

        __hash__ = object.__hash__

    blocks = [Spy(block_id) for block_id in range(1000)]
    queue = lab.FreeKVCacheBlockQueue(blocks)
    looked_at.clear()
    queue.remove(blocks[500])
    num_looked_at = len(looked_at)
    assert num_looked_at <= 3, (f"remove() of block 500 among 1000 looked at {num_looked_at} blocks, expected at most "
                                "3 (itself and two neighbours): a block knows its neighbours, do not search for it")
    assert len(read(queue)) == 999, f"one of 1000 blocks was removed, {len(read(queue))} are left"


# ---- Task 3


@pytest.mark.points(2)
def test_task_3_popleft_takes_the_oldest(lab):
    queue, _ = make_queue(lab, [4, 7, 2])
    got = [queue.popleft().block_id for _ in range(3)]
    assert got == [4, 7, 2], f"three popleft() from 4→7→2 gave {got}: the block that is free longest goes first"
    assert read(queue) == [], "the queue must be empty now"


@pytest.mark.points(1)
def test_task_3_popleft_from_an_empty_queue_is_a_value_error(lab):
    queue, _ = make_queue(lab, [4])
    queue.popleft()
    with must_raise(ValueError, "popleft() on an empty queue"):
        queue.popleft()
    assert read(queue) == [], f"popleft() on an empty queue raised but left {read(queue)}: the fake tail is not a block"


@pytest.mark.points(2)
@pytest.mark.parametrize("n", [4, -1])
def test_task_3_popleft_n_takes_all_or_none(lab, n):
    queue, _ = make_queue(lab, [1, 2, 3])
    got = ids(queue.popleft_n(2))
    assert got == [1, 2], f"popleft_n(2) from 1→2→3 gave {got}, expected [1, 2]"
    assert queue.popleft_n(0) == [], "popleft_n(0) gives an empty list"
    queue, _ = make_queue(lab, [1, 2, 3])
    with must_raise(ValueError, f"popleft_n({n}) with 3 blocks queued"):
        queue.popleft_n(n)
    assert read(queue) == [1, 2, 3], f"popleft_n({n}) from 3 blocks raised, but left {read(queue)}: it must take none"


@pytest.mark.points(2)
def test_task_3_append_n_adds_all_or_none(lab):
    queue, blocks = make_queue(lab, [1, 2, 3])
    taken = queue.popleft_n(2)
    for bad in ([*taken, blocks[3]], [taken[0], taken[0]]):
        with must_raise(RuntimeError, f"append_n({ids(bad)}) with block 3 queued"):
            queue.append_n(bad)
        assert read(queue) == [3], f"append_n({ids(bad)}) raised, but left {read(queue)}, expected [3]: all or none"
    queue.append_n(taken[::-1])
    assert read(queue) == [3, 2, 1], f"append_n([2, 1]) to a queue of 3 reads {read(queue)}, expected [3, 2, 1]"


# ---- Task 4


@pytest.mark.points(1)
def test_task_4_the_hash_is_that_of_parent_and_tokens(lab):
    assert lab.hash_block_tokens(None, [1, 2, 3]) == hash((None, (1, 2, 3))), \
        "hash_block_tokens(None, [1, 2, 3]) must be hash((None, (1, 2, 3)))"
    assert lab.hash_block_tokens(77, iter([1, 2])) == hash((77, (1, 2))), \
        "hash_block_tokens(77, ...) must be hash((77, (1, 2))), for any iterable of tokens"


@pytest.mark.points(2)
def test_task_4_equal_tokens_after_other_prefixes_differ(lab):
    values = [lab.hash_block_tokens(parent, [5, 6]) for parent in (None, 1, 2)]
    assert len(set(values)) == 3, ("the tokens [5, 6] after three different prefixes gave equal hashes: their K/V "
                                   "differs, because attention has seen different tokens before them")


@pytest.mark.points(1)
def test_task_4_every_bit_of_a_token_counts(lab):
    for a, b in (([1, 2], [2, 1]), ([1, 2], [257, 2]), ([1, 2], [65537, 2])):
        assert lab.hash_block_tokens(None, a) != lab.hash_block_tokens(None, b), \
            f"the tokens {a} and {b} gave the same hash: order and the whole token id must count"


@pytest.mark.points(1)
def test_task_4_extra_keys_keep_equal_texts_apart(lab):
    plain, a, b = (lab.hash_block_tokens(None, [1, 2], keys) for keys in (None, ("tenant a",), ("tenant b",)))
    assert len({plain, a, b}) == 3, "the same tokens for no tenant, tenant a and tenant b must have three hashes"


# ---- Task 5


@pytest.mark.points(2)
def test_task_5_new_blocks_are_owned_and_never_the_null_block(lab):
    pool = lab.BlockPool(5)
    blocks = pool.get_new_blocks(4)
    assert ids(blocks) == [1, 2, 3, 4], f"get_new_blocks(4) from a fresh pool of 5 gave {ids(blocks)}, expected 1 to 4"
    assert [block.ref_cnt for block in blocks] == [1, 1, 1, 1], "a block that was just given out has one owner"
    assert_sound(pool)


@pytest.mark.points(2)
def test_task_5_asking_for_more_than_is_free_takes_nothing(lab):
    pool = lab.BlockPool(5)
    pool.get_new_blocks(2)
    before = state(pool)
    for n in (3, -1):
        with must_raise(ValueError, f"get_new_blocks({n}) with 2 free"):
            pool.get_new_blocks(n)
        assert_unchanged(pool, before, f"get_new_blocks({n}) with 2 free")


@pytest.mark.points(2)
def test_task_5_usage_runs_from_0_to_1_without_the_null_block(lab):
    pool = lab.BlockPool(5)
    got = [pool.get_usage()]
    for _ in range(2):
        pool.get_new_blocks(2)
        got.append(pool.get_usage())
    assert got == [0.0, 0.5, 1.0], (f"a pool of 5, then two blocks more twice: usage {got}, expected [0.0, 0.5, 1.0]: "
                                    "the null block can never be used, so it is not part of the whole")
    assert lab.BlockPool(1).get_usage() == 0.0, "a pool with only the null block has usage 0.0, not an error"


@pytest.mark.points(2)
def test_task_5_free_blocks_go_to_the_end_in_the_order_given(lab):
    pool = lab.BlockPool(6)
    blocks = pool.get_new_blocks(3)
    pool.free_blocks(reversed(blocks))
    got = free_ids(pool)
    assert got == [4, 5, 3, 2, 1], (f"free_blocks([3, 2, 1]) with 4, 5 free: the queue reads {got}, expected "
                                    "[4, 5, 3, 2, 1]: freed last is reused last")
    assert_sound(pool)


@pytest.mark.points(3)
def test_task_5_freeing_what_is_free_fails_at_once(lab):
    pool = lab.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    pool.free_blocks([a])
    before = state(pool)
    for bad, call in (([b, a], "free_blocks([2, 1]) where 1 is free"), ([b, b], "free_blocks([2, 2]) with one owner")):
        with must_raise(RuntimeError, call):
            pool.free_blocks(bad)
        assert_unchanged(pool, before, call)


@pytest.mark.points(1)
def test_task_5_free_blocks_refuses_the_null_block_and_strangers(lab):
    pool = lab.BlockPool(4)
    (mine,) = pool.get_new_blocks(1)
    before = state(pool)
    for bad in (pool.null_block, lab.KVCacheBlock(1, ref_cnt=1)):
        with must_raise(RuntimeError, f"free_blocks([block 1, {bad}])"):
            pool.free_blocks([mine, bad])
        assert_unchanged(pool, before, f"free_blocks([block 1, {bad}])")


# ---- Task 6


@pytest.mark.points(3)
def test_task_6_touch_pulls_a_free_block_out_of_the_middle(lab):
    pool = lab.BlockPool(6)
    blocks = pool.get_new_blocks(5)
    pool.free_blocks(blocks)
    pool.touch([blocks[2]])
    got = free_ids(pool)
    assert got == [1, 2, 4, 5], (f"touch(block 3) with 1→2→3→4→5 free left the queue {got}, expected [1, 2, 4, 5]: a "
                                 "block in use must not be given to someone else")
    assert blocks[2].ref_cnt == 1, f"touch() gave block 3 ref_cnt {blocks[2].ref_cnt}, expected 1"
    assert_sound(pool)


@pytest.mark.points(2)
def test_task_6_a_shared_block_is_free_when_its_last_owner_leaves(lab):
    pool = lab.BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    assert block.ref_cnt == 2, f"given out and touched once, block 1 has ref_cnt {block.ref_cnt}, expected 2"
    pool.free_blocks([block])
    assert free_ids(pool) == [2], f"one of two owners left and the queue reads {free_ids(pool)}, expected [2]"
    pool.free_blocks([block])
    assert free_ids(pool) == [2, 1], f"both owners left and the queue reads {free_ids(pool)}, expected [2, 1]"


@pytest.mark.points(1)
def test_task_6_touch_refuses_the_null_block_and_strangers(lab):
    pool = lab.BlockPool(4)
    (mine,) = pool.get_new_blocks(1)
    pool.touch([mine])
    before = state(pool)
    for bad in (pool.null_block, lab.KVCacheBlock(2)):
        with must_raise(RuntimeError, f"touch([block 1, {bad}])"):
            pool.touch([mine, bad])
        assert_unchanged(pool, before, f"touch([block 1, {bad}])")


# ---- Task 7


@pytest.mark.points(2)
def test_task_7_a_cached_block_is_found_in_use_and_free(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [111, 222])
    assert pool.get_cached_block(222) is blocks[1], "block 2 was cached under 222, but get_cached_block(222) is not it"
    assert pool.get_cached_block(333) is None, "nothing was cached under 333: expected None"
    pool.free_blocks(blocks)
    assert pool.get_cached_block(111) is blocks[0], ("block 1 was freed and is no longer found: a free block keeps its "
                                                     "content until it is given out again")
    assert free_ids(pool) == [3, 1, 2], "looking must not take a block out of the queue"
    pool.check_integrity()


@pytest.mark.points(2)
def test_task_7_caching_with_fewer_hashes_than_blocks_fails_at_once(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    before = state(pool)
    with must_raise(ValueError, "cache_full_blocks(2 blocks, 1 hash)"):
        pool.cache_full_blocks(blocks, [111])
    assert_unchanged(pool, before, "cache_full_blocks(2 blocks, 1 hash)")
    assert pool.get_cached_block(111) is None, "the call failed, so nothing may be found under 111"
    pool.cache_full_blocks(blocks, [111, 222, 333])
    assert pool.get_cached_block(333) is None, "a hash without a block must not be indexed"


@pytest.mark.points(1)
def test_task_7_a_block_holds_one_content_at_a_time(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks[:1], [111])
    pool.cache_full_blocks(blocks[:1], [111])
    before = state(pool)
    with must_raise(RuntimeError, "caching block 1 under 222 while it is indexed under 111"):
        pool.cache_full_blocks(blocks[::-1], [333, 222])
    assert_unchanged(pool, before, "caching block 1 under 222 while it is indexed under 111")


@pytest.mark.points(1)
def test_task_7_only_owned_blocks_of_the_pool_can_be_cached(lab):
    pool = lab.BlockPool(4)
    (mine,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([mine], [7])
    before = state(pool)
    for bad in (pool.blocks[2], pool.null_block, lab.KVCacheBlock(1, ref_cnt=1)):
        with must_raise(RuntimeError, f"cache_full_blocks([block 1, {bad}])"):
            pool.cache_full_blocks([mine, bad], [7, 8])
        assert_unchanged(pool, before, f"cache_full_blocks([block 1, {bad}])")


@pytest.mark.points(1)
def test_task_7_with_caching_off_nothing_is_found(lab):
    pool = lab.BlockPool(3, enable_caching=False)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [111])
    assert pool.get_cached_block(111) is None and block.block_hash is None, \
        "enable_caching=False: cache_full_blocks must do nothing"


# ---- Task 8


@pytest.mark.points(3)
def test_task_8_giving_a_cached_block_out_again_forgets_its_content(lab):
    pool = lab.BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [111])
    pool.free_blocks([block])
    new = pool.get_new_blocks(2)
    assert block in new and block.block_hash is None, "block 1 was given to a new owner and still carries the old hash"
    assert pool.get_cached_block(111) is None, ("block 1 was given to a new owner, who will overwrite it, and is still "
                                                "found under its old hash: the index names content that is gone")
    assert pool.num_evictions == 1, f"one cached block was given out again, num_evictions is {pool.num_evictions}"
    pool.check_integrity()


@pytest.mark.points(3)
@pytest.mark.parametrize("goes", [0, 1])
def test_task_8_a_twin_survives_the_eviction_of_the_other(lab, goes):
    pool = lab.BlockPool(4)
    twins = pool.get_new_blocks(2)
    pool.cache_full_blocks(twins[:1], [111])
    pool.cache_full_blocks(twins[1:], [111])
    pool.evict_blocks([twins[goes].block_id])
    stays = twins[1 - goes]
    assert pool.get_cached_block(111) is stays, (
        f"blocks 1 and 2 hold the same content; block {twins[goes].block_id} was evicted and block {stays.block_id} is "
        "not found: either twin must serve after the other is gone")
    assert twins[goes].block_hash is None and stays.block_hash == 111, "only the evicted twin loses its hash"
    pool.evict_blocks([stays.block_id])
    assert pool.get_cached_block(111) is None, "both twins are evicted: nothing may be found"
    pool.check_integrity()


@pytest.mark.points(1)
def test_task_8_evict_blocks_leaves_owners_and_queue_alone(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [111, 222])
    pool.free_blocks(blocks[1:])
    pool.evict_blocks([1, 2, 3])
    assert [block.ref_cnt for block in blocks] == [1, 0] and free_ids(pool) == [3, 2], \
        "evict_blocks takes blocks out of the index only: reference counts and queue must stay"
    assert pool.num_evictions == 0, (f"no block was given out again, num_evictions is {pool.num_evictions}, not 0: it "
                                     "counts content that was lost to make room")
    pool.cache_full_blocks(blocks[:1], [111])
    before = state(pool)
    with must_raise(ValueError, "evict_blocks([1, 4]) in a pool of 4"):
        pool.evict_blocks([1, 4])
    assert_unchanged(pool, before, "evict_blocks([1, 4]) in a pool of 4")


@pytest.mark.points(2)
def test_task_8_reset_is_refused_while_blocks_are_in_use(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [111, 222])
    before = state(pool)
    with must_raise(RuntimeError, "reset_prefix_cache() with 2 blocks in use"):
        pool.reset_prefix_cache()
    assert_unchanged(pool, before, "reset_prefix_cache() with 2 blocks in use")
    assert pool.get_cached_block(111) is blocks[0], "a refused reset must leave the index as it was"
    pool.free_blocks(blocks)
    pool.reset_prefix_cache()
    assert pool.get_cached_block(111) is None and blocks[0].block_hash is None, "after a reset nothing is cached"
    pool.check_integrity()
