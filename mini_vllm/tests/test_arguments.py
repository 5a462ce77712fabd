"""Every public call names what was wrong, before anything is lost. One row per argument."""

import asyncio
import math
import threading

import numpy as np
import pytest

from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.conftest import make_talker
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.llm import LLM
from mini_vllm.request import Priority, SamplingParams

NAN, INF = math.nan, math.inf
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture
def engine(loaded):
    return LLMEngine(EngineConfig(num_blocks=100, block_size=8, max_num_seqs=8), loaded=loaded)


@pytest.fixture
def llm(engine):
    llm = LLM.__new__(LLM)
    llm.engine = engine
    return llm


# ---- parameters, settings, parts: name, invalid values, the sentence


SAMPLING = [
    ("max_tokens", [0, -1, 2.5, "5", True, NAN, [5]], "must be None or a whole number, at least 1"),
    ("min_tokens", [-1, 17, 2.5, None, "1", True], "must be a whole number from 0 to 16"),
    ("temperature", [-0.1, NAN, INF, None, "hot", True, [1.0], 10**400], "must be a finite number, at least 0"),
    ("top_k", [-2, 1.5, None, "5", True], "must be a whole number, at least -1"),
    ("top_p", [0, 1.1, -1, NAN, None, "1", True], "must be a finite number, above 0, at most 1"),
    ("min_p", [-0.1, 1.5, NAN, None, "0", True], "must be a finite number from 0 to 1"),
    ("repetition_penalty", [0, -1, INF, NAN, None, "1", True], "must be a finite number, above 0"),
    ("presence_penalty", [-2.1, 2.1, NAN, None, "1", True], "must be a finite number from -2 to 2"),
    ("frequency_penalty", [-2.1, 2.1, NAN, None, "1", True], "must be a finite number from -2 to 2"),
    ("bad_words", [["a"] * 257, "a" * 257], "must be at most 256 texts of at most 256 characters"),
    ("stop", [["a"] * 257, "a" * 257], "must be at most 256 texts of at most 256 characters"),
    ("logit_bias", [{3: NAN}, {3: 10**400}, {3: "x"}, {3: True}, {3: None}, [1, 2], 5, "x"],
     "must be a mapping from token ids to numbers"),
    ("allowed_token_ids", [[], ()], "must be None or a list of at least 1 token id"),
    ("allowed_token_ids", [5, "5", {1: 2}, b"x"], "must be a list of token ids"),
    ("bad_words", ["", ["a", ""], [1], 5, b"x", {"a": 1}], "must be a text or a list of texts, none of them empty"),
    ("seed", [-1, 1.5, "1", True, NAN], "must be None or a whole number, at least 0"),
    ("structured_outputs", [5, "a", [{"regex": "a"}]], "must be a StructuredOutputsParams"),
    ("logprobs", [21, -1, 1.5, "1", True], "must be None or a whole number from 0 to 20"),
    ("prompt_logprobs", [21, -1, 1.5, "1", True], "must be None or a whole number from 0 to 20"),
    ("stop", ["", ["a", ""], [None], 5, b"x", {"a": 1}], "must be a text or a list of texts, none of them empty"),
    ("stop_token_ids", [5, "5", {1: 2}, b"x"], "must be a list of token ids"),
    ("include_stop_str_in_output", [0, 1, "yes", None], "must be True or False"),
    ("ignore_eos", [0, 1, "yes", None], "must be True or False"),
    ("skip_special_tokens", [0, 1, "yes", None], "must be True or False"),
    ("n", [0, -1, 1.5, None, "1", True], "must be a whole number, at least 1"),
]
CONFIG = [
    ("model", [None, 5, b"x", ["tiny-tales"]], "must be a str or a Path"),
    ("block_size", [0, -8, 1.5, None, "8", True], "must be a whole number, at least 1"),
    ("kv_memory", ["", "lots", "-1MB", 0, -5, 1.5, None, True, ["1MB"], b"1MB"], "must be "),
    ("num_blocks", [1, 0, -1, 1.5, "9", True], "must be None or a whole number, at least 2"),
    ("max_num_seqs", [0, -1, 1.5, None, "9", True], "must be a whole number, at least 1"),
    ("max_num_batched_tokens", [0, 1.5, "9", True], "must be None or a whole number, at least 1"),
    ("max_num_chunk_tokens", [0, 1.5, "9", True], "must be None or a whole number, at least 1"),
    ("max_model_len", [1, 0, -1, 1.5, "9", True], "must be None or a whole number, at least 2"),
    ("watermark", [-0.1, 1.0, 1.5, NAN, None, "0", True], "must be a finite number, at least 0, below 1"),
    ("aging_rate", [-0.1, NAN, INF, None, "0", True, 10**400], "must be a finite number, at least 0"),
    ("preempt_for_priority", [0, 1, None, "yes"], "must be True or False"),
    ("enable_prefix_caching", [0, 1, None, "yes"], "must be True or False"),
    ("enable_lookahead", [0, 1, "yes"], "must be True, False or None"),
    ("native", [0, 1, "yes"], "must be True, False or None"),
    ("precision", ["fastest", None, 1, True], "must be 'exact', 'fast', 'fast-products' or 'fast-cache'"),
    ("num_speculative_tokens", [-1, 1.5, None, "4", True], "must be a whole number, at least 0"),
    ("draft", [None, 5, ["ngram"]], "must be a str or a Path"),
]
PARTS = [("block_pool", "BlockPool"), ("kv_cache_manager", "KVCacheManager"), ("prefix_tree", "PrefixTree"),
         ("request_queue", "PriorityQueueWithAging"), ("scheduler", "Scheduler"), ("sampler", "Sampler"),
         ("attention", "FastAttention"), ("model_runner", "ModelRunner"), ("drafter", "NgramDrafter"),
         ("guess_record", "GuessRecord"), ("verifier", "Verifier"), ("grammar", "RegexGrammar"),
         ("engine", "LLMEngine")]


def rows(table):
    return [pytest.param(name, value, bound, id=f"{name}={value!r}"[:50]) for name, values, bound in table
            for value in values]


def check_refused(made, name, value, bound):
    with pytest.raises(ValueError) as caught:
        made(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is ") and bound in message, message


@pytest.mark.parametrize("name, value, bound", rows(SAMPLING))
def test_a_sampling_parameter_that_cannot_be_is_refused_by_name(name, value, bound):
    check_refused(SamplingParams, name, value, bound)


@pytest.mark.parametrize("name, value, bound", rows(CONFIG))
def test_a_setting_that_cannot_be_is_refused_by_name(name, value, bound):
    check_refused(EngineConfig, name, value, bound)


@pytest.mark.parametrize("name, like", PARTS)
def test_a_part_that_is_no_class_is_refused_by_name(name, like):
    for value in (5, "BlockPool", *([] if name in ("prefix_tree", "engine") else [None])):
        kind = "a function or a class" if name == "attention" else "a class"
        check_refused(EngineParts, name, value, f"must be {kind} like {like}")


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
@pytest.mark.parametrize("bad", [-1, 1.5, "1", True, None])
def test_what_is_no_token_id_is_named(name, bad):
    with pytest.raises(ValueError, match=f"^{name} has the token id .*, must be a whole number, at least 0"):
        SamplingParams(**{name: {bad: 1.0} if name == "logit_bias" else [3, bad]})


def test_numbers_of_numpy_are_numbers():
    params = SamplingParams(max_tokens=np.int64(5), temperature=np.float32(0.5), top_k=np.int32(-1), seed=np.uint64(7),
                            stop_token_ids=np.array([3, 4]), allowed_token_ids={5},
                            logit_bias={np.int64(3): np.float64(2)})
    assert (params.max_tokens, params.temperature, params.top_k, params.seed) == (5, 0.5, 0, 7)
    assert params.stop_token_ids == (3, 4) and params.allowed_token_ids == (5,) and params.logit_bias == {3: 2.0}
    for value in (params.max_tokens, params.temperature, params.seed, *params.stop_token_ids, *params.logit_bias):
        assert type(value) in (int, float)
    assert EngineConfig(block_size=np.int64(8)).block_size == 8


# ---- prompts


PROMPTS = [
    (None, "the prompt is None, must be a text, a list of token ids"),
    (b"hello", "the prompt is b'hello', must be a text"),
    (5, "the prompt is 5, must be a text"),
    (2.5, "the prompt is 2.5, must be a text"),
    ({1, 2}, "the prompt is {1, 2}, must be a text"),
    ({"text": "hello"}, r"the prompt is a mapping with the keys \['text'\], must be a text"),
    ({}, r"the prompt is a mapping with the keys \[\]"),
    ({"prompt": "hello", "prompt_token_ids": [1]}, "the prompt is a mapping with the keys"),
    ({"prompt": [1, 2]}, r"the prompt's 'prompt' is \[1, 2\], must be a text"),
    ({"prompt": None}, "the prompt's 'prompt' is None, must be a text"),
    ({"prompt_token_ids": "hello"}, "the prompt's 'prompt_token_ids' is 'hello', must be a list of token ids"),
    ({"prompt_token_ids": None}, "the prompt's 'prompt_token_ids'|the prompt is None"),
    ({"prompt_token_ids": [1, 999]}, "the prompt has the token id 999, must be from 0 to 299"),
    ("", "the prompt is empty"),
    ([], "the prompt is empty"),
    ({"prompt": ""}, "the prompt is empty"),
    (np.array([], dtype=np.int64), "the prompt is empty"),
    ([True], "the prompt has the token id True"),
    ([1, None], "the prompt has the token id None"),
    ([1, "a"], "the prompt has the token id 'a'"),
    ([[1, 2]], r"the prompt has the token id \[1, 2\]"),
    (np.array([1.0, 2.0]), "the prompt has the token id 1.0"),
    (np.array([[1, 2]]), r"the prompt has the token id \[1, 2\]"),
    (np.array(3), "the prompt is 3, must be a list of token ids"),
    ("\ud800", "must be a str without lone surrogates"),
    ([1] * 512, "the prompt has 512 tokens; the context is 512"),
]


@pytest.mark.parametrize("prompt, complaint", PROMPTS, ids=lambda value: repr(value)[:30])
def test_one_bad_prompt_of_a_list_gives_an_error_in_its_own_output(llm, prompt, complaint):
    expected = llm.generate("hello", GREEDY)[0].token_ids
    outputs = llm.generate(["hello", prompt, [1, 2, 3]], GREEDY)
    assert [output.error is None for output in outputs] == [True, False, True]
    assert outputs[1].finish_reason == "error" and outputs[1].finished and outputs[0].token_ids == expected
    with pytest.raises(ValueError, match=complaint):
        raise ValueError(outputs[1].error)


@pytest.mark.parametrize("prompt", [
    [72, 101], (72, 101), np.array([72, 101]), np.array([72, 101], dtype=np.uint8), [np.int64(72), np.int32(101)],
    {"prompt_token_ids": [72, 101]}, {"prompt_token_ids": np.array([72, 101])}], ids=repr)
def test_prompts_of_token_ids_in_all_spellings(llm, prompt):
    expected = llm.generate([[72, 101]], GREEDY)[0]
    got = llm.generate(prompt, GREEDY)
    assert len(got) == 1 and got[0].token_ids == expected.token_ids and got[0].prompt is None
    assert got[0].prompt_token_ids == [72, 101] and type(got[0].prompt_token_ids[0]) is int


@pytest.mark.parametrize("prompts", [None, 5, 2.5, b"hello", {1, 2}, object()], ids=lambda given: type(given).__name__)
def test_what_is_neither_a_prompt_nor_a_list_is_refused(llm, prompts):
    with pytest.raises(ValueError, match="^prompts is .*, must be a prompt .* or a list of prompts"):
        llm.generate(prompts, GREEDY)


# ---- calls


CALLS = [
    ("sampling_params", [5, "greedy", {"max_tokens": 5}], "must be a SamplingParams"),
    ("request_id", [5, b"r", ["r"]], "must be a str"),
    ("priority", [3, -1, "HIGH", None, True, 1.5, [0]], r"must be Priority.HIGH, NORMAL or LOW \(0, 1 or 2\)"),
    ("extra_keys", [["tenant"], (["tenant"],), 7, "tenant"], "must be a tuple of hashable values, or None"),
]


@pytest.mark.parametrize("name, value, bound", rows(CALLS))
def test_an_argument_of_add_request_is_refused_by_name(engine, name, value, bound):
    with pytest.raises(ValueError, match=f"^{name} is .*, {bound}"):
        engine.add_request("hello", **{name: value})
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids", "allowed_token_ids"])
def test_ids_outside_the_vocabulary_are_refused(engine, name):
    value = {300: 1.0} if name == "logit_bias" else [300]
    with pytest.raises(ValueError, match=f"^{name} has the token id 300, must be from 0 to 299"):
        engine.add_request("hello", SamplingParams(**{name: value}))


@pytest.mark.parametrize("arguments, complaint", [
    (dict(sampling_params=5),
     "sampling_params is 5, must be a SamplingParams, or a list with one SamplingParams for each of the 2 prompts"),
    (dict(sampling_params=[GREEDY]), "there are 2 prompts, but 1 sampling_params"),
    (dict(sampling_params=[GREEDY, None]), r"sampling_params\[1\] is None, must be a SamplingParams"),
    (dict(priority=7), "priority is 7, must be Priority.HIGH, NORMAL or LOW"),
    (dict(priority=[0]), "there are 2 prompts, but 1 priority"),
    (dict(priority=[0, 9]), "priority is 9"),
    (dict(priority=[0, "x"]), r"priority\[1\] is 'x'"),
])
def test_an_argument_of_generate_is_refused_by_name(llm, arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        llm.generate(["a", "b"], **arguments)
    assert not llm.engine.has_unfinished_requests()


@pytest.mark.parametrize("config, parts, complaint", [
    (5, None, "config is 5, must be an EngineConfig"), ({}, None, "config is {}, must be an EngineConfig"),
    (None, 0, "parts is 0, must be an EngineParts"), (None, BaseException, "parts is .*, must be an EngineParts")])
def test_engines_take_configs_and_parts(config, parts, complaint):
    for kind in (LLMEngine, AsyncLLMEngine):
        with pytest.raises(ValueError, match=complaint):
            kind(config, parts)
    assert not any(thread.name == "mini_vllm engine" for thread in threading.enumerate())


def test_what_is_no_conversation_gives_an_error_in_its_own_output(shallow, tmp_path):
    llm = LLM(make_talker(shallow, tmp_path), num_blocks=40, block_size=8)
    good = [{"role": "user", "content": "hello"}]
    outputs = llm.chat([good, [], [5], [{"content": "x"}], None, good], GREEDY)
    assert [output.error is None for output in outputs] == [True, False, False, False, False, True]
    assert all("messages is " in output.error for output in outputs[1:5])
    for bad in (None, 5, "hello"):
        with pytest.raises(ValueError, match="messages is .*, must be a list or a tuple"):
            llm.chat(bad, GREEDY)


# ---- the asynchronous engine


ASYNC_CALLS = [*CALLS, ("deltas", [0, 1, None, "yes"], "must be True or False")]


def test_arguments_of_the_asynchronous_engine_are_refused_by_name(shallow):
    async def main():
        async with AsyncLLMEngine(EngineConfig(model=shallow("llama3"), num_blocks=100, block_size=8)) as engine:
            for name, values, bound in ASYNC_CALLS:
                for value in values:
                    with pytest.raises(ValueError, match=f"^{name} is .*, {bound}"):
                        async for _ in engine.generate("hello", **{name: value}):
                            pass
            for prompt, complaint in PROMPTS:
                with pytest.raises(ValueError, match=complaint):
                    async for _ in engine.generate(prompt, GREEDY):
                        pass
            with pytest.raises(ValueError, match="n is 10000000, must be at most max_num_seqs"):
                async for _ in engine.generate("hello", SamplingParams(n=10**7)):
                    pass
            for bad in (None, 5):
                with pytest.raises(ValueError, match="request_id is .*, must be a str"):
                    await engine.abort(bad)
            with pytest.raises(ValueError, match="drain is 1, must be True or False"):
                await engine.shutdown(drain=1)
            await engine.metrics()  # after this, the engine has seen that they were rejected
            assert not engine._thread.streams
            outputs = [output async for output in engine.generate("hello", GREEDY, priority=Priority.HIGH)]
            assert outputs[-1].finished and outputs[-1].error is None

    asyncio.run(main())


@pytest.mark.parametrize("arguments, complaint", [
    (dict(max_num_requests=0), "max_num_requests is 0, must be a whole number, at least 1"),
    (dict(max_num_requests=1.5), "max_num_requests is 1.5"), (dict(max_num_requests="9"), "max_num_requests is '9'"),
    (dict(make_engine=5), "make_engine is 5, must be None or a function"),
])
def test_the_asynchronous_engine_itself_is_refused_by_name(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        AsyncLLMEngine(**arguments)
    assert not any(thread.name == "mini_vllm engine" for thread in threading.enumerate())
