"""What users of vLLM expect of an engine, checked against a direct forward pass where there is something to prove."""

import asyncio
import dataclasses

import numpy as np
import pytest

from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.llm import LLM
from mini_vllm.models.loader import load
from mini_vllm.request import Priority, SamplingParams

GREEDY = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded(checkpoints):
    return load(checkpoints("llama3"))


def make_llm(loaded, **settings):
    llm = LLM.__new__(LLM)
    llm.engine = LLMEngine(EngineConfig(**{"num_blocks": 100, "block_size": 8, "max_num_seqs": 8, **settings}),
                           loaded=loaded)
    return llm


@pytest.fixture
def llm(loaded):
    return make_llm(loaded)


@pytest.fixture(scope="module")
def oracle(checkpoints):
    """Map token ids to log-probabilities [num_tokens, vocab_size] by mlx-lm."""
    from mlx_lm.utils import load_model
    model = load_model(checkpoints("llama3"))[0]

    def logprobs(token_ids):
        logits = np.array(model(mx.array([token_ids]))[0].astype(mx.float32), dtype=np.float64)
        return logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) - logits.max(
            -1, keepdims=True)

    return logprobs


def check_greedy(oracle, prompt, output, change):
    """Check that each token of ``output`` is the likeliest after the tokens before it and ``change(logprobs, those
    before)``."""
    rows = oracle([*prompt, *output[:-1]])[len(prompt) - 1:]
    assert output == [int(np.argmax(change(row.copy(), output[:place]))) for place, row in enumerate(rows)]


PROMPT = np.random.default_rng(0).integers(0, 256, 45).tolist()


# ---- what changes the choice of tokens


@pytest.mark.parametrize("presence, frequency", [(1.5, 0.0), (0.0, 1.2), (0.7, 0.6), (-1.0, 0.3)])
def test_presence_and_frequency_penalties(llm, oracle, presence, frequency):
    def change(logprobs, output):
        for token in set(output):
            logprobs[token] -= presence + frequency * output.count(token)
        return logprobs

    params = dataclasses.replace(GREEDY, max_tokens=24, presence_penalty=presence, frequency_penalty=frequency)
    got = llm.generate([PROMPT], params)[0].token_ids
    assert len(got) == 24
    check_greedy(oracle, PROMPT, got, change)
    assert got != llm.generate([PROMPT], dataclasses.replace(GREEDY, max_tokens=24))[0].token_ids or presence < 0


def test_allowed_token_ids(llm, oracle):
    allowed = [3, 50, 99, 120, 200, 201]

    def change(logprobs, output):
        return np.where(np.isin(np.arange(300), allowed), logprobs, -np.inf)

    got = llm.generate([PROMPT], dataclasses.replace(GREEDY, allowed_token_ids=allowed))[0].token_ids
    assert len(got) == 10
    check_greedy(oracle, PROMPT, got, change)
    params = SamplingParams(max_tokens=50, ignore_eos=True, allowed_token_ids=allowed, seed=1)
    assert set(llm.generate([PROMPT], params)[0].token_ids) <= set(allowed)


def test_bad_words_do_not_come(llm):
    free = llm.generate("hello", dataclasses.replace(GREEDY, max_tokens=30))[0]
    word = next(free.text[i:i + 3] for i in range(len(free.text)) if "\ufffd" not in free.text[i:i + 3])
    params = dataclasses.replace(GREEDY, max_tokens=30, bad_words=[word, "zebra"])
    kept = llm.generate("hello", params)[0]
    assert word not in kept.text and len(kept.token_ids) == 30
    beginning = free.text.index(word)
    assert kept.text[:beginning] == free.text[:beginning], "nothing changes before the word comes"


# ---- log-probabilities


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 16}, {"enable_prefix_caching": False}], ids=str)
@pytest.mark.parametrize("others", [False, True])
def test_prompt_logprobs_are_those_of_a_direct_forward_pass(loaded, oracle, settings, others):
    llm = make_llm(loaded, **settings)
    llm.generate([PROMPT], GREEDY)  # now it is cached
    prompts = [PROMPT, PROMPT[:9], [5], PROMPT[3:40]] if others else [PROMPT]
    params = [dataclasses.replace(GREEDY, prompt_logprobs=3), GREEDY, dataclasses.replace(GREEDY, prompt_logprobs=0),
              dataclasses.replace(GREEDY, prompt_logprobs=1, n=2)][:len(prompts)]
    outputs = llm.generate(prompts, params)
    for prompt, own, output in zip(prompts, params, outputs):
        if own.prompt_logprobs is None:
            assert output.prompt_logprobs is None
            continue
        expected = oracle(prompt)
        assert output.num_cached_tokens == 0, "the whole prompt is computed"
        assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
        for position, entry in enumerate(output.prompt_logprobs[1:], 1):
            token, row = prompt[position], expected[position - 1]
            assert entry.token_id == token and abs(entry.logprob - row[token]) < 1e-3
            assert entry.rank == 1 + int((row > row[token]).sum())
            assert entry.text == loaded.tokenizer.decode([token], skip_special_tokens=False)
            assert list(entry.top) == np.argsort(-row)[:own.prompt_logprobs].tolist()
            assert all(abs(top.logprob - row[t]) < 1e-3 for t, top in entry.top.items())
        plain = make_llm(loaded).generate([prompt], GREEDY)[0]
        assert all(completion.token_ids == plain.token_ids for completion in output.outputs)


def test_prompt_logprobs_survive_preemption(loaded, oracle):
    """Use a pool so small that requests lose their blocks in the middle of their prompts, and find some of them
    again."""
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 256, 30).tolist() for _ in range(5)]
    llm = make_llm(loaded, num_blocks=12, max_num_batched_tokens=16, watermark=0.0)
    params = [dataclasses.replace(GREEDY, max_tokens=25, prompt_logprobs=1) for _ in prompts]
    outputs = llm.generate(prompts, params)
    assert llm.engine.scheduler.num_preemptions > 0
    for prompt, output in zip(prompts, outputs):
        expected = oracle(prompt)
        assert [entry.token_id for entry in output.prompt_logprobs[1:]] == prompt[1:]
        assert np.allclose([entry.logprob for entry in output.prompt_logprobs[1:]],
                           [expected[i - 1][token] for i, token in enumerate(prompt) if i], atol=1e-3)


@pytest.mark.parametrize("caching", [True, False])
def test_prompt_logprobs_survive_ctrl_c(loaded, oracle, monkeypatch, caching):
    """Compute some steps again whose log-probabilities are already known, in part or as a whole."""
    llm = make_llm(loaded, max_num_batched_tokens=8, enable_prefix_caching=caching)
    llm.engine.add_request(PROMPT, dataclasses.replace(GREEDY, prompt_logprobs=0), "r")
    real, num_calls = llm.engine.runner._forward, 0

    def forward(*arguments):
        nonlocal num_calls
        num_calls += 1
        if num_calls in (4, 6, 9):
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(llm.engine.runner, "_forward", forward)
    outputs = []
    while llm.engine.has_unfinished_requests():
        try:
            outputs += llm.engine.step()
        except KeyboardInterrupt:
            pass
    expected = oracle(PROMPT)
    assert outputs[-1].error is None and len(outputs[-1].prompt_logprobs) == len(PROMPT)
    assert np.allclose([entry.logprob for entry in outputs[-1].prompt_logprobs[1:]],
                       [expected[i - 1][token] for i, token in enumerate(PROMPT) if i], atol=1e-3)


def test_logprobs_of_the_output(llm, oracle):
    output = llm.generate([PROMPT], SamplingParams(max_tokens=8, seed=5, temperature=1.5, logprobs=2))[0].outputs[0]
    expected = oracle([*PROMPT, *output.token_ids])[44:]
    for entry, token, row in zip(output.logprobs, output.token_ids, expected):
        assert (entry.token_id, entry.rank) == (token, 1 + int((row > row[token]).sum()))
        assert abs(entry.logprob - row[token]) < 1e-3 and [top.rank for top in entry.top.values()] == [1, 2]
        assert all(top.text is not None for top in entry.top.values())
    total = sum(row[token] for token, row in zip(output.token_ids, expected))
    assert abs(output.cumulative_logprob - total) < 1e-2
    assert llm.generate([PROMPT], GREEDY)[0].outputs[0].cumulative_logprob is None, "nobody asked"


# ---- the text


def test_the_stop_text_is_shown_if_asked_for(llm):
    free = llm.generate("hello", dataclasses.replace(GREEDY, max_tokens=30))[0]
    stop = free.text[5:8]
    end = free.text.index(stop)
    for include, shown in ((False, end), (True, end + 3)):
        params = dataclasses.replace(GREEDY, max_tokens=30, stop=stop, include_stop_str_in_output=include)
        output = llm.generate("hello", params)[0]
        assert output.text == free.text[:shown] and output.outputs[0].stop_reason == stop


# ---- besides the text


def test_timings_add_up_by_the_engines_clock(loaded):
    now_s = [100.0]
    engine = LLMEngine(EngineConfig(num_blocks=100, block_size=8, max_num_seqs=1, max_num_batched_tokens=16),
                       loaded=loaded, clock=lambda: now_s[0])
    engine.add_request(PROMPT, dataclasses.replace(GREEDY, max_tokens=4), "first")
    now_s[0] += 1
    engine.add_request(PROMPT[:4], dataclasses.replace(GREEDY, max_tokens=1), "second")
    outputs = {}
    while engine.has_unfinished_requests():
        now_s[0] += 10
        for output in engine.step():
            outputs[output.request_id] = output
    first, second = outputs["first"].timings, outputs["second"].timings
    # 45 tokens in steps of 16 take three; the clock advances between steps, not in them
    assert (first.queue_s, first.first_token_s, first.rest_s, first.total_s) == (11, 20, 30, 61)
    assert (second.queue_s, second.first_token_s, second.rest_s) == (70, 0, 0)


def test_the_cache_can_be_reset_and_the_tokenizer_had(llm, loaded):
    assert llm.get_tokenizer() is loaded.tokenizer
    llm.generate([PROMPT], GREEDY)
    llm.engine.add_request(PROMPT, GREEDY, "r")
    llm.engine.step()
    with pytest.raises(RuntimeError, match="blocks are in use"):
        llm.reset_prefix_cache()
    llm.engine.abort_request("r")
    assert llm.generate([PROMPT], GREEDY)[0].num_cached_tokens == 44
    llm.reset_prefix_cache()
    assert llm.generate([PROMPT], GREEDY)[0].num_cached_tokens == 0


def test_priority_decides_who_is_first(loaded):
    prompts = [PROMPT[i:i + 9] for i in range(3)]
    for priority, order in (([2, 1, 0], [2, 1, 0]), ([Priority.LOW, Priority.HIGH, Priority.LOW], [1, 0, 2])):
        llm = make_llm(loaded, max_num_seqs=1)
        started = []
        real = llm.engine.scheduler.schedule

        def schedule(real=real, started=started):
            plan = real()
            started += [request.prompt_token_ids for request in plan.requests]
            return plan

        llm.engine.scheduler.schedule = schedule
        outputs = llm.generate(prompts, GREEDY, priority=priority)
        assert [output.prompt_token_ids for output in outputs] == prompts, "outputs come in the order of the prompts"
        assert list(dict.fromkeys(map(tuple, started))) == [tuple(prompts[i]) for i in order]


# ---- the asynchronous engine


def run_async(checkpoints, main):
    async def run():
        config = EngineConfig(model=checkpoints("llama3"), num_blocks=100, block_size=8)
        async with AsyncLLMEngine(config) as engine:
            return await main(engine)

    return asyncio.run(run())


def test_deltas_add_up_to_the_whole(checkpoints):
    params = SamplingParams(max_tokens=40, seed=3, ignore_eos=True, n=2, logprobs=1)

    async def main(engine):
        deltas = []
        async for output in engine.generate("hello", params, deltas=True):
            deltas.append(output)
            await asyncio.sleep(0)
        return deltas, [output async for output in engine.generate("hello", params)][-1]

    deltas, whole = run_async(checkpoints, main)
    assert len(deltas) > 1 and deltas[-1].finished
    for index in (0, 1):
        parts, completion = [delta.outputs[index] for delta in deltas], whole.outputs[index]
        assert "".join(part.text for part in parts) == completion.text
        assert [token for part in parts for token in part.token_ids] == completion.token_ids
        assert [entry.token_id for part in parts for entry in part.logprobs] == completion.token_ids
        assert max(len(part.token_ids) for part in parts) < 40


def test_abort_ends_a_stream_with_its_text_so_far(checkpoints):
    async def main(engine):
        outputs = []
        async for output in engine.generate("hello", dataclasses.replace(GREEDY, max_tokens=400), request_id="r"):
            outputs.append(output)
            if len(outputs) == 3:
                assert await engine.abort("r") is True
        assert await engine.abort("r") is False and await engine.abort("nobody") is False
        again = [output async for output in engine.generate("hello", GREEDY, request_id="r")][-1]
        return outputs, again

    outputs, again = run_async(checkpoints, main)
    assert outputs[-1].finish_reason == "abort" and outputs[-1].finished
    assert outputs[-1].text.startswith(outputs[-2].text) and again.finish_reason == "length"
