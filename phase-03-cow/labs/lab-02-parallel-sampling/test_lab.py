"""Lab 3.2, parallel sampling. Each test pins one rule; its failure says which.

``Server`` below is the rest of a server: a memory that makes the pending copies and then writes, and a fake model whose
scores are a hash of what it *reads* through the block table. A slot that holds somebody else's K/V gives other tokens.
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
    """The statistics, by name."""
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
    """What a call that returns None or raises must leave alone."""
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
    assert not changes, f"{call} should change nothing, but {changes}. Count and check first, then change"


def admit_child(manager, child):
    """``admit`` for the child of a parent that holds nothing: these are its first slots, and given."""
    try:
        return admit(manager, child)
    except NotImplementedError:
        pytest.fail("fork() of a parent that holds nothing left an empty table for the child, and allocate_slots takes "
                    "it for a request that has slots already: one that holds nothing has no entry", pytrace=False)


def tables_of(manager, requests):
    return {request.request_id: list(manager.get_block_ids(request.request_id)) for request in requests}


def assert_counts(manager, requests, when):
    """ref_cnt is the number of tables that name a block (while no copy is pending)."""
    assert_counts_of(manager.block_pool, tables_of(manager, requests), when)


def assert_counts_of(pool, tables, when):
    for block in pool.blocks:
        num_owners = sum(table.count(block.block_id) for table in tables.values())
        assert block.ref_cnt == num_owners, (f"{when}: block {block.block_id} has ref_cnt {block.ref_cnt}, but "
                                             f"{num_owners} of the tables {tables} name it")


def start(manager, request, num_new_tokens=None):
    """Slots for the prompt, or a part of it, as if the step had run."""
    num_new_tokens = num_new_tokens or request.num_tokens
    blocks = manager.allocate_slots(request, num_new_tokens)
    if blocks is not None:
        request.num_computed_tokens += num_new_tokens
    return blocks


def admit(manager, request):
    """What a scheduler does with a waiting request: look up, make slots, advance num_computed_tokens."""
    hits, num_cached = manager.get_computed_blocks(request)
    blocks = manager.allocate_slots(request, request.num_tokens - num_cached, hits, num_cached)
    if blocks is not None:
        request.num_computed_tokens = request.num_tokens
    return blocks


def fork(manager, parent, name):
    """A child with the parent's tokens, so far, and its blocks."""
    child = Request(name, parent.prompt_token_ids)
    for token_id in parent.output_token_ids:
        child.append_output_token(token_id)
    child.num_computed_tokens = parent.num_computed_tokens
    manager.fork(parent, child)
    return child


def make_family(lab, num_tokens, num_blocks=10, num_children=1, enable_caching=False):
    """A manager with block size 4, a parent with a computed prompt, and its children."""
    manager = lab.KVCacheManager(num_blocks=num_blocks, block_size=4, enable_caching=enable_caching)
    parent = Request("parent", prompt(num_tokens))
    start(manager, parent)
    return manager, parent, *(fork(manager, parent, f"child {i}") for i in range(num_children))


def assert_forks(lab):
    """Of a fork that does nothing, much else would be true."""
    manager, *_ = make_family(lab, num_tokens=10)
    assert_shares(manager, "child 0")


def assert_goes_on(lab):
    """Of slots that nobody makes, much else would be true."""
    manager, _, child = make_family(lab, num_tokens=10)
    got = ids(manager.allocate_slots(child, 1))
    assert got == [4], (f"the child's 11th token goes into block 3, which it shares: allocate_slots(child, 1) gave "
                        f"{got}, expected [4], the copy")


def assert_shares(manager, name):
    got = manager.get_block_ids(name)
    assert got == [1, 2, 3], (f"the parent's 10 tokens are in the blocks [1, 2, 3]; after fork() the child's table is "
                              f"{got}, expected the same")


# ---- the rest of a server


def kv_of(token_ids):
    """The K/V at each position: a number that depends on all tokens up to it."""
    numbers, number = [], 0
    for token_id in token_ids:
        number = zlib.crc32(token_id.to_bytes(4, "little"), number)
        numbers.append(number)
    return numbers


def scores(keys_values):
    """The fake model: a score for every token, from the K/V of the context."""
    digest = zlib.crc32(np.array(keys_values, dtype=np.int64).tobytes())
    return np.random.default_rng(digest).random(NUM_TOKENS_KNOWN)


class Server:
    def __init__(self, lab, num_blocks, block_size, enable_caching=False):
        self.manager = lab.KVCacheManager(num_blocks=num_blocks, block_size=block_size, enable_caching=enable_caching)
        self.pool = self.manager.block_pool
        self.size = block_size
        self.memory = np.full((num_blocks, block_size), -1, dtype=np.int64)
        self.requests = []
        #: Id of a request → its table, as it was last read.
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
        """As ``state`` has it, with the tables as they were last read."""
        tables = [self.tables.get(request.request_id, []) for request in self.requests]
        return pool_state(self.pool) | {"tables": tables, "stats": counts(self.manager)}

    def step(self, num_new_tokens):
        """Slots for all; then the copies, last one first, because no order is promised; then the writes."""
        for request, count in num_new_tokens.items():
            blocks = self.manager.allocate_slots(request, count)
            assert blocks is not None, (f"request {request.request_id} needs {count} slots after "
                                        f"{request.num_computed_tokens} and got None with {len(free_ids(self.manager))}"
                                        " blocks free: blocks leak, or are forked without need")
        self.run(num_new_tokens)

    def run(self, num_new_tokens):
        pool = self.pool
        for source, copy in pool.pending_copies[::-1]:
            self.memory[copy.block_id] = self.memory[source.block_id]
        self.num_copies += len(pool.pending_copies)
        for request, count in num_new_tokens.items():
            self.look(request)
            table, first = self.tables[request.request_id], request.num_computed_tokens
            numbers = kv_of(request.all_token_ids[:first + count])
            for p in range(first, first + count):
                block = pool.blocks[table[p // self.size]]
                # An indexed block may have been found by a request of the same step: all write before anybody reads.
                assert block.ref_cnt == 1 or block.block_hash is not None, (
                    f"request {request.request_id} writes position {p} into block {block.block_id}, whose ref_cnt is "
                    f"{block.ref_cnt}: others read it")
                self.memory[block.block_id, p % self.size] = numbers[p]
            request.num_computed_tokens += count
        self.manager.finish_step()
        self.max_blocks_used = max(self.max_blocks_used, pool.num_blocks - 1 - pool.get_num_free_blocks())

    def read(self, request):
        return self.read_through(self.manager.get_block_ids(request.request_id), request)

    def read_through(self, table, request):
        return self.memory[table].ravel()[:request.num_computed_tokens].tolist()

    def assert_contents(self, when):
        """What each request reads is its own. The tables, by request."""
        tables = self.tables = tables_of(self.manager, self.requests)
        for request in self.requests:
            table = tables[request.request_id]
            got = self.read_through(table, request)
            expected = kv_of(request.all_token_ids[:request.num_computed_tokens])
            wrong = [p for p, (a, b) in enumerate(zip(got, expected)) if a != b]
            assert got == expected, (f"{when}: request {request.request_id} reads the K/V of other tokens at positions "
                                     f"{wrong[:8]} through its table {table}")
        return tables

    def assert_index(self, when):
        """The index names what is there: an indexed block holds the K/V of its key's tokens, after its ancestors'."""
        for block in self.pool.blocks:
            tokens, key = [], block.block_hash
            while key is not None:
                tokens, key = [*key.token_ids, *tokens], key.parent
            got, expected = self.memory[block.block_id].tolist(), kv_of(tokens)[-self.size:]
            assert not tokens or got == expected, (
                f"{when}: block {block.block_id} is found as the end of the tokens {tokens}, but holds K/V of others. "
                "Was a block indexed that a copy was made of, in place of the copy?")


# ---- Task 1


@pytest.mark.points(3)
def test_task_1_a_child_shares_every_block_with_the_tail(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    got = manager.get_block_ids("child 0")
    assert got == [1, 2, 3], (f"the parent's 10 tokens are in blocks 1, 2, 3; the child's table is {got}, expected "
                              "[1, 2, 3]: the half-filled block 3 is shared too")
    got = ref_cnts(manager, [1, 2, 3])
    assert got == [2, 2, 2], f"two tables name the blocks 1, 2, 3, but their ref_cnt is {got}, expected [2, 2, 2]"
    assert_counts(manager, [parent, child], "after fork()")


@pytest.mark.points(2)
def test_task_1_forking_takes_no_block_and_copies_nothing(lab):
    manager, parent, *children = make_family(lab, num_tokens=10, num_blocks=4, num_children=3)
    got = (free_ids(manager), pending(manager), ref_cnts(manager, [1, 2, 3]))
    assert got == ([], [], [4, 4, 4]), (f"a pool of three blocks, all the parent's, and three forks: (free, pending, "
                                        f"ref_cnt) is {got}, expected ([], [], [4, 4, 4]). Copies come with writes")


@pytest.mark.points(2)
def test_task_1_a_child_that_holds_blocks_is_refused(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    other, waiting = Request("other", prompt(5)), Request("waiting", prompt(10))
    start(manager, other)
    family = (parent, child, other, waiting)
    before = state(manager, *family)
    for source, bad in ((parent, other), (parent, child), (parent, parent), (waiting, child)):
        call = f"fork({source.request_id!r}, {bad.request_id!r})"
        with must_raise(RuntimeError, call, f"{bad.request_id!r} holds blocks already"):
            manager.fork(source, bad)
        assert_unchanged(manager, before, call, *family)


@pytest.mark.points(1)
def test_task_1_blocks_that_are_not_written_yet_are_shared_too(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    parent = Request("parent", prompt(10))
    manager.allocate_slots(parent, 13)  # with slots 10 to 12, for tokens that are not known yet
    parent.num_computed_tokens = 10
    fork(manager, parent, "child")
    got = manager.get_block_ids("child"), ref_cnts(manager, [1, 2, 3, 4])
    assert got == ([1, 2, 3, 4], [2, 2, 2, 2]), (
        f"the parent has 10 tokens and 13 slots, in the blocks 1 to 4; its child has (table, ref_cnt of 1 to 4) {got}, "
        "expected ([1, 2, 3, 4], [2, 2, 2, 2]): every block of the table is shared")


@pytest.mark.points(1)
def test_task_1_a_child_may_have_more_tokens_than_its_parent(lab):
    manager, parent = make_family(lab, num_tokens=10, num_children=0)
    manager.fork(parent, Request("child", [*prompt(10), 7, 8, 9]))
    got = manager.get_block_ids("child")
    assert got == [1, 2, 3], (f"the child's 13 tokens begin with the parent's 10; after fork() its table is {got}, "
                              "expected [1, 2, 3]: the tokens that are computed are what must agree")


@pytest.mark.points(1)
def test_task_1_a_parent_without_blocks_has_a_child_without_blocks(lab):
    assert_forks(lab)
    manager = lab.KVCacheManager(num_blocks=10, block_size=4, enable_caching=False)
    parent = Request("parent", prompt(6))
    child = fork(manager, parent, "child")
    got = manager.get_block_ids("child")
    assert got == [], f"the parent holds nothing; after fork() the child's table is {got}, expected []"
    got = ids(admit_child(manager, child)), manager.stats.num_queries
    assert got == ([1, 2], 1), (f"the child of a waiting parent asks for 6 slots: (newly taken blocks, queries) is "
                                f"{got}, expected ([1, 2], 1), as for any request that gets its first slots. Did "
                                "fork() leave an empty table? One that holds nothing has no entry")


@pytest.mark.points(1)
def test_task_1_the_child_of_a_waiting_parent_asks_the_cache_itself(lab):
    assert_forks(lab)
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    start(manager, Request("first", prompt(10)))
    child = fork(manager, Request("waiting", prompt(10)), "child")
    admit_child(manager, child)
    got = manager.get_block_ids("child"), manager.stats.num_queries, manager.stats.num_hit_tokens
    assert got == ([1, 2, 4], 2, 8), (f"the child of a request without blocks is admitted like any other: (table, "
                                      f"queries, tokens found) is {got}, expected ([1, 2, 4], 2, 8). Did fork() leave "
                                      "an empty table? One that holds nothing has no entry")


@pytest.mark.points(1)
def test_task_1_fork_writes_neither_request(lab):
    manager, parent, _ = make_family(lab, num_tokens=10)
    parent.append_output_token(7)  # so that the two differ in all that could be handed on
    parent.priority, parent.arrival_time, parent.status = Priority.HIGH, 1.0, RequestStatus.RUNNING
    parent.num_cached_tokens, parent.num_preemptions, parent.num_sequences = 8, 1, 2
    child = Request("c", prompt(10), SamplingParams(seed=1))
    before = [{name: str(value) for name, value in vars(request).items()} for request in (parent, child)]
    manager.fork(parent, child)
    assert_shares(manager, "c")
    changes = [f"{who}.{name} was {was[name]}, is {value}" for who, was, request in zip(
        ("parent", "child"), before, (parent, child)) for name, value in vars(request).items()
        if was.get(name) != str(value)]
    assert not changes, (f"fork(parent, child) should write neither request, but {'; '.join(changes)}. The scheduler "
                         "advances them, nobody else")


@pytest.mark.points(1)
def test_task_1_a_fork_is_no_query(lab):
    manager, parent = make_family(lab, num_tokens=10, num_children=0, enable_caching=True)
    before = counts(manager)
    fork(manager, parent, "child")
    assert_shares(manager, "child")
    assert counts(manager) == before, (f"fork() changed the statistics from {before} to {counts(manager)}: a child "
                                       "asks the cache for nothing, it has its parent's blocks")


@pytest.mark.points(2)
def test_task_1_found_blocks_are_shared_with_the_child_as_any(lab):
    manager = lab.KVCacheManager(num_blocks=10, block_size=4)
    first, second = Request("first", prompt(10)), Request("second", prompt(10))
    admit(manager, first)
    admit(manager, second)  # finds blocks 1 and 2
    child = fork(manager, second, "child")
    got = manager.get_block_ids("child"), ref_cnts(manager, [1, 2, 3, 4])
    assert got == ([1, 2, 4], [3, 3, 1, 2]), (
        f"'second' found blocks 1 and 2 of 'first' and took 4; its child has (table, ref_cnt of 1 to 4) {got}, "
        "expected ([1, 2, 4], [3, 3, 1, 2])")
    assert_counts(manager, [first, second, child], "after a hit and a fork")


@pytest.mark.points(1)
def test_task_1_the_last_of_a_family_gives_the_tail_back_first(lab):
    manager, parent, child = make_family(lab, num_tokens=12, num_blocks=6)
    manager.free(parent)
    assert free_ids(manager) == [4, 5], (f"the child still has the blocks 1, 2, 3; after free(parent) the queue reads "
                                         f"{free_ids(manager)}, expected [4, 5]")
    manager.free(child)
    got = free_ids(manager)
    assert got == [4, 5, 3, 2, 1], f"free() of the table [1, 2, 3] left the queue {got}, expected [4, 5, 3, 2, 1]"
    manager.free(child)
    assert free_ids(manager) == got, (f"after a second free() of the child the queue reads {free_ids(manager)}, "
                                      f"expected {got} as before: it holds nothing")


# ---- Task 2


@pytest.mark.points(1)
def test_task_2_a_private_table_is_written_in_place(lab):
    manager, parent = make_family(lab, num_tokens=6, num_children=0)
    got = []
    for count in (1, 1, 1, 5):
        got.append(ids(manager.allocate_slots(parent, count)))
        parent.num_computed_tokens += count
    assert got == [[], [], [3], [4]], (f"6 tokens without a fork, then 1, 1, 1, 5 more at block size 4: newly taken "
                                       f"{got}, expected [[], [], [3], [4]], as in lab 2.2")
    assert pending(manager) == [], f"nothing is shared, but the copies {pending(manager)} are pending"


@pytest.mark.points(1)
def test_task_2_an_indexed_block_that_is_private_is_written_in_place(lab):
    """Full blocks are indexed when they get their slots. A step that was cut short writes them again."""
    assert_goes_on(lab)
    manager = lab.KVCacheManager(num_blocks=4, block_size=4)
    request = Request("parent", prompt(10))
    got = ids(manager.allocate_slots(request, 10))
    assert got == [1, 2, 3], f"10 slots at block size 4: allocate_slots gave {got}, expected [1, 2, 3]"
    request.num_computed_tokens = 5
    got = ids(manager.allocate_slots(request, 5)), pending(manager)
    assert got == ([], []), (f"10 slots in the blocks 1, 2, 3, of which 5 are computed, and no block free: "
                             f"allocate_slots(parent, 5) and the pending copies are {got}, expected ([], []). Block 2 "
                             "is in the index, but nobody else owns it")


@pytest.mark.points(3)
def test_task_2_the_first_write_into_a_shared_tail_forks_it(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    taken = ids(manager.allocate_slots(child, 1))
    got = manager.get_block_ids("child 0")
    assert got == [1, 2, 4], (f"the child writes token 10 into the shared block 3: its table is {got}, expected "
                              "[1, 2, 4]. Only the block that is written is copied")
    got = manager.get_block_ids("parent")
    assert got == [1, 2, 3], (f"the child got block 4 in the place of block 3, and the parent's table is {got}, "
                              "expected [1, 2, 3] as before. Do both have one list? fork gives the child its own "
                              "(task 1)")
    assert pending(manager) == [(3, 4)], f"the copies {pending(manager)} are pending, expected [(3, 4)]"
    assert taken == [4], f"allocate_slots gave {taken}, expected [4]: the copy is a block newly taken from the pool"
    assert_counts(manager, [parent, child], "after the child's write")


@pytest.mark.points(2)
def test_task_2_the_last_owner_of_a_tail_writes_in_place(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    taken = ids(manager.allocate_slots(child, 1)), ids(manager.allocate_slots(parent, 1))
    assert taken == ([4], []), (f"the child left block 3 for its copy, block 4; then the parent writes: newly taken "
                                f"{taken}, expected ([4], []). Block 3 is the parent's alone by then")
    child.num_computed_tokens += 1
    got = ids(manager.allocate_slots(child, 1))
    assert got == [], f"the child's tail is its own now: allocate_slots for its second token gave {got}, expected []"


@pytest.mark.points(2)
def test_task_2_at_a_block_boundary_nothing_is_copied(lab):
    manager, parent, child = make_family(lab, num_tokens=8)
    taken = ids(manager.allocate_slots(child, 1)), ids(manager.allocate_slots(parent, 1))
    assert taken == ([3], [4]), (f"8 tokens fill blocks 1 and 2; token 8 of child and parent: newly taken {taken}, "
                                 "expected ([3], [4]), a fresh block each")
    assert pending(manager) == [], (f"the copies {pending(manager)} are pending, expected none: the new tokens are "
                                    "written after the shared blocks, not into them")
    assert_counts(manager, [parent, child], "after a token each")


@pytest.mark.points(2)
def test_task_2_forked_blocks_come_before_fresh_ones(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    taken, table = ids(manager.allocate_slots(child, 7)), manager.get_block_ids("child 0")
    assert len(taken) == 3 and table == [1, 2, *taken], (
        f"positions 10 to 16 of the child: newly taken {taken}, table {table}, expected three blocks, and a table of "
        "1, 2 and those three, in the same order: first the copy of block 3, then two fresh ones")
    assert pending(manager) == [(3, taken[0])], (f"pending are {pending(manager)}, expected [(3, {taken[0]})]: the "
                                                 f"first of the newly taken blocks {taken} is the copy of block 3")


@pytest.mark.points(2)
def test_task_2_every_shared_block_that_is_written_is_forked(lab):
    """Slots may exist before their tokens are computed: then one step writes into several shared blocks."""
    for count, written in ((5, [2, 3]), (3, [2])):  # up to position 9; up to 7, the last of the second block
        manager = lab.KVCacheManager(num_blocks=12, block_size=4, enable_caching=False)
        parent = Request("parent", prompt(14))
        manager.allocate_slots(parent, 14)
        parent.num_computed_tokens = 5  # the step was cut short; blocks 1 to 4 are there, two of them begun
        child = fork(manager, parent, "child")
        taken, table = ids(manager.allocate_slots(child, count)) or [], manager.get_block_ids("child")
        case = (f"the blocks 1, 2, 3, 4 are shared, and the child writes positions 5 to {4 + count}, in the blocks "
                f"{written}: newly taken {taken}")
        assert len(taken) == len(written) and table == [1, *taken, *range(2 + len(written), 5)], (
            f"{case}, table {table}, expected {len(written)} newly taken, in the places of {written}. The other blocks "
            "are not written now: they stay shared")
        expected = [*zip(written, taken)]
        assert sorted(pending(manager)) == expected, f"{case}, pending {pending(manager)}, expected {expected}"


@pytest.mark.points(1)
def test_task_2_a_shared_block_is_forked_though_it_is_indexed(lab):
    for num_slots, num_copies in ((10, 2), (8, 1)):  # block 2, full and indexed, is in the middle; is the last
        manager = lab.KVCacheManager(num_blocks=8, block_size=4)
        parent = Request("parent", prompt(num_slots))
        manager.allocate_slots(parent, num_slots)  # blocks 1 and 2 are in the index from now on
        parent.num_computed_tokens = 5  # the step was cut short
        child = Request("other tokens", [*prompt(5), 1, 2, 3, 4, 5][:num_slots])
        child.num_computed_tokens = 5
        manager.fork(parent, child)
        taken, table = ids(manager.allocate_slots(child, num_slots - 5)), manager.get_block_ids("other tokens")
        assert taken and len(taken) == num_copies and table == [1, *taken], (
            f"the parent's {num_slots} slots are in the blocks {manager.get_block_ids('parent')}, 5 of them computed; "
            f"a child with other tokens writes positions 5 to {num_slots - 1}: newly taken {taken}, table {table}, "
            f"expected {num_copies} newly taken, after block 1. The parent reads block 2, whether it is in the index "
            "or not")


@pytest.mark.points(1)
def test_task_2_blocks_it_has_already_are_no_room(lab):
    manager, parent = make_family(lab, num_tokens=14, num_blocks=5, num_children=0)
    parent.num_computed_tokens = 5  # the step was cut short; blocks 1 to 4 are there
    child = fork(manager, parent, "child")
    before = state(manager, parent, child)
    got = manager.allocate_slots(child, 1)
    assert got is None, (f"the child writes position 5, in the second of four shared blocks, and no block is free: "
                         f"allocate_slots gave {ids(got)}, expected None. That its table is longer than 6 tokens need "
                         "saves no copy")
    assert_unchanged(manager, before, "allocate_slots(child, 1), which returned None,", parent, child)


@pytest.mark.points(3)
def test_task_2_a_fork_counts_as_room(lab):
    manager, parent, child = make_family(lab, num_tokens=10, num_blocks=5)
    before = state(manager, parent, child)
    for count, why in ((3, "a copy of block 3 and a fresh block"), (7, "a copy of block 3 and two fresh blocks")):
        got = manager.allocate_slots(child, count)
        assert got is None, f"{count} tokens need {why}, 1 is free: allocate_slots gave {ids(got)}, expected None"
        assert_unchanged(manager, before, f"allocate_slots(child, {count}), which returned None,", parent, child)
    got = ids(manager.allocate_slots(child, 2))
    assert got == [4], f"2 tokens need the copy of block 3 only, and 1 block is free: got {got}, expected [4]"


@pytest.mark.points(2)
def test_task_2_several_copies_and_a_fresh_block_need_just_their_room(lab):
    for num_free in (3, 4):
        manager = lab.KVCacheManager(num_blocks=5 + num_free, block_size=4, enable_caching=False)
        parent = Request("parent", prompt(14))
        manager.allocate_slots(parent, 14)
        parent.num_computed_tokens = 5  # the step was cut short; blocks 1 to 4 are there
        child = fork(manager, parent, "child")
        before = state(manager, parent, child)
        taken, table = ids(manager.allocate_slots(child, 12)), manager.get_block_ids("child")
        case = (f"the child writes positions 5 to 16: copies of the shared blocks 2, 3 and 4 and a fresh one are "
                f"needed, {num_free} blocks are free, newly taken {taken}")
        if num_free == 3:
            assert taken is None, f"{case}, expected None"
            assert_unchanged(manager, before, "allocate_slots(child, 12), which returned None,", parent, child)
        else:
            assert taken is not None, f"{case}, expected four: they fit"
            assert len(taken) == 4 and table == [1, *taken], (
                f"{case}, table {table}, expected four, and a table of 1 and those four: each of the three is written")
            expected = [*zip((2, 3, 4), taken)]
            assert sorted(pending(manager)) == expected, f"{case}, pending {pending(manager)}, expected {expected}"


@pytest.mark.points(2)
def test_task_2_no_room_to_fork_is_none_and_changes_nothing(lab):
    manager, parent, child = make_family(lab, num_tokens=10, num_blocks=4)
    before = state(manager, parent, child)
    got = manager.allocate_slots(child, 1)
    assert got is None, f"block 3 is shared and no block is free for a copy: got {ids(got)}, expected None"
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
        assert got == before, (f"{writer!r} went on for 6 tokens after the fork: the table of {reader!r} was {before}, "
                               f"is {got}. What happens to one table does not show in the other: fork copies the list "
                               "(task 1)")
        assert_counts(manager, requests, f"after the tokens of {writer!r}")


@pytest.mark.points(4)
@pytest.mark.parametrize("num_prompt_tokens, num_own_tokens, num_blocks, num_copies", [
    (512, 32, 16 + 8 * 1, 0),  # ends at a block boundary: 16 blocks for all, then one each
    (500, 32, 15 + 8 * 2, 7),  # a tail of 20 tokens: 15 blocks for all, then a tail and one more each
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
        assert sample.all_token_ids == alone, (f"{case}: sample {i} is {sample.output_token_ids}, alone on the machine "
                                               f"it would be {alone[num_prompt_tokens:]}")
    got, naive = server.max_blocks_used, 8 * -(-(num_prompt_tokens + num_own_tokens) // 32)
    assert got == num_blocks, (f"{case}: {got} blocks in use, expected {num_blocks}. With a private copy of the prompt "
                               f"for each it would be {naive}")
    assert server.num_copies == num_copies, (f"{case}: {server.num_copies} blocks were copied, expected {num_copies}: "
                                             "the half-filled tail, for every sample but the last one to leave it")


# ---- Task 2, together with the prefix cache


@pytest.mark.points(2)
def test_task_2_the_first_slots_are_the_bases_hits_and_all(lab):
    manager, parent, child = make_family(lab, num_tokens=10, enable_caching=True)
    other = Request("other", prompt(10))
    hits, num_cached = manager.get_computed_blocks(other)
    assert (ids(hits), num_cached) == ([1, 2], 8), (f"the prompt is in blocks 1, 2 and a half: a lookup gave "
                                                    f"{ids(hits)} with {num_cached} tokens, expected [1, 2] with 8")
    child.append_output_token(7)
    taken = ids(manager.allocate_slots(child, 1)), ids(manager.allocate_slots(other, 2, hits, num_cached))
    assert taken == ([4], [5]), (f"the child's token 10 copies block 3, the other's tokens 8 and 9 start a fresh "
                                 f"block: newly taken {taken}, expected ([4], [5])")
    got = ref_cnts(manager, [1, 2, 3, 4, 5])
    assert got == [3, 3, 1, 1, 1], (f"blocks 1 and 2 are in three tables, 3 to 5 in one: ref_cnt {got}, expected "
                                    "[3, 3, 1, 1, 1]")


@pytest.mark.points(3)
def test_task_2_a_copy_is_indexed_not_what_it_was_copied_from(lab):
    manager, parent, child = make_family(lab, num_tokens=10, enable_caching=True)
    for token_id in (7, 8):
        child.append_output_token(token_id)
    manager.allocate_slots(child, 2)  # block 3 is copied into 4, and tokens 10 and 11 fill the copy
    got = ids(manager.get_computed_blocks(Request("next turn", [*child.all_token_ids, 9]))[0])
    assert got == [1, 2, 4], (f"the child's 12 tokens are in the blocks 1, 2, 4, and a lookup of them finds {got}. "
                              "Fork first; then what the base indexes is the child's own table")
    hashed = manager.block_pool.blocks[3].block_hash
    assert hashed is None, (f"the parent's block 3 holds two tokens, and is indexed as {hashed!r}: the child's tokens "
                            "were never in it")


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
    assert got == ([], [2, 2]), (f"two requests share blocks 1 and 2 by a hit and decode 6 tokens each: (copies, "
                                 f"ref_cnt of 1 and 2) is {got}, expected ([], [2, 2]): nobody writes a found block")


@pytest.mark.points(2)
def test_task_2_hits_for_a_child_are_refused(lab):
    assert_goes_on(lab)
    manager, parent, child = make_family(lab, num_tokens=10, enable_caching=True)
    hits, num_cached = manager.get_computed_blocks(child)
    before = state(manager, parent, child)
    call = "allocate_slots(child, 1, blocks 1 and 2 as hits), where the child has a table,"
    with must_raise(RuntimeError, call, "hits come with the first slots only"):
        manager.allocate_slots(child, 1, hits, num_cached)
    assert_unchanged(manager, before, call, parent, child)


@pytest.mark.points(2)
def test_task_2_only_first_slots_count_as_a_query(lab):
    manager, parent, child = make_family(lab, num_tokens=10, num_blocks=5, enable_caching=True)
    got = ids(manager.allocate_slots(child, 7))
    assert got is None, (f"allocate_slots(child, 7) needs a copy and two fresh blocks, and one block is free: it gave "
                         f"{got}, expected None")
    manager.allocate_slots(child, 1)
    other = Request("other", prompt(9))
    admit(manager, other)
    got = (manager.stats.num_queries, manager.stats.num_query_tokens, manager.stats.num_hit_tokens)
    assert got == (1, 10, 0), (f"the parent asked for 10 tokens and found 0, the child got a copy, another request "
                               f"found no room: (queries, tokens, found) is {got}, expected (1, 10, 0)")
    manager.free(parent)
    manager.finish_step()
    admit(manager, other)
    got = (manager.stats.num_queries, manager.stats.num_query_tokens, manager.stats.num_hit_tokens)
    assert got == (2, 19, 8), (f"then the parent ends and the other finds the child's 8 tokens: (queries, tokens, "
                               f"found) is {got}, expected (2, 19, 8)")


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
        assert_counts(manager, living, f"tables {tables}, freed in the order {order}, up to {index}")
    got = manager.block_pool.get_num_free_blocks()
    assert got == 9, f"all three requests have ended and {got} blocks are free, expected 9"


@pytest.mark.points(3)
def test_task_2_a_child_reads_on_when_its_parent_has_ended(lab):
    server = Server(lab, num_blocks=7, block_size=4)
    parent = server.start("parent", prompt(10))
    child = server.fork(parent, "child")
    server.end(parent)
    got = ref_cnts(server.manager, [1, 2, 3])
    assert got == [1, 1, 1], (f"the child holds blocks 1, 2, 3, the parent has ended: their ref_cnt is {got}, expected "
                              "[1, 1, 1]")
    server.start("other", prompt(12, 3))
    child.append_output_token(7)
    server.step({child: 1})
    server.assert_contents("the parent ended, another request came, the child wrote a token")
    assert server.num_copies == 0, f"the child was alone with its tail, but {server.num_copies} blocks were copied"


@pytest.mark.points(3)
@pytest.mark.parametrize("who_ends", ["parent", "child"])
def test_task_2_ending_while_a_copy_is_pending_harms_nobody(lab, who_ends):
    server = Server(lab, num_blocks=7, block_size=4)
    parent = server.start("parent", prompt(10))
    child = server.fork(parent, "child")
    child.append_output_token(7)
    server.manager.allocate_slots(child, 1)  # the copy of block 3 into block 4 is pending now
    gone, stays = (parent, child) if who_ends == "parent" else (child, parent)
    server.end(gone)
    other = Request("other", prompt(12, 3))
    got = ids(server.manager.allocate_slots(other, 12))
    assert got is None, (f"2 blocks are free until the copy (3, 4) is made, 3 are needed: got {got}, expected None. "
                         "free() must leave it to free_blocks what is free, and when")
    server.run({child: 1} if stays is child else {})
    server.assert_contents(f"the {who_ends} ended while the copy of the tail was pending")
    server.end(stays)
    got = free_ids(server.manager)
    assert len(got) == 6, f"all have ended, the free queue reads {got}, expected all 6 blocks"


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
    manager.free(parent)  # and holds block 2, which has no owner now
    found = Request("found", [*prompt(8), 9])
    admit(manager, found)
    fork(manager, found, "its child")
    got = manager.get_block_ids("its child")[:2], ref_cnts(manager, [1, 2])
    assert got == ([1, 2], [3, 3]), (
        f"block 2 is kept for a pending copy, and was found by a request, which is forked: (the first two blocks of "
        f"the child, ref_cnt of 1 and 2) is {got}, expected ([1, 2], [3, 3]). Block 1 is in three tables, block 2 in "
        "two, and the copy holds a reference")


@pytest.mark.points(1)
def test_task_2_a_name_can_be_used_again(lab):
    manager, parent, child = make_family(lab, num_tokens=10)
    manager.free(child)
    child = fork(manager, parent, "child 0")
    got = ref_cnts(manager, [1, 2, 3])
    assert got == [2, 2, 2], f"forked, freed, forked again: ref_cnt {got}, expected [2, 2, 2]"
    assert_counts(manager, [parent, child], "after the second fork()")


def best_beams(candidates, width):
    """(total score, index of the beam, token) of the best continuations; ties go to the smaller index and token."""
    return sorted(candidates, key=lambda c: (-c[0], c[1], c[2]))[:width]


def search_alone(token_ids, width, num_steps):
    """Beam search with lists of tokens: nothing is shared, nothing can go wrong."""
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
    """A beam that continues twice is forked, one that continues nowhere is freed."""
    width, num_steps, num_prompt_tokens = 4, 40, 70
    # Room for the prompt once, four beams' own tokens, and four copies; no room for a leak a step.
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
            if parent in writers:  # it continues in another way already
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
    assert got == expected, (f"the beams end in {[tokens[-5:] for tokens in got]}, a search that shares nothing gives "
                             f"{[tokens[-5:] for tokens in expected]}")
    assert num_dropped >= 20, f"{num_dropped} beams were dropped: this test should drop many"
    assert server.num_copies <= num_forks, (f"{num_forks} forks, {server.num_copies} blocks copied: at most one a fork "
                                            f"is needed. Copying whole tables would be {num_naive_copies}")
    for _, request in beams:
        server.end(request)
    got = server.manager.block_pool.get_num_free_blocks()
    assert got == num_blocks - 1, f"the search is over and {got} of {num_blocks - 1} blocks are free"


@pytest.mark.points(4)
@pytest.mark.parametrize("enable_caching", [False, True])
def test_task_2_random_families_read_back_their_own_tokens(lab, enable_caching):
    """Steps as a server makes them: fork and end, look up, make slots or be refused, copy, write, read back."""
    num_found = 0  # tokens, in all
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
                    tokens[:-1] = prompt(num_tokens - 1)  # most begin alike
                server.requests.append(Request(f"{seed}-{step}", tokens))
            if server.requests and rng.random() < 0.3:
                server.end(rng.choice(server.requests))
            computed = [request for request in server.requests if request.num_computed_tokens]
            for i in range(rng.randint(0, 2) if computed else 0):
                server.fork(rng.choice(computed), f"{seed}-{step}-{i}")
            plan = {}
            for request in rng.sample(server.requests, rng.randint(0, len(server.requests))):
                if request not in server.requests:
                    continue  # ended in this step
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
                if rng.random() < 0.5:  # make room: somebody ends, perhaps with a copy pending
                    # What a planned one was to write may have been found by others: with a cache it has to stay.
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
        assert got == manager.block_pool.num_blocks - 1, f"seed {seed}: all have ended, but only {got} blocks are free"
    assert (num_found > 20) == enable_caching, f"{num_found} tokens were found in all, with caching {enable_caching}"
