"""A running request gives way to a better waiting one: rule by rule, and on random streams with a simulated clock."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from mini_vllm import EngineConfig, EngineParts, LLMEngine
from mini_vllm.conftest import examples
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Priority, SamplingParams
from mini_vllm.request_queue import PriorityQueueWithAging
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Clock, CostModel, Simulation
from mini_vllm.tests.test_scheduler import SIZE, Stream, check_outputs, request

HIGH, NORMAL, LOW = Priority


def make(num_blocks=100, seqs=4, budget=16, tree=True, caching=True, watermark=0.0, rate=0.1, option=True):
    clock = Clock()
    manager = KVCacheManager(num_blocks + 1, SIZE, caching, tree_class=PrefixTree if tree else None)
    scheduler = Scheduler(manager, seqs, budget, PriorityQueueWithAging(rate, clock), watermark)
    scheduler.preempt_for_priority = option
    return Simulation(scheduler, clock=clock)


def seat_all(simulation, num_low, prompt=4, num_tokens=30, priority=LOW):
    """Add requests that hold seats and decode."""
    lows = [simulation.add(request(f"low{i}", prompt, num_tokens, priority), i * 1e-4) for i in range(num_low)]
    while any(not low.output_token_ids for low in lows):
        simulation.step()
    return lows


def arrive(simulation, *requests):
    for each in requests:
        simulation.add(each, simulation.clock.now_s)


# ---- seats


@pytest.mark.parametrize("option", [True, False])
def test_with_all_seats_held_the_lowest_gives_way_in_the_very_next_step_and_only_with_the_option(option):
    simulation = make(seqs=3, option=option)
    lows, high = seat_all(simulation, 3), request("high", 5, 3, HIGH)
    arrive(simulation, high)
    step = simulation.step()
    if option:
        assert step.preempted == ["low2"], "the one that would be served last"
        assert step.num_scheduled_tokens == {"low0": 1, "low1": 1, "high": 5}
    else:
        assert not step.preempted and "high" not in step.num_scheduled_tokens
    simulation.run()
    check_outputs(simulation, *lows, high)


@pytest.mark.parametrize("priority, running", [(HIGH, HIGH), (NORMAL, NORMAL), (LOW, LOW), (LOW, NORMAL)])
def test_nobody_gives_way_to_an_equal_or_a_lower_one(priority, running):
    simulation = make(seqs=2)
    seat_all(simulation, 2, priority=running)
    arrive(simulation, request("new", 5, 3, priority))
    assert not simulation.step().preempted


@pytest.mark.parametrize("age_s, gives_way", [(19.0, True), (21.0, False)])
def test_the_age_of_a_running_request_counts_and_includes_the_time_that_it_has_run(age_s, gives_way):
    simulation = make(seqs=1)
    (low,) = seat_all(simulation, 1)
    simulation.clock.now_s = age_s
    arrive(simulation, request("high", 5, 3, HIGH))
    assert bool(simulation.step().preempted) is bool(low.num_preemptions) is gives_way


def test_of_two_seats_one_is_for_age():
    simulation = make(seqs=2)
    seat_all(simulation, 2)
    simulation.clock.now_s = 21.0
    arrive(simulation, request("high", 5, 3, HIGH), request("next", 5, 3, HIGH))
    assert [simulation.step().preempted for _ in range(2)] == [["low1"], []]


def test_several_high_ones_come_in_one_step_and_normal_ones_give_way_last():
    simulation = make(seqs=4, budget=32)
    for name, priority in (("n0", NORMAL), ("l0", LOW), ("l1", LOW), ("h0", HIGH)):
        simulation.add(request(name, 3, 30, priority))
    simulation.step()
    arrive(simulation, *(request(f"new{i}", 3, 2, HIGH) for i in range(4)))
    step = simulation.step()
    assert step.preempted == ["l1", "l0", "n0"]
    assert set(step.num_scheduled_tokens) == {"h0", "new0", "new1", "new2"}, "HIGH gives way to nobody"


def test_a_backlog_that_has_grown_old_leaves_half_of_the_seats_to_better_ones():
    simulation = make(seqs=4, budget=32)
    first = seat_all(simulation, 4)
    olds = [simulation.add(request(f"old{i}", 4, 30, LOW), simulation.clock.now_s + i * 1e-4) for i in range(8)]
    simulation.clock.now_s += 100.0  # time passes while they wait
    for low in first:
        simulation.abort(low.request_id)
    simulation.step()
    highs = [request(f"high{i}", 4, 3 + 3 * i, HIGH) for i in range(3)]
    arrive(simulation, *highs)
    steps = [simulation.step() for _ in range(4)]
    assert steps[0].preempted == ["old3", "old2"], "the older half keeps its seats"
    assert [set(step.num_scheduled_tokens) for step in steps] == [
        {"old0", "old1", "high0", "high1"}] * 3 + [{"old0", "old1", "high1", "high2"}], "old2 is passed over"
    simulation.run()
    check_outputs(simulation, *olds, *highs)


# ---- blocks and tokens


@pytest.mark.parametrize("watermark, gone", [(0.0, ["low2"]), (0.15, ["low2", "low1"])])
def test_blocks_are_given_up_too_as_many_as_are_needed(watermark, gone):
    simulation = make(num_blocks=12, seqs=8, budget=64, watermark=watermark)
    lows = [simulation.add(request(f"low{i}", 8, 8, LOW), i * 1e-4) for i in range(3)]
    while any(not low.output_token_ids for low in lows):
        simulation.step()
    high = request("high", 18, 2, HIGH)  # 5 blocks; 3 are free
    arrive(simulation, high)
    step = simulation.step()
    assert step.preempted == gone and step.num_scheduled_tokens["high"] == 18
    simulation.run()
    check_outputs(simulation, *lows, high)


def test_blocks_that_the_better_one_shares_with_a_lower_one_are_no_room():
    simulation = make(num_blocks=7, seqs=8, budget=64)
    lows = [simulation.add(request(f"low{i}", 8, 5, LOW), i * 1e-4) for i in range(2)]
    while any(not low.output_token_ids for low in lows):
        simulation.step()
    high = request("high", [*lows[1].prompt_token_ids, *range(10)], 2, HIGH)  # 2 of 5 blocks are low1's; 1 is free
    arrive(simulation, high)
    step = simulation.step()
    assert [low.num_preemptions for low in lows] == [1, 1] and step.num_scheduled_tokens["high"] == 10
    simulation.run()
    check_outputs(simulation, *lows, high)


def test_a_prompt_gets_the_budget_before_lower_prompts_that_run():
    simulation = make(seqs=8, budget=16)
    lows = [simulation.add(request(f"low{i}", 40, 2, LOW), i * 1e-4) for i in range(2)]
    simulation.step()
    high = request("high", 12, 2, HIGH)
    arrive(simulation, high)
    step = simulation.step()
    assert step.num_scheduled_tokens["high"] == 12 and high.output_token_ids
    assert sum(step.num_scheduled_tokens.values()) == 16, "what is left of the step is a lower prompt's"
    assert not any(low.num_preemptions for low in lows), "they keep their blocks"
    simulation.run()
    check_outputs(simulation, *lows, high)


def test_a_request_gives_way_only_in_a_step_that_has_tokens_for_the_better_one():
    simulation = make(seqs=2, budget=16)
    seat_all(simulation, 1)
    arrive(simulation, request("long", 40, 2, HIGH))
    assert simulation.step().num_scheduled_tokens == {"low0": 1, "long": 15}
    arrive(simulation, request("short", 5, 2, HIGH))
    assert simulation.step().num_scheduled_tokens == {"low0": 1, "long": 15}
    assert simulation.step().num_scheduled_tokens == {"long": 10, "short": 5}


def test_blocks_that_lower_ones_share_are_free_when_the_last_of_them_has_gone():
    simulation = make(num_blocks=7, seqs=8, budget=64)
    lows = [simulation.add(request(f"low{i}", list(range(9)), 3, LOW)) for i in range(2)]
    while any(not low.output_token_ids for low in lows):
        simulation.step()
    low_blocks = 7 - simulation.scheduler.kv_cache.block_pool.get_num_free_blocks()
    high = request("high", 24, 2, HIGH)  # 6 blocks; 3 are free, the two have one each and share two
    arrive(simulation, high)
    assert simulation.step().num_scheduled_tokens == {"high": 24} and low_blocks == 4
    simulation.run()
    check_outputs(simulation, *lows, high)


def test_its_prompt_is_not_cut_into_small_chunks_for_lower_ones_that_decode():
    for priority, num_tokens in ((HIGH, [14, 14, 2]), (LOW, [3, 2, 2])):
        simulation = make(seqs=8, budget=16)
        simulation.scheduler.max_num_chunk_tokens = 3
        seat_all(simulation, 2)
        arrive(simulation, request("new", 30, 2, priority))
        assert [simulation.step().num_scheduled_tokens["new"] for _ in range(3)] == num_tokens
        assert simulation.scheduler.max_num_chunk_tokens == 3


@pytest.mark.parametrize("prompt", [6, 14])
def test_the_first_token_comes_at_most_two_loaded_steps_later_than_with_nobody_else(prompt):
    """Let LOW requests with long outputs hold every seat while more of them wait; high ones arrive one by one."""
    cost = CostModel(0.010, 0.001)
    simulation = make(num_blocks=4000, seqs=8, budget=24)
    simulation.cost = cost
    lows = [simulation.add(request(f"low{i}", 9, 150, LOW), i * 0.01) for i in range(14)]
    highs = [simulation.add(request(f"high{i}", prompt, 5, HIGH), 0.5 + i * 0.13) for i in range(20)]
    timeline = simulation.run(30_000)
    for high in highs:
        assert timeline.first_token_s(high.request_id) <= cost.seconds(prompt) + 2 * cost.seconds(24) + 1e-9
    check_outputs(simulation, *lows, *highs)


@pytest.mark.parametrize("tree", [True, False])
def test_a_request_that_shares_what_a_better_one_is_about_to_write_computes_with_what_is_written(tree):
    """Let forked samples lack blocks for copies, which are not promised to the better request, and force the rest."""
    simulation = make(num_blocks=12, seqs=8, budget=32, tree=tree)
    scheduler = simulation.scheduler
    low = simulation.add(request("low", 7, 50, LOW))
    low.num_sequences = 4
    simulation.add(request("low2", 9, 50, LOW))
    simulation.step()
    for i in range(1, 4):
        child = request(f"low.{i}", low.prompt_token_ids, 50, LOW)
        scheduler.fork(low, child)
        child.append_output_token(i)
    shared = list(range(100, 107))
    normal = request("normal", [*shared, 200, 200, 200], 50, NORMAL)
    high = request("high", [*shared, *[201] * 6], 50, HIGH)
    low.arrival_time, normal.arrival_time, high.arrival_time = -60.0, -20.0, -5.0
    for each in (normal, high):
        scheduler.add_request(each)
    plan = scheduler.schedule()
    simulation.model.step(plan, scheduler.kv_cache)  # raises if a request attends to what no request has written
    assert {"high", "normal"} <= set(plan.num_scheduled_tokens) and plan.preempted


# ---- everything at once


class Giving(Stream):
    """The scheduler's own state machine, with the option on. In addition, a request gives way only to a better one."""

    make = staticmethod(make)

    def begin(self, *settings_):
        super().begin(*settings_)
        self.made_way = []
        admit_better = self.scheduler._admit_better
        self.scheduler._admit_better = lambda step: self.note(step, list(self.scheduler.running), admit_better(step))

    def note(self, step, running, gone):
        self.made_way.append(([self.scheduler.requests[name] for name in step.plan], running, gone))
        return gone

    @rule(seconds=st.sampled_from([0.01, 0.5, 3.0]))
    def time_passes(self, seconds):
        self.simulation.clock.now_s += seconds

    def one_step(self):
        """Check the bound: each time that a request gives way, a better one is computed.

        The better one is before it in the queue, or as many worse ones as there are protected seats are older than it.
        """
        self.made_way.clear()
        num_preemptions = {r.request_id: r.num_preemptions for r in self.requests}
        super().one_step()
        order, queue = self.scheduler.waiting.order, self.scheduler.waiting
        last = self.simulation.timeline.steps[-1] if self.simulation.timeline.steps else None
        for better, running, gone in self.made_way:
            for r in gone:
                above = [b for b in better if b.priority < r.priority and order(b) < order(r)]
                older = [other for other in running if order(other) <= order(r) and other is not r]
                too_young = [b for b in better if b.priority < r.priority and self.scheduler.max_num_seqs // 2 <= sum(
                    other.num_sequences for other in older if other.priority > b.priority)]
                assert above or too_young, f"{r} gave way to nobody better than it"
                assert r.num_preemptions <= num_preemptions[r.request_id] + 2, "once by this option, once by rule 5"
                if queue.aging_rate and not too_young:
                    assert any(b.arrival_time <= r.arrival_time + (r.priority - b.priority) / queue.aging_rate
                               for b in above)
            if gone and not last.preempted:
                assert any(b.request_id in last.num_scheduled_tokens for b in better)


Giving.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=30)
TestGiving = Giving.TestCase


def test_low_ones_finish_while_high_ones_come_without_end():
    """Let high requests arrive at twice the rate that can be served.

    At rate 0.5 a low one has waited enough after 4 s, and runs for 1 s.
    """
    simulation = make(num_blocks=60, seqs=2, budget=8, rate=0.5)
    lows = [simulation.add(request(f"low{i}", 6, 30, LOW)) for i in range(2)]
    rng, at_s = random.Random(0), 0.0
    for i in range(400):
        at_s += rng.expovariate(30.0)
        simulation.add(request(f"high{i}", 6, 10, HIGH), at_s)
    while not all(low.status.is_finished for low in lows):
        simulation.step()
    timeline = simulation.timeline
    assert len(simulation.scheduler.waiting) > 50, "high ones still wait"
    overtaken_by = [r for r in timeline.request_ids if r.startswith("high") and timeline.token_times_s(r)]
    assert all(timeline.arrival_s[r] < 4 + 1 for r in overtaken_by)
    assert all(0 < low.num_preemptions <= len(overtaken_by) for low in lows)


# ---- in the engine


def test_the_engine_gives_the_same_tokens_with_the_option(loaded):
    class Own(Scheduler):
        """A user's own scheduler, which inherits the rule."""

    settings = dict(num_blocks=60, block_size=8, max_num_seqs=2, max_num_batched_tokens=32, enable_lookahead=True)
    texts = {}
    for option in (False, True):
        engine = LLMEngine(EngineConfig(preempt_for_priority=option, **settings), EngineParts(scheduler=Own), loaded)
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        for i in range(3):
            engine.add_request(list(range(5 + i, 25 + i)), params, f"low{i}", Priority.LOW)
        outputs = {}
        num_steps = 0
        while engine.has_unfinished_requests():
            if num_steps == 6:
                engine.add_request(list(range(100, 130)), params, "high", Priority.HIGH)
            outputs.update({output.request_id: output for output in engine.step()})
            num_steps += 1
        texts[option] = {name: output.token_ids for name, output in outputs.items()}
        assert bool(engine.metrics().num_preemptions) is option
        assert engine.kv_cache.block_pool.get_usage() == 0.0
        engine.kv_cache.check_integrity()
    assert texts[True] == texts[False]
