"""Events and whole answers, made from outputs that the tests define."""

import json
import math

import pytest

from mini_vllm.request import CompletionOutput, Logprob, PromptTokensDetails, RequestOutput, TokenLogprob, Usage
from mini_vllm.server.api.answers import ChatAnswers, TextAnswers
from mini_vllm.server.api.logprobs import chat_logprobs, text_logprobs


def output(*texts, usage=(3, 2, 0)):
    """Make an output with these pairs of text and finish reason."""
    choices = [CompletionOutput(index, text, [1], reason) for index, (text, reason) in enumerate(texts)]
    return RequestOutput("r", None, [1], choices, all(reason for _, reason in texts),
                         Usage(*usage[:2], PromptTokensDetails(usage[2])))


def read(events):
    return [json.loads(event.removeprefix("data: ")) for event in "".join(events).split("\n\n")[:-1]]


def joined(pieces):
    return json.loads("".join(pieces))


@pytest.mark.parametrize("kind", [TextAnswers, ChatAnswers])
def test_an_end_is_told_once_and_nothing_is_told_of_nothing(kind):
    answers = kind("m", 2, has_cache=True)
    steps = [output(("a", None), ("", None)), output(("b", "stop"), ("", None)), output(("", "stop"), ("é\"\n", None)),
             output(("", "stop"), ("", "kv_cache_full"))]
    told = [[(choice["index"], choice.get("text", choice.get("delta", {}).get("content")), choice["finish_reason"])
             for event in read(answers.events(0, step)) for choice in event["choices"]] for step in steps]
    assert told == [[(0, "a", None)], [(0, "b", "stop")], [(1, "é\"\n", None)], [(1, "", "length")]]


def test_choices_of_several_prompts_are_numbered_through():
    answers = TextAnswers("m", 2, has_cache=True)
    events = read(answers.events(3, output(("a", None), ("b", None))))
    assert [event["choices"][0]["index"] for event in events] == [6, 7]
    whole = joined(answers.whole([output(("a", "stop"), ("b", "length"), usage=(3, 2, 1)),
                                  output(("c", "stop"), ("d", "kv_cache_full"), usage=(4, 5, 2))]))
    assert [(each["index"], each["text"], each["finish_reason"]) for each in whole["choices"]] == [
        (0, "a", "stop"), (1, "b", "length"), (2, "c", "stop"), (3, "d", "length")]
    assert whole["usage"] == {"prompt_tokens": 7, "completion_tokens": 7, "total_tokens": 14,
                              "prompt_tokens_details": {"cached_tokens": 3}}


def test_a_models_name_cannot_break_an_event():
    (event,) = read(TextAnswers('m"\n\ndata: {}', 1, has_cache=True).events(0, output(("a", None))))
    assert event["model"] == 'm"\n\ndata: {}'


def test_usage_comes_last_if_it_was_asked_for():
    assert TextAnswers("m", 1, has_cache=True).closing([]) == b"data: [DONE]\n\n"
    answers = TextAnswers("m", 1, has_cache=False, include_usage=True)
    (piece,), (last, done) = read(answers.events(0, output(("a", None)))), answers.closing([Usage(3, 2)]).split(
        b"\n\n")[:2]
    assert piece["usage"] is None and done == b"data: [DONE]"
    assert json.loads(last[6:])["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_logprobs_in_both_shapes():
    entry = TokenLogprob(7, -3.0, {1: Logprob(-1.0, 1, "\ufffd"), 2: Logprob(-2.0, 2, "\ufffd"),
                                   3: Logprob(-math.inf, 3, "x")}, 4, "é")
    columns = joined(text_logprobs([entry, entry], 5))
    assert columns["top_logprobs"][0] == {"\ufffd": -1.0, "x": -9999.0, "é": -3.0} and columns["text_offset"] == [5, 6]
    assert columns["tokens"] == ["é", "é"] and columns["token_logprobs"] == [-3.0, -3.0]
    (told,) = joined(chat_logprobs([entry]))["content"]
    assert (told["token"], told["logprob"], told["bytes"]) == ("é", -3.0, [0xC3, 0xA9])
    assert [(each["logprob"], each["bytes"]) for each in told["top_logprobs"]] == [
        (-1.0, None), (-2.0, None), (-9999.0, [0x78])]
