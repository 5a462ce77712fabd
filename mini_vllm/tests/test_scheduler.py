"""The scheduler's rules one by one, and all together on random streams, with a model that reads back what it wrote."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mini_vllm.conftest import examples
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Priority, Request, RequestStatus, SamplingParams
from mini_vllm.request_queue import PriorityQueueWithAging
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Clock, CostModel, Simulation, decode_alone

SIZE = 4


def make(num_blocks=100, seqs=4, budget=16, tree=True, caching=True, watermark=0.0, rate=0.1):
    clock = Clock()
    manager = KVCacheManager(num_blocks + 1, SIZE, caching, tree_class=PrefixTree if tree else None)
    scheduler = Scheduler(manager, seqs, budget, PriorityQueueWithAging(rate, clock), watermark)
    return Simulation(scheduler, clock=clock)


def request(name, prompt, num_tokens=4, priority=Priority.NORMAL):
    """Create a request. ``prompt`` is a list of tokens, or a number of tokens that no other request has."""
    if isinstance(prompt, int):
        rng = random.Random(name)
        prompt = [rng.randrange(1000) for _ in range(prompt)]
    return Request(name, prompt, SamplingParams(max_tokens=num_tokens), priority)


def rows(simulation):
    """Return the picture without its first and last line, with spaces collapsed."""
    return [" ".join(line.split()) for line in str(simulation.timeline).splitlines()[1:-1]]


def check_outputs(simulation, *requests):
    for each in requests:
        assert each.output_token_ids == decode_alone(each.prompt_token_ids, each.sampling_params.max_tokens), (
            f"{each} differs from decoding alone:\n{simulation.timeline}")
    assert simulation.scheduler.kv_cache.block_pool.get_usage() == 0.0
    simulation.scheduler.kv_cache.check_integrity()


# ---- rules 1 to 4


def test_a_prompt_fills_what_the_budget_leaves_while_others_decode():
    simulation = make(budget=8)
    a, b = simulation.add(request("a", 4, 6)), simulation.add(request("b", 17, 3))
    simulation.run()
    assert rows(simulation) == ["a 4 ● ● ● ● ●", "b 4 7 6 ● ●"], str(simulation.timeline)
    check_outputs(simulation, a, b)


def test_who_decodes_does_not_wait_for_a_prompt():
    """Check that a long prompt delays decoding requests by no more than a step of the whole budget."""
    simulation = make(num_blocks=2000, budget=64)
    simulation.cost = CostModel(0.010, 0.001)
    decoders = [simulation.add(request(f"d{i}", 4, 60)) for i in range(3)]
    long = simulation.add(request("long", 2000, 2), at_s=0.2)
    timeline = simulation.run()
    for decoder in decoders:
        assert max(timeline.gaps_s(decoder.request_id)) <= CostModel(0.010, 0.001).seconds(64) + 1e-9
    check_outputs(simulation, *decoders, long)


@pytest.mark.parametrize("max_chunk", [1, 7, 96, 100_000])
def test_chunks_beside_decodes_are_the_smaller_the_more_is_before_them(max_chunk):
    simulation = make(num_blocks=2000, budget=4096, seqs=8)
    simulation.scheduler.max_num_chunk_tokens = max_chunk
    decoder = simulation.add(request("d", 4, 400))
    simulation.step()
    long = simulation.add(request("long", 5000 if max_chunk > 10 else 300, 2))
    while long.num_computed_tokens < long.num_prompt_tokens:
        before = long.num_computed_tokens
        num_left = long.num_prompt_tokens - before
        expected = min(max(max_chunk * 1024 // (1024 + before), max_chunk // 4, 1), num_left, 4096 - 1)
        assert simulation.step().num_scheduled_tokens == {"d": 1, "long": expected}, f"behind {before} tokens"
    simulation.run()
    check_outputs(simulation, decoder, long)


def test_one_token_goes_before_a_prompt_that_was_admitted_earlier():
    simulation = make(budget=4)
    parent, long = request("p", 4, 9), request("long", 40, 1)
    for each in (parent, long):
        simulation.add(each)
    simulation.step()
    assert simulation.step().num_scheduled_tokens == {"p": 1, "long": 3}
    child = request("c", parent.all_token_ids[:-1], 9)
    simulation.scheduler.fork(parent, child)
    child.append_output_token(5)
    output = simulation.scheduler.schedule()
    assert output.num_scheduled_tokens == {"p": 1, "c": 1, "long": 2}


def test_sequences_to_come_have_their_seats():
    simulation = make(seqs=4, budget=32)
    several = request("several", 6)
    several.num_sequences = 3
    for each in (several, request("a", 3), request("b", 3)):
        simulation.add(each)
    assert set(simulation.step().num_scheduled_tokens) == {"several", "a"}


@pytest.mark.parametrize("num_tokens, has_room", [(24, True), (25, False)])
def test_admission_asks_for_the_whole_prompt_and_leaves_the_watermark(num_tokens, has_room):
    simulation = make(num_blocks=10, budget=9, watermark=0.1)
    simulation.add(request("a", 9, 3))  # 3 blocks in both steps
    simulation.step()
    simulation.add(request("b", num_tokens, 2))  # 7 blocks are free, and the watermark is 1
    assert ("b" in simulation.step().num_scheduled_tokens) is has_room


@pytest.mark.parametrize("num_sequences, has_room", [(3, True), (4, False)])
def test_each_further_sequence_needs_a_block_for_its_copy(num_sequences, has_room):
    simulation = make(num_blocks=10, seqs=8, budget=16)
    simulation.add(request("a", 9, 3))
    simulation.step()
    several = request("several", 18)  # 5 blocks; 7 are free
    several.num_sequences = num_sequences
    simulation.add(several)
    assert ("several" in simulation.step().num_scheduled_tokens) is has_room


@pytest.mark.parametrize("num_tokens, has_room", [(28, True), (29, False)])
def test_a_hit_that_is_free_does_not_count_as_room(num_tokens, has_room):
    simulation = make(num_blocks=10, budget=8)
    prompt = request("b", num_tokens).prompt_token_ids
    simulation.add(request("first", prompt[:16], 1))  # leaves 4 free blocks that can be found
    simulation.run()
    simulation.add(request("a", 9, 3))  # 3 blocks in both steps
    simulation.step()
    simulation.add(request("b", prompt, 2))  # 7 blocks are free, its 4 hits among them
    assert ("b" in simulation.step().num_scheduled_tokens) is has_room
    assert simulation.scheduler.requests["b"].num_cached_tokens == (16 if has_room else 0)


def test_blocks_promised_to_a_half_computed_prompt_are_not_given_away():
    simulation = make(num_blocks=10, budget=8)
    long, other = simulation.add(request("long", 32, 2)), simulation.add(request("other", 9, 2), at_s=0.001)
    timeline = simulation.run()  # 8 blocks for one request, 3 for the other
    assert not any(step.preempted for step in timeline.steps), str(timeline)
    check_outputs(simulation, long, other)


def test_a_cached_prompt_computes_one_token_and_twins_share_in_one_step():
    simulation = make(budget=64)
    prompt = list(range(21))
    first, twin = simulation.add(request("first", prompt)), simulation.add(request("twin", prompt))
    assert simulation.step().num_scheduled_tokens == {"twin": 1, "first": 21}
    assert (first.num_cached_tokens, twin.num_cached_tokens) == (0, 20)
    simulation.run()
    check_outputs(simulation, first, twin)


# ---- rules 5 to 7: preemption


def test_the_latest_gives_way_and_finds_its_blocks_again():
    simulation = make(num_blocks=7, budget=16)
    a, b = simulation.add(request("a", 10, 8)), simulation.add(request("b", 10, 8))
    timeline = simulation.run()
    assert [step.preempted for step in timeline.steps if step.preempted] == [["b"]], str(timeline)
    assert (a.num_preemptions, b.num_preemptions, simulation.scheduler.num_preemptions) == (0, 1, 1)
    again = [step.num_scheduled_tokens["b"] for step in timeline.steps if step.num_scheduled_tokens.get("b", 0) > 1]
    assert again == [6, 4, 5], f"of its 13 tokens 8 were found, 5 are computed again\n{timeline}"
    assert b.num_cached_tokens == 0, "what it finds again of its own saved nothing"
    assert simulation.scheduler.kv_cache.stats.num_queries == 2
    check_outputs(simulation, a, b)


def seat(scheduler, new, num_computed):
    """Make a request run with ``num_computed`` tokens computed."""
    scheduler.add_request(new)
    scheduler.waiting.remove(new)
    scheduler.kv_cache.allocate_slots(new, num_computed)
    scheduler.kv_cache.finish_step()
    new.num_computed_tokens, new.status = num_computed, RequestStatus.RUNNING
    scheduler.running.append(new)
    return new


@pytest.mark.parametrize("tree", [True, False])
def test_what_a_victim_was_given_returns_to_the_step_and_is_not_findable(tree):
    """Plan low first, 12 tokens in the last 3 blocks; then high needs a block, and so does third."""
    scheduler = make(num_blocks=6, budget=15, tree=tree).scheduler
    low = seat(scheduler, request("low", 16, priority=Priority.LOW), 4)
    seat(scheduler, request("high", 6, priority=Priority.HIGH), 4)
    seat(scheduler, request("third", 8), 4)
    output = scheduler.schedule()
    assert [victim.request_id for victim in output.preempted] == ["low"]
    assert output.num_scheduled_tokens == {"high": 2, "third": 4}, "of 15 tokens low had 12; without them third gets 1"
    assert low.num_computed_tokens == 0 and low.status is RequestStatus.PREEMPTED
    again = request("again", [*low.all_token_ids, 9])
    assert scheduler.kv_cache.get_computed_blocks(again)[1] == 4, "what low was to write in this step is found"


def test_a_step_that_preempted_admits_nobody():
    """Let low lose its seat and its blocks while next, which is before it in the queue, would fit."""
    simulation = make(num_blocks=6, seqs=2, budget=16)
    low = simulation.add(request("low", 10, 9, Priority.LOW))
    high = simulation.add(request("high", 11, 9, Priority.HIGH), at_s=0.001)
    next_ = simulation.add(request("next", 1, 1), at_s=0.002)
    while not low.num_preemptions:
        step = simulation.step()
    assert step.waiting == ["low", "next"] and set(step.num_scheduled_tokens) == {"high"}, str(simulation.timeline)
    assert "next" in simulation.step().num_scheduled_tokens
    simulation.run()
    check_outputs(simulation, low, high, next_)


# ---- rules 8 and 9


def test_refusals_name_value_and_bound_and_change_nothing():
    scheduler = make(num_blocks=5, seqs=4).scheduler
    scheduler.add_request(request("a", 3))
    several = request("several", 3)
    several.num_sequences = 5
    for refused, message in ((request("a", 3), "request id 'a' is in use"),
                             (request("big", 21), "has 21 prompt tokens, which need 6 blocks of 4 tokens; .* has 5"),
                             (several, r"n is 5, must be at most max_num_seqs \(4\)")):
        with pytest.raises(ValueError, match=message):
            scheduler.add_request(refused)
    assert list(scheduler.requests) == ["a"] and len(scheduler.waiting) == 1
    scheduler.add_request(request("exact", 20))


def test_what_outgrows_the_pool_ends_with_its_output_and_takes_nobody_along():
    simulation = make(num_blocks=4, budget=32, rate=0.0)
    low = simulation.add(request("low", 3, 2, Priority.LOW))
    grows = simulation.add(request("grows", 9, 50, Priority.HIGH))
    timeline = simulation.run()
    assert grows.status is RequestStatus.FINISHED_KV_CACHE_FULL and len(grows.output_token_ids) == 8, str(timeline)
    assert grows.output_token_ids == decode_alone(grows.prompt_token_ids, 8)
    check_outputs(simulation, low)


def test_one_that_was_preempted_when_it_had_outgrown_the_pool_ends_too():
    simulation = make(num_blocks=4, budget=32)
    first, grows = simulation.add(request("first", 4, 13)), simulation.add(request("grows", 4, 50))
    simulation.run()
    assert grows.status is RequestStatus.FINISHED_KV_CACHE_FULL and len(grows.output_token_ids) == 13
    check_outputs(simulation, first)


# ---- everything at once


class Stream(RuleBasedStateMachine):
    """Requests arrive, are computed, outgrow the pool, are aborted and preempted.

    All numbers must agree after each step.
    """

    make = staticmethod(make)

    @initialize(num_blocks=st.integers(3, 14), seqs=st.integers(1, 5), extra=st.integers(0, 12), tree=st.booleans(),
                caching=st.booleans(), watermark=st.sampled_from([0.0, 0.1, 0.4]), rate=st.sampled_from([0.0, 1, 20]))
    def start(self, num_blocks, seqs, extra, tree, caching, watermark, rate):
        self.begin(num_blocks, seqs, seqs + extra, tree, caching, watermark, rate)

    def begin(self, *settings_):
        self.simulation = self.make(*settings_)
        self.scheduler = self.simulation.scheduler
        self.requests = []

    @rule(shared=st.integers(0, 24), own=st.integers(1, 9), num_tokens=st.integers(1, 20),
          priority=st.sampled_from(Priority))
    def arrive(self, shared, own, num_tokens, priority):
        name = f"r{len(self.requests)}"
        prompt = [*range(shared), *random.Random(name).choices(range(100, 110), k=own)]
        new = request(name, prompt, num_tokens, priority)
        if -(-len(prompt) // SIZE) > self.scheduler.num_blocks:
            with pytest.raises(ValueError, match="the pool has"):
                self.scheduler.add_request(new)
        else:
            self.requests.append(self.simulation.add(new, self.simulation.clock.now_s))

    @rule(num_steps=st.integers(1, 6))
    def steps(self, num_steps):
        for _ in range(num_steps):
            self.one_step()

    def one_step(self):
        if self.simulation.is_done:
            return
        step = self.simulation.step()
        assert sum(step.num_scheduled_tokens.values()) <= self.scheduler.max_num_batched_tokens
        assert len(step.num_scheduled_tokens) <= len(self.scheduler.running) + len(step.finished)
        assert len(self.scheduler.running) <= self.scheduler.max_num_seqs
        assert not set(step.preempted) & set(step.num_scheduled_tokens)

    @rule(pick=st.integers(0, 10**6))
    def abort(self, pick):
        live = list(self.scheduler.requests)
        if live:
            self.simulation.abort(live[pick % len(live)])

    @invariant()
    def adds_up(self):
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.kv_cache.check_integrity()
        running = {r.request_id for r in self.scheduler.running}
        waiting = {r.request_id for r in self.scheduler.waiting}
        assert not running & waiting and running | waiting == set(self.scheduler.requests)
        for r in self.scheduler.waiting:
            assert r.num_computed_tokens == 0 and not self.scheduler.kv_cache.get_block_ids(r.request_id)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if self.simulation.is_done:
                break
            self.one_step()
        assert self.simulation.is_done, f"somebody never ends:\n{self.simulation.timeline}"
        assert self.scheduler.kv_cache.block_pool.get_usage() == 0.0
        for r in self.requests:
            wanted = decode_alone(r.prompt_token_ids, r.sampling_params.max_tokens)
            if r.status is RequestStatus.FINISHED_LENGTH:
                assert r.output_token_ids == wanted
            else:
                assert r.status in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_KV_CACHE_FULL)
                assert r.output_token_ids == wanted[:len(r.output_token_ids)]
            if r.status is RequestStatus.FINISHED_KV_CACHE_FULL:
                assert -(-r.num_tokens // SIZE) > self.scheduler.num_blocks


TestStream = Stream.TestCase
TestStream.settings = settings(max_examples=examples(50), stateful_step_count=30)
