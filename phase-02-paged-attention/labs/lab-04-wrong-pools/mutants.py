"""Wrong tests: suites that people really write, and the graded test that rejects each of them."""

import re
from pathlib import Path

from course.mutants import Mutant

SOLUTION = Path(__file__).with_name("solution.py").read_text(encoding="utf-8")


def body(task):
    """Return the whole body that the solution has for a task."""
    found = re.search(rf"    # TASK {task}: \w+\n(.*?)    # END TASK\n", SOLUTION, re.S)
    assert found is not None
    return found[1]


MUTANTS = [
    # ---- tests that can never fail
    Mutant(
        name="empty",
        story="Has a name but no body.",
        replace=body(1),
        by="    pass\n",
        killed_by="test_task_5_each_of_your_tests_catches_something",
        breaks="invariant 2: A test can fail",
    ),
    Mutant(
        name="calls-and-asserts-nothing",
        story="Makes the calls and checks nothing, except that no call raises.",
        replace=body(1),
        by="    pool = pools.BlockPool(6)\n    pool.free_blocks(pool.get_new_blocks(3))\n",
        killed_by="test_task_1_lowest_number_first_is_caught",
        breaks="test_giving_out: have been free longest, in that order",
    ),
    Mutant(
        name="assert-true",
        story="A placeholder that was never completed.",
        replace=body(3),
        by="    assert True\n",
        killed_by="test_task_5_each_of_your_tests_catches_something",
        breaks="invariant 2: each of your tests catches at least one wrong pool",
    ),
    Mutant(
        name="an-assert-in-brackets",
        story="assert (condition, message) asserts a tuple, which is always true.",
        replace=body(3),
        by='    assert (pools.BlockPool(4).get_num_free_blocks() == 7, "a pool of 4 has 3 free blocks")\n',
        killed_by="test_task_3_the_first_to_leave_is_caught",
        breaks="invariant 2: A test can fail",
    ),
    Mutant(
        name="skips-itself",
        story="Skips itself; a skipped test has not passed.",
        replace="    a, b, c = pool.get_new_blocks(3)\n    before = state(pool)\n",
        by='    a, b, c = pool.get_new_blocks(3)\n    pytest.skip("later")\n    before = state(pool)\n',
        killed_by="test_task_5_your_tests_pass_on_right_pools",
        breaks="invariant 1: passes on every right pool",
    ),
    # ---- tests that fail on a right pool
    Mutant(
        name="counts-from-block-0",
        story="Expects that the null block is given out.",
        replace='assert ids(blocks) == [1, 2, 3], f"get_new',
        by='assert ids(blocks) == [0, 1, 2], f"get_new',
        killed_by="test_task_5_your_tests_pass_on_right_pools",
        breaks="invariant 1: passes on every right pool",
    ),
    Mutant(
        name="always-fails",
        story="Fails on every wrong pool, but also on every right pool.",
        replace=body(5),
        by='    raise AssertionError("not good enough")\n',
        killed_by="test_task_5_freeing_half_of_it_is_caught",
        breaks="invariant 1: passes on every right pool",
    ),
    Mutant(
        name="peeks-at-the-index",
        story="Reads _cached, which the pool of lab 2.1 happens to have.",
        replace="    before = state(pool)\n    assert pool.get_cached_block(111) is a,",
        by="    before = state(pool)\n    assert 111 in pool._cached\n    assert pool.get_cached_block(111) is a,",
        killed_by="test_task_5_your_tests_pass_on_right_pools",
        breaks="invariant 1: relies only on promised behaviour",
    ),
    Mutant(
        name="peeks-at-the-links",
        story="Checks that the links of the touched block are None, but a pool need not have links.",
        replace='    assert middle.ref_cnt == 1, f"touch(block 2), which was free: its ref_cnt is {middle.ref_cnt}"\n',
        by="    assert middle.prev_free is None and middle.next_free is None\n",
        killed_by="test_task_3_the_first_to_leave_is_caught",
        breaks="invariant 1: relies only on promised behaviour",
    ),
    Mutant(
        name="knows-which-twin",
        story="Expects the older of two twins, but either may serve a hit.",
        replace='assert pool.get_cached_block(111) in twins, "',
        by='assert pool.get_cached_block(111) is twins[0], "',
        killed_by="test_task_4_the_lost_twin_is_caught",
        breaks=("test_finding_and_forgetting: a lookup may return either", ("invariant 1: relies only on promised "
                                                                            "behaviour")),
    ),
    Mutant(
        name="knows-the-message",
        story="Compares the text of the error with the reference's text.",
        replace="    with pytest.raises(ValueError):\n        pool.get_new_blocks(3)\n",
        by='    with pytest.raises(ValueError, match="only 2 blocks are free"):\n        pool.get_new_blocks(3)\n',
        killed_by="test_task_5_your_tests_pass_on_right_pools",
        breaks="invariant 1: relies only on promised behaviour",
    ),
    Mutant(
        name="knows-a-word-of-the-message",
        story="Requires only one word of the error message, but that word is not promised.",
        replace="    with pytest.raises(RuntimeError):\n        pool.free_blocks([b, b])\n",
        by='    with pytest.raises(RuntimeError, match="owners"):\n        pool.free_blocks([b, b])\n',
        killed_by="test_task_2_a_double_free_in_one_call_is_caught",
        breaks="invariant 1: relies only on promised behaviour",
    ),
    Mutant(
        name="counts-with-the-queue",
        story="Reads num_free_blocks of the queue, which a test may not use.",
        replace="    pool.free_blocks(blocks[1:2])\n",
        by="    assert pool.free_block_queue.num_free_blocks == 2\n    pool.free_blocks(blocks[1:2])\n",
        killed_by="test_task_5_your_tests_pass_on_right_pools",
        breaks="invariant 1: relies only on promised behaviour",
    ),
    # ---- tests that check something else
    Mutant(
        name="looks-at-the-class",
        story="Checks the name, bases and methods of the class, which are the same for right and wrong pools.",
        replace=body(4),
        by='''    assert pools.BlockPool.__name__ == pools.BlockPool.__qualname__ == "BlockPool"
    assert pools.BlockPool.__bases__ == (object,) and pools.BlockPool.__module__ == "pools"
''',
        killed_by="test_task_4_forgetting_too_early_is_caught",
        breaks="invariant 4: not its name or its code",
    ),
    Mutant(
        name="looks-at-the-source",
        story="Counts the source lines of a method, which are the same for right and wrong pools.",
        replace=body(2),
        by='''    import inspect
    assert inspect.getsource(pools.BlockPool.free_blocks).count("\\n") == 2
''',
        killed_by="test_task_2_a_double_free_is_caught",
        breaks="invariant 4: not its name or its code",
    ),
    Mutant(
        name="looks-at-the-class-inside",
        story="Reads the pool of a block and the name of its class, but all classes have the same name.",
        replace=body(5),
        by="""    inside = getattr(pools.BlockPool(4).blocks[1], "pool", None)
    assert inside is None or type(inside).__name__ == "BlockPool"
""",
        killed_by="test_task_5_freeing_half_of_it_is_caught",
        breaks="invariant 4: not its name or its code",
    ),
    # ---- tests that keep state between runs
    Mutant(
        name="keeps-the-first-class",
        story="Remembers the first class, and treats every other class as wrong.",
        replace=body(3),
        by='''    seen = globals().setdefault("SEEN", pools.BlockPool)
    assert pools.BlockPool is seen
''',
        killed_by="test_task_3_an_owned_block_among_the_free_is_caught",
        breaks="invariant 3: keeps no state from one run to the next",
    ),
    Mutant(
        name="counts-its-own-runs",
        story="Assumes that the right pools are first, and fails from the fourth run on.",
        replace=body(5),
        by='''    runs = globals().setdefault("RUNS", [])
    runs.append(pools)
    assert len(runs) <= 3
''',
        killed_by="test_task_5_the_sealed_pool_is_caught",
        breaks="invariant 3: A test gives the same result every time",
    ),
    Mutant(
        name="tires-of-its-pools",
        story="Keeps every class that it has seen, and fails at the fortieth class.",
        replace="    blocks = pool.get_new_blocks(3)\n    for block in blocks:\n",
        by='''    seen = globals().setdefault("SEEN", [])
    seen.append(pools.BlockPool)
    assert len(seen) < 40
    blocks = pool.get_new_blocks(3)
    for block in blocks:
''',
        killed_by="test_task_5_your_tests_pass_on_right_pools",
        breaks="invariant 3: keeps no state from one run to the next",
    ),
    # ---- tests that check too little: task 1
    Mutant(
        name="only-fresh-pools",
        story="Uses a fresh pool, in which the block that has been free longest also has the lowest id.",
        replace="    pool.free_blocks(blocks[1:2])\n    got = pool.get_new_blocks(3)\n    assert ids(got) == [4, 5, 2]",
        by="    got = pool.get_new_blocks(2)\n    assert ids(got) == [4, 5]",
        killed_by="test_task_1_lowest_number_first_is_caught",
        breaks="test_giving_out: blocks that have been free longest",
    ),
    Mutant(
        name="never-takes-the-last",
        story="Always leaves one block in the pool.",
        replace="    got = pool.get_new_blocks(3)\n    assert ids(got) == [4, 5, 2]",
        by="    got = pool.get_new_blocks(2)\n    assert ids(got) == [4, 5]",
        killed_by="test_task_1_keeping_the_last_block_is_caught",
        breaks="test_giving_out: All free blocks can be given out, including the last one",
    ),
    Mutant(
        name="no-negative-numbers",
        story="Does not try a negative number of blocks.",
        replace="        pool.get_new_blocks(-1)\n",
        by="        pool.get_new_blocks(6)\n",
        killed_by="test_task_1_less_than_nothing_is_caught",
        breaks="test_giving_out: ValueError if ``n`` is negative",
    ),
    Mutant(
        name="any-error-will-do",
        story="pytest.raises(Exception) accepts any error that a bug in the pool raises.",
        replace="    with pytest.raises(RuntimeError):\n        pool.free_blocks([a])\n",
        by="    with pytest.raises(Exception):\n        pool.free_blocks([a])\n",
        killed_by="test_task_2_a_double_free_with_another_error_is_caught",
        breaks="test_freeing: RuntimeError, and no other error, if a block has no owner to drop",
    ),
    # ---- task 2
    Mutant(
        name="frees-in-any-order",
        story="Compares the freed blocks as a set.",
        replace='''    assert free_ids(pool) == [4, 5, 3, 1], f"free_blocks([3, 1]) with''',
        by='''    assert set(free_ids(pool)) == {4, 5, 3, 1}, f"free_blocks([3, 1]) with''',
        killed_by="test_task_2_queueing_backwards_is_caught",
        breaks="test_freeing: queues blocks without owners in the order given",
    ),
    Mutant(
        name="tries-and-passes",
        story="try, except, pass: the test continues whether the free of a free block raises or not.",
        replace="    with pytest.raises(RuntimeError):\n        pool.free_blocks([a])\n",
        by='''    try:
        pool.free_blocks([a])
    except Exception:
        pass
''',
        killed_by="test_task_2_a_double_free_is_caught",
        breaks="test_freeing: if a block has no owner to drop",
    ),
    Mutant(
        name="one-block-a-call",
        story="Tries a double free in two calls, but not in one call.",
        replace="    with pytest.raises(RuntimeError):\n        pool.free_blocks([b, b])\n",
        by="",
        killed_by="test_task_2_a_double_free_in_one_call_is_caught",
        breaks="test_freeing: RuntimeError if one call drops more owners than a block has",
    ),
    Mutant(
        name="refusals-only",
        story="Tries the calls that must raise, but not the similar call that must be accepted.",
        replace="    pool.free_blocks([shared, shared])\n",
        by="    pool.free_blocks([shared])\n    pool.free_blocks([shared])\n",
        killed_by="test_task_2_the_sealed_pool_is_caught",
        breaks="test_freeing: may contain a block twice if it has two owners",
    ),
    # ---- task 3
    Mutant(
        name="touch-only-counts",
        story="Checks the owners of the touched block, but not the queue.",
        replace=body(3),
        by="""    pool = pools.BlockPool(6)
    (block,) = pool.get_new_blocks(1)
    pool.free_blocks([block])
    pool.touch([block])
    pool.touch([block])
    assert block.ref_cnt == 2
    pool.free_blocks([block])
    assert block.ref_cnt == 1
""",
        killed_by="test_task_3_an_owned_block_among_the_free_is_caught",
        breaks="test_sharing: After: a free block has left the queue, wherever it was in the queue",
    ),
    Mutant(
        name="touches-the-oldest",
        story="Touches the block at the head of the queue, where popleft and remove do the same.",
        replace=body(3),
        by="""    pool = pools.BlockPool(6)
    oldest = pool.blocks[1]
    pool.touch([oldest])
    assert free_ids(pool) == [2, 3, 4, 5]
    pool.touch([oldest])
    pool.free_blocks([oldest])
    assert free_ids(pool) == [2, 3, 4, 5]
""",
        killed_by="test_task_3_the_sealed_pool_is_caught",
        breaks="test_sharing: no other block has moved",
    ),
    Mutant(
        name="one-owner-is-enough",
        story="Never drops only one of two owners.",
        replace="""    pool.touch([middle])
    pool.free_blocks([middle])
    assert middle.ref_cnt == 1, f"one""",
        by="""    assert middle.ref_cnt == 1, f"one""",
        killed_by="test_task_3_the_first_to_leave_is_caught",
        breaks="test_sharing: is free when the last owner has left, not before",
    ),
    # ---- task 4
    Mutant(
        name="finds-only-what-is-used",
        story="Never frees the block that it looks up.",
        replace="    pool.free_blocks([a])\n    assert pool.get_cached_block(111) is a",
        by="    assert pool.get_cached_block(111) is a",
        killed_by="test_task_4_forgetting_too_early_is_caught",
        breaks="test_finding_and_forgetting: in a block in use or free",
    ),
    Mutant(
        name="never-waits-for-reuse",
        story="Does not look up the content after its block was given to a new owner.",
        replace='    assert pool.get_cached_block(111) is None, "block 1 was given',
        by='    assert pool.get_cached_block(222) is None, "block 1 was given',
        killed_by="test_task_4_forgetting_too_late_is_caught",
        breaks="test_finding_and_forgetting: forgotten when get_new_blocks gives the block out again",
    ),
    Mutant(
        name="no-twins",
        story="Never puts the same content into two blocks.",
        replace="pool.cache_full_blocks(twins, [111, 111])",
        by="pool.cache_full_blocks(twins, [111, 222]); continue",
        killed_by="test_task_4_the_lost_twin_is_caught",
        breaks="test_finding_and_forgetting: when one block is forgotten, a lookup finds the other",
    ),
    Mutant(
        name="trusts-the-look",
        story="Makes each lookup the last call on its pool, so it does not notice what the lookup changed.",
        replace=body(4),
        by="""    for num_owners in (1, 0):
        pool = pools.BlockPool(4)
        (a,) = pool.get_new_blocks(1)
        pool.cache_full_blocks([a], [111])
        pool.free_blocks([a][num_owners:])
        assert pool.get_cached_block(111) is a
""",
        killed_by="test_task_4_looking_that_owns_is_caught",
        breaks="test_finding_and_forgetting: A lookup changes nothing",
    ),
    Mutant(
        name="a-hit-is-the-end",
        story="Stops after the first hit, and does not check whether the content can be found again.",
        replace='    assert pool.get_cached_block(111) is a, "block 1 got a new owner, but 111 is not found"\n',
        by="    assert a.ref_cnt == 1\n",
        killed_by="test_task_4_the_sealed_pool_is_caught",
        breaks="test_finding_and_forgetting: and at no other time",
    ),
    # ---- task 5
    Mutant(
        name="raising-is-enough",
        story="Checks that free_blocks raises, but not what free_blocks changed before it raised.",
        replace="    assert state(pool) == before, f\"freeing 1 and",
        by="    before = state(pool)\n    assert state(pool) == before, f\"freeing 1 and",
        killed_by="test_task_5_freeing_half_of_it_is_caught",
        breaks=("invariant 5: After a call that raises, a test checks the state again",
                "test_a_refused_call_changes_nothing: a call that raises has not changed owners"),
    ),
    Mutant(
        name="bad-block-first",
        story="Puts the invalid block first, so the call raises before it could change anything.",
        replace="pool.free_blocks([a, pool.null_block])",
        by="pool.free_blocks([pool.null_block, a])",
        killed_by="test_task_5_freeing_half_of_it_is_caught",
        breaks="test_a_refused_call_changes_nothing: a block in use and then the null block",
    ),
    Mutant(
        name="owners-but-no-hashes",
        story="After the call, checks only the owners.",
        replace="""\
    assert state(pool) == before, f"caching 2 blocks with 1 hash raised, but {before} became {state(pool)}"
    assert pool.get_cached_block(111) is None, "caching""",
        by="""    assert a.ref_cnt == b.ref_cnt == 1, "caching""",
        killed_by="test_task_5_caching_half_of_it_is_caught",
        breaks="test_a_refused_call_changes_nothing: has not changed owners, hashes",
    ),
    Mutant(
        name="counts-the-free-blocks",
        story="Checks only the number of free blocks, not their order.",
        replace="    return free_ids(pool), pool.get_num_free_blocks(), pool.num_evictions, blocks\n",
        by="    return pool.get_num_free_blocks(), pool.num_evictions, blocks\n",
        killed_by="test_task_5_the_sealed_pool_is_caught",
        breaks="test_a_refused_call_changes_nothing: the free queue or its order",
    ),
]
