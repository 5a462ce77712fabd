"""Tests of the block allocator: every rule once by example, then all of them at random."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mini_vllm.block_pool import BlockHash, BlockPool, FreeKVCacheBlockQueue, KVCacheBlock, hash_block_tokens
from mini_vllm.conftest import examples


def ids(blocks):
    return [block.block_id for block in blocks]


def queue_of(*block_ids):
    blocks = {i: KVCacheBlock(i) for i in block_ids}
    return FreeKVCacheBlockQueue(list(blocks.values())), blocks


def free_ids(pool):
    return ids(pool.free_block_queue.get_all_free_blocks())


def snapshot(pool):
    """Return all of a pool's state that a failed call must leave unchanged."""
    return (free_ids(pool), pool.get_num_free_blocks(), pool.num_evictions,
            [(b.ref_cnt, b.block_hash, b.is_null) for b in pool.blocks],
            {h: sorted(twins) for h, twins in pool._cached.items()},
            [(a.block_id, b.block_id) for a, b in pool.pending_copies])


# ---- the block


def test_a_block_starts_free_unhashed_and_unlinked():
    block = KVCacheBlock(7)
    assert (block.block_id, block.ref_cnt, block.block_hash, block.is_null) == (7, 0, None, False)
    assert block.prev_free is None and block.next_free is None


def test_reset_hash_forgets_the_hash_only():
    block = KVCacheBlock(block_id=7, ref_cnt=2, block_hash=99)
    block.reset_hash()
    assert block.block_hash is None and block.ref_cnt == 2


def test_repr_of_a_queued_block_names_its_neighbours_and_stays_short():
    queue, blocks = queue_of(*range(1000))
    text = repr(blocks[500])
    assert "prev_free=499" in text and "next_free=501" in text and len(text) < 200
    assert queue.num_free_blocks == 1000


# ---- the queue


def test_the_queue_gives_the_oldest_first():
    queue, _ = queue_of(1, 2, 3)
    assert [queue.popleft().block_id for _ in range(3)] == [1, 2, 3]
    assert queue.num_free_blocks == 0


def test_popleft_on_empty_raises():
    queue, _ = queue_of()
    with pytest.raises(ValueError, match="0 free blocks"):
        queue.popleft()
    assert queue.num_free_blocks == 0 and queue.get_all_free_blocks() == []


def test_a_popped_block_has_no_links():
    queue, _ = queue_of(1, 2)
    block = queue.popleft()
    assert block.prev_free is None and block.next_free is None


def test_free_queue_o1_middle_removal():
    queue, blocks = queue_of(1, 2, 3, 4, 5)
    queue.remove(blocks[3])
    assert ids(queue.get_all_free_blocks()) == [1, 2, 4, 5]
    assert blocks[2].next_free is blocks[4] and blocks[4].prev_free is blocks[2]
    assert blocks[3].prev_free is None and blocks[3].next_free is None
    assert queue.num_free_blocks == 4


@pytest.mark.parametrize("victim, left", [(1, [2, 3]), (3, [1, 2])])
def test_removal_at_the_ends(victim, left):
    queue, blocks = queue_of(1, 2, 3)
    queue.remove(blocks[victim])
    assert ids(queue.get_all_free_blocks()) == left
    queue.append(blocks[victim])
    assert ids(queue.get_all_free_blocks()) == [*left, victim]


def test_removing_what_is_not_queued_raises_and_changes_nothing():
    queue, blocks = queue_of(1, 2, 3)
    queue.remove(blocks[2])
    for stranger in (blocks[2], KVCacheBlock(9)):
        with pytest.raises(RuntimeError, match=f"block {stranger.block_id} is not in the free queue"):
            queue.remove(stranger)
    assert ids(queue.get_all_free_blocks()) == [1, 3] and queue.num_free_blocks == 2


def test_appending_what_is_queued_raises_and_changes_nothing():
    queue, blocks = queue_of(1, 2, 3)
    for block in blocks.values():
        with pytest.raises(RuntimeError, match=f"block {block.block_id} is in a free queue already"):
            queue.append(block)
    assert ids(queue.get_all_free_blocks()) == [1, 2, 3] and queue.num_free_blocks == 3


def test_popleft_n_takes_n_or_none():
    queue, _ = queue_of(1, 2, 3)
    for n in (4, -1):
        with pytest.raises(ValueError, match=rf"popleft_n\({n}\): there are 3 free"):
            queue.popleft_n(n)
    assert queue.popleft_n(0) == []
    assert ids(queue.popleft_n(2)) == [1, 2]
    assert ids(queue.get_all_free_blocks()) == [3]


def test_append_n_keeps_the_order_and_is_all_or_nothing():
    queue, blocks = queue_of(1, 2, 3)
    taken = queue.popleft_n(2)
    with pytest.raises(RuntimeError, match="block 3"):
        queue.append_n([*taken, blocks[3]])
    with pytest.raises(RuntimeError, match="appears twice"):
        queue.append_n([taken[0], taken[0]])
    assert ids(queue.get_all_free_blocks()) == [3] and queue.num_free_blocks == 1
    queue.append_n(taken[::-1])
    assert ids(queue.get_all_free_blocks()) == [3, 2, 1]


def links(queue):
    """Return the ids from the fake head to the fake tail, following the links of each direction."""
    forth, back = [], []
    block = queue._head.next_free
    while block is not queue._tail:
        forth.append(block.block_id)
        block = block.next_free
    block = queue._tail.prev_free
    while block is not queue._head:
        back.append(block.block_id)
        block = block.prev_free
    return forth, back[::-1]


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_run_is_relinked_whole_in_both_directions(n):
    queue, _ = queue_of(1, 2, 3, 4, 5)
    run = queue.popleft_n(n)
    left = list(range(n + 1, 6))
    assert links(queue) == (left, left) and queue.num_free_blocks == 5 - n
    assert all(block.prev_free is None and block.next_free is None for block in run)
    queue.append_n(run)
    after = left + ids(run)
    assert links(queue) == (after, after) and queue.num_free_blocks == 5


# ---- the hash


def test_the_hash_is_the_chained_tuple_hash():
    assert hash_block_tokens(None, [1, 2]) == hash((None, (1, 2)))
    assert hash_block_tokens(5, (1, 2)) == hash((5, (1, 2)))
    assert hash_block_tokens(5, [1, 2], ()) == hash((5, (1, 2)))


def test_the_hash_depends_on_parent_order_and_extra_keys():
    values = {hash_block_tokens(None, [1, 2]), hash_block_tokens(None, [2, 1]), hash_block_tokens(7, [1, 2]),
              hash_block_tokens(None, [1, 2], ("tenant a",)), hash_block_tokens(None, [1, 2], ("tenant b",)),
              hash_block_tokens(None, [257, 2])}
    assert len(values) == 6


def test_a_block_hash_is_the_number_and_the_proof(monkeypatch):
    root = BlockHash(None, [1, 2])
    assert root == hash_block_tokens(None, [1, 2]) and hash(root) == hash(int(root))
    assert BlockHash(root, [3]) == BlockHash(BlockHash(None, [1, 2]), [3])
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 42)
    a, b = BlockHash(None, [1, 2]), BlockHash(None, [1, 3])
    assert hash(a) == hash(b) and a != b and not a == b
    assert BlockHash(a, [9]) != BlockHash(b, [9]), "same tokens, other parent"
    assert BlockHash(a, [9]) != a and BlockHash(None, [1, 2], ("x",)) != a
    assert len({a: 0, b: 1, BlockHash(a, [9]): 2}) == 3


def test_comparing_long_chains_does_not_recurse():
    def chain():
        link = None
        for i in range(5000):
            link = BlockHash(link, [i])
        return link
    assert chain() == chain()


# ---- the pool: owning


def test_a_new_pool_owns_all_but_the_null_block():
    pool = BlockPool(5)
    assert pool.null_block is pool.blocks[0] and pool.null_block.is_null
    assert free_ids(pool) == [1, 2, 3, 4] and pool.get_num_free_blocks() == 4 and pool.get_usage() == 0.0
    pool.check_integrity()


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_a_pool_needs_blocks(num_blocks):
    with pytest.raises(ValueError, match=f"num_blocks is {num_blocks}"):
        BlockPool(num_blocks)


def test_usage_runs_from_0_to_1_without_the_null_block():
    pool = BlockPool(5)
    blocks = pool.get_new_blocks(2)
    assert pool.get_usage() == 0.5
    blocks += pool.get_new_blocks(2)
    assert pool.get_usage() == 1.0
    pool.free_blocks(blocks)
    assert pool.get_usage() == 0.0
    assert BlockPool(1).get_usage() == 0.0


def test_new_blocks_have_one_owner_and_are_never_the_null_block():
    pool = BlockPool(5)
    blocks = pool.get_new_blocks(4)
    assert ids(blocks) == [1, 2, 3, 4] and {b.ref_cnt for b in blocks} == {1}
    pool.check_integrity()


def test_asking_for_more_than_there_is_takes_nothing():
    pool = BlockPool(5)
    pool.get_new_blocks(2)
    before = snapshot(pool)
    for n, reason in ((3, "only 2 blocks are free"), (-1, "the number of blocks must be at least 0")):
        with pytest.raises(ValueError, match=rf"get_new_blocks\({n}\): {reason}"):
            pool.get_new_blocks(n)
    assert snapshot(pool) == before


def test_touch_pulls_a_free_block_out_of_the_middle():
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(5)
    pool.free_blocks(blocks)
    pool.touch([blocks[2]])
    assert free_ids(pool) == [1, 2, 4, 5] and blocks[2].ref_cnt == 1
    pool.touch([blocks[2]])
    assert blocks[2].ref_cnt == 2 and pool.get_num_free_blocks() == 4
    pool.check_integrity()


def test_a_shared_block_is_free_when_the_last_owner_leaves():
    pool = BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    pool.free_blocks([block])
    assert block.ref_cnt == 1 and free_ids(pool) == [2]
    pool.free_blocks([block])
    assert block.ref_cnt == 0 and free_ids(pool) == [2, 1]
    pool.check_integrity()


def test_freeing_twice_raises_at_once_and_changes_nothing():
    pool = BlockPool(4)
    a, b = pool.get_new_blocks(2)
    pool.free_blocks([a])
    before = snapshot(pool)
    with pytest.raises(RuntimeError, match="block 1 is freed 1 times, but has 0 owners"):
        pool.free_blocks([b, a])
    with pytest.raises(RuntimeError, match="block 2 is freed 2 times, but has 1 owners"):
        pool.free_blocks([b, b])
    assert snapshot(pool) == before


def test_a_run_in_which_some_have_other_owners_frees_the_rest_in_order():
    pool = BlockPool(6)
    a, b, c, d = pool.get_new_blocks(4)
    pool.touch([b, c, c])
    pool.free_blocks([d, c, b, a, c])
    assert free_ids(pool) == [5, 4, 1] and (b.ref_cnt, c.ref_cnt) == (1, 1)
    pool.check_integrity()
    pool.free_blocks(iter([c, b]))
    assert free_ids(pool) == [5, 4, 1, 3, 2]
    pool.check_integrity()


@pytest.mark.parametrize("bad", ["free", "twice", "null", "stranger", "of another pool"])
@pytest.mark.parametrize("is_copy_pending", [False, True])
def test_a_run_is_freed_whole_or_not_at_all(bad, is_copy_pending):
    pool, other = BlockPool(9), BlockPool(9)
    run = pool.get_new_blocks(3)
    if is_copy_pending:
        (shared,) = pool.get_new_blocks(1)
        pool.touch([shared])
        pool.fork_block(shared)
    run.append({"free": pool.blocks[8], "twice": run[0], "null": pool.null_block, "stranger": KVCacheBlock(1, 1),
                "of another pool": other.get_new_blocks(1)[0]}[bad])
    before = snapshot(pool)
    with pytest.raises(RuntimeError, match=f"free_blocks: block {run[-1].block_id} is"):
        pool.free_blocks(run)
    assert snapshot(pool) == before
    pool.check_integrity()


@pytest.mark.parametrize("method", ["touch", "free_blocks", "fork_block", "cache_full_blocks"])
def test_the_null_block_and_strangers_are_refused(method):
    pool = BlockPool(4)
    (mine,) = pool.get_new_blocks(1)
    before = snapshot(pool)
    for bad, complaint in ((pool.null_block, "is the null block"), (KVCacheBlock(1), "not a block of this pool"),
                           (KVCacheBlock(99), "not a block of this pool")):
        with pytest.raises(RuntimeError, match=complaint):
            if method == "fork_block":
                pool.fork_block(bad)
            elif method == "cache_full_blocks":
                pool.cache_full_blocks([mine, bad], [1, 2])
            else:
                getattr(pool, method)([mine, bad])
    assert snapshot(pool) == before


# ---- the pool: finding


def test_a_freed_block_can_still_be_found_until_it_is_given_out():
    pool = BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [111])
    pool.free_blocks([block])
    assert pool.get_cached_block(111) is block and block.block_hash == 111
    pool.get_new_blocks(2)
    assert pool.get_cached_block(111) is None and block.block_hash is None
    assert pool.num_evictions == 1
    pool.check_integrity()


def test_looking_up_does_not_touch():
    pool = BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [111])
    pool.free_blocks([block])
    before = snapshot(pool)
    pool.get_cached_block(111)
    pool.get_cached_block(222)
    assert snapshot(pool) == before


def test_twins_are_both_kept_and_either_serves():
    pool = BlockPool(4)
    first, second, third = pool.get_new_blocks(3)
    pool.cache_full_blocks([first, second], [111, 111])
    assert pool.get_cached_block(111) in (first, second)
    pool.free_blocks([first])
    pool.get_new_blocks(1)  # evicts the first twin
    assert pool.get_cached_block(111) is second and first.block_hash is None
    pool.check_integrity()
    pool.free_blocks([second, third])
    pool.get_new_blocks(2)
    assert pool.get_cached_block(111) is None
    pool.check_integrity()


def test_evicting_one_twin_leaves_the_other_when_the_later_goes_first():
    pool = BlockPool(3)
    first, second = pool.get_new_blocks(2)
    pool.cache_full_blocks([first], [111])
    pool.cache_full_blocks([second], [111])
    pool.evict_blocks([second.block_id])
    assert pool.get_cached_block(111) is first and second.block_hash is None and second.ref_cnt == 1
    pool.check_integrity()


def test_caching_again_under_the_same_hash_is_harmless_under_another_refused():
    pool = BlockPool(3)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks[:1], [111])
    pool.cache_full_blocks(blocks[:1], [111])
    before = snapshot(pool)
    with pytest.raises(RuntimeError, match="block 1 is indexed already, under 111, not under 222"):
        pool.cache_full_blocks(blocks[::-1], [333, 222])
    assert snapshot(pool) == before


def test_caching_with_fewer_hashes_than_blocks_is_refused():
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(2)
    before = snapshot(pool)
    with pytest.raises(ValueError, match="2 blocks, but only 1 hashes"):
        pool.cache_full_blocks(blocks, [111])
    with pytest.raises(ValueError, match="hash of block 2 is None"):
        pool.cache_full_blocks(blocks, [111, None])
    assert snapshot(pool) == before


def test_caching_a_free_block_is_refused():
    pool = BlockPool(4)
    with pytest.raises(RuntimeError, match="block 2 is free"):
        pool.cache_full_blocks([pool.blocks[2]], [111])


def test_without_caching_nothing_is_found():
    pool = BlockPool(3, enable_caching=False)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [111])
    assert pool.get_cached_block(111) is None and block.block_hash is None


def test_evict_blocks_checks_all_ids_first():
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [1, 2])
    before = snapshot(pool)
    with pytest.raises(ValueError, match="block id 4 is not between 0 and 3"):
        pool.evict_blocks([1, 4])
    assert snapshot(pool) == before
    pool.evict_blocks([1, 3])
    assert pool.get_cached_block(1) is None and pool.get_cached_block(2) is blocks[1]
    assert pool.num_evictions == 0, "nothing was given out again"


def test_reset_prefix_cache_refuses_while_blocks_are_in_use():
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [1, 2])
    before = snapshot(pool)
    with pytest.raises(RuntimeError, match="2 of 3 blocks are in use"):
        pool.reset_prefix_cache()
    assert snapshot(pool) == before
    pool.free_blocks(blocks)
    pool.reset_prefix_cache()
    assert pool.get_cached_block(1) is None and blocks[0].block_hash is None
    pool.check_integrity()


# ---- the pool: forking


def test_forking_a_private_block_is_a_no_op():
    pool = BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    before = snapshot(pool)
    assert pool.fork_block(block) is block
    assert snapshot(pool) == before


def test_forking_a_shared_block_moves_one_reference_to_a_copy():
    pool = BlockPool(4)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [111])
    pool.touch([block])
    copy = pool.fork_block(block)
    assert copy is not block and (block.ref_cnt, copy.ref_cnt) == (1, 1)
    assert pool.pending_copies == [(block, copy)]
    assert block.block_hash == 111 and copy.block_hash is None
    pool.check_integrity()


def test_forking_without_room_or_owner_changes_nothing():
    pool = BlockPool(2)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    before = snapshot(pool)
    with pytest.raises(ValueError, match="only 0 blocks are free"):
        pool.fork_block(block)
    assert snapshot(pool) == before
    pool.free_blocks([block, block])
    with pytest.raises(RuntimeError, match="block 1 is free"):
        pool.fork_block(block)


def test_source_and_copy_are_held_until_the_copy_ran():
    pool = BlockPool(4)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    copy = pool.fork_block(block)
    pool.free_blocks([block, copy])  # both owners leave before the step has run
    assert free_ids(pool) == [3], "a block of a pending copy was offered for reuse"
    pool.check_integrity()
    with pytest.raises(RuntimeError, match="has 0 owners"):
        pool.free_blocks([block])
    pool.finish_copies()
    assert free_ids(pool) == [3, 1, 2] and pool.pending_copies == []
    pool.check_integrity()


def test_a_pending_copy_is_no_owner_when_its_block_is_forked():
    pool = BlockPool(4)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    pool.free_blocks([block, pool.fork_block(block)])  # both are kept for the copy, which is still pending
    with pytest.raises(RuntimeError, match="block 1 is free"):
        pool.fork_block(block)
    pool.touch([block])  # a request has found it again, and is its only owner
    assert pool.fork_block(block) is block and len(pool.pending_copies) == 1
    pool.check_integrity()


# ---- the integrity check


@pytest.mark.parametrize("damage, complaint", [
    (lambda pool: setattr(pool.blocks[2], "ref_cnt", 1), "disagree"),
    (lambda pool: setattr(pool.blocks[1], "ref_cnt", 0), "disagree"),
    (lambda pool: setattr(pool.blocks[3], "prev_free", pool.blocks[1]), "broken after"),
    (lambda pool: setattr(pool.free_block_queue, "num_free_blocks", 7), "counted"),
    (lambda pool: setattr(pool.blocks[1], "block_hash", None), "indexed under"),
    (lambda pool: setattr(pool.blocks[2], "block_hash", 5), "not indexed"),
    (lambda pool: setattr(pool.null_block, "ref_cnt", 1), "null block"),
    (lambda pool: pool._cached.__setitem__(9, {}), "empty entry"),
    (lambda pool: pool._cached.__setitem__(9, {1: pool.blocks[1]}), "indexed under 9"),
    (lambda pool: pool.free_block_queue.append(pool.blocks[1]), "disagree"),
    (lambda pool: setattr(pool.blocks[2].next_free, "next_free", None), "broken after"),
    (lambda pool: setattr(pool.blocks[0], "is_null", False), "null block"),
    (lambda pool: pool.pending_copies.append((pool.blocks[2], pool.blocks[1])), "pending copy"),
    (lambda pool: setattr(pool.blocks[1], "pool", None), "not a block that can be allocated"),
    (lambda pool: setattr(pool.blocks[1], "is_null", True), "not a block that can be allocated"),
    (lambda pool: setattr(pool.blocks[1], "ref_cnt", -1), "impossible state"),
    (lambda pool: setattr(pool.blocks[1], "next_free", pool.blocks[3]), "impossible state"),
    (lambda pool: pool._cached[77].__setitem__(2, pool.blocks[1]), "indexed under 77"),
])
def test_check_integrity_sees(damage, complaint):
    pool = BlockPool(5)
    pool.cache_full_blocks(pool.get_new_blocks(1), [77])
    pool.check_integrity()
    damage(pool)
    with pytest.raises(RuntimeError, match=complaint):
        pool.check_integrity()


# ---- at random, against a model of plain lists and dictionaries


class PoolMachine(RuleBasedStateMachine):
    """The model: a list of free ids, and a count and a hash per id. O(n) everywhere, and obviously correct."""

    NUM_BLOCKS = 8

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(self.NUM_BLOCKS)
        self.free = list(range(1, self.NUM_BLOCKS))
        self.refs = dict.fromkeys(range(1, self.NUM_BLOCKS), 0)
        self.hashes = {}
        self.copies = []

    def owned(self):
        return [i for i, count in self.refs.items() if count > 0 and not self.only_kept(i)]

    def only_kept(self, i):
        return i in self.kept() and self.refs[i] == 1

    def kept(self):
        return self.pool._kept_for_copy

    @rule(n=st.integers(-1, 9))
    def get_new_blocks(self, n):
        if not 0 <= n <= len(self.free):
            before = snapshot(self.pool)
            with pytest.raises(ValueError):
                self.pool.get_new_blocks(n)
            assert snapshot(self.pool) == before
            return
        got = ids(self.pool.get_new_blocks(n))
        assert got == self.free[:n]
        self.free = self.free[n:]
        for i in got:
            self.refs[i] = 1
            self.hashes.pop(i, None)

    @rule(block_ids=st.lists(st.integers(0, 7), max_size=4))
    def touch(self, block_ids):
        blocks = [self.pool.blocks[i] for i in block_ids]
        if 0 in block_ids:
            before = snapshot(self.pool)
            with pytest.raises(RuntimeError):
                self.pool.touch(blocks)
            assert snapshot(self.pool) == before
            return
        self.pool.touch(blocks)
        for i in block_ids:
            if self.refs[i] == 0:
                self.free.remove(i)
            self.refs[i] += 1

    @rule(block_ids=st.lists(st.integers(0, 7), max_size=4))
    def free_any(self, block_ids):
        blocks = [self.pool.blocks[i] for i in block_ids]
        bad = 0 in block_ids or any(block_ids.count(i) > self.refs[i] - (i in self.kept()) for i in block_ids)
        if bad:
            before = snapshot(self.pool)
            with pytest.raises(RuntimeError):
                self.pool.free_blocks(blocks)
            assert snapshot(self.pool) == before
            return
        self.pool.free_blocks(blocks)
        in_copy = {i for pair in self.copies for i in pair}
        for i in block_ids:
            if self.refs[i] == 1 and i in in_copy:
                continue
            self.refs[i] -= 1
            if self.refs[i] == 0:
                self.free.append(i)

    @precondition(lambda self: self.owned())
    @rule(data=st.data(), value=st.integers(100, 103))
    def cache(self, data, value):
        i = data.draw(st.sampled_from(self.owned()))
        if self.hashes.get(i, value) != value:
            with pytest.raises(RuntimeError):
                self.pool.cache_full_blocks([self.pool.blocks[i]], [value])
        else:
            self.pool.cache_full_blocks([self.pool.blocks[i]], [value])
            self.hashes[i] = value

    @precondition(lambda self: self.owned())
    @rule(data=st.data())
    def fork(self, data):
        i = data.draw(st.sampled_from(self.owned()))
        block = self.pool.blocks[i]
        is_shared = self.refs[i] - (i in self.kept()) > 1
        if is_shared and not self.free:
            with pytest.raises(ValueError):
                self.pool.fork_block(block)
            return
        copy = self.pool.fork_block(block)
        if not is_shared:
            assert copy is block
            return
        assert copy.block_id == self.free.pop(0)
        self.refs[i] -= 1
        self.refs[copy.block_id] = 1
        self.hashes.pop(copy.block_id, None)
        self.copies.append((i, copy.block_id))

    # By chance alone, few blocks would be shared, and none would lose its owners while its copy is pending.

    @precondition(lambda self: self.owned())
    @rule(data=st.data())
    def share_and_fork(self, data):
        self.touch([data.draw(st.sampled_from(self.owned()))])
        self.fork(data)

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), is_freed=st.booleans())
    def change_owners_before_the_copy(self, data, is_freed):
        i = data.draw(st.sampled_from(sorted({i for pair in self.copies for i in pair})))
        if is_freed:
            self.free_any([i] * (self.refs[i] - (i in self.kept())))
        else:
            self.touch([i])

    @precondition(lambda self: self.copies)
    @rule()
    def finish_copies(self):
        kept = sorted(self.kept())
        self.pool.finish_copies()
        self.copies = []
        for i in kept:
            self.refs[i] -= 1
            if self.refs[i] == 0:
                self.free.append(i)

    @rule(block_ids=st.lists(st.integers(1, 7), max_size=3))
    def evict(self, block_ids):
        self.pool.evict_blocks(block_ids)
        for i in block_ids:
            self.hashes.pop(i, None)

    @rule()
    def reset(self):
        if len(self.free) < self.NUM_BLOCKS - 1:
            with pytest.raises(RuntimeError):
                self.pool.reset_prefix_cache()
        else:
            self.pool.reset_prefix_cache()
            self.hashes = {}

    @invariant()
    def agrees_with_the_model(self):
        self.pool.check_integrity()
        assert free_ids(self.pool) == self.free
        assert {b.block_id: b.ref_cnt for b in self.pool.blocks[1:]} == self.refs
        assert {b.block_id: b.block_hash for b in self.pool.blocks if b.block_hash is not None} == self.hashes
        for value in range(100, 104):
            found = self.pool.get_cached_block(value)
            holders = [i for i, h in self.hashes.items() if h == value]
            assert (found.block_id in holders) if found else not holders


PoolMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40,
                                         derandomize=True)
test_the_pool_agrees_with_a_simple_model = PoolMachine.TestCase
