"""Rejected requests: the error is always in OpenAI's format, with the field, its value and the limit only."""

import asyncio
import json
import logging
import re
import socket
from pathlib import Path

import httpx
import pytest

from mini_vllm.server.api.protocol import FIELDS, NO_EFFECT
from mini_vllm.server.conftest import Client, running, serve, settings_for

ROOT = Path(__file__).parents[2]
GOOD = {"prompt": "a", "max_tokens": 1}
MAX_BODY_BYTES = 20_000


@pytest.fixture(scope="module")
def server(writer, talker):
    with running(settings_for(writer, talker, max_body_bytes=MAX_BODY_BYTES)) as server:
        yield server


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url) as http:
        yield http


def error_of(response, status):
    """Check the format of the error, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"] and response.json().keys() == {"error"}
    for leaked in ("Traceback", ".py", "/tmp", "pydantic", "mini_vllm."):
        assert leaked not in response.text
    return error


@pytest.mark.parametrize("field, value, message", [
    ("temperature", "hot", 'temperature is "hot", must be a valid number'),
    ("temperature", -1, "temperature is -1, must be greater than or equal to 0"),
    ("top_p", 0, "top_p is 0, must be greater than 0"),
    ("max_tokens", "5", 'max_tokens is "5", must be a valid integer'),
    ("max_tokens", 0, "max_tokens is 0, must be greater than or equal to 1"),
    ("max_tokens", True, "max_tokens is true, must be a valid integer"),
    ("n", 129, "n is 129, must be less than or equal to 128"),
    ("n", 20, "n is 20, must be at most max_num_seqs (16)"),
    ("stop", 5, "stop is 5, must be a text of 1 to 256 characters, or a list of such texts"),
    ("stop", "", 'stop is "", must be a text of 1 to 256 characters'),
    ("stop", [""], 'stop is [""], must be a text of 1 to 256 characters'),
    ("stop", ["a", "x" * 257], "must be a text of 1 to 256 characters"),
    ("bad_words", [""], 'bad_words[0] is "", must have at least 1 character'),
    ("logit_bias", {"x": 1}, 'logit_bias.x is "x", must be a token id'),
    ("logit_bias", {"": 1}, 'logit_bias is "", must be a token id'),
    ("logit_bias", {"400": 1}, "logit_bias has the token id 400, must be from 0 to 299"),
    ("logprobs", 21, "logprobs is 21, must be less than or equal to 20"),
    ("seed", 0.5, "seed is 0.5, must be a valid integer"),
    ("priority", "urgent", 'priority is "urgent", must be high, normal or low (0, 1 or 2)'),
    ("priority", True, "priority is true, must be high, normal or low (0, 1 or 2)"),
    ("stream_options", {"include_usage": True}, 'stream_options needs "stream": true'),
    ("echo", True, "echo is true, which is not supported; leave it out"),
    ("best_of", 3, "best_of is 3, which is not supported; leave it out"),
    ("max_token", 5, "max_token is not a known field; did you mean max_tokens?"),
    ("colour", "red", "colour is not a known field; leave it out"),
    ("tools", [], "tools is not a known field here; it belongs to /v1/chat/completions"),
    ("prompt", 5, "prompt is 5, must be a text, a list of texts"),
    ("prompt", [], "prompt is [], must be a text, a list of texts"),
    ("prompt", ["a", 5], "must be a text, a list of texts"),
    ("prompt", [[1], []], "must be a text, a list of texts"),
    ("prompt", [5, -1], "the prompt has the token id -1, must be from 0 to 299"),
    ("prompt", [5, 300], "the prompt has the token id 300, must be from 0 to 299"),
    ("prompt", "", "the prompt is empty"),
    ("prompt", ["a", ""], "the prompt is empty"),
    ("prompt", "x" * 512, "the context is 512"),
    ("model", 5, "model is 5, must be a valid string"),
    ("model", None, "model is null, must be a valid string"),
])
def test_a_wrong_value_of_a_completion(http, writer, field, value, message):
    answer = http.post("/v1/completions", json={"model": writer.name, **GOOD, field: value})
    error = error_of(answer, 400)
    assert message in error["message"] and error["type"] == "invalid_request_error"
    assert error["param"].startswith(field)


def test_fields_that_leave_no_token_together_are_refused_and_no_line_in_the_log(http, writer, caplog):
    fields = {"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1}
    with caplog.at_level(logging.INFO):
        error = error_of(http.post("/v1/completions", json={"model": writer.name, **GOOD, **fields}), 400)
    assert error["param"] == "allowed_token_ids" and "leave no possible next token" in error["message"]
    assert not [record for record in caplog.records if record.name.startswith("mini_vllm")]


@pytest.mark.parametrize("field, value, message", [
    ("messages", [], "messages is [], must have at least 1 item"),
    ("messages", [{"role": "user"}], "messages[0].content is missing"),
    ("messages", [{"role": "bard", "content": "a"}], 'messages[0].role is "bard", must be '),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content is 5, must be a text, or a list of parts like "
     '{"type": "text", "text": "…"}; images and sounds are not supported'),
    *(("messages", [{"role": "user", "content": parts}], "messages[0].content is [") for parts in (
        [], ["a"], [{"type": "image_url", "image_url": {}}], [{"type": "text", "text": 5}], [{"type": "text"}],
        [{"type": "text", "text": "a", "colour": "red"}])),
    ("messages", "hello", 'messages is "hello", must be a valid list'),
    ("messages", [{"role": "user", "content": "x" * 600}], "the context is 512"),
    ("messages", [{"role": "user", "content": "x" * 9000}], "the context is 512"),
    ("top_logprobs", 3, 'which needs "logprobs": true'),
    ("tools", [{"type": "function"}], "tools[0].function is missing"),
    ("functions", [{"name": "f"}], "which is not supported; leave it out"),
    ("store", True, "store is true, which is not supported; leave it out"),
    ("reasoning_effort", "low", 'reasoning_effort is "low", which is not supported; leave it out'),
    ("verbosity", "high", 'verbosity is "high", which is not supported; leave it out'),
    ("service_tier", "priority", 'service_tier is "priority", which is not supported; leave it out'),
    ("prompt_cache_retention", "24h", 'prompt_cache_retention is "24h", which is not supported; leave it out'),
    ("return_hidden_states", True, "return_hidden_states is true, which is not supported; leave it out"),
    ("continue_final_message", True, "which is not supported; leave it out"),
    ("best_of", 1, "best_of is not a known field here; it belongs to /v1/completions"),
    ("response_format", {"type": "json"}, 'response_format.type is "json", must be '),
    ("max_completion_tokens", 3, "send only one of them"),
])
def test_a_wrong_value_of_a_chat(http, talker, field, value, message):
    body = {"model": talker.name, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}], field: value}
    error = error_of(http.post("/v1/chat/completions", json=body), 400)
    assert message in error["message"]


def test_what_asks_for_nothing_is_taken(http, writer, talker):
    neutral = {"echo": False, "suffix": None, "best_of": 1, "user": "me", "stream": False, "n": None, "stop": None}
    assert http.post("/v1/completions", json={"model": writer.name, **GOOD, **neutral}).status_code == 200
    neutral = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": False, "metadata": {},
               "no_stop_trim": False, "return_hidden_states": False, "separate_reasoning": True,
               "stream_reasoning": True, "include_reasoning": True, "continue_final_message": False}
    messages = [{"role": "user", "content": "a", "name": "me"}]
    body = {"model": talker.name, "messages": messages, "max_tokens": 1, **neutral}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


LABELS = {"user": "me", "metadata": {"a": "b"}, "safety_identifier": "me", "prompt_cache_key": "a"}


def test_labels_have_no_effect_and_strict_fields_rejects_each(writer):
    async def main(app, shelf):
        bodies = [{"model": writer.name, **GOOD, **labels} for labels in
                  ({}, *({name: LABELS[name]} for name in NO_EFFECT), {"user": None})]
        clients = [await Client("/v1/completions", body).ask(app) for body in bodies]
        return [(client.status, client.json().get("error")) for client in clients]

    assert [status for status, _ in serve(main, writer)] == [200] * 6
    (status, _), *refused, (of_null, _) = serve(main, writer, strict_fields=True)
    assert (status, of_null) == (200, 400)
    assert refused == [(400, {
        "message": f"{name} has no effect, and this server runs with --strict-fields; leave it out",
        "type": "invalid_request_error", "param": name, "code": "no_effect"}) for name in NO_EFFECT]


def test_strict_fields_also_holds_in_a_chat(talker):
    async def main(app, shelf):
        body = {"model": talker.name, "messages": [{"role": "user", "content": "a"}], "user": "me"}
        return (await Client("/v1/chat/completions", body).ask(app)).json()["error"]["code"]

    assert serve(main, talker, strict_fields=True) == "no_effect"


def test_each_field_of_a_request_is_in_the_documents():
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    assert [name for name in FIELDS if not re.search(rf"`{name}(\.\w+)?`", page)] == []


@pytest.mark.parametrize("body, message", [
    (b"{", "the body is not JSON"), (b"", ""), (b"[]", "must be a JSON object"), (b"null", ""), (b'"a"', ""),
    (b"\xff\xfe{", ""), (b"[" * 15_000, ""), (b'{"model": ' + b"1" * 5000 + b"}", ""), (b'{"a": NaN}', ""),
    (b'{"model": "m", "prompt": "a", "temperature": NaN}', "temperature is NaN, must be a finite number"),
    (b'{"model": "m", "prompt": "\\ud800"}', "must be a str without lone surrogates"),
    (b'{"\\ud800": 1, "model": "m", "prompt": "a"}', ""),
    (b'{"model": "\\u0000", "prompt": "a"}', "there is no model"),
])
def test_a_body_that_cannot_be(http, writer, body, message):
    body = body.replace(b'"m"', json.dumps(writer.name).encode())
    answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert message in error_of(answer, 404 if b"0000" in body else 400)["message"]


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/v1/completions", 405), ("DELETE", "/v1/models", 405), ("GET", "/v1/nothing", 404),
    ("GET", "/nothing", 404),
    ("GET", "/v1/models/none", 404), ("GET", "/v1/models/", 404), ("GET", "/docs", 404),
])
def test_paths_and_methods(http, method, path, status):
    error = error_of(http.request(method, path), status)
    assert error["type"] == "invalid_request_error"


# ---- before the body is read


@pytest.mark.parametrize("headers, status, code", [
    ({"host": "evil.example"}, 403, "host_not_allowed"),
    ({"host": "evil.example:8000"}, 403, "host_not_allowed"),
    ({"host": "localhost.evil.example"}, 403, "host_not_allowed"),
    ({"host": "[::1"}, 403, "host_not_allowed"),
    *(({"host": host}, 403, "host_not_allowed") for host in (
        "evil.example@127.0.0.1", "localhost#.evil.example", "localhost/.evil.example", "localhost?.evil.example",
        "localhost:80@evil.example", "localhost:80:80", "localhost:", "")),
    ({"origin": "http://evil.example"}, 403, "origin_not_allowed"),
    ({"origin": "null"}, 403, "origin_not_allowed"),
    ({"host": "localhost:1", "origin": "http://localhost:2"}, 403, "origin_not_allowed"),
    ({"sec-fetch-site": "cross-site"}, 403, "origin_not_allowed"),
    ({"sec-fetch-site": "same-site"}, 403, "origin_not_allowed"),
    ({"content-type": "text/plain"}, 415, "not_json"),
    ({"content-type": "application/x-www-form-urlencoded"}, 415, "not_json"),
    ({"content-type": ""}, 415, "not_json"),
])
def test_strangers_pages_and_forms_are_turned_away(http, writer, headers, status, code):
    body = json.dumps({"model": writer.name, **GOOD})
    answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json", **headers})
    assert error_of(answer, status)["code"] == code


@pytest.mark.parametrize("headers", [
    {"host": "localhost:1", "origin": "http://localhost:1"}, {"host": "127.0.0.1"}, {"host": "[::1]:80"},
    {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"},
    {"content-type": "application/json; charset=utf-8"}, {"content-type": "Application/JSON"},
])
def test_our_own_page_is_not(http, writer, headers):
    body = json.dumps({"model": writer.name, **GOOD})
    answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json", **headers})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path, status", [("/", 200), ("/live/page/main.js", 200), ("/live/models", 403),
                                          ("/metrics", 403), ("/v1/models", 403)])
def test_a_link_on_another_site_leads_to_the_page_and_nowhere_else(http, path, status):
    assert http.get(path, headers={"sec-fetch-site": "cross-site"}).status_code == status


@pytest.mark.parametrize("path", ["/health", "/"])
def test_who_only_asks_whether_somebody_is_there_gets_no_body(http, path):
    answer = http.head(path)
    assert answer.status_code == 200 and answer.content == b""
    assert answer.headers["content-length"] == str(len(http.get(path).content))


def test_another_name_of_the_server_can_be_allowed(writer):
    from mini_vllm.server.app import make_app
    app = make_app(settings_for(writer, allowed_hosts=("models.example",)))

    async def status(host):
        return (await Client("/health", b"", method="GET", headers={b"host": host}.items()).ask(app)).status

    assert asyncio.run(status(b"Models.example:80")) == 200 and asyncio.run(status(b"other.example")) == 403


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large(http, is_chunked):
    body = b" " * (MAX_BODY_BYTES + 1)
    answer = http.post("/v1/completions", content=(body[at:at + 999] for at in range(0, len(body), 999)) if is_chunked
                       else body, headers={"content-type": "application/json"})
    error = error_of(answer, 413)
    assert f"{len(body)} bytes" in error["message"] and f"the limit is {MAX_BODY_BYTES}" in error["message"]


def test_a_client_that_declares_50_mb_reads_the_413(http):
    answer = http.post("/v1/completions", content=b" " * 50_000_000, headers={"content-type": "application/json"})
    assert f"the limit is {MAX_BODY_BYTES}" in error_of(answer, 413)["message"]


def test_a_body_that_says_it_is_huge_is_not_waited_for(server):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: 99999999999\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_of_the_largest_size_is_read(http, writer):
    body = json.dumps({"model": writer.name, **GOOD}).encode()
    body += b" " * (MAX_BODY_BYTES - len(body))
    assert http.post("/v1/completions", content=body, headers={"content-type": "application/json"}).status_code == 200


def test_a_refusal_is_no_line_in_the_log(http, writer, caplog):
    with caplog.at_level(logging.INFO):
        http.post("/v1/completions", json={"model": writer.name, **GOOD, "temperature": 9})
    assert not [record for record in caplog.records if record.name.startswith("mini_vllm")]
