"""Lab 2.2, the KV cache manager. Each test pins one rule; its failure says which."""

import random

import pytest

from mini_vllm.request import Request


def prompt(num_tokens, start=0):
    return list(range(start, start + num_tokens))


def ids(blocks):
    return None if blocks is None else [block.block_id for block in blocks]


def free_ids(manager):
    return ids(manager.block_pool.free_block_queue.get_all_free_blocks())


def admit(manager, request, num_new_tokens=None):
    """What a scheduler does with a waiting request: look up, allocate, and advance num_computed_tokens."""
    hits, num_cached = manager.get_computed_blocks(request)
    num_new_tokens = num_new_tokens or request.num_tokens - num_cached
    blocks = manager.allocate_slots(request, num_new_tokens, hits)
    if blocks is not None:
        request.num_computed_tokens = num_cached + num_new_tokens
    return blocks


def start(manager, request, num_new_tokens=None):
    """As admit, without a lookup."""
    num_new_tokens = num_new_tokens or request.num_tokens
    blocks = manager.allocate_slots(request, num_new_tokens)
    if blocks is not None:
        request.num_computed_tokens += num_new_tokens
    return blocks


def decode(manager, request, token_id):
    """One more token: it exists already, its slot does not."""
    request.append_output_token(token_id)
    return start(manager, request, 1)


def state(manager, *requests):
    """What a call that returns None or raises must leave alone."""
    return (free_ids(manager), [(block.ref_cnt, block.block_hash) for block in manager.block_pool.blocks],
            [manager.get_block_ids(request.request_id) for request in requests])


def assert_counts(manager, *requests):
    """ref_cnt is the number of tables that name a block."""
    tables = [manager.get_block_ids(request.request_id) for request in requests]
    for block in manager.block_pool.blocks:
        num_owners = sum(table.count(block.block_id) for table in tables)
        assert block.ref_cnt == num_owners, (f"block {block.block_id} has ref_cnt {block.ref_cnt}, but {num_owners} of "
                                             f"the tables {tables} name it")


# ---- Task 1


@pytest.mark.points(1)
def test_task_1_a_request_that_holds_nothing_has_an_empty_table(lab):
    got = lab.KVCacheManager(num_blocks=4, block_size=4).get_block_ids("nobody")
    assert got == [], f"get_block_ids of a request that was never seen gave {got!r}, expected []"


# ---- Task 2 (caching off: nothing but room)


@pytest.mark.points(2)
@pytest.mark.parametrize("num_tokens, num_blocks", [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_task_2_a_prompt_takes_just_enough_blocks(lab, num_tokens, num_blocks):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    blocks = start(manager, Request("r", prompt(num_tokens)))
    assert len(blocks) == num_blocks, (f"{num_tokens} tokens at block size 4 took {len(blocks)} blocks, expected "
                                       f"{num_blocks}: ceil({num_tokens} / 4)")
    assert manager.get_block_ids("r") == ids(blocks), "the table is not what was taken"


@pytest.mark.points(3)
def test_task_2_the_last_block_is_filled_before_a_new_one_is_taken(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    request = Request("r", prompt(6))
    start(manager, request)
    got = [ids(decode(manager, request, 100 + i)) for i in range(4)]
    assert got == [[], [], [3], []], (
        f"a 6-token prompt, then tokens 7, 8, 9, 10 at block size 4: newly taken {got}, expected [[], [], [3], []]. "
        "Tokens 7 and 8 fill block 2; only token 9 needs a new one")


@pytest.mark.points(2)
def test_task_2_chunks_extend_the_same_table(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    request = Request("r", prompt(14))
    got = []
    for chunk in (3, 3, 3, 5):
        start(manager, request, chunk)
        got.append(manager.get_block_ids("r"))
    assert got == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]], f"chunks of 3, 3, 3, 5 tokens gave the tables {got}"


@pytest.mark.points(2)
def test_task_2_what_does_not_fit_is_none_and_changes_nothing(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4, enable_caching=False)
    a, b = Request("a", prompt(8)), Request("b", prompt(8))
    start(manager, a)
    before = state(manager, a, b)
    got = start(manager, b)
    assert got is None, f"8 tokens need 2 blocks and 1 is free: allocate_slots gave {ids(got)}, expected None"
    assert state(manager, a, b) == before, "allocate_slots returned None, but something changed: decide first"
    a.num_computed_tokens = 8
    assert start(manager, a, 5) is None, "a running request that needs 2 blocks where 1 is free gets None"
    assert state(manager, a, b) == before, "a running request that does not fit must keep its table as it was"


@pytest.mark.points(1)
def test_task_2_the_manager_never_writes_the_request(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4, enable_caching=False)
    request = Request("r", prompt(6))
    before = dict(vars(request))
    manager.allocate_slots(request, 6)
    changed = [name for name, value in vars(request).items() if before.get(name) != value]
    assert not changed, f"allocate_slots changed {changed} of the request: the scheduler advances it, nobody else"


@pytest.mark.points(1)
def test_task_2_senseless_arguments_are_refused(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4, enable_caching=False)
    request = Request("r", prompt(6))
    for num_new_tokens in (0, -1):
        with pytest.raises(ValueError):
            manager.allocate_slots(request, num_new_tokens)
    request.num_computed_tokens = 4
    with pytest.raises(RuntimeError):
        manager.allocate_slots(request, 1)
    assert state(manager, request)[0] == [1, 2, 3], "a refused call must take nothing"


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
    assert manager.get_block_ids("r") == [], "a freed request holds nothing"


@pytest.mark.points(1)
def test_task_3_free_is_harmless_when_nothing_is_held(lab):
    manager = lab.KVCacheManager(num_blocks=6, block_size=4, enable_caching=False)
    request = Request("r", prompt(12))
    manager.free(request)
    start(manager, request)
    manager.free(request)
    manager.free(request)
    got = manager.block_pool.get_num_free_blocks()
    assert got == 5, f"after free() twice {got} blocks are free, expected 5"


# ---- Task 4


@pytest.mark.points(2)
def test_task_4_full_blocks_of_a_prompt_are_found(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("a", prompt(10)))
    hits, num_cached = manager.get_computed_blocks(Request("b", prompt(10)))
    assert (ids(hits), num_cached) == ([1, 2], 8), (f"10 tokens are in blocks 1, 2, 3; the same prompt again hits "
                                                    f"{ids(hits)} with {num_cached} tokens, expected [1, 2] with 8: "
                                                    "block 3 is not full")


@pytest.mark.points(3)
@pytest.mark.parametrize("num_tokens, num_hits", [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)])
def test_task_4_at_least_one_token_is_left_to_compute(lab, num_tokens, num_hits):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("a", prompt(16)))
    hits, num_cached = manager.get_computed_blocks(Request("b", prompt(num_tokens)))
    assert (len(hits), num_cached) == (num_hits, 4 * num_hits), (
        f"a prompt of {num_tokens} tokens, all cached: {len(hits)} blocks with {num_cached} tokens hit, expected "
        f"{num_hits} with {4 * num_hits}. A step needs at least one token to compute logits from")


@pytest.mark.points(2)
def test_task_4_the_walk_stops_at_the_first_miss(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("a", prompt(12)))
    tokens = prompt(13)
    tokens[5] = 999
    hits, num_cached = manager.get_computed_blocks(Request("b", tokens))
    assert (ids(hits), num_cached) == ([1], 4), (f"token 5 differs, so only block 1 is the same prefix; hit "
                                                 f"{ids(hits)} with {num_cached} tokens, expected [1] with 4")
    manager.block_pool.evict_blocks([1])
    hits, num_cached = manager.get_computed_blocks(Request("c", prompt(13)))
    assert (hits, num_cached) == ([], 0), (f"block 1 was evicted, so the first block is a miss; hit {ids(hits)}, "
                                           "expected []: blocks 2 and 3 without block 1 are no prefix")


@pytest.mark.points(2)
def test_task_4_equal_tokens_after_another_prefix_are_no_hit(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("a", prompt(4) + prompt(5, 100)))
    hits, _ = manager.get_computed_blocks(Request("b", prompt(5, 100)))
    assert hits == [], (f"the tokens 100 to 103 were cached after tokens 0 to 3, and are hit without them in blocks "
                        f"{ids(hits)}: their K/V depends on what came before")


@pytest.mark.points(2)
def test_task_4_blocks_filled_by_chunks_and_decoding_are_found(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    request = Request("a", prompt(7))
    for chunk in (3, 3, 1):
        start(manager, request, chunk)
    for token in (50, 51):
        decode(manager, request, token)
    hits, num_cached = manager.get_computed_blocks(Request("b", [*prompt(7), 50, 51]))
    assert (ids(hits), num_cached) == ([1, 2], 8), (
        f"chunks of 3, 3, 1 and two decoded tokens fill blocks 1 and 2; hit {ids(hits)} with {num_cached} tokens, "
        "expected [1, 2] with 8: a block that becomes full in any call must be indexed then")


@pytest.mark.points(2)
def test_task_4_slots_without_tokens_are_not_indexed(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    request = Request("a", prompt(6))
    manager.allocate_slots(request, 10)
    got = [block.block_hash is not None for block in manager.block_pool.blocks[1:4]]
    assert got == [True, False, False], (f"10 slots for 6 tokens: blocks 1, 2, 3 indexed {got}, expected only block 1. "
                                         "Tokens that do not exist yet cannot be cached")


@pytest.mark.points(1)
def test_task_4_a_lookup_changes_nothing(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    a = Request("a", prompt(10))
    start(manager, a)
    manager.free(a)
    before = state(manager, a)
    manager.get_computed_blocks(Request("b", prompt(10)))
    assert state(manager, a) == before, "get_computed_blocks only looks: the hits are taken by allocate_slots"


@pytest.mark.points(1)
def test_task_4_the_salt_keeps_tenants_apart(lab):
    manager = lab.KVCacheManager(num_blocks=20, block_size=4)
    start(manager, Request("a", prompt(10), extra_keys=("tenant a",)))
    for salt in (("tenant b",), None):
        hits, _ = manager.get_computed_blocks(Request("b", prompt(10), extra_keys=salt))
        assert hits == [], f"tenant a's blocks {ids(hits)} are hit with the extra keys {salt}"
    assert manager.get_computed_blocks(Request("b", prompt(10), extra_keys=("tenant a",)))[1] == 8, \
        "tenant a must find its own blocks"


@pytest.mark.points(1)
def test_task_4_with_caching_off_nothing_is_found(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    start(manager, Request("a", prompt(10)))
    got = manager.get_computed_blocks(Request("b", prompt(10)))
    assert got == ([], 0), f"enable_caching=False, but get_computed_blocks gave {got}"


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
    assert tables == ([1, 2, 3], [1, 2, 4]), f"two requests with one prompt have the tables {tables}"
    assert taken == [4], f"allocate_slots returns the newly taken blocks only: got {taken}, expected [4]"
    assert_counts(manager, a, b)
    manager.free(a)
    assert_counts(manager, a, b)


@pytest.mark.points(4)
def test_task_5_free_hits_do_not_count_as_room(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4)
    a = Request("a", prompt(8))
    admit(manager, a)
    manager.free(a)
    b = Request("b", prompt(16))
    before = state(manager, a, b)
    got = admit(manager, b)
    assert got is None, (f"3 blocks are free, 2 of them are the hits; 2 more are needed and only 1 is left, yet "
                         f"allocate_slots gave {ids(got)}: a hit leaves the queue when it is adopted")
    assert state(manager, a, b) == before, ("allocate_slots returned None, but refs, queue order or index changed: "
                                            "touch the hits only once it is sure that everything fits")


@pytest.mark.points(3)
def test_task_5_a_hit_is_not_evicted_for_its_own_request(lab):
    manager = lab.KVCacheManager(num_blocks=5, block_size=4)
    a = Request("a", prompt(16))
    admit(manager, a)
    manager.free(a)  # the queue reads 4, 3, 2, 1: all four are free, and three of them are b's prefix
    b = Request("b", prompt(12) + [99, 99, 99, 99])
    admit(manager, b)
    got = manager.get_block_ids("b")
    assert got == [1, 2, 3, 4], (f"blocks 1, 2, 3 are hits and 4 is the only other block; the table is {got}, expected "
                                 "[1, 2, 3, 4]: take the hits out of the queue before you take fresh blocks")
    assert_counts(manager, a, b)


@pytest.mark.points(2)
def test_task_5_a_stale_hit_is_refused(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4)
    a, b, thief = Request("a", prompt(5)), Request("b", prompt(5)), Request("thief", prompt(12, 100))
    admit(manager, a)
    manager.free(a)
    hits, _ = manager.get_computed_blocks(b)
    admit(manager, thief)
    before = state(manager, a, b, thief)
    with pytest.raises(RuntimeError):
        manager.allocate_slots(b, 1, hits)
    assert state(manager, a, b, thief) == before, "a refused call must change nothing"


@pytest.mark.points(1)
def test_task_5_two_requests_of_one_step_share(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    a, b = Request("a", prompt(9)), Request("b", prompt(9))
    manager.allocate_slots(a, 9)  # planned for this step; nothing has run yet
    hits, num_cached = manager.get_computed_blocks(b)
    manager.allocate_slots(b, 1, hits)
    got = manager.get_block_ids("b")[:2]
    assert got == [1, 2] and num_cached == 8, (f"b was planned right after a, in the same step, and shares {got}, "
                                               "expected [1, 2]: full blocks are indexed when their slots are made")


@pytest.mark.points(4)
def test_task_5_random_traffic_reads_back_its_own_tokens(lab):
    """A memory that stores, a slot, the whole prefix written there. Every table must read back its own request."""
    for seed in range(30):
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
                running += [request] if fresh else []
            elif running:
                victim = running.pop(rng.randrange(len(running)))
                manager.free(victim)
            assert_counts(manager, *running)
            for other in running:
                table = manager.get_block_ids(other.request_id)
                for p in range(other.num_computed_tokens):
                    found = memory.get((table[p // size], p % size))
                    assert found == tuple(other.all_token_ids[:p + 1]), (
                        f"seed {seed}, step {step}: request {other.request_id} reads at position {p} (block "
                        f"{table[p // size]}) the K/V of {found}, expected that of {other.all_token_ids[:p + 1]}")
        for request in running:
            manager.free(request)
        assert manager.block_pool.get_usage() == 0.0, f"seed {seed}: all requests are gone, but blocks are in use"


# ---- Task 6


@pytest.mark.points(2)
def test_task_6_statistics_count_tokens_asked_found_and_blocks_evicted(lab):
    manager = lab.KVCacheManager(num_blocks=5, block_size=4)
    for name in "ab":
        request = Request(name, prompt(10))
        admit(manager, request)
        manager.free(request)
    stats = manager.stats
    got = (stats.num_queries, stats.num_query_tokens, stats.num_hit_tokens, stats.num_evicted_blocks)
    assert got == (2, 20, 8, 0), (f"a 10-token prompt twice: (queries, tokens asked, tokens found, evicted) is {got}, "
                                  "expected (2, 20, 8, 0)")
    admit(manager, Request("c", prompt(16, 100)))
    assert manager.stats.num_evicted_blocks == 2, (f"16 other tokens fill the pool; {manager.stats.num_evicted_blocks} "
                                                   "evictions counted, expected 2, the cached blocks")


@pytest.mark.points(2)
def test_task_6_a_request_that_waits_is_counted_once(lab):
    manager = lab.KVCacheManager(num_blocks=4, block_size=4)
    a, b = Request("a", prompt(8)), Request("b", prompt(8, 100))
    admit(manager, a)
    for _ in range(5):
        admit(manager, b)
    manager.free(a)
    admit(manager, b)
    decode(manager, b, 7)
    got = manager.stats.num_queries
    assert got == 2, f"a ran, b waited five steps and ran: {got} queries counted, expected 2. Count at the first slots"


@pytest.mark.points(1)
def test_task_6_reset_is_refused_while_blocks_are_in_use(lab):
    manager = lab.KVCacheManager(num_blocks=6, block_size=4)
    a = Request("a", prompt(12))
    admit(manager, a)
    with pytest.raises(RuntimeError):
        manager.reset_prefix_cache()
    assert manager.stats.num_queries == 1, "a refused reset must leave the statistics as they were"
    manager.free(a)
    manager.reset_prefix_cache()
    assert manager.get_computed_blocks(Request("b", prompt(12))) == ([], 0), "after a reset nothing is found"
    got = manager.stats
    assert (got.num_queries, got.num_evicted_blocks) == (0, 0), f"after a reset the statistics start anew, got {got}"
