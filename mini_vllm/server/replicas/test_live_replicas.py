"""The live page of a front: what it tells about the replicas, to whom, and with which routers."""

import asyncio
import json
import sys

import pytest

from mini_vllm.router import RoundRobinRouter
from mini_vllm.server.conftest import Client
from mini_vllm.server.replicas.belief_tree import belief_rows
from mini_vllm.server.replicas.exchange import Address
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.replicas.prompt_blocks import MAX_SHOWN, blocks_of, summary_of
from mini_vllm.server.replicas.router_numbers import MAX_MESSAGE
from mini_vllm.server.replicas.routing_log import MAX_BLOCKS, MAX_DECISIONS, MAX_PROMPTS
from mini_vllm.server.replicas.test_proxy import (
    EVENTS,
    LONG,
    PATH,
    STREAM,
    Worker,
    ask,
    begun_stream,
    die,
    replica_of,
    whole,
    with_workers,
)
from mini_vllm.server.settings import ServerSettings

LIVE = "/live/replicas"


async def get(app, path=LIVE, key=None, query=b"", **options):
    client = Client(path, b"", key=key, method="GET", **options)
    client.scope["query_string"] = query
    return await client.ask(app)


async def state_of(app):
    client = await get(app)
    assert client.status == 200
    return client.json()


def use(fleet, router):
    fleet.router = router
    for name in fleet.replicas:
        router.add_replica(name)


# ---- what it tells


def test_it_tells_which_replica_served_which_request_and_what_was_expected():
    async def main(app, fleet, a, b):
        for end in ("one", "two"):
            await ask(app, LONG + end)
        await ask(app, "hi")
        state = await state_of(app)
        num_blocks = len(LONG) // 64
        assert state["router"] == {"name": "FrontRouter", "error": None}
        assert state["replicas"] == [
            {"name": "a", "is_up": True, "num_running": 0, "num_answered": 2, "num_blocks": num_blocks},
            {"name": "b", "is_up": True, "num_running": 0, "num_answered": 1, "num_blocks": 0}]
        rows = [(row["number"], row["replica"], row["num_blocks"], row["expected"], row["status"])
                for row in state["requests"]]
        assert rows == [(3, "b", 0, {"a": 0, "b": 0}, "200"),
                        (2, "a", num_blocks, {"a": num_blocks, "b": 0}, "200"),
                        (1, "a", num_blocks, {"a": 0, "b": 0}, "200")]
        assert state["requests"][0]["text"] == "hi" and state["requests"][1]["text"].endswith("two")
        (row,) = state["prefixes"]
        assert row["text"].startswith("a prefix that fills") and row["model"] == "m" and row["caller"] is None
        assert (row["level"], row["num_blocks"], row["cached"]) == (0, num_blocks, {"a": num_blocks, "b": 0})

    with_workers(main)


def test_a_request_in_flight_is_counted_and_ends_when_the_stream_does():
    async def main(app, fleet, a):
        async with begun_stream(app, a):
            state = await state_of(app)
            assert state["requests"][0]["status"] == "running"
            assert (state["replicas"][0]["num_running"], state["replicas"][0]["num_answered"]) == (1, 0)
        state = await state_of(app)
        assert state["requests"][0]["status"] == "200"
        assert (state["replicas"][0]["num_running"], state["replicas"][0]["num_answered"]) == (0, 1)

    with_workers(main, "a")


@pytest.mark.parametrize("num_events, status", [(1, "client left"), (3, "200")])
def test_a_client_that_leaves_after_the_last_event_has_its_answer(num_events, status):
    async def main(app, fleet, a):
        async def answer(writer):
            writer.write(STREAM + b"".join(EVENTS[:num_events]))
            await writer.drain()
            await asyncio.Event().wait()

        a.answer = answer
        client = Client(PATH, {"model": "m", "prompt": "x", "stream": True})
        task = asyncio.create_task(client.ask(app))
        await client.has_begun.wait()
        client.has_left.set()
        await task
        state = await state_of(app)
        assert state["requests"][0]["status"] == status
        assert state["replicas"][0]["num_answered"] == (status == "200")

    with_workers(main, "a")


def test_a_replica_dies_and_comes_back():
    async def main(app, fleet, a, b):
        assert replica_of(await ask(app, LONG)) == "a"
        await a.stop()
        assert replica_of(await ask(app, LONG)) == "b"
        state = await state_of(app)
        assert [(row["replica"], row["status"]) for row in state["requests"]] == [("b", "200"), ("a", "replica failed"),
                                                                                 ("a", "200")]
        down, up = state["replicas"]
        assert down == {"name": "a", "is_up": False, "num_running": None, "num_answered": 1, "num_blocks": None}
        assert up["is_up"] and state["prefixes"][0]["cached"] == {"b": len(LONG) // 64}
        assert (await get(app, "/replicas/a/live/models")).json()["error"]["code"] == "replica_failed"
        again = await Worker("a").start(a.port)
        await fleet.check(fleet.replicas["a"])
        state = await state_of(app)
        assert state["replicas"][0] == {"name": "a", "is_up": True, "num_running": 0, "num_answered": 1,
                                        "num_blocks": 0}
        assert state["prefixes"][0]["cached"] == {"a": 0, "b": len(LONG) // 64}, "it is there with an empty cache"
        again.server.close()

    with_workers(main)


def test_a_stream_that_breaks_off_and_a_request_without_a_replica_are_told():
    async def main(app, fleet, a):
        async def answer(writer):
            writer.write(STREAM.replace(b"Connection: close", b"Content-Length: 999") + EVENTS[0])
            await writer.drain()
            die(writer)

        a.answer = answer
        await ask(app, stream=True)
        await a.stop()
        await fleet.check(fleet.replicas["a"])
        assert (await ask(app)).status == 503
        rows = (await state_of(app))["requests"]
        assert [(row["replica"], row["status"]) for row in rows] == [(None, "no replica"), ("a", "broke off")]

    with_workers(main, "a")


def test_behind_a_production_router_the_replicas_are_listed_without_its_beliefs():
    async def main(app, fleet, a, b):
        router = await Worker("sglang-router").start()
        before = Fleet({router.name: Address("127.0.0.1", router.port)})
        await before.check(before.replicas[router.name])
        app = make_front(ServerSettings(), before, replicas=fleet)
        assert (await ask(app, LONG)).json() == {"from": router.name}
        state = await state_of(app)
        assert state["router"]["name"] == state["requests"][0]["replica"] == router.name
        assert state["prefixes"] is None and [row["num_answered"] for row in state["replicas"]] == [None, None]
        assert (await get(app, "/replicas/b/live/models")).json() == {"from": "b"}
        router.server.close()

    with_workers(main)


# ---- the rows of the tree


def test_prompts_with_the_same_beginning_share_a_row():
    def prompt(text):
        return tuple((("m", None), letter) for letter in text)

    cached = {prompt("abcd"): {"x": 3, "y": 0}, prompt("abef"): {"x": 2, "y": 4}, prompt("ab"): {"x": 2, "y": 2},
              prompt("q"): {"x": 0, "y": 1}}
    rows = [(row["level"], row["text"], row["num_blocks"], row["cached"]) for row in belief_rows(cached)]
    assert rows == [(0, "ab", 2, {"x": 2, "y": 0}), (1, "cd", 2, {"x": 1, "y": 0}), (1, "ef", 2, {"x": 0, "y": 2}),
                    (0, "q", 1, {"x": 0, "y": 1})]
    assert belief_rows({}) == []
    (row,) = belief_rows({prompt("ab"): {"x": 2}, prompt("abcd"): {"x": 3}})
    assert (row["text"], row["cached"]) == ("abcd", {"x": 3}), "a prompt that ends does not split the row"


def test_prompts_of_two_callers_share_no_row_and_token_ids_are_shown():
    tokens = {"model": "m", "prompt": list(range(16))}
    rows = belief_rows({tuple(blocks_of(tokens, caller)): {"x": 1} for caller in ("anna", "bert")})
    assert [(row["caller"], row["text"]) for row in rows] == [(name, " ".join(map(str, range(16))))
                                                             for name in ("anna", "bert")]


# ---- its size


@pytest.mark.parametrize("fields", [
    {"prompt": "x" * 2_000_000}, {"prompt": "\ud83d" * 200_000}, {"prompt": [10**300] * 4000},
    {"model": "m" * 1_900_000, "prompt": LONG}, {"messages": [{"role": "user", "content": "y" * 1_900_000}]},
    {"messages": [{"content": [{"text": "z" * 1_900_000}]}]}, {"prompt": [["x"] * 1000]}, {"prompt": {"x": "y"}}],
    ids=["text", "half pairs", "ids", "model", "chat", "parts", "lists", "object"])
def test_a_huge_request_takes_little_room(fields):
    async def main(app, fleet, a):
        for number in range(3):
            assert (await ask(app, **{"prompt": "", **fields, "user": str(number)})).status == 200
        client = await get(app)
        assert len(client.data) < 10_000
        for row in client.json()["requests"]:
            assert len(row["text"]) <= MAX_SHOWN + 1
        for prompt in fleet.log.prompts():
            assert len(prompt) <= MAX_BLOCKS
            assert sum(sys.getsizeof(part) for (model, _), piece in prompt for part in (model, piece)) < 20_000

    with_workers(main, "a")


def test_of_thousands_of_requests_only_the_latest_are_kept():
    async def main(app, fleet, a, b):
        for number in range(2000):
            async with fleet.routed(f"r{number}", [(("m", None), f"{number}-{part}") for part in range(3)],
                                    str(number)) as (_, decision):
                decision.status = "200"
        client = await get(app)
        state = client.json()
        assert [row["number"] for row in state["requests"]] == list(range(2000, 2000 - MAX_DECISIONS, -1))
        assert [row["text"].partition("-")[0] for row in state["prefixes"]] == [
            str(number) for number in range(1999, 1999 - MAX_PROMPTS, -1)]
        assert sum(row["num_answered"] for row in state["replicas"]) == 2000 and len(client.data) < 30_000

    with_workers(main)


def test_a_prompt_that_comes_again_is_the_latest_one():
    async def main(app, fleet, a):
        for start in ("law", "art", "law"):
            await ask(app, start + LONG)
        assert [row["text"][:3] for row in (await state_of(app))["prefixes"]] == ["law", "art"]

    with_workers(main, "a")


def test_a_summary_has_the_beginning_and_the_end_of_a_long_prompt():
    assert summary_of({"prompt": ["  two\n lines  ", "another"]}) == "two lines"
    told = summary_of({"prompt": "begin" + " x" * 500 + " end"})
    assert told.startswith("begin x") and "…" in told and told.endswith("x end")
    assert summary_of({"messages": [{"role": "system", "content": ""}, {"content": [{"text": "hi"}]}]}) == "hi"
    for wrong in ({}, {"messages": 3}, {"messages": [3]}, {"messages": [{"content": 3}]}, {"prompt": 3}):
        assert summary_of(wrong) == ""


# ---- a router that fails


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("even its message fails")


def fails(error):
    def method(self, *args):
        raise error
    return method


NONSENSE = [None, 3, {}, [], {"a": -1, "b": 0}, {"a": 10**30, "b": 0}, {"a": 1.5, "b": 0}, {"a": "1", "b": "2"},
            {"a": 0}, {"x" * 1000: 1}]
BROKEN = [fails(ValueError("not today")), fails(Unprintable()), fails(KeyError("x" * 1000)),
          *(lambda self, *args, value=value: value for value in NONSENSE)]


@pytest.mark.parametrize("broken", BROKEN, ids=["error", "unprintable", "long", *(str(each)[:20] for each in NONSENSE)])
@pytest.mark.parametrize("name", ["loads", "num_blocks", "num_cached"])
def test_the_page_and_the_requests_survive_a_router_that_fails(name, broken):
    class Router:
        """A router that is not ours: only what it says about itself is broken."""

        loads = num_blocks = {"a": 0, "b": 0}

        def __init__(self):
            inner = RoundRobinRouter()
            self.route, self.finished, self.replica_of = inner.route, inner.finished, inner.replica_of
            self.add_replica, self.remove_replica = inner.add_replica, inner.remove_replica

        def num_cached(self, blocks):
            return {"a": 0, "b": 0}

    async def main(app, fleet, a, b):
        use(fleet, Router())
        setattr(Router, name, broken if name == "num_cached" else property(broken))
        assert [(await ask(app, LONG)).status for _ in range(3)] == [200] * 3
        state = await state_of(app)
        assert state["router"]["error"].startswith(name) and len(state["router"]["error"]) <= MAX_MESSAGE
        assert state["prefixes"] is None and [row["num_answered"] for row in state["replicas"]] == [2, 1]
        assert [row["replica"] for row in state["requests"]] == ["a", "b", "a"]
        for row in state["requests"]:
            assert (row["expected"] is None) == (row["error"] is not None) == (name == "num_cached")
            assert len(row["error"] or "") <= MAX_MESSAGE
        for worker in (a, b):
            await worker.stop()
        metrics = (await get(app, "/metrics")).data.decode()  # loads are numbers in any case
        assert 'requests_in_flight{replica="a"} 0.0' in metrics

    with_workers(main)


def test_a_router_without_beliefs_still_tells_loads_and_who_served_what():
    async def main(app, fleet, a, b):
        use(fleet, RoundRobinRouter())
        for _ in range(3):
            await ask(app, LONG)
        state = await state_of(app)
        assert state["router"] == {"name": "RoundRobinRouter", "error": None} and state["prefixes"] is None
        assert [(row["num_running"], row["num_blocks"]) for row in state["replicas"]] == [(0, None)] * 2
        assert [(row["replica"], row["expected"]) for row in state["requests"]] == [("a", None), ("b", None),
                                                                                   ("a", None)]

    with_workers(main)


def test_without_a_replica_the_router_is_not_asked():
    """Send the usual 503, whatever a student's router raises without replicas."""
    async def main(app, fleet, a, b):
        class Router(RoundRobinRouter):
            def route(self, request_id, blocks):
                assert self.loads, "asked without a replica"
                return super().route(request_id, blocks)

        use(fleet, Router())
        for replica in fleet.up():
            fleet.leave(replica, "the test says so")
        answer = await ask(app)
        assert answer.status == 503 and (await state_of(app))["requests"][0]["status"] == "no replica"

    with_workers(main)


def test_a_router_that_cannot_route_costs_only_that_request():
    async def main(app, fleet, a):
        class Router(RoundRobinRouter):
            def route(self, request_id, blocks):
                super().route(request_id, blocks)
                return {1: "nowhere", 2: []}.get(fleet.log.num_decisions, "a")

        use(fleet, Router())
        for _ in range(2):
            with pytest.raises((KeyError, TypeError)):  # the server logs it, after the client got a 500
                await ask(app)
        assert (await ask(app)).status == 200 and fleet.router.loads == {"a": 0}
        rows = (await state_of(app))["requests"]
        assert [row["status"] for row in rows] == ["200", "router failed", "router failed"]
        assert rows[2]["error"] == "route raised KeyError: 'nowhere'"

    with_workers(main, "a")


@pytest.mark.parametrize("name", ["replica_of", "finished"])
def test_a_router_that_fails_when_a_request_ends_fails_after_the_answer(name):
    async def main(app, fleet, a):
        use(fleet, RoundRobinRouter())
        setattr(fleet.router, name, lambda request_id: 1 // 0)
        assert (await ask(app)).json() == {"from": "a"}
        (row,) = (await state_of(app))["requests"]
        assert row["status"] == "200" and "ZeroDivisionError" in row["error"]

    with_workers(main, "a")


# ---- who may see it, and the way to one engine


@pytest.mark.parametrize("key, status", [(None, 401), ("wrong-key-wrong-key", 401), ("bert-has-a-secret", 403),
                                         ("anna-has-a-secret", 200)])
def test_with_keys_all_but_the_files_is_for_admins(keys_file, key, status):
    async def main(app, fleet, a):
        for path in (LIVE, "/replicas/a/live/models", "/replicas/a/live/events"):
            assert (await get(app, path, key=key)).status == status, path
        step = await Client("/replicas/a/live/step", {"model": "m"}, key=key).ask(app)
        assert step.status == status and a.num_asked == (3 if status == 200 else 0)
        if a.num_asked:
            assert b"anna-has-a-secret" in a.requests[0][0], "the replica checks the key too"
        for path in ("/", "/live/page/replicas.js"):
            client = await get(app, path)  # the files contain no user's data, and come from the front
            assert client.status == 200 and b"default-src" in client.headers[b"content-security-policy"]

    with_workers(main, "a", keys_file=keys_file)


def test_other_sites_and_other_machines_are_refused():
    async def main(app, fleet, a):
        for path in (LIVE, "/replicas/a/live/events"):
            for header in ((b"sec-fetch-site", b"cross-site"), (b"origin", b"http://evil.example"),
                           (b"host", b"evil.example")):
                assert (await get(app, path, headers=[header])).status == 403, header
            client = Client(path, b"", method="GET")
            client.scope["client"] = ("10.0.0.9", 5)
            assert (await client.ask(app)).status == 403
        assert a.num_asked == 0

    with_workers(main, "a")


def test_the_page_reaches_the_engine_of_each_replica():
    async def main(app, fleet, a, b):
        assert (await get(app, "/replicas/b/live/events", query=b"model=m")).json() == {"from": "b"}
        step = await Client("/replicas/b/live/step", {"model": "m"}).ask(app)
        assert step.json() == {"from": "b"} and a.num_asked == 0
        (first, _), (second, body) = b.requests
        assert first.startswith(b"GET /live/events?model=m HTTP") and second.startswith(b"POST /live/step HTTP")
        assert json.loads(body) == {"model": "m"}
        assert (await get(app, "/replicas/c/live/models")).status == 404
        assert (await state_of(app))["requests"] == [], "these are not requests for a text"

    with_workers(main)


def test_a_replica_that_hangs_is_not_asked():
    async def main(app, fleet, a):
        fleet.leave(fleet.replicas["a"], "it hangs")
        assert (await get(app, "/replicas/a/live/models")).status == 503 and a.num_asked == 0

    with_workers(main, "a")


def test_when_one_engine_fails_no_other_one_answers_for_it():
    async def main(app, fleet, a, b):
        async def answer(writer):
            die(writer)

        a.answer = answer
        client = await get(app, "/replicas/a/live/models")
        assert (client.status, client.json()["error"]["message"]) == (503, "a is down")
        assert not fleet.replicas["a"].is_up and b.num_asked == 0

    with_workers(main)


@pytest.mark.parametrize("path", ["/replicas/a/v1/completions", "/replicas/a/live/../v1/completions",
                                  "/replicas/a/health"])
def test_only_live_paths_lead_to_one_engine(path):
    async def main(app, fleet, a, b):
        async def answer(writer):
            writer.write(whole({}, b"404 Not Found"))

        a.answer = answer
        assert (await Client(path, {"model": "m", "prompt": "x"}).ask(app)).status == 404
        assert all(b"POST " + path.encode() in head for head, _ in a.requests), "as any unknown path"

    with_workers(main)
