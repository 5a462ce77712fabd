"""Lab 3.2, parallel sampling. Each test checks one rule, and its failure message names the rule.

``Server`` below stands in for the rest of a server: a memory that makes the pending copies and then writes, and a fake
model whose scores are a hash of the K/V that it *reads* through the block table. If a slot holds the K/V of another
request, the model produces other tokens.
"""

import random
import zlib

import numpy as np
import pytest

from course.expecting import must_raise
from mini_vllm.request import Priority, Request, RequestStatus, SamplingParams

NUM_TOKENS_KNOWN = 50  # the fake model's vocabulary


def prompt(num_tokens, start=0):
    return [(start + i * 7) % NUM_TOKENS_KNOWN for i in range(num_tokens)]


def counts(manager):
    """Return the statistics by name."""
    stats = manager.stats
    return {name: getattr(stats, name)
            for name in ("num_queries", "num_query_tokens", "num_hit_tokens", "num_evicted_blocks")}


def ids(blocks):
    return None if blocks is None else [block.block_id for block in blocks]


def free_ids(manager):
    return ids(manager.block_pool.free_block_queue.get_all_free_blocks())


def pending(manager):
    return [(source.block_id, copy.block_id) for source, copy in manager.block_pool.pending_copies]


def ref_cnts(manager, block_ids):
    return [manager.block_pool.blocks[block_id].ref_cnt for block_id in block_ids]


def state(manager, *requests):
    """Return everything that a call must leave unchanged if it returns None or raises."""
    tables = [list(manager.get_block_ids(request.request_id)) for request in requests]
    return pool_state(manager.block_pool) | {"tables": tables, "stats": counts(manager)}


def pool_state(pool):
    return {"free queue": ids(pool.free_block_queue.get_all_free_blocks()),
            "ref_cnt": [block.ref_cnt for block in pool.blocks],
            "block_hash": [block.block_hash for block in pool.blocks],
            "pending": [(source.block_id, copy.block_id) for source, copy in pool.pending_copies]}


def assert_unchanged(manager, before, call, *requests):
    after = state(manager, *requests)
    changes = "; ".join(f"{name} was {before[name]}, is {after[name]}" for name in after if after[name] != before[name])
    assert not changes, f"{call} should change nothing, but {changes}. Do all counting and checking before any change"


def admit_child(manager, child):
    """Admit the child of a parent that holds no blocks. Its first slots are given code, not part of the task."""
    try:
        return admit(manager, child)
    except NotImplementedError:
        pytest.fail("fork() of a parent without blocks left an empty table for the child, so allocate_slots treats the "
                    "child as a request that already has slots: a request without blocks must have no entry in _tables",
                    pytrace=False)


def tables_of(manager, requests):
    return {request.request_id: list(manager.get_block_ids(request.request_id)) for request in requests}


def assert_counts(manager, requests, when):
    """Check that the ref_cnt of each block is the number of tables that contain it. No copy may be pending."""
    assert_counts_of(manager.block_pool, tables_of(manager, requests), when)


def assert_counts_of(pool, tables, when):
    for block in pool.blocks:
        num_owners = sum(table.count(block.block_id) for table in tables.values())
        assert block.ref_cnt == num_owners, (f"{when}: block {block.block_id} has ref_cnt {block.ref_cnt}, but "
                                             f"{num_owners} of the tables {tables} contain it")


def start(manager, request, num_new_tokens=None):
    """Allocate slots for the prompt, or a part of it, and advance the request as if the step had run."""
    num_new_tokens = num_new_tokens or request.num_tokens
    blocks = manager.allocate_slots(request, num_new_tokens)
    if blocks is not None:
        request.num_computed_tokens += num_new_tokens
    return blocks


def admit(manager, request):
    """Admit a waiting request as a scheduler does: look up, allocate slots, advance num_computed_tokens."""
    hits, num_cached = manager.get_computed_blocks(request)
    blocks = manager.allocate_slots(request, request.num_tokens - num_cached, hits, num_cached)
    if blocks is not None:
        request.num_computed_tokens = request.num_tokens
    return blocks


def fork(manager, parent, name):
    """Return a child that has the parent's tokens so far and shares its blocks."""
    child = Request(name, parent.prompt_token_ids)
    for token_id in parent.output_token_ids:
        child.append_output_token(token_id)
    child.num_computed_tokens = parent.num_computed_tokens
    manager.fork(parent, child)
    return child


def make_family(lab, num_tokens, num_blocks=10, num_children=1, enable_caching=False):
    """Return a manager with block size 4, a parent with a computed prompt, and its children."""
    manager = lab.KVCacheManager(num_blocks=num_blocks, block_size=4, enable_caching=enable_caching)
    parent = Request("parent", prompt(num_tokens))
    start(manager, parent)
    return manager, parent, *(fork(manager, parent, f"child {i}") for i in range(num_children))


def assert_forks(lab):
    """Check that ``fork`` shares blocks: a fork that does nothing would pass many other checks."""
    manager, *_ = make_family(lab, num_tokens=10)
    assert_shares(manager, "child 0")


def assert_goes_on(lab):
    """Check that ``allocate_slots`` works for a child: a method that does nothing would pass many other checks."""
    manager, _, child = make_family(lab, num_tokens=10)
    got = ids(manager.allocate_slots(child, 1))
    assert got == [4], (f"the child's 11th token belongs in block 3, which is shared: allocate_slots(child, 1) "
                        f"returned {got}, expected [4], the copy")


def assert_shares(manager, name):
    got = manager.get_block_ids(name)
    assert got == [1, 2, 3], (f"the parent's 10 tokens are in the blocks [1, 2, 3]; after fork() the child's table is "
                              f"{got}, expected the same blocks")


# ---- the rest of a server


def kv_of(token_ids):
    """Return the K/V at each position: a number that depends on all tokens up to that position."""
    numbers, number = [], 0
    for token_id in token_ids:
        number = zlib.crc32(token_id.to_bytes(4, "little"), number)
        numbers.append(number)
    return numbers


def scores(keys_values):
    """Return the fake model's score of every token, computed from the K/V of the context."""
    digest = zlib.crc32(np.array(keys_values, dtype=np.int64).tobytes())
    return np.random.default_rng(digest).random(NUM_TOKENS_KNOWN)


class Server:
    def __init__(self, lab, num_blocks, block_size, enable_caching=False):
        self.manager = lab.KVCacheManager(num_blocks=num_blocks, block_size=block_size, enable_caching=enable_caching)
        self.pool = self.manager.block_pool
        self.size = block_size
        self.memory = np.full((num_blocks, block_size), -1, dtype=np.int64)
        self.requests = []
        #: Request id → its table when it was last read.
        self.tables = {}
        self.num_copies = self.max_blocks_used = 0

    def start(self, name, token_ids):
        request = Request(name, token_ids)
        self.requests.append(request)
        self.step({request: len(token_ids)})
        return request

    def fork(self, parent, name):
        self.requests.append(fork(self.manager, parent, name))
        self.look(self.requests[-1])
        return self.requests[-1]

    def end(self, request):
        self.requests.remove(request)
        self.manager.free(request)
        self.tables.pop(request.request_id, None)

    def look(self, request):
        self.tables[request.request_id] = list(self.manager.get_block_ids(request.request_id))

    def state(self):
        """Return the same as the function ``state``, with the tables as they were last read."""
        tables = [self.tables.get(request.request_id, []) for request in self.requests]
        return pool_state(self.pool) | {"tables": tables, "stats": counts(self.manager)}

    def step(self, num_new_tokens):
        """Allocate slots for all requests, then run the step."""
        for request, count in num_new_tokens.items():
            blocks = self.manager.allocate_slots(request, count)
            assert blocks is not None, (f"request {request.request_id} has {request.num_computed_tokens} computed "
                                        f"tokens and needs {count} more slots: allocate_slots returned None with "
                                        f"{len(free_ids(self.manager))} blocks free. Either blocks leak, or blocks are "
                                        "forked without need")
        self.run(num_new_tokens)

    def run(self, num_new_tokens):
        pool = self.pool
        for source, copy in pool.pending_copies[::-1]:  # last one first, because no order is promised
            self.memory[copy.block_id] = self.memory[source.block_id]
        self.num_copies += len(pool.pending_copies)
        for request, count in num_new_tokens.items():
            self.look(request)
            table, first = self.tables[request.request_id], request.num_computed_tokens
            numbers = kv_of(request.all_token_ids[:first + count])
            for p in range(first, first + count):
                block = pool.blocks[table[p // self.size]]
                # Another request of the same step may have found an indexed block: all requests write before any reads.
                assert block.ref_cnt == 1 or block.block_hash is not None, (
                    f"request {request.request_id} writes position {p} into block {block.block_id}, whose ref_cnt is "
                    f"{block.ref_cnt}: other requests read this block")
                self.memory[block.block_id, p % self.size] = numbers[p]
            request.num_computed_tokens += count
        self.manager.finish_step()
        self.max_blocks_used = max(self.max_blocks_used, pool.num_blocks - 1 - pool.get_num_free_blocks())

    def read(self, request):
        return self.read_through(self.manager.get_block_ids(request.request_id), request)

    def read_through(self, table, request):
        return self.memory[table].ravel()[:request.num_computed_tokens].tolist()

    def assert_contents(self, when):
        """Check that each request reads its own K/V. Return the tables by request id."""
        tables = self.tables = tables_of(self.manager, self.requests)
        for request in self.requests:
            table = tables[request.request_id]
            got = self.read_through(table, request)
            expected = kv_of(request.all_token_ids[:request.num_computed_tokens])
            wrong = [p for p, (a, b) in enumerate(zip(got, expected)) if a != b]
            assert got == expected, (f"{when}: request {request.request_id}, with the table {table}, reads the K/V of "
                                     f"other tokens at positions {wrong[:8]}")
        return tables

    def assert_index(self, when):
        """Check that each indexed block holds the K/V of its key's tokens, computed after the ancestors' tokens."""
        for block in self.pool.blocks:
            tokens, key = [], block.block_hash
            while key is not None:
                tokens, key = [*key.token_ids, *tokens], key.parent
            got, expected = self.memory[block.block_id].tolist(), kv_of(tokens)[-self.size:]
            assert not tokens or got == expected, (
                f"{when}: block {block.block_id} is indexed as the last block of the tokens {tokens}, but it holds the "
                "K/V of other tokens. Was the source of a copy indexed instead of the copy?")


# ---- Task 1


@pytest.mark.points(3)
def test_task_1_a_child_shares_every_block_with_the_tail(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    got = manager.get_block_ids("child 0")
    assert got == [1, 2, 3], (f"the parent's 10 tokens are in blocks 1, 2, 3; the child's table is {got}, expected "
                              "[1, 2, 3]: the half-filled block 3 is also shared")
    got = ref_cnts(manager, [1, 2, 3])
    assert got == [2, 2, 2], f"two tables contain the blocks 1, 2, 3, but their ref_cnt is {got}, expected [2, 2, 2]"
    assert_counts(manager, [parent, child], "after fork()")


@pytest.mark.points(2)
def test_task_1_forking_takes_no_block_and_copies_nothing(lab):
    manager, parent, *children = make_family(lab, num_tokens=10, num_blocks=4, num_children=3)
    got = (free_ids(manager), pending(manager), ref_cnts(manager, [1, 2, 3]))
    assert got == ([], [], [4, 4, 4]), (f"the parent holds all three blocks of the pool and is forked three times: "
                                        f"(free, pending, ref_cnt) is {got}, expected ([], [], [4, 4, 4]). A copy is "
                                        "needed only when a request writes")


@pytest.mark.points(2)
def test_task_1_a_child_that_holds_blocks_is_refused(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    other, waiting = Request("other", prompt(5)), Request("waiting", prompt(10))
    start(manager, other)
    family = (parent, child, other, waiting)
    before = state(manager, *family)
    for source, bad in ((parent, other), (parent, child), (parent, parent), (waiting, child)):
        call = f"fork({source.request_id!r}, {bad.request_id!r})"
        with must_raise(RuntimeError, call, f"{bad.request_id!r} already holds blocks"):
            manager.fork(source, bad)
        assert_unchanged(manager, before, call, *family)


@pytest.mark.points(1)
def test_task_1_blocks_that_are_not_written_yet_are_shared_too(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    parent = Request("parent", prompt(10))
    manager.allocate_slots(parent, 13)  # slots 10 to 12 are for tokens that are not known yet
    parent.num_computed_tokens = 10
    fork(manager, parent, "child")
    got = manager.get_block_ids("child"), ref_cnts(manager, [1, 2, 3, 4])
    assert got == ([1, 2, 3, 4], [2, 2, 2, 2]), (
        f"the parent has 10 tokens and 13 slots, in the blocks 1 to 4; after fork(), (the child's table, ref_cnt of "
        f"blocks 1 to 4) is {got}, expected ([1, 2, 3, 4], [2, 2, 2, 2]): every block of the table is shared")


@pytest.mark.points(1)
def test_task_1_a_child_may_have_more_tokens_than_its_parent(lab):
    manager, parent = make_family(lab, num_tokens=10, num_children=0)
    manager.fork(parent, Request("child", [*prompt(10), 7, 8, 9]))
    got = manager.get_block_ids("child")
    assert got == [1, 2, 3], (f"the child's 13 tokens begin with the parent's 10; after fork() its table is {got}, "
                              "expected [1, 2, 3]: only the computed tokens must agree")


@pytest.mark.points(1)
def test_task_1_a_parent_without_blocks_has_a_child_without_blocks(lab):
    assert_forks(lab)
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    parent = Request("parent", prompt(6))
    child = fork(manager, parent, "child")
    got = manager.get_block_ids("child")
    assert got == [], f"the parent holds no blocks; after fork() the child's table is {got}, expected []"
    got = ids(admit_child(manager, child)), manager.stats.num_queries
    assert got == ([1, 2], 1), (f"the child of a waiting parent asks for 6 slots: (newly taken blocks, queries) is "
                                f"{got}, expected ([1, 2], 1), as for any request that gets its first slots. Did "
                                "fork() leave an empty table? A request without blocks must have no entry in _tables")


@pytest.mark.points(1)
def test_task_1_the_child_of_a_waiting_parent_asks_the_cache_itself(lab):
    assert_forks(lab)
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("first", prompt(10)))
    child = fork(manager, Request("waiting", prompt(10)), "child")
    admit_child(manager, child)
    got = manager.get_block_ids("child"), manager.stats.num_queries, manager.stats.num_hit_tokens
    assert got == ([1, 2, 4], 2, 8), (f"the child of a request without blocks is admitted like any other request: "
                                      f"(table, queries, tokens found) is {got}, expected ([1, 2, 4], 2, 8). Did "
                                      "fork() leave an empty table? A request without blocks must have no entry in "
                                      "_tables")


@pytest.mark.points(1)
def test_task_1_fork_writes_neither_request(lab):
    manager, parent, _ = make_family(lab, num_tokens=10)
    parent.append_output_token(7)  # so that the two requests differ in every field that could be copied
    parent.priority, parent.arrival_time, parent.status = Priority.HIGH, 1.0, RequestStatus.RUNNING
    parent.num_cached_tokens, parent.num_preemptions, parent.num_sequences = 8, 1, 2
    child = Request("c", prompt(10), SamplingParams(seed=1))
    before = [{name: str(value) for name, value in vars(request).items()} for request in (parent, child)]
    manager.fork(parent, child)
    assert_shares(manager, "c")
    changes = [f"{who}.{name} was {was[name]}, is {value}" for who, was, request in zip(
        ("parent", "child"), before, (parent, child)) for name, value in vars(request).items()
        if was.get(name) != str(value)]
    assert not changes, (f"fork(parent, child) should change neither request, but {'; '.join(changes)}. Only the "
                         "scheduler changes requests")


@pytest.mark.points(1)
def test_task_1_a_fork_is_no_query(lab):
    manager, parent = make_family(lab, num_tokens=10, num_children=0, enable_caching=True)
    before = counts(manager)
    fork(manager, parent, "child")
    assert_shares(manager, "child")
    assert counts(manager) == before, (f"fork() changed the statistics from {before} to {counts(manager)}: a child "
                                       "does not query the cache, because it has its parent's blocks")


@pytest.mark.points(2)
def test_task_1_found_blocks_are_shared_with_the_child_as_any(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    first, second = Request("first", prompt(10)), Request("second", prompt(10))
    admit(manager, first)
    admit(manager, second)  # finds blocks 1 and 2
    child = fork(manager, second, "child")
    got = manager.get_block_ids("child"), ref_cnts(manager, [1, 2, 3, 4])
    assert got == ([1, 2, 4], [3, 3, 1, 2]), (
        f"'second' found blocks 1 and 2 of 'first' and took block 4; after its fork, (the child's table, ref_cnt of "
        f"blocks 1 to 4) is {got}, expected ([1, 2, 4], [3, 3, 1, 2])")
    assert_counts(manager, [first, second, child], "after a hit and a fork")


@pytest.mark.points(1)
def test_task_1_the_last_of_a_family_gives_the_tail_back_first(lab):
    manager, parent, child = make_family(lab, num_tokens=12, num_blocks=6)
    manager.free(parent)
    assert free_ids(manager) == [4, 5], (f"the child still holds the blocks 1, 2, 3; after free(parent) the queue is "
                                         f"{free_ids(manager)}, expected [4, 5]")
    manager.free(child)
    got = free_ids(manager)
    assert got == [4, 5, 3, 2, 1], (f"the child's table is [1, 2, 3]; after free(child) the queue is {got}, expected "
                                    "[4, 5, 3, 2, 1]")
    manager.free(child)
    assert free_ids(manager) == got, (f"after a second free(child) the queue is {free_ids(manager)}, expected {got} as "
                                      "before: the child holds no blocks")


# ---- Task 2


@pytest.mark.points(1)
def test_task_2_a_private_table_is_written_in_place(lab):
    manager, parent = make_family(lab, num_tokens=6, num_children=0)
    got = []
    for count in (1, 1, 1, 5):
        got.append(ids(manager.allocate_slots(parent, count)))
        parent.num_computed_tokens += count
    assert got == [[], [], [3], [4]], (f"a request without a fork has 6 tokens and gets 1, 1, 1 and 5 more at block "
                                       f"size 4: the newly taken blocks are {got}, expected [[], [], [3], [4]], as in "
                                       "lab 2.2")
    assert pending(manager) == [], f"no block is shared, but the copies {pending(manager)} are pending"


@pytest.mark.points(1)
def test_task_2_an_indexed_block_that_is_private_is_written_in_place(lab):
    """Check that a private block is not copied because it is indexed.

    Full blocks are indexed when their slots are allocated. After a step that was cut short, they are written again.
    """
    assert_goes_on(lab)
    manager = lab.KVCacheManager(num_blocks=4, block_size=4)
    request = Request("parent", prompt(10))
    got = ids(manager.allocate_slots(request, 10))
    assert got == [1, 2, 3], f"10 slots at block size 4: allocate_slots returned {got}, expected [1, 2, 3]"
    request.num_computed_tokens = 5
    got = ids(manager.allocate_slots(request, 5)), pending(manager)
    assert got == ([], []), (f"a request has 10 slots in the blocks 1, 2, 3, with 5 tokens computed, and no block is "
                             f"free: (result of allocate_slots(parent, 5), pending copies) is {got}, expected "
                             "([], []). Block 2 is in the index, but it has no other owner")


@pytest.mark.points(3)
def test_task_2_the_first_write_into_a_shared_tail_forks_it(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    taken = ids(manager.allocate_slots(child, 1))
    got = manager.get_block_ids("child 0")
    assert got == [1, 2, 4], (f"the child's token 10 belongs in the shared block 3: after allocate_slots its table is "
                              f"{got}, expected [1, 2, 4]. Only the block that is written is copied")
    got = manager.get_block_ids("parent")
    assert got == [1, 2, 3], (f"the child got block 4 in place of block 3, and the parent's table is {got}, expected "
                              "[1, 2, 3] as before. Do both use the same list? fork must give the child a separate "
                              "list (task 1)")
    assert pending(manager) == [(3, 4)], f"the copies {pending(manager)} are pending, expected [(3, 4)]"
    assert taken == [4], f"allocate_slots returned {taken}, expected [4]: the copy was newly taken from the pool"
    assert_counts(manager, [parent, child], "after the child's write")


@pytest.mark.points(2)
def test_task_2_the_last_owner_of_a_tail_writes_in_place(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    taken = ids(manager.allocate_slots(child, 1)), ids(manager.allocate_slots(parent, 1))
    assert taken == ([4], []), (f"the child writes first and gets block 4 as a copy of block 3; then the parent "
                                f"writes: the newly taken blocks are {taken}, expected ([4], []). By then the parent "
                                "is the only owner of block 3")
    child.num_computed_tokens += 1
    got = ids(manager.allocate_slots(child, 1))
    assert got == [], (f"the child's tail is private now: allocate_slots for its second token returned {got}, expected "
                       "[]")


@pytest.mark.points(2)
def test_task_2_at_a_block_boundary_nothing_is_copied(lab):
    manager, parent, child = make_family(lab, num_tokens=8)
    taken = ids(manager.allocate_slots(child, 1)), ids(manager.allocate_slots(parent, 1))
    assert taken == ([3], [4]), (f"8 tokens fill blocks 1 and 2; then child and parent each write token 8: the newly "
                                 f"taken blocks are {taken}, expected ([3], [4]), one fresh block each")
    assert pending(manager) == [], (f"the copies {pending(manager)} are pending, expected none: the new tokens are "
                                    "written after the shared blocks, not into them")
    assert_counts(manager, [parent, child], "after one token each")


@pytest.mark.points(2)
def test_task_2_forked_blocks_come_before_fresh_ones(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    taken, table = ids(manager.allocate_slots(child, 7)), manager.get_block_ids("child 0")
    assert len(taken) == 3 and table == [1, 2, *taken], (
        f"the child writes positions 10 to 16: the newly taken blocks are {taken} and the table is {table}, expected "
        "three new blocks, and a table of 1, 2 and these three in the same order: first the copy of block 3, then two "
        "fresh blocks")
    assert pending(manager) == [(3, taken[0])], (f"the copies {pending(manager)} are pending, expected "
                                                 f"[(3, {taken[0]})]: the first of the newly taken blocks {taken} is "
                                                 "the copy of block 3")


@pytest.mark.points(2)
def test_task_2_every_shared_block_that_is_written_is_forked(lab):
    """Check a step that writes into several shared blocks: slots may exist before their tokens are computed."""
    for count, written in ((5, [2, 3]), (3, [2])):  # up to position 9, and up to 7, the last of the second block
        manager = lab.KVCacheManager(num_blocks=12, block_size=4, enable_caching=False)
        parent = Request("parent", prompt(14))
        manager.allocate_slots(parent, 14)
        parent.num_computed_tokens = 5  # the step was cut short; blocks 1 to 4 exist, and two of them contain tokens
        child = fork(manager, parent, "child")
        taken, table = ids(manager.allocate_slots(child, count)) or [], manager.get_block_ids("child")
        case = (f"the blocks 1, 2, 3, 4 are shared, and the child writes positions 5 to {4 + count}, in the blocks "
                f"{written}: the newly taken blocks are {taken}")
        assert len(taken) == len(written) and table == [1, *taken, *range(2 + len(written), 5)], (
            f"{case} and the table is {table}, expected {len(written)} new blocks in place of {written}. The other "
            "blocks are not written now, so they stay shared")
        expected = [*zip(written, taken)]
        assert sorted(pending(manager)) == expected, (f"{case} and the pending copies are {pending(manager)}, expected "
                                                      f"{expected}")


@pytest.mark.points(1)
def test_task_2_a_shared_block_is_forked_though_it_is_indexed(lab):
    for num_slots, num_copies in ((10, 2), (8, 1)):  # block 2, full and indexed, is in the middle, and then the last
        manager = lab.KVCacheManager(num_blocks=8, block_size=4)
        parent = Request("parent", prompt(num_slots))
        manager.allocate_slots(parent, num_slots)  # blocks 1 and 2 are in the index from now on
        parent.num_computed_tokens = 5  # the step was cut short
        child = Request("other tokens", [*prompt(5), 1, 2, 3, 4, 5][:num_slots])
        child.num_computed_tokens = 5
        manager.fork(parent, child)
        taken, table = ids(manager.allocate_slots(child, num_slots - 5)), manager.get_block_ids("other tokens")
        assert taken and len(taken) == num_copies and table == [1, *taken], (
            f"the parent has {num_slots} slots in the blocks {manager.get_block_ids('parent')} and 5 computed tokens; "
            f"a child with other tokens writes positions 5 to {num_slots - 1}: the newly taken blocks are {taken} and "
            f"the table is {table}, expected a table of block 1 and {num_copies} new blocks. The parent reads block "
            "2, whether or not it is in the index")


@pytest.mark.points(1)
def test_task_2_blocks_it_has_already_are_no_room(lab):
    manager, parent = make_family(lab, num_tokens=14, num_blocks=5, num_children=0)
    parent.num_computed_tokens = 5  # the step was cut short; blocks 1 to 4 exist
    child = fork(manager, parent, "child")
    before = state(manager, parent, child)
    got = manager.allocate_slots(child, 1)
    assert got is None, (f"the child writes position 5, in the second of four shared blocks, and no block is free: "
                         f"allocate_slots returned {ids(got)}, expected None. Its table is longer than 6 tokens need, "
                         "but a copy is still needed")
    assert_unchanged(manager, before, "allocate_slots(child, 1), which returned None,", parent, child)


@pytest.mark.points(3)
def test_task_2_a_fork_counts_as_room(lab):
    manager, parent, child = make_family(lab, num_tokens=10, num_blocks=5)
    before = state(manager, parent, child)
    for count, why in ((3, "a copy of block 3 and a fresh block"), (7, "a copy of block 3 and two fresh blocks")):
        got = manager.allocate_slots(child, count)
        assert got is None, (f"{count} tokens need {why}, but 1 block is free: allocate_slots returned {ids(got)}, "
                             "expected None")
        assert_unchanged(manager, before, f"allocate_slots(child, {count}), which returned None,", parent, child)
    got = ids(manager.allocate_slots(child, 2))
    assert got == [4], (f"2 tokens need only the copy of block 3, and 1 block is free: allocate_slots returned {got}, "
                        "expected [4]")


@pytest.mark.points(2)
def test_task_2_several_copies_and_a_fresh_block_need_just_their_room(lab):
    for num_free in (3, 4):
        manager = lab.KVCacheManager(num_blocks=5 + num_free, block_size=4, enable_caching=False)
        parent = Request("parent", prompt(14))
        manager.allocate_slots(parent, 14)
        parent.num_computed_tokens = 5  # the step was cut short; blocks 1 to 4 exist
        child = fork(manager, parent, "child")
        before = state(manager, parent, child)
        taken, table = ids(manager.allocate_slots(child, 12)), manager.get_block_ids("child")
        case = (f"the child writes positions 5 to 16, which needs copies of the shared blocks 2, 3 and 4 and a fresh "
                f"block, and {num_free} blocks are free: the newly taken blocks are {taken}")
        if num_free == 3:
            assert taken is None, f"{case}, expected None"
            assert_unchanged(manager, before, "allocate_slots(child, 12), which returned None,", parent, child)
        else:
            assert taken is not None, f"{case}, expected four blocks: they fit"
            assert len(taken) == 4 and table == [1, *taken], (
                f"{case} and the table is {table}, expected four new blocks, and a table of 1 and these four: each of "
                "the three shared blocks is written")
            expected = [*zip((2, 3, 4), taken)]
            assert sorted(pending(manager)) == expected, (f"{case} and the pending copies are {pending(manager)}, "
                                                          f"expected {expected}")


@pytest.mark.points(2)
def test_task_2_no_room_to_fork_is_none_and_changes_nothing(lab):
    manager, parent, child = make_family(lab, num_tokens=10, num_blocks=4)
    before = state(manager, parent, child)
    got = manager.allocate_slots(child, 1)
    assert got is None, (f"block 3 is shared and no block is free for a copy: allocate_slots returned {ids(got)}, "
                         "expected None")
    assert_unchanged(manager, before, "allocate_slots(child, 1), which returned None,", parent, child)


@pytest.mark.points(2)
def test_task_2_tables_of_parent_and_child_are_two_lists(lab):
    family = ("parent", "child 0")
    for writer, reader in (family, family[::-1]):
        manager, *requests = make_family(lab, num_tokens=10)
        assert_shares(manager, "child 0")
        before = manager.get_block_ids(reader)
        manager.allocate_slots(requests[family.index(writer)], 6)
        got = manager.get_block_ids(reader)
        assert got == before, (f"{writer!r} got 6 more tokens after the fork: the table of {reader!r} was {before}, "
                               f"and is now {got}. A change to one table must not affect the other: fork copies the "
                               "list (task 1)")
        assert_counts(manager, requests, f"after the tokens of {writer!r}")


@pytest.mark.points(4)
@pytest.mark.parametrize("num_prompt_tokens, num_own_tokens, num_blocks, num_copies", [
    (512, 32, 16 + 8 * 1, 0),  # ends at a block boundary: 16 shared blocks, then one block per sample
    (500, 32, 15 + 8 * 2, 7),  # a tail of 20 tokens: 15 shared blocks, then a tail and one more block per sample
    (481, 24, 15 + 8 * 1, 7),  # a tail of 1 token
])
def test_task_2_eight_samples_store_the_prompt_once(lab, num_prompt_tokens, num_own_tokens, num_blocks, num_copies):
    server = Server(lab, num_blocks=200, block_size=32)
    first = server.start("sample 0", prompt(num_prompt_tokens))
    samples = [first] + [server.fork(first, f"sample {i}") for i in range(1, 8)]
    for _ in range(num_own_tokens):
        for i, sample in enumerate(samples):  # sample i always takes the token with the i-th best score
            sample.append_output_token(int(np.argsort(scores(server.read(sample)))[-1 - i]))
        server.step({sample: 1 for sample in samples})
    case = f"8 samples of a {num_prompt_tokens}-token prompt, {num_own_tokens} tokens each, block size 32"
    server.assert_contents(case)
    for i, sample in enumerate(samples):
        alone = prompt(num_prompt_tokens)
        while len(alone) < num_prompt_tokens + num_own_tokens:
            alone.append(int(np.argsort(scores(kv_of(alone)))[-1 - i]))
        assert sample.all_token_ids == alone, (f"{case}: sample {i} generated {sample.output_token_ids}, but "
                                               f"alone it generates {alone[num_prompt_tokens:]}")
    got, naive = server.max_blocks_used, 8 * -(-(num_prompt_tokens + num_own_tokens) // 32)
    assert got == num_blocks, (f"{case}: {got} blocks are in use, expected {num_blocks}. With a private copy of the "
                               f"prompt per sample it would be {naive}")
    assert server.num_copies == num_copies, (f"{case}: {server.num_copies} blocks were copied, expected {num_copies}: "
                                             "a half-filled tail is copied for every sample except the last one to "
                                             "write, and a full block is never copied")


# ---- Task 2, together with the prefix cache


@pytest.mark.points(2)
def test_task_2_the_first_slots_are_the_bases_hits_and_all(lab):
    manager, parent, child = make_family(lab, num_tokens=10, enable_caching=True)
    other = Request("other", prompt(10))
    hits, num_cached = manager.get_computed_blocks(other)
    assert (ids(hits), num_cached) == ([1, 2], 8), (f"the prompt fills blocks 1 and 2 and half of block 3: a lookup "
                                                    f"found {ids(hits)} with {num_cached} tokens, expected [1, 2] with "
                                                    "8")
    child.append_output_token(7)
    taken = ids(manager.allocate_slots(child, 1)), ids(manager.allocate_slots(other, 2, hits, num_cached))
    assert taken == ([4], [5]), (f"the child's token 10 needs a copy of block 3, and tokens 8 and 9 of the other "
                                 f"request need a fresh block: the newly taken blocks are {taken}, expected ([4], [5])")
    got = ref_cnts(manager, [1, 2, 3, 4, 5])
    assert got == [3, 3, 1, 1, 1], (f"blocks 1 and 2 are in three tables, blocks 3 to 5 in one: their ref_cnt is "
                                    f"{got}, expected [3, 3, 1, 1, 1]")


@pytest.mark.points(3)
def test_task_2_a_copy_is_indexed_not_what_it_was_copied_from(lab):
    manager, parent, child = make_family(lab, num_tokens=10, enable_caching=True)
    for token_id in (7, 8):
        child.append_output_token(token_id)
    manager.allocate_slots(child, 2)  # block 3 is copied into 4, and tokens 10 and 11 fill the copy
    got = ids(manager.get_computed_blocks(Request("next turn", [*child.all_token_ids, 9]))[0])
    assert got == [1, 2, 4], (f"the child's 12 tokens are in the blocks 1, 2, 4, but a lookup of these tokens finds "
                              f"{got}. Fork first, so that the base indexes the copy in the child's table")
    hashed = manager.block_pool.blocks[3].block_hash
    assert hashed is None, (f"the parent's block 3 holds two tokens, but is indexed as {hashed!r}: the child's tokens "
                            "were never in this block")


@pytest.mark.points(2)
def test_task_2_a_found_block_is_never_copied(lab):
    manager = lab.KVCacheManager(num_blocks=12, block_size=4)
    first, second = Request("first", prompt(10)), Request("second", prompt(10))
    admit(manager, first)
    admit(manager, second)
    for request in (first, second):
        for token_id in range(6):
            request.append_output_token(token_id)
            manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
    got = pending(manager), ref_cnts(manager, [1, 2])
    assert got == ([], [2, 2]), (f"two requests share blocks 1 and 2 through a cache hit and decode 6 tokens each: "
                                 f"(copies, ref_cnt of blocks 1 and 2) is {got}, expected ([], [2, 2]): no request "
                                 "writes into a block that was found")


@pytest.mark.points(2)
def test_task_2_hits_for_a_child_are_refused(lab):
    assert_goes_on(lab)
    manager, parent, child = make_family(lab, num_tokens=10, enable_caching=True)
    hits, num_cached = manager.get_computed_blocks(child)
    before = state(manager, parent, child)
    call = "allocate_slots(child, 1, blocks 1 and 2 as hits), where the child already has a table,"
    with must_raise(RuntimeError, call, "hits are allowed only with a request's first slots"):
        manager.allocate_slots(child, 1, hits, num_cached)
    assert_unchanged(manager, before, call, parent, child)


@pytest.mark.points(2)
def test_task_2_only_first_slots_count_as_a_query(lab):
    manager, parent, child = make_family(lab, num_tokens=10, num_blocks=5, enable_caching=True)
    got = ids(manager.allocate_slots(child, 7))
    assert got is None, (f"allocate_slots(child, 7) needs a copy and two fresh blocks, but one block is free: it "
                         f"returned {got}, expected None")
    manager.allocate_slots(child, 1)
    other = Request("other", prompt(9))
    admit(manager, other)
    got = (manager.stats.num_queries, manager.stats.num_query_tokens, manager.stats.num_hit_tokens)
    assert got == (1, 10, 0), (f"the parent queried 10 tokens and found 0, the child got a copy, and another request "
                               f"did not fit: (queries, tokens queried, tokens found) is {got}, expected (1, 10, 0)")
    manager.free(parent)
    manager.finish_step()
    admit(manager, other)
    got = (manager.stats.num_queries, manager.stats.num_query_tokens, manager.stats.num_hit_tokens)
    assert got == (2, 19, 8), (f"then the parent ends, and the other request finds 8 tokens in the child's blocks: "
                               f"(queries, tokens queried, tokens found) is {got}, expected (2, 19, 8)")


# ---- Task 2, together with the base's free


@pytest.mark.points(3)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_task_2_a_family_ends_in_any_order(lab, order):
    manager, *family = make_family(lab, num_tokens=10, num_children=2)
    for request in family:
        start(manager, request, 3)
    manager.block_pool.finish_copies()
    tables = [manager.get_block_ids(request.request_id) for request in family]
    living = list(family)
    for index in order:
        manager.free(family[index])
        living.remove(family[index])
        got = manager.get_block_ids(family[index].request_id)
        assert got == [], f"after free({family[index].request_id!r}) its table is {got}, expected []"
        assert_counts(manager, living, f"the tables {tables} are freed in the order {order}; after table {index}")
    got = manager.block_pool.get_num_free_blocks()
    assert got == 9, f"all three requests have ended, but {got} blocks are free, expected 9"


@pytest.mark.points(3)
def test_task_2_a_child_reads_on_when_its_parent_has_ended(lab):
    server = Server(lab, num_blocks=7, block_size=4)
    parent = server.start("parent", prompt(10))
    child = server.fork(parent, "child")
    server.end(parent)
    got = ref_cnts(server.manager, [1, 2, 3])
    assert got == [1, 1, 1], (f"the child holds blocks 1, 2, 3, and the parent has ended: the ref_cnt of the blocks is "
                              f"{got}, expected [1, 1, 1]")
    server.start("other", prompt(12, 3))
    child.append_output_token(7)
    server.step({child: 1})
    server.assert_contents("the parent ended, another request arrived, and the child wrote a token")
    assert server.num_copies == 0, (f"the child was the only owner of its tail, but {server.num_copies} blocks were "
                                    "copied")


@pytest.mark.points(3)
@pytest.mark.parametrize("who_ends", ["parent", "child"])
def test_task_2_ending_while_a_copy_is_pending_does_no_harm(lab, who_ends):
    server = Server(lab, num_blocks=7, block_size=4)
    parent = server.start("parent", prompt(10))
    child = server.fork(parent, "child")
    child.append_output_token(7)
    server.manager.allocate_slots(child, 1)  # the copy of block 3 into block 4 is pending now
    gone, stays = (parent, child) if who_ends == "parent" else (child, parent)
    server.end(gone)
    other = Request("other", prompt(12, 3))
    got = ids(server.manager.allocate_slots(other, 12))
    assert got is None, (f"until the copy (3, 4) is made, 2 blocks are free, but 3 are needed: allocate_slots returned "
                         f"{got}, expected None. free() must let free_blocks decide when a block becomes free")
    server.run({child: 1} if stays is child else {})
    server.assert_contents(f"the {who_ends} ended while the copy of the tail was pending")
    server.end(stays)
    got = free_ids(server.manager)
    assert len(got) == 6, f"all requests have ended, and the free queue is {got}, expected all 6 blocks"


@pytest.mark.points(1)
def test_task_2_a_block_that_a_copy_holds_is_shared_as_any(lab):
    manager = lab.KVCacheManager(num_blocks=8, block_size=4)
    parent = Request("parent", prompt(8))
    manager.allocate_slots(parent, 8)  # blocks 1 and 2 are in the index from now on
    parent.num_computed_tokens = 5  # the step was cut short
    child = Request("other tokens", [*prompt(5), 1, 2, 3])
    child.num_computed_tokens = 5
    manager.fork(parent, child)
    manager.allocate_slots(child, 3)  # the copy of block 2 is pending
    manager.free(parent)  # block 2 has no owner now, and the copy holds it
    found = Request("found", [*prompt(8), 9])
    admit(manager, found)
    fork(manager, found, "its child")
    got = manager.get_block_ids("its child")[:2], ref_cnts(manager, [1, 2])
    assert got == ([1, 2], [3, 3]), (
        f"block 2 is kept for a pending copy; a request finds it, and is then forked: (the first two blocks of the "
        f"child, ref_cnt of blocks 1 and 2) is {got}, expected ([1, 2], [3, 3]). Block 1 is in three tables; block 2 "
        "is in two, and the copy holds one reference to it")


@pytest.mark.points(1)
def test_task_2_a_name_can_be_used_again(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    manager.free(child)
    child = fork(manager, parent, "child 0")
    got = ref_cnts(manager, [1, 2, 3])
    assert got == [2, 2, 2], f"a child was forked, freed and forked again: ref_cnt is {got}, expected [2, 2, 2]"
    assert_counts(manager, [parent, child], "after the second fork()")


def best_beams(candidates, width):
    """Return the best continuations as (total score, index of beam, token); in ties the smaller index or token wins."""
    return sorted(candidates, key=lambda c: (-c[0], c[1], c[2]))[:width]


def search_alone(token_ids, width, num_steps):
    """Run a beam search on lists of tokens: nothing is shared, so sharing cannot go wrong."""
    beams = [(0.0, list(token_ids))]
    for _ in range(num_steps):
        tables = [scores(kv_of(tokens)) for _, tokens in beams]
        best = best_beams([(beams[i][0] + table[token], i, token) for i, table in enumerate(tables)
                           for token in np.argsort(table)[-width:].tolist()], width)
        beams = [(total, beams[i][1] + [token]) for total, i, token in best]
    return [tokens for _, tokens in beams]


@pytest.mark.points(4)
@pytest.mark.parametrize("block_size", [4, 16])
def test_task_2_beam_search_forks_and_drops(lab, block_size):
    """Run a beam search: fork each beam that continues twice, and free each beam that does not continue."""
    width, num_steps, num_prompt_tokens = 4, 40, 70
    # Room for the prompt once, the tokens of four beams, and four copies, but not for one leaked block per step.
    num_blocks = 1 + num_prompt_tokens // block_size + width * (num_steps // block_size + 3)
    server = Server(lab, num_blocks, block_size)
    beams = [(0.0, server.start("root", prompt(num_prompt_tokens)))]
    num_forks = num_naive_copies = num_dropped = 0
    for step in range(num_steps):
        tables = [scores(server.read(request)) for _, request in beams]
        best = best_beams([(beams[i][0] + table[token], i, token) for i, table in enumerate(tables)
                           for token in np.argsort(table)[-width:].tolist()], width)
        children, writers = [], {}
        for total, i, token in best:
            parent = beams[i][1]
            if parent in writers:  # the parent already has a continuation
                num_naive_copies += len(server.manager.get_block_ids(parent.request_id))
                request = server.fork(parent, f"{step}-{len(children)}")
                num_forks += 1
            else:
                request = parent
            writers[request] = 1
            children.append((total, request, token))
        for _, request in beams:
            if request not in writers:
                server.end(request)
                num_dropped += 1
        for _, request, token in children:
            request.append_output_token(token)
        server.step(writers)
        tables = server.assert_contents(f"beam search, after step {step}")
        assert_counts_of(server.pool, tables, f"beam search, after step {step}")
        beams = [(total, request) for total, request, _ in children]
    got, expected = [request.all_token_ids for _, request in beams], search_alone(prompt(num_prompt_tokens), 4, 40)
    assert got == expected, (f"the last tokens of the beams are {[tokens[-5:] for tokens in got]}, but a search that "
                             f"shares nothing gives {[tokens[-5:] for tokens in expected]}")
    assert num_dropped >= 20, f"{num_dropped} beams were dropped, but this test should drop at least 20"
    assert server.num_copies <= num_forks, (f"{num_forks} forks copied {server.num_copies} blocks, but at most one "
                                            "copy per fork is needed. Copying whole tables would take "
                                            f"{num_naive_copies}")
    for _, request in beams:
        server.end(request)
    got = server.manager.block_pool.get_num_free_blocks()
    assert got == num_blocks - 1, f"the search is over, but only {got} of {num_blocks - 1} blocks are free"


@pytest.mark.points(4)
@pytest.mark.parametrize("enable_caching", [False, True])
def test_task_2_random_families_read_back_their_own_tokens(lab, enable_caching):
    """Run steps like a server: fork, end, look up, allocate slots (which may fail), copy, write and read back."""
    num_found = 0  # the total number of tokens found in the cache
    for seed in range(6):
        rng = random.Random(seed)
        size = rng.randint(1, 5)
        server = Server(lab, rng.randint(4, 12), size, enable_caching)
        manager = server.manager
        for step in range(25):
            if rng.random() < 0.4:
                num_tokens = rng.randint(1, 3 * size)
                tokens = [rng.randrange(50) for _ in range(num_tokens)]
                if enable_caching and rng.random() < 0.8:
                    tokens[:-1] = prompt(num_tokens - 1)  # most prompts begin with the same tokens
                server.requests.append(Request(f"{seed}-{step}", tokens))
            if server.requests and rng.random() < 0.3:
                server.end(rng.choice(server.requests))
            computed = [request for request in server.requests if request.num_computed_tokens]
            for i in range(rng.randint(0, 2) if computed else 0):
                server.fork(rng.choice(computed), f"{seed}-{step}-{i}")
            plan = {}
            for request in rng.sample(server.requests, rng.randint(0, len(server.requests))):
                if request not in server.requests:
                    continue  # it ended in this step
                if request.num_computed_tokens == request.num_tokens:
                    for _ in range(rng.randint(1, size + 1)):
                        request.append_output_token(rng.randrange(50))
                is_new = not server.tables.get(request.request_id)
                hits, num_cached = manager.get_computed_blocks(request) if is_new else ([], 0)
                count = rng.randint(1, request.num_tokens - request.num_computed_tokens - num_cached)
                before = server.state()
                if manager.allocate_slots(request, count, hits, num_cached) is not None:
                    server.look(request)
                    plan[request] = count
                    request.num_computed_tokens += num_cached
                    num_found += num_cached
                    continue
                assert_unchanged(manager, before, f"seed {seed}, step {step}: allocate_slots({request.request_id}, "
                                 f"{count}), which returned None,", *server.requests)
                if rng.random() < 0.5:  # make room: a request ends, perhaps while a copy is pending
                    # With a cache, other requests may have found blocks that a planned request will write: keep it.
                    victim = rng.choice([other for other in server.requests if not enable_caching or other not in plan])
                    server.end(victim)
                    plan.pop(victim, None)
            server.run(plan)
            tables = server.assert_contents(f"seed {seed}, step {step}")
            server.assert_index(f"seed {seed}, step {step}")
            assert_counts_of(server.pool, tables, f"seed {seed}, step {step}")
        for request in list(server.requests):
            server.end(request)
        got = len(free_ids(manager))
        assert got == manager.block_pool.num_blocks - 1, (f"seed {seed}: all requests have ended, but only {got} "
                                                          "blocks are free")
    assert (num_found > 20) == enable_caching, (f"with enable_caching={enable_caching}, the cache found {num_found} "
                                                "tokens in total")
