"""Clients that do not read, long answers, and texts that take long to tokenize do not delay other clients."""

import asyncio
import json
import threading

import pytest

from mini_vllm.request import CompletionOutput, Logprob, PromptTokensDetails, RequestOutput, TokenLogprob, Usage
from mini_vllm.server.api.answers import ChatAnswers, TextAnswers
from mini_vllm.server.api.logprobs import MAX_LOGPROBS, TOKENS_PER_PIECE
from mini_vllm.server.api.prompt_readers import Readers
from mini_vllm.server.api.response_writers import TURN_BYTES, EventWriter, WholeWriter
from mini_vllm.server.conftest import Client, serve

PATH = "/v1/completions"
#: How long a test waits for an event before it fails.
PATIENCE_S = 60


class Stalled(Client):
    """A client that reads nothing of the content until told to."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.may_read, self.is_waited_for = asyncio.Event(), asyncio.Event()

    async def send(self, message):
        if message["type"] == "http.response.body":
            self.is_waited_for.set()
            await self.may_read.wait()
        await super().send(message)


# ---- seats and models


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_nobody_reads_holds_neither_seats_nor_the_model(writer, stream):
    request = {"model": writer.name, "prompt": ["a", "b"], "n": 2, "max_tokens": 40, "ignore_eos": True, "seed": 5,
               "temperature": 1, "logprobs": 2, "stream": stream}

    def texts(client):
        choices = [choice for event in (client.events() if stream else [client.json()]) for choice in event["choices"]]
        found = {index: ("", []) for index in range(4)}
        for choice in choices:
            text, tokens = found[choice["index"]]
            found[choice["index"]] = text + choice["text"], tokens + choice["logprobs"]["tokens"]
        return found

    async def main(app, shelf):
        fast, stalled = Client(PATH, request), Stalled(PATH, request)
        await fast.ask(app)
        asking = asyncio.create_task(stalled.ask(app))
        await stalled.is_waited_for.wait()
        while shelf.num_in_flight(writer.name):
            await asyncio.sleep(0)
        other = await Client(PATH, {"model": writer.name, "prompt": ["c"] * 4, "max_tokens": 1}).ask(app)
        assert other.status == 200, "all seats are free"
        assert not asking.done()
        stalled.may_read.set()
        await asking
        return texts(fast), texts(stalled)

    async def patient(app, shelf):
        return await asyncio.wait_for(main(app, shelf), PATIENCE_S)

    fast, stalled = serve(patient, writer, sizes={"max_num_seqs": 4}, max_waiting=0)
    assert fast == stalled and all(len(tokens) == 40 for _, tokens in stalled.values())


def test_a_full_engine_says_so_and_when_to_ask_again(writer):
    async def main(app, shelf):
        async with shelf.lease(writer.name) as served:
            served.engine.max_num_requests = 0
        return await Client(PATH, {"model": writer.name, "prompt": "a"}).ask(app)

    client = serve(main, writer)
    assert client.status == 429 and client.headers[b"retry-after"] == b"1"
    error = client.json()["error"]
    assert error["code"] == "queue_full" and "the engine is busy: 0 requests are running" in error["message"]


# ---- long answers


def output(num_tokens, num_texts=1):
    entry = TokenLogprob(7, -1.0, {each: Logprob(-2.0, each + 1, f"t{each}") for each in range(20)}, 1, "ab")
    choices = [CompletionOutput(index, "ab" * num_tokens, [7] * num_tokens, "length", logprobs=[entry] * num_tokens)
               for index in range(num_texts)]
    return RequestOutput("r", None, [1], choices, True, Usage(1, num_tokens * num_texts, PromptTokensDetails(0)))


@pytest.mark.parametrize("kind", [TextAnswers, ChatAnswers])
@pytest.mark.parametrize("stream", [True, False])
def test_a_long_answer_is_written_in_turns(kind, stream):
    parts, turn = [], 0

    async def count():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def send(message):
        if message["type"] == "http.response.body":
            parts.append(message["body"])

    async def main():
        counting = asyncio.create_task(count())
        writer = EventWriter(kind("m", 2), send, 1) if stream else WholeWriter(kind("m", 2), send)
        await writer.write([(0, output(1000, num_texts=2))])
        await writer.end()
        counting.cancel()

    asyncio.run(main())
    total = sum(map(len, parts))
    assert total > 6 * TURN_BYTES and max(map(len, parts)) < 4 * TURN_BYTES
    assert turn >= total // (4 * TURN_BYTES), f"others were served {turn} times while {total} bytes were written"
    if stream:
        texts = b"".join(parts).decode().split("\n\n")[:-2]
        choices = [json.loads(text.removeprefix("data: "))["choices"][0] for text in texts]
    else:
        choices = json.loads(b"".join(parts))["choices"]
    for index in range(2):
        logprobs = [choice["logprobs"] for choice in choices if choice["index"] == index and choice["logprobs"]]
        told = sum((each["tokens"] if kind is TextAnswers else each["content"] for each in logprobs), [])
        assert len(told) == 1000
        reasons = [choice["finish_reason"] for choice in choices if choice["index"] == index]
        assert reasons[-1] == "length" and not any(reasons[:-1])


def test_events_of_many_tokens_have_the_text_once_and_all_offsets():
    num_tokens = 3 * TOKENS_PER_PIECE + 1
    events = [json.loads(event.removeprefix("data: "))["choices"][0]
              for event in TextAnswers("m", 1).events(0, output(num_tokens))]
    assert [event["text"] for event in events] == ["ab" * num_tokens, "", "", ""]
    assert [event["finish_reason"] for event in events] == [None, None, None, "length"]
    offsets = sum((event["logprobs"]["text_offset"] for event in events), [])
    assert offsets == [2 * index for index in range(num_tokens)]


@pytest.mark.parametrize("num_texts, max_tokens", [(5 * 64, 200), (5 * 128, 10**6)])
def test_an_answer_has_a_bounded_number_of_logprobs(writer, num_texts, max_tokens):
    async def main(app, shelf):
        async with shelf.lease(writer.name) as served:
            expected = num_texts * min(max_tokens, served.prompts.max_model_len) * 21
        request = {"model": writer.name, "prompt": ["a"] * 5, "n": num_texts // 5, "max_tokens": max_tokens,
                   "logprobs": 20}
        refused = await Client(PATH, request).ask(app)
        return refused, expected, await Client(PATH, {**request, "n": 1, "max_tokens": 2}).ask(app)

    refused, expected, taken = serve(main, writer, max_waiting=1000)
    error = refused.json()["error"]
    assert (refused.status, error["code"], error["param"]) == (400, "too_many_logprobs", "logprobs")
    assert f"{expected} log-probabilities" in error["message"] and str(MAX_LOGPROBS) in error["message"]
    assert taken.status == 200


# ---- texts that take long to tokenize


def test_no_text_is_read_in_the_event_loop(writer, talker):
    readers = set()

    def watched(tokenizer):
        encode = tokenizer.encode

        def noted(*arguments, **named):
            readers.add(threading.current_thread())
            return encode(*arguments, **named)

        tokenizer.encode = noted

    async def main(app, shelf, path, request):
        async with shelf.lease(request["model"]) as served:
            watched(served.tokenizer)
        return (await Client(path, request).ask(app)).status

    for model, path, content in ((writer, PATH, {"prompt": "a"}),
                                 (talker, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        request = {"model": model.name, "max_tokens": 1, **content}
        assert serve(lambda app, shelf, path=path, request=request: main(app, shelf, path, request), model) == 200
    assert len(readers) == 2 and threading.main_thread() not in readers
    assert all(thread.daemon for thread in readers), "nobody waits for them at the end"


def test_few_read_at_once_and_one_that_does_not_end_holds_up_its_model_only():
    async def main():
        readers, may_end, started = Readers(most=1), threading.Event(), []

        def read(name):
            started.append(name)
            may_end.wait(PATIENCE_S)
            return name

        stuck = asyncio.create_task(readers.run("m", lambda: read("stuck")))
        while not started:
            await asyncio.sleep(0)
        next_one = asyncio.create_task(readers.run("m", lambda: read("next")))
        assert await readers.run("other", lambda: "other") == "other"
        stuck.cancel()
        await asyncio.wait({stuck})
        assert started == ["stuck"] and stuck.cancelled(), "its thread counts until it ends"
        may_end.set()
        assert await next_one == "next"
        with pytest.raises(ValueError, match="^invalid literal"):
            await readers.run("m", lambda: int("x"))

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
