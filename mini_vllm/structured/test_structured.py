"""Structured outputs in the engine: every output matches, whatever else the request asks for and whatever happens."""

import asyncio
import gc
import itertools
import json
import re
import weakref
from dataclasses import replace

import numpy as np
import pytest

from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.models.loader import load
from mini_vllm.request import SamplingParams
from mini_vllm.structured.automaton import DEAD
from mini_vllm.structured.compiler import GrammarCompiler
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.structured.guided import MAX_STEP_S, GuidedExpression, GuidedGrammar
from mini_vllm.structured.params import MAX_CHOICES, StructuredOutputsParams
from mini_vllm.structured.regex_tree import parse_regex
from mini_vllm.structured.schemas import GrammarError, check_schema
from mini_vllm.structured.vocabulary import Vocabulary

DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
          "minimum": 0, "maximum": 150}}, "required": ["name", "age"], "additionalProperties": False}
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def loaded():
    return load("tiny-tales")


def run(loaded, requests, **config):
    """Serve requests, given as (prompt, params), and return their outputs in order."""
    engine = LLMEngine(EngineConfig(**{"num_blocks": 200, "block_size": 8, **config}), loaded=loaded)
    ids = [engine.add_request(prompt, params) for prompt, params in requests]
    outputs = {}
    while engine.has_unfinished_requests():
        outputs.update((output.request_id, output) for output in engine.step())
        engine.kv_cache.block_pool.check_integrity()
    assert engine.kv_cache.block_pool.get_num_free_blocks() == engine.kv_cache.block_pool.num_blocks - 1
    return [outputs[request_id] for request_id in ids], engine


def params(seed=0, **fields):
    common = {"max_tokens": 60, "temperature": 1.0, "seed": seed}
    structured = {name: fields.pop(name) for name in ("choice", "regex", "json", "json_object", "grammar")
                  if name in fields}
    return SamplingParams(**{**common, **fields}, structured_outputs=StructuredOutputsParams(**structured))


def texts(outputs):
    return [each.text for output in outputs for each in output.outputs]


def reasons(outputs):
    return [each.finish_reason for output in outputs for each in output.outputs]


def test_a_choice_is_one_of_the_texts(loaded):
    outputs, _ = run(loaded, [(PROMPT, params(seed, choice=["yes", "no", "not sure", "nö"])) for seed in range(12)])
    assert set(texts(outputs)) <= {"yes", "no", "not sure", "nö"} and len(set(texts(outputs))) > 1
    assert set(reasons(outputs)) == {"stop"}


def test_an_expression_is_matched_by_every_output(loaded):
    outputs, _ = run(loaded, [(PROMPT, params(seed, regex=DATE)) for seed in range(12)])
    assert all(re.fullmatch(DATE, text) for text in texts(outputs)) and len(set(texts(outputs))) > 6
    assert set(reasons(outputs)) == {"stop"}


def test_a_schema_is_followed_by_every_output(loaded):
    outputs, _ = run(loaded, [(PROMPT, params(seed, json=SCHEMA)) for seed in range(6)])
    assert set(reasons(outputs)) == {"stop"}
    for text in texts(outputs):
        value = json.loads(text)
        assert value.keys() == {"name", "age"} and 0 <= value["age"] <= 150 and len(value["name"]) <= 12


def test_any_object_and_a_grammar(loaded):
    outputs, _ = run(loaded, [(PROMPT, params(3, json_object=True, max_tokens=200)),
                              (PROMPT, params(4, grammar='start: "a" | "b" start "c"'))])
    if outputs[0].finish_reason == "stop":
        assert isinstance(json.loads(outputs[0].text), dict)
    assert outputs[0].text.startswith("{") and re.fullmatch("b*ac*", outputs[1].text)


def test_greedy_decoding_takes_the_likeliest_allowed_token(loaded):
    (output,), _ = run(loaded, [(PROMPT, params(choice=["zebra", "there was"], temperature=0))])
    (free,), _ = run(loaded, [(PROMPT, SamplingParams(temperature=0, max_tokens=3, logprobs=20))])
    assert output.text in ("zebra", "there was") and output.finish_reason == "stop" and free.finish_reason == "length"


def test_other_requests_of_the_batch_are_unaffected(loaded):
    free = [(PROMPT, SamplingParams(max_tokens=20, temperature=1.0, seed=seed)) for seed in range(4)]
    alone, _ = run(loaded, free)
    mixed, _ = run(loaded, [*free[:2], (PROMPT, params(7, regex=DATE)), *free[2:], (PROMPT, params(8, choice=["a"]))])
    assert texts([*mixed[:2], *mixed[3:5]]) == texts(alone)
    assert re.fullmatch(DATE, mixed[2].text) and mixed[5].text == "a"


def test_the_same_seed_gives_the_same_text_alone_and_in_a_batch(loaded):
    requests = [(PROMPT, params(seed, regex=r"(the|a) \w{3,9}\.")) for seed in range(5)]
    together, _ = run(loaded, requests)
    assert texts(together) == [text for request in requests for text in texts(run(loaded, [request])[0])]


def test_continuations_each_have_their_own_place(loaded):
    (output,), _ = run(loaded, [(PROMPT, params(5, regex=DATE, n=6))])
    assert len(output.outputs) == 6 and all(re.fullmatch(DATE, each.text) for each in output.outputs)
    assert len({each.text for each in output.outputs}) > 2


def test_a_preempted_sequence_keeps_its_place(loaded):
    requests = [(PROMPT + " " * seed, params(seed, regex=r"([a-z]{2} ){9}end", max_tokens=70)) for seed in range(6)]
    roomy, _ = run(loaded, requests)
    tight, engine = run(loaded, requests, num_blocks=14)
    assert engine.metrics().num_preemptions > 0 and texts(tight) == texts(roomy)
    assert all(re.fullmatch(r"([a-z]{2} ){9}end", text) for text in texts(tight))


@pytest.mark.parametrize("structure", [{"regex": r"((ab|cd)(ab|cd) ){8}"}, {"choice": ["over and over and over again"]},
                                       {"json": SCHEMA}])
def test_rejected_drafts_change_nothing(loaded, structure):
    requests = [(f"{PROMPT} abcd abab cdab abcd abab over and over and", params(seed, **structure, max_tokens=80))
                for seed in range(3)]
    plain, _ = run(loaded, requests)
    engine = LLMEngine(EngineConfig(num_blocks=200, block_size=8, num_speculative_tokens=4), loaded=loaded)
    from mini_vllm.speculation.test_speculation import FREE
    engine.speculation.costs = FREE
    ids = [engine.add_request(prompt, each) for prompt, each in requests]
    outputs = {}
    while engine.has_unfinished_requests():
        outputs.update((output.request_id, output) for output in engine.step())
    assert [outputs[request_id].text for request_id in ids] == texts(plain)
    assert engine.metrics().num_drafted_tokens > 0


def test_running_out_of_tokens_ends_with_length(loaded):
    (output,), _ = run(loaded, [(PROMPT, params(regex="[a-z]{5,90}", max_tokens=6, temperature=2.0))])
    assert output.finish_reason in ("length", "stop") and len(output.token_ids) <= 6
    (output,), _ = run(loaded, [(PROMPT, params(json=SCHEMA, max_tokens=3))])
    assert output.finish_reason == "length" and output.text.startswith("{")


@pytest.mark.parametrize("structure, needed", [({"regex": "x{30}"}, None), ({"choice": ["zzz zzz zzz zzz"]}, None)])
def test_too_few_tokens_for_any_output_are_refused(loaded, structure, needed):
    engine = LLMEngine(EngineConfig(num_blocks=50, block_size=8), loaded=loaded)
    with pytest.raises(ValueError, match="max_tokens is 2, but the shortest output .* has [0-9]+ tokens") as caught:
        engine.add_request(PROMPT, params(**structure, max_tokens=2))
    needed = int(re.search("has ([0-9]+) tokens", str(caught.value))[1])
    assert not engine.has_unfinished_requests()
    (output,), _ = run(loaded, [(PROMPT, params(**structure, max_tokens=needed, temperature=0))])
    assert output.text and output.finish_reason in ("stop", "length")


def test_a_choice_of_single_tokens_needs_only_one(loaded):
    outputs, _ = run(loaded, [(PROMPT, params(seed, choice=[" the", " a"], max_tokens=1)) for seed in range(4)])
    assert set(reasons(outputs)) <= {"stop", "length"} and set(texts(outputs)) <= {" the", " a"}


def test_stop_strings_and_min_tokens_still_work(loaded):
    (stopped,), _ = run(loaded, [(PROMPT, params(regex="ab*", stop=["bb"], temperature=0, min_tokens=4))])
    assert re.fullmatch("ab*", stopped.text) and len(stopped.token_ids) >= 4
    (failed,), _ = run(loaded, [(PROMPT, params(choice=["a"], min_tokens=9))])
    assert failed.finish_reason == "error" and "structured_outputs" in failed.error


@pytest.mark.parametrize("fields, problem", [
    ({}, "has nothing, must have exactly one"), ({"regex": "a", "choice": ["b"]}, "has choice and regex"),
    ({"choice": []}, "a list of at least one text"), ({"choice": "ab"}, "a list of at least one text"),
    ({"choice": ["a", ""]}, "none of them empty"), ({"choice": ["x"] * (MAX_CHOICES + 1)}, "at most 1024 texts"),
    ({"regex": ""}, "1 to 65536 characters"), ({"regex": 5}, "a text of 1"), ({"json": "{"}, "is not JSON"),
    ({"json": [1]}, "must be a JSON schema"), ({"json": {"a": object()}}, "is not JSON"),
    ({"json_object": 1}, "True or"),
    ({"json": '{"a":' * 100 + "1" + "}" * 100}, "at most 64 objects"), ({"json": "x" * 99_999}, "at most 65536"),
    ({"grammar": 3}, "a text of 1")])
def test_wrong_parameters_are_refused_by_name(fields, problem):
    with pytest.raises(ValueError, match="structured_outputs") as caught:
        StructuredOutputsParams(**fields)
    assert problem in str(caught.value)


@pytest.mark.parametrize("structure, problem", [
    ({"regex": "a(?=b)"}, r"structured_outputs.regex: lookarounds.* at position 1"),
    ({"regex": "(a|b)*a(a|b){30}"}, "structured_outputs.regex: the expression needs more than"),
    ({"json": {"type": "nothing"}}, "structured_outputs.json: "),
    ({"json": {"type": "object", "properties": 3}}, "structured_outputs.json: "),
    ({"json": {"properties": {"a": {"anyOf": [{"type": "null"}, {"not": {}}]}}, "$defs": {"b": {"type": "string"}}}},
     r'structured_outputs.json: Unimplemented keys: \["not"\], at /properties/a/anyOf/1$'),
    ({"json": {"properties": {"a": False, "b": {"x-guidance": 1}, "c": {"type": "array", "items": {"not": {}}}}}},
     r'Unimplemented keys: \["not"\], at /properties/c/items$'),
    ({"json": {"items": {"type": "string", "pattern": "(?=a)b"}}}, "regex parse error: look-around.*, at /items$"),
    ({"json": False}, "no output matches the schema false"),
    ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, "x-guidance is not a keyword"),
    ({"json": {"items": {"type": "object", "required": ["a"], "minProperties": 3}}},
     "minProperties is 3, must be at most 2"),
    ({"json": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}},
     "exclusiveMinimum 0 with maximum 0.5 is not supported, because the parser would allow the excluded number"),
    ({"json": {"$ref": "#/$defs/a", "minimum": -1.5, "$defs": {"a": {"allOf": [{"exclusiveMaximum": -1}]}}}},
     "exclusiveMaximum -1 with minimum -1.5 is not supported"),
    ({"json": {"enum": [1, [{"a": 2**53 + 1}]]}}, "has the number 9007199254740993, must be from"),
    ({"json": {"enum": ["a", {"b\0": 1}]}}, r"has the text 'b\\x00', must have no control characters"),
    ({"json": {"oneOf": [{"type": "string"}, {"const": "a"}]}}, "oneOf constraints are not supported"),
    ({"grammar": 'start: start "a" | start'}, "structured_outputs: no output can match"),
    ({"json": {"properties": {"x": {"$ref": "#/$defs/none"}}}}, "/none' does not exist, at /properties/x"),
    ({"grammar": "start: nothing_here"}, "structured_outputs.grammar: at 1.*unknown name")])
def test_what_cannot_be_compiled_is_refused_when_it_arrives(loaded, structure, problem):
    engine = LLMEngine(EngineConfig(num_blocks=50, block_size=8), loaded=loaded)
    with pytest.raises(ValueError, match=problem):
        engine.add_request(PROMPT, params(**structure))
    assert not engine.has_unfinished_requests()


def test_bounds_of_different_values_are_no_range():
    check_schema({"properties": {"a": {"exclusiveMinimum": 0}, "b": {"maximum": 0.5}}, "allOf": [{"maximum": 0.5}]})


NUMBERS = [-2, -1.5, -1, -0.5, 0, 0.25, 1, 1.5, 2]
EXCLUDES = {"minimum": float.__lt__, "exclusiveMinimum": float.__le__, "maximum": float.__gt__,
            "exclusiveMaximum": float.__ge__}


def test_no_range_allows_a_number_outside_of_it():
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], {256})
    num_allowed = num_refused = 0
    for low, high in itertools.combinations(NUMBERS, 2):
        for names in itertools.product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            bounds = dict(zip(names, (low, high)))
            try:
                grammar = GuidedGrammar(StructuredOutputsParams(json={"type": "number", **bounds}), vocabulary)
            except GrammarError:
                num_refused += 1
                continue
            for text in {*map(str, NUMBERS), "-0", "-0.0", "0.0", "0.1", "-0.1", "1.0", "1.1", "-1.1", "-1.0", "0.9"}:
                state = grammar.start
                for byte in text.encode():
                    state = grammar.advance(state, byte)
                if grammar.is_accepting(state):
                    num_allowed += 1
                    assert not any(EXCLUDES[name](float(text), float(bound)) for name, bound in bounds.items()), (
                        f"{bounds} allows {text}")
    assert num_allowed > 500 and num_refused < 20


def test_ignore_eos_contradicts_a_structure():
    with pytest.raises(ValueError, match="ignore_eos is True, must be False with structured_outputs"):
        params(regex="a", ignore_eos=True)


def test_a_mapping_is_accepted_and_an_unknown_field_is_not():
    assert SamplingParams(structured_outputs={"choice": ["a"]}).structured_outputs.choice == ("a",)
    with pytest.raises(ValueError, match="structured_outputs has the field 'regexp'"):
        SamplingParams(structured_outputs={"regexp": "a"})


def test_requests_with_equal_grammars_share_one(loaded):
    engine = LLMEngine(EngineConfig(num_blocks=50, block_size=8), loaded=loaded)
    for seed in range(3):
        engine.add_request(PROMPT, params(seed, regex=DATE))
    grammars = {id(group.sequences[0].row.cursor.compiled) for group in engine.live.groups.values()}
    assert len(grammars) == 1
    while engine.has_unfinished_requests():
        engine.step()
    assert not engine.inputs.grammars._compiled  # nothing holds it any more


def test_an_async_engine_compiles_outside_of_its_event_loop(loaded):
    async def ask():
        engine = AsyncLLMEngine(EngineConfig(num_blocks=100, block_size=8))
        try:
            first = [output async for output in engine.generate(PROMPT, params(1, regex=DATE))][-1]
            with pytest.raises(ValueError, match=r"structured_outputs.regex: .* at position 0"):
                async for _ in engine.generate(PROMPT, params(1, regex="(")):
                    pass
            return first.text
        finally:
            await engine.shutdown()

    assert re.fullmatch(DATE, asyncio.run(ask()))


def test_log_probabilities_are_those_of_the_model(loaded):
    (output,), _ = run(loaded, [(PROMPT, params(2, choice=["zz", "qq"], logprobs=2))])
    (first, *_) = output.outputs[0].logprobs
    assert first.rank > 2 and first.logprob < -2  # as unlikely as the model finds it
    assert replace(first, text=None).token_id == output.token_ids[0]


def test_an_engine_that_is_gone_leaves_no_vocabulary_behind(loaded):
    engine = LLMEngine(EngineConfig(num_blocks=50, block_size=8), loaded=loaded)
    engine.add_request(PROMPT, params(json=SCHEMA, max_tokens=3))
    while engine.has_unfinished_requests():
        engine.step()
    vocabulary = weakref.ref(engine.inputs.grammars.vocabulary)
    del engine
    gc.collect()
    assert vocabulary() is None


@pytest.mark.parametrize("structure", [
    {"grammar": 'start: "a" start'}, {"grammar": "start: a\na: /[a-z ]/ | a a | a a a | a a a a"},
    {"json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}}])
def test_a_parser_that_gives_up_ends_the_request_and_not_its_grammar(loaded, monkeypatch, structure):
    monkeypatch.setattr("mini_vllm.structured.guided.MAX_FIRST_S", 60.0)
    (output, other), _ = run(loaded, [(PROMPT, params(1, **structure, stop=["."])),
                                      (PROMPT, params(2, choice=["yes"]))])
    assert output.finish_reason == "error" and "structured_outputs: parser error" in output.error
    assert (other.text, other.finish_reason) == ("yes", "stop")


@pytest.mark.parametrize("step_s, has_failed", [(MAX_STEP_S / 2, False), (0.02, True)])
def test_a_grammar_whose_steps_take_long_ends_its_requests_only(loaded, monkeypatch, step_s, has_failed):
    """Count the time of a parser's steps with a clock that ticks when it is read."""
    clock = itertools.count()
    monkeypatch.setattr("mini_vllm.structured.guided.thread_time", lambda: next(clock) * step_s)
    (first, second), _ = run(loaded, [(PROMPT, params(1, grammar='start: "ab" start | "c"', max_tokens=30)),
                                      (PROMPT, params(2, choice=["yes"]))])
    assert (first.finish_reason == "error") == has_failed and second.text == "yes"
    assert not has_failed or re.search(r"steps of the parser took 0.1\d s, must take at most 0.1 s", first.error)


def test_a_text_that_the_vocabulary_cannot_spell_concerns_only_its_request():
    words = [bytes([byte]) for byte in range(256) if byte != 0xE6]
    vocabulary = Vocabulary([b"", *words], [0])
    with pytest.raises(ValueError, match="no token of this model begins like"):
        GuidedGrammar(StructuredOutputsParams(json={"const": "\u65e5SECRET"}), vocabulary)
    fine = GuidedGrammar(StructuredOutputsParams(json={"const": "yes"}), vocabulary)
    assert fine.allowed(fine.start).any()


def test_the_first_mask_is_found_when_a_grammar_is_made_and_a_slow_one_is_refused_then(monkeypatch):
    vocabulary = Vocabulary.of_bytes()
    made = GuidedGrammar(StructuredOutputsParams(grammar='start: "a" | "b"'), vocabulary)
    assert "bits" in vars(made.start)
    monkeypatch.setattr("mini_vllm.structured.guided.MAX_FIRST_S", -1.0)
    with pytest.raises(ValueError, match="steps of the parser took"):
        GuidedGrammar(StructuredOutputsParams(grammar='start: "a" | "b"'), vocabulary)


def test_owners_share_no_grammar():
    compiler = GrammarCompiler(Vocabulary.of_bytes, RegexGrammar)
    ours, theirs, again = (compiler.compile(StructuredOutputsParams(regex="a+", owner=owner))
                           for owner in ("anna", "bert", "anna"))
    assert ours is again and ours is not theirs


def test_an_expression_with_many_states_is_refused_before_it_takes_memory():
    grammar = GuidedExpression(parse_regex("[a-z ]*a[a-z ]{300}"), Vocabulary.of_bytes())
    state, random = grammar.start, np.random.default_rng(1)
    with pytest.raises(ValueError, match="structured_outputs"):
        for _ in range(20_000):
            allowed = np.flatnonzero(grammar.allowed(state))
            state = grammar.advance(state, int(random.choice(allowed)))


def test_a_grammar_that_loses_its_output_is_an_error_and_not_free_text(loaded):
    class Forgetful(RegexGrammar):
        def advance(self, state, token_id):
            return DEAD

    engine = LLMEngine(EngineConfig(num_blocks=50, block_size=8), EngineParts(grammar=Forgetful), loaded)
    engine.add_request(PROMPT, params(regex="[a-z]{9}"), "r")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].finish_reason == "error" and "does not go on after a token that it allowed" in outputs[-1].error


@pytest.mark.parametrize("text, is_possible", [('{"a":1}', True), ('{"\\u0061":"x"}', False), ('{"b":"x\\ny"}', True),
                                               ('{"b":"\\/"}', False), ('{"a":"x"}', False), ('{"b":"\\"é"}', True)])
def test_a_property_has_one_spelling(text, is_possible):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    grammar = GuidedGrammar(StructuredOutputsParams(json=schema), Vocabulary.of_bytes())
    state = grammar.start
    for byte in text.encode():
        state = grammar.advance(state, byte)
    assert grammar.is_accepting(state) == is_possible
