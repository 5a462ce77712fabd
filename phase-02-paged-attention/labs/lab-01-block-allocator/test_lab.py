"""Lab 2.1, the block allocator. Each test checks one rule, and its failure message states the rule.

The tests count operations instead of measuring time. Blocks count how often they are read, and their ids and hashes
count how often they are compared or looked up. For calls with one block, the tests also count the lines of Python that
run and the bytes that are allocated.
"""

import contextlib
import re

import pytest

from course.expecting import must_raise
from course.gauges import cheapest, extendable, hash_of_none, num_objects
from mini_vllm.block_pool import KVCacheBlock as EngineBlock


@contextlib.contextmanager
def must_work(call, why):
    """Fail the test if the call raises."""
    try:
        yield
    except NotImplementedError:
        raise
    except Exception as error:
        pytest.fail(f"{call} raised {error!r}; {why}", pytrace=False)


def ids(blocks):
    return [block.block_id for block in blocks]


def links(block):
    """Return the ids of a block's neighbours in the queue."""
    return tuple(None if each is None else each.block_id for each in (block.prev_free, block.next_free))


def shown(found):
    """Format what get_cached_block() returned for a message: ``block 3``, or None."""
    return f"block {found.block_id}" if hasattr(found, "block_id") else f"{found!r}"


def all_shown(found):
    return f"({', '.join(map(shown, found))})"


def make_queue(lab, block_ids):
    """Return a queue of fresh blocks, and a dictionary of these blocks by id."""
    blocks = {block_id: lab.KVCacheBlock(block_id) for block_id in block_ids}
    return lab.FreeKVCacheBlockQueue(list(blocks.values())), blocks


def read(queue):
    """Return the ids in the queue. Check that both directions are linked and that the count is right."""
    blocks = queue.get_all_free_blocks()
    for left, right in zip(blocks, blocks[1:]):
        assert left.next_free is right, f"block {left.block_id} is before {right.block_id}, but does not point at it"
        assert right.prev_free is left, (f"block {right.block_id} follows {left.block_id}, but its prev_free points "
                                         "to another block: both directions must be linked")
    assert queue.num_free_blocks == len(blocks), (f"num_free_blocks is {queue.num_free_blocks}, but the links lead "
                                                  f"from the head to {ids(blocks)}: links and count must agree")
    return ids(blocks)


def free_ids(pool):
    return read(pool.free_block_queue)


def state(pool):
    """Return everything that a failing call must not change."""
    return free_ids(pool), [(block.ref_cnt, block.block_hash) for block in pool.blocks]


def assert_sound(pool):
    """Check invariants 1 and 2: a block is free iff it has no owner; free + owned + null = all blocks."""
    free = free_ids(pool)
    for block in pool.blocks[1:]:
        assert (block.block_id in free) == (block.ref_cnt == 0), (
            f"block {block.block_id} has ref_cnt {block.ref_cnt} and is {'' if block.block_id in free else 'not '}in "
            "the free queue: a block is free iff it has no owner")
    assert 0 not in free, "the null block is in the free queue: it is never given out"


def assert_hashes(lab):
    """Check one hash exactly: tests that only require different hashes would also pass with random numbers."""
    got = lab.hash_block_tokens(7, [1, 2])
    assert got == hash((7, (1, 2))), f"hash_block_tokens(7, [1, 2]) is {got}, expected {hash((7, (1, 2)))}, which is " \
                                     "hash((7, (1, 2)))"


class HashedAsNone:
    """An object with the hash that None has in the process of the file under test."""

    def __hash__(self):
        return hash_of_none()


class Counted(int):
    """A block id or a hash that counts how often it is compared, or looked up in a dictionary or set."""

    num_operations = 0

    def __eq__(self, other):
        Counted.num_operations += 1
        return int.__eq__(self, other)

    def __ne__(self, other):
        Counted.num_operations += 1
        return int.__ne__(self, other)

    def __lt__(self, other):  # min() and sorted() use it
        Counted.num_operations += 1
        return int.__lt__(self, other)

    def __gt__(self, other):  # max()
        Counted.num_operations += 1
        return int.__gt__(self, other)

    def __hash__(self):
        Counted.num_operations += 1
        return int.__hash__(self)


NUM_MANY = 200
MAX_OPERATIONS = 100  # per block; code that reads all blocks needs 200 or more
NUM_PLAIN = 2000
MAX_LINES, MAX_BYTES = 200, 8_000  # per call with one block; a list of all blocks takes 16,000 bytes


def counted_class(lab):
    """Return a subclass of the lab's KVCacheBlock that counts attribute reads and comparisons."""

    class CountedBlock(extendable(lab.KVCacheBlock, EngineBlock)):
        def __init__(self, block_id, *args, **kwargs):
            super().__init__(Counted(block_id), *args, **kwargs)

        def __getattribute__(self, name):
            Counted.num_operations += 1
            return super().__getattribute__(name)

        def __eq__(self, other):  # list.remove() compares instead of following links
            Counted.num_operations += 1
            return self is other

        def __hash__(self):
            Counted.num_operations += 1
            return object.__hash__(self)

    return CountedBlock


def counted_queue(lab, num_blocks=NUM_MANY):
    """Return a queue of free counting blocks, and these blocks."""
    make = counted_class(lab)
    blocks = [make(block_id) for block_id in range(num_blocks)]
    return lab.FreeKVCacheBlockQueue(blocks), blocks


def counted_pool(lab, monkeypatch):
    """Return a pool of 201 counting blocks: the null block, and 200 to give out."""
    monkeypatch.setattr(lab, "KVCacheBlock", counted_class(lab))
    return lab.BlockPool(NUM_MANY + 1)


def assert_o1(call, do, num_blocks=1):
    """Check that ``do()``, a call with ``num_blocks`` blocks, stays within the limit per block. Return its result."""
    before = Counted.num_operations
    result = do()
    average = (Counted.num_operations - before) / num_blocks
    assert average <= MAX_OPERATIONS, (
        f"{call} made {average:.0f} reads and comparisons{' per block' if num_blocks > 1 else ''}, counting blocks, "
        f"their ids and their hashes; at most {MAX_OPERATIONS} are allowed. The pool or queue was made "
        f"with {NUM_MANY} blocks or more, and O(1) means that the cost does not depend on this number")
    return result


def assert_lean(call, function, arguments):
    """Check the cheapest of several calls, because a dictionary that grows makes some calls costly."""
    num_lines, num_bytes = cheapest(function, arguments)
    assert num_lines <= MAX_LINES and num_bytes <= MAX_BYTES, (
        f"{call} in a pool of {NUM_PLAIN} ran {num_lines} lines of Python and allocated {num_bytes:,} bytes, in the "
        f"best of {len(arguments)} such calls. A call with one block may run at most {MAX_LINES} lines and allocate at "
        f"most {MAX_BYTES:,} bytes. Does it walk, copy or build something as large as the pool?")


def assert_unchanged(pool, before, call):
    assert state(pool) == before, (f"{call} raised, as it should, but changed the pool: queue and (ref_cnt, hash) were "
                                   f"{before} and are now {state(pool)}. Check everything first, then change")


# ---- Task 1


@pytest.mark.points(1)
def test_task_1_reset_hash_forgets_the_hash_only(lab):
    left, right = lab.KVCacheBlock(1), lab.KVCacheBlock(2)
    block = lab.KVCacheBlock(block_id=3, ref_cnt=2, block_hash=99, is_null=True, prev_free=left, next_free=right)
    block.reset_hash()
    got = (block.block_id, block.ref_cnt, block.block_hash, block.is_null)
    assert got == (3, 2, None, True), (
        f"reset_hash() of a block with id 3, ref_cnt 2, hash 99 and is_null True: these are now {got}, expected "
        "(3, 2, None, True): it resets the hash and nothing else")
    assert (block.prev_free, block.next_free) == (left, right), (
        f"reset_hash() of a block with the links (1, 2): they are now {links(block)}. Only the queue may change them")


@pytest.mark.points(1)
def test_task_1_append_puts_blocks_at_the_end_in_order(lab):
    queue, blocks = make_queue(lab, [4, 7])
    queue.append(lab.KVCacheBlock(2))
    got = ids(queue.get_all_free_blocks())
    assert got == [4, 7, 2], (f"append() of 4, 7 and 2 to an empty queue: the links lead from the head to {got}, "
                              "expected [4, 7, 2]. Four links change when a block is inserted between the last block "
                              "and the fake tail")
    read(queue)
    assert all(block.prev_free is not None and block.next_free is not None for block in blocks.values()), \
        "a block in the queue has two neighbours, which may be the fake head or tail: neither link may be None"


@pytest.mark.points(1)
def test_task_1_an_empty_queue_reads_empty(lab):
    queue, _ = make_queue(lab, [])
    queue.append(lab.KVCacheBlock(5))
    assert read(queue) == [5], f"an empty queue after append(block 5) reads {read(queue)}, expected [5]"
    got = read(make_queue(lab, [])[0])
    assert got == [], f"FreeKVCacheBlockQueue([]) reads {got}, expected []: the fake head and tail are not blocks"


@pytest.mark.points(1)
def test_task_1_reading_the_queue_does_not_change_it(lab):
    queue, _ = make_queue(lab, [4, 7, 2])
    got = [ids(queue.get_all_free_blocks()) for _ in range(2)]
    assert got == [[4, 7, 2]] * 2 and read(queue) == [4, 7, 2], (
        f"two calls of get_all_free_blocks() on 4→7→2 gave {got}, and the queue now reads {read(queue)}, expected "
        "[4, 7, 2] each time: reading removes nothing")
    before = queue.get_all_free_blocks()
    queue.append(lab.KVCacheBlock(9))
    queue.get_all_free_blocks()
    assert ids(before) == [4, 7, 2], (f"get_all_free_blocks() gave [4, 7, 2]; after append(9) and a second call, the "
                                      f"first list reads {ids(before)}: each call must make a new list")


@pytest.mark.points(1)
@pytest.mark.parametrize("which", [1, 2, 3])
def test_task_1_append_refuses_a_block_that_is_queued(lab, which):
    queue, blocks = make_queue(lab, [1, 2, 3])
    with must_raise(RuntimeError, f"append(block {which}), which is already in the queue,"):
        queue.append(blocks[which])
    assert read(queue) == [1, 2, 3], (f"append(block {which}) to a queue of 1→2→3 raised, as it should, but left "
                                      f"{read(queue)}: a call that fails changes nothing")


@pytest.mark.points(2)
def test_task_1_append_costs_the_same_in_a_long_queue(lab):
    queue, _ = counted_queue(lab)
    assert_o1(f"append(block) to a queue of {NUM_MANY}", lambda: queue.append(lab.KVCacheBlock(NUM_MANY)))
    assert queue.num_free_blocks == NUM_MANY + 1, (f"num_free_blocks after append(block) to a queue of {NUM_MANY} is "
                                                   f"{queue.num_free_blocks}, expected {NUM_MANY + 1}")


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
    got = links(blocks[2])
    assert got == (None, None), (f"after remove(block 2) from 1→2→3 its links lead to {got}, expected (None, None): a "
                                 "block outside the queue has no links")
    queue.append(blocks[2])
    assert read(queue) == [1, 3, 2], (f"block 2 was removed and appended again; the queue reads {read(queue)}, "
                                      "expected [1, 3, 2]")


@pytest.mark.points(2)
def test_task_2_remove_refuses_a_block_that_is_not_queued(lab):
    queue, blocks = make_queue(lab, [1, 2, 3])
    queue.remove(blocks[2])
    for stranger in (blocks[2], lab.KVCacheBlock(9)):
        with must_raise(RuntimeError, f"remove(block {stranger.block_id}), which is not in the queue,"):
            queue.remove(stranger)
        assert read(queue) == [1, 3], (f"remove(block {stranger.block_id}) from a queue of 1→3 raised, as it should, "
                                       f"but left {read(queue)}: a call that fails changes nothing")


@pytest.mark.points(3)
@pytest.mark.task(2)
def test_free_queue_o1_middle_removal(lab):
    """Check that removal from the middle needs no search: a block knows its two neighbours."""
    queue, blocks = counted_queue(lab)
    assert_o1(f"remove(block 100) from a queue of {NUM_MANY}", lambda: queue.remove(blocks[100]))
    num_left = len(read(queue))
    assert num_left == 199, f"remove(block 100) from a queue of 200 left {num_left} blocks, expected 199"


# ---- Task 3


@pytest.mark.points(2)
def test_task_3_popleft_takes_the_oldest(lab):
    queue, _ = make_queue(lab, [4, 7, 2])
    blocks = [queue.popleft() for _ in range(3)]
    got = ids(blocks)
    assert got == [4, 7, 2], (f"three popleft() from 4→7→2 gave {got}, expected [4, 7, 2]: the block that has been "
                              "free longest is taken first")
    assert read(queue) == [], f"three popleft() from 4→7→2 left {read(queue)}, expected []"
    for block in [*blocks, *make_queue(lab, [1, 2])[0].popleft_n(2)]:
        assert links(block) == (None, None), (
            f"popleft() or popleft_n(2) gave block {block.block_id} with links to {links(block)}, expected (None, "
            "None): a block outside the queue has no neighbours")


@pytest.mark.points(1)
def test_task_3_popleft_from_an_empty_queue_is_a_value_error(lab):
    queue, _ = make_queue(lab, [4])
    queue.popleft()
    with must_raise(ValueError, "popleft() on an empty queue"):
        queue.popleft()
    assert read(queue) == [], f"popleft() on an empty queue raised, but left {read(queue)}: the tail is not a block"


@pytest.mark.points(2)
@pytest.mark.parametrize("n", [4, -1])
def test_task_3_popleft_n_takes_all_or_none(lab, n):
    queue, _ = make_queue(lab, [1, 2, 3])
    got = ids(queue.popleft_n(2))
    assert got == [1, 2], f"popleft_n(2) from 1→2→3 gave {got}, expected [1, 2]"
    nothing = queue.popleft_n(0)
    assert nothing == [] and read(queue) == [3], (f"popleft_n(0) from a queue with only block 3 gave {nothing} and "
                                                  f"left {read(queue)}, expected [] and [3]")
    queue, _ = make_queue(lab, [1, 2, 3])
    with must_raise(ValueError, f"popleft_n({n}) on a queue of 3 blocks"):
        queue.popleft_n(n)
    assert read(queue) == [1, 2, 3], f"popleft_n({n}) from 3 blocks raised, but left {read(queue)}: it must remove none"


@pytest.mark.points(2)
def test_task_3_append_n_adds_all_or_none(lab):
    queue, blocks = make_queue(lab, [1, 2, 3])
    taken = queue.popleft_n(2)
    for bad in ([*taken, blocks[3]], [taken[0], taken[0]]):
        with must_raise(RuntimeError, f"append_n({ids(bad)}) to a queue with only block 3"):
            queue.append_n(bad)
        assert read(queue) == [3], f"append_n({ids(bad)}) raised, but left {read(queue)}, expected [3]: all or none"
    with must_work("append_n([])", "an empty list is allowed, and nothing is appended"):
        queue.append_n([])
    queue.append_n(taken[::-1])
    assert read(queue) == [3, 2, 1], (f"append_n([2, 1]) to a queue with only block 3 left {read(queue)}, "
                                      "expected [3, 2, 1]")


@pytest.mark.points(2)
def test_task_3_taking_and_appending_cost_the_same_in_a_long_queue(lab):
    queue, _ = counted_queue(lab, 250)
    first = assert_o1("popleft() from a queue of 250", queue.popleft)
    few = assert_o1("popleft_n(2) from a queue of 249", lambda: queue.popleft_n(2), num_blocks=2)
    many = assert_o1("popleft_n(240) from a queue of 247", lambda: queue.popleft_n(240), num_blocks=240)
    assert_o1("append_n(2 blocks) to a queue of 7", lambda: queue.append_n(few), num_blocks=2)
    assert_o1("append_n(240 blocks) to a queue of 9", lambda: queue.append_n(many), num_blocks=240)
    got = (first.block_id, queue.num_free_blocks)
    assert got == (0, 249), (f"popleft() took one of blocks 0 to 249, popleft_n() took 242, and these 242 were "
                             f"appended again: (first block taken, num_free_blocks) is {got}, expected (0, 249)")


# ---- Task 4


@pytest.mark.points(1)
def test_task_4_the_hash_is_that_of_parent_and_tokens(lab):
    for parent in (None, 77, 0):
        got = lab.hash_block_tokens(parent, [1, 2, 3])
        expected = hash((HashedAsNone() if parent is None else parent, (1, 2, 3)))
        assert got == expected, (f"hash_block_tokens({parent}, [1, 2, 3]) is {got}, expected {expected}, which is "
                                 f"hash(({parent}, (1, 2, 3)))")
    got, expected = lab.hash_block_tokens(77, iter([1, 2])), hash((77, (1, 2)))
    assert got == expected, (f"hash_block_tokens(77, iter([1, 2])) is {got}, expected {expected}, which is "
                             "hash((77, (1, 2))): token_ids may be an iterator, which you can read only once")


@pytest.mark.points(2)
def test_task_4_equal_tokens_after_other_prefixes_differ(lab):
    assert_hashes(lab)
    values = [lab.hash_block_tokens(parent, [5, 6]) for parent in (None, 1, 2)]
    assert len(set(values)) == 3, (f"hash_block_tokens(parent, [5, 6]) for the parents None, 1 and 2 gave {values}, "
                                   "expected three different hashes: the K/V of [5, 6] differs, because attention read "
                                   "different tokens before them")


@pytest.mark.points(1)
def test_task_4_every_bit_of_a_token_counts(lab):
    assert_hashes(lab)
    for a, b in (([1, 2], [2, 1]), ([1, 2], [257, 2]), ([1, 2], [65537, 2])):
        assert lab.hash_block_tokens(None, a) != lab.hash_block_tokens(None, b), (
            f"hash_block_tokens(None, {a}) and hash_block_tokens(None, {b}) are the same: the hash must depend on the "
            "order of the tokens and on every bit of a token id")


@pytest.mark.points(1)
def test_task_4_extra_keys_keep_equal_texts_apart(lab):
    assert_hashes(lab)
    plain, a, b = (lab.hash_block_tokens(None, [1, 2], keys) for keys in (None, ("tenant a",), ("tenant b",)))
    assert len({plain, a, b}) == 3, (
        f"hash_block_tokens(None, [1, 2], keys) for the keys None, ('tenant a',) and ('tenant b',) gave "
        f"{[plain, a, b]}, expected three different hashes")


@pytest.mark.points(1)
@pytest.mark.parametrize("keys, hashed", [((), (7, (1, 2))), ((3, 4), (7, (1, 2), (3, 4))), ((0,), (7, (1, 2), (0,))),
                                          ([3, 4], (7, (1, 2), (3, 4))), ([], (7, (1, 2)))])
def test_task_4_extra_keys_are_a_third_element(lab, keys, hashed):
    with must_work(f"hash_block_tokens(7, [1, 2], {keys})", "extra keys are a tuple or a list"):
        got = lab.hash_block_tokens(7, [1, 2], keys)
    assert got == hash(hashed), (f"hash_block_tokens(7, [1, 2], {keys}) is {got}, expected {hash(hashed)}, which is "
                                 f"hash({hashed}): keys must not be mixed with tokens, and empty keys add no element")


# ---- Task 5


@pytest.mark.points(2)
def test_task_5_new_blocks_are_owned_and_never_the_null_block(lab):
    pool = lab.BlockPool(5)
    blocks = pool.get_new_blocks(4)
    assert ids(blocks) == [1, 2, 3, 4], f"get_new_blocks(4) from a fresh pool of 5 gave {ids(blocks)}, expected 1 to 4"
    counts = [block.ref_cnt for block in blocks]
    assert counts == [1, 1, 1, 1], (f"get_new_blocks(4) gave blocks with ref_cnt {counts}, expected 1 each: a block "
                                    "that was just given out has one owner")
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
    assert got == [0.0, 0.5, 1.0], (f"get_new_blocks(2), twice, in a pool of 5: the usage was {got}, expected [0.0, "
                                    "0.5, 1.0]: the null block can never be used, so it does not count")
    with must_work("BlockPool(1).get_usage()", "expected 0.0: the pool has only the null block, and nothing is in use"):
        got = lab.BlockPool(1).get_usage()
    assert got == 0.0, f"BlockPool(1).get_usage() is {got}, expected 0.0: the pool has only the null block"
    pool = lab.BlockPool(4)
    pool.get_new_blocks(1)
    got = pool.get_usage(), pool.get_num_free_blocks()
    assert got == (pytest.approx(1 / 3), 2), (f"in a pool of 4 after get_new_blocks(1), (get_usage(), "
                                              f"get_num_free_blocks()) is {got}, expected (1/3, 2)")


@pytest.mark.points(2)
def test_task_5_free_blocks_go_to_the_end_in_the_order_given(lab):
    pool = lab.BlockPool(6)
    blocks = pool.get_new_blocks(3)
    pool.free_blocks(reversed(blocks))
    got = free_ids(pool)
    assert got == [4, 5, 3, 2, 1], (f"free_blocks(reversed([1, 2, 3])) with 4, 5 free: the queue reads {got}, expected "
                                    "[4, 5, 3, 2, 1]: the block freed last is reused last, and an iterator can be read "
                                    "only once")
    assert_sound(pool)


@pytest.mark.points(2)
def test_task_5_a_block_may_come_as_often_as_it_has_owners(lab):
    pool = lab.BlockPool(4)
    a, b = pool.get_new_blocks(2)
    a.ref_cnt = 2
    with must_work("free_blocks([])", "an empty list is allowed, and nothing is freed"):
        pool.free_blocks([])
    pool.free_blocks([a, b, a])
    got = (free_ids(pool), a.ref_cnt, b.ref_cnt)
    assert got == ([3, 2, 1], 0, 0), (
        f"free_blocks([1, 2, 1]) where block 1 has two owners, 2 has one and 3 is free: (queue, ref_cnt of 1, of 2) "
        f"is {got}, expected ([3, 2, 1], 0, 0): each occurrence drops one owner, and block 1 is free after the second")
    assert_sound(pool)


@pytest.mark.points(2)
def test_task_5_giving_out_and_taking_back_cost_the_same_in_a_large_pool(lab, monkeypatch):
    pool = counted_pool(lab, monkeypatch)
    few = assert_o1(f"get_new_blocks(1) with {NUM_MANY} free", lambda: pool.get_new_blocks(1))
    many = assert_o1("get_new_blocks(99) with 199 free", lambda: pool.get_new_blocks(99), num_blocks=99)
    got = (assert_o1("get_num_free_blocks() with 100 of 200 free", pool.get_num_free_blocks),
           assert_o1("get_usage() with 100 of 200 free", pool.get_usage))
    assert got == (100, 0.5), f"with 100 of 200 blocks free, (get_num_free_blocks(), get_usage()) is {got}"
    assert_o1("free_blocks(1 block) with 100 free", lambda: pool.free_blocks(few))
    assert_o1("free_blocks(99 blocks) with 101 free", lambda: pool.free_blocks(many), num_blocks=99)


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
    for bad, name in ((pool.null_block, "the null block"),
                      (lab.KVCacheBlock(1, ref_cnt=1), "a block 1 that belongs to no pool"),
                      (lab.KVCacheBlock(2, ref_cnt=1), "a block 2 that belongs to no pool")):
        call = f"free_blocks([block 1, {name}])"
        with must_raise(RuntimeError, call):
            pool.free_blocks([mine, bad])
        assert_unchanged(pool, before, call)


# ---- Task 6


@pytest.mark.points(3)
def test_task_6_touch_pulls_a_free_block_out_of_the_middle(lab):
    pool = lab.BlockPool(6)
    blocks = pool.get_new_blocks(5)
    pool.free_blocks(blocks)
    pool.touch([blocks[2]])
    got = free_ids(pool)
    assert got == [1, 2, 4, 5], (f"touch(block 3) with 1→2→3→4→5 free left the queue {got}, expected [1, 2, 4, 5]: a "
                                 "block in use must not be given to another request")
    assert blocks[2].ref_cnt == 1, f"touch([block 3]), which was free, left ref_cnt {blocks[2].ref_cnt}, expected 1"
    assert_sound(pool)


@pytest.mark.points(2)
@pytest.mark.parametrize("is_free", [True, False])
def test_task_6_a_block_that_comes_twice_gets_two_owners(lab, is_free):
    pool = lab.BlockPool(4)
    (block,) = pool.get_new_blocks(1)
    if is_free:
        pool.free_blocks([block])
    where, num_owners = ("free", 2) if is_free else ("in use once", 3)
    pool.touch([block, block])
    got = (block.ref_cnt, free_ids(pool))
    assert got == (num_owners, [2, 3]), (
        f"touch([1, 1]) where block 1 is {where}: (ref_cnt, queue) is {got}, expected {(num_owners, [2, 3])}: each "
        "occurrence adds an owner, and a block leaves the queue only once")
    assert_sound(pool)


@pytest.mark.points(1)
def test_task_6_touch_costs_the_same_in_a_large_pool(lab, monkeypatch):
    pool = counted_pool(lab, monkeypatch)
    blocks = pool.get_new_blocks(NUM_MANY)
    assert ids(blocks) == list(range(1, NUM_MANY + 1)), (
        f"get_new_blocks({NUM_MANY}) of a fresh pool gave the blocks {ids(blocks)}, expected 1 to {NUM_MANY}")
    assert_o1(f"touch([block 200]) with all {NUM_MANY} in use", lambda: pool.touch([blocks[199]]))
    pool.free_blocks([blocks[199]])
    pool.free_blocks(blocks)
    assert_o1(f"touch([block 200]) with all {NUM_MANY} free", lambda: pool.touch([blocks[199]]))


@pytest.mark.points(2)
def test_task_6_a_shared_block_is_free_when_its_last_owner_leaves(lab):
    pool = lab.BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    assert block.ref_cnt == 2, f"block 1 was given out and touched once; its ref_cnt is {block.ref_cnt}, expected 2"
    pool.free_blocks([block])
    assert free_ids(pool) == [2], f"after one of two owners left, the queue reads {free_ids(pool)}, expected [2]"
    pool.free_blocks([block])
    assert free_ids(pool) == [2, 1], f"after both owners left, the queue reads {free_ids(pool)}, expected [2, 1]"


@pytest.mark.points(1)
def test_task_6_touch_refuses_the_null_block_and_strangers(lab):
    pool = lab.BlockPool(4)
    (mine,) = pool.get_new_blocks(1)
    pool.touch([mine])
    before = state(pool)
    for bad, name in ((pool.null_block, "the null block"), (lab.KVCacheBlock(2), "a block 2 that belongs to no pool")):
        call = f"touch([block 1, {name}])"
        with must_raise(RuntimeError, call):
            pool.touch([mine, bad])
        assert_unchanged(pool, before, call)


# ---- Task 7


@pytest.mark.points(2)
def test_task_7_a_cached_block_is_found_in_use_and_free(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [111, 222])
    for block_hash, expected in ((111, blocks[0]), (222, blocks[1]), (333, None)):
        got = pool.get_cached_block(block_hash)
        assert got is expected, (f"after cache_full_blocks([1, 2], [111, 222]) get_cached_block({block_hash}) is "
                                 f"{shown(got)}, expected {shown(expected)}")
    pool.free_blocks(blocks)
    got = pool.get_cached_block(111)
    assert got is blocks[0], (f"block 1 was cached under 111 and freed, but get_cached_block(111) is {shown(got)}: a "
                              "free block keeps its content until it is given out again")
    assert free_ids(pool) == [3, 1, 2], (f"get_cached_block(111) with 3→1→2 free left the queue {free_ids(pool)}: "
                                         "a lookup changes nothing")
    pool.check_integrity()


@pytest.mark.points(1)
def test_task_7_freed_twins_both_keep_their_content(lab):
    pool = lab.BlockPool(4)
    twins = pool.get_new_blocks(2)
    pool.cache_full_blocks(twins, [111, 111])
    got = pool.get_cached_block(111)
    assert got in twins, (f"after cache_full_blocks([1, 2], [111, 111]) get_cached_block(111) is {shown(got)}, "
                          "expected block 1 or block 2")
    pool.free_blocks(twins)
    got = [block.block_hash for block in twins]
    assert got == [111, 111], (f"blocks 1 and 2 were cached under 111 and freed; their hashes are {got}, expected "
                               "[111, 111]: freeing a block does not evict it, even if it has a twin")
    pool.check_integrity()


@pytest.mark.points(1)
def test_task_7_zero_is_a_hash_like_any_other_and_none_is_none(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks[:1], [0])
    got = pool.get_cached_block(0)
    assert got is blocks[0], f"after cache_full_blocks([1], [0]) get_cached_block(0) is {shown(got)}, expected block 1"
    before = state(pool)
    for error, bad, hashes in ((RuntimeError, blocks[::-1], [7, 5]), (ValueError, blocks[::-1], [7, None]),
                               (ValueError, blocks[1:], [None]), (RuntimeError, blocks[1:] * 2, [0, 7])):
        call = f"cache_full_blocks({ids(bad)}, {hashes}) where block 1 is indexed under 0"
        with must_raise(error, call):
            pool.cache_full_blocks(bad, hashes)
        assert_unchanged(pool, before, call)
    got = pool.get_cached_block(7)
    assert got is None, (f"cache_full_blocks([2, 1], [7, None]) and ([2, 2], [0, 7]) raised, but get_cached_block(7) "
                         f"is {shown(got)}: a call that fails changes nothing")


@pytest.mark.points(1)
@pytest.mark.parametrize("bad", [[3], (1, [3])])
def test_task_7_a_hash_that_cannot_be_hashed_changes_nothing(lab, bad):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    before, call = state(pool), f"cache_full_blocks([1, 2], [111, {bad}])"
    with must_raise(TypeError, call):
        pool.cache_full_blocks(blocks, [111, bad])
    assert_unchanged(pool, before, call)
    got = pool.get_cached_block(111)
    assert got is None, (f"{call} raised, as it should, but get_cached_block(111) is {shown(got)}, expected None: a "
                         "list cannot be hashed, so call hash() before you change anything")


@pytest.mark.points(2)
def test_task_7_caching_and_finding_cost_the_same_in_a_large_pool(lab, monkeypatch):
    pool = counted_pool(lab, monkeypatch)
    blocks = pool.get_new_blocks(NUM_MANY)
    assert ids(blocks) == list(range(1, NUM_MANY + 1)), (
        f"get_new_blocks({NUM_MANY}) of a fresh pool gave the blocks {ids(blocks)}, expected 1 to {NUM_MANY}")
    hashes = [Counted(10_000 + i) for i in range(NUM_MANY)]
    assert_o1(f"cache_full_blocks({NUM_MANY} blocks, {NUM_MANY} hashes)",
              lambda: pool.cache_full_blocks(blocks, hashes), num_blocks=NUM_MANY)
    assert_o1(f"cache_full_blocks(1 block, 1 hash) with {NUM_MANY} cached",
              lambda: pool.cache_full_blocks(blocks[199:200], hashes[199:200]))
    got = assert_o1(f"get_cached_block() of a hash, with {NUM_MANY} cached", lambda: pool.get_cached_block(10_199))
    assert got is blocks[199], f"block 200 was cached under 10199; get_cached_block(10199) is {shown(got)}"
    assert_o1(f"get_cached_block() of an unknown hash, with {NUM_MANY} cached", lambda: pool.get_cached_block(7))
    pool = counted_pool(lab, monkeypatch)
    pool.cache_full_blocks(pool.get_new_blocks(NUM_MANY), [Counted(5)] * NUM_MANY)
    assert_o1(f"get_cached_block() of a hash that {NUM_MANY} twins have", lambda: pool.get_cached_block(5))


@pytest.mark.points(1)
@pytest.mark.inside("the objects of a pool can be counted only in the process of the pool")
def test_task_7_looking_for_what_is_not_there_leaves_nothing_behind(lab):
    pool = lab.BlockPool(4)
    [block] = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [999])
    got = pool.get_cached_block(999)
    assert got is block, f"block 1 was cached under 999; get_cached_block(999) is {shown(got)}, expected block 1"
    before = num_objects(pool)
    for block_hash in range(1000, 1500):
        assert pool.get_cached_block(block_hash) is None, (f"get_cached_block({block_hash}) is "
                                                           f"{pool.get_cached_block(block_hash)}, expected None: "
                                                           "nothing was cached under this hash")
    after = num_objects(pool)
    assert after <= before + 300, (
        f"get_cached_block() was called with 500 hashes that were never cached: the pool contained {before} objects "
        f"before, and {after} after. A lookup changes nothing, so a miss must not leave an entry")


@pytest.mark.points(2)
def test_task_7_caching_with_fewer_hashes_than_blocks_fails_at_once(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    before = state(pool)
    with must_raise(ValueError, "cache_full_blocks([1, 2], [111])"):
        pool.cache_full_blocks(blocks, [111])
    assert_unchanged(pool, before, "cache_full_blocks([1, 2], [111])")
    got = pool.get_cached_block(111)
    assert got is None, (f"cache_full_blocks([1, 2], [111]) raised, as it should, but get_cached_block(111) is "
                         f"{shown(got)}, expected None: a call that fails changes nothing")


@pytest.mark.points(1)
@pytest.mark.parametrize("beyond", [333, None])
def test_task_7_hashes_beyond_the_last_block_are_ignored(lab, beyond):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    call = f"cache_full_blocks([1, 2], [111, 222, {beyond}])"
    with must_work(call, "hashes beyond the last block are ignored, whatever they are"):
        pool.cache_full_blocks(blocks, [111, 222, beyond])
    got = [pool.get_cached_block(block_hash) for block_hash in (222, 333)]
    assert got == [blocks[1], None], (f"after {call} get_cached_block() of 222 and of 333 is {all_shown(got)}, "
                                      "expected (block 2, None): hashes beyond the last block are ignored")


@pytest.mark.points(1)
def test_task_7_a_block_holds_one_content_at_a_time(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks[:1], [111])
    before = state(pool)
    pool.cache_full_blocks(blocks[:1], [111])
    assert state(pool) == before, (f"cache_full_blocks([1], [111]) a second time changed the pool: queue and (ref_cnt, "
                                   f"hash) were {before} and are now {state(pool)}; an indexed block does not change")
    for first, second in ((10 ** 20, 10 ** 19 * 10), (("a", 1), tuple(["a", 1])), ("ab", "".join(["a", "b"]))):
        other = lab.BlockPool(2)
        (block,) = other.get_new_blocks(1)
        with must_work(f"cache_full_blocks([1], [{first!r}])", "every hash except None is accepted"):
            other.cache_full_blocks([block], [first])
        with must_work(f"cache_full_blocks([1], [{second}]) a second time", "equal hashes may be two objects"):
            other.cache_full_blocks([block], [second])
        found = other.get_cached_block(second)
        assert found is block, f"get_cached_block({second}) is {shown(found)}, expected block 1"
    call = "cache_full_blocks([2, 1], [333, 222]) where block 1 is indexed under 111"
    with must_raise(RuntimeError, call):
        pool.cache_full_blocks(blocks[::-1], [333, 222])
    assert_unchanged(pool, before, call)
    call = "cache_full_blocks([2, 2], [333, 444])"
    with must_raise(RuntimeError, call):
        pool.cache_full_blocks([blocks[1]] * 2, [333, 444])
    assert_unchanged(pool, before, call)
    got = [pool.get_cached_block(block_hash) for block_hash in (222, 333, 444)]
    assert got == [None] * 3, (f"two calls of cache_full_blocks raised, as they should, but get_cached_block() of 222, "
                               f"333 and 444 is {all_shown(got)}, expected None each: the index must not change")


@pytest.mark.points(1)
def test_task_7_only_owned_blocks_of_the_pool_can_be_cached(lab):
    pool = lab.BlockPool(4)
    mine, freed = pool.get_new_blocks(2)
    pool.cache_full_blocks([mine, freed], [7, 9])
    pool.free_blocks([freed])
    before = state(pool)
    for bad, bad_hash, name in ((pool.blocks[3], 8, "a free block"), (freed, 9, "a free block that is indexed under 9"),
                                (pool.null_block, 8, "the null block"),
                                (lab.KVCacheBlock(1, ref_cnt=1), 8, "a block 1 that belongs to no pool"),
                                (lab.KVCacheBlock(9, ref_cnt=1), 8, "a block 9 that belongs to no pool")):
        call = f"cache_full_blocks([block 1, {name}], [7, {bad_hash}])"
        with must_raise(RuntimeError, call):
            pool.cache_full_blocks([mine, bad], [7, bad_hash])
        assert_unchanged(pool, before, call)
        got = pool.get_cached_block(8)
        assert got is None, f"{call} raised, as it should, but get_cached_block(8) is {shown(got)}, expected None"


@pytest.mark.points(1)
def test_task_7_with_caching_off_nothing_is_found(lab):
    pool = lab.BlockPool(3, enable_caching=False)
    (block,) = pool.get_new_blocks(1)
    for hashes in ([111], []):
        call = f"cache_full_blocks([1], {hashes}) in a pool with enable_caching=False"
        with must_work(call, "with caching off it does nothing and never raises"):
            pool.cache_full_blocks([block], hashes)
        got = (pool.get_cached_block(111), block.block_hash)
        assert got == (None, None), (f"after {call} get_cached_block(111) and the block's hash are {all_shown(got)}, "
                                     "expected (None, None): with caching off it does nothing")


# ---- Task 8


WHO_COUNTS = ("get_new_blocks() adds 1 for each block that still had a hash; _maybe_evict() must not count, because "
              "evict_blocks() also calls it")


@pytest.mark.points(3)
def test_task_8_giving_a_cached_block_out_again_forgets_its_content(lab):
    pool = lab.BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [111])
    pool.free_blocks([block])
    new = pool.get_new_blocks(2)
    assert block in new and block.block_hash is None, (
        f"block 1 was cached under 111 and freed; get_new_blocks(2) of a pool with 2 free gave {ids(new)}, and the "
        f"hash of block 1 is {block.block_hash}; expected block 1 among them, with hash None: its new owner has "
        "written nothing yet")
    got = pool.get_cached_block(111)
    assert got is None, (f"block 1 was given to a new owner, which will overwrite it, and get_cached_block(111) is "
                         f"{shown(got)}, expected None: the index must not contain evicted content")
    assert pool.num_evictions == 1, (f"get_new_blocks(2) gave out one block with cached content and one without; "
                                     f"num_evictions is {pool.num_evictions}, expected 1: {WHO_COUNTS}")
    pool.check_integrity()


@pytest.mark.points(1)
def test_task_8_each_twin_and_the_hash_zero_count_as_content(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks, [111, 111, 0])
    pool.free_blocks(blocks)
    for i, expected in enumerate([(blocks[1], blocks[2]), (None, blocks[2]), (None, None)], start=1):
        pool.get_new_blocks(1)
        after = f"blocks 1, 2, 3 were cached under 111, 111, 0 and then freed; after get_new_blocks(1) gave block {i},"
        got = (pool.get_cached_block(111), pool.get_cached_block(0))
        assert got == expected, (f"{after} get_cached_block() of 111 and of 0 is {all_shown(got)}, expected "
                                 f"{all_shown(expected)}: a block that was given out again must not be found, and 0 "
                                 "is a valid hash (compare with None)")
        assert pool.num_evictions == i, (f"{after} num_evictions is {pool.num_evictions}, expected {i}: {WHO_COUNTS}. "
                                         "A twin counts like any other block, and 0 is a valid hash")
    hashes = [block.block_hash for block in blocks]
    assert hashes == [None] * 3, f"blocks 1, 2, 3 were given out again; their hashes are {hashes}, expected None each"
    pool.check_integrity()


@pytest.mark.points(1)
@pytest.mark.inside("the objects of a pool can be counted only in the process of the pool")
def test_task_8_entries_without_a_block_do_not_pile_up(lab):
    pool = lab.BlockPool(4)
    before = num_objects(pool)
    for block_hash in range(1000, 1500):
        blocks = pool.get_new_blocks(1)
        pool.cache_full_blocks(blocks, [block_hash])
        pool.free_blocks(blocks)
    found = pool.get_cached_block(1499)
    assert len(blocks) == 1 and found is blocks[0] and found.block_id in (1, 2, 3), (
        f"get_new_blocks(1) gave {list(map(shown, blocks))}, which was cached under 1499 and freed; "
        f"get_cached_block(1499) is {shown(found)}, expected that block")
    after = num_objects(pool)
    assert after <= before + 300, (
        f"in a pool of 4, a block was given out, cached under a new hash and freed, 500 times: the pool "
        f"contained {before} objects before, and {after} after. Delete an entry of the index when it has no block left")


@pytest.mark.points(2)
def test_task_8_forgetting_one_block_costs_the_same_in_a_large_pool(lab, monkeypatch):
    pool = counted_pool(lab, monkeypatch)
    blocks = pool.get_new_blocks(NUM_MANY)
    pool.cache_full_blocks(blocks, [Counted(10_000 + i) for i in range(NUM_MANY)])
    got = pool.get_cached_block(10_199)
    assert got is blocks[199], f"block 200 was cached under 10199, but get_cached_block(10199) is {shown(got)}"
    assert_o1(f"evict_blocks([200]) with {NUM_MANY} cached", lambda: pool.evict_blocks([200]))
    pool.free_blocks(blocks)
    assert_o1("get_new_blocks(1) of a cached block, with 199 cached", lambda: pool.get_new_blocks(1))
    got = (pool.get_cached_block(10_000), pool.get_cached_block(10_199))
    assert got == (None, None), (
        "after evict_blocks([200]) and get_new_blocks(1), which gives block 1, get_cached_block() for the old hashes "
        f"of blocks 1 and 200 is {all_shown(got)}, expected (None, None)")


@pytest.mark.points(2)
@pytest.mark.inside("lines and bytes can be counted only in the process that runs them")
def test_task_8_no_call_about_one_block_walks_or_copies_the_pool(lab):
    pool = lab.BlockPool(NUM_PLAIN)
    some = [([block],) for block in pool.blocks[1000:1005]]
    assert_lean("get_new_blocks(1)", pool.get_new_blocks, [(1,)] * 5)
    assert_lean("free_blocks([block])", pool.free_blocks, [([block],) for block in pool.blocks[1:6]])
    assert_lean("get_usage()", pool.get_usage, [()] * 5)
    assert_lean("touch([block]) of a block that is free", pool.touch, some)
    assert_lean("touch([block]) of a block that is in use", pool.touch, some)

    queue = lab.BlockPool(NUM_PLAIN).free_block_queue
    num_lines, _ = cheapest(queue.append_n, [(queue.popleft_n(600),)])
    assert num_lines <= 600 * MAX_LINES and queue.num_free_blocks == NUM_PLAIN - 1, (
        f"append_n() of 600 blocks ran {num_lines} lines of Python; at most {600 * MAX_LINES} are allowed. "
        f"num_free_blocks is then {queue.num_free_blocks}, expected {NUM_PLAIN - 1}. Does append_n() compare every "
        "block with every other?")

    pool = lab.BlockPool(NUM_PLAIN)
    blocks = pool.get_new_blocks(NUM_PLAIN - 1)
    pool.cache_full_blocks(blocks[5:], range(5, NUM_PLAIN - 1))
    found = pool.get_cached_block(1000)
    assert len(blocks) == NUM_PLAIN - 1 and found is blocks[1000], (
        f"get_new_blocks({NUM_PLAIN - 1}) gave {len(blocks)} blocks, and get_cached_block() for the hash of block 1001 "
        f"is {shown(found)}")
    assert_lean("cache_full_blocks([block], [hash])", pool.cache_full_blocks,
                [([blocks[i]], [i]) for i in range(5)])
    assert_lean("get_cached_block(hash)", pool.get_cached_block, [(i,) for i in range(1000, 1005)])
    assert_lean("evict_blocks([block_id])", pool.evict_blocks, [([i],) for i in range(1000, 1005)])
    pool.free_blocks(blocks)
    assert_lean("get_new_blocks(1) of a cached block", pool.get_new_blocks, [(1,)] * 5)

    pool = lab.BlockPool(NUM_PLAIN)
    pool.cache_full_blocks(pool.get_new_blocks(NUM_PLAIN - 1), [7] * (NUM_PLAIN - 1))
    assert_lean(f"get_cached_block(7), with {NUM_PLAIN - 1} twins under that hash,", pool.get_cached_block, [(7,)] * 5)
    assert_lean("evict_blocks([block_id]) of one of them", pool.evict_blocks, [([i],) for i in range(1000, 1005)])


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
        f"blocks 1 and 2 hold the same content; block {twins[goes].block_id} was evicted, and block {stays.block_id} "
        "is not found: when one twin is evicted, the other must still be found")
    got = (twins[goes].block_hash, stays.block_hash)
    assert got == (None, 111), (f"blocks 1 and 2 were cached under 111; evict_blocks([{twins[goes].block_id}]) left "
                                f"that block and its twin with the hashes {got}, expected (None, 111)")
    pool.evict_blocks([stays.block_id])
    got = pool.get_cached_block(111)
    assert got is None, f"blocks 1 and 2, cached under 111, were evicted, but get_cached_block(111) is {shown(got)}"
    pool.check_integrity()


@pytest.mark.points(1)
def test_task_8_evict_blocks_leaves_owners_and_queue_alone(lab):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [111, 222])
    pool.free_blocks(blocks[1:])
    with must_work("evict_blocks(iter([1, 2, 3, 0, 1])) in a pool of 4", "a block that is not indexed does not "
                   "change, and an id may occur twice"):
        pool.evict_blocks(iter([1, 2, 3, 0, 1]))
    got = [pool.get_cached_block(block_hash) for block_hash in (111, 222)]
    assert got == [None, None], (f"blocks 1 (in use) and 2 (free) were cached under 111 and 222; after "
                                 f"evict_blocks(iter([1, 2, 3, 0, 1])) get_cached_block() of 111 and 222 is "
                                 f"{all_shown(got)}, expected None twice: block_ids may be an iterator, which can be "
                                 "read only once")
    got = ([block.ref_cnt for block in blocks], free_ids(pool))
    assert got == ([1, 0], [3, 2]), (
        f"evict_blocks(iter([1, 2, 3, 0, 1])) with block 1 in use and 3→2 free: (ref_cnt of 1 and 2, queue) is {got}, "
        "expected ([1, 0], [3, 2]): it removes blocks only from the index")
    assert pool.num_evictions == 0, (f"evict_blocks gave out no block; num_evictions is {pool.num_evictions}, expected "
                                     f"0: {WHO_COUNTS}")


@pytest.mark.points(1)
@pytest.mark.parametrize("bad", [4, -1])
def test_task_8_evict_blocks_refuses_an_id_that_is_not_the_pools(lab, bad):
    pool = lab.BlockPool(4)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks, [111, 222, 333])
    before, call = state(pool), f"evict_blocks([1, {bad}]) in a pool of 4"
    with must_raise(ValueError, call):
        pool.evict_blocks([1, bad])
    assert_unchanged(pool, before, call)
    got = pool.get_cached_block(111)
    assert got is blocks[0], (f"{call} raised, as it should, but get_cached_block(111) is {shown(got)}, expected "
                              "block 1")
    for caching in (True, False):
        with must_raise(ValueError, f"evict_blocks([{bad}]) in a pool of 4, enable_caching={caching}, nothing cached"):
            lab.BlockPool(4, caching).evict_blocks([bad])


@pytest.mark.points(2)
def test_task_8_reset_is_refused_while_blocks_are_in_use(lab):
    pool = lab.BlockPool(8)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [111, 222])
    pool.touch(blocks)
    before, call = state(pool), "reset_prefix_cache() with 2 blocks in use, each with two owners,"
    with must_raise(RuntimeError, call) as refused:
        pool.reset_prefix_cache()
    assert_unchanged(pool, before, call)
    assert re.search(r"\b2\b", str(refused.error)), (
        f"{call} raised {refused.error!r}: the message must contain the number of blocks in use, 2")
    got = pool.get_cached_block(111)
    assert got is blocks[0], (f"{call} raised, as it should, but get_cached_block(111) is {shown(got)}, expected block "
                              "1: a call that fails changes nothing")
    for caching in (True, False):
        other = lab.BlockPool(4, caching)
        other.get_new_blocks(1)
        with must_raise(RuntimeError, f"reset_prefix_cache() with 1 block in use, nothing cached, caching={caching},"):
            other.reset_prefix_cache()


@pytest.mark.points(1)
def test_task_8_reset_forgets_all_content_and_nothing_else(lab):
    pool = lab.BlockPool(5)
    pool.cache_full_blocks(pool.get_new_blocks(4), [111, 222, 333, 444])
    pool.free_blocks([pool.blocks[block_id] for block_id in (2, 1, 3, 4)])
    pool.free_blocks(pool.get_new_blocks(1))
    queue, num_evictions = free_ids(pool), pool.num_evictions
    pool.reset_prefix_cache()
    got = [pool.get_cached_block(block_hash) for block_hash in (111, 222, 333, 444)]
    hashes = [block.block_hash for block in pool.blocks]
    assert got == [None] * 4 and hashes == [None] * 5, (
        f"after reset_prefix_cache() get_cached_block() of 111, 222, 333 and 444 is {all_shown(got)}, and the blocks "
        f"have the hashes {hashes}, expected None everywhere: all content is forgotten")
    got = (free_ids(pool), pool.num_evictions)
    assert got == (queue, num_evictions), (
        f"reset_prefix_cache() with {queue} free and num_evictions at {num_evictions}: (queue, num_evictions) is {got} "
        "afterwards, expected no change: the reset gives out no block")
    pool.check_integrity()
