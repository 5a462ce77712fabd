"""Calls and content found in texts that arrive in pieces of any size."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mini_vllm.conftest import examples
from mini_vllm.server.api.tools.findings import Arguments, Content, Opened
from mini_vllm.server.api.tools.formats import HERMES, LLAMA
from mini_vllm.server.api.tools.parser import CallParser
from mini_vllm.server.api.tools.scanner import ObjectScanner

NAMES = {"add", "look-up"}
FORMATS = {"hermes": HERMES, "llama": LLAMA}


def parsed(text, form=HERMES, cuts=(), must_call=False, is_cut=False):
    """Feed ``text`` in pieces that end at ``cuts``. Return the events and the result."""
    parser = CallParser(form, NAMES, must_call)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    events = [event for start, end in zip(bounds, bounds[1:]) for event in parser.feed(text[start:end])]
    events += parser.finish()
    content, calls = parser.result(is_cut)
    return events, content, [(call.name, "".join(call.arguments)) for call in calls]


def joined(events):
    """Return content and calls as a client collects them from events."""
    content, calls = "", []
    for event in events:
        if isinstance(event, Content):
            content += event.text
        elif isinstance(event, Opened):
            assert event.number == len(calls)
            calls.append((event.name, ""))
        else:
            assert isinstance(event, Arguments) and event.number == len(calls) - 1 and event.text
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return content or None, calls


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
ADD = ("add", '{"a": 1, "b": [2]}')


@pytest.mark.parametrize("text, content, calls", [
    ("", None, []), ("just a text\n", "just a text\n", []), (" \n", " \n", []),
    (CALL, None, [ADD]), (f"\n{CALL}\n{CALL}\n", None, [ADD, ADD]), (f"{CALL}{CALL}", None, [ADD, ADD]),
    (f"I will add.\n\n{CALL}", "I will add.", [ADD]), (f"one {CALL} two {CALL}\nthree", "one two\nthree", [ADD, ADD]),
    ('<tool_call>{"name":"look-up","arguments":{}}</tool_call>', None, [("look-up", "{}")]),
    # other keys, or another order
    ('<tool_call>{"arguments": {"a": "é"}, "name": "add"}</tool_call>', None, [("add", '{"a": "é"}')]),
    ('<tool_call>{"id": [1], "name": "add", "arguments": {"a": 1}}</tool_call>', None, [("add", '{"a": 1}')]),
    ('<tool_call>{"name": "add", "arguments": {"a":1}, "id": 3}</tool_call>', None, [("add", '{"a":1}')]),
    # a marker, a brace or a quotation mark inside of a string
    ('<tool_call>{"name": "add", "arguments": {"a": "</tool_call>}\\"{"}}</tool_call>', None,
     [("add", '{"a": "</tool_call>}\\"{"}')]),
    # the end of the call is missing, or another text is there
    ('<tool_call>{"name": "add", "arguments": {}}', None, [("add", "{}")]),
    ('<tool_call>{"name": "add", "arguments": {}}\n</tool', None, [("add", "{}")]),
    ('<tool_call>{"name": "add", "arguments": {}}\nwell', "\nwell", [("add", "{}")]),
    # no calls
    ("a < b and <tool", "a < b and <tool", []), ("<tool_call> is a tag", "<tool_call> is a tag", []),
    ("<tool_call>", "<tool_call>", []), ("<tool_call>\n{", "<tool_call>\n{", []),
    ('<tool_call>{"name": "fly", "arguments": {}}</tool_call>', ..., []),
    ('<tool_call>{"arguments": {}, "name": "fly"}</tool_call>', ..., []),
    ('<tool_call>{"name": "add"}</tool_call>', ..., []),
    ('<tool_call>{"name": ["add"], "arguments": 1}</tool_call>', ..., []),
    ('<tool_call>{"name": "add", "arguments": {"a": 01}}</tool_call>', ..., []),
    ('<tool_call>{"name": "add", "arguments": {"a": 1}, }</tool_call>', ..., []),
    ('<tool_call>{"name": "add", "arguments": {"a": 1', ..., []),
    ('<tool_call>{"a": ' + "[" * 5000 + "]" * 5000 + "}", ..., []),
    ('<tool_call>{"a": ' + "9" * 5000 + "}", ..., []),
    # what follows a failed call is still read
    (f"<tool_call>{{{CALL}", "<tool_call>{", [ADD]), (f"<tool_call>{CALL}", "<tool_call>", [ADD]),
    (f"<tool_<tool_call>no {CALL}", "<tool_<tool_call>no", [ADD]),
    (f'<tool_call>{{"name": "add", "arguments": {{"a": oops}}}}</tool_call>{CALL}',
     '<tool_call>{"name": "add", "arguments": {"a": oops}}</tool_call>', [ADD]),
])
def test_what_is_found_in_a_text(text, content, calls):
    content = text if content is ... else content
    for cuts in ((), range(len(text))):
        assert parsed(text, cuts=cuts)[1:] == (content, calls)


@pytest.mark.parametrize("text, content, calls", [
    ('{"name": "add", "parameters": {"a": 1}}', None, [("add", '{"a": 1}')]),
    ('\n<|python_tag|>{"name": "add", "parameters": {"a": 1}}\n', None, [("add", '{"a": 1}')]),
    ('{"parameters": {}, "name": "add"} done', " done", [("add", "{}")]),
    ('{"name": "add", "parameters": {}}; {"name": "add", "parameters": {}}', '; {"name": "add", "parameters": {}}',
     [("add", "{}")]),
    ('Well: {"name": "add", "parameters": {}}', ..., []), ('{"name": "add", "arguments": {}}', ..., []),
    ('{"colours": ["red"]}', ..., []), ("{broken", ..., []), ("<|python_tag|>print(1)", ..., []), ("<|py", ..., []),
    ('Well. <|python_tag|>{"name": "add", "parameters": {}}', "Well.", [("add", "{}")]),
])
def test_llama_has_one_call_with_or_without_a_marker(text, content, calls):
    content = text if content is ... else content
    for cuts in ((), range(len(text))):
        assert parsed(text, LLAMA, cuts)[1:] == (content, calls)


def test_arguments_are_passed_on_as_they_arrive_and_nothing_before_is():
    parser = CallParser(HERMES, NAMES)
    assert parser.feed("Sure. ") == [Content("Sure.")]
    for piece in ("<tool", "_call>\n{", '"name": "ad', 'd", "argum', 'ents": '):
        assert parser.feed(piece) == []
    assert parser.feed('{"a": "on') == [Opened(0, "add"), Arguments(0, '{"a": "on')]
    assert parser.feed('e"') == [Arguments(0, 'e"')] and not parser.found.calls[0].is_complete
    assert parser.feed("}}\n</tool_") == [Arguments(0, "}")] and parser.found.calls[0].is_complete
    assert parser.feed("call>") == parser.finish() == []


@pytest.mark.parametrize("end, cut_calls", [
    (len('<tool_call>\n{"name": "add", "arguments": {"a'), [("add", '{"a')]), (len('<tool_call>\n{"name": "add"'), []),
    (len("<tool_"), []), (len(CALL) - 3, [ADD]),
])
def test_a_cut_call_is_what_is_there(end, cut_calls):
    text = CALL[:end]
    _, content, calls = parsed(text, is_cut=True)
    assert (content, calls) == (None if cut_calls else text, cut_calls)
    _, content, calls = parsed(text, must_call=True, is_cut=True)
    assert (content, calls) == (None, cut_calls)


def test_a_call_that_was_announced_and_breaks_goes_on_as_content():
    text = '<tool_call>{"name": "add", "arguments": {"a": 1; "b": 2}}</tool_call>'
    events, content, calls = parsed(text)
    assert (content, calls) == (text, [])
    assert joined(events) == ('; "b": 2}}</tool_call>', [("add", '{"a": 1')])


TEXTS = st.lists(st.sampled_from([
    "<tool_call>", "</tool_call>", "<|python_tag|>", "<tool", "\n", " ", "hello", "{", "}", '"', '"name"', ": ", ", ",
    '"arguments"', '"parameters"', '"add"', '"fly"', "[1, 2]", "\\", "\\u00e9", "12", "1e", "null", "é", CALL,
    '{"name": "add", "parameters": {"a": {"b": "}"}}}', '{"name": "add", "arguments": {', '{"a": "x', '"}}',
    '<tool_call>\n{"name": "look-up", "arguments": {"key": "\\"', "\t",
]), max_size=12).map("".join)


@settings(max_examples=examples(300))
@given(TEXTS, st.sampled_from(sorted(FORMATS)), st.lists(st.integers(0, 400), max_size=12), st.booleans(),
       st.booleans())
@example(f"a {CALL} b", "hermes", list(range(99)), False, False)
def test_any_split_gives_the_same_calls_and_content(text, name, cuts, must_call, is_cut):
    whole = parsed(text, FORMATS[name], (), must_call, is_cut)
    split = parsed(text, FORMATS[name], cuts, must_call, is_cut)
    assert split[1:] == whole[1:] and joined(split[0]) == joined(whole[0])
    if not must_call:
        content, calls = whole[1:]
        for _, arguments in calls if not is_cut else ():
            assert isinstance(json.loads(arguments), dict)
        if not calls:
            assert content == (text or None), "what is not a call is not lost"


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                      | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
                      | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=8)


@settings(max_examples=examples(150))
@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), st.booleans(), st.integers(1, 9), st.text(max_size=3))
def test_the_scanner_finds_the_end_of_every_object(value, is_ascii, size, rest):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=None if size % 2 else 1)
    scanner, end = ObjectScanner(), 0
    pieces = [text[start:start + size] for start in range(0, len(text), size)]
    for number, piece in enumerate(pieces):
        assert not scanner.is_done
        end += scanner.read(piece + (rest if number == len(pieces) - 1 else ""), 0)
    assert scanner.is_done and not scanner.is_broken and end == len(text) and scanner.depth == 0


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(list('{}[],:"\\u0e-1.5tn ') + ["true", "null", '"a"', "\n", "\x01"]), max_size=9))
def test_the_scanner_agrees_with_the_library(parts):
    text = "{" + "".join(parts)
    scanner = ObjectScanner()
    end = scanner.read(text, 0)
    try:
        value, num_read = json.JSONDecoder().raw_decode(text)
        assert isinstance(value, dict) and scanner.is_done and end == num_read
    except ValueError:
        assert not scanner.is_done
