"""Costly requests: bodies that would take long to parse are rejected before that, and at the first error."""

import asyncio
import contextlib
import json
import signal

import pytest
from pydantic import ValidationError

from mini_vllm.request import Priority
from mini_vllm.server.access.body_limit import MAX_CONTAINERS, MAX_QUOTES, MAX_VALUES, BodyBound, check_shape
from mini_vllm.server.access.caller import CALLER, Caller
from mini_vllm.server.api.field_checks import MAX_BAD_WORDS
from mini_vllm.server.api.params import sampling_params
from mini_vllm.server.api.protocol import ChatRequest, CompletionRequest
from mini_vllm.server.api.validation_messages import MAX_SHOWN, complaint, shown
from mini_vllm.server.app import make_app
from mini_vllm.server.conftest import Client, settings_for
from mini_vllm.server.errors import ApiError

TEXT = {"model": "m", "prompt": "a"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
PART = {"type": "text", "text": "a"}


# ---- the shape of a body, before it is parsed


@pytest.mark.parametrize("body, message", [
    (b"[" + b"{}," * MAX_CONTAINERS + b"{}]", f"{MAX_CONTAINERS + 2} lists and objects, the limit is {MAX_CONTAINERS}"),
    (b"[[" * MAX_CONTAINERS, f"{2 * MAX_CONTAINERS} lists and objects"),
    (b"[" + b"1," * (MAX_VALUES + 1) + b"1]", f"{MAX_VALUES + 1} values, the limit is {MAX_VALUES}"),
    (b"[" + b'"",' * MAX_QUOTES + b"1]", f"{2 * MAX_QUOTES} quotation marks, the limit is {MAX_QUOTES}"),
    (b'{"a": "' + b"\\\"" * (MAX_QUOTES + 1) + b'"}', "quotation marks"),
    (b"[1, " + b"9" * 400 + b"]", "a number of 400 digits"),
])
def test_a_body_that_takes_long_to_parse_is_refused(body, message):
    with pytest.raises(ApiError, match="^the body has ") as caught:
        check_shape(body)
    assert message in caught.value.message and caught.value.status == 400


@pytest.mark.parametrize("body", [
    b"", b"{}", b"[" + b"1," * MAX_VALUES + b"1]", b"[" * MAX_CONTAINERS,
    json.dumps({"prompt": '{"a": [1, 2], "b": "\\",["}' * 10_000}).encode(),
    b'{"prompt": "' + b"[,\\\\" * 100_000 + b'"}', b'{"prompt": "' + b"7" * 10**6 + b'"}',
    b'["never ended' + b",[" * MAX_VALUES,  # the parser stops there
])
def test_commas_and_brackets_in_a_text_cost_nothing(body):
    check_shape(body)


@contextlib.contextmanager
def little_work():
    """Fail after five seconds of CPU time of this process. The checks take hundredths of a second, or else minutes."""
    def fail(number, frame):
        raise AssertionError("it takes longer than one pass over the body")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("body, is_refused", [
    (b'"' + b'\\"' * (MAX_QUOTES - 1) + b" " + b"1" * 400, False),  # an unterminated string
    (b'"' + b"\\\\" * 10**6 + b" " + b"1" * 400, False),
    (b'"' * (MAX_QUOTES - 1) + b" " + b"1" * 400, False),
    (b'"' * MAX_QUOTES + b" " + b"1" * 400, True),
    ((b"1" * 399 + b",") * 100_000, False),
    ((b"1" * 399 + b",") * 100_000 + b"1" * 400, True),
], ids=["escaped quotes", "backslashes", "an odd quote", "quotes", "long numbers", "a longer number"])
def test_a_shape_is_checked_in_one_pass(body, is_refused):
    with little_work():
        try:
            check_shape(body)
        except ApiError as error:
            assert is_refused and error.message == "the body has a number of 400 digits or more"
        else:
            assert not is_refused


# ---- bodies that are not read at all


@pytest.mark.parametrize("method, path, headers, code", [
    ("GET", "/health", {b"content-length": b"5"}, "body_not_allowed"),
    ("GET", "/health", {b"transfer-encoding": b"chunked"}, "body_not_allowed"),
    ("HEAD", "/health", {b"content-length": b"5"}, "body_not_allowed"),
    ("POST", "/v1/completions", {b"content-length": b"5", b"transfer-encoding": b"chunked"}, "two_lengths"),
])
def test_a_body_that_has_no_place_is_not_read(writer, method, path, headers, code):
    client = asyncio.run(Client(path, b"x" * 5, method=method, headers=headers).ask(make_app(settings_for(writer))))
    assert (client.status, client.json()["error"]["code"]) == (400, code)
    assert client.headers[b"connection"] == b"close" and not client.was_read


def test_an_empty_body_has_a_place_everywhere(writer):
    client = Client("/health", b"", method="GET", headers={b"content-length": b"0"})
    assert asyncio.run(client.ask(make_app(settings_for(writer)))).status == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/live/pause", "/health", "/nowhere"])
def test_without_a_key_no_body_is_read(writer, keys_file, path):
    client = Client(path, {"model": "m"})
    asyncio.run(client.ask(make_app(settings_for(writer, keys_file=keys_file))))
    assert client.status == 401 and not client.was_read


# ---- many bodies at once


LARGE = b" " * 70_000


def test_all_large_bodies_together_are_bounded():
    async def main():
        has_come, may_go = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            await receive()
            has_come.set()
            await may_go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        bound = BodyBound(app, max_body_bytes=10**6, max_held_bytes=100_000)
        first, second, small, third = (Client("/v1/completions", body) for body in (LARGE, LARGE, b" ", LARGE))
        asking = asyncio.create_task(first.ask(bound))
        await has_come.wait()
        await second.ask(bound)
        may_go.set()
        await small.ask(bound)
        await asking
        await third.ask(bound)
        return first, second, small, third, bound.budget.num_taken

    *clients, num_taken = asyncio.run(main())
    assert [client.status for client in clients] == [200, 503, 200, 200] and num_taken == 0
    assert clients[1].json()["error"]["code"] == "too_many_bytes" and clients[1].headers[b"retry-after"] == b"1"


def test_one_key_holds_at_most_half_of_the_bytes():
    async def main():
        begun, may_go = [], asyncio.Event()

        async def app(scope, receive, send):
            await receive()
            begun.append(scope[CALLER].name)
            await may_go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        def client(name):
            sender = Client("/v1/completions", LARGE)
            sender.scope[CALLER] = Caller(name, Priority.NORMAL, Priority.NORMAL, is_admin=False)
            return sender

        bound = BodyBound(app, max_body_bytes=10**6, max_held_bytes=4 * len(LARGE))
        clients = [client(name) for name in ("bert", "bert", "bert", "anna")]
        asking = [asyncio.create_task(each.ask(bound)) for each in clients]
        while len(begun) < 3:
            await asyncio.sleep(0)
        may_go.set()
        await asyncio.gather(*asking)
        return [each.status for each in clients], sorted(begun), bound.budget.num_taken

    assert asyncio.run(main()) == ([200, 200, 503, 200], ["anna", "bert", "bert"], 0)


def test_one_body_is_parsed_in_each_turn_of_the_loop():
    async def main():
        turn, turns = 0, []

        async def count():
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async def app(scope, receive, send):
            await receive()
            turns.append(turn)

        counting, bound = asyncio.create_task(count()), BodyBound(app, max_body_bytes=100)
        await asyncio.gather(*(Client("/v1/completions", b"{}").ask(bound) for _ in range(20)))
        counting.cancel()
        return turns

    turns = asyncio.run(main())
    assert len(turns) == len(set(turns)) == 20, f"20 bodies were parsed in the turns {turns}"


def test_the_body_of_a_client_that_has_left_is_not_parsed():
    async def main():
        parsed = []

        async def app(scope, receive, send):
            parsed.append(scope["path"])

        bound, gone, there = BodyBound(app, max_body_bytes=100), Client("/gone", b"{}"), Client("/there", b"{}")
        gone.has_left.set()
        await asyncio.gather(gone.ask(bound), there.ask(bound))
        return parsed

    assert asyncio.run(main()) == ["/there"]


# ---- pydantic's work


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
    (CompletionRequest, {**TEXT, "bad_words": [""] * 257}, "must have at most 256 entries, but has 257"),
    (CompletionRequest, {**TEXT, "bad_words": [""] * 256}, 'bad_words[0] is "", must have at least 1 character'),
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
    body = {**TEXT, "prompt": list(range(200_000)), "stop": ["a"] * 64, "stop_token_ids": [1] * 1024,
            "allowed_token_ids": list(range(2**14)), "bad_words": ["a" * 256] * MAX_BAD_WORDS,
            "logit_bias": {str(i): 1 for i in range(1024)}}
    params = sampling_params(CompletionRequest.model_validate(body), {})
    assert len(params.bad_words) == MAX_BAD_WORDS, "what the schema lets pass, the engine takes"
    ChatRequest.model_validate({**CHAT, "messages": [{"role": "user", "content": [PART] * 4}] * 1024})


def test_the_bounds_are_in_the_schema():
    fields = CompletionRequest.model_json_schema()["properties"]
    bounds = {name: [part.get("maxItems", part.get("maxProperties")) for part in field["anyOf"]]
              for name, field in fields.items() if "maxItems" in str(field) or "maxProperties" in str(field)}
    assert bounds == {"stop_token_ids": [1024, None], "allowed_token_ids": [2**14, None], "bad_words": [256, None],
                      "stop": [None, 64, None], "logit_bias": [1024, None], "metadata": [16, None],
                      "prompt": [None, None, 2048, 2048]}
    assert ChatRequest.model_json_schema()["properties"]["messages"]["maxItems"] == 1024


@pytest.mark.parametrize("value", [[{}] * 10**6, {str(i): [] for i in range(10**5)}, "x" * 10**6, [["a" * 10**6] * 99]])
def test_a_long_value_is_shown_by_its_beginning(value):
    text = shown(value)
    assert len(text) == MAX_SHOWN and text.endswith("…") and json.dumps(value)[:MAX_SHOWN - 1] == text[:-1]


def test_a_body_with_many_values_is_parsed_after_a_pause_in_which_others_are_served(monkeypatch):
    async def main():
        may_go, order = asyncio.Event(), []

        async def sleep(seconds, real=asyncio.sleep):
            order.extend([round(seconds, 2)] if seconds else [])
            await (may_go.wait() if seconds else real(0))

        async def app(scope, receive, send):
            order.append(scope["path"])
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        monkeypatch.setattr("mini_vllm.server.access.body_limit.asyncio.sleep", sleep)
        bound = BodyBound(app, max_body_bytes=10**6)
        asking = asyncio.create_task(Client("/large", b"1," * 100_000).ask(bound))
        while not order:
            await sleep(0)
        await Client("/small", b"1," * 100).ask(bound)
        may_go.set()
        await asking
        return order

    assert asyncio.run(main()) == [0.1, "/small", "/large"]
