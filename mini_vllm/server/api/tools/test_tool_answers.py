"""Whole answers and events with calls, made from outputs that the tests define."""

import json
import re

from mini_vllm.request import TokenLogprob
from mini_vllm.server.api.logprobs import TOKENS_PER_PIECE
from mini_vllm.server.api.test_answers import joined, output, read
from mini_vllm.server.api.tools.answers import ToolAnswers
from mini_vllm.server.api.tools.formats import HERMES

CALL = '<tool_call>\n{"name": "f", "arguments": {"é": "\\n"}}\n</tool_call>'


def answers_for(n, must_call=False):
    answers = ToolAnswers("m", n, frozenset({"f"}), must_call, has_cache=True)
    answers.form = HERMES
    return answers


def test_every_choice_has_its_own_calls():
    texts = (("plain", "stop"), (CALL, "stop"), (f"a\n{CALL}\n{CALL}", "kv_cache_full"), ("", "stop"))
    whole = joined(answers_for(4).whole([output(*texts)]))
    told = [(each["message"]["content"], [call["function"] for call in each["message"].get("tool_calls", ())],
             each["finish_reason"]) for each in whole["choices"]]
    call = {"name": "f", "arguments": '{"é": "\\n"}'}
    assert told == [("plain", [], "stop"), (None, [call], "tool_calls"), ("a", [call, call], "length"),
                    (None, [], "stop")]
    assert list(whole["choices"][1]) == ["index", "message", "logprobs", "finish_reason"]
    ids = re.findall('"id": "(call_[0-9a-f]{32})"', json.dumps(whole))
    assert len(ids) == len(set(ids)) == 3


def test_the_events_of_several_choices():
    answers = answers_for(2)
    end = CALL.index("}}")
    steps = [output((CALL[:20], None), ("ab", None)), output((CALL[20:end], None), ("", "stop")),
             output((CALL[end:], "stop"), ("", "stop"))]
    assert [choice["delta"] for event in read(answers.opening(1)) for choice in event["choices"]] == [
        {"role": "assistant", "content": None, "refusal": None}] * 2
    told = [[(choice["index"], choice["delta"], choice["finish_reason"])
             for event in read(answers.events(0, step)) for choice in event["choices"]] for step in steps]
    call_id = told[1][0][1]["tool_calls"][0].pop("id")
    assert re.fullmatch("call_[0-9a-f]{32}", call_id)
    opened = {"index": 0, "type": "function", "function": {"name": "f", "arguments": ""}}
    pieces = [{"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in ('{"é": "\\n"', "}")]
    assert told == [[(1, {"content": "ab"}, None)],
                    [(0, {"tool_calls": [opened]}, None), (0, pieces[0], None), (1, {}, "stop")],
                    [(0, pieces[1], "tool_calls")]]


def test_log_probabilities_come_once_and_also_without_text():
    def step(text, num_tokens, reason=None):
        made = output((text, reason))
        made.outputs[0].logprobs = [TokenLogprob(7, -1.0, {}, 1, "x")] * num_tokens
        return made

    answers = answers_for(1)
    for made, wanted in ((step("<tool_call>", 2), [2]), (step('{"name": "f", "arguments": {', 3), [3, 0]),
                         (step("}}", TOKENS_PER_PIECE + 1, "stop"), [TOKENS_PER_PIECE, 1])):
        events = [event["choices"][0] for event in read(answers.events(0, made))]
        assert [len((event["logprobs"] or {"content": ()})["content"]) for event in events] == wanted
    assert events[-1]["finish_reason"] == "tool_calls" and events[-2]["finish_reason"] is None
