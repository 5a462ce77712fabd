"""Lab 5.3, the engine. Each test checks one rule, and its failure message says which.

The model is a small random network with one token per byte, so "Once" is four tokens. With the same weights, a request
must generate the same text in any batch as alone in the reference engine. ``plan_and_compute`` runs an engine without
``deliver``. ``hand_in`` passes tokens to ``deliver`` that the test has chosen, not the model.
"""

import contextlib
import copy
import functools
import inspect
import io
import random
from dataclasses import replace

import pytest

from course.gauges import is_stand_in
from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine as ReferenceEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.executor import StepResult
from mini_vllm.models.random_model import make_random
from mini_vllm.request import Priority, Request, RequestStatus, SamplingParams
from mini_vllm.scheduler import SchedulerOutput

SHAPE = dict(model_type="llama", vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=False)
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=6, temperature=0.9, seed=7, ignore_eos=True)


@functools.cache
def loaded():
    return make_random(SHAPE)


def settings_of(num_blocks=60, seats=8, budget=64, size=4, cache=True, native=None):
    """Return a configuration with ``num_blocks`` usable blocks of ``size`` tokens."""
    return EngineConfig(num_blocks=num_blocks + 1, block_size=size, max_num_seqs=seats, max_num_batched_tokens=budget,
                        enable_prefix_caching=cache, enable_lookahead=False, native=native)


class Held:
    """An engine with its parts. The parts are read once, so the tests use exactly those that the frame has made."""

    def __init__(self, engine):
        self.engine = engine
        for name in ("kv_cache", "scheduler", "runner", "sampler", "live"):
            part = getattr(engine, name)
            assert not is_stand_in(part), f"engine.{name} is not the part that the frame has made: {part!r}"
            setattr(self, name, part)
        assert self.scheduler.kv_cache is self.kv_cache, "engine.scheduler and engine.kv_cache do not belong together"

    def __getattr__(self, name):
        return getattr(self.engine, name)


def make_engine(lab, parts=None, **settings):
    return Held(lab.LLMEngine(settings_of(**settings), parts, loaded()))


def must_raise(error, call, function, *args):
    """Check that ``function(*args)``, described as ``call``, raises ``error``. NotImplementedError passes through."""
    try:
        returned = function(*args)
    except NotImplementedError:
        raise
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{call} raised {type(other).__name__}({other}), expected a {error.__name__}") from other
    raise AssertionError(f"{call} returned {returned!r}, expected a {error.__name__}: a rejected request must raise")


def alone(prompt, params):
    """Return a copy of the output of this request when it is alone in the reference engine."""
    return copy.deepcopy(_alone(prompt, params))


@functools.cache
def _alone(prompt, params):
    engine = ReferenceEngine(settings_of(cache=False), None, loaded())
    engine.add_request(prompt, params, "alone")
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[0]


def text_of(token_ids):
    return loaded().tokenizer.decode(token_ids)


def ids_of(text):
    return loaded().tokenizer.encode(text)


def num_used(engine):
    pool = engine.kv_cache.block_pool
    return pool.num_blocks - 1 - pool.get_num_free_blocks()


def names(requests):
    return [request.request_id for request in requests]


def plan_and_compute(engine):
    """Make a step without ``deliver``: the scheduler appends the tokens. Return the plan and the result."""
    plan = engine.scheduler.schedule()
    result = engine.compute(plan)
    engine.scheduler.update_from_output(plan, result.token_ids)
    return plan, result


@contextlib.contextmanager
def causes_told(call, engine):
    """Explain errors that other parts raise because of a mistake in ``_finish`` or ``deliver``."""
    ids = list(engine.live.groups)
    try:
        yield
    except ValueError as error:
        if "is not in the queue" not in str(error):
            raise
        raise AssertionError(
            f"{call} raised ValueError: {error}. The scheduler looks at a request's status to find it, and treats a "
            "request that does not run as one that waits. In _finish, set the status last, after "
            "scheduler.abort_request").with_traceback(error.__traceback__) from error
    except KeyError as error:
        if error.args[0] not in ids:
            raise
        raise AssertionError(
            f"{call} raised KeyError: {error}, the id of a request. Was its group released twice in one step? A group "
            "has one output and is released once, even if several of its sequences got a token: compare groups by "
            "their request_id. Or was a user's id passed to live.group_of or live.sequence, which know 'r#0', not 'r'?"
        ).with_traceback(error.__traceback__) from error


def one_step(engine):
    with causes_told("step()", engine):
        return engine.step()


def hand_in(engine, tokens):
    """Plan and compute a step, and deliver ``tokens`` (by request id) instead of the tokens that were sampled."""
    plan = engine.scheduler.schedule()
    engine.compute(plan)
    with causes_told(f"deliver() of the tokens {dict(tokens)}", engine):
        return engine.deliver(plan, StepResult(dict(tokens)))


def only_output(engine, tokens):
    """Call ``hand_in`` with these tokens, all of one request, and return its only output."""
    outputs = hand_in(engine, tokens)
    told = [output.request_id for output in outputs]
    assert len(told) == 1, (
        f"deliver() of the tokens {dict(tokens)}, all of one request, returned outputs for {told}, expected one: all "
        "sequences of a request are in the same output")
    return outputs[0]


def calls_of(owner, name):
    """Record the calls of the method ``name`` of ``owner`` from now on: a dictionary of arguments for each call."""
    method, calls = getattr(owner, name), []

    def recorded(*args, **kwargs):
        calls.append(inspect.signature(method).bind(*args, **kwargs).arguments)
        return method(*args, **kwargs)

    setattr(owner, name, recorded)
    return calls


def calls_of_the_sampler(engine):
    """Record the calls of ``sample``, and of ``choose``, which ``sample`` calls and the reference's engine calls
    itself."""
    return calls_of(engine.sampler, "sample"), calls_of(engine.sampler, "choose")


def told_by_a_step(engine):
    """Return the outputs of one step, and check that finished requests have been released."""
    outputs = one_step(engine)
    kept = [output.request_id for output in outputs if output.finished and output.request_id in engine.live.groups]
    assert not kept, (
        f"step() returned finished outputs for {kept}, but live.groups still has them: release a request in the step "
        "that returns its finished output (deliver: let_go)")
    engine.kv_cache.check_integrity()
    return outputs


def run(engine, max_steps=300):
    """Step until nothing is left, and return the last output of each request."""
    last = {}
    for _ in range(max_steps):
        if not engine.has_unfinished_requests():
            return last
        for output in told_by_a_step(engine):
            told = last.get(output.request_id)
            assert told is None or not told.finished, (
                f"step() returned another output of {output.request_id!r} after a finished one: a finished output must "
                "be the last")
            last[output.request_id] = output
    raise AssertionError(f"after {max_steps} steps has_unfinished_requests() is still True; finish reasons so far: "
                         f"{ {name: output.finish_reason for name, output in last.items()} }. Every request must end")


def assert_all_home(engine, when):
    left = names(engine.scheduler.waiting), names(engine.scheduler.running), list(engine.scheduler.requests)
    assert left == ([], [], []), f"{when}: (waiting, running, requests) of the scheduler is {left}, expected no request"
    assert num_used(engine) == 0, f"{when}: {num_used(engine)} blocks are in use, expected 0: all blocks must be free"
    engine.kv_cache.check_integrity()
    assert not engine.live.groups, f"{when}: live.groups still has {list(engine.live.groups)}, expected none"
    assert engine.has_unfinished_requests() is False, f"{when}: has_unfinished_requests() is not False"


def assert_says_what_it_says_alone(output, prompt, params, setting):
    wanted = alone(prompt, params)
    for got, want in zip(output.outputs, wanted.outputs, strict=True):
        facts = got.token_ids, got.text, got.finish_reason, got.stop_reason
        expected = want.token_ids, want.text, want.finish_reason, want.stop_reason
        assert facts == expected, (
            f"{setting}: output {got.index} of {prompt!r} has (tokens, text, finish_reason, stop_reason) {facts}, but "
            f"alone it has {expected}: other requests must not change the output")
    usage = output.usage.prompt_tokens, output.usage.completion_tokens
    expected = wanted.usage.prompt_tokens, wanted.usage.completion_tokens
    assert usage == expected, f"{setting}: {prompt!r} has usage {usage} (prompt, completion), expected {expected}"


# ---- Task 1: arrival


@pytest.mark.points(1)
def test_task_1_a_request_that_came_waits(lab):
    engine = make_engine(lab)
    assert engine.has_unfinished_requests() is False, "without a request has_unfinished_requests() must be False"
    returned = engine.add_request("Once", GREEDY, "a")
    assert returned == "a", f"add_request(..., request_id='a') returned {returned!r}, expected 'a'"
    got = names(engine.scheduler.waiting), list(engine.live.groups), num_used(engine)
    assert got == (["a"], ["a"], 0), (
        f"after add_request of 'a', (waiting, live.groups, blocks in use) is {got}, expected (['a'], ['a'], 0): it "
        "waits in the scheduler, it is registered in live, and nothing is computed yet")
    assert engine.has_unfinished_requests() is True, "'a' waits, but has_unfinished_requests() is not True"


@pytest.mark.points(1)
def test_task_1_an_id_is_made_if_there_is_none(lab):
    engine = make_engine(lab)
    first, second = engine.add_request("Once"), engine.add_request("upon")
    assert isinstance(first, str) and isinstance(second, str) and first != second, (
        f"two add_request() without an id returned {first!r} and {second!r}, expected two different ids")
    got = list(engine.live.groups)
    assert got == [first, second], f"live.groups has {got}, expected the two ids that were returned: {[first, second]}"


@pytest.mark.points(2)
@pytest.mark.parametrize("what, prompt, params, request_id", [
    ("a prompt of 80 tokens in a pool of 12 blocks of 4", "x" * 80, GREEDY, "r"),
    ("an empty prompt", "", GREEDY, "r"),
    ("9 samples with max_num_seqs 8", "Once", replace(GREEDY, n=9), "r"),
    ("an id that is in use", "upon", GREEDY, "a"),
])
def test_task_1_a_rejected_request_leaves_no_trace(lab, what, prompt, params, request_id):
    engine = make_engine(lab, num_blocks=12)
    engine.add_request("Once", GREEDY, "a")
    must_raise(ValueError, f"add_request of {what}", engine.add_request, prompt, params, request_id)
    got = list(engine.live.groups), names(engine.scheduler.waiting)
    assert got == (["a"], ["a"]), (
        f"{what} was rejected, but (live.groups, waiting) is {got}, expected (['a'], ['a']): a rejected request must "
        "leave no trace, or the engine waits for it forever")
    if request_id == "r":
        returned = engine.add_request("upon", GREEDY, "r")
        assert returned == "r", f"'r' was rejected, so its id is free; add_request with this id returned {returned!r}"


@pytest.mark.points(1)
def test_task_1_priority_and_keys_go_with_the_request(lab):
    engine = make_engine(lab)
    engine.add_request("Once", GREEDY, "a", Priority.LOW)
    engine.add_request("Once", GREEDY, "b", Priority.HIGH, ("tenant",))
    got = names(engine.scheduler.waiting)
    assert got == ["b", "a"], (
        f"'a' arrived with Priority.LOW, then 'b' with Priority.HIGH; the waiting order is {got}, expected ['b', 'a']")
    keys = engine.scheduler.requests["b"].extra_keys
    assert keys == ("tenant",), f"'b' arrived with extra_keys ('tenant',), but its request has {keys}"


@pytest.mark.points(1)
def test_task_1_of_several_samples_the_leader_waits(lab):
    engine = make_engine(lab)
    got = engine.add_request("Once", replace(SEEDED, n=3), "r")
    assert got == "r", f"add_request(..., n=3, request_id='r') returned {got!r}, expected 'r', the user's id"
    got = names(engine.scheduler.waiting), len(engine.live.groups["r"].sequences)
    assert got == (["r#0"], 3), (
        f"after add_request with n=3, (waiting, sequences in the group) is {got}, expected (['r#0'], 3): the leader "
        "computes the prompt for all")


@pytest.mark.points(1)
def test_task_1_an_unseen_output_still_has_to_be_reported(lab):
    engine = make_engine(lab)
    assert engine.has_unfinished_requests() is False, "without a request has_unfinished_requests() must be False"
    engine.put_back([alone("Once", GREEDY)])
    assert engine.has_unfinished_requests() is True, (
        "an output was put back for another caller, but has_unfinished_requests() is not True: step() would not be "
        "called again, and the output would be lost")
    engine = make_engine(lab)
    engine.add_request("Once", GREEDY, "a")
    engine.scheduler.abort_request("a")
    assert engine.has_unfinished_requests() is True, (
        "the scheduler has removed 'a', but live.groups still has it: has_unfinished_requests() is not True, although "
        "no finished output of 'a' was returned: check live.groups")


# ---- Task 2: from a plan to tokens


@pytest.mark.points(2)
def test_task_2_the_runner_is_given_the_tokens_that_were_planned(lab):
    """Replace the runner by a function that records the requests and returns zeros, so no network runs."""
    engine = make_engine(lab, budget=8)
    asked = []

    def answer(requests, copies=()):
        asked[:] = requests
        return mx.zeros((sum(each.needs_logits for each in requests), SHAPE["vocab_size"]))

    engine.runner.step = answer
    prompt = "Once upon a time there"
    engine.add_request(prompt, GREEDY, "a")
    for step, (start, end) in enumerate([(0, 8), (8, 16), (16, 22), (22, 23)]):
        asked.clear()
        plan = engine.scheduler.schedule()
        expected = engine.scheduler.requests["a"].all_token_ids[start:end], engine.kv_cache.get_block_ids("a"), end
        result = engine.compute(plan)
        got = [(list(each.token_ids), list(each.block_ids), each.context_len) for each in asked]
        assert got == [expected], (
            f"a prompt of 22 tokens, at most 8 per step. Step {step} computes the tokens from {start} to {end}. The "
            f"runner got (token_ids, block_ids, context_len) {got}, expected {[expected]}: num_computed_tokens is "
            f"already {end}. The tokens of the step end there, and it is also the number of tokens with K/V after the "
            "step, context_len")
        wants = [each.needs_logits for each in asked]
        assert wants == [end >= 22], (
            f"a prompt of 22 tokens, at most 8 per step. Step {step} computes the tokens from {start} to {end}. "
            f"needs_logits is {wants}, expected {[end >= 22]}: logits are needed if these tokens include the last "
            "token that the request has")
        engine.scheduler.update_from_output(plan, result.token_ids)


@pytest.mark.points(2)
def test_task_2_every_prompt_gets_its_first_token(lab):
    engine = make_engine(lab)
    prompts = {"a": "Once upon", "b": "The king", "c": "x"}
    for name, prompt in prompts.items():
        engine.add_request(prompt, GREEDY, name)
    plan, result = plan_and_compute(engine)
    expected = {name: alone(prompt, GREEDY).token_ids[0] for name, prompt in prompts.items()}
    assert result.token_ids == expected, (
        f"compute() of three whole prompts returned token_ids {result.token_ids}, expected {expected}. The order of "
        f"arrival is {list(prompts)}, the order of the plan is {names(plan.requests)}: row i of the logits belongs to "
        "the i-th request *of the plan* that needs logits")
    assert not result.logprobs and not result.errors, (
        f"compute() returned logprobs {result.logprobs} and errors {result.errors}, expected none: no request "
        "asked for logprobs, and nothing failed")


@pytest.mark.points(3)
def test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token(lab):
    engine = make_engine(lab, budget=8)
    prompt = "Once upon a time there"
    engine.add_request(prompt, GREEDY, "a")
    got = []
    for _ in range(4):
        plan, result = plan_and_compute(engine)
        got.append((plan.num_scheduled_tokens["a"], result.token_ids))
    first, second = alone(prompt, GREEDY).token_ids[:2]
    assert got == [(8, {}), (8, {}), (6, {"a": first}), (1, {"a": second})], (
        f"a prompt of 22 tokens, at most 8 per step: the steps have (tokens, token_ids) {got}, expected (8, {{}}), (8, "
        f"{{}}), (6, {{'a': {first}}}), (1, {{'a': {second}}}): in the middle of a prompt the next token is known")


@pytest.mark.points(1)
def test_task_2_a_step_without_tokens_is_computed_too(lab):
    """Count the operations on the pools that MLX has recorded but not computed yet."""
    engine = make_engine(lab, budget=8, native=False)  # the step in C is not lazy
    engine.add_request("Once upon a time there", GREEDY, "a")
    plan, _ = plan_and_compute(engine)
    got = dict(plan.num_scheduled_tokens)
    assert got == {"a": 8}, f"'a' has 22 tokens, at most 8 per step: the first plan is {got}, expected 8 for 'a'"
    graph = io.StringIO()
    mx.export_to_dot(graph, *engine.runner.cache.pools)
    num_waiting = graph.getvalue().count("label")
    assert num_waiting == 0, (
        "a prompt of 22 tokens, at most 8 per step: after compute() of the first 8, which give no token, "
        f"{num_waiting} operations on runner.cache.pools are recorded but not computed, expected none. MLX is lazy, "
        "and nothing reads a result of such a step: call _rows_to_sample in every step, it evaluates the K/V")


@pytest.mark.points(2)
def test_task_2_a_preempted_request_gets_no_token_before_its_last(lab):
    """Compute the output of a preempted request again, like a prompt."""
    engine = make_engine(lab, budget=8, cache=False)
    params = replace(GREEDY, max_tokens=20)
    engine.add_request("Once", params, "a")
    said = [plan_and_compute(engine)[1].token_ids.get("a") for _ in range(15)]
    expected = alone("Once", params).token_ids
    assert said == expected[:15], f"before it was preempted, 'a' got the tokens {said}, expected {expected[:15]}"
    engine.scheduler.preempt(engine.scheduler.requests["a"])
    got = []
    for _ in range(3):
        plan, result = plan_and_compute(engine)
        got.append((plan.num_scheduled_tokens["a"], result.token_ids))
    assert got == [(8, {}), (8, {}), (3, {"a": expected[15]})], (
        "'a' had a prompt of 4 tokens and 15 output tokens when it was preempted. It computes these 19 again, at most "
        f"8 per step: the steps have (tokens, token_ids) {got}, expected (8, {{}}), (8, {{}}), (3, {{'a': "
        f"{expected[15]}}}): before its last token, the next token is always known, in the prompt and in the output")


@pytest.mark.points(2)
def test_task_2_a_step_is_one_call(lab):
    engine = make_engine(lab, budget=12)
    for name, prompt in (("a", "Once"), ("b", "The"), ("long", "upon a time there")):
        engine.add_request(prompt, replace(GREEDY, logprobs=1), name)
    computed, sampled, chosen = calls_of(engine.runner, "step"), *calls_of_the_sampler(engine)
    for step in range(2):
        plan, result = plan_and_compute(engine)
        got = [len(call["requests"]) for call in computed]
        assert got == [3], (
            f"step {step} has the requests {names(plan.requests)}: the calls of runner.step had {got} requests, "
            "expected [3]: one call for all, so that the weights are read once")
        got = [len(call["rows"]) for call in sampled or chosen]
        assert got == [len(result.token_ids)], (
            f"step {step} gave tokens to {list(result.token_ids)}: the calls of sampler.sample had {got} rows, "
            f"expected [{len(result.token_ids)}]: one call for all")
        computed.clear()
        sampled.clear()
        chosen.clear()
    engine = make_engine(lab, budget=8)
    engine.add_request("Once upon a time", replace(GREEDY, logprobs=1), "a")
    (sampled, chosen), got = calls_of_the_sampler(engine), []
    for _ in range(2):
        plan_and_compute(engine)
        got.append([len(call["rows"]) for call in sampled or chosen])
    assert got == [[], [1]], (
        "a prompt of 16 tokens, at most 8 per step: after each of its two steps the calls of sampler.sample so far had "
        f"{got} rows, expected [[], [1]]: a step without a token to draw does not call the sampler")


@pytest.mark.points(3)
def test_task_2_a_batch_of_decodes_and_chunks_gives_each_request_its_own(lab):
    """Use a plan that is not in the order of arrival: the long prompt arrives first and is served last."""
    engine = make_engine(lab, budget=12)
    prompts = {"long": "In the forest there lived a wolf", "a": "Once", "b": "The king"}
    params = {"long": GREEDY, "a": replace(SEEDED, seed=1), "b": replace(SEEDED, seed=2)}
    said, orders = {name: [] for name in prompts}, []
    for name, prompt in prompts.items():
        engine.add_request(prompt, params[name], name, Priority.LOW if name == "long" else Priority.HIGH)
    for _ in range(6):
        plan, result = plan_and_compute(engine)
        orders.append(names(plan.requests))
        for name, token_id in result.token_ids.items():
            said[name].append(token_id)
    assert orders[1] == ["a", "b", "long"], f"the setup of this test failed: {orders}"
    for name, prompt in prompts.items():
        expected = alone(prompt, params[name]).token_ids[:2 if name == "long" else 6]
        assert said[name] == expected, (
            f"{name!r} got the tokens {said[name]}, but alone {prompt!r} gets {expected}. The steps were {orders}: row "
            "i of the logits belongs to the i-th request *of the plan* that needs logits")


@pytest.mark.points(2)
def test_task_2_compute_changes_no_request(lab):
    engine = make_engine(lab, budget=8)
    for name, prompt in (("a", "Once"), ("b", "Once upon a time")):
        engine.add_request(prompt, GREEDY, name)
    for step in range(3):
        plan = engine.scheduler.schedule()
        assert sorted(names(plan.requests)) == ["a", "b"], (
            f"'a' and 'b' have arrived, but step {step} plans {names(plan.requests)}, expected both: add_request must "
            "add them to the scheduler")
        before = [(r.request_id, r.num_computed_tokens, list(r.output_token_ids)) for r in plan.requests]
        result = engine.compute(plan)
        after = [(r.request_id, r.num_computed_tokens, list(r.output_token_ids)) for r in plan.requests]
        assert after == before, (
            f"step {step}: compute() changed (id, num_computed_tokens, output tokens) from {before} to {after}: the "
            "scheduler has already counted the planned tokens, and it appends the sampled ones itself")
        engine.scheduler.update_from_output(plan, result.token_ids)


@pytest.mark.points(2)
def test_task_2_blocks_are_copied_before_the_step_writes(lab):
    engine = make_engine(lab)
    first, second = "Once upon", "Once upsy-daisy"
    engine.add_request(first, GREEDY, "a")
    plan_and_compute(engine)
    engine.scheduler.abort_request("a")
    engine.live.remove(engine.live.groups["a"])
    engine.add_request(second, GREEDY, "b")
    plan, result = plan_and_compute(engine)
    assert plan.copies and plan.requests[0].num_cached_tokens == 7, f"the setup of this test failed: {plan}"
    expected = {"b": alone(second, GREEDY).token_ids[0]}
    assert result.token_ids == expected, (
        f"{second!r} shares 7 tokens with an earlier request, 3 of them inside a block, and plan.copies is "
        f"{plan.copies}; compute() returned {result.token_ids}, expected {expected}: pass the copies to the runner")


@pytest.mark.points(2)
def test_task_2_log_probabilities_go_to_the_requests_that_asked(lab):
    engine = make_engine(lab)
    asking = replace(GREEDY, logprobs=2)
    for name, prompt, params in (("a", "Once", GREEDY), ("b", "upon", asking), ("c", "a time", replace(GREEDY, n=1))):
        engine.add_request(prompt, params, name)
    _, result = plan_and_compute(engine)
    expected = alone("upon", asking).outputs[0].logprobs[0]
    got = {name: each and (each.token_id, round(each.logprob, 3)) for name, each in result.logprobs.items()}
    assert got == {"b": (expected.token_id, round(expected.logprob, 3))}, (
        f"only 'b' asked for log-probabilities; compute() returned {got} (token, logprob), expected "
        f"{{'b': {(expected.token_id, round(expected.logprob, 3))}}}: leave out the requests that did not ask")


@pytest.mark.points(1)
def test_task_2_a_prompt_can_be_scored_chunk_by_chunk(lab):
    engine = make_engine(lab, budget=8)
    prompt, params = "Once upon a time", replace(GREEDY, prompt_logprobs=0)
    engine.add_request(prompt, params, "a")
    engine.add_request("The", GREEDY, "b")
    group, computed = engine.live.groups["a"], calls_of(engine.runner, "step")
    tokens = {}
    for _ in range(3):
        for name, token_id in plan_and_compute(engine)[1].token_ids.items():
            tokens.setdefault(name, token_id)
    wanted = alone(prompt, params)
    got = [each and each.token_id for each in group.prompt_logprobs]
    has_asked = any(step.needs_all_logits for call in computed for step in call["requests"])
    assert got == [each and each.token_id for each in wanted.prompt_logprobs], (
        f"{prompt!r} asked for prompt_logprobs; after its chunks they contain the tokens {got}, expected None and then "
        "the tokens of the prompt: " + (
            "_rows_to_sample records them. Call it in every step, even in one that gives no token" if has_asked else
            "no step had needs_all_logits, which asks for the logits of all tokens"))
    expected = {"a": wanted.token_ids[0], "b": alone("The", GREEDY).token_ids[0]}
    assert tokens == expected, f"the first tokens are {tokens}, expected {expected}: scoring a prompt changes no token"


# ---- Task 3: from tokens to text, and out


@pytest.mark.points(3)
def test_task_3_texts_stream_and_grow(lab):
    engine = make_engine(lab)
    prompts = {"a": "Once upon", "b": "The king"}
    for name, prompt in prompts.items():
        engine.add_request(prompt, GREEDY, name)
    texts = {name: [] for name in prompts}
    for step in range(6):
        outputs = one_step(engine)
        got = sorted((output.request_id, len(output.token_ids), output.finished) for output in outputs)
        expected = [(name, step + 1, step == 5) for name in "ab"]
        assert got == expected, (
            f"step {step} returned (id, tokens so far, finished) {got}, expected {expected}: every step returns the "
            "outputs of the requests that got a token, including the last token")
        for output in outputs:
            texts[output.request_id].append(output.text)
    for output in outputs:
        assert_says_what_it_says_alone(output, prompts[output.request_id], GREEDY, "two requests at once")
    for name, grown in texts.items():
        assert all(later.startswith(earlier) for earlier, later in zip(grown, grown[1:])), (
            f"the texts of {name!r}, step by step, are {grown}: a text may only grow")


@pytest.mark.points(2)
def test_task_3_a_request_that_waits_or_is_in_its_prompt_has_no_output(lab):
    engine = make_engine(lab, budget=8, seats=1)
    engine.add_request("Once upon a time there", GREEDY, "a")
    engine.add_request("waits", GREEDY, "w")
    got = [[output.request_id for output in one_step(engine)] for _ in range(4)]
    assert got == [[], [], ["a"], ["a"]], (
        f"max_num_seqs is 1; 'a' has a prompt of 22 tokens, 8 per step, and 'w' waits: steps returned outputs of "
        f"{got}, expected [[], [], ['a'], ['a']]: a request without a new token has no output")


@pytest.mark.points(2)
def test_task_3_the_last_token_of_max_tokens_is_the_last(lab):
    engine = make_engine(lab)
    engine.add_request("Once", replace(GREEDY, max_tokens=3), "a")
    first, second, third = ids_of("abc")
    hand_in(engine, {"a": first})
    hand_in(engine, {"a": second})
    output = only_output(engine, {"a": third})
    got = output.text, output.token_ids, output.finish_reason, output.finished
    assert got == ("abc", [first, second, third], "length", True), (
        f"max_tokens is 3, and deliver() got 'a', 'b', 'c': (text, tokens, finish_reason, finished) is {got}, "
        f"expected ('abc', {[first, second, third]}, 'length', True): append a token before you check for the end")


@pytest.mark.points(2)
def test_task_3_the_end_of_the_text_counts_but_is_not_shown(lab):
    engine = make_engine(lab)
    engine.add_request("Once", replace(GREEDY, ignore_eos=False), "a")
    (eos,) = loaded().tokenizer.eos_token_ids
    first = ids_of("y")[0]
    hand_in(engine, {"a": first})
    output = only_output(engine, {"a": eos})
    got = output.text, output.token_ids, output.finish_reason, output.usage.completion_tokens
    assert got == ("y", [first, eos], "stop", 2), (
        f"deliver() got 'y', then the end of the text: (text, tokens, finish_reason, completion_tokens) is "
        f"{got}, expected ('y', {[first, eos]}, 'stop', 2)")
    assert_all_home(engine, "after the end of the text")


@pytest.mark.points(2)
def test_task_3_what_was_held_back_comes_with_the_end(lab):
    engine = make_engine(lab)
    engine.add_request("Once", replace(GREEDY, max_tokens=3, stop="###"), "a")
    shown = []
    for token_id in ids_of("x##"):
        output = only_output(engine, {"a": token_id})
        shown.append(output.text)
    assert shown == ["x", "x", "x##"], (
        f"stop is '###', max_tokens is 3, and deliver() got 'x', '#', '#': the texts are {shown}, expected ['x', 'x', "
        "'x##']: text that might become a stop string is held back, and shown when the output ends without it")
    engine.add_request("Once", replace(GREEDY, max_tokens=9, stop="###"), "b")
    told = [[(output.text, output.finish_reason, output.outputs[0].stop_reason)
             for output in hand_in(engine, {"b": token_id})] for token_id in ids_of("##x###")]
    expected = [[("", None, None)]] * 2 + [[("##x", None, None)]] * 3 + [[("##x", "stop", "###")]]
    assert told == expected, (
        f"stop is '###', max_tokens is 9, and deliver() got '#', '#', 'x', '#', '#', '#': it returned (text, "
        f"finish_reason, stop_reason) {told}, expected {expected}: a request that got a token has an output, even if "
        "its text is held back, and a stop string is never shown")


@pytest.mark.points(3)
def test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step(lab):
    engine = make_engine(lab, seats=2)
    engine.add_request("Once upon", replace(GREEDY, max_tokens=2), "a")
    engine.add_request("The king", GREEDY, "b")
    engine.add_request("waits", GREEDY, "w")
    one_step(engine)
    request = engine.scheduler.requests["a"]
    one_step(engine)
    got = request.status, names(engine.scheduler.running), list(engine.live.groups), num_used(engine)
    assert got == (RequestStatus.FINISHED_LENGTH, ["b"], ["b", "w"], 3), (
        f"'a' got its last token in step 2: (its status, running, live.groups, blocks in use) is {got}, expected "
        "(FINISHED_LENGTH, ['b'], ['b', 'w'], 3): its blocks are freed in that step, so that the next can use them")
    told = sorted(output.request_id for output in one_step(engine))
    assert told == ["b", "w"], f"step 3 returned outputs for {told}, expected ['b', 'w']: 'w' takes the place of 'a'"
    returned = engine.add_request("again", GREEDY, "a")
    assert returned == "a", f"'a' has ended, so its id is free; add_request with it returned {returned!r}, expected 'a'"
    run(engine)
    num_recomputed = engine.counts.num_recomputed_tokens
    assert num_recomputed == 0, (
        "'a' ended, and another request arrived with its id. No token was computed twice, but "
        f"counts.num_recomputed_tokens is {num_recomputed}, expected 0: let_go clears the counts of a request, "
        "live.remove does not")


@pytest.mark.points(2)
def test_task_3_a_step_without_tokens_is_over_too(lab):
    """Let 'b' share the prompt of 'a' but not its output, so that 'b' needs a copy of the block where they differ."""
    engine = make_engine(lab, budget=16, seats=4, size=8)
    prompt = "Once upon a time there"
    engine.add_request(prompt, replace(GREEDY, max_tokens=3), "a")
    run(engine)
    engine.add_request(prompt + " lived a king who had three sons and a dog", GREEDY, "b")
    plan = engine.scheduler.schedule()
    assert plan.copies, f"the setup of this test failed: {plan}"
    told = engine.deliver(plan, engine.compute(plan))
    assert told == [], f"'b' is in the middle of its prompt, but deliver() returned {told}"
    later = engine.scheduler.schedule()
    assert not later.copies, (
        f"'b' computed a chunk of its prompt; its plan had the copies {plan.copies}. That step gave no token, and the "
        f"next plan has the copies {later.copies}, expected none: they would overwrite what 'b' has written since. "
        "Call scheduler.update_from_output in every step, even in one without tokens")
    engine.deliver(later, engine.compute(later))
    engine.scheduler.abort_request("b")
    assert num_used(engine) == 0, (
        f"'b' was aborted in the middle of its prompt, and {num_used(engine)} blocks are in use, expected 0: the KV "
        "cache holds the blocks of a copy until scheduler.update_from_output completes the step")


@pytest.mark.points(2)
def test_task_3_a_finished_request_is_told_once(lab):
    engine = make_engine(lab)
    engine.add_request("Once", replace(GREEDY, max_tokens=1), "a")
    engine.add_request("The king", replace(GREEDY, max_tokens=3), "b")
    got = [sorted((output.request_id, output.finished) for output in one_step(engine)) for _ in range(3)]
    expected = [[("a", True), ("b", False)], [("b", False)], [("b", True)]]
    assert got == expected, f"three steps returned {got} (id, finished), expected {expected}: one finished output each"
    assert_all_home(engine, "'a' and 'b' have ended")


@pytest.mark.points(1)
def test_task_3_logprobs_and_timings_are_in_the_output(lab):
    now_s = [10.0]
    engine = lab.LLMEngine(settings_of(), None, loaded(), clock=lambda: now_s[0])
    params = replace(GREEDY, logprobs=1)
    engine.add_request("Once", params, "a")
    for moment_s, expected in ((11.0, 0.0), (13.0, 2.0), (18.0, 7.0)):
        now_s[0] = moment_s
        (told,) = one_step(engine)
        assert told.timings.rest_s == expected, (
            f"'a' got its first token at time 11.0; after the step at {moment_s} its output has {told.timings}, "
            f"expected rest_s {expected}, the time from the first token to the latest: note every token with "
            "group.note_token(self.clock())")
    output = run(engine)["a"].outputs[0]
    engine.add_request("Once", replace(GREEDY, max_tokens=1), "short")
    timings = run(engine)["short"].timings
    assert timings.first_token_s is not None, (
        f"a request of one token has {timings}, expected a first_token_s: note the last token like any other")
    wanted = alone("Once", params).outputs[0]
    got = [each.token_id for each in output.logprobs], round(output.cumulative_logprob, 3)
    expected = wanted.token_ids, round(wanted.cumulative_logprob, 3)
    assert got == expected, f"logprobs=1: (tokens in logprobs, cumulative_logprob) is {got}, expected {expected}"
    engine.add_request("Once", params, "asks")
    engine.add_request("upon", GREEDY, "does not")
    got = [each.token_id for each in run(engine)["asks"].outputs[0].logprobs or ()]
    assert got == wanted.token_ids, (f"one of two requests asked for logprobs: its logprobs contain the tokens {got}, "
                                     f"expected {wanted.token_ids}")


@pytest.mark.points(2)
def test_task_3_a_prompt_that_is_the_text_so_far_is_found(lab):
    engine = make_engine(lab)
    text, cached = "Once upon", []
    for turn in range(3):
        name = engine.add_request(text, GREEDY)
        output = run(engine)[name]
        assert_says_what_it_says_alone(output, text, GREEDY, f"turn {turn}")
        cached.append(output.num_cached_tokens)
        text += output.text if ids_of(text + output.text)[len(ids_of(text)):] == output.token_ids else " and then"
    assert cached[0] == 0 and 0 < cached[1] < cached[2], (
        f"three turns, and each prompt is the text so far: num_cached_tokens is {cached}, expected 0 and then growing "
        "numbers: the blocks of a finished request stay in the prefix cache")


@pytest.mark.points(4)
@pytest.mark.parametrize("setting", [dict(num_blocks=14, seats=6, budget=16), dict(num_blocks=12, seats=4, cache=False),
                                     dict(num_blocks=12, seats=4, budget=6, cache=False),
                                     dict(num_blocks=60, budget=10)], ids=str)
def test_task_3_company_changes_nothing(lab, setting):
    """Add requests at random times, in a pool so small that some are preempted."""
    rng = random.Random(3)
    engine, asked, last = make_engine(lab, **setting), {}, {}
    for number in range(9):
        prompt = rng.choice(["Once upon", "Once upon a time", "The king", "A"]) + "!" * rng.randint(0, 6)
        params = SamplingParams(max_tokens=rng.randint(1, 10), temperature=rng.choice([0, 0.8]), seed=number,
                                repetition_penalty=rng.choice([1.0, 1.3]))
        asked[engine.add_request(prompt, params, f"r{number}")] = prompt, params
        for _ in range(rng.randint(0, 3)):
            last |= {output.request_id: output for output in told_by_a_step(engine)}
    last |= run(engine)
    for name, (prompt, params) in asked.items():
        assert name in last and last[name].finished, f"{setting}: {name!r} has no finished output"
        assert_says_what_it_says_alone(last[name], prompt, params, f"{setting}, {name!r} of 9")
    assert engine.scheduler.num_preemptions or setting["num_blocks"] == 60, "test setup failed: no preemption"
    assert_all_home(engine, f"{setting}: all requests have ended")


# ---- Task 4: abort


@pytest.mark.points(2)
def test_task_4_abort_of_one_that_waits(lab):
    engine = make_engine(lab, seats=1)
    for name in "abc":
        engine.add_request("Once", GREEDY, name)
    one_step(engine)
    output = engine.abort_request("b")
    got = output and (output.request_id, output.text, output.finish_reason, output.finished)
    assert got == ("b", "", "abort", True), (
        f"'b' waits behind 'a'; abort_request('b') returned (id, text, finish_reason, finished) {got}, expected "
        "('b', '', 'abort', True)")
    told = set(run(engine))
    assert told == {"a", "c"}, f"'b' was aborted while waiting; later steps had outputs for {told}, expected a and c"
    assert_all_home(engine, "'b' was aborted, 'a' and 'c' have ended")


@pytest.mark.points(3)
@pytest.mark.parametrize("num_steps, num_tokens", [(1, 0), (2, 0), (3, 1), (5, 3)])
def test_task_4_abort_of_one_that_runs(lab, num_steps, num_tokens):
    """Abort after 1 and 2 steps, in the middle of the prompt, and later, while the request decodes."""
    engine = make_engine(lab, budget=8)
    prompt, params = "Once upon a time there", replace(GREEDY, max_tokens=20)
    engine.add_request(prompt, params, "a")
    engine.add_request("The king", params, "b")
    for _ in range(num_steps):
        one_step(engine)
    request = engine.scheduler.requests["a"]
    output = engine.abort_request("a")
    expected = alone(prompt, params).token_ids[:num_tokens]
    got = output.token_ids, output.finish_reason, output.finished, request.status
    assert got == (expected, "abort", True, RequestStatus.FINISHED_ABORTED), (
        f"'a' was aborted after step {num_steps}: (tokens, finish_reason, finished, status) is {got}, expected "
        f"({expected}, 'abort', True, FINISHED_ABORTED): the output contains all tokens so far")
    left = "a" in engine.live.groups, "a" in engine.scheduler.requests
    assert left == (False, False), (
        f"after abort_request('a'), ('a' in live.groups, 'a' in scheduler.requests) is {left}, expected (False, "
        "False): release the request, and free its blocks")
    last = run(engine)
    assert set(last) == {"b"}, f"after the abort of 'a' steps returned outputs for {set(last)}, expected only 'b'"
    assert_says_what_it_says_alone(last["b"], "The king", params, "'a' was aborted next to it")
    assert_all_home(engine, "'a' was aborted, 'b' has ended")


@pytest.mark.points(1)
def test_task_4_the_text_so_far_is_all_of_it(lab):
    engine = make_engine(lab)
    engine.add_request("Once", replace(GREEDY, stop="###"), "a")
    for token_id in ids_of("x##"):
        hand_in(engine, {"a": token_id})
    text = engine.abort_request("a").text
    assert text == "x##", (
        f"stop is '###', and the output was 'x##' when 'a' was aborted: its text is {text!r}, expected 'x##': the text "
        "that was held back can no longer become a stop string")


@pytest.mark.points(2)
def test_task_4_abort_of_one_that_was_preempted(lab):
    engine = make_engine(lab, num_blocks=8, cache=False)
    params = replace(GREEDY, max_tokens=18)
    for name, prompt in (("a", "Once upon a"), ("b", "The king sai")):
        engine.add_request(prompt, params, name)
    while not engine.scheduler.num_preemptions:
        one_step(engine)
    (victim,) = names(engine.scheduler.waiting)
    output = engine.abort_request(victim)
    num_said = len(output.token_ids)
    assert output.finish_reason == "abort" and num_said > 0, (
        f"{victim!r} was preempted, then aborted: finish_reason {output.finish_reason!r}, {num_said} tokens; expected "
        "'abort' and the tokens from before the preemption")
    last = run(engine)
    assert victim not in last, f"{victim!r} was aborted while it was preempted, but later steps returned outputs of it"
    assert_all_home(engine, f"{victim!r} was aborted, the other request has ended")


@pytest.mark.points(1)
def test_task_4_there_is_nothing_to_abort(lab):
    engine = make_engine(lab)
    engine.add_request("Once", replace(GREEDY, max_tokens=1), "a")
    engine.add_request("upon", GREEDY, "b")
    one_step(engine)
    for name in ("a", "nobody"):
        got = engine.abort_request(name)
        assert got is None, f"abort_request({name!r}), which has ended or never existed, returned {got}, expected None"
    assert list(engine.live.groups) == ["b"], f"'b' must not be affected, but live.groups is {list(engine.live.groups)}"
    engine.put_back([alone("Once", GREEDY)])
    got = engine.abort_request("alone"), sorted(output.request_id for output in one_step(engine))
    assert got == (None, ["alone", "b"]), (
        f"'alone' has ended, and its output was put back for its caller; 'b' runs: (abort_request('alone'), ids of "
        f"the next step's outputs) is {got}, expected (None, ['alone', 'b']): aborting an ended request does nothing")


@pytest.mark.points(1)
def test_task_4_what_was_put_back_of_an_aborted_request_is_not_told(lab):
    engine = make_engine(lab)
    engine.add_request("Once", GREEDY, "a")
    engine.put_back(one_step(engine))
    engine.abort_request("a")
    assert engine.has_unfinished_requests() is False, (
        "an output for 'a' was put back, and 'a' was aborted: has_unfinished_requests() is not False. The output of "
        "abort_request is newer, so the old one must be dropped (let_go)")


@pytest.mark.points(1)
def test_task_4_a_step_that_broke_leaves_nothing_to_find(lab):
    """Use no prefix tree: then only the engine removes unwritten blocks from the index."""
    engine = make_engine(lab, EngineParts(prefix_tree=None))
    prompt = "Once upon a time"
    engine.add_request(prompt, GREEDY, "a")
    model, engine.runner.model = engine.runner.model, None
    try:
        engine.step()
    except AttributeError:
        pass
    engine.abort_request("a")
    engine.runner.model = model
    assert_all_home(engine, "a step failed, and its request was aborted")
    engine.add_request(prompt, GREEDY, "b")
    output = run(engine)["b"]
    assert_says_what_it_says_alone(output, prompt, GREEDY, "after a failed step")
    assert output.num_cached_tokens == 0, (
        f"a step failed before it wrote anything, and then the same prompt found {output.num_cached_tokens} cached "
        "tokens, expected 0: the index must not contain unwritten blocks")


# ---- Task 5: n outputs of one prompt


@pytest.mark.points(3)
def test_task_5_three_samples_say_what_they_say_alone(lab):
    prompts, params = {"r": "Once upon a t", "s": "The king", "t": "A"}, replace(SEEDED, n=3, max_tokens=5)
    for setting in (dict(), dict(budget=8), dict(num_blocks=8, seats=4), dict(cache=False)):
        engine = make_engine(lab, **setting)
        for name, prompt in prompts.items():
            engine.add_request(prompt, params, name)
        try:
            last = run(engine)
        except NotImplementedError as error:
            if "_errors_if_stalled" not in str(error):
                raise
            left = [names(each.request for each in group.unfinished) for group in engine.live.groups.values()]
            raise AssertionError(
                f"{setting}: nothing could be planned, but these sequences have not ended: {left}. The scheduler does "
                "not know a sequence that was not forked, so it gets no second token: call _fork in deliver") from error
        for name, prompt in prompts.items():
            output = last[name]
            assert len({tuple(each.token_ids) for each in output.outputs}) == 3, (
                f"{setting}: the three samples of {prompt!r} are {[each.token_ids for each in output.outputs]}, "
                "expected three different ones: each sample also draws its first token with its own row")
            assert_says_what_it_says_alone(output, prompt, params, f"{setting}, n=3")
        assert engine.scheduler.num_preemptions or "num_blocks" not in setting, "test setup failed: no preemption"
        assert_all_home(engine, f"{setting}: all samples have ended")
    engine = make_engine(lab)
    engine.add_request("Once", replace(SEEDED, n=2), "two")
    prompts = {"one": "The king", "last": "A"}
    for name, prompt in prompts.items():
        engine.add_request(prompt, GREEDY, name)
    last = run(engine)
    got = {name: last[name].token_ids for name in prompts}
    expected = {name: alone(prompt, GREEDY).token_ids for name, prompt in prompts.items()}
    assert expected["one"][0] != expected["last"][0], f"the setup of this test failed: {expected}"
    assert got == expected, (
        "a prompt with two samples, then two prompts with one sample each, all computed in one step: the requests with "
        f"one sample generated {got}, expected {expected}: the two samples use row 0 of the logits, the other two "
        "requests use rows 1 and 2")


@pytest.mark.points(2)
def test_task_5_the_prompt_is_computed_once(lab):
    engine = make_engine(lab)
    engine.add_request("Once upon a", replace(SEEDED, n=3), "r")
    engine.add_request("x", replace(GREEDY, logprobs=1), "s")
    sampled, chosen = calls_of_the_sampler(engine)
    outputs = {output.request_id: output for output in one_step(engine)}
    rows = [len(call["rows"]) for call in sampled or chosen]
    assert rows == [4], (
        f"three samples and another request get a token in one step: the calls of sampler.sample had {rows} rows, "
        "expected [4]: one call for all")
    got = [len(each.token_ids) for each in outputs["r"].outputs], outputs["r"].usage.completion_tokens
    assert got == ([1, 1, 1], 3), (
        f"after the step that computed its prompt, (tokens of each sample, completion_tokens) is {got}, expected "
        "([1, 1, 1], 3)")
    assert num_used(engine) == 4, (
        f"three samples of a prompt of 11 tokens, and a prompt of 1 token: {num_used(engine)} blocks of 4 are in use, "
        "expected 4: the samples share the three blocks of their prompt")
    plan = engine.scheduler.schedule()
    assert sorted(plan.num_scheduled_tokens.items()) == [("r#0", 1), ("r#1", 1), ("r#2", 1), ("s", 1)], (
        f"the next plan is {plan.num_scheduled_tokens}, expected 1 token for each of r#0, r#1, r#2 and s: all of them "
        "continue after the prompt")


@pytest.mark.points(2)
def test_task_5_every_sample_has_one_seat(lab):
    engine = make_engine(lab, seats=4)
    engine.add_request("Once upon a", replace(SEEDED, n=3), "r")
    for name in "xyz":
        engine.add_request(name, GREEDY, name)
    leader = engine.live.groups["r"].leader
    one_step(engine)
    assert leader.num_sequences == 1, (
        f"n is 3, and all samples have been forked: num_sequences of the leader is {leader.num_sequences}, expected 1: "
        "scheduler.fork lowers it by 1 twice, so do not lower it yourself")
    one_step(engine)
    running = names(engine.scheduler.running)
    assert sorted(running) == ["r#0", "r#1", "r#2", "x"], (
        f"max_num_seqs is 4; 3 samples, and x, y, z, which arrived after them: {running} run, expected r#0, r#1, r#2 "
        "and x: at most max_num_seqs sequences may run")


@pytest.mark.points(2)
def test_task_5_an_output_a_request_and_a_step(lab):
    engine = make_engine(lab)
    engine.add_request("Once upon a", replace(SEEDED, n=3, max_tokens=4, logprobs=0), "r")
    for step in range(4):
        outputs = one_step(engine)
        got = [(output.request_id, [len(each.token_ids) for each in output.outputs]) for output in outputs]
        assert got == [("r", [step + 1] * 3)], (
            f"step {step} returned (id, tokens of each sample) {got}, expected {[('r', [step + 1] * 3)]}: three "
            "samples are one request with one output; each gets one token per step")
        for each in outputs[0].outputs:
            scored = [logprob.token_id for logprob in each.logprobs]
            assert scored == each.token_ids, (
                f"step {step}, n=3 with logprobs: sample {each.index} has the tokens {each.token_ids} and logprobs of "
                f"{scored}: pass each token to its own sequence with its own logprob")


@pytest.mark.points(2)
def test_task_5_one_sample_ends_and_the_others_go_on(lab):
    engine = make_engine(lab)
    engine.add_request("Once upon a", replace(SEEDED, n=3, max_tokens=4, stop="!"), "r")
    hand_in(engine, {"r#0": ids_of("a")[0], "r#1": ids_of("!")[0], "r#2": ids_of("c")[0]})
    running = names(engine.scheduler.running)
    assert running == ["r#0", "r#2"], f"sample 1 ended with its first token; {running} run, expected ['r#0', 'r#2']"
    output = only_output(engine, {"r#0": ids_of("x")[0], "r#2": ids_of("z")[0]})
    got = [(each.text, each.finish_reason) for each in output.outputs], output.finished
    assert got == ([("ax", None), ("", "stop"), ("cz", None)], False), (
        f"sample 1 stopped after a step, the others continued: (text, finish_reason) and finished are {got}, expected "
        "([('ax', None), ('', 'stop'), ('cz', None)], False): a request is finished when all its samples are")
    aborted = engine.abort_request("r")
    got = [(each.text, each.finish_reason) for each in aborted.outputs], aborted.finished
    assert got == ([("ax", "abort"), ("", "stop"), ("cz", "abort")], True), (
        f"after abort_request, (text, finish_reason) and finished are {got}, expected ([('ax', 'abort'), ('', 'stop'), "
        "('cz', 'abort')], True): a sample that had ended keeps its reason")
    assert_all_home(engine, "all samples have ended")


@pytest.mark.points(1)
def test_task_5_abort_takes_the_users_id(lab):
    engine = make_engine(lab)
    engine.add_request("Once upon a", replace(SEEDED, n=2), "r")
    one_step(engine)
    for name in ("r#0", "r#1"):
        got = engine.abort_request(name), list(engine.live.groups), names(engine.scheduler.running)
        assert got == (None, ["r"], ["r#0", "r#1"]), (
            f"abort_request({name!r}) while 'r' runs with two samples: (what it returned, live.groups, running) is "
            f"{got}, expected (None, ['r'], ['r#0', 'r#1']): no request of a user has this id")
    engine.abort_request("r")
    assert_all_home(engine, "'r' was aborted")


@pytest.mark.points(1)
def test_task_5_abort_before_the_fork(lab):
    engine = make_engine(lab, budget=8)
    engine.add_request("Once upon a time", replace(SEEDED, n=3), "r")
    one_step(engine)
    output = engine.abort_request("r")
    got = [(each.text, each.finish_reason) for each in output.outputs], output.finished
    assert got == ([("", "abort")] * 3, True), (
        f"aborted in the middle of its prompt, before the fork: (text, finish_reason) of the samples, and finished, "
        f"are {got}, expected ('', 'abort') three times, and True")
    assert_all_home(engine, "the request was aborted before the fork")


# ---- Task 6: requests that cannot continue


@pytest.mark.points(2)
def test_task_6_a_request_that_outgrows_the_pool_ends_with_what_it_has(lab):
    engine = make_engine(lab, num_blocks=6, cache=False)
    prompt, params = "Once upon", replace(GREEDY, max_tokens=20)
    engine.add_request(prompt, params, "a")
    last = run(engine)
    got = last["a"].finish_reason, last["a"].finished, len(last["a"].token_ids)
    assert got == ("kv_cache_full", True, 16), (
        f"a pool of 24 tokens, a prompt of 9 and max_tokens 20: (finish_reason, finished, tokens) is {got}, expected "
        "('kv_cache_full', True, 16): return an output for each request in plan.finished")
    expected = alone(prompt, params).token_ids[:16]
    assert last["a"].token_ids == expected, (
        f"'a' outgrew the pool with the tokens {last['a'].token_ids}, expected {expected}: all its tokens so far")
    assert_all_home(engine, "'a' outgrew the pool")
    params = replace(SEEDED, n=2, max_tokens=20)
    engine.add_request(prompt, params, "r")
    got = [(each.finish_reason, each.token_ids) for each in run(engine)["r"].outputs]
    expected = [("kv_cache_full", each.token_ids[:16]) for each in alone(prompt, params).outputs]
    assert got == expected, (
        f"the same with n=2: (finish_reason, tokens) of the samples are {got}, expected {expected}: one sample "
        "outgrows the pool while the other waits; then the other continues until it also outgrows the pool")
    assert_all_home(engine, "both samples outgrew the pool")
    for name in "bc":
        engine.add_request(name, replace(GREEDY, stop="###"), name)
    for text in "x##":
        hand_in(engine, dict.fromkeys("bc", ids_of(text)[0]))
    outgrown = [engine.live.groups[name].leader for name in "bc"]
    for request in outgrown:
        engine.scheduler.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)
    outputs = engine.deliver(SchedulerOutput({}, [], finished=outgrown), StepResult())
    got = sorted((output.request_id, output.text, output.finish_reason) for output in outputs)
    assert got == [("b", "x##", "kv_cache_full"), ("c", "x##", "kv_cache_full")], (
        "stop is '###', 'b' and 'c' have each generated 'x##', and both are in plan.finished: deliver() returned (id, "
        f"text, finish_reason) {got}, expected [('b', 'x##', 'kv_cache_full'), ('c', 'x##', 'kv_cache_full')]: return "
        "an output for each, with the text that was held back")


@pytest.mark.points(3)
def test_task_6_a_stalled_request_ends_with_the_reason(lab):
    engine = make_engine(lab, num_blocks=8)
    leaked = engine.kv_cache.block_pool.get_new_blocks(5)
    engine.add_request("Once upon a time there", GREEDY, "a")
    engine.add_request("waits", GREEDY, "w")
    steps = [engine.step() for _ in range(3)]
    assert steps[:2] == [[], []], f"nothing can be planned; the first two steps returned {steps[:2]}, expected nothing"
    errors = {output.request_id: output.error for output in steps[2]}
    got = sorted((output.request_id, output.finish_reason, output.finished) for output in steps[2])
    assert got == [("a", "error", True), ("w", "error", True)], (
        f"the third step in which nothing could be planned returned (id, finish_reason, finished) {got}, expected "
        "[('a', 'error', True), ('w', 'error', True)]: no request may wait forever")
    expected = ("StalledError: nothing could be planned for 3 steps: the scheduler gave request 'a' no tokens; it "
                "needs 6 more blocks, 3 of 8 are free")
    assert errors["a"] == expected, f"the error of 'a' is {errors['a']!r}, expected {expected!r}"
    engine.kv_cache.block_pool.free_blocks(leaked)
    assert_all_home(engine, "all requests have stalled")
    engine.add_request("Once", GREEDY, "a")
    assert_says_what_it_says_alone(run(engine)["a"], "Once", GREEDY, "after a stall")


@pytest.mark.points(1)
def test_task_6_the_count_begins_again(lab):
    engine = make_engine(lab, num_blocks=8)
    engine.kv_cache.block_pool.get_new_blocks(5)
    got = []
    for name in ("first", "second"):
        engine.add_request("Once upon a time there", GREEDY, name)
        got.append([len(engine.step()) for _ in range(3)])
    assert got == [[0, 0, 1], [0, 0, 1]], (
        f"two requests stalled, one after the other; their steps returned {got} outputs, expected [[0, 0, 1], "
        "[0, 0, 1]]: the idle steps of one request must not count against the next")


@pytest.mark.points(2)
def test_task_6_samples_that_stall_end_together(lab):
    engine = make_engine(lab, num_blocks=8, cache=False)
    engine.add_request("Once upon a ", replace(SEEDED, n=4, max_tokens=20, stop="!"), "r")
    hand_in(engine, dict(zip(["r#0", "r#1", "r#2", "r#3"], ids_of("!bcd"))))
    hog = Request("hog", range(4 * (8 - num_used(engine))))
    engine.kv_cache.allocate_slots(hog, hog.num_tokens)
    outputs = [output for _ in range(5) for output in engine.step()]
    got = ([each.finish_reason for each in outputs[-1].outputs], str(outputs[-1].error)[:12]) if outputs else None
    assert got == (["stop", "error", "error", "error"], "StalledError"), (
        "the first of four samples has stopped; no block is left for the others, and none of them moves for three "
        f"steps: (finish_reasons, error) is {got}, expected (['stop', 'error', 'error', 'error'], 'StalledError'): an "
        "error ends all unfinished samples of a request, and a sample that had ended keeps its reason")
    assert "request 'r#1'" in outputs[-1].error, (
        f"'r#0' has stopped, the other three samples of 'r' stall: the error is {outputs[-1].error!r}, expected it to "
        "be about request 'r#1', the first unfinished one")
    engine.kv_cache.free(hog)
    assert_all_home(engine, "the samples have stalled")


@pytest.mark.points(2)
def test_task_6_a_step_that_preempts_or_finishes_is_not_idle(lab):
    engine = make_engine(lab, num_blocks=8, cache=False)
    leaked = engine.kv_cache.block_pool.get_new_blocks(2)
    engine.add_request("Once upon", replace(GREEDY, max_tokens=40), "a")
    while not engine.scheduler.num_preemptions:
        engine.step()
    got = [len(engine.step()) for _ in range(3)]
    assert got == [0, 0, 1], (
        f"'a' is the only request, was preempted because no block was free, and can never run again; the next steps "
        f"returned {got} outputs, expected [0, 0, 1]: a step that preempts a request is not idle")
    engine.kv_cache.block_pool.free_blocks(leaked)
    engine.add_request("Once upon", replace(GREEDY, max_tokens=40), "b")
    reason = run(engine)["b"].finish_reason
    assert reason == "kv_cache_full", (
        f"'b' outgrew the pool: its finish_reason is {reason!r}, expected 'kv_cache_full' (needs `_end_outgrown`, see "
        "test_task_6_a_request_that_outgrows_the_pool_ends_with_what_it_has)")
    engine.kv_cache.block_pool.get_new_blocks(5)
    engine.add_request("Once upon a time there", GREEDY, "c")
    got = [len(engine.step()) for _ in range(3)]
    assert got == [0, 0, 1], (
        f"a step ended 'b', which had outgrown the pool; then 'c' stalled, in steps that returned {got} outputs, "
        "expected [0, 0, 1]: a step that ends a request is not idle")


@pytest.mark.points(1)
def test_task_6_only_idle_steps_in_a_row_count(lab):
    """Use made-up plans: two empty ones, a preemption, and then only empty ones."""
    engine = make_engine(lab)
    engine.add_request("Once", GREEDY, "a")
    plans = [SchedulerOutput({}, []), SchedulerOutput({}, []),
             SchedulerOutput({}, [], preempted=[engine.live.groups["a"].leader]),
             *(SchedulerOutput({}, []) for _ in range(3))]
    engine.scheduler.schedule = lambda: plans.pop(0)
    got = [len(engine.step()) for _ in range(6)]
    assert got == [0, 0, 0, 0, 0, 1], (
        f"'a' waits; six steps computed nothing, and the third preempted a request. They returned {got} outputs, "
        "expected [0, 0, 0, 0, 0, 1]: the count of idle steps begins again after a step that is not idle")


@pytest.mark.points(1)
def test_task_6_telling_is_not_idling(lab):
    engine = make_engine(lab, num_blocks=8)
    told = alone("Once", GREEDY)
    for _ in range(4):
        engine.put_back([told])
        got = engine.step()
        assert got == [told], f"an output was put back; step() returned {got}, expected only that output"
    engine.kv_cache.block_pool.get_new_blocks(5)
    engine.add_request("Once upon a time there", GREEDY, "a")
    got = [len(engine.step()) for _ in range(3)]
    assert got == [0, 0, 1], (
        f"four steps had no request to serve, then 'a' stalled in steps that returned {got} outputs, expected [0, 0, "
        "1]: a step is idle only if there are live requests")
