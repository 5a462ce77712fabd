"""The engine: many requests at once give the same results as each alone, and bad input affects no other request."""

import dataclasses
import math
import weakref

import numpy as np
import pytest

from mini_vllm.backend import mx
from mini_vllm.beam_search import beam_search
from mini_vllm.conftest import checkpoint_width, make_talker, without_garbage_collector
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.gpu.runner import PoolsThatStay
from mini_vllm.llm import LLM
from mini_vllm.logit_rules import NO_TOKEN_LEFT
from mini_vllm.models.loader import load
from mini_vllm.native.runner import NativeKVCache
from mini_vllm.request import SamplingParams

#: Of two layers, keys and values, 8 tokens, half as many KV heads as heads, float32.
BLOCK_BYTES = 2 * 2 * 8 * checkpoint_width() // 2 * 4


def make_engine(loaded, parts=None, **settings):
    settings = {"num_blocks": 200, "block_size": 8, "max_num_seqs": 40, "enable_lookahead": True, **settings}
    return LLMEngine(EngineConfig(**settings), parts, loaded)


def make_llm(loaded, **settings):
    llm = LLM.__new__(LLM)
    llm.engine = make_engine(loaded, **settings)
    return llm


def run(engine):
    """Step until all requests are done, and return the last output of each."""
    results = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            results[output.request_id] = output
        engine.kv_cache.check_integrity()
    assert engine.kv_cache.block_pool.get_usage() == 0.0, "all requests are done, but blocks are in use"
    return results


def random_prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, rng.integers(1, 60)).tolist() for _ in range(count)]


GREEDY = SamplingParams(max_tokens=12, temperature=0)


def undisturbed(loaded, prompts, params=GREEDY):
    """Return the tokens of each request in a plain batch without failures.

    They equal what each request gives alone; test_a_batch_gives_what_each_request_gives_alone checks that.
    """
    llm = make_llm(loaded, enable_lookahead=False, enable_prefix_caching=False)
    return [output.token_ids for output in llm.generate(prompts, params)]


def mixed_params(count):
    """Return greedy parameters and every kind of sampling, each with its own seed."""
    kinds = [dict(temperature=0), dict(temperature=0.8), dict(temperature=1.2, top_k=20),
             dict(temperature=1, top_p=0.7), dict(temperature=0.9, min_p=0.05, repetition_penalty=1.3),
             dict(temperature=0, repetition_penalty=1.2),
             dict(temperature=0.7, logit_bias={5: 3.0}, min_tokens=4)]
    return [SamplingParams(max_tokens=4 + i % 5, seed=i, **kinds[i % len(kinds)]) for i in range(count)]


# ---- the batch changes nothing


@pytest.fixture(scope="module")
def alone(loaded):
    """Return the results of 33 requests, each computed in an engine of its own."""
    results = []
    for prompt, params in zip(random_prompts(33), mixed_params(33)):
        engine = make_engine(loaded)
        engine.add_request(prompt, params, "r")
        results.append(run(engine)["r"].token_ids)
    return results


@pytest.mark.parametrize("count, settings", [
    (1, {}), (7, {}), (33, {}), (33, {"max_num_batched_tokens": 48}), (33, {"max_num_seqs": 3, "num_blocks": 40}),
    (33, {"enable_prefix_caching": False}), (33, {"enable_prefix_caching": False, "enable_lookahead": False})], ids=str)
def test_a_batch_gives_what_each_request_gives_alone(loaded, alone, count, settings):
    engine = make_engine(loaded, **settings)
    for i, (prompt, own) in enumerate(zip(random_prompts(count), mixed_params(count))):
        engine.add_request(prompt, own, f"r{i}")
    together = run(engine)
    assert [together[f"r{i}"].token_ids for i in range(count)] == alone[:count]


@pytest.mark.without_drafts("looks at look-ahead, which drafts replace")
def test_a_first_token_does_not_wait_for_the_step_after_it(loaded):
    engine, (prompt,) = make_engine(loaded), random_prompts(1, seed=5)
    for name in ("computed", "found"):  # the second time one token is left to compute
        engine.add_request(prompt, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True), name)
        ahead = []
        while engine.has_unfinished_requests():
            (output,) = engine.step()
            ahead.append(engine.lookahead.pending is not None)
        assert ahead == [False, True, True, True, True, False], f"{name}: after each step, whether the next was begun"
        assert len(output.token_ids) == 6


@pytest.mark.without_drafts("looks at look-ahead, which drafts replace")
@pytest.mark.parametrize("drawing", [dict(temperature=0), dict(temperature=0.9, seed=3),
                                     dict(temperature=1.0, top_p=0.8, top_k=50, seed=4)], ids=str)
def test_looking_ahead_changes_nothing(loaded, drawing):
    """Make guesses wrong by requests that arrive, end early and are aborted; the tokens must not change."""
    prompts = random_prompts(12, seed=4)
    free = undisturbed(loaded, prompts, SamplingParams(max_tokens=14, ignore_eos=True, **drawing))
    engine, results, num_ahead = make_engine(loaded, num_blocks=60), {}, 0
    for i, prompt in enumerate(prompts):
        stop = [free[i][7]] if i % 3 == 0 else []
        params = SamplingParams(max_tokens=14, ignore_eos=True, stop_token_ids=stop, **drawing)
        engine.add_request(prompt, params, f"r{i}")
        for _ in range(i % 4):
            results.update({output.request_id: output for output in engine.step()})
            num_ahead += engine.lookahead.pending is not None
            engine.kv_cache.check_integrity()
        if i == 7:
            engine.abort_request("r6")
    results.update(run(engine))
    assert num_ahead > 5
    for i, expected in enumerate(free):
        end = expected.index(expected[7]) + 1 if i % 3 == 0 else len(expected)
        got = results[f"r{i}"].token_ids
        assert got == expected[:end] if i != 6 else got == expected[:len(got)]


# ---- outputs


@pytest.mark.without_drafts("counts steps")
def test_the_output_streams_and_adds_up(loaded):
    engine = make_engine(loaded)
    engine.add_request("hello", SamplingParams(max_tokens=20, temperature=0, ignore_eos=True), "r")
    seen = []
    while engine.has_unfinished_requests():
        seen += [(output.text, output.finished, len(output.token_ids)) for output in engine.step()]
    assert len(seen) == 20 and all(b[0].startswith(a[0]) for a, b in zip(seen, seen[1:]))
    assert [finished for _, finished, _ in seen] == [False] * 19 + [True]
    ids = loaded.tokenizer.encode("hello")
    whole = make_llm(loaded).generate([ids], SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))[0]
    assert whole.text == seen[-1][0] == loaded.tokenizer.decode(whole.token_ids)


def test_finish_reasons(loaded):
    llm = make_llm(loaded)
    free = llm.generate("hello", SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))[0]
    assert free.finish_reason == "length" and free.usage.completion_tokens == 12
    token = free.token_ids[5]
    stopped = llm.generate("hello", SamplingParams(max_tokens=12, temperature=0, ignore_eos=True,
                                                   stop_token_ids=[token]))[0]
    end = free.token_ids.index(token) + 1
    assert (stopped.finish_reason, stopped.token_ids) == ("stop", free.token_ids[:end])
    assert stopped.outputs[0].stop_reason == token


# ---- rejected requests


def test_what_outgrows_the_pool_ends_with_its_text_and_the_reason(loaded):
    engine = make_engine(loaded, num_blocks=5)
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    engine.add_request(list(range(20)), params, "r")
    output = run(engine)["r"]
    # 4 blocks hold 32 tokens: 20 of the prompt and 12 of the output; the 13th was sampled after the last of them
    assert output.finish_reason == "kv_cache_full" and output.error is None and len(output.token_ids) == 13
    whole = make_llm(loaded).generate([list(range(20))], params)[0]
    assert output.token_ids == whole.token_ids[:13] and output.text and whole.text.startswith(output.text)
    assert engine.kv_cache.block_pool.get_usage() == 0.0


@pytest.mark.parametrize("settings, complaint", [
    (dict(max_model_len=1000), "max_model_len is 1000, must be from 2 to 512"),
    (dict(num_blocks=None, kv_memory=100), f"holds 0 blocks of 8 tokens.*which take {2 * BLOCK_BYTES} bytes"),
])
def test_settings_that_do_not_fit_the_model_are_refused(loaded, settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        make_engine(loaded, **settings)


def test_a_model_without_room_for_an_output_is_refused(loaded):
    config = dataclasses.replace(loaded.config, max_position_embeddings=1)
    short = dataclasses.replace(loaded, config=config)
    with pytest.raises(ValueError, match="max_position_embeddings is 1, must be at least 2"):
        make_engine(short)


def test_the_pool_is_sized_from_the_memory_or_what_can_be_used(loaded):
    assert make_engine(loaded, num_blocks=None, kv_memory="1MB").kv_cache.block_pool.num_blocks == 10**6 // BLOCK_BYTES
    small = make_engine(loaded, num_blocks=None, max_num_seqs=2)
    assert small.kv_cache.block_pool.num_blocks == 2 * (512 // 8) + 1


# ---- ends of all kinds


def test_abort_works_in_every_state(loaded):
    engine = make_engine(loaded, max_num_seqs=1)
    for name in "abc":
        engine.add_request("hello", SamplingParams(max_tokens=9, temperature=0, ignore_eos=True), name)
    engine.step()
    assert engine.abort_request("c").finish_reason == "abort", "while it waits"
    partial = engine.abort_request("a")
    assert partial.finish_reason == "abort" and len(partial.token_ids) == 1, "while it runs"
    assert engine.abort_request("a") is None and engine.abort_request("nobody") is None
    assert run(engine)["b"].finish_reason == "length"


def test_a_step_that_fails_ends_its_requests_and_nobody_elses(loaded, monkeypatch):
    engine = make_engine(loaded, max_num_seqs=2)
    prompt, other = random_prompts(1, seed=8)[0] * 3, random_prompts(1, seed=9)[0] * 3
    for name in ("a", "b", "c"):
        engine.add_request(other if name == "b" else prompt, GREEDY, name)
    real = engine.runner.step
    monkeypatch.setattr(engine.runner, "step", lambda *args: 1 / 0)
    outputs = engine.step()
    assert {output.request_id: output.error for output in outputs} == {
        "a": "ZeroDivisionError: division by zero", "b": "ZeroDivisionError: division by zero"}
    assert all(output.finished and output.finish_reason == "error" for output in outputs)
    engine.kv_cache.check_integrity()
    monkeypatch.setattr(engine.runner, "step", real)
    c = run(engine)["c"]
    assert c.usage.prompt_tokens_details.cached_tokens == 0, "blocks that were never written were found"
    assert c.token_ids == make_llm(loaded).generate([prompt], GREEDY)[0].token_ids


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(max_tokens=12, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 40, "max_num_chunk_tokens": 8},
                                      {"enable_lookahead": False}, {"enable_prefix_caching": False}], ids=str)
def test_a_request_that_computes_nan_fails_and_leaves_none_behind(shallow, settings, params):
    """Reuse its half-filled blocks for other requests: their unused slots must not hold NaN."""
    loaded = load(shallow("llama3"))
    prompts = random_prompts(6, seed=11)
    alone = undisturbed(loaded, prompts, params)
    broken = next(token for token in range(256) if not any(token in ids for ids in (*prompts, *alone)))
    break_embedding(loaded, broken)
    engine = make_engine(loaded, num_blocks=40, **settings)
    bad = [[broken if i % 7 == 3 else i for i in range(count)] for count in (50, 110)]
    ids = [engine.add_request(prompt, params) for prompt in (bad[0], *prompts[:2], bad[1])]
    results = run(engine)
    for i in (0, 3):
        assert results[ids[i]].finish_reason == "error" and "NaN" in results[ids[i]].error
    assert [results[ids[i]].token_ids for i in (1, 2)] == alone[:2]
    for each in results.values():
        assert each.finished
    assert not has_nan_in_reach(engine)
    ids = [engine.add_request(prompt, params) for prompt in prompts[2:]]
    results = run(engine)
    assert [results[name].token_ids for name in ids] == alone[2:]
    assert engine.kv_cache.block_pool.get_usage() == 0
    engine.kv_cache.check_integrity()


@pytest.mark.parametrize("how", ["goes on", "is aborted"])
def test_a_request_that_computes_nan_leaves_none_for_those_who_share_its_beginning(shallow, how):
    """Check that no request finds its blocks: within one chunk NaN also reaches the tokens before it."""
    loaded = load(shallow("llama3"))
    beginning = list(range(32))
    prompts = [[*beginning, 40 + i, 41 + i] for i in range(6)]
    alone = undisturbed(loaded, prompts)
    broken = next(token for token in range(256) if not any(token in ids for ids in (*prompts, *alone)))
    break_embedding(loaded, broken)
    engine = make_engine(loaded, max_num_batched_tokens=64)
    bad = engine.add_request([*beginning, broken, *range(100, 200)], GREEDY)
    results = {output.request_id: output for output in engine.step()}
    if how == "is aborted":
        engine.abort_request(bad)
    ids = []
    for prompt in prompts:
        ids.append(engine.add_request(prompt, GREEDY))
        results |= {output.request_id: output for output in engine.step()}
    results |= run(engine)
    assert [results[name].token_ids for name in ids] == alone
    assert results[bad].error == "ValueError: keys or values contain NaN"
    assert not has_nan_in_reach(engine)


def test_a_beam_search_over_nan_says_so_and_leaves_none(shallow):
    loaded = load(shallow("llama3"))
    break_embedding(loaded, 250)
    engine = make_engine(loaded)
    with pytest.raises(ValueError, match="NaN"):
        beam_search(engine, [*range(40), 250, *range(40)], beam_width=2, max_tokens=4)
    assert engine.kv_cache.block_pool.get_usage() == 0
    assert not has_nan_in_reach(engine)
    engine.add_request(list(range(50)), GREEDY)
    (output,) = run(engine).values()
    assert output.usage.prompt_tokens_details.cached_tokens == 0 and output.error is None


@pytest.mark.without_drafts("looks at look-ahead, which drafts replace")
@pytest.mark.parametrize("how", ["stops", "is aborted", "is preempted"])
def test_a_look_ahead_that_was_wrong_leaves_no_nan(shallow, how):
    """Let a token be the last one after the next step was begun: what that step wrote must not stay."""
    loaded = load(shallow("llama3"))
    prompt, other = random_prompts(2, seed=14)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    alone = undisturbed(loaded, [prompt, other], params)
    index, broken = next((i, token) for i, token in enumerate(alone[0]) if i >= 2 and token not in (
        *alone[0][:i], *prompt, *alone[1], *other))
    break_embedding(loaded, broken)
    engine = make_engine(loaded)
    engine.add_request(prompt, dataclasses.replace(params, stop_token_ids=[broken] if how == "stops" else []), "r")
    for _ in range(index + 1):
        (output,) = engine.step()
    assert output.token_ids == alone[0][:index + 1] and output.finished == (how == "stops")
    if how == "is aborted":
        engine.abort_request("r")
    if how == "is preempted":
        engine.scheduler.preempt(engine.scheduler.running[0])
        engine.add_request(other, params, "other")
        results = run(engine)
        assert "NaN" in results["r"].error and results["other"].token_ids == alone[1]
    assert engine.kv_cache.block_pool.get_usage() == 0.0
    assert not has_nan_in_reach(engine)


def has_nan_in_reach(engine):
    """Check whether NaN is where it can do harm.

    A GPU's kernels and the native step read only the slots of a context's tokens. There, the rest of the test and the
    free blocks show it.
    """
    pools = engine.runner.cache
    return not isinstance(pools, (PoolsThatStay, NativeKVCache)) and any(mx.isnan(pool).any() for pool in pools.pools)


def break_embedding(loaded, token_id):
    """Make the embedding of one token NaN for engines that are created from now on."""
    loaded.model.take_back()
    loaded.model._native = None
    loaded.model.model.embed_tokens.weight[token_id] = mx.nan


@pytest.mark.without_drafts("makes steps of one token fail; steps with drafts have more")
@pytest.mark.parametrize("poison_at", [0, 3])
def test_a_poisoned_request_fails_alone(loaded, monkeypatch, poison_at):
    """Compute the others of its batch separately; they, and a request that shares its prefix, give what each gives
    alone."""
    engine = make_engine(loaded, enable_lookahead=False)  # else some steps do not go through `step`
    prompts = [*random_prompts(4, seed=10), [7] * 30, [7] * 29 + [8]]
    ids = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    real, num_steps = engine.runner.step, 0

    def step(requests, copies=()):
        poisoned = any(len(request.token_ids) == 1 if poison_at else list(request.token_ids) == [7] * 30
                       for request in requests if request.block_ids == engine.kv_cache.get_block_ids(ids[4]))
        if poisoned and num_steps >= poison_at:
            raise ArithmeticError("poison")
        return real(requests, copies)

    monkeypatch.setattr(engine.runner, "step", step)
    results = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            results[output.request_id] = output
        num_steps += 1
        engine.kv_cache.check_integrity()
    assert results[ids[4]].error == "ArithmeticError: poison" and results[ids[4]].finish_reason == "error"
    assert len(results[ids[4]].token_ids) == poison_at
    del prompts[4]
    assert [results[request_id].token_ids for request_id in ids if request_id != ids[4]] == undisturbed(loaded, prompts)
    assert engine.kv_cache.block_pool.get_usage() == 0.0


@pytest.mark.parametrize("n", [1, 3])
def test_a_request_that_leaves_itself_no_token_fails_alone_and_no_step_is_computed_again(loaded, monkeypatch, n):
    engine, prompts = make_engine(loaded), random_prompts(4, seed=10)
    letter = loaded.tokenizer.encode("h", add_special_tokens=False)
    ids = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    engine.add_request("hello", SamplingParams(max_tokens=9, allowed_token_ids=letter, bad_words="hh", n=n), "r")
    num_computed, real = [], engine.runner.step
    monkeypatch.setattr(engine.runner, "step", lambda requests, copies=(): num_computed.append(len(requests)) or real(
        requests, copies))
    results = run(engine)
    assert results["r"].error == f"ValueError: {NO_TOKEN_LEFT}"
    assert [(each.token_ids, each.finish_reason) for each in results["r"].outputs] == [(letter, "error")] * n
    assert num_computed[:2] == [5, 4 + n], "both steps that it was in were computed once, and all together"
    assert [results[request_id].token_ids for request_id in ids] == undisturbed(loaded, prompts)


@pytest.mark.parametrize("params", [
    dict(allowed_token_ids=[0], min_tokens=2, stop_token_ids=[0]), dict(allowed_token_ids=[71], bad_words="h"),
    dict(logit_bias={token_id: -math.inf for token_id in range(300)}),
    dict(min_tokens=1, stop_token_ids=range(300))], ids=str)
def test_parameters_that_leave_no_first_token_are_refused_at_once(loaded, params):
    engine = make_engine(loaded)
    with pytest.raises(ValueError, match="^allowed_token_ids, bad_words, .* leave no possible next token$"):
        engine.add_request("hello", SamplingParams(max_tokens=9, **params))
    assert not engine.has_unfinished_requests()


@pytest.mark.without_drafts("makes the step with a context of 9 tokens fail; drafts may jump over it")
def test_when_one_sample_fails_tokens_text_and_logprobs_of_the_others_agree(loaded, monkeypatch):
    """Check the token that the others got in the same step: it counts in all three or in none."""
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=5, n=3, ignore_eos=True, logprobs=1)
    alone = make_llm(loaded).generate("hello", params)[0]
    engine = make_engine(loaded)
    engine.add_request("hello", params, "r")
    real = engine.runner.step

    def step(requests, copies=()):
        if any(request.context_len == 9 and request.block_ids == engine.kv_cache.get_block_ids("r#1")
               for request in requests):
            raise ArithmeticError("poison")
        return real(requests, copies)

    monkeypatch.setattr(engine.runner, "step", step)
    output = run(engine)["r"]
    assert output.error == "ArithmeticError: poison"
    assert [len(each.token_ids) for each in output.outputs] == [5, 4, 5]
    for each, whole in zip(output.outputs, alone.outputs):
        assert each.finish_reason == "error" and each.token_ids == whole.token_ids[:len(each.token_ids)]
        assert [entry.token_id for entry in each.logprobs] == each.token_ids
        assert each.text == loaded.tokenizer.decode(each.token_ids)


@pytest.mark.without_drafts("interrupts a method that steps with drafts do not call")
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_ctrl_c_in_a_step_leaves_nothing_that_was_not_computed(loaded, monkeypatch, at, lookahead):
    llm, fresh = make_llm(loaded, enable_lookahead=lookahead, native=False), make_llm(loaded)
    prompt = random_prompts(1, seed=11)[0][:11]
    wanted = fresh.generate([prompt], GREEDY)[0].token_ids
    real, num_calls = llm.engine.runner._logits, 0

    def logits(*arguments):
        nonlocal num_calls
        num_calls += 1
        if num_calls == at:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(llm.engine.runner, "_logits", logits)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([prompt], GREEDY)
    assert llm.engine.kv_cache.block_pool.get_usage() == 0.0
    longer = prompt + wanted[:5]
    assert llm.generate([longer], GREEDY)[0].token_ids == fresh.generate([longer], GREEDY)[0].token_ids


@pytest.mark.without_drafts("looks at look-ahead, which drafts replace")
def test_ctrl_c_when_a_step_has_begun_leaves_nothing_of_it(loaded, monkeypatch):
    llm, fresh = make_llm(loaded, enable_lookahead=True), make_llm(loaded)
    prompts = random_prompts(4, seed=11)
    real = llm.engine.runner.step_ahead

    def step_ahead(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine.runner, "step_ahead", step_ahead)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, GREEDY)
    monkeypatch.undo()
    outputs = [[output.token_ids for output in each.generate(prompts, GREEDY)] for each in (llm, fresh)]
    assert outputs[0] == outputs[1] and llm.engine.kv_cache.block_pool.get_usage() == 0.0


def test_ctrl_c_in_the_step_that_ends_an_outgrown_request_does_not_lose_its_end(loaded, monkeypatch):
    engine = make_engine(loaded, block_size=1, num_blocks=12)
    engine.add_request(list(range(8)), GREEDY, "grows")
    engine.step()
    schedule = engine.scheduler.schedule

    def interrupted():
        plan = schedule()
        if plan.finished:
            monkeypatch.setattr(engine.speculation, "extend", lambda *rest: (_ for _ in ()).throw(KeyboardInterrupt))
        return plan

    monkeypatch.setattr(engine.scheduler, "schedule", interrupted)
    with pytest.raises(KeyboardInterrupt):
        while engine.has_unfinished_requests():
            engine.step()
    monkeypatch.undo()
    assert engine.abort_request("grows") is None, "it has ended: the next step returns its output"
    (output,) = engine.step()
    assert output.finish_reason == "kv_cache_full" and output.error is None and not engine.has_unfinished_requests()


@pytest.mark.parametrize("at", range(2, 9))
def test_ctrl_c_while_a_broken_step_is_computed_apart(loaded, monkeypatch, at):
    prompts = random_prompts(4, seed=13)
    alone = undisturbed(loaded, prompts)
    engine = make_engine(loaded)
    ids = [engine.add_request(prompt, GREEDY) for prompt in [*prompts, prompts[0] + [1]]]
    real, num_calls = engine.runner.step, 0

    def step(requests, copies=()):
        nonlocal num_calls
        num_calls += 1
        if num_calls == at:
            raise KeyboardInterrupt
        if num_calls in (1, 2, 7):  # a step, then its first request alone, and another step
            raise ArithmeticError("poison")
        return real(requests, copies)

    monkeypatch.setattr(engine.runner, "step", step)
    results = {}
    for _ in range(100):
        if not engine.has_unfinished_requests():
            break
        try:
            results |= {output.request_id: output for output in engine.step()}
        except KeyboardInterrupt:
            assert num_calls == at
        engine.kv_cache.check_integrity()
    assert not engine.has_unfinished_requests() and engine.kv_cache.block_pool.get_usage() == 0
    for name, expected in zip(ids, alone):
        assert results[name].error == "ArithmeticError: poison" or results[name].token_ids == expected
    assert sum(results[name].error is None for name in ids) >= 3


def test_after_ctrl_c_the_requests_may_go_on(loaded, monkeypatch):
    engine = make_engine(loaded)
    prompts = random_prompts(4, seed=12)
    ids = [engine.add_request(prompt, dataclasses.replace(GREEDY, n=1 + index % 2)) for index, prompt in
           enumerate(prompts)]
    real, num_calls = engine.runner._logits, 0

    def logits(*arguments):
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3 == 0:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(engine.runner, "_logits", logits)
    results = {}
    for _ in range(200):
        if not engine.has_unfinished_requests():
            break
        try:
            results |= {output.request_id: output for output in engine.step()}
        except KeyboardInterrupt:
            pass
        engine.kv_cache.check_integrity()
    assert [results[request_id].token_ids for request_id in ids] == undisturbed(loaded, prompts)


@pytest.mark.parametrize("how", ["others come", "beams come", "a neighbour goes on"])
def test_a_look_ahead_that_computes_nan_leaves_none_behind(shallow, how):
    """Stop a request at a token whose embedding is broken: the step begun after it has computed with that token."""
    loaded = load(shallow("llama3"))
    free = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    prompts = random_prompts(8, seed=14)
    alone = undisturbed(loaded, prompts, free)
    others = {token for i in range(1, 8) for token in (*prompts[i], *alone[i])}
    at = next(i for i, token in enumerate(alone[0]) if i > 1 and token not in others and token not in prompts[0]
              and token not in alone[0][:i])
    broken = alone[0][at]
    break_embedding(loaded, broken)
    engine = make_engine(loaded, num_blocks=30)
    engine.add_request(prompts[0], dataclasses.replace(free, stop_token_ids=[broken]), "stops")
    if how == "a neighbour goes on":
        engine.add_request(prompts[1], free, "neighbour")
    results = {}
    while "stops" not in results:
        results |= {output.request_id: output for output in engine.step() if output.finished}
    assert results["stops"].token_ids == alone[0][:at + 1]
    assert not has_nan_in_reach(engine)
    if how == "beams come":
        assert beam_search(engine, prompts[1], beam_width=1, max_tokens=20, ignore_eos=True)[0].token_ids == alone[1]
    ids = [engine.add_request(prompt, free) for prompt in prompts[2:]]
    results |= run(engine)
    assert [results[name].token_ids for name in ids] == alone[2:]
    assert "neighbour" not in results or results["neighbour"].token_ids == alone[1]
    assert not has_nan_in_reach(engine)


@pytest.mark.without_drafts("looks at look-ahead, which drafts replace")
def test_a_look_ahead_that_the_device_refuses_harms_nobody_and_is_counted(loaded, monkeypatch):
    def refuse(*_):
        raise RuntimeError("[malloc] Unable to allocate 4096 bytes")

    engine = make_engine(loaded)
    monkeypatch.setattr(engine.runner, "step_ahead", refuse)
    engine.add_request("hello", GREEDY, "r")
    output = run(engine)["r"]
    assert output.error is None and output.token_ids == make_llm(loaded).generate(["hello"], GREEDY)[0].token_ids
    assert engine.lookahead.num_dropped > 0


@pytest.mark.without_drafts("looks at look-ahead, which drafts replace")
def test_a_bug_in_a_look_ahead_is_not_hidden(loaded, monkeypatch):
    """Raise it: otherwise it would show only as slowness."""
    engine = make_engine(loaded)
    monkeypatch.setattr(engine.runner, "step_ahead", lambda *_: 1 / 0)
    engine.add_request("hello", GREEDY, "r")
    assert "division by zero" in str(run(engine)["r"].error)


def test_a_generated_id_never_collides_with_a_given_one(loaded):
    engine = make_engine(loaded)
    for name in ("request-0", "request-1#0", "request-3"):
        engine.add_request("hello", GREEDY, name)
    two = dataclasses.replace(GREEDY, n=2)
    assert [engine.add_request("hello", two), engine.add_request("hello", GREEDY)] == ["request-2", "request-4"]
    assert set(run(engine)) == {"request-0", "request-1#0", "request-2", "request-3", "request-4"}


def test_generate_lets_others_go_on_and_keeps_their_outputs(loaded):
    llm, prompts = make_llm(loaded), random_prompts(4, seed=15)
    alone = undisturbed(loaded, prompts)
    short, long = llm.engine.add_request(prompts[0], GREEDY), llm.engine.add_request(
        prompts[1], dataclasses.replace(GREEDY, max_tokens=40, ignore_eos=True))
    llm.engine.step()
    assert [output.token_ids for output in llm.generate(prompts[2:], GREEDY)] == alone[2:]
    with pytest.raises(ValueError, match="is in use"):
        llm.engine.add_request("hello", GREEDY, short)  # its output has not been fetched yet
    assert llm.engine.has_unfinished_requests()
    first = {output.request_id: output for output in llm.engine.step()}
    assert first[short].finished and first[short].token_ids == alone[0]
    assert not first[long].finished and first[long].token_ids[:12] == alone[1]
    results = run(llm.engine)
    assert len(results[long].token_ids) == 40 and not llm.engine.has_unfinished_requests()


def test_an_aborted_request_is_not_told_of_again(loaded):
    llm = make_llm(loaded)
    llm.engine.add_request("hello", dataclasses.replace(GREEDY, max_tokens=90, ignore_eos=True), "a")
    llm.generate(["again"], GREEDY)
    assert "a" in llm.engine.unseen
    assert llm.engine.abort_request("a").finished and not llm.engine.has_unfinished_requests()


def test_ids_of_samples_are_in_use_too(loaded):
    engine = make_engine(loaded)
    engine.add_request("hello", dataclasses.replace(GREEDY, n=2), "a")
    with pytest.raises(ValueError, match="request id 'a#1' is in use"):
        engine.add_request("hello", GREEDY, "a#1")
    engine.add_request("hello", GREEDY, "b#1")
    with pytest.raises(ValueError, match="request id 'b#1' is in use"):
        engine.add_request("hello", dataclasses.replace(GREEDY, n=2), "b")
    assert set(run(engine)) == {"a", "b#1"}


def test_generate_leaves_nothing_behind_when_it_is_interrupted(loaded, monkeypatch):
    llm = make_llm(loaded)
    steps = iter([llm.engine.step, llm.engine.step])

    def step():
        for real in steps:
            return real()
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine, "step", step)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["hello", "again"], GREEDY)
    assert not llm.engine.has_unfinished_requests() and llm.engine.kv_cache.block_pool.get_usage() == 0.0


def test_chat_goes_through_the_template(shallow, tmp_path):
    llm = LLM(make_talker(shallow, tmp_path), num_blocks=40, block_size=8)
    one = [{"role": "user", "content": "hello"}]
    expected = llm.generate("user: hello\nassistant:", GREEDY)[0].token_ids
    assert [output.token_ids for output in llm.chat(one, GREEDY)] == [expected]
    several = llm.chat([one, [*one, {"role": "user", "content": "again"}]], GREEDY)
    assert several[0].token_ids == expected and len(several) == 2


@pytest.mark.without_drafts("counts steps")
def test_the_progress_bar_counts_every_sample_when_it_finishes(loaded, monkeypatch):
    """Count 12 outputs for 3 prompts with n = 4, a rejected prompt included; each sample moves the bar in the step in
    which it ends."""
    import contextlib
    told = []

    @contextlib.contextmanager
    def bar(num_outputs, show):
        told.append(num_outputs)
        yield lambda num_finished, num_tokens: told.append((num_finished, num_tokens))

    params = SamplingParams(max_tokens=9, temperature=1.0, seed=7, n=4, ignore_eos=True)
    monkeypatch.setattr("mini_vllm.llm.progress_bar", bar)
    outputs = make_llm(loaded).generate(["hello", "", "again"], params, use_progress=True)
    total, *moves = told
    assert total == sum(finished for finished, _ in moves) == 12 and moves[0] == (4, 0), "the refused one comes first"
    assert sum(tokens for _, tokens in moves) == sum(output.usage.completion_tokens for output in outputs)


@pytest.mark.parametrize("lookahead", [False, True])
def test_an_engine_nobody_holds_gives_its_memory_back_at_once(loaded, lookahead):
    """Free the K/V arrays, most of a process's memory, at once.

    The garbage collector would come late: it counts only objects.
    """
    engine = make_engine(loaded, enable_lookahead=lookahead)
    engine.add_request("hello", SamplingParams(max_tokens=4, temperature=0))
    run(engine)
    gone = weakref.ref(engine), weakref.ref(engine.runner), weakref.ref(engine.runner.cache)
    with without_garbage_collector():
        del engine
        assert [ref() for ref in gone] == [None, None, None]
