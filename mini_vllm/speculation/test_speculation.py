"""Drafts in the engine: they change no token, take only what is left over, and are worth what they cost."""

import dataclasses

import pytest

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.models.loader import load
from mini_vllm.request import Request, SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.speculation.drafts import RESTS, GuessRecord, NgramDrafter, Verifier
from mini_vllm.speculation.speculation import Speculation

FREE = StepCosts((DraftCost(1, -100.0, -1.0),), no_lookahead=-1.0)
CHEAP = StepCosts((DraftCost(1, 0.0, 0.2), DraftCost(8, 0.0, 0.5)))


class Told(NgramDrafter):
    """Guesses what it was told, whatever the request is."""

    cost_per_token = 0.0

    def __init__(self, guess=()):
        self.guess, self.calls, self.told, self.forgotten = list(guess), [], [], []

    def propose(self, request, max_tokens):
        self.calls.append((request.request_id, max_tokens))
        return self.guess[:max_tokens]

    def advance(self, request, token_ids):
        self.told.append((request.request_id, token_ids))

    def forget(self, request):
        self.forgotten.append(request.request_id)


# ---- the rules alone


@pytest.mark.parametrize("draft, drawn, expected", [
    ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 3], [1, 9, 3, 4], [1, 9]), ([1, 2, 3], [9, 2, 3, 4], [9]),
    ([], [5], [5]), ([1], [1, 2], [1, 2]), ([1, 2, 3], [1, 2], [1, 2]),
])
def test_tokens_count_up_to_the_first_that_is_not_in_the_draft(draft, drawn, expected):
    assert Verifier().accept(draft, drawn) == expected


@pytest.mark.parametrize("rate, cost, expected", [
    (0.5, 0.3, 1), (0.5, 0.24, 2), (0.5, 0.5, 0), (0.9, 0.2, 8), (1.0, 0.9, 8), (0.1, 0.05, 1), (0.0, 0.0, 0)])
def test_a_draft_is_as_long_as_its_tokens_are_worth(rate, cost, expected):
    record = GuessRecord()
    record.num_judged, record.num_right = 998.0, 1000.0 * rate - 1.0
    assert record.rate == pytest.approx(rate)
    assert record.length(cost, 8) == expected
    assert record.length(cost, 0) == 0


def test_a_step_drafts_only_if_all_gains_together_pay_for_it():
    costs = StepCosts((DraftCost(1, 0.6, 0.1),))
    for num_requests, drafts in ((1, 0), (3, 0)):  # a new request gains at most 0.5 + 0.25 + 0.125 - 3 * 0.1
        assert len(Bench(Told([1, 2, 3, 4]), costs=costs, prompts=(3,) * num_requests).plan().drafts) == drafts
    cheaper = StepCosts((DraftCost(1, 0.6, 0.1), DraftCost(3, 0.5, 0.1)))
    assert Bench(Told([1, 2, 3, 4]), costs=cheaper, prompts=(3,) * 3).plan().drafts == {
        "r0": [1, 2, 3], "r1": [1, 2, 3], "r2": [1, 2, 3]}


def test_no_draft_is_longer_than_pays_with_so_many_requests():
    costs = StepCosts((DraftCost(1, 0.0, 0.01), DraftCost(2, 0.0, 0.01, longest=2)))
    assert Bench(Told([1, 2, 3, 4]), costs=costs).plan().drafts == {"r0": [1, 2, 3, 4]}
    assert Bench(Told([1, 2, 3, 4]), costs=costs, prompts=(3, 3)).plan().drafts == {"r0": [1, 2], "r1": [1, 2]}


def test_the_rate_follows_the_guesses_and_newer_ones_count_more():
    record = GuessRecord()
    assert record.rate == 0.5
    for _ in range(30):
        record.judge([1, 2], [1, 2, 3])
    assert record.rate > 0.9
    for _ in range(3):
        record.judge([1, 2], [9])
    assert 0.6 < record.rate < 0.9
    for _ in range(30):
        record.judge([1], [9])
    assert record.rate < 0.15


def test_a_guess_is_judged_as_far_as_tokens_arrived():
    record = GuessRecord()
    record.judge([1, 2, 3], [1])
    assert (record.num_judged, record.num_right) == (1.0, 1.0)
    record.judge([], [1])
    record.judge([1], [])
    assert record.num_judged == 1.0, "there was no guess, or no token to compare it with"


def test_the_costs_of_a_step_are_those_of_the_last_entry_not_above_it():
    assert [CHEAP.of(number).per_token for number in (1, 7, 8, 500)] == [0.2, 0.2, 0.5, 0.5]


# ---- one plan, without a model


class Bench:
    """A scheduler over a pool of ``num_blocks`` blocks of 4, with requests that decode, and drafts for them."""

    def __init__(self, drafter, num_blocks=20, costs=FREE, max_num_batched_tokens=64, max_tokens=4, prompts=(6,)):
        self.kv_cache = KVCacheManager(num_blocks, 4)
        self.scheduler = Scheduler(self.kv_cache, 8, max_num_batched_tokens, watermark=0.0)
        self.speculation = Speculation(max_tokens, drafter, self.scheduler, self.kv_cache, costs)
        self.requests = []
        for number, length in enumerate(prompts):
            self.add(f"r{number}", length)
        self.step({request.request_id: 7 for request in self.requests})

    def add(self, name, length, max_tokens=1000):
        self.requests.append(Request(name, range(length), SamplingParams(max_tokens=max_tokens)))
        self.scheduler.add_request(self.requests[-1])

    def step(self, token_ids):
        plan = self.scheduler.schedule()
        self.scheduler.update_from_output(plan, token_ids)
        return plan

    def plan(self, **options):
        return self.speculation.extend(self.scheduler.schedule(), **options)

    def deliver(self, plan, tokens):
        """Append the tokens that a request got in a step, as the engine does."""
        self.scheduler.update_from_output(plan, {name: first for name, (first, *_) in tokens.items()})
        for request in plan.requests:
            for token in tokens.get(request.request_id, [])[1:]:
                request.append_output_token(token)
                request.num_computed_tokens += 1
        self.speculation.settle(plan)


def test_a_decoding_request_drafts_and_its_tokens_so_far_are_those_of_the_plan():
    bench = Bench(Told([1, 2, 3, 4, 5]))
    plan = bench.plan()
    assert plan.drafts == {"r0": [1, 2, 3, 4]} and plan.num_scheduled_tokens == {"r0": 1}
    assert bench.requests[0].num_computed_tokens == 7 and len(bench.kv_cache.get_block_ids("r0")) == 3


def test_slots_of_wrong_guesses_are_given_back_and_those_of_right_ones_count():
    bench = Bench(Told([1, 2, 3, 4]))
    num_free = bench.kv_cache.block_pool.get_num_free_blocks()
    bench.deliver(bench.plan(), {"r0": [9]})
    request = bench.requests[0]
    assert (request.num_tokens, request.num_computed_tokens) == (8, 7)
    assert bench.kv_cache.block_pool.get_num_free_blocks() == num_free and len(bench.kv_cache.get_block_ids("r0")) == 2
    bench.deliver(bench.plan(), {"r0": [1, 2, 3]})
    assert (request.num_tokens, request.num_computed_tokens) == (11, 10)
    assert len(bench.kv_cache.get_block_ids("r0")) == 3
    assert (request.num_drafted_tokens, request.num_accepted_tokens) == (8, 2)
    bench.kv_cache.check_integrity()


def test_blocks_that_accepted_drafts_fill_can_be_found_and_unverified_ones_cannot():
    bench = Bench(Told([1, 2, 3, 4]))
    plan = bench.plan()
    blocks = bench.kv_cache.block_pool.blocks
    assert [blocks[i].block_hash is not None for i in bench.kv_cache.get_block_ids("r0")] == [True, False, False]
    bench.deliver(plan, {"r0": [1, 2, 9]})
    assert [blocks[i].block_hash is not None for i in bench.kv_cache.get_block_ids("r0")] == [True, True, False]


@pytest.mark.parametrize("case", ["waiting", "preempted", "started", "off", "prompt"])
def test_nothing_is_drafted_if_the_step_has_no_leftovers(case):
    drafter = Told([1, 2, 3])
    bench = Bench(drafter, max_tokens=0 if case == "off" else 4)
    if case == "waiting":
        bench.add("long", 76)  # the pool has 19 blocks, so it waits
    if case == "prompt":
        bench.requests[0].output_token_ids.clear()
    plan = bench.scheduler.schedule()
    if case == "preempted":
        plan.preempted.append(Request("other", [1]))
    assert bench.speculation.extend(plan, is_started=case == "started").drafts == {}
    assert bool(drafter.calls) == (case in ("waiting", "preempted", "started"))


def test_a_draft_ends_before_the_last_token_of_the_output():
    for max_tokens, expected in ((100, [1, 2, 3, 4]), (4, [1, 2]), (3, [1]), (2, [])):
        bench = Bench(Told([1, 2, 3, 4]), prompts=())
        bench.add("r0", 6, max_tokens)
        bench.step({"r0": 7})
        assert bench.plan().drafts.get("r0", []) == expected


def test_drafts_share_the_budget_that_is_left():
    bench = Bench(Told([1, 2, 3, 4]), max_num_batched_tokens=8, prompts=(3, 3))
    assert bench.plan().drafts == {"r0": [1, 2, 3, 4], "r1": [1, 2]}


def test_drafts_take_only_free_blocks_and_shrink_to_the_last_block():
    bench = Bench(Told([1, 2, 3, 4]), num_blocks=3, prompts=(6,))
    plan = bench.plan()  # two blocks of 4 hold 8 tokens: the 7th is computed, one slot is left
    assert plan.drafts == {"r0": [1]} and plan.preempted == []


def test_requests_with_drafts_come_after_those_that_compute_one_token():
    class Second(Told):
        def propose(self, request, max_tokens):
            return [1] if request.request_id == "r0" else []

    plan = Bench(Second(), prompts=(3, 3, 3)).plan()
    assert [request.request_id for request in plan.requests] == ["r1", "r2", "r0"]
    assert list(plan.num_scheduled_tokens) == ["r1", "r2", "r0"]


def test_the_drafter_is_told_of_every_token_once_also_after_a_preemption():
    drafter = Told([1])
    bench = Bench(drafter)
    bench.deliver(bench.plan(), {"r0": [5]})
    bench.scheduler.preempt(bench.requests[0])
    bench.deliver(bench.plan(), {"r0": [6]})  # all tokens are computed again, and one is new
    bench.deliver(bench.plan(), {"r0": [7]})
    bench.plan()  # the drafter is told before it is asked again
    assert drafter.told == [("r0", [5]), ("r0", [6]), ("r0", [7])]


def test_a_drafter_that_is_often_wrong_is_asked_but_not_computed_and_comes_back():
    bench = Bench(Told([1, 2, 3, 4]), costs=CHEAP)
    lengths = []
    for _ in range(12):
        plan = bench.plan()
        lengths.append(len(plan.drafts.get("r0", [])))
        bench.deliver(plan, {"r0": [9]})
    assert lengths[0] == 2 and lengths[-1] == 0 and lengths == sorted(lengths, reverse=True)
    for _ in range(16):
        plan = bench.plan()
        bench.deliver(plan, {"r0": [*plan.drafts["r0"], 9] if plan.drafts else [1]})
    assert len(bench.plan().drafts["r0"]) >= 2, "guesses that would have been right do not count"


def test_a_costly_drafter_rests_longer_after_each_failure():
    drafter = Told([1])
    drafter.cost_per_token = 0.05
    bench = Bench(drafter, num_blocks=200, costs=CHEAP, max_tokens=1)
    asked = []
    for number in range(8 + 16 + 32 + 64 + 64 + 30):
        num_calls = len(drafter.calls)
        bench.deliver(bench.plan(), {"r0": [9]})
        if len(drafter.calls) > num_calls:
            asked.append(number)
    rests = [b - a for a, b in zip(asked, asked[1:])]
    assert [rest for rest in rests if rest > 1] == [8, 16, 32, 64, 64] and RESTS == (8, 16, 32, 64), rests


def test_drafting_wins_over_look_ahead_only_if_it_gains_more():
    bench = Bench(Told([1]), costs=StepCosts((DraftCost(1, 0.0, 0.2),), no_lookahead=0.6))
    assert not bench.speculation.beats_lookahead(bench.requests)
    for _ in range(20):
        plan = bench.plan()
        bench.deliver(plan, {"r0": [*plan.drafts.get("r0", []), 1]})
    assert bench.speculation.beats_lookahead(bench.requests)
    assert not Bench(Told(), max_tokens=0).speculation.beats_lookahead(bench.requests)


# ---- the whole engine


PARAMS = [dict(temperature=0.0), dict(temperature=0.9, seed=3), dict(temperature=0.8, seed=5, n=3),
          dict(temperature=1.0, seed=8, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.5),
          dict(temperature=0.7, seed=4, logprobs=2, min_tokens=20),
          dict(temperature=0.0, prompt_logprobs=1, logprobs=0)]


class Knowing(Told):
    """Knows the outputs, and gets every seventh token wrong."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def propose(self, request, max_tokens):
        name, _, index = request.request_id.partition("#")
        start = len(request.output_token_ids)
        following = self.outputs[name][int(index or 0)][start:start + max_tokens]
        return [token if (start + i) % 7 else (token + 1) % 300 for i, token in enumerate(following)]


@pytest.fixture(scope="module")
def loaded(shallow):
    return load(shallow("llama3"))


def run(loaded, drafter=None, **settings):
    """Run one request for each of PARAMS. Return its outputs by request, and the engine."""
    config = EngineConfig(**{"num_blocks": 60, "block_size": 8, "num_speculative_tokens": 4 if drafter else 0,
                             **settings})
    engine = LLMEngine(config, EngineParts(drafter=lambda: drafter) if drafter else None, loaded)
    if drafter:
        engine.speculation.costs = FREE
    for number, params in enumerate(PARAMS):
        engine.add_request([number + 1, *range(9, 25)], SamplingParams(max_tokens=30, ignore_eos=True, **params),
                           f"p{number}")
    outputs = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] = output
        engine.kv_cache.check_integrity()
    assert engine.kv_cache.block_pool.get_usage() == 0.0
    return outputs, engine


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 20}, {"enable_lookahead": True}, {"enable_lookahead": False},
                                      {"enable_prefix_caching": False},
                                      {"max_num_batched_tokens": 64, "block_size": 1}])
def test_outputs_with_drafts_are_those_without(loaded, settings):
    plain, engine = run(loaded, **settings)
    tokens = {name: [each.token_ids for each in output.outputs] for name, output in plain.items()}
    drafted, drafting = run(loaded, Knowing(tokens), **settings)
    for name, output in plain.items():
        for own, other in zip(output.outputs, drafted[name].outputs):
            assert (own.token_ids, own.text, own.finish_reason) == (other.token_ids, other.text, other.finish_reason)
            if own.logprobs is not None:
                assert [each.token_id for each in own.logprobs] == [each.token_id for each in other.logprobs]
                assert [each.logprob for each in own.logprobs] == pytest.approx(
                    [each.logprob for each in other.logprobs], abs=1e-4)
    assert drafting.speculation.num_accepted_tokens > 15 and drafting.num_steps < engine.num_steps
    details = [output.usage.completion_tokens_details for output in drafted.values()]
    counts = drafting.speculation
    assert sum(each.accepted_prediction_tokens for each in details) == counts.num_accepted_tokens
    assert sum(each.rejected_prediction_tokens for each in details) == (
        counts.num_drafted_tokens - counts.num_accepted_tokens) > 0


@pytest.mark.parametrize("stop", ["id", "text", "length"])
def test_an_output_that_ends_inside_a_draft_ends_there(loaded, stop):
    plain, _ = run(loaded)
    tokens = {name: [each.token_ids for each in output.outputs] for name, output in plain.items()}
    own = tokens["p1"][0]
    place = next(i for i in range(11, 30) if own[i] not in own[:i])
    limits = {"id": dict(max_tokens=30, stop_token_ids=[own[place]]), "length": dict(max_tokens=place + 1),
              "text": dict(max_tokens=30, stop=[loaded.tokenizer.decode([own[place]]) or "?"])}[stop]
    ends = []
    for drafter in (None, Knowing({"r": [own]})):
        engine = LLMEngine(EngineConfig(num_blocks=60, block_size=8, num_speculative_tokens=4 if drafter else 0),
                           EngineParts(drafter=lambda drafter=drafter: drafter) if drafter else None, loaded)
        if drafter:
            engine.speculation.costs = FREE
        engine.add_request([2, *range(9, 25)], SamplingParams(ignore_eos=True, **PARAMS[1], **limits), "r")
        while engine.has_unfinished_requests():
            (output,) = engine.step() or [None]
        ends.append((output.outputs[0].token_ids, output.outputs[0].text, output.outputs[0].finish_reason,
                     output.outputs[0].stop_reason))
        assert engine.kv_cache.block_pool.get_usage() == 0.0
        assert drafter is None or engine.speculation._guessing == {}
    assert ends[0] == ends[1]


def test_a_request_that_ends_or_is_aborted_is_forgotten(loaded):
    drafter = Told([1, 2])
    engine = LLMEngine(EngineConfig(num_blocks=60, block_size=8, num_speculative_tokens=2),
                       EngineParts(drafter=lambda: drafter), loaded)
    for name in ("a", "b"):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True), name)
    for _ in range(3):
        engine.step()
    engine.abort_request("a")
    while engine.has_unfinished_requests():
        engine.step()
    assert sorted(drafter.forgotten) == ["a", "b"]


def test_metrics_count_drafts(loaded):
    drafter = Knowing({f"p{number}": [[]] * 3 for number in range(6)})
    drafter.propose = lambda request, max_tokens: [3] * max_tokens
    _, engine = run(loaded, drafter)
    metrics = engine.metrics()
    assert metrics.num_drafted_tokens > 0 and "drafted tokens accepted" in str(metrics)


def test_drafts_are_off_by_default_and_then_come_from_the_text(loaded):
    assert LLMEngine(EngineConfig(num_blocks=60), loaded=loaded).speculation is None
    engine = LLMEngine(EngineConfig(num_blocks=60, block_size=8, num_speculative_tokens=4), loaded=loaded)
    assert isinstance(engine.speculation.drafter, NgramDrafter)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_drafter_that_raises_ends_the_requests_that_run_and_ctrl_c_costs_no_token(loaded, error):
    plain, _ = run(loaded)
    tokens = {name: [each.token_ids for each in output.outputs] for name, output in plain.items()}

    class Raising(Knowing):
        num_told = 0

        def propose(self, request, max_tokens):
            self.calls.append(request.request_id)
            if len(self.calls) in (3, 20):
                raise error("the drafter is broken")
            return super().propose(request, max_tokens)

        def advance(self, request, token_ids):
            self.num_told += 1
            if self.num_told in (2, 9):
                raise error("the drafter is broken")
            super().advance(request, token_ids)

    drafter = Raising(tokens)
    engine = LLMEngine(EngineConfig(num_blocks=60, block_size=8, num_speculative_tokens=4, max_num_seqs=4),
                       EngineParts(drafter=lambda: drafter), loaded)
    engine.sizes = dataclasses.replace(engine.sizes, draft_costs=FREE)
    engine.speculation.costs = FREE
    for number, params in enumerate(PARAMS):
        engine.add_request([number + 1, *range(9, 25)], SamplingParams(max_tokens=30, ignore_eos=True, **params),
                           f"p{number}")
    outputs, num_raised = {}, 0
    while engine.has_unfinished_requests():
        try:
            outputs |= {output.request_id: output for output in engine.step()}
        except error:
            num_raised += 1
        engine.kv_cache.check_integrity()
    assert engine.kv_cache.block_pool.get_usage() == 0.0 and set(outputs) == set(tokens)
    failed = {name for name, output in outputs.items() if output.error == "ValueError: the drafter is broken"}
    assert (num_raised == 4 and not failed) if error is KeyboardInterrupt else (num_raised == 0 and len(failed) > 1)
    for name, output in outputs.items():
        got = [each.token_ids for each in output.outputs]
        assert got == tokens[name] if name not in failed else all(
            mine == whole[:len(mine)] for mine, whole in zip(got, tokens[name]))


def test_a_step_whose_guesses_fail_is_computed_without_them_and_leaves_no_nan(loaded):
    plain, _ = run(loaded)
    tokens = {name: [each.token_ids for each in output.outputs] for name, output in plain.items()}
    engine = LLMEngine(EngineConfig(num_blocks=60, block_size=8, num_speculative_tokens=4, native=False),
                       EngineParts(drafter=lambda: Knowing(tokens)), loaded)
    engine.speculation.costs = FREE
    step, num_failed = engine.runner.step, 0

    def failing(requests, copies=()):
        """Compute a step. If it has drafts, leave NaN in the slots of the guesses and fail."""
        nonlocal num_failed
        logits = step(requests, copies)
        drafting = [each for each in requests if len(each.token_ids) > 1 and each.context_len > 20]
        for each in drafting:
            for position in range(each.context_len - len(each.token_ids) + 1, each.context_len):
                for pool in engine.runner.cache.pools:
                    pool[each.block_ids[position // 8], :, position % 8] = float("nan")
        if drafting:
            num_failed += 1
            raise ValueError("keys or values contain NaN")
        return logits

    engine.runner.step = failing
    for number, params in enumerate(PARAMS):
        engine.add_request([number + 1, *range(9, 25)], SamplingParams(max_tokens=30, ignore_eos=True, **params),
                           f"p{number}")
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        assert not any(mx.isnan(pool).any().item() for pool in engine.runner.cache.pools)
    assert {name: [each.token_ids for each in output.outputs] for name, output in outputs.items()} == tokens
    assert num_failed > 5
