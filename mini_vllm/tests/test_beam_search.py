"""Beam search against searches that never stop early; its arguments and its callers."""

import math
from functools import lru_cache

import numpy as np
import pytest

from mini_vllm.backend import mx
from mini_vllm.beam_search import Beam, beam_search
from mini_vllm.conftest import SHAPE
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.fast.tuning import max_num_batched_tokens
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.random_model import make_random
from mini_vllm.request import SamplingParams
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.tests.test_engine import make_engine, make_llm

VOCAB_SIZE, MAX_TOKENS, PROMPT = 5, 5, [3, 1, 4, 2]
MOST = max_num_batched_tokens()
PENALTIES = [0, 1, 2, -1, 0.5, -3.0]


@pytest.fixture(scope="module")
def tiny():
    """Map a seed to a random model of 5 tokens whose token 0 ends the text."""
    @lru_cache
    def get(seed):
        loaded = make_random({**SHAPE, "model_type": "llama", "vocab_size": VOCAB_SIZE, "num_hidden_layers": 1}, seed)
        loaded.tokenizer.eos_token_ids = frozenset({0})
        return loaded, Table(loaded)

    return get


class Table:
    """Log-probabilities of the token after PROMPT and any sequence, each computed from the beginning."""

    def __init__(self, loaded):
        self.runner, self.known = ModelRunner(loaded.model, 4, 8), {}

    def __getitem__(self, ids):
        if ids not in self.known:
            tokens = [*PROMPT, *ids]
            step = RequestStep(tokens, [1, 2, 3], len(tokens), True)
            (logits,) = np.array(self.runner.step([step]), dtype=np.float64)
            self.known[ids] = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        return self.known[ids]


def ranked(ended, length_penalty, count):
    """Return the best of (ids, log-probability), by the score that ranks beams."""
    scored = [(ids, value, value / len(ids) ** length_penalty) for ids, value in ended]
    return sorted(scored, key=lambda entry: -entry[2])[:count]


def search_to_the_end(table, width, length_penalty, eos_ids=(0,)):
    """Run beam search on lists of tokens up to the last token, whatever has ended by then."""
    live, ended = [((), 0.0)], []
    for _ in range(MAX_TOKENS):
        candidates = sorted(((*ids, token), value + table[ids][token]) for ids, value in live
                            for token in range(VOCAB_SIZE))
        candidates = sorted(candidates, key=lambda entry: -entry[1])[:(1 + len(eos_ids)) * width]
        ended += [entry for entry in candidates if entry[0][-1] in eos_ids]
        live = [entry for entry in candidates if entry[0][-1] not in eos_ids][:width]
    return ranked(ended + live, length_penalty, width)


def assert_same(beams, expected):
    assert [tuple(beam.token_ids) for beam in beams] == [ids for ids, _, _ in expected]
    np.testing.assert_allclose([beam.log_probability for beam in beams], [value for _, value, _ in expected], atol=1e-4)
    np.testing.assert_allclose([beam.score for beam in beams], [score for _, _, score in expected], rtol=1e-4)


def make_chain(monkeypatch, loaded, next_tokens, eos_ids=(0,), **settings):
    """Create an engine whose model knows only the last token: ``next_tokens`` maps it to the probabilities of the
    next."""
    engine = make_engine(loaded, **settings)
    monkeypatch.setattr(engine.tokenizer, "eos_token_ids", frozenset(eos_ids))
    engine.num_computed_steps = 0

    def step(steps, copies=()):
        engine.num_computed_steps += 1
        logits = np.full((len(steps), loaded.config.vocab_size), -1e9, dtype=np.float32)
        for row, request in zip(logits, steps):
            for token_id, probability in next_tokens[request.token_ids[-1]].items():
                row[token_id] = math.log(probability)
        return mx.array(logits)

    monkeypatch.setattr(engine.runner, "step", step)
    return engine


# ---- when a search is over


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_beams_are_those_of_a_search_that_never_stops_early(tiny, width, length_penalty):
    for seed in range(6):
        loaded, table = tiny(seed)
        beams = beam_search(make_engine(loaded), PROMPT, width, MAX_TOKENS, length_penalty)
        assert_same(beams, search_to_the_end(table, width, length_penalty))


@pytest.mark.parametrize("length_penalty, expected", [(1.0, [1, 1, 1, 1]), (0.0, [0]), (-1.0, [0])])
def test_a_longer_beam_that_the_penalty_lifts_is_waited_for(monkeypatch, loaded, length_penalty, expected):
    """Compare an end of probability 0.6, score -0.51, with a beam of -0.92 in all, which over 4 tokens is -0.23."""
    engine = make_chain(monkeypatch, loaded, {7: {0: 0.6, 1: 0.4}, 1: {1: 1.0}})
    (beam,) = beam_search(engine, [7], beam_width=1, max_tokens=4, length_penalty=length_penalty)
    assert beam.token_ids == expected
    assert beam.score == pytest.approx(math.log(0.4) / 4 if length_penalty == 1 else math.log(0.6))


@pytest.mark.parametrize("end, length_penalty, num_steps", [
    (0.6, 0.0, 1),    # -0.92 can only fall, and -0.51 has ended
    (0.45, -1.0, 1),  # longer is worse: a live beam has -0.60 over 1 token, -1.20 over 2, and -0.80 has ended
    (0.6, 1.0, 8),    # over 10 tokens, -5.08 after 7 tokens can still beat -0.51, -5.77 after 8 cannot
    (0.6, 2.0, 10),   # over 100, anything can
])
def test_a_search_is_as_short_as_its_score_allows(monkeypatch, loaded, end, length_penalty, num_steps):
    """Search a chain in which each token after token 1 has probability one half."""
    engine = make_chain(monkeypatch, loaded, {7: {0: end, 1: 1 - end}, 1: {1: 0.5, 2: 0.5}, 2: {1: 0.5, 2: 0.5}})
    (beam,) = beam_search(engine, [7], beam_width=1, max_tokens=10, length_penalty=length_penalty)
    assert engine.num_computed_steps == num_steps
    assert (beam.token_ids == [0]) == (length_penalty < 2)


def test_several_tokens_that_end_a_text_do_not_crowd_out_what_goes_on(monkeypatch, loaded):
    """Let two ends take both of the two best places at every token; the beam that continues is the third."""
    engine = make_chain(monkeypatch, loaded, {7: {8: 0.4, 9: 0.35, 1: 0.25}, 1: {1: 1.0}}, eos_ids=(8, 9))
    (beam,) = beam_search(engine, [7], beam_width=1, max_tokens=4)
    assert beam.token_ids == [1, 1, 1, 1] and beam.finish_reason == "length"


def test_the_token_that_ends_a_beam_is_none_of_its_text(monkeypatch, loaded):
    a, b, end = (loaded.tokenizer.encode(letter)[0] for letter in "ab.")
    engine = make_chain(monkeypatch, loaded, {7: {a: 1.0}, a: {b: 1.0}, b: {end: 1.0}}, eos_ids=(end,))
    (beam,) = beam_search(engine, [7], beam_width=1, max_tokens=9)
    assert (beam.text, beam.finish_reason, beam.token_ids) == ("ab", "stop", [a, b, end])
    (beam,) = beam_search(engine, [7], beam_width=1, max_tokens=3, ignore_eos=True)
    assert (beam.text, beam.finish_reason) == ("ab.", "length")


# ---- arguments


@pytest.mark.parametrize("name, value, complaint", [
    ("beam_width", 0, "beam_width is 0, must be a whole number, at least 1"),
    ("beam_width", 10**7, f"beam_width is 10000000, must be at most max_num_batched_tokens ({MOST})"),
    ("beam_width", True, "beam_width is True, must be"),
    ("max_tokens", 0, "max_tokens is 0, must be a whole number, at least 1"),
    ("length_penalty", math.nan, "length_penalty is nan, must be a finite number from -20 to 20"),
    ("length_penalty", -21, "length_penalty is -21, must be"),
    ("ignore_eos", 1, "ignore_eos is 1, must be True or False"),
    ("prompt", None, "the prompt is None, must be a text, a list of token ids"),
    ("prompt", "", "the prompt is empty"),
    ("prompt", [1, 300], "the prompt has the token id 300"),
    ("prompt", [1] * 600, "the prompt has 600 tokens"),
])
def test_a_wrong_argument_is_named_before_anything_is_computed(monkeypatch, loaded, name, value, complaint):
    engine = make_engine(loaded)
    monkeypatch.setattr(engine.runner, "step", None)
    arguments = {"prompt": "hello", name: value}
    with pytest.raises(ValueError) as error:
        beam_search(engine, **arguments)
    assert str(error.value).startswith(complaint)
    llm = make_llm(loaded)
    monkeypatch.setattr(llm.engine.runner, "step", None)
    prompts = [arguments.pop("prompt"), "hello"]
    with pytest.raises(ValueError) as error:
        llm.beam_search(prompts, **arguments)
    assert complaint in str(error.value) and (name != "prompt" or str(error.value).startswith("prompt 1: "))


# ---- LLM.beam_search


def test_llm_searches_each_prompt_of_a_list(loaded):
    llm = make_llm(loaded)
    prompts = ["hello", [1, 2, 3, 4]]
    found = llm.beam_search(prompts, beam_width=3, max_tokens=6, length_penalty=0.5, ignore_eos=True)
    assert found == [beam_search(make_engine(loaded), prompt, 3, 6, 0.5, True) for prompt in prompts]
    assert all(isinstance(beam, Beam) and len(beam.token_ids) == 6 for beams in found for beam in beams)
    assert llm.engine.kv_cache.block_pool.get_usage() == 0.0


def test_a_beam_of_one_is_what_generate_gives(loaded):
    llm = make_llm(loaded)
    (output,) = llm.generate("Once upon", SamplingParams(max_tokens=12, temperature=0))
    ((beam,),) = llm.beam_search("Once upon", beam_width=1, max_tokens=12)
    assert llm.engine.num_steps == 24, "the steps of a search count as any others"
    assert (beam.token_ids, beam.text, beam.finish_reason) == (output.token_ids, output.text, output.finish_reason)


def test_a_grammar_that_raises_leaves_no_blocks_behind(loaded):
    class Failing(RegexGrammar):
        num_calls = 0

        def advance(self, state, token_id):
            Failing.num_calls += 1
            if Failing.num_calls > 12:
                raise ValueError("this grammar fails")
            return super().advance(state, token_id)

    engine = LLMEngine(EngineConfig(num_blocks=60, block_size=4), EngineParts(grammar=Failing), loaded)
    num_free = engine.kv_cache.block_pool.get_num_free_blocks()
    with pytest.raises(ValueError, match="this grammar fails"):
        beam_search(engine, [1, 2, 3], 4, 10, structured_outputs=StructuredOutputsParams(regex="[a-z ]{5,40}"))
    assert engine.kv_cache.block_pool.get_num_free_blocks() == num_free
    engine.reset_prefix_cache()
