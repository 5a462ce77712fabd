"""The grammar of calls, asked about texts byte by byte, and its errors."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.conftest import examples
from mini_vllm.server.api.tools.formats import HERMES, LLAMA
from mini_vllm.server.api.tools.grammar import NO_ARGUMENTS, call_grammar, tool_error
from mini_vllm.server.api.tools.parser import CallParser
from mini_vllm.structured.compiler import GrammarCompiler
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.structured.vocabulary import Vocabulary

POINT = {"type": "object", "properties": {"x": {"enum": [1, 2]}, "y": {"$ref": "#/$defs/Y"}}, "required": ["x", "y"],
         "additionalProperties": False, "$defs": {"Y": {"const": "y"}}}
TOOLS = [("point", POINT), ("now", NO_ARGUMENTS)]


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(Vocabulary.of_bytes, RegexGrammar)


def matches(compiler, grammar, text):
    compiled = compiler.compile(StructuredOutputsParams(grammar=grammar)).grammar
    state = compiled.start
    for byte in text.encode():
        state = compiled.advance(state, byte)
    return compiled.is_accepting(state)


def hermes(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ONE, NOW = hermes("point", '{"x": 1, "y": "y"}'), hermes("now", "{}")


@pytest.mark.parametrize("text, is_one, is_several", [
    (ONE, True, True), (NOW, True, True), (f"{ONE}\n{NOW}\n{ONE}", False, True), ("", False, False),
    (f"{ONE}{NOW}", False, False), (f"{ONE}\n", False, False), (f" {ONE}", False, False), (ONE[:-1], False, False),
    (hermes("fly", "{}"), False, False), (hermes("now", '{"x": 1}'), False, False),
    (hermes("point", '{"x": 3, "y": "y"}'), False, False), (hermes("point", "{}"), False, False),
    (hermes("point", '{"x":1,"y":"y"}'), False, False),
])
def test_hermes(compiler, text, is_one, is_several):
    assert matches(compiler, call_grammar(TOOLS, HERMES, is_parallel=False), text) == is_one
    assert matches(compiler, call_grammar(TOOLS, HERMES, is_parallel=True), text) == is_several


@pytest.mark.parametrize("text, is_match", [
    ('{"name": "point", "parameters": {"x": 1, "y": "y"}}', True), ('{"name": "now", "parameters": {}}', True),
    ('{"name": "now", "parameters": {}}\n{"name": "now", "parameters": {}}', False), ('{"name": "now"}', False),
    ('<|python_tag|>{"name": "now", "parameters": {}}', False),
])
def test_llama_has_one_call(compiler, text, is_match):
    for is_parallel in (False, True):
        assert matches(compiler, call_grammar(TOOLS, LLAMA, is_parallel), text) == is_match


@settings(max_examples=examples(40))
@given(st.text(max_size=6) | st.sampled_from(['"}\nstart: "', "%json {", "</tool_call>", "\\", "#", "/x/", "\u2028"]))
def test_no_text_in_a_schema_leaves_it(compiler, word):
    schema = {"description": word, "properties": {word: {"const": word}}, "required": [word],
              "additionalProperties": False, "x-guidance": {"lenient": True, "whitespace_flexible": True}}
    arguments = json.dumps({word: word}, ensure_ascii=False)
    grammar = call_grammar([("f", schema)], HERMES, is_parallel=True)
    is_match = matches(compiler, grammar, hermes("f", arguments)) or matches(
        compiler, grammar, hermes("f", json.dumps({word: word})))  # some characters may be written only as escapes
    assert is_match or not word.isprintable()
    assert not matches(compiler, grammar, "")
    parser = CallParser(HERMES, {"f"})
    parser.feed(hermes("f", arguments))
    (call,) = parser.found.calls
    assert json.loads("".join(call.arguments)) == {word: word}


@pytest.mark.parametrize("bad", [{"type": "nothing"}, {"properties": 3}, {"allOf": 1},
                                 {"properties": {"a": {"$ref": "#/x"}}}])
def test_an_error_names_the_tool(compiler, bad):
    with pytest.raises(ValueError) as caught:
        compiler.compile(StructuredOutputsParams(grammar=call_grammar([*TOOLS, ("f", bad)], LLAMA, False)))
    assert tool_error(str(caught.value)).startswith("tools[2].function.parameters: ")


def test_other_errors_are_about_the_tools():
    assert tool_error("structured_outputs: too complex") == "tools: too complex"
    assert tool_error("structured_outputs.grammar: at 2(1): odd") == "tools: at 2(1): odd"
    assert tool_error("the prompt is empty") == "the prompt is empty"
