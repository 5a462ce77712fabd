"""The numbers of /metrics after requests whose effects are known."""

import asyncio
import re

import pytest

from mini_vllm.server.conftest import Client, serve
from mini_vllm.server.errors import ApiError
from mini_vllm.server.metrics import Metrics
from mini_vllm.server.models import model_registry as shelf_module

PROMPT = list(range(20))


def numbers(text):
    """Return a dict: name and labels, without the model → value."""
    found = re.findall(r"^mini_vllm_(\w+)(?:{(.*)})? (\S+)$", text, re.MULTILINE)
    return {(name, *sorted(re.findall(r'(?:state|kind|outcome|status|le)="([^"]*)"', labels))): float(value)
            for name, labels, value in found}


def errors_in(found):
    return {key[1]: value for key, value in found.items() if key[0] == "errors_total"}


async def scrape(app):
    client = await Client("/metrics", b"", method="GET").ask(app)
    assert client.headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
    return numbers(client.data.decode())


def test_every_number_is_right_and_nothing_is_loaded_to_tell_it(writer):
    async def main(app, shelf):
        before = await scrape(app)
        assert not shelf.loaded() and not any(value for name, value in before.items() if "created" not in name[0])
        ask = {"model": writer.name, "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True}
        for fields in ({}, {"stream": True}, {"temperature": 9}, {"prompt": [999]}):
            await Client("/v1/completions", {**ask, **fields}).ask(app)
        leaver = Client("/v1/completions", {**ask, "max_tokens": 400, "stream": True})
        task = asyncio.create_task(leaver.ask(app))
        await leaver.has_begun.wait()
        during = await scrape(app)
        leaver.has_left.set()
        await task
        return during, await scrape(app)

    during, after = serve(main, writer)
    assert during["requests_running",] == 1 and during["blocks", "used"] >= 3
    assert after["requests_running",] == after["requests_waiting",] == 0
    assert after["blocks", "used"] == after["blocks", "shared"] == 0 and after["blocks", "cached"] >= 2
    assert sum(after["blocks", state] for state in ("used", "shared", "cached", "free")) == 399
    assert after["requests_total", "answered"] == 2 and after["requests_total", "disconnected"] == 1
    assert after["requests_total", "refused"] == 1, "what the schema refuses has no model that it could count for"
    assert errors_in(after) == {"400": 1}
    assert after["tokens_total", "prompt"] == 60 and after["tokens_total", "cached"] >= 32
    assert after["tokens_total", "output"] >= 10
    assert after["time_to_first_token_seconds_count",] == 3
    assert after["inter_token_seconds_count",] >= 2, "tokens may come together, but not all five of an answer"
    assert 0 < after["prefix_hit_rate",] < 1 and after["steps_total",] >= 10 and after["preemptions_total",] == 0


def test_latencies_are_what_the_clock_says():
    from mini_vllm.request import CompletionOutput, RequestOutput, Usage
    now_s = [10.0]
    metrics = Metrics(lambda: now_s[0])
    output = RequestOutput("r", None, [1], [CompletionOutput(0, "x", [1])], False, Usage(1, 1))
    with metrics.request("m") as meter:
        for later_s in (0.2, 0.03, 0.04):
            now_s[0] += later_s
            meter.note([(0, output)])
    found = numbers(metrics.render({}).decode())
    assert found["time_to_first_token_seconds_sum",] == pytest.approx(0.2)
    assert found["inter_token_seconds_sum",] == pytest.approx(0.07) and found["inter_token_seconds_count",] == 2
    assert found["inter_token_seconds_bucket", "0.02"] == 0 and found["inter_token_seconds_bucket", "0.05"] == 2


def test_what_fails_is_counted_by_its_status():
    metrics = Metrics()
    for error in (ApiError(429, "later"), ApiError(503, "later"), ApiError(503, "later"), ZeroDivisionError()):
        with pytest.raises(type(error)), metrics.request("m"):
            raise error
    with pytest.raises(asyncio.CancelledError), metrics.request("m"):
        raise asyncio.CancelledError
    found = numbers(metrics.render({}).decode())
    assert errors_in(found) == {"429": 1, "503": 2, "500": 1}
    assert {key[1]: value for key, value in found.items() if key[0] == "requests_total"} == {
        "refused": 1, "failed": 3, "disconnected": 1}


def test_a_stream_that_breaks_off_is_counted_by_the_status_that_it_would_have_had(writer):
    async def main(app, shelf):
        client = Client("/v1/completions", {"model": writer.name, "prompt": "x", "max_tokens": 400, "ignore_eos": True,
                                            "stream": True})
        task = asyncio.create_task(client.ask(app))
        await client.has_begun.wait()
        await shelf.restart(writer.name, abort_running=True, num_blocks=50)
        await task
        assert client.status == 200 and "error" in client.events()[-1]
        return await scrape(app)

    found = serve(main, writer)
    assert errors_in(found) == {"503": 1} and found["requests_total", "failed"] == 1


def test_two_servers_in_a_process_count_apart():
    first, second = Metrics(), Metrics()
    with first.request("m"):
        pass
    assert ("requests_total", "answered") in numbers(first.render({}).decode())
    assert ("requests_total", "answered") not in numbers(second.render({}).decode())


def test_without_a_cache_nothing_is_said_of_it(writer):
    async def main(app, shelf):
        client = await Client("/v1/completions", {"model": writer.name, "prompt": PROMPT, "max_tokens": 1}).ask(app)
        return client.json()["usage"]

    assert "prompt_tokens_details" not in serve(main, writer, sizes={"enable_prefix_caching": False})
    assert serve(main, writer)["prompt_tokens_details"] == {"cached_tokens": 0}


def test_who_rests_gives_memory_back(writer, monkeypatch):
    given_back = []
    monkeypatch.setattr(shelf_module, "IDLE_S", 0.0)
    monkeypatch.setattr(shelf_module.mx, "clear_cache", lambda: given_back.append(True))

    async def main(app, shelf):
        async with shelf.lease(writer.name):
            given_back.clear()  # loading may do it too
            async with shelf.lease(writer.name):
                pass
            await asyncio.sleep(0.01)
            assert not given_back, "somebody is still there"
        while not given_back:
            await asyncio.sleep(0)

    serve(main, writer)
