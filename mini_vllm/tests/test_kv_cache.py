"""The KV cache manager: every rule once by example, then all of them at random against a manager that stores tokens."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mini_vllm.conftest import examples
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE, KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request
from mini_vllm.test_block_pool import free_ids, ids, snapshot


def prompt(num_tokens, start=0):
    return list(range(start, start + num_tokens))


def admit(manager, request, num_new_tokens=None):
    """Do what a scheduler does with a waiting request: look up, allocate, advance."""
    hits, num_cached = manager.get_computed_blocks(request)
    num_new_tokens = num_new_tokens or request.num_tokens - num_cached
    blocks = manager.allocate_slots(request, num_new_tokens, hits)
    if blocks is not None:
        request.num_cached_tokens = num_cached
        request.num_computed_tokens = num_cached + num_new_tokens
    manager.check_integrity()
    return blocks


def decode(manager, request, token_id):
    """Compute one more token, which the request already has but which has no slot yet."""
    request.append_output_token(token_id)
    blocks = manager.allocate_slots(request, 1)
    if blocks is not None:
        request.num_computed_tokens += 1
    manager.check_integrity()
    return blocks


def full_snapshot(manager):
    return snapshot(manager.block_pool), {r: manager.get_block_ids(r) for r in manager._tables}, manager.stats


# ---- construction


def test_the_default_block_size_is_32():
    assert DEFAULT_BLOCK_SIZE == KVCacheManager(num_blocks=4).block_size == 32


# ---- growing a table


@pytest.mark.parametrize("num_new_tokens", [0, -1])
def test_asking_for_no_tokens_is_an_error(num_new_tokens):
    manager = KVCacheManager(num_blocks=10, block_size=4)
    with pytest.raises(ValueError, match=f"num_new_tokens is {num_new_tokens}, must be at least 1"):
        manager.allocate_slots(Request("r", prompt(4)), num_new_tokens)


def test_computed_tokens_without_a_table_are_a_bug_of_the_caller():
    manager = KVCacheManager(num_blocks=10, block_size=4)
    request = Request("r", prompt(9))
    request.num_computed_tokens = 4
    with pytest.raises(RuntimeError, match="num_computed_tokens is 4, but its table has only 0 slots"):
        manager.allocate_slots(request, 1)


# ---- finding a prefix


def test_the_salt_keeps_tenants_apart():
    manager = KVCacheManager(num_blocks=20, block_size=4)
    admit(manager, Request("a", prompt(10), extra_keys=("tenant a",)))
    for salt in (("tenant b",), None):
        assert manager.get_computed_blocks(Request("b", prompt(10), extra_keys=salt)) == ([], 0)
    assert manager.get_computed_blocks(Request("b", prompt(10), extra_keys=("tenant a",)))[1] == 8


def test_blocks_taken_out_of_the_index_come_back_with_the_next_chunk():
    manager = KVCacheManager(num_blocks=10, block_size=4)
    a = Request("a", prompt(12))
    manager.allocate_slots(a, 8)
    assert manager.forget_unwritten(a) == [1, 2]  # the step failed; its K/V was never written
    assert manager.get_computed_blocks(Request("b", prompt(12))) == ([], 0)
    manager.allocate_slots(a, 12)
    assert manager.get_computed_blocks(Request("b", prompt(12)))[1] == 8
    manager.check_integrity()


# ---- not enough room


def test_a_stale_hit_is_refused():
    manager = KVCacheManager(num_blocks=4, block_size=4)
    a = Request("a", prompt(5))
    admit(manager, a)
    manager.free(a)
    b = Request("b", prompt(5))
    hits, _ = manager.get_computed_blocks(b)
    admit(manager, Request("thief", prompt(12, 100)))
    before = full_snapshot(manager)
    with pytest.raises(RuntimeError, match="block 1 does not hold its tokens 0 to 3; .*given to another request"):
        manager.allocate_slots(b, 1, hits)
    assert full_snapshot(manager) == before


def test_hits_come_with_the_first_call_only():
    manager = KVCacheManager(num_blocks=10, block_size=4)
    a, b = Request("a", prompt(9)), Request("b", prompt(9))
    admit(manager, a)
    hits, _ = manager.get_computed_blocks(b)
    admit(manager, b)
    with pytest.raises(RuntimeError, match="holds 3 blocks already"):
        manager.allocate_slots(b, 1, hits)


# ---- freeing


def test_reset_prefix_cache_refuses_while_in_use_and_clears_the_statistics():
    manager = KVCacheManager(num_blocks=6, block_size=4)
    a = Request("a", prompt(12))
    admit(manager, a)
    with pytest.raises(RuntimeError, match="3 of 5 blocks are in use"):
        manager.reset_prefix_cache()
    manager.free(a)
    manager.reset_prefix_cache()
    assert manager.get_computed_blocks(Request("b", prompt(12))) == ([], 0)
    assert manager.stats.num_query_tokens == 0
    manager.check_integrity()


def test_statistics_count_tokens_asked_found_and_blocks_evicted():
    manager = KVCacheManager(num_blocks=5, block_size=4)
    for name in "ab":
        request = Request(name, prompt(10))
        admit(manager, request)
        manager.free(request)
    assert (manager.stats.num_queries, manager.stats.num_query_tokens, manager.stats.num_hit_tokens) == (2, 20, 8)
    before = manager.stats
    assert before.hit_rate == before.recent_hit_rate == 0.4 and before.num_evicted_blocks == 0
    last = Request("c", prompt(16, 100))
    admit(manager, last)
    assert manager.stats.num_evicted_blocks == 2 and manager.stats.recent_hit_rate == 8 / 36
    assert before.recent_hit_rate == 0.4
    manager.free(last)
    manager.reset_prefix_cache()
    assert manager.stats.num_evicted_blocks == manager.stats.recent_hit_rate == 0


# ---- forking


def test_a_fork_shares_everything_and_the_first_write_copies_the_tail_only():
    manager = KVCacheManager(num_blocks=10, block_size=4)
    parent, child = Request("p", prompt(6)), Request("c", prompt(6))
    admit(manager, parent)
    manager.fork(parent, child)
    child.num_computed_tokens = parent.num_computed_tokens
    manager.check_integrity()
    assert manager.get_block_ids("c") == manager.get_block_ids("p") == [1, 2]
    assert ids(decode(manager, child, 100)) == [3]
    assert manager.get_block_ids("c") == [1, 3] and manager.get_block_ids("p") == [1, 2]
    assert [(a.block_id, b.block_id) for a, b in manager.block_pool.pending_copies] == [(2, 3)]
    manager.block_pool.finish_copies()
    assert decode(manager, parent, 101) == [], "the parent is the only owner left and writes in place"


def test_a_hit_that_ends_inside_a_block_is_copied_before_it_is_written():
    manager = KVCacheManager(num_blocks=10, block_size=4)
    a = Request("a", prompt(9))
    admit(manager, a)
    manager.free(a)
    hits = [manager.block_pool.blocks[1], manager.block_pool.blocks[2]]
    b = Request("b", [*prompt(6), 70, 71, 72])
    with pytest.raises(ValueError, match="num_new_computed_tokens is 9"):
        manager.allocate_slots(b, 3, hits, 9)
    taken = manager.allocate_slots(b, 3, hits, 6)
    manager.check_integrity()
    assert manager.get_block_ids("b") == [1, *ids(taken)] and 2 not in ids(taken)
    assert [(s.block_id, d.block_id) for s, d in manager.block_pool.pending_copies] == [(2, taken[0].block_id)]
    assert 2 not in free_ids(manager.block_pool), "the source was offered for reuse before the copy ran"
    manager.block_pool.finish_copies()
    manager.check_integrity()
    assert ids(manager.get_computed_blocks(Request("c", prompt(9)))[0]) == [1, 2], "the source changed"


def test_what_was_planned_but_never_written_is_not_found():
    manager = KVCacheManager(num_blocks=10, block_size=4, tree_class=PrefixTree)
    a = Request("a", prompt(13))
    manager.allocate_slots(a, 4)
    a.num_computed_tokens = 4
    manager.finish_step()
    manager.allocate_slots(a, 8)
    a.num_computed_tokens = 12
    manager.free(a)  # aborted between the plan and the step
    manager.check_integrity()
    assert manager.get_computed_blocks(Request("b", prompt(13)))[1] == 4


def test_a_private_block_that_the_index_names_is_copied_before_other_tokens_go_in():
    manager = KVCacheManager(num_blocks=10, block_size=4, tree_class=PrefixTree)
    parent = Request("p", prompt(7))
    admit(manager, parent)
    manager.finish_step()
    child = Request("c", [*prompt(5), 70, 71])
    manager.fork(parent, child)
    child.num_computed_tokens = 5  # it continues from inside what the parent has
    manager.free(parent)
    assert ids(manager.allocate_slots(child, 2)) == [3]
    assert [(s.block_id, d.block_id) for s, d in manager.block_pool.pending_copies] == [(2, 3)]
    manager.check_integrity()
    manager.finish_step()
    assert manager.get_computed_blocks(Request("d", prompt(8)))[1] == 7


def test_check_integrity_sees_a_reference_nobody_owns():
    manager = KVCacheManager(num_blocks=10, block_size=4)
    admit(manager, Request("a", prompt(6)))
    manager.block_pool.touch([manager.block_pool.blocks[2]])
    with pytest.raises(RuntimeError, match="block 2 has ref_cnt 2, but 1 tables and pending copies name it"):
        manager.check_integrity()


# ---- at random, with contents


class ManagerMachine(RuleBasedStateMachine):
    """Every slot of a model memory stores the whole prefix that was written there.

    Several requests are planned, then the step runs: it makes the pending copies, then writes. Afterwards every table
    must read back its own request's tokens, and the index must name exactly what is there.
    """

    requests_made = 0
    tree_class = None

    @initialize(num_blocks=st.integers(3, 9), block_size=st.integers(1, 4))
    def start(self, num_blocks, block_size):
        self.manager = KVCacheManager(num_blocks, block_size, tree_class=self.tree_class)
        self.memory = {}
        self.running = []
        self.planned = {}

    def idle(self):
        return [request for request in self.running if request.request_id not in self.planned]

    def plan(self, request, num_new_tokens):
        self.planned[request.request_id] = (request, request.num_computed_tokens, num_new_tokens)
        request.num_computed_tokens += num_new_tokens

    @rule()
    def run_step(self):
        pool, size = self.manager.block_pool, self.manager.block_size
        for source, copy in pool.pending_copies:
            for offset in range(size):
                self.memory[copy.block_id, offset] = self.memory.get((source.block_id, offset))
        self.manager.finish_step()
        for request, first, num_new_tokens in self.planned.values():
            table = self.manager.get_block_ids(request.request_id)
            for p in range(first, first + num_new_tokens):
                self.memory[table[p // size], p % size] = tuple(request.all_token_ids[:p + 1])
        self.planned = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), data=st.data())
    def submit(self, tokens, data):
        self.requests_made += 1
        request = Request(f"r{self.requests_made}", tokens)
        before = full_snapshot(self.manager)
        hits, num_cached = self.manager.get_computed_blocks(request)
        assert num_cached < request.num_tokens and len(hits) == -(-num_cached // self.manager.block_size)
        self.check_hits(request, num_cached)
        num_new_tokens = data.draw(st.integers(1, request.num_tokens - num_cached))
        if self.manager.allocate_slots(request, num_new_tokens, hits, num_cached) is None:
            assert full_snapshot(self.manager) == before
            return
        request.num_computed_tokens = num_cached
        self.plan(request, num_new_tokens)
        self.running.append(request)

    def check_hits(self, request, num_cached):
        """Check that hits are whole blocks, as they are without a tree; the subclass below has one."""
        assert num_cached % self.manager.block_size == 0

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), token=st.integers(0, 1))
    def continue_one(self, data, token):
        request = data.draw(st.sampled_from(self.idle()))
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token(token)
        num_new_tokens = data.draw(st.integers(1, request.num_tokens - request.num_computed_tokens))
        before = full_snapshot(self.manager)
        if self.manager.allocate_slots(request, num_new_tokens) is None:
            assert full_snapshot(self.manager) == before
        else:
            self.plan(request, num_new_tokens)

    @precondition(lambda self: self.running and not self.planned)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(self.running))
        self.requests_made += 1
        child = Request(f"r{self.requests_made}", parent.all_token_ids)
        child.num_computed_tokens = parent.num_computed_tokens
        self.manager.fork(parent, child)
        self.running.append(child)

    @precondition(lambda self: self.running and not self.planned)
    @rule(data=st.data())
    def finish(self, data):
        request = data.draw(st.sampled_from(self.running))
        self.manager.free(request)
        self.running.remove(request)

    @invariant()
    def tables_read_back_their_own_tokens(self):
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        size = self.manager.block_size
        for request in self.running if not self.planned else ():
            table = self.manager.get_block_ids(request.request_id)
            assert len(table) == -(-request.num_computed_tokens // size)
            for p in range(request.num_computed_tokens):
                assert self.memory[table[p // size], p % size] == tuple(request.all_token_ids[:p + 1])

    @invariant()
    def the_index_names_only_what_is_there(self):
        if not hasattr(self, "manager") or self.planned:
            return
        for block in self.manager.block_pool.blocks:
            if block.block_hash is not None:
                chain, link = [], block.block_hash
                while link is not None:
                    chain = [*link.token_ids, *chain]
                    link = link.parent
                last = len(block.block_hash.token_ids) - 1
                assert self.memory[block.block_id, last] == tuple(chain)

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        self.run_step()
        for request in self.running:
            self.manager.free(request)
        assert self.manager.block_pool.get_usage() == 0.0, "a block was lost"
        self.manager.check_integrity()


class TreeManagerMachine(ManagerMachine):
    """The same test with a prefix tree, which must find the longest cached prefix, token by token."""

    tree_class = PrefixTree

    def check_hits(self, request, num_cached):
        if self.planned:
            return
        pool = self.manager.block_pool
        findable = {()}
        for block in pool.blocks:
            if block.block_hash is not None:
                chain, link = [], block.block_hash
                while link is not None:
                    chain = [*link.token_ids, *chain]
                    link = link.parent
                depth = len(chain) - len(block.block_hash.token_ids)
                findable.update(tuple(chain[:n]) for n in range(depth + 1, len(chain) + 1))
        longest = 0
        while longest + 1 < request.num_tokens and tuple(request.all_token_ids[:longest + 1]) in findable:
            longest += 1
        assert num_cached == longest, f"{longest} tokens of {request.all_token_ids} are cached, {num_cached} were found"

    @rule(num_blocks=st.integers(0, 3))
    def evict(self, num_blocks):
        in_use = [block.block_hash for block in self.manager.block_pool.blocks if block.ref_cnt]
        if not self.planned:
            self.manager.prefix_tree.evict(num_blocks)
        assert [block.block_hash for block in self.manager.block_pool.blocks if block.ref_cnt] == in_use


TreeManagerMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30,
                                                derandomize=True)
test_the_manager_with_a_tree_agrees_with_a_memory_of_tokens = TreeManagerMachine.TestCase
ManagerMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30,
                                            derandomize=True)
test_the_manager_agrees_with_a_memory_of_tokens = ManagerMachine.TestCase


def test_free_that_raises_changes_nothing():
    manager = KVCacheManager(9, 4, tree_class=PrefixTree)
    request = Request("r", list(range(10)))
    manager.allocate_slots(request, 3)
    manager.finish_step()
    request.num_computed_tokens = 3
    manager.block_pool.cache_full_blocks([manager.block_pool.blocks[manager.get_block_ids("r")[0]]], [12345])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="12345"):
            manager.free(request)
        manager.check_integrity()
    assert len(manager.get_block_ids("r")) == 1
