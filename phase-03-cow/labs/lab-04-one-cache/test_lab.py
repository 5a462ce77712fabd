"""Lab 3.4, one cache. Each test checks one rule, and its failure message names that rule.

``leave`` puts a text into the cache, as a finished request does. The tests of a task need only that task and the tasks
before it: before task 4 they finish copies through the pool, and before task 5 they free no requests.
"""

import random

import pytest

from course.expecting import must_raise
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request

COUNT = list(range(1, 40))


def counts(manager):
    """Return the statistics as a dictionary."""
    stats = manager.stats
    return {name: getattr(stats, name)
            for name in ("num_queries", "num_query_tokens", "num_hit_tokens", "num_evicted_blocks")}


def ids(blocks):
    return None if blocks is None else [block.block_id for block in blocks]


def free_ids(manager):
    return ids(manager.block_pool.free_block_queue.get_all_free_blocks())


def pending(manager):
    return [(source.block_id, copy.block_id) for source, copy in manager.block_pool.pending_copies]


def state(manager, *requests):
    """Return the state that a lookup, or a call that returns None, must not change."""
    tables = [list(manager.get_block_ids(request.request_id)) for request in requests]
    return pool_state(manager.block_pool) | {"tables": tables, "stats": counts(manager)}


def pool_state(pool):
    return {"free queue": ids(pool.free_block_queue.get_all_free_blocks()),
            "ref_cnt": [block.ref_cnt for block in pool.blocks],
            "block_hash": [block.block_hash for block in pool.blocks],
            "pending": [(source.block_id, copy.block_id) for source, copy in pool.pending_copies]}


def make(lab, num_blocks=10, block_size=4, **more):
    return lab.KVCacheManager(num_blocks=num_blocks, block_size=block_size, tree_class=PrefixTree, **more)


def leave(manager, tokens, extra_keys=None):
    """Cache ``tokens`` in free blocks, as a finished request leaves them, including the tail."""
    hits, num_cached = manager.get_computed_blocks(Request("?", [*tokens, 0], extra_keys=extra_keys))
    assert num_cached == 0, f"leave() needs a new text; {num_cached} tokens of {tokens} were found: {ids(hits)}"
    blocks = manager.block_pool.get_new_blocks(-(-len(tokens) // manager.block_size))
    manager.prefix_tree.donate(tokens, blocks, len(tokens), extra_keys)


def named(manager, *block_ids):
    """Return the tokens that the keys of these blocks name; None for a block without a key."""
    keys = [manager.block_pool.blocks[block_id].block_hash for block_id in block_ids]
    return [key and key.token_ids for key in keys]


def lookup(manager, tokens, extra_keys=None):
    hits, num_cached = manager.get_computed_blocks(Request("lookup", tokens, extra_keys=extra_keys))
    return ids(hits), num_cached


def admit(manager, request, num_new_tokens=None):
    """Admit a waiting request as a scheduler does: look it up, allocate slots, advance num_computed_tokens."""
    hits, num_cached = manager.get_computed_blocks(request)
    num_new_tokens = num_new_tokens or request.num_tokens - num_cached
    taken = manager.allocate_slots(request, num_new_tokens, hits, num_cached)
    if taken is not None:
        request.num_cached_tokens, request.num_computed_tokens = num_cached, num_cached + num_new_tokens
    return taken


def grow(manager, request, *token_ids):
    """Append these tokens to the request and allocate their slots, as if one step computed them all."""
    for token_id in token_ids:
        request.append_output_token(token_id)
    taken = manager.allocate_slots(request, len(token_ids))
    if taken is not None:
        request.num_computed_tokens += len(token_ids)
    return taken


def fork(manager, parent, child):
    child.num_computed_tokens = min(parent.num_computed_tokens, child.num_tokens)
    manager.fork(parent, child)
    return child


# ---- Task 1: look up


@pytest.mark.points(2)
def test_task_1_a_hit_ends_inside_a_block(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])  # blocks 1, 2, 3
    got = lookup(manager, [*COUNT[:6], 70, 71, 72])
    assert got == ([1, 2], 6), (f"10 tokens are cached in blocks 1, 2, 3; a prompt that shares the first 6 finds "
                                f"{got}, expected ([1, 2], 6): block 1 whole, and two tokens of block 2")
    got = lookup(manager, [70, *COUNT[:6]])
    assert got == ([], 0), f"a prompt that begins with another token finds {got}, expected ([], 0)"


@pytest.mark.points(3)
@pytest.mark.parametrize("num_tokens, expected", [(1, ([], 0)), (2, ([1], 1)), (5, ([1], 4)), (8, ([1, 2], 7)),
                                                  (9, ([1, 2], 8)), (10, ([1, 2, 3], 9)), (11, ([1, 2, 3], 10))])
def test_task_1_at_least_one_token_is_left_to_compute(lab, num_tokens, expected):
    manager = make(lab)
    leave(manager, COUNT[:10])
    got = lookup(manager, COUNT[:num_tokens])
    assert got == expected, (f"10 tokens are cached, and a prompt of the first {num_tokens} finds {got}, expected "
                             f"{expected}: look up all tokens except the last")


@pytest.mark.points(1)
def test_task_1_what_a_request_has_said_is_asked_for_too(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    request = Request("r", COUNT[:6])
    for token_id in (*COUNT[6:10], 50):  # it was preempted after five tokens of its answer
        request.append_output_token(token_id)
    hits, num_cached = manager.get_computed_blocks(request)
    got = ids(hits), num_cached
    assert got == ([1, 2, 3], 10), (
        f"10 tokens are cached; a request with a prompt of 6 and an answer of 5 tokens, {request.all_token_ids}, finds "
        f"{got}, expected ([1, 2, 3], 10): its answer is part of its text, so leave out only the last token")


@pytest.mark.points(2)
def test_task_1_the_salt_keeps_tenants_apart(lab):
    manager = make(lab)
    leave(manager, COUNT[:6], extra_keys=("a",))
    got = [lookup(manager, COUNT[:8], salt) for salt in (("a",), ("b",), None)]
    assert got == [([1, 2], 6), ([], 0), ([], 0)], (
        f"6 tokens of tenant 'a' are cached; the same text of tenant 'a', of 'b' and without extra keys finds {got}, "
        "expected [([1, 2], 6), ([], 0), ([], 0)]: pass the request's extra_keys to the tree")


@pytest.mark.points(1)
def test_task_1_a_lookup_changes_nothing(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    leave(manager, COUNT[20:24])  # the free queue ends with 3 2 1 4
    request = Request("r", COUNT[:11])
    before, fields = state(manager), dict(vars(request))
    manager.get_computed_blocks(request)
    assert state(manager) == before, (f"get_computed_blocks changed {before} to {state(manager)}: a lookup changes "
                                      "nothing. A block that is touched and freed moves to the end of the free queue")
    assert vars(request) == fields, f"get_computed_blocks changed the request from {fields} to {vars(request)}"


@pytest.mark.points(2)
@pytest.mark.parametrize("more", [{"tree_class": None}, {"tree_class": PrefixTree, "enable_caching": False}])
def test_task_1_without_a_tree_the_base_looks(lab, more):
    with_tree, manager = make(lab), lab.KVCacheManager(num_blocks=10, block_size=4, **more)
    leave(with_tree, COUNT[:10])
    manager.allocate_slots(Request("a", COUNT[:10]), 10)
    prompt = [*COUNT[:10], 50]
    got = lookup(with_tree, prompt), lookup(manager, prompt), manager.prefix_tree
    expected = ([1, 2, 3], 10), ([], 0) if "enable_caching" in more else ([1, 2], 8), None
    assert got == expected, (f"10 tokens of {prompt} are in blocks 1, 2, 3. (hit of a manager with a tree, hit of a "
                             f"manager made with {more}, its prefix_tree) is {got}, expected {expected}")


# ---- Task 2: adopt and write


@pytest.mark.points(3)
def test_task_2_a_tail_without_an_owner_is_written_in_place(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    request = Request("r", [*COUNT[:10], 50])
    taken = ids(admit(manager, request))
    got = taken, manager.get_block_ids("r"), pending(manager)
    assert got == ([], [1, 2, 3], []), (
        f"all 10 cached tokens are adopted, and token 50 is written at offset 2 of block 3: (taken, table, copies) is "
        f"{got}, expected ([], [1, 2, 3], []). No other request owns block 3, and its key names only offsets 0 and 1")
    got = [block.ref_cnt for block in manager.block_pool.blocks[1:4]]
    assert got == [1, 1, 1], f"the adopted blocks 1, 2, 3 have ref_cnt {got}, expected [1, 1, 1]: touch every hit"


@pytest.mark.points(3)
def test_task_2_a_block_whose_key_names_other_tokens_is_copied(lab, monkeypatch):
    manager = make(lab)
    leave(manager, COUNT[:10])
    taken = ids(admit(manager, Request("r", [*COUNT[:6], 70, 71])))
    got = taken, manager.get_block_ids("r"), pending(manager)
    assert got == ([4], [1, 4], [(2, 4)]), (
        f"6 tokens are adopted, and 70 is written where block 2 holds 7: (taken, table, copies) is {got}, expected "
        "([4], [1, 4], [(2, 4)]). The index finds block 2 as 5 6 7 8, so its content must not change")
    got = free_ids(manager)
    assert 2 not in got, (f"the copy 2 → 4 is pending, and the free queue is {got}: keep block 2 out of it until the "
                          "copy is made, or another request may overwrite the block")
    manager.block_pool.finish_copies()
    got = lookup(manager, COUNT[:11])
    assert got == ([1, 2, 3], 10), (f"after the copy, a lookup of the 10 cached tokens gives {got}, expected "
                                    "([1, 2, 3], 10)")
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 0)
    manager = make(lab)
    leave(manager, COUNT[:8])
    taken = ids(admit(manager, Request("r", [*COUNT[:6], 70, 71])))
    assert (taken, pending(manager)) == ([3], [(2, 3)]), (
        f"every hash is forced to 0, 6 tokens are adopted, and 70 is written where block 2 holds 7: (taken, copies) is "
        f"{(taken, pending(manager))}, expected ([3], [(2, 3)]). Compare block_hash with None: a key of 0 is false")


@pytest.mark.points(1)
def test_task_2_a_tail_is_copied_where_its_key_names_another_token(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    taken = ids(admit(manager, Request("r", [*COUNT[:9], 70])))
    got = taken, manager.get_block_ids("r"), pending(manager)
    assert got == ([4], [1, 2, 4], [(3, 4)]), (
        f"9 tokens are adopted, and 70 is written where the tail in block 3 holds 10: (taken, table, copies) is {got}, "
        "expected ([4], [1, 2, 4], [(3, 4)]). The key of a half-filled block protects its tokens, like any other key")


def why_not_copied(manager, num_requests):
    """Say what is probably wrong if a hit that another request owns is not copied."""
    if manager.stats.num_queries < num_requests:
        return (f"{num_requests} requests held no block before, but {manager.stats.num_queries} are counted. Either "
                "_count_query is not called, or `held` is not empty any more: `table = held; table += hits` appends "
                "the hits to `held` itself, so they no longer look like hits. `held + hits` makes a new list")
    return ("The ref_cnt of a hit counts its other owners only, so 1 means that another request owns it. Is is_hit "
            "True for it? `table = held; table += hits` appends the hits to `held`. `held + hits` makes a new list")


@pytest.mark.points(2)
def test_task_2_a_tail_with_an_owner_is_copied(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    first, second = Request("first", [*COUNT[:10], 50]), Request("second", [*COUNT[:10], 60])
    hits = manager.get_computed_blocks(second)
    admit(manager, first)
    taken = ids(manager.allocate_slots(second, 1, *hits))
    got = taken, manager.get_block_ids("second"), pending(manager)
    assert got == ([4], [1, 2, 4], [(3, 4)]), (
        f"'first' owns the tail in block 3 now, and 'second' also adopts it: (taken, table, copies) is {got}, "
        f"expected ([4], [1, 2, 4], [(3, 4)]). {why_not_copied(manager, 2)}")


@pytest.mark.points(3)
def test_task_2_the_same_tokens_are_written_again_in_place(lab):
    manager = make(lab)
    leave(manager, COUNT[:8])
    taken = ids(admit(manager, Request("r", COUNT[:8])))
    got = taken, manager.get_block_ids("r"), pending(manager)
    assert got == ([], [1, 2], []), (
        f"all 8 tokens of the prompt are cached; 7 are adopted, and token 8 is computed again, into the slot that "
        f"holds it: (taken, table, copies) is {got}, expected ([], [1, 2], []). The key of block 2 stays true")
    other = Request("other", COUNT[:8])
    taken = ids(manager.allocate_slots(other, 1, manager.block_pool.blocks[1:3], 7))
    assert (taken, pending(manager)) == ([3], [(2, 3)]), (
        f"another request does the same while the first owns block 2: (taken, copies) is {(taken, pending(manager))}, "
        "expected ([3], [(2, 3)]). Do not write into a block that another request owns, not even the same tokens. "
        f"{why_not_copied(manager, 2)}")


@pytest.mark.points(1)
def test_task_2_a_block_after_the_last_slot_is_not_copied(lab):
    manager = make(lab)
    parent = Request("parent", COUNT[:12])
    admit(manager, parent)  # blocks 1, 2, 3
    child = fork(manager, parent, Request("child", COUNT[:12]))
    child.num_computed_tokens = 5
    taken = ids(manager.allocate_slots(child, 2))
    got = taken, manager.get_block_ids("child"), pending(manager)
    assert got == ([4], [1, 4, 3], [(2, 4)]), (
        f"parent and child share blocks 1, 2, 3, and the child writes positions 5 and 6, in block 2: (taken, table, "
        f"copies) is {got}, expected ([4], [1, 4, 3], [(2, 4)]). Block 3 is not written now, so do not copy it")


@pytest.mark.points(2)
def test_task_2_a_private_block_is_copied_for_the_index_too(lab):
    """Let a child continue from inside its parent's text; the parent's blocks are in the index."""
    manager = make(lab)
    leave(manager, COUNT[:8])
    parent = Request("parent", [*COUNT[:8], 9])
    admit(manager, parent)
    child = Request("child", [*COUNT[:5], 70, 71])
    fork(manager, parent, child)
    child.num_computed_tokens = 5
    manager.block_pool.free_blocks(manager.block_pool.blocks[1:3])  # now only the child owns blocks 1 and 2
    taken = ids(manager.allocate_slots(child, 2))
    assert (taken, pending(manager)) == ([4], [(2, 4)]), (
        f"the child writes 70 at position 5, into block 2. Only the child owns that block, but the index finds it as "
        f"5 6 7 8: (taken, copies) is {(taken, pending(manager))}, expected ([4], [(2, 4)]). The index counts as a "
        "reader")


@pytest.mark.points(1)
def test_task_2_what_a_request_has_said_is_compared_too(lab):
    manager = make(lab)
    leave(manager, COUNT[:8])
    request = Request("r", COUNT[:5])
    for token_id in COUNT[5:8]:  # it was preempted after three tokens of its answer
        request.append_output_token(token_id)
    taken = ids(admit(manager, request))
    got = taken, manager.get_block_ids("r"), pending(manager)
    assert got == ([], [1, 2], []), (
        f"1 … 8 are cached. A request with a prompt of 5 and an answer of 3 tokens, {request.all_token_ids}, adopts 7 "
        f"and computes token 8 again, into the slot that holds it: (taken, table, copies) is {got}, expected ([], "
        "[1, 2], []). The answer is part of the text: compare with all tokens of the request")


@pytest.mark.points(1)
def test_task_2_a_block_that_a_copy_keeps_may_have_owners_too(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    tables = {}
    for name, prompt in (("x", [*COUNT[:9], 70]), ("y", [*COUNT[:10], 50]), ("z", [*COUNT[:10], 60])):
        admit(manager, Request(name, prompt))
        tables[name] = manager.get_block_ids(name)
    assert tables["x"][-1] != 3, (f"'x' writes 70 where block 3 holds 10, and its table is {tables['x']}: no copy was "
                                  "made")
    assert tables["y"][-1] != tables["z"][-1], (
        f"three requests arrive in one step: 'x' writes 70 into a copy of block 3; 'y' is 1 … 10 50; 'z' is 1 … 10 60. "
        f"The tables are {tables}: 'y' and 'z' both write offset 2 of block {tables['y'][-1]}. Requests can adopt a "
        "block while a pending copy keeps it; then they are its owners, and ref_cnt counts them")


@pytest.mark.points(2)
def test_task_2_a_key_that_goes_on_after_the_text_asks_for_a_copy(lab):
    manager = make(lab)
    leave(manager, COUNT[:8])
    taken = ids(admit(manager, Request("r", COUNT[:7])))
    got = taken, manager.get_block_ids("r"), pending(manager)
    assert got == ([3], [1, 3], [(2, 3)]), (
        f"1 … 8 are cached, and the prompt is 1 … 7: 6 are adopted, and 7 is computed again, into block 2, which is "
        f"found as 5 6 7 8: (taken, table, copies) is {got}, expected ([3], [1, 3], [(2, 3)]). The request has no "
        "eighth token yet, and the token sampled there may differ from the 8 that the key names")


@pytest.mark.points(2)
def test_task_2_a_later_block_is_written_from_its_beginning(lab):
    """Let a child continue from inside its parent's text; all its tokens but one equal the parent's."""
    manager = make(lab)
    leave(manager, COUNT[:12])
    parent = Request("parent", COUNT[:13])
    admit(manager, parent)  # blocks 1, 2, 3, and 4
    parent.num_computed_tokens = 5
    child = fork(manager, parent, Request("child", [*COUNT[:8], 90, *COUNT[9:12]]))
    manager.block_pool.free_blocks(manager.block_pool.blocks[1:4])  # now only the child owns blocks 1, 2 and 3
    taken = ids(manager.allocate_slots(child, 7))
    assert (taken, pending(manager)) == ([5], [(3, 5)]), (
        f"the child writes positions 5 to 11: the same 6 7 8 into block 2, and 90 10 11 12 into block 3. Only the "
        f"child owns block 3, but the index finds it as 9 10 11 12: (taken, copies) is {(taken, pending(manager))}, "
        "expected ([5], [(3, 5)]). Block 3 is written from offset 0 on, not from the offset of the first slot")


@pytest.mark.points(2)
def test_task_2_every_block_that_is_written_is_asked_about(lab):
    manager = make(lab)
    parent = Request("parent", COUNT[:10])
    admit(manager, parent)  # blocks 1, 2, 3
    parent.num_computed_tokens = 6  # the parent has 10 slots, and 6 of its tokens are computed
    child = fork(manager, parent, Request("child", COUNT[:10]))
    taken = ids(manager.allocate_slots(child, 4))
    got = taken, manager.get_block_ids("child"), sorted(pending(manager))
    assert got in (([4, 5], [1, 4, 5], [(2, 4), (3, 5)]), ([5, 4], [1, 5, 4], [(2, 5), (3, 4)])), (
        f"parent and child share blocks 1, 2, 3, and the child writes positions 6 to 9, in blocks 2 and 3: (taken, "
        f"table, copies) is {got}, expected ([4, 5], [1, 4, 5], [(2, 4), (3, 5)]). Call _must_fork for every block "
        "that this step writes, not only for the first")


@pytest.mark.points(2)
def test_task_2_forks_share_and_copy_as_before(lab):
    manager = make(lab)
    parent = Request("parent", COUNT[:10])
    admit(manager, parent)
    children = [fork(manager, parent, Request(f"child {i}", COUNT[:10])) for i in range(2)]
    got = [ids(grow(manager, request, 50 + i)) for i, request in enumerate([*children, parent])]
    assert got == [[4], [5], []], (f"a parent with 10 tokens and two children write one token each: newly taken {got}, "
                                   "expected [[4], [5], []]: two copies of block 3, then only the parent owns it")
    assert pending(manager) == [(3, 4), (3, 5)], f"pending copies are {pending(manager)}, expected [(3, 4), (3, 5)]"


@pytest.mark.points(2)
def test_task_2_copies_come_before_fresh_blocks(lab):
    manager = make(lab)
    leave(manager, COUNT[:8])
    taken = ids(admit(manager, Request("r", [*COUNT[:6], *range(70, 80)])))
    table = manager.get_block_ids("r")
    assert len(taken) == 3 and table == [1, *taken] and pending(manager) == [(2, taken[0])], (
        f"6 tokens are adopted, and 10 are new: newly taken {taken}, table {table}, copies {pending(manager)}; "
        "expected three blocks, in the order of the table after block 1: first the copy of block 2, then fresh blocks")


@pytest.mark.points(4)
def test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none(lab):
    manager = make(lab, num_blocks=6)
    leave(manager, COUNT[:8])  # blocks 1 and 2
    leave(manager, COUNT[20:21])  # block 3; the free queue is 4, 5, 2, 1, 3
    for num_new_tokens, why in ((11, "a copy and three fresh blocks"), (15, "a copy and four fresh blocks")):
        request = Request("r", [*COUNT[:6], *range(70, 70 + num_new_tokens)])
        hits, num_cached = manager.get_computed_blocks(request)
        before = state(manager, request)
        try:
            got = ids(manager.allocate_slots(request, num_new_tokens, hits, num_cached))
        except ValueError as error:
            got = f"raised ValueError ({error})"
        assert got is None, (f"6 tokens are adopted in two free blocks, and {num_new_tokens} new tokens need {why}; "
                             f"without the hits 3 blocks are free. allocate_slots: {got}; expected None, and no block "
                             "taken: copies and fresh blocks both need free blocks, and free hits do not count")
        assert state(manager, request) == before, (f"allocate_slots returned None, but {before} became "
                                                   f"{state(manager, request)}: count first, then change. If you touch "
                                                   "a hit and free it again, it moves to the end of the free queue")
    request = Request("r", [*COUNT[:6], *range(70, 80)])
    got = ids(admit(manager, request))
    assert got is not None and sorted(got) == [3, 4, 5], (
        f"10 new tokens need a copy and two fresh blocks, and without the hits blocks 3, 4 and 5 are free: "
        f"allocate_slots gave {got}, expected these three blocks")


@pytest.mark.points(2)
def test_task_2_a_hit_that_is_written_in_place_needs_no_room(lab):
    manager = make(lab, num_blocks=4)
    leave(manager, COUNT[:10])
    got = ids(admit(manager, Request("r", [*COUNT[:10], 50, 51])))
    assert got == [], ("all 3 blocks of the pool are adopted, and the last has room for two tokens: allocate_slots "
                       f"took {got}, expected []")


@pytest.mark.points(2)
def test_task_2_a_hit_that_is_in_use_takes_no_room(lab):
    manager = make(lab, num_blocks=5)
    leave(manager, COUNT[:8])
    admit(manager, Request("a", COUNT[:9]))  # adopts blocks 1 and 2, and takes block 3
    got = ids(admit(manager, Request("b", [*COUNT[:8], 60])))
    assert got == [4], (f"'a' runs with blocks 1, 2, 3, and block 4 is free. 'b' shares blocks 1 and 2 with 'a' and "
                        f"needs one more block: it took {got}, expected [4]. Subtract only hits that are in the free "
                        "queue from the number of free blocks")
    got = [block.ref_cnt for block in manager.block_pool.blocks[1:5]]
    assert got == [2, 2, 1, 1], (f"'a' owns blocks 1, 2, 3 and 'b' owns 1, 2, 4: the ref_cnts of 1 to 4 are {got}, "
                                 "expected [2, 2, 1, 1]: touch every hit, even if it is in use")


@pytest.mark.points(2)
def test_task_2_hits_and_numbers_are_checked_before_anything_changes(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    request = Request("r", COUNT[:12])
    hits, num_cached = manager.get_computed_blocks(request)
    before = state(manager, request)
    for error, arguments, why in ((ValueError, (hits, 8), "8 tokens do not end in the third block"),
                                  (ValueError, (hits, 13), "three blocks hold 12 tokens"),
                                  (RuntimeError, (hits, 12), "block 3 is cached with two tokens, not four")):
        call = f"allocate_slots(request, 1, blocks {ids(hits)}, {arguments[1]}) ({why})"
        with must_raise(error, call):
            manager.allocate_slots(request, 1, *arguments)
        got = state(manager, request)
        assert got == before, f"{call} was refused, but changed {before} to {got}: check first, then change"
    got = ids(manager.allocate_slots(request, 2, hits, num_cached))
    assert got == [], (f"allocate_slots(request, 2, blocks {ids(hits)}, {num_cached}) took {got}, expected []: 10 "
                       "tokens are adopted, and two more fill block 3")
    manager = make(lab)
    leave(manager, COUNT[:8])
    request = Request("r", COUNT[:9])
    got = ids(manager.allocate_slots(request, 1, manager.get_computed_blocks(request)[0])), manager.get_block_ids("r")
    assert got == ([3], [1, 2, 3]), (
        f"allocate_slots(request, 1, blocks [1, 2]), without the number of their tokens: (taken, table) is {got}, "
        "expected ([3], [1, 2, 3]): by default all 8 tokens of the hits count, so the new token needs a fresh block")


@pytest.mark.points(2)
def test_task_2_statistics_count_the_tokens_that_were_found(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    request = Request("r", [*COUNT[:6], 70, 71])
    admit(manager, request)
    grow(manager, request, 72)
    fork(manager, request, Request("child", request.all_token_ids))
    got = (manager.stats.num_queries, manager.stats.num_query_tokens, manager.stats.num_hit_tokens)
    assert got[0] > 0, (f"a prompt of 8 tokens found 6, decoded one and was forked: (queries, tokens, found) is {got}, "
                        "expected (1, 8, 6). Count a request once, when it held no block before. Is _count_query "
                        "called, and is `held` still empty? `table = held; table += hits` appends the hits to `held`")
    assert got == (1, 8, 6), (f"a prompt of 8 tokens found 6, decoded one and was forked: (queries, tokens, found) is "
                              f"{got}, expected (1, 8, 6)")
    admit(manager, Request("other", COUNT[20:25]))
    got = (manager.stats.num_queries, manager.stats.num_query_tokens, manager.stats.num_hit_tokens)
    assert got == (2, 13, 6), (f"then a prompt of 5 tokens found none: (queries, tokens, found) is {got}, expected "
                               "(2, 13, 6). Count requests that find nothing, or the hit rate is wrong")
    ahead = Request("ahead", COUNT[30:35])
    manager.allocate_slots(ahead, 3)
    manager.allocate_slots(ahead, 5)  # before a step has run: none of its tokens are computed yet
    got = (manager.stats.num_queries, manager.stats.num_query_tokens, manager.stats.num_hit_tokens)
    assert got == (3, 18, 6), (f"then a prompt of 5 tokens got 3 slots and, in a second call before the step, 5 slots: "
                               f"(queries, tokens, found) is {got}, expected (3, 18, 6). Count a request only in its "
                               "first call, when it holds no block")


@pytest.mark.points(1)
def test_task_2_the_manager_never_writes_the_request(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    request = Request("r", COUNT[:12])
    fields = dict(vars(request))
    manager.allocate_slots(request, 2, *manager.get_computed_blocks(request))
    assert vars(request) == fields, f"allocate_slots changed the request from {fields} to {vars(request)}"


# ---- Task 3: index full blocks


@pytest.mark.points(2)
def test_task_3_full_blocks_are_found_as_soon_as_they_have_slots(lab):
    manager = make(lab)
    request = Request("a", COUNT[:10])
    manager.allocate_slots(request, 6)
    got = [lookup(manager, COUNT[:12])]
    request.num_computed_tokens = 6
    manager.allocate_slots(request, 4)
    got.append(lookup(manager, COUNT[:12]))
    assert got == [([1], 4), ([1, 2], 8)], (
        f"10 tokens get slots in chunks of 6 and 4: lookups after each chunk give {got}, expected [([1], 4), ([1, 2], "
        "8)]. Index whole blocks when they are planned: allocate_slots calls _index_full_blocks, which calls the tree")
    got = manager.block_pool.blocks[3].block_hash
    assert got is None, (f"block 3 holds two tokens of a running request, and is indexed as {got!r}: do not index a "
                         "half-filled block while it grows")


@pytest.mark.points(2)
def test_task_3_a_tail_that_has_grown_full_is_found_as_a_whole(lab):
    manager = make(lab)
    leave(manager, COUNT[:10])
    admit(manager, Request("r", [*COUNT[:10], 50, 51, 52]))
    manager.block_pool.finish_copies()
    got = named(manager, 3)
    assert got == [(9, 10, 50, 51)], (f"block 3 was adopted with 9 10, and 50 51 fill it; its key names {got[0]}, "
                                      "expected (9, 10, 50, 51): insert() gives it the longer key")


@pytest.mark.points(2)
def test_task_3_a_copy_is_indexed_not_what_it_was_copied_from(lab):
    manager = make(lab)
    leave(manager, COUNT[:8])
    admit(manager, Request("r", [*COUNT[:6], 70, 71]))
    manager.block_pool.finish_copies()
    got = named(manager, 2, 3)
    assert got[1] is not None, ("block 2 was copied into block 3, which 70 71 fill: block 3 has no key. Does "
                                "allocate_slots call _index_full_blocks?")
    assert got == [(5, 6, 7, 8), (5, 6, 70, 71)], (
        f"block 2 was copied into block 3, which 70 71 fill: their keys name {got}, expected [(5, 6, 7, 8), "
        "(5, 6, 70, 71)]. Index the table after the copy has replaced the shared block")
    parent = Request("parent", COUNT[20:26])
    admit(manager, parent)  # blocks 4 and 5
    grow(manager, fork(manager, parent, Request("child", COUNT[20:26])), 80, 81)  # block 5 is copied into block 6
    got = named(manager, 5, 6)
    assert got == [None, (25, 26, 80, 81)], (
        f"a child fills its copy of the parent's half-filled block 5: the keys of blocks 5 and 6 name {got}, "
        "expected [None, (25, 26, 80, 81)]. Index the table after the copies, not before")


@pytest.mark.points(2)
def test_task_3_slots_without_tokens_are_not_indexed(lab):
    manager = make(lab)
    request = Request("a", COUNT[:6])
    manager.allocate_slots(request, 10)  # six tokens, and four slots for tokens that are not sampled yet
    got = [block.block_hash is not None for block in manager.block_pool.blocks[1:5]]
    assert got == [True, False, False, False], (
        f"a request has 6 tokens and 10 slots: whether blocks 1 to 4 are indexed is {got}, expected only the first: "
        "slots without tokens cannot be indexed")


@pytest.mark.points(1)
def test_task_3_its_own_keys_cost_a_request_no_copy(lab):
    manager = make(lab)
    request = Request("a", COUNT[:12])
    manager.allocate_slots(request, 12)
    got = named(manager, 1, 2, 3)
    assert None not in got, f"12 tokens fill blocks 1, 2, 3, and their keys name {got}: each block should have a key"
    got = ids(manager.allocate_slots(request, 12)), manager.get_block_ids("a")
    assert got == ([], [1, 2, 3]), (
        f"the same 12 slots are requested again before a step has run: (taken, table) is {got}, expected ([], "
        "[1, 2, 3]). The keys of blocks 1, 2, 3 name the tokens that will be written: compare from the start of each "
        "block")


@pytest.mark.points(1)
def test_task_3_the_salt_is_part_of_the_key(lab):
    manager = make(lab)
    admit(manager, Request("a", COUNT[:6], extra_keys=("a",)))
    got = [lookup(manager, COUNT[:6], salt)[1] for salt in (("a",), ("b",), None)]
    assert got == [4, 0, 0], (f"tenant 'a' fills a block; lookups of 'a', of 'b' and without extra keys find {got} "
                              "tokens of it, expected [4, 0, 0]")


# ---- Task 4: planned, but not written yet


def after_a_step(lab, **more):
    """Return a manager after one step without work."""
    manager = make(lab, **more)
    manager.finish_step()
    return manager


@pytest.mark.points(4)
def test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied(lab):
    manager = after_a_step(lab)
    admit(manager, Request("a", COUNT[:9]))
    got = lookup(manager, COUNT[:9]), lookup(manager, [*COUNT[:6], 70, 71])
    assert got[1] != ([1, 2], 4), (
        f"block 2 is not written yet. A prompt that shares 6 tokens finds {got[1]}, expected ([1], 4): if no token of "
        "a block counts, leave the block out")
    assert got == (([1, 2], 8), ([1], 4)), (
        f"blocks 1 and 2 are planned, not written. The same prompt, and one that differs after 6 tokens, find {got}, "
        "expected (([1, 2], 8), ([1], 4)): the step writes before it reads, but it copies before it writes. Also "
        "note fresh blocks, and read the notes in get_computed_blocks")
    manager.finish_step()
    got = lookup(manager, [*COUNT[:6], 70, 71])
    assert got == ([1, 2], 6), (f"the step has run; the second prompt finds {got}, expected ([1, 2], 6): "
                                "finish_step() clears the notes")


@pytest.mark.points(3)
def test_task_4_the_written_part_of_a_block_may_be_copied(lab):
    manager = after_a_step(lab)
    request = Request("a", COUNT[:6])
    admit(manager, request)
    manager.finish_step()
    grow(manager, request, 7, 8)  # fills block 2, of which two tokens are written
    got = lookup(manager, [*COUNT[:7], 70, 71])
    assert got == ([1, 2], 6), (f"block 2 holds 5 6, and this step will write 7 8; a prompt that shares 7 tokens finds "
                                f"{got}, expected ([1, 2], 6): only the written part")
    taken = ids(admit(manager, Request("b", [*COUNT[:7], 70, 71])))
    assert (taken, pending(manager)) in (([3, 4], [(2, 3)]), ([4, 3], [(2, 4)])), (
        f"'b' adopts these 6 tokens and writes 7 70 71: (taken, copies) is {(taken, pending(manager))}, expected "
        "([3, 4], [(2, 3)]): a copy of block 2, and a fresh block")
    manager = after_a_step(lab)
    request = Request("a", COUNT[:6])
    admit(manager, request)
    manager.finish_step()
    grow(manager, request, *COUNT[6:12])  # fills block 2, of which two tokens are written, and block 3
    got = lookup(manager, [*COUNT[:10], 70, 71])
    assert got == ([1, 2], 8), (f"this step will write 7 … 12, from offset 2 of block 2 on; a prompt that shares 10 "
                                f"tokens finds {got}, expected ([1, 2], 8): block 3 begins after the first new "
                                "position, so none of it is written")


@pytest.mark.points(2)
def test_task_4_the_first_note_of_a_step_stays(lab):
    manager = after_a_step(lab)
    request = Request("a", COUNT[:8])
    admit(manager, request, 5)
    manager.allocate_slots(request, 3)  # slots for the next tokens, before the step has run
    got = lookup(manager, [*COUNT[:6], 70])
    assert got == ([1], 4), (f"5 tokens are planned, then 3 more, and no step has run: a prompt that shares 6 finds "
                             f"{got}, expected ([1], 4). Block 2 is not written at all")


@pytest.mark.points(2)
def test_task_4_a_block_that_is_only_read_is_not_noted(lab):
    manager = after_a_step(lab)
    leave(manager, COUNT[:8])
    admit(manager, Request("r", [*COUNT[:8], 50, 51, 52, 53]))
    got = lookup(manager, [*COUNT[:7], 70]), lookup(manager, [*COUNT[:8], 50, 70])
    assert got == (([1, 2], 7), ([1, 2], 8)), (
        f"blocks 1 and 2 were adopted whole, and this step will write block 3: a prompt that differs inside block 2, "
        f"and one that differs inside block 3, find {got}, expected (([1, 2], 7), ([1, 2], 8)). Block 2 was written "
        "long ago, so a part of it may be copied; block 3 is not written yet, so it may not")


@pytest.mark.points(1)
def test_task_4_slots_that_are_not_written_now_are_not_noted(lab):
    for num_new_tokens in (2, 3):
        manager = after_a_step(lab)
        parent = Request("parent", COUNT[:12])
        admit(manager, parent)
        manager.finish_step()
        child = Request("child", COUNT[:12])
        fork(manager, parent, child)
        child.num_computed_tokens = 5
        manager.allocate_slots(child, num_new_tokens)  # writes into a copy of block 2, the second of three
        got = lookup(manager, [*COUNT[:10], 70, 71])
        assert got == ([1, 2, 3], 10), (
            f"a step will write positions 5 to {4 + num_new_tokens}. It does not write block 3, which holds positions "
            f"8 to 11: a prompt that shares 10 tokens finds {got}, expected ([1, 2, 3], 10)")


@pytest.mark.points(2)
def test_task_4_finish_step_reports_the_copies_too(lab):
    manager = after_a_step(lab, num_blocks=5)
    leave(manager, COUNT[:8])
    admit(manager, Request("r", [*COUNT[:6], 70, 71]))
    before = free_ids(manager)
    manager.finish_step()
    got = before, free_ids(manager), pending(manager)
    assert got == ([4], [4, 2], []), (f"block 2 was adopted and copied into block 3; (free queue before finish_step, "
                                      f"free queue after it, pending copies after it) is {got}, expected ([4], [4, 2], "
                                      "[]): call finish_step of the base")


# ---- Task 5: free


@pytest.mark.points(3)
def test_task_5_a_request_that_ends_leaves_its_tail(lab):
    manager = make(lab)
    request = Request("a", COUNT[:6])
    admit(manager, request)
    manager.finish_step()
    grow(manager, request, 7)
    manager.finish_step()
    request.append_output_token(8)  # sampled, but never computed
    manager.free(request)
    got = lookup(manager, COUNT[:12])
    assert got == ([1, 2], 7), (f"7 tokens were computed, and an eighth was only sampled; after free() the next turn "
                                f"finds {got}, expected ([1, 2], 7): the tail, but not the token without K/V")
    got = manager.get_block_ids("a"), manager.block_pool.get_usage()
    assert got == ([], 0.0), f"after free() (table, usage of the pool) is {got}, expected ([], 0.0): free all blocks"


@pytest.mark.points(2)
def test_task_5_the_last_block_is_freed_first(lab):
    manager = make(lab, num_blocks=6)
    request = Request("a", COUNT[:10])
    admit(manager, request)
    manager.finish_step()
    manager.free(request)
    got = free_ids(manager)
    assert got == [4, 5, 3, 2, 1], f"after free() of the table [1, 2, 3] the queue is {got}, expected [4, 5, 3, 2, 1]"


@pytest.mark.points(1)
def test_task_5_to_free_what_holds_nothing_is_harmless(lab):
    manager = make(lab, num_blocks=6)
    request = Request("a", COUNT[:10])
    admit(manager, request)
    manager.finish_step()
    manager.free(request)
    got = free_ids(manager)
    assert got == [4, 5, 3, 2, 1], (f"a request with the table [1, 2, 3], of a pool of 6, was freed: the free queue "
                                    f"is {got}, expected [4, 5, 3, 2, 1]: free the last block first")
    for gone in (request, Request("nobody", COUNT[:10])):
        who = "a request that was freed before" if gone is request else "a request that never had a slot"
        try:
            manager.free(gone)
        except NotImplementedError:
            raise
        except Exception as error:
            pytest.fail(f"free() of {who} raised {error!r}: it holds no block, so nothing must happen. Pop its table "
                        "from _tables. If there was no table, return before you call the tree", pytrace=False)
        assert free_ids(manager) == got, f"free() of {who} changed the queue from {got} to {free_ids(manager)}"


@pytest.mark.points(2)
def test_task_5_the_salt_goes_with_the_tail(lab):
    manager = make(lab)
    request = Request("r", COUNT[:3], extra_keys=("a",))
    admit(manager, request)
    manager.finish_step()
    manager.free(request)
    got = [lookup(manager, COUNT[:5], salt) for salt in (("a",), ("b",), None)]
    assert got == [([1], 3), ([], 0), ([], 0)], (
        f"a request of tenant 'a' left a tail of 3 tokens; the same text of tenant 'a', of 'b' and without extra keys "
        f"finds {got}, expected [([1], 3), ([], 0), ([], 0)]: also pass the request's extra_keys to donate()")


@pytest.mark.points(3)
@pytest.mark.parametrize("num_written, num_planned", [(4, 8), (4, 2), (5, 2), (6, 7), (0, 13)])
def test_task_5_what_was_planned_and_never_written_is_not_left(lab, num_written, num_planned):
    manager = make(lab)
    request = Request("a", COUNT[:14])
    if num_written:
        admit(manager, request, num_written)
        manager.finish_step()
    manager.allocate_slots(request, num_planned)
    request.num_computed_tokens += num_planned  # the step is planned ...
    manager.free(request)  # ... and the request is aborted before it runs
    got = lookup(manager, COUNT[:15])[1]
    assert got == num_written, (f"{num_written} tokens were written, {num_planned} more were planned and never "
                                f"written; {got} are found, expected {num_written}. There are two possible causes. "
                                "num_computed_tokens includes the planned tokens here, so read _num_written. And if "
                                "planned blocks are still in the index, remove them with evict_blocks before donate")


@pytest.mark.points(2)
def test_task_5_every_planned_block_leaves_the_index(lab):
    manager = make(lab)
    first, second = Request("first", COUNT[:14]), Request("second", COUNT[:9])
    admit(manager, first)  # its step will write blocks 1 to 4
    manager.free(first)
    admit(manager, second)  # computes 9 of these tokens
    manager.finish_step()
    got = lookup(manager, COUNT[:14])[1]
    assert got == 8, (
        f"'first' planned to write 14 tokens and was aborted before the step ran. Then 'second' computed 9 of them: a "
        f"third request finds {got} tokens, expected the 8 in whole blocks. If a planned block stays in the index, it "
        "is found again as soon as another request computes the blocks before it, although it was never written")


@pytest.mark.points(2)
def test_task_5_planned_blocks_leave_the_index_though_others_have_them(lab):
    manager = make(lab)
    first, second = Request("first", COUNT[:9]), Request("second", COUNT[:9])
    admit(manager, first)  # its step will write blocks 1, 2, 3
    admit(manager, second)  # adopts blocks 1 and 2, whole
    manager.free(first)
    got = lookup(manager, COUNT[:9])
    assert got == ([], 0), (
        f"'first' planned to write blocks 1 and 2, and 'second' adopted them; then 'first' is aborted before the step "
        f"runs. A third request finds {got}, expected ([], 0). Remove every noted block of the table from the index: "
        "'second' only adopted them, and will not write them")


@pytest.mark.points(2)
def test_task_5_a_preempted_request_leaves_what_was_computed(lab):
    manager = make(lab)
    request = Request("a", COUNT[:14])
    admit(manager, request, 6)
    manager.finish_step()
    manager.allocate_slots(request, 8)  # the slots exist; num_computed_tokens is not advanced
    manager.free(request)
    got = lookup(manager, COUNT[:14])
    assert got == ([1, 2], 6), (f"6 tokens were computed, and 8 more had slots: after free() a lookup gives {got}, "
                                "expected ([1, 2], 6)")


@pytest.mark.points(1)
def test_task_5_what_was_taken_back_is_not_left(lab):
    manager = make(lab)
    request = Request("a", COUNT[:14])
    admit(manager, request, 6)
    manager.finish_step()
    manager.allocate_slots(request, 8)
    request.num_computed_tokens = 5  # the last token is taken back and must be computed again
    manager.free(request)
    got = lookup(manager, COUNT[:14])
    assert got == ([1, 2], 5), (f"6 tokens were written, 8 more got slots, and num_computed_tokens was set back to 5: "
                                f"after free() a lookup gives {got}, expected ([1, 2], 5). The notes say how many "
                                "tokens come before the planned step; trust at most num_computed_tokens of them")


@pytest.mark.points(1)
def test_task_5_what_is_written_stays_in_the_index(lab):
    manager = make(lab)
    admit(manager, Request("first", COUNT[:12]))  # writes blocks 1, 2, 3, and keeps running
    manager.finish_step()
    second = Request("second", COUNT[:13])
    admit(manager, second)  # adopts them, and writes block 4
    manager.finish_step()
    second.num_computed_tokens = 5  # the other tokens must be computed again
    manager.free(second)
    got = lookup(manager, COUNT[:13])
    assert got == ([1, 2, 3], 12), (
        f"'first' wrote blocks 1, 2, 3 in a step that has run, and still owns them. 'second' shared them, was set back "
        f"to 5 computed tokens and freed. A third request finds {got}, expected ([1, 2, 3], 12): remove only noted "
        "blocks from the index; there are no notes here")
    manager = make(lab)
    leave(manager, COUNT[:8])  # blocks 1 and 2
    request = Request("r", COUNT[:9])
    manager.allocate_slots(request, 1, *manager.get_computed_blocks(request))  # adopts them, plans to write block 3
    manager.free(request)  # before num_computed_tokens was advanced
    got = lookup(manager, COUNT[:9])
    assert got == ([1, 2], 8), (
        f"1 … 8 are cached in blocks 1 and 2. A request adopted them, planned to write block 3, and was freed with 0 "
        f"computed tokens. The next request finds {got}, expected ([1, 2], 8): only block 3 was noted")
    manager = make(lab)
    first = Request("first", COUNT[20:29])
    admit(manager, first)  # the step will write blocks 1, 2, 3
    admit(manager, Request("second", COUNT[:9]))  # the same step will write blocks 4, 5, 6
    manager.free(first)
    got = lookup(manager, COUNT[:9])
    assert got == ([4, 5], 8), (
        f"'first' and 'second' are planned in one step, with texts that share nothing, and 'first' is aborted. A "
        f"third request with the text of 'second' finds {got}, expected ([4, 5], 8): 'second' still writes its blocks. "
        "Remove only noted blocks of the freed table from the index")


@pytest.mark.points(2)
def test_task_5_the_notes_stay_when_one_of_two_owners_goes(lab):
    manager = make(lab)
    first, second = Request("first", COUNT[:9]), Request("second", COUNT[:9])
    admit(manager, first)  # its step will write blocks 1, 2, 3
    admit(manager, second)  # adopts blocks 1 and 2, whole
    manager.free(second)
    manager.free(first)
    got = lookup(manager, COUNT[:10])
    assert got == ([], 0), (
        f"'first' planned to write blocks 1 and 2, and 'second' adopted them. Before the step runs, 'second' is "
        f"aborted, then 'first'. Another request finds {got}, expected ([], 0): nothing was written. Only "
        "finish_step() clears the notes, not free()")


@pytest.mark.points(3)
def test_task_5_a_block_allocated_again_in_the_same_step_is_recorded_again(lab):
    manager = make(lab, num_blocks=4)
    first, second = Request("first", COUNT[20:28]), Request("second", COUNT[:8])
    admit(manager, first, 6)
    manager.finish_step()
    manager.allocate_slots(first, 2)  # block 2 holds two tokens of 'first', and the step will fill it
    manager.free(first)  # it is preempted while the step is planned
    got = ids(manager.allocate_slots(second, 8))
    assert got == [3, 2], (f"'first' was freed, and allocate_slots('second', 8) took {got}, expected [3, 2]: block 3, "
                           "and then block 2, which was freed first")
    got = lookup(manager, [*COUNT[:6], 70, 71])
    assert got == ([3], 4), (f"'second' will write all of block 2, which 'first' owned earlier in this step; a prompt "
                             f"that shares 6 tokens finds {got}, expected ([3], 4): block 2 holds the tokens of "
                             "'first'. _note_unwritten must replace the old notes of taken blocks")

    manager = make(lab, num_blocks=5)
    leave(manager, COUNT[:8])  # blocks 1 and 2
    first, second = Request("first", COUNT[20:28]), Request("second", [*COUNT[:5], 70, 71, 72])
    admit(manager, first, 7)
    manager.finish_step()
    manager.allocate_slots(first, 1)  # block 4 holds three tokens of 'first', and the step will fill it
    manager.free(first)
    got = ids(admit(manager, second))
    assert got == [4], (f"'second' adopts 5 tokens and writes 70 71 72 where block 2 holds 6 7 8: it took {got}, "
                        "expected [4]: block 2 is copied into block 4, which was freed first")
    got = lookup(manager, [*COUNT[:5], 70, 71, 80])
    assert got == ([1, 4], 5), (
        f"'second' copies token 5 into block 4, which had a note of three tokens, and will write 70 71 72 there; a "
        f"prompt that shares 7 tokens finds {got}, expected ([1, 4], 5). Also pass copies to _note_unwritten: only "
        "one token of block 4 can be copied")


@pytest.mark.points(2)
@pytest.mark.parametrize("more", [{"tree_class": None}, {"tree_class": PrefixTree, "enable_caching": False}])
def test_task_5_without_a_tree_all_is_as_in_the_base(lab, more):
    got = []
    for options in ({"tree_class": PrefixTree}, more):
        manager = lab.KVCacheManager(num_blocks=10, block_size=4, **options)
        request = Request("a", COUNT[:10])
        admit(manager, request)
        child = fork(manager, request, Request("child", COUNT[:10]))
        grow(manager, child, 50)
        manager.finish_step()
        manager.free(child)
        manager.free(request)
        got.append((lookup(manager, COUNT[:11])[1], manager.block_pool.get_usage(), manager.block_pool.num_forks))
        manager.check_integrity()
    num_found = 0 if "enable_caching" in more else 8
    assert got == [(10, 0.0, 1), (num_found, 0.0, 1)], (
        f"a request of 10 tokens is forked, the child decodes one token, and both end: (tokens found, usage, copies) "
        f"is {got} with a tree and with {more}, expected [(10, 0.0, 1), ({num_found}, 0.0, 1)]")


@pytest.mark.points(1)
def test_task_5_reset_forgets_the_tree_too(lab):
    manager = make(lab)
    request = Request("a", COUNT[:10])
    admit(manager, request)
    manager.finish_step()
    with must_raise(RuntimeError, "reset_prefix_cache() while request 'a' owns three blocks"):
        manager.reset_prefix_cache()
    got = lookup(manager, COUNT[:11])
    assert got == ([1, 2], 8), (f"reset_prefix_cache() was refused; then a prompt of 11 tokens finds {got}, expected "
                                "([1, 2], 8): a refused reset forgets nothing")
    manager.free(request)
    manager.reset_prefix_cache()
    got = lookup(manager, COUNT[:11]), manager.stats.num_queries
    assert got == (([], 0), 0), f"after reset_prefix_cache() (hit, queries) is {got}, expected (([], 0), 0)"


@pytest.mark.points(3)
def test_task_5_each_turn_of_a_chat_finds_all_that_was_computed(lab):
    """Run four turns with 7 question tokens and 6 answer tokens each; the last answer token is never computed."""
    manager, chat, found = make(lab, num_blocks=40), [], []
    for turn in range(4):
        chat = [*chat, *range(100 * turn, 100 * turn + 7)]
        request = Request(f"turn {turn}", chat)
        admit(manager, request)
        found.append(request.num_cached_tokens)
        manager.finish_step()
        for i in range(5):
            grow(manager, request, 100 * turn + 50 + i)
            manager.finish_step()
        request.append_output_token(100 * turn + 55)
        chat = list(request.all_token_ids)
        manager.free(request)
        manager.check_integrity()
    assert found == [0, 12, 25, 38], (f"four turns of 13 tokens find {found} tokens, expected [0, 12, 25, 38]: all "
                                      "tokens that earlier turns computed")
    assert manager.block_pool.num_forks == 0, (f"{manager.block_pool.num_forks} blocks were copied, expected none: "
                                               "each turn is the only owner of the tail that it continues")


class Server:
    """A server that plans a step, then runs it: first the copies in order, then the writes.

    Each slot stores the whole text up to its token.
    """

    def __init__(self, lab, num_blocks, block_size):
        self.manager, self.size = make(lab, num_blocks, block_size), block_size
        self.pool = self.manager.block_pool
        self.memory, self.running, self.plan = {}, [], {}
        #: Request → its table when it was last read.
        self.tables = {}

    def look(self, request):
        self.tables[request] = list(self.manager.get_block_ids(request.request_id))

    def state(self):
        """Return the same state as ``state``, with the tables that were last read."""
        tables = [self.tables[request] for request in self.running]
        return pool_state(self.pool) | {"tables": tables, "stats": counts(self.manager)}

    def end(self, request):
        self.running.remove(request)
        self.manager.free(request)
        del self.tables[request]

    def run(self):
        for source, copy in [(source.block_id, copy.block_id) for source, copy in self.pool.pending_copies]:
            for offset in range(self.size):
                self.memory[copy, offset] = self.memory.get((source, offset))
        for request, (first, end) in self.plan.items():
            table = self.tables[request]
            for p in range(first, end):
                self.memory[table[p // self.size], p % self.size] = tuple(request.all_token_ids[:p + 1])
        self.manager.finish_step()
        self.plan = {}

    def give(self, request, num_new_tokens):
        self.look(request)
        self.plan[request] = (request.num_computed_tokens, request.num_computed_tokens + num_new_tokens)
        request.num_computed_tokens += num_new_tokens

    def findable(self):
        """Return every text that the index names, token by token, for the brute-force search."""
        texts = {()}
        for block in self.pool.blocks:
            tokens, key = (), block.block_hash
            while key is not None:
                tokens, key = (*key.token_ids, *tokens), key.parent
            num_own = len(block.block_hash.token_ids) if block.block_hash is not None else 0
            texts.update(tokens[:n] for n in range(len(tokens) - num_own + 1, len(tokens) + 1))
        return texts

    def assert_contents(self, when):
        for request in self.running:
            self.look(request)
            table = self.tables[request]
            for p in range(request.num_computed_tokens):
                got = self.memory.get((table[p // self.size], p % self.size))
                assert got == tuple(request.all_token_ids[:p + 1]), (
                    f"{when}: request {request.request_id} reads {got} at position {p} through its table {table}, "
                    f"but its text is {request.all_token_ids[:p + 1]}")
        for block in self.pool.blocks:
            tokens, key = (), block.block_hash
            while key is not None:
                tokens, key = (*key.token_ids, *tokens), key.parent
            if block.block_hash is not None:
                got = self.memory.get((block.block_id, len(block.block_hash.token_ids) - 1))
                assert got == tokens, f"{when}: block {block.block_id} is found as {tokens}, but holds {got}"


def act(server, rng, name):
    """Apply one random event: a request arrives, continues, forks, ends, or is aborted after planning."""
    manager = server.manager
    quiet = [request for request in server.running if request not in server.plan]
    action = rng.choice(["new", "new", "go on", "go on", "go on", "fork", "end", "abort"])
    if action == "new":
        request = Request(name, [rng.randrange(2) for _ in range(rng.randint(1, 4 * server.size))])
        hits, num_cached = manager.get_computed_blocks(request)
        if not server.plan:
            texts, longest = server.findable(), 0
            while longest + 1 < request.num_tokens and tuple(request.all_token_ids[:longest + 1]) in texts:
                longest += 1
            assert num_cached == longest, (f"request {name}: {longest} tokens of {request.all_token_ids} are cached, "
                                           f"get_computed_blocks found {num_cached}")
        num_new_tokens = rng.randint(1, request.num_tokens - num_cached)
        before = server.state()
        if manager.allocate_slots(request, num_new_tokens, hits, num_cached) is None:
            assert state(manager, *server.running) == before, (
                f"request {name}: allocate_slots returned None, but {before} changed")
            return 0
        request.num_computed_tokens = num_cached
        server.running.append(request)
        server.give(request, num_new_tokens)
        return num_cached
    if action == "go on" and quiet:
        request = rng.choice(quiet)
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token(rng.randrange(2))
        num_new_tokens = rng.randint(1, request.num_tokens - request.num_computed_tokens)
        before = server.state()
        if manager.allocate_slots(request, num_new_tokens) is None:
            assert state(manager, *server.running) == before, (
                f"request {request.request_id}: allocate_slots returned None, but {before} changed")
        else:
            server.give(request, num_new_tokens)
    elif action == "fork" and server.running and not server.plan:
        parent = rng.choice(server.running)
        server.running.append(fork(manager, parent, Request(name, parent.all_token_ids)))
        server.look(server.running[-1])
    elif action == "end" and quiet:
        server.end(rng.choice(quiet))
    elif action == "abort" and server.plan:
        request = rng.choice(list(server.plan))
        blocks = [server.pool.blocks[i] for i in server.tables[request]]
        if all(block.ref_cnt == 1 for block in blocks):  # no other request needs its planned tokens
            del server.plan[request]
            server.end(request)
    return 0


@pytest.mark.points(5)
def test_task_5_random_traffic_reads_back_its_own_tokens(lab):
    """Run random requests that find cached prefixes, continue, fork, end, and are aborted after planning."""
    num_found = 0
    for seed in range(12):
        rng = random.Random(seed)
        server = Server(lab, rng.randint(5, 14), rng.randint(1, 5))
        for step in range(30):
            for i in range(rng.randint(1, 5)):
                num_found += act(server, rng, f"{seed}-{step}-{i}")
            server.manager.check_integrity()
            server.run()
            server.assert_contents(f"seed {seed}, step {step}")
        for request in server.running:
            server.manager.free(request)
        got = server.manager.block_pool.get_usage()
        assert got == 0.0, f"seed {seed}: all requests have ended, but {got:.0%} of the pool is in use"
    assert num_found > 60, f"only {num_found} tokens were found in total, expected more than 60"
