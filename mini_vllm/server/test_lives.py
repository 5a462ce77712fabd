"""Clients that disconnect, steps that fail, a full queue: blocks are freed, and the server continues."""

import asyncio
import random

import pytest

from mini_vllm.engine import LLMEngine
from mini_vllm.llm import LLM
from mini_vllm.request import Priority, SamplingParams
from mini_vllm.server.access.concurrency_limit import Seats
from mini_vllm.server.conftest import Client, serve
from mini_vllm.server.errors import ApiError
from mini_vllm.server.models.model_registry import ModelShelf

PATH = "/v1/completions"


def body(writer, prompt="hello", **fields):
    return {"model": writer.name, "prompt": prompt, "max_tokens": 300, "temperature": 0, "ignore_eos": True, **fields}


def state(engine):
    """Return the number of steps, the number of requests in the engine, and the usage of the pool."""
    engine.kv_cache.check_integrity()
    return (engine.num_steps, len(engine.scheduler.running) + len(engine.scheduler.waiting),
            engine.kv_cache.block_pool.get_usage())


async def step_until_running(served, count=1):
    """Compute single steps of a paused engine until ``count`` requests run. A running engine may finish them before."""
    while await served.engine.call(lambda engine: len(engine.scheduler.running)) < count:
        await served.engine.step_once()


@pytest.mark.parametrize("fields", [{"stream": True}, {}, {"n": 4, "stream": True}, {"prompt": ["a", "b"]},
                                    {"prompt": ["a", "b"], "stream": True}],
                         ids=["streaming", "whole", "n", "two prompts", "two prompts, streaming"])
def test_who_leaves_frees_its_blocks_within_a_step(writer, fields):
    async def main(app, shelf):
        client = Client(PATH, body(writer, **fields))
        async with shelf.lease(writer.name) as served:
            await served.engine.pause()
            task = asyncio.create_task(client.ask(app))
            await step_until_running(served)
            while fields.get("stream") and not client.has_begun.is_set():
                await served.engine.step_once()
            num_steps, num_held, usage = await served.engine.call(state)
            assert num_held and usage > 0
            client.has_left.set()
            await asyncio.wait_for(task, 30)
            served.engine.resume()
            after = await served.engine.call(state)
        assert after[1:] == (0, 0.0) and after[0] <= num_steps + 1, f"before {num_steps}, after {after}"
        assert shelf.num_in_flight(writer.name) == 0 and client.status in (None, 200)

    serve(main, writer)


def test_who_leaves_the_queue_was_never_there(writer):
    async def main(app, shelf):
        clients = [Client(PATH, body(writer, f"text {index}")) for index in range(6)]
        async with shelf.lease(writer.name) as served:
            await served.engine.pause()
            tasks = [asyncio.create_task(client.ask(app)) for client in clients]
            await step_until_running(served, 2)
            for client in clients:
                client.has_left.set()
            await asyncio.gather(*tasks)
            served.engine.resume()
            assert (await served.engine.call(state))[1:] == (0, 0.0)

    serve(main, writer, sizes={"max_num_seqs": 2})


def test_a_full_queue_turns_away_and_says_when_to_come_back(writer):
    async def main(app, shelf):
        clients = [Client(PATH, body(writer, priority="low")) for _ in range(3)]
        async with shelf.lease(writer.name) as served:
            await served.engine.pause()
            tasks = [asyncio.create_task(client.ask(app)) for client in clients]
            await step_until_running(served, 2)
            refused = await Client(PATH, body(writer, priority="low")).ask(app)
            better = Client(PATH, body(writer, priority="high", max_tokens=1))
            tasks.append(asyncio.create_task(better.ask(app)))
            too_many = await Client(PATH, body(writer, n=4)).ask(app)
            for client in clients:
                client.has_left.set()
            served.engine.resume()
            await asyncio.gather(*tasks)
            later = await Client(PATH, body(writer, max_tokens=1)).ask(app)
        assert refused.status == 429 and refused.headers[b"retry-after"] == b"1"
        error = refused.json()["error"]
        assert error["code"] == "queue_full" and "the limit is 3" in error["message"]
        assert better.status == 200 and later.status == 200, "low requests fill the queue of low ones only"
        assert too_many.status == 400 and too_many.json()["error"]["param"] == "n"

    serve(main, writer, sizes={"max_num_seqs": 2}, max_waiting=1)


def test_seats_are_given_back_whatever_happens():
    seats = Seats(1, 0)
    with pytest.raises(KeyError), seats.taken(1, Priority.NORMAL):
        raise KeyError
    with seats.taken(1, Priority.LOW):
        with seats.taken(1, Priority.HIGH):
            pass
        with pytest.raises(ApiError, match="1 texts of priority low or better"), seats.taken(1, Priority.LOW):
            pass
    with seats.taken(1, Priority.LOW):
        pass


# ---- steps that fail


@pytest.fixture
def poison(monkeypatch):
    """Make a prompt of sevens break its step, and a prompt of eights break a step once it has some output."""
    real = LLMEngine._make_runner

    def make_runner(self, parts):
        real(self, parts)
        step = self.runner.step

        def broken(requests, *rest, **named):
            for request in requests:
                ids = list(request.token_ids)
                if ids[:4] == [7] * 4 or self.live and any(
                        group.prompt_token_ids[:4] == [8] * 4 and len(group.leader.output_token_ids) > 3
                        for group in self.live.groups.values()):
                    raise ArithmeticError("/secret/path is poisoned")
            return step(requests, *rest, **named)

        self.runner.step = broken

    monkeypatch.setattr(LLMEngine, "_make_runner", make_runner)


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_answers_its_request_and_the_server_lives(writer, poison, stream, caplog):
    async def main(app, shelf):
        good = Client(PATH, body(writer, "good", max_tokens=30, stream=stream))
        task = asyncio.create_task(good.ask(app))
        bad = await Client(PATH, body(writer, [7] * 9, stream=stream)).ask(app)
        await task
        late = await Client(PATH, body(writer, [8] * 9, stream=stream)).ask(app)
        again = await Client(PATH, body(writer, "good", max_tokens=30)).ask(app)
        return good, bad, late, again

    good, bad, late, again = serve(main, writer, sizes={"enable_lookahead": False, "native": False})  # not too fast
    assert bad.status == 500 and bad.json()["error"]["type"] == "server_error"
    assert again.status == good.status == 200
    if stream:
        *pieces, end = late.events()
        assert late.status == 200 and len(pieces) >= 3 and end["error"]["code"] == "computation_failed"
    else:
        assert late.status == 500
    for client in (bad, late):
        assert b"secret" not in client.data and b"Arithmetic" not in client.data
    assert "/secret/path is poisoned" in caplog.text


def test_an_error_of_ours_is_a_500_that_tells_nothing(writer, monkeypatch):
    monkeypatch.setattr(ModelShelf, "names", lambda self: 1 / 0)

    async def main(app, shelf):
        client = Client("/v1/models", b"", method="GET")
        with pytest.raises(ZeroDivisionError):  # passed on to uvicorn, which logs it
            await client.ask(app)
        return client

    client = serve(main, writer)
    assert client.status == 500 and client.json()["error"]["type"] == "server_error"
    assert b"division" not in client.data and b"Traceback" not in client.data


# ---- many clients, some of which disconnect


async def one_round(app, shelf, writer, wanted, seed, num_clients=100):
    """Check that clients that stay get the right text, and that all blocks are free afterwards.

    Return how many stayed.
    """
    rng = random.Random(seed)
    clients = [Client(PATH, body(writer, f"client {index % 10} says", max_tokens=12, stream=True,
                                 priority=rng.randrange(3))) for index in range(num_clients)]
    leaving = set(rng.sample(range(num_clients), num_clients // 3))

    async def leave(client):
        if rng.random() < 0.7:
            await client.has_begun.wait()
        for _ in range(rng.randrange(30)):
            await asyncio.sleep(0)
        client.has_left.set()

    leavers = [asyncio.create_task(leave(clients[index])) for index in leaving]
    await asyncio.gather(*(client.ask(app) for client in clients))
    for task in leavers:
        task.cancel()  # its client had already received its whole answer
    for index in set(range(num_clients)) - leaving:
        text = "".join(event["choices"][0]["text"] for event in clients[index].events())
        assert text == wanted[index % 10], f"client {index} of seed {seed}"
    async with shelf.lease(writer.name) as served:
        assert (await served.engine.call(state))[1:] == (0, 0.0)
    return num_clients - len(leaving)


def test_100_streams_a_third_of_which_leave(writer):
    llm = LLM(writer, block_size=8, num_blocks=400)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    wanted = [output.text for output in llm.generate([f"client {index} says" for index in range(10)], params)]

    async def main(app, shelf):
        return [await one_round(app, shelf, writer, wanted, seed) for seed in range(2)]

    assert serve(main, writer, sizes={"num_blocks": 60}) == [67, 67]
