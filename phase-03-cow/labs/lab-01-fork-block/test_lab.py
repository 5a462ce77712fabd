"""Lab 3.1, copy on write. Each test checks one rule, and its failure message names the rule.

The pool counts references. ``Memory`` below stands in for the model runner: it stores the contents of the blocks, an
array of numbers [num_blocks, block_size].
"""

import random

import numpy as np
import pytest

from course.expecting import must_raise

BLOCK_SIZE = 4
NOTHING = -1


def ids(blocks):
    return [block.block_id for block in blocks]


def free_ids(pool):
    return ids(pool.free_block_queue.get_all_free_blocks())


def pending(pool):
    return [(source.block_id, copy.block_id) for source, copy in pool.pending_copies]


def state(pool):
    """Return everything that a failing call must leave unchanged."""
    return {"free queue": free_ids(pool), "ref_cnt": [block.ref_cnt for block in pool.blocks],
            "block_hash": [block.block_hash for block in pool.blocks], "pending": pending(pool),
            "num_forks": pool.num_forks, "num_evictions": pool.num_evictions}


def assert_unchanged(pool, before, call, why="It raised, as it should, but too late: do all checks before any change"):
    after = state(pool)
    changes = "; ".join(f"{name} was {before[name]}, is {after[name]}" for name in after if after[name] != before[name])
    assert not changes, f"{call} should change nothing, but {changes}. {why}"


def assert_sound(pool, when):
    """Check that a block is free if and only if neither an owner nor a pending copy holds a reference."""
    free = free_ids(pool)
    for block in pool.blocks[1:]:
        assert (block.block_id in free) == (block.ref_cnt == 0), (
            f"{when}: block {block.block_id} has ref_cnt {block.ref_cnt} and is "
            f"{'' if block.block_id in free else 'not '}in the free queue: a block is free if and only if its ref_cnt "
            "is 0")


def fork_private(pool, block):
    """Call ``fork_block`` for a block with one owner, and fail if it calls ``_fork_shared``. For tests of task 1."""
    assert block.ref_cnt == 1, f"block {block.block_id} has ref_cnt {block.ref_cnt}, expected 1 for its one owner"
    try:
        return pool.fork_block(block)
    except NotImplementedError as error:
        if "_fork_shared" not in str(error):
            raise
    pytest.fail(f"block {block.block_id} has one owner, but fork_block(block {block.block_id}) calls _fork_shared: "
                "call it only for blocks with two or more owners", pytrace=False)


def assert_private_is_forked(pool, block):
    """Check that ``fork_block`` accepts this block: a pool that rejects it would reject every block."""
    got = fork_private(pool, block)
    assert got is block, (f"block {block.block_id} has one owner; fork_block(block {block.block_id}) returned {got!r}, "
                          "expected the same block")


def assert_shared_is_forked(pool, block):
    """Fork block 1 into block 2, which is free, and return block 2."""
    copy = pool.fork_block(block)
    assert copy is pool.blocks[2] and copy.block_id == 2, (
        f"block 1 has two owners; fork_block(block 1) returned {copy!r}, expected block 2")
    return copy


def finish_copies(pool):
    """Call ``finish_copies``, and fail with an explanation if it raises. Let NotImplementedError through."""
    copies = pending(pool)
    try:
        pool.finish_copies()
    except NotImplementedError:
        raise
    except Exception as error:
        why = "With no copy pending it must do nothing"
        if copies:
            why = "Are pending_copies and _kept_for_copy both empty before finish_copies frees the kept blocks?"
        message = f"finish_copies(), with the copies {copies} pending, raised {type(error).__name__}({error}). {why}"
        raise AssertionError(message).with_traceback(error.__traceback__) from None


def make_shared(lab, num_blocks, num_owners=2, block_hash=None):
    """Return a pool and its block 1, which has several owners and, if a hash is given, is in the index."""
    pool = lab.BlockPool(num_blocks)
    (block,) = pool.get_new_blocks(1)
    if block_hash is not None:
        pool.cache_full_blocks([block], [block_hash])
    for _ in range(num_owners - 1):
        pool.touch([block])
    return pool, block


class Memory:
    """The contents of the blocks. It makes all copies before it writes, and it never writes into a shared block."""

    def __init__(self, num_blocks):
        self.slots = np.full((num_blocks, BLOCK_SIZE), NOTHING)

    def make_copies(self, pool, rng=None):
        """Make all pending copies, last one first or shuffled: a GPU makes them all at once, in no promised order."""
        copies = pool.pending_copies[::-1]
        if rng is not None:
            rng.shuffle(copies)
        for source, copy in copies:
            self.slots[copy.block_id] = self.slots[source.block_id]

    def write(self, block, offset, token, who="an owner"):
        assert block.ref_cnt == 1, (f"{who} writes token {token} into block {block.block_id}, whose ref_cnt is "
                                    f"{block.ref_cnt}: only a sole owner may write. Did fork_block move one reference?")
        self.slots[block.block_id, offset] = token

    def read(self, table, num_tokens):
        return self.slots[ids(table)].ravel()[:num_tokens].tolist()


# ---- Task 1


@pytest.mark.points(2)
def test_task_1_a_private_block_is_returned_as_it_is(lab):
    pool = lab.BlockPool(4)
    (block,) = pool.get_new_blocks(1)
    before = state(pool)
    got = fork_private(pool, block)
    assert got is block, (f"block 1 has one owner; fork_block returned block {got.block_id}, expected the same block: "
                          "no other owner reads it, so its owner can write in place")
    assert_unchanged(pool, before, "fork_block(block 1), which has one owner,", "It needs no copy")


@pytest.mark.points(1)
def test_task_1_a_private_block_needs_no_room(lab):
    pool = lab.BlockPool(2)
    (block,) = pool.get_new_blocks(1)
    got = fork_private(pool, block)
    assert got is block, (f"block 1 has one owner, and no block is free; fork_block returned {got}, expected block 1 "
                          "itself: a private block needs no free block")


@pytest.mark.points(1)
def test_task_1_a_private_block_with_a_hash_is_returned_as_it_is(lab):
    pool, block = make_shared(lab, 4, num_owners=1, block_hash="once upon a time")
    before = state(pool)
    call = "fork_block(block 1), which has one owner and is cached as 'once upon a time',"
    got = fork_private(pool, block)
    assert got is block, f"{call} returned block {got.block_id}, expected block 1: the index is not an owner"
    assert_unchanged(pool, before, call, "Return a private block unchanged: only its owner, not the pool, knows what "
                     "will be written into it")
    got = pool.get_cached_block("once upon a time")
    assert got is block, f"after {call} a lookup of its hash finds {got}, expected block 1"


@pytest.mark.points(2)
def test_task_1_a_free_block_cannot_be_forked(lab):
    pool = lab.BlockPool(4)
    assert_private_is_forked(pool, pool.get_new_blocks(1)[0])
    before = state(pool)
    with must_raise(RuntimeError, "fork_block(block 2), which is free,",
                    "a block without an owner must not be written"):
        pool.fork_block(pool.blocks[2])
    assert_unchanged(pool, before, "fork_block(block 2), which is free,")


@pytest.mark.points(2)
def test_task_1_the_null_block_and_strangers_cannot_be_forked(lab):
    pool, other = lab.BlockPool(4), lab.BlockPool(9)
    assert_private_is_forked(pool, pool.get_new_blocks(1)[0])
    before = state(pool)
    for bad, what in ((pool.null_block, "the null block"), (other.get_new_blocks(1)[0], "block 1 of another pool"),
                      (other.get_new_blocks(7)[6], "block 8 of another pool")):
        with must_raise(RuntimeError, f"fork_block({what})", "this block cannot have owners in this pool"):
            pool.fork_block(bad)
        assert_unchanged(pool, before, f"fork_block({what})")


# ---- Task 2


@pytest.mark.points(3)
def test_task_2_forking_a_shared_block_moves_one_reference(lab):
    pool, block = make_shared(lab, 4)
    copy = pool.fork_block(block)
    assert copy is pool.blocks[2], (f"block 1 has two owners; fork_block returned {copy}, expected block 2, the block "
                                    "that has been free longest")
    got = (block.ref_cnt, copy.ref_cnt)
    assert got == (1, 1), (f"after fork_block(block 1), blocks 1 and 2 have ref_cnt {got}, expected (1, 1): the caller "
                           "gives up its reference to the original and owns the copy")
    assert_sound(pool, "after fork_block(block 1)")


@pytest.mark.points(2)
def test_task_2_the_copy_is_recorded_source_first(lab):
    pool, block = make_shared(lab, 6, num_owners=3)
    first, second = pool.fork_block(block), pool.fork_block(block)
    got = pool.pending_copies
    assert len(got) == 2 and all(a is c and b is d for (a, b), (c, d) in zip(got, [(block, first), (block, second)])), (
        f"block 1 was forked into block 2 and then into block 3: the block ids in pending_copies are {pending(pool)}, "
        "expected [(1, 2), (1, 3)]: source first, in the order of the forks")


@pytest.mark.points(3)
def test_task_2_both_sides_read_back_their_own_tokens(lab):
    pool, block = make_shared(lab, 4)
    memory = Memory(4)
    memory.slots[block.block_id] = [10, 11, NOTHING, NOTHING]
    child = pool.fork_block(block)
    memory.make_copies(pool)
    memory.write(block, 2, 20, "the parent")
    memory.write(child, 2, 30, "the child")
    got = memory.read([block], 3), memory.read([child], 3)
    assert got == ([10, 11, 20], [10, 11, 30]), (
        f"parent and child shared the tokens 10 and 11; then the parent wrote 20 and the child wrote 30. They read "
        f"{got}, expected ([10, 11, 20], [10, 11, 30])")


@pytest.mark.points(2)
def test_task_2_the_last_owner_writes_in_place(lab):
    pool, block = make_shared(lab, 6, num_owners=3)
    copies = [pool.fork_block(block) for _ in range(3)]
    assert copies[2] is block, (f"three owners of block 1 fork it and get the blocks {ids(copies)}; expected the third "
                                "owner to keep block 1: after the other two have left, the block is private")
    assert len(pool.pending_copies) == 2, (f"three owners fork one block: the copies {pending(pool)} are pending, "
                                           "expected 2 copies")
    got = [other.ref_cnt for other in copies]
    assert got == [1, 1, 1], (f"three owners forked block 1 and got the blocks {ids(copies)}: their ref_cnt is {got}, "
                              "expected [1, 1, 1]")


@pytest.mark.points(1)
def test_task_2_a_copy_is_private_before_it_is_made(lab):
    pool, block = make_shared(lab, 4)
    copy = assert_shared_is_forked(pool, block)
    before = state(pool)
    got = pool.fork_block(copy)
    assert got is copy, (f"block 1 was forked into block 2, which has one owner; fork_block(block 2) returned block "
                         f"{got.block_id}, expected block 2 itself. The copy into block 2 is still pending, but that "
                         "does not matter: copies are made before anything is written")
    assert_unchanged(pool, before, "fork_block(block 2), which has one owner,", "It needs no second copy")


@pytest.mark.points(2)
def test_task_2_every_copy_that_was_asked_for_is_counted(lab):
    pool, block = make_shared(lab, 6, num_owners=3)
    got = [pool.num_forks]
    for _ in range(3):  # the third owner keeps block 1
        pool.fork_block(block)
        got.append(pool.num_forks)
    assert got == [0, 1, 2, 2], (f"three owners fork block 1, and the third is its only owner by then: num_forks is "
                                 f"{got}, expected [0, 1, 2, 2]. It counts requested copies, not calls")


@pytest.mark.points(2)
def test_task_2_the_copy_has_no_hash_and_the_source_is_found_as_before(lab):
    pool, block = make_shared(lab, 4, block_hash="once upon a time")
    copy = pool.fork_block(block)
    assert copy.block_hash is None, (f"block 1 is cached as 'once upon a time' and was forked: its copy has the hash "
                                     f"{copy.block_hash!r}, expected None. The owner of the copy will write other "
                                     "tokens into it")
    got = pool.get_cached_block("once upon a time")
    assert got is block, (f"after the fork of block 1, a lookup of its hash finds {got}, expected block 1: a fork does "
                          "not change the original")


@pytest.mark.points(1)
def test_task_2_a_shared_block_is_forked_with_caching_off_too(lab):
    pool = lab.BlockPool(4, enable_caching=False)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    got = pool.fork_block(block)
    got = (got.block_id, pending(pool), block.ref_cnt)
    assert got == (2, [(1, 2)], 1), (f"in a pool with enable_caching=False, block 1 has two owners: after "
                                     f"fork_block(block 1), (returned block, pending, ref_cnt of block 1) is {got}, "
                                     "expected (2, [(1, 2)], 1). Samples also share blocks when caching is off")


@pytest.mark.points(3)
def test_task_2_without_room_nothing_changes(lab):
    assert_shared_is_forked(*make_shared(lab, 3))
    pool, block = make_shared(lab, 2)
    before = state(pool)
    call = "fork_block(block 1), which has two owners, with no block free,"
    with must_raise(ValueError, call, "a copy needs a fresh block; the same call may succeed later"):
        pool.fork_block(block)
    assert_unchanged(pool, before, call)


# ---- Task 3 (nothing here needs finish_copies)


@pytest.mark.points(1)
def test_task_3_without_pending_copies_blocks_are_free_at_once(lab):
    pool = lab.BlockPool(6)
    blocks = pool.get_new_blocks(3)
    pool.touch(blocks[:1])
    pool.free_blocks(reversed(blocks))
    got = free_ids(pool)
    assert got == [4, 5, 3, 2], (f"blocks 4 and 5 are free, and block 1 has two owners: after free_blocks(reversed("
                                 f"[1, 2, 3])) the queue is {got}, expected [4, 5, 3, 2]")
    assert blocks[0].ref_cnt == 1, f"block 1 lost one of its two owners: ref_cnt is {blocks[0].ref_cnt}, expected 1"
    assert_sound(pool, "after free_blocks")


@pytest.mark.points(1)
def test_task_3_a_block_that_comes_twice_loses_two_owners(lab):
    pool, block = make_shared(lab, 4)
    pool.free_blocks([block, block])
    got = (block.ref_cnt, free_ids(pool))
    assert got == (0, [2, 3, 1]), (f"block 1 has two owners: after free_blocks([1, 1]), (ref_cnt, queue) is {got}, "
                                   "expected (0, [2, 3, 1])")
    for is_pending in (False, True):
        pool = lab.BlockPool(7)
        a, b, c, shared = pool.get_new_blocks(4)
        pool.touch([a, shared])
        if is_pending:
            pool.fork_block(shared)
        pool.free_blocks([c, a, b, a])
        got = free_ids(pool)[-3:]
        assert got == [3, 2, 1], (f"block 1 has two owners, blocks 2 and 3 have one owner each, and "
                                  f"{'a' if is_pending else 'no'} copy of another block is pending: after free_blocks("
                                  f"[3, 1, 2, 1]) the queue ends with {got}, expected [3, 2, 1]: the order in which "
                                  "the blocks lose their last owner")
    pool, block = make_shared(lab, 4, num_owners=3)
    pool.fork_block(block)
    pool.free_blocks([block, block])
    got = (block.ref_cnt, free_ids(pool))
    assert got == (1, [3]), (f"the copy 1 → 2 is pending, and block 1 has two owners left: after free_blocks([1, 1]), "
                             f"(ref_cnt of block 1, queue) is {got}, expected (1, [3]). The first owner's reference is "
                             "dropped; the copy takes over the second one")


@pytest.mark.points(3)
def test_task_3_the_source_of_a_pending_copy_is_not_offered_for_reuse(lab):
    pool, block = make_shared(lab, 4)
    pool.fork_block(block)
    pool.free_blocks([block])
    got = free_ids(pool)
    assert got == [3], (f"the copy 1 → 2 is pending and the last owner of block 1 has left: the queue is {got}, "
                        "expected [3]. The content of block 1 has not been copied yet")
    assert block.ref_cnt == 1, f"the copy takes over the reference: block 1 has ref_cnt {block.ref_cnt}, expected 1"
    assert_sound(pool, "with the source kept")


@pytest.mark.points(3)
def test_task_3_the_destination_of_a_pending_copy_is_not_offered_for_reuse(lab):
    pool, block = make_shared(lab, 4)
    copy = pool.fork_block(block)
    pool.free_blocks([copy])
    got = free_ids(pool)
    assert got == [3], (f"the copy 1 → 2 is pending and the owner of block 2 has left: the queue is {got}, expected "
                        "[3]. The copy will still be made, and it would overwrite the content of a new owner")
    assert copy.ref_cnt == 1, f"the copy takes over the reference: block 2 has ref_cnt {copy.ref_cnt}, expected 1"
    assert_sound(pool, "with the destination kept")
    pool.free_blocks([block])
    got = free_ids(pool)
    assert got == [3], (f"then the owner of block 1 leaves: the queue is {got}, expected [3]: the copy 1 → 2 is still "
                        "pending, although neither block has an owner")


@pytest.mark.points(2)
def test_task_3_only_the_last_owners_reference_is_kept(lab):
    pool, block = make_shared(lab, 4, num_owners=3)
    pool.fork_block(block)
    got = [block.ref_cnt]
    for _ in range(2):
        pool.free_blocks([block])
        got.append(block.ref_cnt)
    assert got == [2, 1, 1], (f"block 1 has a pending copy and two owners, which leave one by one: its ref_cnt is "
                              f"{got}, expected [2, 1, 1]. The copy takes over only the last reference")
    assert free_ids(pool) == [3], f"the copy still needs block 1, but the queue is {free_ids(pool)}, expected [3]"


@pytest.mark.points(3)
def test_task_3_a_double_free_is_noticed_while_copies_are_pending(lab):
    pool, block = make_shared(lab, 5)
    copy = pool.fork_block(block)
    (other,) = pool.get_new_blocks(1)
    pool.free_blocks([block])
    before = state(pool)
    for bad in ([other, block], [other, copy, copy], [other, other]):
        call = (f"free_blocks({ids(bad)}), where block 1 has no owner (the copy holds it) and blocks 2 and 3 have one "
                "owner each,")
        with must_raise(RuntimeError, call, "it frees a block more often than the block has owners"):
            pool.free_blocks(bad)
        assert_unchanged(pool, before, call)


@pytest.mark.points(1)
def test_task_3_a_kept_block_can_be_owned_again(lab):
    pool, block = make_shared(lab, 4)
    pool.fork_block(block)
    pool.free_blocks([block])
    pool.touch([block])
    pool.free_blocks([block])
    assert (block.ref_cnt, free_ids(pool)) == (1, [3]), (
        f"block 1 was kept for a copy, then touched and freed: ref_cnt is {block.ref_cnt} and the queue is "
        f"{free_ids(pool)}, expected 1 and [3]: the copy still needs the block")
    for num_owners, owners in enumerate(("no owner", "one owner")):
        pool.touch([block] * num_owners)
        before = state(pool)
        call = f"free_blocks({[1] * (num_owners + 1)}), where block 1 has {owners} and the copy's reference,"
        with must_raise(RuntimeError, call, "the copy's reference is not an owner"):
            pool.free_blocks([block] * (num_owners + 1))
        assert_unchanged(pool, before, call)


@pytest.mark.points(1)
def test_task_3_two_owners_of_a_kept_block_do_not_write_in_place(lab):
    pool, block = make_shared(lab, 5)
    pool.fork_block(block)
    pool.free_blocks([block])
    pool.touch([block, block])
    got = pool.fork_block(block)
    assert got is pool.blocks[3], (f"block 1 is kept for the copy 1 → 2 and has two new owners; fork_block(block 1) "
                                   f"returned block {got.block_id}, expected block 3, a fresh block: the other owner "
                                   "reads block 1 (task 1)")
    assert (block.ref_cnt, pending(pool)) == (2, [(1, 2), (1, 3)]), (
        f"after that, block 1 has ref_cnt {block.ref_cnt} and the copies {pending(pool)} are pending, expected 2 (one "
        "owner and the copy's reference) and [(1, 2), (1, 3)]")


@pytest.mark.points(1)
def test_task_3_a_copy_whose_owner_has_left_is_not_given_to_the_next(lab):
    pool, block = make_shared(lab, 5, num_owners=3)
    pool.free_blocks([pool.fork_block(block)])
    got = pool.fork_block(block)
    got = (got.block_id, pending(pool), pool.num_forks)
    assert got == (3, [(1, 2), (1, 3)], 2), (
        f"block 1 was forked into block 2, whose owner left; then another owner of block 1 forks it: (returned block, "
        f"pending, num_forks) is {got}, expected (3, [(1, 2), (1, 3)], 2). Every fork of a shared block takes a fresh "
        "block and adds a pair")


@pytest.mark.points(2)
def test_task_3_a_block_that_is_only_kept_for_a_copy_cannot_be_forked(lab):
    pool, block = make_shared(lab, 5)
    copy = pool.fork_block(block)
    pool.free_blocks([block, copy])
    before = state(pool)
    for bad in (block, copy):
        call = f"fork_block(block {bad.block_id}), whose only reference is held by the copy,"
        with must_raise(RuntimeError, call, "a block without an owner must not be written (task 1)"):
            pool.fork_block(bad)
        assert_unchanged(pool, before, call)


@pytest.mark.points(2)
def test_task_3_the_copys_reference_does_not_make_a_block_shared(lab):
    pool, block = make_shared(lab, 5)
    pool.fork_block(block)
    pool.free_blocks([block])
    pool.touch([block])
    before = state(pool)
    got = pool.fork_block(block)
    assert got is block and got.block_id == 1, (
        f"block 1 has one owner, and a copy holds another reference; fork_block returned block {got.block_id}, "
        "expected block 1 itself. The copy is made before anything is written (task 1)")
    assert_unchanged(pool, before, "fork_block(block 1), which has one owner,", "It needs no copy (task 1)")


@pytest.mark.points(2)
def test_task_3_a_kept_block_is_found_and_not_evicted(lab):
    pool, block = make_shared(lab, 4, block_hash="once upon a time")
    pool.fork_block(block)
    pool.free_blocks([block])
    others = ids(pool.get_new_blocks(1))
    assert others == [3], (f"block 1 is kept for the copy 1 → 2, and block 3 is free: get_new_blocks(1) returned "
                           f"{others}, expected [3]")
    got = (pool.get_cached_block("once upon a time"), pool.num_evictions)
    assert got == (block, 0), (f"block 1 lost its last owner while a copy was pending, and then all free blocks were "
                               f"allocated: (block found by its hash, num_evictions) is {got}, expected (block 1, 0). "
                               "The copy holds block 1, so it must not be evicted")
    with must_raise(ValueError, "get_new_blocks(1), with block 1 kept and blocks 2 and 3 owned,",
                    "a kept block is not free"):
        pool.get_new_blocks(1)


@pytest.mark.points(1)
def test_task_3_a_kept_destination_keeps_its_hash(lab):
    pool, block = make_shared(lab, 4)
    copy = pool.fork_block(block)
    pool.cache_full_blocks([copy], ["once upon a time"])  # its owner is going to fill the block in this step
    pool.free_blocks([copy])
    got = (copy.block_hash, pool.get_cached_block("once upon a time"))
    assert got == ("once upon a time", copy), (
        f"block 2 is the destination of the copy 1 → 2 and was cached before its owner left: (its hash, block found by "
        f"that hash) is {got}, expected ('once upon a time', block 2). A kept block keeps its hash, like a freed block")


@pytest.mark.points(1)
def test_task_3_a_copy_without_a_waiting_owner_stays_pending(lab):
    pool, block = make_shared(lab, 4)
    copy = pool.fork_block(block)
    pool.free_blocks([block])
    pool.free_blocks([copy])
    got = (pending(pool), free_ids(pool), block.ref_cnt, copy.ref_cnt)
    assert got == ([(1, 2)], [3], 1, 1), (
        f"the copy 1 → 2 is pending and both owners have left: (pending, queue, ref_cnt of block 1, of block 2) is "
        f"{got}, expected ([(1, 2)], [3], 1, 1). Only finish_copies() removes a pair from the list")
    try:
        pool.check_integrity()
    except RuntimeError as error:
        pytest.fail(f"the copy 1 → 2 is pending and both owners have left: check_integrity() says: {error}",
                    pytrace=False)


@pytest.mark.points(1)
def test_task_3_the_block_for_the_copy_forgets_what_it_held(lab):
    pool = lab.BlockPool(3)
    old, block = pool.get_new_blocks(2)
    pool.cache_full_blocks([old], ["an old tale"])
    pool.free_blocks([old])
    pool.touch([block])
    copy = pool.fork_block(block)
    got = (copy.block_id, pool.get_cached_block("an old tale"), pool.num_evictions)
    assert got == (1, None, 1), (f"the only free block, block 1, is cached as 'an old tale', and a fork of block 2 "
                                 f"takes it: (returned block, block found by that hash, num_evictions) is {got}, "
                                 "expected (1, None, 1). Take the block with get_new_blocks, which evicts it")


@pytest.mark.points(1)
def test_task_3_the_null_block_and_strangers_cannot_be_freed(lab):
    pool = lab.BlockPool(4)
    pool.free_blocks(pool.get_new_blocks(1))
    assert free_ids(pool) == [2, 3, 1], (f"in a pool of 4, one block was allocated and freed: the free queue is "
                                         f"{free_ids(pool)}, expected [2, 3, 1]")
    pool, other = lab.BlockPool(4), lab.BlockPool(4)
    (mine,) = pool.get_new_blocks(1)
    before = state(pool)
    for bad, what in ((pool.null_block, "the null block"), (other.get_new_blocks(1)[0], "block 1 of another pool")):
        with must_raise(RuntimeError, f"free_blocks([block 1, {what}])", f"{what} has no owners in this pool"):
            pool.free_blocks([mine, bad])
        assert_unchanged(pool, before, f"free_blocks([block 1, {what}])")


# ---- Task 4


@pytest.mark.points(2)
def test_task_4_finishing_leaves_owned_blocks_with_their_owners(lab):
    pool, block = make_shared(lab, 4)
    copy = pool.fork_block(block)
    finish_copies(pool)
    assert pending(pool) == [], f"finish_copies() left {pending(pool)} pending, expected nothing"
    got = (block.ref_cnt, copy.ref_cnt, free_ids(pool))
    assert got == (1, 1, [3]), (f"both blocks of the copy have an owner: after finish_copies(), (ref_cnt of block 1, "
                                f"of block 2, queue) is {got}, expected (1, 1, [3])")
    before = state(pool)
    finish_copies(pool)
    assert_unchanged(pool, before, "finish_copies() with nothing pending", "There is nothing left to report")


@pytest.mark.points(2)
def test_task_4_blocks_kept_for_a_copy_become_free(lab):
    pool, block = make_shared(lab, 4)
    copy = pool.fork_block(block)
    pool.free_blocks([copy, block])
    finish_copies(pool)
    got = free_ids(pool)
    assert got == [3, 1, 2], (f"only the copy 1 → 2 held blocks 1 and 2: after finish_copies() the queue is {got}, "
                              "expected [3, 1, 2]: the kept blocks after block 3, lowest id first")
    assert_sound(pool, "after finish_copies()")
    pool, block = make_shared(lab, 5, num_owners=3)
    copies = [pool.fork_block(block), pool.fork_block(block)]
    pool.free_blocks([block])
    finish_copies(pool)
    got = (free_ids(pool), block.ref_cnt, [copy.ref_cnt for copy in copies])
    assert got == ([4, 1], 0, [1, 1]), (f"block 1 was the source of two copies when its last owner left: after "
                                        f"finish_copies(), (queue, ref_cnt of block 1, ref_cnt of its copies) is "
                                        f"{got}, expected ([4, 1], 0, [1, 1]): block 1 was kept with one reference, so "
                                        "only one is dropped")


@pytest.mark.points(2)
def test_task_4_kept_blocks_become_free_lowest_id_first(lab):
    pool = lab.BlockPool(11)
    blocks = pool.get_new_blocks(7)
    pool.touch([blocks[0], blocks[3]])
    copies = [pool.fork_block(blocks[3]), pool.fork_block(blocks[0])]  # 4 → 8 and 1 → 9
    pool.free_blocks([*copies, blocks[3], blocks[0]])
    finish_copies(pool)
    got = free_ids(pool)
    assert got == [10, 1, 4, 8, 9], (f"the copies 4 → 8 and 1 → 9 were pending when the blocks 8, 9, 4, 1 lost their "
                                     f"last owners, in this order: after finish_copies() the queue is {got}, expected "
                                     "[10, 1, 4, 8, 9]: lowest id first, so that a run is reproducible")


@pytest.mark.points(2)
def test_task_4_a_kept_block_is_still_cached_when_it_is_free(lab):
    pool, block = make_shared(lab, 4, block_hash="once upon a time")
    pool.fork_block(block)
    pool.free_blocks([block])
    finish_copies(pool)
    got = (pool.get_cached_block("once upon a time"), free_ids(pool))
    assert got == (block, [3, 1]), (f"the copy of block 1 is made, and block 1 has no owner: (block found by its hash, "
                                    f"queue) is {got}, expected (block 1, [3, 1]). Like any freed block, it is free "
                                    "and can be found")
    pool.get_new_blocks(2)
    got = (pool.get_cached_block("once upon a time"), pool.num_evictions)
    assert got == (None, 1), (f"then block 1 is allocated again: (block found by its hash, num_evictions) is {got}, "
                              "expected (None, 1)")


@pytest.mark.points(1)
def test_task_4_the_count_of_forks_is_never_reset(lab):
    pool, block = make_shared(lab, 5, num_owners=3)
    got = []
    for _ in range(2):
        pool.fork_block(block)
        finish_copies(pool)
        got.append(pool.num_forks)
    assert got == [1, 2], (f"two steps, each with fork_block(block 1) and finish_copies(): num_forks after each step "
                           f"is {got}, expected [1, 2]. It counts all forks since the pool was created")


@pytest.mark.points(2)
def test_task_4_a_kept_block_that_was_touched_stays_with_its_owner(lab):
    pool, block = make_shared(lab, 4, block_hash="once upon a time")
    pool.fork_block(block)
    pool.free_blocks([block])
    pool.touch([block])
    finish_copies(pool)
    got = (block.ref_cnt, free_ids(pool))
    assert got == (1, [3]), (f"block 1 was kept for a copy and then touched by a new owner: after finish_copies(), "
                             f"(ref_cnt, queue) is {got}, expected (1, [3]): the copy's reference is dropped, the "
                             "owner's reference stays")
    got = pool.get_cached_block("once upon a time")
    assert got is block, (f"a lookup of its hash finds {got} after finish_copies(), expected block 1: the block was "
                          "not allocated again, so it is still in the index")
    pool.check_integrity()
    pool.free_blocks([block])
    got = free_ids(pool)
    assert got == [3, 1], (f"then its owner leaves: the queue is {got}, expected [3, 1]: no copy needs block 1 any "
                           "more")


@pytest.mark.points(2)
def test_task_4_the_next_step_starts_without_pending_copies(lab):
    pool, block = make_shared(lab, 4)
    copy = pool.fork_block(block)
    pool.free_blocks([block])
    finish_copies(pool)
    pool.free_blocks([copy])
    got = free_ids(pool)
    assert got == [3, 1, 2], (f"finish_copies() was called for the copy 1 → 2; then the owner of block 2 leaves: the "
                              f"queue is {got}, expected [3, 1, 2]. A finished copy keeps no block")
    again = pool.get_new_blocks(3)
    pool.free_blocks(again)
    assert free_ids(pool) == [3, 1, 2], (f"all three blocks were allocated and freed again: the queue is "
                                         f"{free_ids(pool)}, expected [3, 1, 2]")


@pytest.mark.points(3)
def test_task_4_a_parent_that_ends_before_the_copy_leaves_its_content(lab):
    """Fork in a pool of three usable blocks, in which only the source of the copy could be reused."""
    pool, memory = lab.BlockPool(4), Memory(4)
    (shared,) = pool.get_new_blocks(1)
    (busy,) = pool.get_new_blocks(1)
    pool.touch([shared, busy])
    memory.slots[[1, 2], :2] = [[10, 11], [20, 21]]
    child = pool.fork_block(shared)
    pool.free_blocks([shared])  # the parent ends in the same step
    try:
        thief = pool.fork_block(busy)
    except ValueError:
        thief = None  # right: no block is free in this step
    memory.make_copies(pool)
    assert memory.read([child], 2) == [10, 11], (
        f"a child forked block 1, which holds 10 and 11, then the parent left, and another fork "
        f"{'found no room' if thief is None else f'got block {thief.block_id}'}; after all copies {pending(pool)} the "
        f"child reads {memory.read([child], 2)}, expected [10, 11]: a source must not become a destination")
    finish_copies(pool)
    assert free_ids(pool) == [1], (f"the copy is made, and block 1 has no owner: the queue is {free_ids(pool)}, "
                                   "expected [1]")


@pytest.mark.points(3)
def test_task_4_a_child_that_ends_before_the_copy_does_no_harm(lab):
    pool, memory = lab.BlockPool(4), Memory(4)
    (shared,) = pool.get_new_blocks(1)
    (busy,) = pool.get_new_blocks(1)
    pool.touch([shared, busy])
    memory.slots[[1, 2], :2] = [[10, 11], [20, 21]]
    child = pool.fork_block(shared)
    pool.free_blocks([child])  # aborted in the same step
    try:
        other = pool.fork_block(busy)
    except ValueError:
        other = busy  # right: no block is free in this step; it still reads the shared block
    memory.make_copies(pool)
    assert memory.read([other], 2) == [20, 21], (
        f"a child forked block 1 into block 3 and was aborted; another owner, whose tokens 20 and 21 belong in block "
        f"{other.block_id}, reads {memory.read([other], 2)} after all copies {pending(pool)}, expected [20, 21]: no "
        "block may be the destination of two copies")
    finish_copies(pool)
    assert free_ids(pool) == [3], (f"block 3 has no owner, and no copy needs it: the queue is {free_ids(pool)}, "
                                   "expected [3]")


class Owner:
    """A sequence of tokens and the blocks that hold them."""

    def __init__(self, name, tokens, table):
        self.name, self.tokens, self.table = name, tokens, table


@pytest.mark.points(4)
def test_task_4_random_traffic_reads_back_its_own_tokens(lab):
    """Run steps like a server: plan (share, fork, end), make the copies in any order, write, report and read back."""
    for seed in range(10):
        rng = random.Random(seed)
        num_blocks = rng.randint(4, 7)  # a small pool, so that freed blocks are soon allocated again
        pool, memory, owners = lab.BlockPool(num_blocks), Memory(num_blocks), []
        for step in range(40):
            writes = {}
            for _ in range(rng.randint(1, 16)):
                quiet = [owner for owner in owners if owner not in writes]
                action = rng.choice(["new", "share", "share", "write", "write", "write", "end"])
                name = f"{seed}-{step}-{len(owners)}"
                try:
                    if action == "new":
                        owner = Owner(name, [], pool.get_new_blocks(1))
                        owners.append(owner)
                        writes[owner] = (owner.table[0], 0)
                    elif action == "share" and quiet:
                        parent = rng.choice(quiet)
                        pool.touch(parent.table)
                        owners.append(Owner(name, list(parent.tokens), list(parent.table)))
                    elif action == "write" and quiet:
                        owner = rng.choice(quiet)
                        index, offset = divmod(len(owner.tokens), BLOCK_SIZE)
                        if offset == 0:
                            owner.table += pool.get_new_blocks(1)
                        else:
                            owner.table[index] = pool.fork_block(owner.table[index])
                        writes[owner] = (owner.table[index], offset)
                    elif action == "end" and owners:
                        owner = owners.pop(rng.randrange(len(owners)))
                        writes.pop(owner, None)
                        pool.free_blocks(reversed(owner.table))
                except ValueError:
                    continue  # no block is free; a later step may try again
            memory.make_copies(pool, rng)
            for owner, (block, offset) in writes.items():
                token = rng.randrange(1000)
                memory.write(block, offset, token, f"seed {seed}, step {step}: owner {owner.name}")
                owner.tokens.append(token)
            finish_copies(pool)
            assert_sound(pool, f"seed {seed}, after step {step}")
            for owner in owners:
                got = memory.read(owner.table, len(owner.tokens))
                assert got == owner.tokens, (f"seed {seed}, step {step}: owner {owner.name} reads {got} from its "
                                             f"blocks {ids(owner.table)}, but wrote {owner.tokens}")
            names = [block.block_id for owner in owners for block in owner.table]
            got = [block.ref_cnt for block in pool.blocks]
            assert got == [names.count(i) for i in range(num_blocks)], (
                f"seed {seed}, after step {step}: the ref_cnt of each block is {got}, but the number of tables that "
                f"contain it is {[names.count(i) for i in range(num_blocks)]}")
        for owner in owners:
            pool.free_blocks(owner.table)
        got = pool.get_num_free_blocks()
        assert got == num_blocks - 1, (f"seed {seed}: all owners have left, but {got} blocks are free, expected "
                                       f"{num_blocks - 1}")
