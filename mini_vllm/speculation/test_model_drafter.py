"""A second model as the drafter: it agrees with itself, keeps its own cache in order, and must share the vocabulary."""

import pytest

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.models.loader import load
from mini_vllm.request import Request, SamplingParams
from mini_vllm.sequences import SequenceState
from mini_vllm.speculation.drafts import NgramDrafter
from mini_vllm.speculation.model_drafter import ModelDrafter
from mini_vllm.speculation.test_speculation import FREE

PARAMS = [dict(temperature=0.0), dict(temperature=0.9, seed=3), dict(temperature=0.8, seed=5, n=3),
          dict(temperature=1.0, seed=8, repetition_penalty=1.3, logprobs=1)]


@pytest.fixture(scope="module")
def loaded(shallow):
    return load(shallow("llama3"))


@pytest.fixture(scope="module")
def other(shallow):
    return load(shallow("qwen3"))


def run(loaded, draft=None, **settings):
    """Run the requests. Return their tokens and the engine."""
    drafting = {"num_speculative_tokens": 3, "draft": draft} if draft else {}
    engine = LLMEngine(EngineConfig(**{"num_blocks": 60, "block_size": 8, **drafting, **settings}), loaded=loaded)
    if draft:
        engine.speculation.costs = FREE
    for number, params in enumerate(PARAMS):
        engine.add_request([number + 1, *range(9, 25)], SamplingParams(max_tokens=20, ignore_eos=True, **params),
                           f"p{number}")
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        if draft:
            engine.speculation.drafter.kv_cache.check_integrity()
    assert engine.kv_cache.block_pool.get_usage() == 0.0
    return {name: [each.token_ids for each in output.outputs] for name, output in outputs.items()}, engine


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 16}, {"max_num_batched_tokens": 64, "block_size": 3}])
def test_a_model_that_drafts_for_itself_is_always_right(loaded, settings):
    plain, _ = run(loaded, **settings)
    drafted, engine = run(loaded, loaded.name, **settings)
    counts, drafter = engine.speculation, engine.speculation.drafter
    assert drafted == plain
    assert counts.num_accepted_tokens == counts.num_drafted_tokens > 20
    assert drafter.kv_cache.block_pool.get_usage() == 0.0 and not drafter._copies


def test_a_model_that_is_often_wrong_changes_no_token(loaded, other):
    plain, _ = run(loaded)
    drafted, engine = run(loaded, other.name)
    counts = engine.speculation
    assert drafted == plain and counts.num_accepted_tokens < counts.num_drafted_tokens
    assert counts.drafter.kv_cache.block_pool.get_usage() == 0.0


def test_a_draft_that_was_cut_may_be_right_to_its_end(loaded):
    """Leave room for fewer drafted tokens than were guessed: the next guess of the model is then right, too."""
    plain, _ = run(loaded, max_num_seqs=6)
    drafted, engine = run(loaded, loaded.name, max_num_seqs=6, max_num_batched_tokens=8)
    assert drafted == plain and engine.speculation.num_accepted_tokens > 10


def test_the_budget_may_leave_one_token_of_a_long_text(loaded):
    engine = LLMEngine(EngineConfig(num_blocks=60, block_size=8, num_speculative_tokens=2, draft=loaded.name,
                                    max_num_seqs=8, max_num_batched_tokens=8), loaded=loaded)
    rows = {name: SequenceState(Request(name, range(3, end), SamplingParams(temperature=0)), 0, loaded.tokenizer)
            for name, end in (("a", 10), ("b", 20))}
    engine.drafter._row_of = lambda request: rows[request.request_id].row
    both = engine.drafter.propose_all([each.request for each in rows.values()], [2, 2])
    for name in rows:
        engine.drafter.forget(rows[name].request)
    assert both == [engine.drafter.propose(each.request, 2) for each in rows.values()]


def test_its_cache_may_be_too_small_for_a_request(loaded):
    engine = LLMEngine(EngineConfig(num_blocks=60, block_size=8, num_speculative_tokens=3, draft=loaded.name),
                       loaded=loaded)
    drafter = engine.speculation.drafter
    drafter.kv_cache.block_pool.get_new_blocks(56)
    engine.speculation.costs = FREE
    engine.add_request([*range(9, 60)], SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True), "r")
    while engine.has_unfinished_requests():
        (output,) = engine.step() or [None]
    assert len(output.token_ids) == 10 and engine.speculation.num_drafted_tokens == 0


def test_another_vocabulary_is_rejected(loaded):
    with pytest.raises(ValueError, match=r"draft is 'tiny-tales', whose vocabulary \(4096 tokens\) is not that of"):
        LLMEngine(EngineConfig(num_blocks=60, num_speculative_tokens=2, draft="tiny-tales"), loaded=loaded)


def test_a_draft_model_that_computes_nan_for_a_request_costs_no_token(loaded, monkeypatch):
    plain, _ = run(loaded)
    read = ModelDrafter._read

    def broken(self, copies, guesses):
        logits = read(self, copies, guesses)
        logits[0] = mx.nan
        return logits

    monkeypatch.setattr(ModelDrafter, "_read", broken)
    drafted, engine = run(loaded, loaded.name)
    assert drafted == plain and engine.speculation.num_accepted_tokens < engine.speculation.num_drafted_tokens


def test_a_drafter_that_guesses_more_than_it_is_asked_for_is_cut_off(loaded):
    class Talkative(NgramDrafter):
        def propose(self, request, max_tokens):
            return [5] * 32

    engine = LLMEngine(EngineConfig(num_blocks=60, num_speculative_tokens=2), EngineParts(drafter=Talkative), loaded)
    engine.speculation.costs = FREE
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
    num_drafted = [0]
    while engine.has_unfinished_requests():
        engine.step()
        num_drafted.append(engine.speculation.num_drafted_tokens)
    assert max(after - before for before, after in zip(num_drafted, num_drafted[1:])) == 2
