"""The front with made-up replicas, whose death the test decides: what clients get, and where requests go."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from mini_vllm.server.conftest import Client
from mini_vllm.server.replicas.exchange import Address
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.replicas.front_router import FrontRouter
from mini_vllm.server.replicas.prompt_blocks import MAX_BLOCKS, blocks_of, num_texts
from mini_vllm.server.settings import ServerSettings

PATH = "/v1/completions"
LONG = "a prefix that fills the first block, and then another block, and then one more. " * 4
EVENTS = [b'data: {"n":1}\n\n', b'data: {"n":2}\n\n', b"data: [DONE]\n\n"]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(content, status=b"200 OK"):
    body = json.dumps(content).encode()
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class Worker:
    """A server whose answer to a POST is a coroutine of the test. It answers /health by ``health``."""

    def __init__(self, name):
        self.name, self.health, self.num_asked, self.requests = name, whole({"status": "ok"}), 0, []
        self.asked, self.closed = asyncio.Event(), asyncio.Event()

    async def answer(self, writer):
        writer.write(whole({"from": self.name}))

    async def start(self, port=0):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self):
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith((b"GET /health", b"GET /readiness")):
                writer.write(self.health)
            else:
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                self.requests.append((head, await reader.readexactly(length)))
                self.num_asked += 1
                self.asked.set()
                await self.answer(writer)
            await writer.drain()
            if not writer.transport.is_closing():
                writer.write_eof()
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.closed.set()


def die(writer):
    writer.transport.abort()


def with_workers(main, names="ab", **settings):
    async def run():
        workers = [await Worker(name).start() for name in names]
        fleet = Fleet({worker.name: Address("127.0.0.1", worker.port) for worker in workers})
        app = make_front(ServerSettings(**settings), fleet)
        for replica in fleet.replicas.values():
            await fleet.check(replica)
        try:
            return await main(app, fleet, *workers)
        finally:
            for worker in workers:
                worker.server.close()
    return asyncio.run(asyncio.wait_for(run(), 60))


async def ask(app, prompt="hello", key=None, path=PATH, **fields):
    return await Client(path, {"model": "m", "prompt": prompt, **fields}, key=key).ask(app)


@asynccontextmanager
async def begun_stream(app, worker):
    """Yield a client whose stream has begun at ``worker``. The stream ends when the context is left."""
    may_end = asyncio.Event()

    async def answer(writer):
        writer.write(STREAM + EVENTS[0])
        await may_end.wait()
        writer.write(EVENTS[1] + EVENTS[2])

    worker.answer = answer
    client = Client(PATH, {"model": "m", "prompt": "x", "stream": True})
    task = asyncio.create_task(client.ask(app))
    await client.has_begun.wait()
    yield client
    may_end.set()
    await task


def replica_of(client):
    return client.headers[b"x-mini-vllm-replica"].decode()


# ---- the usual case


def test_an_answer_is_passed_on_and_names_its_replica():
    async def main(app, fleet, a, b):
        client = await ask(app)
        assert client.status == 200 and client.json() == {"from": replica_of(client)} == {"from": "a"}
        (head, body), = a.requests
        assert json.loads(body) == {"model": "m", "prompt": "hello"} and head.startswith(b"POST /v1/completions HTTP")
        assert f"host: 127.0.0.1:{a.port}".encode() in head.lower()
        assert fleet.router.loads == {"a": 0, "b": 0}

    with_workers(main)


def test_a_stream_is_passed_on_as_it_arrives():
    async def main(app, fleet, a):
        async with begun_stream(app, a) as client:
            assert client.data == EVENTS[0] and not client.has_ended and fleet.router.loads == {"a": 1}
        assert client.events() == [{"n": 1}, {"n": 2}]

    with_workers(main, "a")


def test_requests_go_where_their_prefix_is():
    async def main(app, fleet, a, b):
        first = [replica_of(await ask(app, start + LONG)) for start in ("law: ", "art: ")]
        assert sorted(first) == ["a", "b"]
        for _ in range(3):
            assert [replica_of(await ask(app, start + LONG + "more")) for start in ("law: ", "art: ")] == first

    with_workers(main)


def test_a_client_that_leaves_ends_the_request_at_the_replica():
    async def main(app, fleet, a):
        async def answer(writer):
            writer.write(STREAM + EVENTS[0])
            await writer.drain()
            while not writer.transport.is_closing():
                writer.write(b": still here\n\n")
                await writer.drain()
                await asyncio.sleep(0)

        a.answer = answer
        client = Client(PATH, {"model": "m", "prompt": "x", "stream": True})
        task = asyncio.create_task(client.ask(app))
        await client.has_begun.wait()
        a.closed.clear()
        client.has_left.set()
        await task
        await a.closed.wait()
        assert fleet.router.loads == {"a": 0}

    with_workers(main, "a")


def test_a_refusal_of_a_replica_is_passed_on():
    async def main(app, fleet, a):
        async def answer(writer):
            writer.write(whole({"error": {"code": "queue_full"}}, b"429 Too Many Requests"))

        a.answer = answer
        client = await ask(app)
        assert (client.status, client.json()) == (429, {"error": {"code": "queue_full"}}) and a.num_asked == 1

    with_workers(main, "a")


# ---- a replica dies


def test_a_replica_that_cannot_be_reached_is_skipped():
    async def main(app, fleet, a, b):
        await a.stop()
        clients = [await ask(app, f"{number} {LONG}") for number in range(4)]
        assert [(client.status, replica_of(client)) for client in clients] == [(200, "b")] * 4
        assert fleet.router.loads == {"b": 0} and fleet.num_moved == 1

    with_workers(main)


@pytest.mark.parametrize("sent", [b"", whole({"from": "a"})[:-4], CHUNKED, CHUNKED + chunk(EVENTS[0][:-1])],
                         ids=["nothing", "half of a whole answer", "the head of a stream", "half of an event"])
def test_a_request_that_has_not_started_goes_elsewhere(sent):
    async def main(app, fleet, a, b):
        async def answer(writer):
            writer.write(sent)
            await writer.drain()
            die(writer) if not sent else writer.close()

        a.answer = answer
        client = await ask(app)
        assert (client.status, client.json(), replica_of(client)) == (200, {"from": "b"}, "b")
        assert (a.num_asked, b.num_asked, fleet.num_moved) == (1, 1, 1)

    with_workers(main)


def test_a_stream_that_has_started_ends_with_an_error():
    async def main(app, fleet, a, b):
        may_die = asyncio.Event()

        async def answer(writer):
            writer.write(CHUNKED + chunk(EVENTS[0] + b"data: {\"n"))
            await may_die.wait()
            die(writer)

        a.answer = answer
        client = Client(PATH, {"model": "m", "prompt": "x", "stream": True})
        task = asyncio.create_task(client.ask(app))
        await client.has_begun.wait()
        may_die.set()
        await task
        first, last = client.events()
        error = last["error"]
        assert first == {"n": 1} and client.has_ended
        assert (error["code"], error["type"]) == ("replica_failed", "service_unavailable_error")
        assert "a failed" in error["message"] and b.num_asked == 0

    with_workers(main)


@pytest.mark.parametrize("num_events", [0, 1])
def test_when_a_replica_is_killed_every_client_gets_an_answer_or_an_error_and_no_waiting_request_is_lost(num_events):
    """Mix streams and whole answers. The replica dies when each stream has ``num_events`` events."""
    async def main(app, fleet, a, b):
        clients = [Client(PATH, {"model": "m", "prompt": LONG, "stream": number % 2 == 1}) for number in range(16)]
        held, may_end = {"a": [], "b": []}, asyncio.Event()

        def worker_that_holds(worker):
            async def answer(writer):
                is_stream = json.loads(worker.requests[-1][1])["stream"]
                held[worker.name].append(is_stream)
                if is_stream:
                    writer.write(CHUNKED + b"".join(map(chunk, EVENTS[:num_events])))
                await may_end.wait()
                if worker is a:
                    die(writer)
                else:
                    rest = b"".join(map(chunk, EVENTS[num_events:])) + chunk(b"")
                    writer.write(rest if is_stream else whole({"from": "b"}))
            return answer

        for worker in (a, b):
            worker.answer = worker_that_holds(worker)
        tasks = [asyncio.create_task(client.ask(app)) for client in clients]
        while len(held["a"] + held["b"]) < len(clients):
            await asyncio.sleep(0)
        for client in clients[1::2] if num_events else ():
            await client.has_begun.wait()
        num_at_a, num_streams_at_a = len(held["a"]), sum(held["a"])
        assert 0 < num_streams_at_a < num_at_a < len(clients)
        a.server.close()
        may_end.set()
        await asyncio.gather(*tasks)
        assert [client.json() for client in clients[::2]] == [{"from": "b"}] * 8, "no byte was sent: none is lost"
        ends = [client.events()[-1].get("error", {}).get("code") for client in clients[1::2]]
        num_broken = num_streams_at_a if num_events else 0
        assert sorted(map(str, ends)) == ["None"] * (8 - num_broken) + ["replica_failed"] * num_broken
        assert fleet.num_moved == num_at_a - num_broken

    with_workers(main)


def test_a_request_that_kills_replicas_is_given_up_before_it_kills_all():
    async def main(app, fleet, *workers):
        async def answer(writer):
            die(writer)

        for worker in workers:
            worker.answer = answer
        client = await ask(app)
        assert client.status == 503 and client.json()["error"]["code"] == "replica_failed"
        assert sum(worker.num_asked for worker in workers) == 2 and len(fleet.router.loads) == 2

    with_workers(main, "abcd")


def test_a_replica_that_is_stopping_gets_no_new_requests():
    async def main(app, fleet, a, b):
        async def answer(writer):
            writer.write(whole({"error": {"code": "stopping"}}, b"503 Service Unavailable"))

        a.answer = answer
        assert [replica_of(await ask(app, LONG)) for _ in range(3)] == ["b"] * 3 and a.num_asked == 1

    with_workers(main)


def test_a_replica_that_has_closed_its_port_may_finish_what_it_has_begun():
    """Close the port as a server does that gets SIGTERM: it answers the requests that it has."""
    async def main(app, fleet, a):
        async with begun_stream(app, a) as client:
            a.server.close()
            await fleet.check(fleet.replicas["a"])
            assert not fleet.up() and (await ask(app)).status == 503
        assert client.data == b"".join(EVENTS)

    with_workers(main, "a")


def test_a_replica_whose_health_is_bad_may_finish_what_it_has_begun():
    async def main(app, fleet, a, b):
        async with begun_stream(app, a) as client:
            a.health = whole({"error": {"code": "stopping"}}, b"503 Service Unavailable")
            await fleet.check(fleet.replicas["a"])
            assert fleet.router.loads == {"b": 0} and replica_of(await ask(app)) == "b"
        assert client.events() == [{"n": 1}, {"n": 2}]

    with_workers(main)


def test_without_a_replica_clients_are_told_when_to_come_back():
    async def main(app, fleet, a):
        await a.stop()
        for _ in range(2):
            client = await ask(app)
            assert (client.status, client.json()["error"]["code"]) == (503, "no_replica")
            assert client.headers[b"retry-after"] == b"5"
        assert (await Client("/health", b"", method="GET").ask(app)).status == 503

    with_workers(main, "a")


# ---- checks


def test_a_replica_that_comes_back_is_used_again():
    async def main(app, fleet, a, b):
        await a.stop()
        assert replica_of(await ask(app, LONG)) == "b"
        again = await Worker("a").start(a.port)
        await fleet.check(fleet.replicas["a"])
        assert fleet.router.loads == {"b": 0, "a": 0}
        assert replica_of(await ask(app, "another prefix " + LONG)) == "a" and again.num_asked == 1
        again.server.close()

    with_workers(main)


def test_the_watch_finds_a_replica_that_died_and_one_that_came_back():
    async def main(app, fleet, a, b):
        fleet.check_s = 0.001
        watch = asyncio.create_task(fleet.watch())
        await a.stop()
        while fleet.replicas["a"].is_up:
            await asyncio.sleep(0)
        again = await Worker("a").start(a.port)
        while not fleet.replicas["a"].is_up:
            await asyncio.sleep(0)
        watch.cancel()
        again.server.close()

    with_workers(main)


def test_the_watch_goes_on_after_the_router_failed():
    async def main(app, fleet, a, b):
        fleet.leave(fleet.replicas["a"], "the test says so")
        add_replica, failed = fleet.router.add_replica, []

        def fail_once(replica):
            if not failed:
                failed.append(replica)
                raise ArithmeticError("a student's mistake")
            add_replica(replica)

        fleet.router.add_replica, fleet.check_s = fail_once, 0.001
        watch = asyncio.create_task(fleet.watch())
        while not (fleet.replicas["a"].is_up or watch.done()):
            await asyncio.sleep(0)
        assert failed == ["a"] and not watch.done() and fleet.router.loads == {"a": 0, "b": 0}
        watch.cancel()

    with_workers(main)


def test_a_replica_that_hangs_is_cut_off_after_some_checks_and_its_requests_go_elsewhere(monkeypatch):
    monkeypatch.setattr("mini_vllm.server.replicas.fleet.CHECK_TIMEOUT_S", 0.02)

    async def main(app, fleet, a, b):
        async def hang(writer):
            await asyncio.Event().wait()

        a.answer, a.health = hang, b""
        a.server.close()  # the checks fail, and the request in progress gets no answer
        a.server = await asyncio.start_server(lambda reader, writer: hang(writer), "127.0.0.1", a.port)
        task = asyncio.create_task(ask(app))
        while fleet.router.loads["a"] == 0:
            await asyncio.sleep(0)
        for number in range(3):
            assert fleet.replicas["a"].is_up, f"down after {number} late checks"
            await fleet.check(fleet.replicas["a"])
        assert not fleet.replicas["a"].is_up and replica_of(await task) == "b"

    with_workers(main)


# ---- keys, health, metrics


@pytest.mark.parametrize("key, status", [(None, 401), ("wrong-key-wrong-key", 401), ("carla-has-a-secret", 200)])
def test_the_front_asks_for_keys(keys_file, key, status):
    async def main(app, fleet, a):
        client = await ask(app, key=key)
        assert client.status == status and a.num_asked == (status == 200)
        if a.num_asked:
            assert b"carla-has-a-secret" in a.requests[0][0]

    with_workers(main, "a", keys_file=keys_file)


def test_a_rate_holds_over_all_replicas_and_counts_every_text(keys_file):
    async def main(app, fleet, *workers):
        assert (await ask(app, ["x", "y"], key="bert-has-a-secret", n=2)).status == 200
        assert (await ask(app, key="bert-has-a-secret")).status == 200
        assert (await ask(app, key="bert-has-a-secret")).status == 429
        assert (await ask(app, key="bert-has-a-secret", n=6)).status in (400, 429)
        assert sum(worker.num_asked for worker in workers) == 2

    with_workers(main, "abc", keys_file=keys_file)


def test_metrics_have_the_replica_as_a_label():
    async def main(app, fleet, a, b):
        page = b"# HELP hits Hits.\n# TYPE hits counter\nhits_total{model=\"m\"} 3.0\n"
        for worker in (a, b):
            async def answer(writer, worker=worker):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))
            worker.answer = answer
        text = (await Client("/metrics", b"", method="GET").ask(app)).data.decode()
        for name in "ab":
            assert f'hits_total{{model="m",replica="{name}"}} 3.0' in text
            assert f'mini_vllm_replica_up{{replica="{name}"}} 1.0' in text
        assert text.count("# TYPE hits_total counter") == 1
        await b.stop()
        await fleet.check(fleet.replicas["b"])
        text = (await Client("/metrics", b"", method="GET").ask(app)).data.decode()
        assert 'mini_vllm_replica_up{replica="b"} 0.0' in text and 'hits_total{model="m",replica="b"}' not in text

    with_workers(main)


def test_health_lists_the_replicas():
    async def main(app, fleet, a, b):
        await b.stop()
        await fleet.check(fleet.replicas["b"])
        client = await Client("/health", b"", method="GET").ask(app)
        assert client.json() == {"status": "ok", "replicas": {"a": "up", "b": "down"}}
        app.state.draining.set()
        assert (await Client("/health", b"", method="GET").ask(app)).status == 503
        assert (await ask(app)).json()["error"]["code"] == "stopping"

    with_workers(main)


# ---- the blocks of a request


def test_requests_share_blocks_as_far_as_their_texts_agree():
    def shared(one, other, callers=(None, None)):
        pairs = zip(blocks_of(one, callers[0]), blocks_of(other, callers[1]))
        return next((count for count, (x, y) in enumerate(pairs) if x != y), None)

    text = {"model": "m", "prompt": LONG + "x" * 64}
    assert shared(text, {**text, "prompt": LONG + "y" * 64}) == len(LONG) // 64
    assert shared(text, {**text, "model": "other"}) == 0 == shared(text, text, ("anna", "bert"))
    tokens = {"model": "m", "prompt": list(range(40))}
    assert len(blocks_of(tokens, None)) == 2 and shared(tokens, {**tokens, "prompt": [*range(16), *[0] * 24]}) == 1
    chat = {"model": "m", "messages": [{"role": "user", "content": LONG}]}
    more = {**chat, "messages": [*chat["messages"], {"role": "assistant", "content": LONG}]}
    assert shared(chat, more) is None and len(blocks_of(more, None)) > len(blocks_of(chat, None)) > 4


@pytest.mark.parametrize("fields", [{}, {"prompt": None}, {"prompt": [1, "x"]}, {"prompt": []}, {"prompt": [[1, {}]]},
                                    {"messages": 3}, {"messages": []}, {"prompt": {}, "n": "x"}, {"n": -1}])
def test_wrong_fields_have_blocks_that_can_be_compared(fields):
    assert blocks_of(fields, None) == [] and num_texts(fields) >= 1


def test_only_the_beginning_of_a_prompt_is_looked_at(monkeypatch):
    written = []
    monkeypatch.setattr("mini_vllm.server.replicas.prompt_blocks.json.dumps", lambda part: written.append(part) or LONG)
    large = [{"prompt": "x" * 2**21}, {"prompt": list(range(2**18))}, {"messages": [{"content": "x"}] * 1000}]
    assert [len(blocks_of(fields, None)) for fields in large] == [MAX_BLOCKS] * 3
    assert len(written) * len(LONG) < MAX_BLOCKS * 64 + len(LONG)


# ---- what the router remembers


def prompt_of(name, num_blocks):
    return "".join(f"{name} {number}".ljust(64) for number in range(num_blocks))


@pytest.mark.parametrize("status", [b"404 Not Found", b"400 Bad Request", b"429 Too Many Requests"])
def test_a_prompt_that_a_replica_rejects_is_not_remembered(status):
    async def main(app, fleet, a):
        await ask(app, prompt_of("known", 8))
        before = fleet.router.num_blocks

        async def reject(writer):
            assert fleet.router.num_cached(blocks_of({"model": "m", "prompt": prompt_of("x", 400)}, None)) == {"a": 64}
            writer.write(whole({"error": {}}, status))

        a.answer = reject
        for _ in range(3):
            assert (await ask(app, prompt_of("x", 400))).status == int(status[:3])
        assert before == {"a": 8} == fleet.router.num_blocks and fleet.router._asked == {}

    with_workers(main, "a")


def test_while_a_prompt_is_computed_requests_that_share_it_follow_it():
    async def main(app, fleet, a, b):
        short, longer, other = (blocks_of({"model": "m", "prompt": prompt_of(name, number)}, None)
                                for name, number in (("x", 9), ("x", 30), ("y", 30)))
        async with fleet.routed("1", short) as (first, _), fleet.routed("2", longer) as (second, _), fleet.routed(
                "3", other) as (third, _):
            assert (first.name, second.name, third.name) == ("a", "a", "b")

    with_workers(main)


def test_a_caller_that_sends_much_pushes_out_its_own_prompts_first():
    router = FrontRouter(["a"], max_blocks=100)

    def send(caller, number, num_blocks):
        blocks = blocks_of({"model": "m", "prompt": prompt_of(f"{caller} {number}", num_blocks)}, caller)
        router.route("r", blocks)
        router.answered("r")
        router.finished("r")
        return blocks

    honest = send("anna", 0, 40)
    for number in range(20):
        latest = send("bert", number, 50)
        assert router.num_cached(honest) == {"a": 40} and router.num_blocks["a"] <= 100
        router.check_integrity()
    assert router.num_cached(latest) == {"a": 50}
    for number in range(20):
        send("bert", number, 90)
    assert router.num_cached(honest)["a"] == 40, "bert has had more than that all the time"
    second = send("anna", 1, 60)
    assert [router.num_cached(each)["a"] for each in (honest, second, latest)] == [0, 50, 50], "half for each"
    router.remove_replica("a")
    assert router.num_blocks == {}


@pytest.mark.parametrize("url", ["", "10.0.0.5:8000", "ftp://x", "http://", "http://x:99999", "http://x/path",
                                 "http://x:0", "http://user@x", "http://x?q"])
def test_a_url_that_is_no_server_is_refused(url):
    with pytest.raises(ValueError, match="worker is .*, must be a URL such as"):
        Address.parse(url)


@pytest.mark.parametrize("url, wanted", [("http://10.0.0.5:8000", Address("10.0.0.5", 8000)),
                                         ("http://[::1]:80/", Address("::1", 80)),
                                         ("https://gpu.example", Address("gpu.example", 443, True))])
def test_a_url_of_a_server(url, wanted):
    assert Address.parse(url) == wanted
