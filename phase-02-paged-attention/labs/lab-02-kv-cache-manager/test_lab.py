"""Lab 2.2, the KV cache manager. Each test checks one rule, and its failure message states the rule."""

import random

import pytest

from course.expecting import must_answer
from course.gauges import bytes_grown
from mini_vllm.request import Request


def prompt(num_tokens, start=0):
    return list(range(start, start + num_tokens))


def ids(blocks):
    return None if blocks is None else [block.block_id for block in blocks]


def free_ids(manager):
    return ids(manager.block_pool.free_block_queue.get_all_free_blocks())


def admit(manager, request, num_new_tokens=None):
    """Treat a waiting request as a scheduler does: look it up, allocate slots, advance num_computed_tokens."""
    hits, num_cached = manager.get_computed_blocks(request)
    num_new_tokens = num_new_tokens or request.num_tokens - num_cached
    blocks = manager.allocate_slots(request, num_new_tokens, hits)
    if blocks is not None:
        request.num_computed_tokens = num_cached + num_new_tokens
    return blocks


def start(manager, request, num_new_tokens=None):
    """Allocate slots and advance num_computed_tokens, as admit does, but without a lookup."""
    num_new_tokens = num_new_tokens or request.num_tokens
    blocks = manager.allocate_slots(request, num_new_tokens)
    if blocks is not None:
        request.num_computed_tokens += num_new_tokens
    return blocks


def decode(manager, request, token_id):
    """Append an output token and allocate its slot."""
    request.append_output_token(token_id)
    return start(manager, request, 1)


def state(manager, *requests):
    """Return everything that a call that returns None or raises must not change."""
    blocks = manager.block_pool.blocks
    return {"the free queue": free_ids(manager),
            "the list of ref_cnt, by block id,": [block.ref_cnt for block in blocks],
            "the list of block_hash, by block id,": [block.block_hash for block in blocks],
            "the block tables": {request.request_id: manager.get_block_ids(request.request_id) for request in requests}}


def written(request, before):
    """Return the attributes of a request that have changed, each with (before, now)."""
    now = vars(request)
    return {name: (before.get(name), now[name]) for name in now if before.get(name) != now[name]}


def counts(manager):
    stats = manager.stats
    return stats.num_queries, stats.num_query_tokens, stats.num_hit_tokens, stats.num_evicted_blocks


def watch_hashing(monkeypatch):
    """Return a list that collects the tokens of every key that is made from now on."""
    hashed = []
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens",
                        lambda parent, tokens, *rest: hashed.append(list(tokens)) or hash((parent, tuple(tokens))))
    return hashed


def assert_unchanged(before, now, call, rule):
    for what in before:
        assert now[what] == before[what], f"{call} changed {what} from {before[what]} to {now[what]}: {rule}"


def must_raise(expected, call, function, *args, rule):
    """Check that ``function(*args)``, described by ``call``, raises ``expected``. Let NotImplementedError through."""
    try:
        got = function(*args)
    except NotImplementedError:  # a subclass of RuntimeError, but not the expected error
        raise
    except expected:
        return
    except Exception as error:
        raise AssertionError(f"{call} raised {type(error).__name__}({error}), expected a {expected.__name__}: "
                             f"{rule}") from error
    raise AssertionError(f"{call} returned {ids(got) if isinstance(got, list) else got!r}, expected a "
                         f"{expected.__name__}: {rule}")


def assert_counts(manager, *requests):
    """Check that the ref_cnt of each block is the number of tables that contain it."""
    tables = [manager.get_block_ids(request.request_id) for request in requests]
    for block in manager.block_pool.blocks:
        num_owners = sum(table.count(block.block_id) for table in tables)
        assert block.ref_cnt == num_owners, (f"block {block.block_id} has ref_cnt {block.ref_cnt}, but occurs "
                                             f"{num_owners} times in the tables {tables}")


# ---- Task 1


@pytest.mark.points(1)
def test_task_1_a_request_that_holds_nothing_has_an_empty_table(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4)
    got = must_answer('get_block_ids("unknown")', manager.get_block_ids, "unknown",
                      rule="a request that was never seen has no blocks")
    assert got == [], f"get_block_ids of a request that was never seen gave {got!r}, expected []"


# ---- Task 2 (caching off, no hits)


@pytest.mark.points(2)
@pytest.mark.parametrize("num_tokens, num_blocks", [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_task_2_a_prompt_takes_just_enough_blocks(lab, num_tokens, num_blocks):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    taken = ids(start(manager, Request("r", prompt(num_tokens))))
    table, expected = manager.get_block_ids("r"), list(range(1, num_blocks + 1))
    assert taken == expected, (
        f"a prompt of {num_tokens} tokens at block size 4: allocate_slots gave blocks {taken}, expected {expected}: "
        f"ceil({num_tokens} / 4) is {num_blocks}; a partly filled block counts as a whole block (_num_blocks_for)")
    assert table == expected, (f"allocate_slots gave blocks {taken}, and get_block_ids then gives {table}, expected "
                               f"{expected}: the table of a new request consists of the blocks that it was given")


@pytest.mark.points(2)
def test_task_2_the_table_is_in_the_order_of_the_tokens(lab):
    manager = lab.KVCacheManager(num_blocks=6, block_size=4, enable_caching=False)
    pool = manager.block_pool
    blocks = pool.get_new_blocks(5)
    pool.free_blocks([blocks[i] for i in (2, 0, 4, 1, 3)])  # the queue reads 3, 1, 5, 2, 4
    request = Request("r", prompt(9))
    start(manager, request)
    got = manager.get_block_ids("r")
    assert got == [3, 1, 5], (f"the free queue was 3, 1, 5, 2, 4, and 9 tokens took three blocks; get_block_ids gives "
                              f"{got}, expected [3, 1, 5]: tokens 0 … 3 are in block 3, 4 … 7 in block 1, 8 in block 5")
    got.append(99)
    got = manager.get_block_ids("r")
    assert got == [3, 1, 5], (f"the caller appended 99 to the list it got, and get_block_ids now gives {got}, expected "
                              "[3, 1, 5]: return a new list, not the table itself")


@pytest.mark.points(3)
def test_task_2_the_last_block_is_filled_before_a_new_one_is_taken(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    request = Request("r", prompt(6))
    start(manager, request)
    got = [ids(decode(manager, request, 100 + i)) for i in range(4)]
    assert got == [[], [], [3], []], (
        f"a 6-token prompt, then tokens 7, 8, 9, 10 at block size 4: the new blocks are {got}, expected [[], [], [3], "
        "[]]. Tokens 7 and 8 fill block 2; only token 9 needs a new block")
    full, request = lab.KVCacheManager(num_blocks=3, block_size=4, enable_caching=False), Request("r", prompt(6))
    start(full, request)
    got = ids(decode(full, request, 100))
    assert got == [], (f"no block is free, but token 7 fits into the last block of the table: allocate_slots gave "
                       f"{got}, expected []")


@pytest.mark.points(2)
def test_task_2_chunks_extend_the_same_table(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    request = Request("r", prompt(14))
    got = []
    for chunk in (3, 3, 3, 5):
        start(manager, request, chunk)
        got.append(manager.get_block_ids("r"))
    expected = [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert got == expected, (f"a 14-token prompt in chunks of 3, 3, 3, 5 at block size 4: the tables after the chunks "
                             f"are {got}, expected {expected}: 3, 6, 9, 14 slots, and old blocks keep their places")


@pytest.mark.points(2)
def test_task_2_slots_that_exist_already_are_not_made_again(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    request = Request("r", prompt(6))
    taken = ids(manager.allocate_slots(request, 10))  # look-ahead: room for 4 more tokens
    assert taken == [1, 2, 3], f"10 slots at block size 4: allocate_slots gave {taken}, expected [1, 2, 3]"
    again = ids(manager.allocate_slots(request, 10))  # nothing was computed in between
    assert (again, manager.get_block_ids("r")) == ([], [1, 2, 3]), (
        f"allocate_slots(request, 10) a second time, with nothing computed in between, gave {again}, and the table is "
        f"{manager.get_block_ids('r')}, expected [] and [1, 2, 3]: the slots already exist")
    request.num_computed_tokens = 1  # only one token was computed
    taken = ids(must_answer("allocate_slots(request, 1), where the table has 12 slots and token 1 needs one of them,",
                            manager.allocate_slots, request, 1, rule=("a negative number of new blocks means that no "
                                                                      "block is needed")))
    table = manager.get_block_ids("r")
    assert (taken, table) == ([], [1, 2, 3]), (
        f"the table [1, 2, 3] has 12 slots and token 1 needs one of them: allocate_slots(request, 1) gave {taken}, and "
        f"the table is {table}, expected [] and [1, 2, 3]")


@pytest.mark.points(2)
def test_task_2_what_does_not_fit_is_none_and_changes_nothing(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4, enable_caching=False)
    a, b = Request("a", prompt(8)), Request("b", prompt(8))
    got = ids(start(manager, a))
    assert got == [1, 2], f"8 tokens at block size 4, 3 blocks free: allocate_slots gave {got}, expected [1, 2]"
    before = state(manager, a, b)
    got = must_answer("allocate_slots(b, 8), with 1 block free and 2 needed,", start, manager, b,
                      rule="if there is no room, return None; it is not an error")
    assert got is None, f"8 tokens need 2 blocks, and 1 is free: allocate_slots gave {ids(got)}, expected None"
    assert_unchanged(before, state(manager, a, b), "allocate_slots returned None, but it",
                     "decide first, then take")
    got = start(manager, a, 5)
    assert got is None, (f"a running request with the table [1, 2] and 8 computed tokens needs 2 blocks for 5 more; 1 "
                         f"is free: allocate_slots gave {ids(got)}, expected None")
    assert_unchanged(before, state(manager, a, b), "allocate_slots returned None for a running request, but it",
                     "the table of a request that does not fit must not change")


@pytest.mark.points(1)
def test_task_2_only_the_next_tokens_must_fit(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4, enable_caching=False)
    got = ids(manager.allocate_slots(Request("r", prompt(40)), 12))
    assert got == [1, 2, 3], (
        f"3 blocks of 4 slots are free: allocate_slots(request, 12) for the first 12 of 40 tokens gave {got}, expected "
        "[1, 2, 3]: make room for num_new_tokens; what the rest will need does not matter yet")


@pytest.mark.points(1)
def test_task_2_the_manager_never_writes_the_request(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4, enable_caching=False)
    request = Request("r", prompt(6))
    before = dict(vars(request))
    got = ids(manager.allocate_slots(request, 6))
    assert got == [1, 2], f"6 tokens at block size 4: allocate_slots gave {got}, expected [1, 2]"
    changed = written(request, before)
    assert not changed, (f"allocate_slots(request, 6) changed attributes of the request (before, now): {changed}. "
                         "Only the scheduler changes a request")


@pytest.mark.points(1)
def test_task_2_senseless_arguments_are_refused(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4, enable_caching=False)
    got = ids(manager.allocate_slots(Request("r", prompt(6)), 6))
    assert got == [1, 2], f"6 tokens at block size 4: allocate_slots gave {got}, expected [1, 2]: this call is valid"
    manager = lab.KVCacheManager(num_blocks=4, block_size=4, enable_caching=False)
    request = Request("r", prompt(6))
    for num_new_tokens in (0, -1):
        must_raise(ValueError, f"allocate_slots(request, {num_new_tokens})",
                   manager.allocate_slots, request, num_new_tokens,
                   rule="at least one token is required; call _check_arguments, which checks this")
    request.num_computed_tokens = 4
    must_raise(RuntimeError, "allocate_slots(request, 1) with 4 computed tokens and no block", manager.allocate_slots,
               request, 1, rule="computed tokens must have slots; call _check_arguments, which checks this")
    got = free_ids(manager)
    assert got == [1, 2, 3], f"after three rejected calls the free queue reads {got}, expected [1, 2, 3]: check first"


# ---- Task 3


@pytest.mark.points(2)
def test_task_3_free_gives_the_tail_back_first(lab):
    manager = lab.KVCacheManager(num_blocks=6, block_size=4, enable_caching=False)
    request = Request("r", prompt(12))
    start(manager, request)
    manager.free(request)
    got = free_ids(manager)
    assert got == [4, 5, 3, 2, 1], (f"after free() of the table [1, 2, 3] the queue reads {got}, expected "
                                    "[4, 5, 3, 2, 1]: the head of a prompt is shared most, so it is reused last")
    got = manager.get_block_ids("r")
    assert got == [], f"after free() get_block_ids gives {got}, expected []: a freed request has no blocks"
    manager = lab.KVCacheManager(num_blocks=3, block_size=4, enable_caching=False)
    first, second, both = (Request(name, prompt(n)) for name, n in (("first", 4), ("second", 4), ("both", 8)))
    for each in (first, second):
        start(manager, each)
    for each in (second, first):
        manager.free(each)
    start(manager, both)
    table = manager.get_block_ids("both")
    manager.free(both)
    assert (table, free_ids(manager)) == ([2, 1], [1, 2]), (
        f"a request had the table {table}, and after free() the queue reads {free_ids(manager)}, expected [2, 1] and "
        "[1, 2]: free the last block of the table first, whatever its id is")


@pytest.mark.points(1)
def test_task_3_free_is_harmless_when_nothing_is_held(lab):
    manager = lab.KVCacheManager(num_blocks=6, block_size=4, enable_caching=False)
    request = Request("r", prompt(12))
    rule = "it is not an error if the request has no blocks"
    must_answer("free(request), before its first slots,", manager.free, request, rule=rule)
    got = ids(start(manager, request))
    assert got == [1, 2, 3], f"12 tokens at block size 4: allocate_slots gave {got}, expected [1, 2, 3]"
    manager.free(request)
    must_answer("free(request), for the second time,", manager.free, request, rule=rule)
    got = manager.block_pool.get_num_free_blocks()
    assert got == 5, f"free() was called once before the first slots and twice after; {got} blocks are free, expected 5"


@pytest.mark.points(1)
@pytest.mark.inside("memory can be measured only in the process that uses it")
def test_task_3_nothing_is_kept_of_a_request_that_holds_nothing(lab):
    manager = lab.KVCacheManager(num_blocks=2, block_size=4, enable_caching=False)

    def refuse(name):
        got = ids(manager.allocate_slots(Request(name, prompt(8)), 8))
        assert got is None, f"8 tokens need 2 blocks, and 1 is free: allocate_slots gave {got}, expected None"

    def serve(name):
        request = Request(name, prompt(4))
        got = ids(start(manager, request))
        assert got == [1], f"4 tokens need 1 block, and 1 is free: allocate_slots gave {got}, expected [1]"
        manager.free(request)

    def ask(name):
        got = manager.get_block_ids(name)
        assert got == [], f"get_block_ids of a request that was never seen gave {got!r}, expected []"

    for what, run in (("rejected (allocate_slots gave None)", refuse), ("served and freed", serve),
                      ("passed to get_block_ids but never seen before", ask)):
        run("the first")  # a one-time set-up is not counted
        grown = bytes_grown(lambda run=run: [run(f"{i:01000}") for i in range(50)])  # long ids, so that an entry shows
        assert grown < 20_000, (f"50 requests with ids of 1,000 characters were {what}, and the memory in use grew by "
                                f"{grown:,} bytes, expected fewer than 20,000: a request without blocks must have "
                                "no entry, not even an empty one")


# ---- Task 4


@pytest.mark.points(2)
def test_task_4_full_blocks_of_a_prompt_are_found(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("a", prompt(10)))
    hits, num_cached = manager.get_computed_blocks(Request("b", prompt(10)))
    assert (ids(hits), num_cached) == ([1, 2], 8), (f"10 tokens are in blocks 1, 2, 3; the same prompt again hits "
                                                    f"{ids(hits)} with {num_cached} tokens, expected [1, 2] with 8: "
                                                    "block 3 is not full")


@pytest.mark.points(2)
def test_task_4_blocks_filled_by_chunks_and_decoding_are_found(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    request = Request("a", prompt(7))
    for chunk in (3, 3, 1):
        start(manager, request, chunk)
    decode(manager, request, 50)
    hits, num_cached = manager.get_computed_blocks(Request("b", [*prompt(7), 50, 51]))
    assert (ids(hits), num_cached) == ([1, 2], 8), (
        f"chunks of 3, 3, 1 and a decoded token fill blocks 1 and 2; a lookup hits {ids(hits)} with {num_cached} "
        "tokens, expected [1, 2] with 8: a block is indexed in the call that fills it, even if that call took no fresh "
        "block")


@pytest.mark.points(3)
@pytest.mark.parametrize("num_tokens, num_hits", [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)])
def test_task_4_at_least_one_token_is_left_to_compute(lab, num_tokens, num_hits):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("a", prompt(16)))
    hits, num_cached = manager.get_computed_blocks(Request("b", prompt(num_tokens)))
    assert (len(hits), num_cached) == (num_hits, 4 * num_hits), (
        f"a prompt of {num_tokens} tokens, all cached, hits {len(hits)} blocks with {num_cached} tokens, expected "
        f"{num_hits} with {4 * num_hits}. A step must compute at least one token to get logits")


@pytest.mark.points(2)
def test_task_4_a_request_that_comes_back_finds_what_it_decoded(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    request = Request("r", prompt(3))
    manager.get_computed_blocks(request)  # the first lookup finds nothing; a later one finds more
    start(manager, request)
    for token in range(50, 60):
        decode(manager, request, token)
    manager.free(request)
    request.num_computed_tokens = 0  # a scheduler does this when it preempts a request
    hits, num_cached = manager.get_computed_blocks(request)
    assert (ids(hits), num_cached) == ([1, 2, 3], 12), (
        f"a request with 3 prompt tokens and 10 decoded tokens was freed; get_computed_blocks hits {ids(hits)} with "
        f"{num_cached} tokens, expected [1, 2, 3] with 12: the limit is (num_tokens - 1) // block_size, and num_tokens "
        "includes the decoded tokens")


@pytest.mark.points(2)
def test_task_4_a_decoded_token_does_not_hash_the_sequence_again(lab, monkeypatch):
    manager = lab.KVCacheManager(num_blocks=70, block_size=4)
    request = Request("r", prompt(240))
    start(manager, request)
    hashed = watch_hashing(monkeypatch)
    for token in range(1000, 1008):
        decode(manager, request, token)
    got = sum(map(len, hashed))
    rule = ("a block is indexed in the call that fills it" if got < 8 else
            "blocks that have a block_hash keep it, and this hash is the parent for the next block")
    assert got == 8, ("the 60 full blocks of a request were indexed; then 8 decoded tokens filled two more blocks of "
                      f"4 tokens. For these, {got} tokens were hashed, expected 8: {rule}")


@pytest.mark.points(1)
def test_task_4_a_lookup_hashes_nothing_after_the_first_miss(lab, monkeypatch):
    manager = lab.KVCacheManager(num_blocks=70, block_size=4)
    start(manager, Request("a", prompt(8)))
    hashed = watch_hashing(monkeypatch)
    hits, _ = manager.get_computed_blocks(Request("b", prompt(8) + prompt(200, 1000)))
    got = sum(map(len, hashed))
    assert (ids(hits), got) == ([1, 2], 12), (
        f"the first 8 of 208 tokens are cached; get_computed_blocks hit {ids(hits)} and hashed {got} tokens, expected "
        "[1, 2] and 12: hash the two blocks that are found and the first block that misses, then stop")


@pytest.mark.points(2)
def test_task_4_the_walk_stops_at_the_first_miss(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("a", prompt(12)))
    tokens = prompt(13)
    tokens[5] = 999
    hits, num_cached = manager.get_computed_blocks(Request("b", tokens))
    assert (ids(hits), num_cached) == ([1], 4), (f"token 5 differs, so only block 1 matches; the lookup hits "
                                                 f"{ids(hits)} with {num_cached} tokens, expected [1] with 4")
    manager.block_pool.evict_blocks([1])
    hits, num_cached = manager.get_computed_blocks(Request("c", prompt(13)))
    assert (hits, num_cached) == ([], 0), (f"block 1 was evicted, so the first block is a miss; the lookup hits "
                                           f"{ids(hits)}, expected []: blocks 2 and 3 without block 1 are not a prefix")


@pytest.mark.points(2)
def test_task_4_equal_tokens_after_another_prefix_are_no_hit(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("a", prompt(4) + prompt(5, 100)))
    hits, _ = manager.get_computed_blocks(Request("b", prompt(5, 100)))
    assert hits == [], ("tokens 100 to 103 were cached after tokens 0 to 3; a request without tokens 0 to 3 hits "
                        f"blocks {ids(hits)}, expected []: K/V depends on all tokens before")


@pytest.mark.points(2)
def test_task_4_slots_without_tokens_are_not_indexed(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    request = Request("a", prompt(6))
    manager.allocate_slots(request, 10)
    got = [block.block_hash is not None for block in manager.block_pool.blocks[1:4]]
    assert got == [True, False, False], (f"10 slots for 6 tokens: for blocks 1, 2, 3 'is indexed' is {got}, expected "
                                         "only block 1. Tokens that do not exist yet cannot be cached")


@pytest.mark.points(2)
def test_task_4_tokens_of_a_later_step_are_not_indexed(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    got = ids(manager.allocate_slots(Request("a", prompt(8)), 3))
    assert got == [1], f"3 tokens at block size 4: allocate_slots gave {got}, expected [1]"
    got = [block.block_id for block in manager.block_pool.blocks if block.block_hash is not None]
    assert got == [], (f"allocate_slots(request, 3) for the first 3 of 8 tokens indexed the blocks {got}, expected "
                       "none: token 3 exists, but this step does not compute it, so block 1 is not full yet")


@pytest.mark.points(1)
def test_task_4_a_lookup_changes_nothing(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    a = Request("a", prompt(10))
    start(manager, a)
    manager.free(a)
    before = state(manager, a)
    hits, num_cached = manager.get_computed_blocks(Request("b", prompt(10)))
    assert (ids(hits), num_cached) == ([1, 2], 8), (
        f"blocks 1, 2 and 3 hold 10 tokens; get_computed_blocks for these tokens gave {ids(hits)} and {num_cached} "
        "tokens, expected [1, 2] and 8: the two full blocks")
    assert_unchanged(before, state(manager, a), "get_computed_blocks",
                     "a lookup changes nothing; allocate_slots adopts the hits")


@pytest.mark.points(1)
def test_task_4_the_salt_keeps_tenants_apart(lab):
    manager = lab.KVCacheManager(num_blocks=20, block_size=4)
    start(manager, Request("a", prompt(10), extra_keys=("tenant a",)))
    for salt in (("tenant b",), None):
        hits, _ = manager.get_computed_blocks(Request("b", prompt(10), extra_keys=salt))
        assert hits == [], f"a request with the extra keys {salt} hits tenant a's blocks {ids(hits)}, expected none"
    hits, num_cached = manager.get_computed_blocks(Request("b", prompt(10), extra_keys=("tenant a",)))
    assert (ids(hits), num_cached) == ([1, 2], 8), (f"tenant a sends its 10 tokens again and hits {ids(hits)} with "
                                                    f"{num_cached} tokens, expected [1, 2] with 8")


@pytest.mark.points(1)
def test_task_4_with_caching_off_nothing_is_found(lab, monkeypatch):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    hashed = watch_hashing(monkeypatch)
    start(manager, Request("a", prompt(10)))
    num_hashed = sum(map(len, hashed))
    got = manager.get_computed_blocks(Request("b", prompt(10)))
    assert got == ([], 0), f"enable_caching=False, but get_computed_blocks gave {got}, expected ([], 0)"
    got = num_hashed, sum(map(len, hashed)) - num_hashed
    assert got == (0, 0), (f"enable_caching=False: allocate_slots for 10 tokens hashed {got[0]} of them, and "
                           f"get_computed_blocks of the same tokens hashed {got[1]}, expected 0 and 0: with caching "
                           "off, no hash is needed")


@pytest.mark.points(3)
def test_task_4_a_hit_is_proved_not_just_hashed(lab, monkeypatch):
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 1)
    manager = lab.KVCacheManager(num_blocks=20, block_size=4)
    start(manager, Request("a", prompt(12)))
    start(manager, Request("b", prompt(4, 50) + prompt(8, 4)))
    for name, tokens, expected in (("a's prompt", prompt(13), [1, 2, 3]), ("b's prompt", prompt(4, 50) + [4], [4]),
                                   ("another prompt", prompt(13, 4), [])):
        got = ids(manager.get_computed_blocks(Request("c", tokens))[0])
        assert got == expected, (f"with every hash forced to 1, {name} hits {got}, expected {expected}: keys must be "
                                 "compared by tokens and parent, so pass the BlockHash itself to the pool")


# ---- Task 5


@pytest.mark.points(3)
def test_task_5_hits_are_shared_not_copied(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    a, b = Request("a", prompt(10)), Request("b", prompt(10))
    admit(manager, a)
    taken = ids(admit(manager, b))
    tables = manager.get_block_ids("a"), manager.get_block_ids("b")
    assert tables == ([1, 2, 3], [1, 2, 4]), (
        f"two requests with the same 10 tokens have the tables {tables}, expected ([1, 2, 3], [1, 2, 4]): the full "
        "blocks are shared, the last block is not")
    assert taken == [4], f"allocate_slots gave {taken}, expected [4]: it returns only the new blocks"
    assert_counts(manager, a, b)
    c = Request("c", prompt(10))
    hits, num_cached = manager.get_computed_blocks(c)
    must_answer("allocate_slots(c, 2, a tuple of hits)", manager.allocate_slots, c, 2, tuple(hits),
                rule="hits may be any sequence, for example a tuple")
    got = manager.get_block_ids("c")
    assert got == [1, 2, 5], f"a third request with the same tokens has the table {got}, expected [1, 2, 5]"
    manager.free(c)
    manager.free(a)
    assert_counts(manager, a, b)


@pytest.mark.points(2)
def test_task_5_what_is_filled_after_a_hit_is_found(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    admit(manager, Request("a", prompt(8)))
    admit(manager, Request("b", prompt(13)))
    hits, num_cached = manager.get_computed_blocks(Request("c", prompt(13)))
    assert (ids(hits), num_cached) == ([1, 2, 3], 12), (
        f"a computed tokens 0 … 7 into blocks 1 and 2; b adopted these and computed tokens 8 … 12 into blocks 3 and 4. "
        f"The same 13 tokens again hit {ids(hits)} with {num_cached} tokens, expected [1, 2, 3] with 12: b filled "
        "block 3. Include the tokens of the hits in the number that you pass to _index_full_blocks")


@pytest.mark.points(1)
def test_task_5_the_lists_of_hits_and_of_fresh_blocks_stay_the_callers(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    admit(manager, Request("a", prompt(8)))
    b = Request("b", prompt(11))
    hits, num_cached = manager.get_computed_blocks(b)
    taken = manager.allocate_slots(b, 3, hits)
    b.num_computed_tokens = 11
    c, d = Request("c", prompt(3, 100)), Request("d", prompt(3, 200))
    only = start(manager, c)
    start(manager, d).clear()
    got = manager.get_block_ids("d")
    assert got == [5], f"the caller cleared the list that allocate_slots(d, 3) returned; now d's table is {got}"
    manager.free(d)
    for i in range(2):
        decode(manager, b, 50 + i)
        decode(manager, c, 50 + i)
    for call, rule, got, expected in [
            ("allocate_slots(b, 3, hits) was given the hits [1, 2]", "the table must be a new list, not the list of "
             "hits", ids(hits), [1, 2]),
            ("allocate_slots(b, 3, hits) returned [3]", "the table must be a new list", ids(taken), [3]),
            ("allocate_slots(c, 3) returned [4]", "the table must be a new list, not the list returned", ids(only),
             [4])]:
        assert got == expected, (f"{call}; the request then decoded two tokens, which needed another block, and now "
                                 f"the caller's list is {got}, expected {expected}: {rule}")
    hits.clear()
    taken.clear()
    only.clear()
    got = manager.get_block_ids("b"), manager.get_block_ids("c")
    assert got == ([1, 2, 3, 6], [4, 7]), (f"the caller cleared its lists of hits and of fresh blocks; now the tables "
                                           f"are {got}, expected ([1, 2, 3, 6], [4, 7]): a table must be a separate "
                                           "list")


@pytest.mark.points(4)
def test_task_5_free_hits_do_not_count_as_room(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4)
    a, other = Request("a", prompt(8)), Request("other", prompt(4, 100))
    admit(manager, a)
    admit(manager, other)
    manager.free(a)
    manager.free(other)  # the queue is 2, 1, 3: the hits are not at its end, so a touch and its undo would show
    b = Request("b", prompt(16))
    hits, num_cached = manager.get_computed_blocks(b)
    assert (ids(hits), num_cached) == ([1, 2], 8), (
        f"a's 8 tokens are in the free blocks 1 and 2; b starts with the same tokens and hits {ids(hits)} with "
        f"{num_cached} tokens, expected [1, 2] with 8")
    before = state(manager, a, b)
    got = manager.allocate_slots(b, 8, hits)
    assert got is None, (f"3 blocks are free, and 2 of them are the hits; b needs 2 more and only 1 is left, but "
                         f"allocate_slots(b, 8, hits) gave {ids(got)}, expected None: a hit leaves the queue when it "
                         "is adopted")
    assert_unchanged(before, state(manager, a, b), "allocate_slots(b, 8, hits) returned None, but it",
                     "touch the hits only after you know that everything fits")


@pytest.mark.points(2)
def test_task_5_hits_that_are_in_use_take_no_room(lab):
    manager = lab.KVCacheManager(num_blocks=5, block_size=4)
    a, b = Request("a", prompt(12)), Request("b", prompt(12) + [99])
    admit(manager, a)
    hits, _ = manager.get_computed_blocks(b)
    assert ids(hits) == [1, 2, 3], f"b starts with a's 12 tokens and hits {ids(hits)}, expected [1, 2, 3]"
    got = ids(manager.allocate_slots(b, 1, hits))
    assert got == [4], (f"a uses blocks 1, 2, 3, which are b's hits; block 4 is free, and b needs one block: "
                        f"allocate_slots(b, 1, hits) gave {got}, expected [4]: a hit in use is not in the free queue, "
                        "so do not subtract it from the free blocks")
    assert_counts(manager, a, b)


@pytest.mark.points(3)
def test_task_5_a_hit_is_not_evicted_for_its_own_request(lab):
    manager = lab.KVCacheManager(num_blocks=7, block_size=4)
    a, other = Request("a", prompt(8)), Request("other", prompt(16, 100))
    admit(manager, a)
    admit(manager, other)
    manager.free(a)
    manager.free(other)
    queue = free_ids(manager)
    assert queue == [2, 1, 6, 5, 4, 3], f"after free(a), free(other) the queue is {queue}, expected 2, 1, 6, 5, 4, 3"
    b = Request("b", prompt(8) + [99, 99, 99, 99])
    hits, _ = manager.get_computed_blocks(b)
    assert ids(hits) == [1, 2], f"b starts with a's 8 tokens, in blocks 1 and 2, and hits {ids(hits)}, expected [1, 2]"
    manager.allocate_slots(b, 4, hits)
    got = manager.get_block_ids("b")
    assert got == [1, 2, 6], (f"the free queue was 2, 1, 6, 5, 4, 3, and b's hits are the oldest blocks, 1 and 2; b's "
                              f"table is {got}, expected [1, 2, 6]: touch the hits before you take fresh blocks")
    assert_counts(manager, a, b, other)


@pytest.mark.points(2)
def test_task_5_a_number_of_tokens_that_the_hits_do_not_hold_is_refused(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    admit(manager, Request("a", prompt(10)))
    b = Request("b", prompt(10))
    hits, num_cached = manager.get_computed_blocks(b)
    assert num_cached == 8, f"the same 10 tokens again hit {num_cached} tokens, expected 8"
    before = state(manager, b)
    for wrong in (0, 4, 12):
        call = f"allocate_slots(b, 2, hits, num_new_computed_tokens={wrong}) with two hits of 4 tokens"
        must_raise(ValueError, call, manager.allocate_slots, b, 2, hits, wrong,
                   rule="two blocks hold 8 tokens; only None means all tokens of the hits, 0 means 0")
        assert_unchanged(before, state(manager, b), f"{call} was rejected, but it", "check first, then change")
    got = ids(manager.allocate_slots(b, 2, hits, 8))
    assert got == [4], f"allocate_slots(b, 2, hits, num_new_computed_tokens=8) gave {got}, expected [4]"


@pytest.mark.points(2)
def test_task_5_a_stale_hit_is_refused(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4)
    a, b, thief = Request("a", prompt(5)), Request("b", prompt(5)), Request("thief", prompt(12, 100))
    admit(manager, a)
    manager.free(a)
    hits, _ = manager.get_computed_blocks(b)
    assert ids(hits) == [1], f"block 1 holds b's first 4 tokens; get_computed_blocks hits {ids(hits)}, expected [1]"
    admit(manager, thief)
    before = state(manager, a, b, thief)
    must_raise(RuntimeError, "allocate_slots(b, 1, hits=[block 1]), after block 1 was given to another request,",
               manager.allocate_slots, b, 1, hits, rule="its block_hash shows that it no longer holds b's tokens")
    assert_unchanged(before, state(manager, a, b, thief), "the rejected call", "check first, then change")
    manager.free(thief)
    must_raise(RuntimeError, "allocate_slots(b, 1, hits=[block 1]), after another request had block 1 and was freed,",
               manager.allocate_slots, b, 1, hits, rule="it is free again, but holds the other request's tokens")
    pool = manager.block_pool
    pool.free_blocks(pool.get_new_blocks(3))
    must_raise(RuntimeError, ("allocate_slots(b, 1, hits=[block 1]), after block 1 was given out and freed without a "
                              "hash,"),
               manager.allocate_slots, b, 1, hits, rule="a block without a hash holds no request's tokens")


@pytest.mark.points(3)
@pytest.mark.parametrize("case", ["other tokens in the first block", "other tokens in the second block", "swapped",
                                  "a block of another tenant", "equal tokens after another prefix", "equal hashes"])
def test_task_5_every_hit_must_hold_the_tokens_of_its_place(lab, case, monkeypatch):
    if case == "equal hashes":
        monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 1)
    manager = lab.KVCacheManager(num_blocks=20, block_size=4)
    start(manager, Request("a", prompt(8)))  # blocks 1, 2
    start(manager, Request("other", prompt(8, 100)))  # 3, 4
    start(manager, Request("tenant", prompt(8), extra_keys=("salt",)))  # 5, 6
    start(manager, Request("late", prompt(4, 50) + prompt(4, 4)))  # 7, 8
    hits = {"other tokens in the first block": [3, 2], "other tokens in the second block": [1, 4], "swapped": [2, 1],
            "a block of another tenant": [5], "equal tokens after another prefix": [1, 8], "equal hashes": [3, 4]}[case]
    b = Request("b", prompt(9))
    before = state(manager, b)
    call = f"allocate_slots(b, 1, blocks {hits}), where a's blocks 1 and 2 hold b's first 8 tokens ({case}),"
    must_raise(RuntimeError, call, manager.allocate_slots, b, 1, [manager.block_pool.blocks[i] for i in hits],
               rule="each hit must hold b's tokens at its position, after the same tokens, with b's extra keys; "
                    "compare whole keys")
    assert_unchanged(before, state(manager, b), f"{call} was rejected, but it", "check first, then change")


@pytest.mark.points(1)
def test_task_5_a_twin_is_as_good_a_hit(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    a, twin, b = (Request(name, prompt(9)) for name in ("a", "twin", "b"))
    start(manager, a)
    start(manager, twin)  # no lookup, so blocks 4 and 5 hold the same content as 1 and 2
    call = "allocate_slots(b, 1, blocks [4, 5]), which hold b's first 8 tokens, just as blocks 1 and 2 do,"
    must_answer(call, manager.allocate_slots, b, 1, [manager.block_pool.blocks[i] for i in (4, 5)],
                rule="check the content of the block, not which of two twins the index returns")
    got = manager.get_block_ids("b")
    assert got == [4, 5, 7], f"after {call} b's table is {got}, expected [4, 5, 7]: the hits that were passed"
    assert_counts(manager, a, twin, b)


@pytest.mark.points(1)
def test_task_5_lookup_hits_and_free_leave_the_request_alone(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    admit(manager, Request("a", prompt(10)))
    request = Request("r", prompt(10))
    before = dict(vars(request))
    hits, _ = manager.get_computed_blocks(request)
    assert ids(hits) == [1, 2], ("blocks 1, 2 and 3 of another request hold 10 tokens; get_computed_blocks for the "
                                 f"same tokens gave {ids(hits)}, expected [1, 2], the full blocks")
    assert not written(request, before), (f"get_computed_blocks(request) changed attributes of the request (before, "
                                          f"now): {written(request, before)}. Only the scheduler changes a request")
    manager.allocate_slots(request, 2, hits)
    assert not written(request, before), (f"allocate_slots(request, 2, hits) changed attributes of the request "
                                          f"(before, now): {written(request, before)}. Only the scheduler changes a "
                                          "request")
    request.num_computed_tokens = 10
    before = dict(vars(request))
    manager.free(request)
    assert not written(request, before), (f"free(request) changed attributes of the request (before, now): "
                                          f"{written(request, before)}. Only the scheduler changes a request")


@pytest.mark.points(1)
def test_task_5_two_requests_of_one_step_share(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    a, b = Request("a", prompt(9)), Request("b", prompt(9))
    manager.allocate_slots(a, 9)  # planned for this step; nothing has run yet
    hits, num_cached = manager.get_computed_blocks(b)
    assert (ids(hits), num_cached) == ([1, 2], 8), (
        f"b is looked up right after a got its slots, in the same step, and hits {ids(hits)} with {num_cached} tokens, "
        "expected [1, 2] with 8: index full blocks when their slots are allocated, not after the step has run")
    manager.allocate_slots(b, 1, hits)
    got = manager.get_block_ids("b")
    assert got == [1, 2, 4], f"b was given the hits [1, 2]; its table is {got}, expected [1, 2, 4]: adopt the hits"


@pytest.mark.points(4)
def test_task_5_random_traffic_reads_back_its_own_tokens(lab):
    """Record for each slot the prefix whose K/V was written there. Each table must lead to its own request's tokens."""
    num_hits = 0
    for seed in range(8):
        rng = random.Random(seed)
        size = rng.randint(1, 4)
        manager = lab.KVCacheManager(num_blocks=rng.randint(3, 9), block_size=size)
        memory, running = {}, []
        for step in range(40):
            fresh = not running or rng.random() < 0.4
            if fresh:
                request = Request(f"{seed}-{step}", [rng.randint(0, 1) for _ in range(rng.randint(1, 12))])
                hits, num_cached = manager.get_computed_blocks(request)
            else:
                request = rng.choice(running)
                hits, num_cached = [], 0
                if request.num_computed_tokens == request.num_tokens:
                    request.append_output_token(rng.randint(0, 1))
            num_new = rng.randint(1, request.num_tokens - request.num_computed_tokens - num_cached)
            if manager.allocate_slots(request, num_new, hits) is not None:
                first = request.num_computed_tokens + num_cached
                table = manager.get_block_ids(request.request_id)
                for p in range(first, first + num_new):
                    memory[table[p // size], p % size] = tuple(request.all_token_ids[:p + 1])
                request.num_computed_tokens = first + num_new
                num_hits += len(hits)
                running += [request] if fresh else []
            elif running:
                victim = running.pop(rng.randrange(len(running)))
                manager.free(victim)
            assert_counts(manager, *running)
            for other in running:
                table = manager.get_block_ids(other.request_id)
                for p in range(other.num_computed_tokens):
                    found = memory.get((table[p // size], p % size), ())
                    assert found == tuple(other.all_token_ids[:p + 1]), (
                        f"seed {seed}, step {step}, block size {size}: request {other.request_id} has the table "
                        f"{table}. At position {p} (block {table[p // size]}) it reads K/V that was computed for other "
                        f"tokens. The tokens up to this position were {list(found)} when the K/V was written, but are "
                        f"{other.all_token_ids[:p + 1]} in this request")
        for request in running:
            manager.free(request)
        num_used = manager.block_pool.num_blocks - 1 - manager.block_pool.get_num_free_blocks()
        assert num_used == 0, f"seed {seed}: all requests were freed, but {num_used} blocks are in use, expected 0"
    assert num_hits > 0, ("in 8 runs of random traffic with many repetitions get_computed_blocks found no block, "
                          "expected some: nothing was shared, so nothing was tested")


# ---- Task 6


@pytest.mark.points(2)
def test_task_6_statistics_count_tokens_asked_found_and_blocks_evicted(lab):
    manager = lab.KVCacheManager(num_blocks=5, block_size=4)
    for name in "ab":
        request = Request(name, prompt(10))
        admit(manager, request)
        manager.free(request)
    got = counts(manager)
    assert got == (2, 20, 8, 0), ("after a 10-token prompt ran twice, (queries, tokens requested, tokens found, "
                                  f"evicted) is {got}, expected (2, 20, 8, 0)")
    admit(manager, Request("c", prompt(16, 100)))
    got = manager.stats.num_evicted_blocks
    assert got == 2, f"16 other tokens fill the pool; {got} evictions are counted, expected 2, one per cached block"


@pytest.mark.points(1)
def test_task_6_with_caching_off_requests_count_and_nothing_is_found(lab):
    manager = lab.KVCacheManager(num_blocks=5, block_size=4, enable_caching=False)
    for name in "ab":
        request = Request(name, prompt(10))
        admit(manager, request)
        manager.free(request)
    got = counts(manager)
    assert got == (2, 20, 0, 0), ("caching is off, and a 10-token prompt ran twice: (queries, tokens requested, "
                                  f"tokens found, evicted) is {got}, expected (2, 20, 0, 0): requests are counted, but "
                                  "nothing is found")


@pytest.mark.points(2)
def test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    request = Request("r", prompt(6))

    def asked():
        return manager.stats.num_queries, manager.stats.num_query_tokens

    manager.allocate_slots(request, 3)
    got = asked()
    assert got == (1, 6), (f"the first 3 of 6 tokens got slots: (queries, tokens requested) is {got}, expected (1, 6): "
                           "count all tokens of the request, num_tokens, not those of one chunk")
    manager.allocate_slots(request, 6)  # the step was cancelled: nothing has been computed, but the request has slots
    got = asked()
    assert got == (1, 6), (f"a request with slots got more slots: (queries, tokens requested) is {got}, expected (1, "
                           "6): count a request at its first slots, whatever num_computed_tokens is")
    for token in (50, 51):
        request.append_output_token(token)
    manager.free(request)
    admit(manager, request)
    got = asked()
    assert got == (2, 14), (f"the request was freed and came back with 8 tokens, 2 of them decoded: (queries, tokens "
                            f"requested) is {got}, expected (2, 14): count it again, with its current num_tokens")


@pytest.mark.points(2)
def test_task_6_a_request_that_waits_is_counted_once(lab):
    manager = lab.KVCacheManager(num_blocks=5, block_size=4)
    a, b = Request("a", prompt(12)), Request("b", prompt(4) + prompt(7, 100))
    admit(manager, a)
    for _ in range(5):
        admit(manager, b)
    got = counts(manager)
    assert got == (1, 12, 0, 0), (
        "a runs with 12 tokens; b has 11 tokens, 4 of them cached, and was looked up and rejected five times: "
        f"(queries, tokens requested, tokens found, evicted) is {got}, expected (1, 12, 0, 0): count nothing when "
        "allocate_slots returns None")
    manager.free(a)
    admit(manager, b)
    decode(manager, b, 7)
    got = counts(manager)
    assert got[:3] == (2, 23, 4), (
        f"a ran; b waited five steps, ran and decoded a token: (queries, tokens requested, tokens found) is {got[:3]}, "
        "expected (2, 23, 4): count a request once, when it gets its first slots")


@pytest.mark.points(1)
def test_task_6_reset_is_refused_while_blocks_are_in_use(lab):
    manager = lab.KVCacheManager(num_blocks=6, block_size=4)
    first, a = Request("first", prompt(20, 100)), Request("a", prompt(12))
    admit(manager, first)
    manager.free(first)
    admit(manager, a)  # takes three of the five blocks, all of them cached
    before = state(manager, a)
    must_raise(RuntimeError, "reset_prefix_cache() while a holds three blocks", manager.reset_prefix_cache,
               rule="the pool raises this error; let it through")
    assert_unchanged(before, state(manager, a), "reset_prefix_cache() raised, but it", "call the pool first")
    got = counts(manager)
    assert got == (2, 32, 0, 3), (
        f"two requests with 20 and 12 tokens ran, then reset_prefix_cache() raised: (queries, tokens requested, tokens "
        f"found, evicted) is {got}, expected (2, 32, 0, 3): a reset that fails must not change the statistics")


@pytest.mark.points(2)
def test_task_6_a_reset_forgets_everything_and_restarts_the_counts(lab):
    manager = lab.KVCacheManager(num_blocks=5, block_size=4)

    def fill(name, first):
        request = Request(name, prompt(16, first))
        admit(manager, request)
        manager.free(request)

    fill("a", 0)
    fill("a again", 0)
    fill("b", 100)
    got = counts(manager)
    assert got == (3, 48, 12, 5), (
        f"16 tokens, the same 16 tokens again, and 16 other tokens ran in 4 blocks: (queries, tokens requested, tokens "
        f"found, evicted) is {got}, expected (3, 48, 12, 5)")
    manager.reset_prefix_cache()
    got = manager.block_pool.num_evictions
    assert got == 5, (f"5 blocks were evicted before reset_prefix_cache(), and the pool's num_evictions is {got}: the "
                      "pool counts all evictions since it was made")
    hits, num_cached = manager.get_computed_blocks(Request("c", prompt(16, 100)))
    assert (hits, num_cached) == ([], 0), (f"after reset_prefix_cache() the same prompt hits {ids(hits)} with "
                                           f"{num_cached} tokens, expected [] with 0: all content is forgotten")
    got = counts(manager)
    assert got == (0, 0, 0, 0), (
        f"after reset_prefix_cache() (queries, tokens requested, tokens found, evicted) is {got}, expected (0, 0, 0, "
        "0): count evictions since the last reset, although the pool's counter is not reset")
    manager.reset_prefix_cache()
    got = counts(manager)
    assert got == (0, 0, 0, 0), f"after a second reset_prefix_cache() the counts are {got}, expected (0, 0, 0, 0)"
    fill("c", 200)
    fill("d", 300)
    got = counts(manager)
    assert got == (2, 32, 0, 4), (
        f"after reset_prefix_cache() 16 tokens ran, then 16 others in the same 4 blocks: (queries, tokens requested, "
        f"tokens found, evicted) is {got}, expected (2, 32, 0, 4)")
