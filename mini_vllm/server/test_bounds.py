"""Costly requests: what would take long to read is refused before it is read, and one mistake is enough."""

import json

import pytest
from pydantic import ValidationError

from mini_vllm.server.body import MAX_CONTAINERS, MAX_QUOTES, MAX_VALUES, check_shape
from mini_vllm.server.complaints import MAX_SHOWN, complaint, shown
from mini_vllm.server.errors import ApiError
from mini_vllm.server.protocol import ChatRequest, CompletionRequest

TEXT = {"model": "m", "prompt": "a"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
PART = {"type": "text", "text": "a"}


# ---- the shape of a body, before it is parsed


@pytest.mark.parametrize("body, message", [
    (b"[" + b"{}," * MAX_CONTAINERS + b"{}]", f"{MAX_CONTAINERS + 2} lists and objects, the bound is {MAX_CONTAINERS}"),
    (b"[[" * MAX_CONTAINERS, f"{2 * MAX_CONTAINERS} lists and objects"),
    (b"[" + b"1," * (MAX_VALUES + 1) + b"1]", f"{MAX_VALUES + 1} values, the bound is {MAX_VALUES}"),
    (b"[" + b'"",' * MAX_QUOTES + b"1]", f"{2 * MAX_QUOTES} quotation marks, the bound is {MAX_QUOTES}"),
    (b'{"a": "' + b"\\\"" * (MAX_QUOTES + 1) + b'"}', "quotation marks"),
    (b"[1, " + b"9" * 400 + b"]", "a number of 400 digits"),
    (b'["never ended' + b",[" * MAX_VALUES, "lists and objects"),
])
def test_a_body_that_takes_long_to_parse_is_refused(body, message):
    with pytest.raises(ApiError, match="^the body has ") as caught:
        check_shape(body)
    assert message in caught.value.message and caught.value.status == 400


@pytest.mark.parametrize("body", [
    b"", b"{}", b"[" + b"1," * MAX_VALUES + b"1]", b"[" * MAX_CONTAINERS,
    json.dumps({"prompt": '{"a": [1, 2], "b": "\\",["}' * 10_000}).encode(),
    b'{"prompt": "' + b"[,\\\\" * 100_000 + b'"}', b'{"prompt": "' + b"7" * 10**6 + b'"}',
])
def test_commas_and_brackets_in_a_text_cost_nothing(body):
    check_shape(body)


# ---- what pydantic looks at


@pytest.mark.parametrize("model, body, message", [
    (ChatRequest, {**CHAT, "messages": [{}] * 1025}, "messages is [{}, {}, "),
    (ChatRequest, {**CHAT, "messages": [{}] * 1025}, "must have at most 1024 entries, but has 1025"),
    (ChatRequest, {**CHAT, "messages": [{}] * 1000}, "messages[0].role is missing"),
    (ChatRequest, {**CHAT, "messages": [{"role": "user", "content": [PART] * 100}] * 41},
     "must have at most 4096 parts, but have 4100"),
    (ChatRequest, {**CHAT, "messages": [{**CHAT["messages"][0], **{f"f{i}": 1 for i in range(90)}}] * 5},
     "must have at most 64 fields, but has 92"),
    (CompletionRequest, {**TEXT, "stop_token_ids": [-1] * 1025}, "must have at most 1024 entries, but has 1025"),
    (CompletionRequest, {**TEXT, "stop_token_ids": [-1] * 1024}, "stop_token_ids[0] is -1, must be greater than"),
    (CompletionRequest, {**TEXT, "allowed_token_ids": [-1] * 2**14}, "allowed_token_ids[0] is -1"),
    (CompletionRequest, {**TEXT, "bad_words": [""] * 1025}, "bad_words is ["),
    (CompletionRequest, {**TEXT, "bad_words": [""] * 1024}, 'bad_words[0] is "", must have at least 1 character'),
    (CompletionRequest, {**TEXT, "stop": ["a"] * 65}, "must have at most 64 entries, but has 65"),
    (CompletionRequest, {**TEXT, "prompt": ["a"] * 2049}, "must have at most 2048 prompts, but has 2049"),
    (CompletionRequest, {**TEXT, "prompt": [[1]] * 2049}, "must have at most 2048 prompts, but has 2049"),
    (CompletionRequest, {**TEXT, "logit_bias": {str(i): 999 for i in range(1025)}}, "must have at most 1024 entries"),
    (CompletionRequest, {**TEXT, "metadata": {str(i): "" for i in range(17)}}, "must have at most 16 entries"),
    (CompletionRequest, {**TEXT, **{f"f{i}": 1 for i in range(200)}},
     'the body is {"model": "m", "prompt": "a", "f0": 1, "f1": 1, "f2": 1, "f…, must have at most 64 fields, but has '),
])
def test_lengths_are_checked_before_contents_and_lists_end_at_the_first_mistake(model, body, message):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    errors = caught.value.errors()
    assert len(errors) <= 2, "one mistake, or two of one message"
    assert message in complaint(errors)[0]


def test_what_is_within_the_bounds_is_taken():
    CompletionRequest.model_validate({**TEXT, "prompt": list(range(200_000)), "stop": ["a"] * 64,
                                      "stop_token_ids": [1] * 1024, "allowed_token_ids": list(range(2**14)),
                                      "bad_words": ["a"] * 1024, "logit_bias": {str(i): 1 for i in range(1024)}})
    ChatRequest.model_validate({**CHAT, "messages": [{"role": "user", "content": [PART] * 4}] * 1024})


def test_the_bounds_are_in_the_schema():
    fields = CompletionRequest.model_json_schema()["properties"]
    bounds = {name: [part.get("maxItems", part.get("maxProperties")) for part in field["anyOf"]]
              for name, field in fields.items() if "maxItems" in str(field) or "maxProperties" in str(field)}
    assert bounds == {"stop_token_ids": [1024, None], "allowed_token_ids": [2**14, None], "bad_words": [1024, None],
                      "stop": [None, 64, None], "logit_bias": [1024, None], "metadata": [16, None],
                      "prompt": [None, None, 2048, 2048]}
    assert ChatRequest.model_json_schema()["properties"]["messages"]["maxItems"] == 1024


@pytest.mark.parametrize("value", [[{}] * 10**6, {str(i): [] for i in range(10**5)}, "x" * 10**6, [["a" * 10**6] * 99]])
def test_a_long_value_is_shown_by_its_beginning(value):
    text = shown(value)
    assert len(text) == MAX_SHOWN and text.endswith("…") and json.dumps(value)[:MAX_SHOWN - 1] == text[:-1]
