"""Keys: permissions, rates and priorities; a key does not find another key's prompts in the cache."""

import asyncio
import functools
import hashlib
import io
import logging
import threading
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest

from mini_vllm.request import Priority
from mini_vllm.server.access import keys as keys_module
from mini_vllm.server.access.caller import AccessGate, Caller
from mini_vllm.server.access.concurrency_limit import Seats
from mini_vllm.server.access.keys import read_keys
from mini_vllm.server.access.rate_limits import TokenBucket
from mini_vllm.server.access.turns import Turns
from mini_vllm.server.app import make_app
from mini_vllm.server.conftest import KEYS, Client, settings_for
from mini_vllm.server.errors import ApiError
from mini_vllm.server.models.model_registry import ModelShelf
from mini_vllm.server.settings import ServerSettings

PATH = "/v1/completions"
ANNA, BERT, CARLA = "anna-has-a-secret", "bert-has-a-secret", "carla-has-a-secret"


def body(writer, **fields):
    return {"model": writer.name, "prompt": "Once upon a time there was", "max_tokens": 2, **fields}


def serve(main, settings):
    async def run():
        shelf = ModelShelf(settings)
        try:
            return await main(make_app(settings, shelf), shelf)
        finally:
            await shelf.close()
    return asyncio.run(run())


@pytest.mark.parametrize("key, status, code", [
    (None, 401, "missing_api_key"), ("nobody-has-this-key", 401, "invalid_api_key"), ("", 401, "invalid_api_key"),
    (ANNA + "x", 401, "invalid_api_key"), (ANNA[:-1], 401, "invalid_api_key"), ("\udcff", 401, "invalid_api_key"),
    (ANNA, 200, None), (BERT, 200, None),
])
@pytest.mark.parametrize("method, path", [("POST", PATH), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
                                          ("GET", "/v1/models/llama3-2"), ("GET", "/v1")])
def test_without_a_key_nothing_is_told(writer, keys_file, key, status, code, method, path):
    async def main(app, shelf):
        headers = {} if key is None else {b"authorization": b"Bearer " + key.encode("utf-8", "surrogateescape")}
        return await Client(path, b"{" if method == "POST" else b"", method=method, headers=headers.items()).ask(app)

    client = serve(main, settings_for(writer, keys_file=keys_file))
    if status == 401:
        assert client.status == 401 and client.headers[b"www-authenticate"] == b"Bearer"
        error = client.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", code)
        assert not key or key not in client.data.decode()
    else:
        assert client.status in (200, 400, 404)  # whatever body and path are, the key is accepted


@pytest.mark.parametrize("path", ["/metrics"])
def test_what_shows_others_prompts_is_for_admins(writer, keys_file, path):
    async def main(app, shelf):
        keys = (None, "wrong-wrong-wrong", BERT, ANNA)
        return [(await Client(path, b"", key, "GET").ask(app)).status for key in keys]

    assert serve(main, settings_for(writer, keys_file=keys_file)) == [401, 401, 403, 200]


def test_health_is_open_to_all(writer, keys_file):
    async def main(app, shelf):
        return (await Client("/health", b"", method="GET").ask(app)).json()

    assert serve(main, settings_for(writer, keys_file=keys_file)) == {"status": "ok"}


def test_without_keys_admins_are_those_on_this_machine(writer):
    async def main(app, shelf):
        here, there = Client("/metrics", b"", method="GET"), Client("/metrics", b"", method="GET")
        there.scope["client"] = ("10.0.0.7", 1)
        return (await here.ask(app)).status, (await there.ask(app)).status

    assert serve(main, settings_for(writer)) == (200, 403)


def test_a_keys_prefix_is_found_by_the_same_key_only(writer, keys_file):
    async def main(app, shelf):
        found = []
        for key in (ANNA, ANNA, CARLA, CARLA, ANNA):
            client = await Client(PATH, body(writer), key).ask(app)
            found.append(client.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        return found

    found = serve(main, settings_for(writer, keys_file=keys_file))
    assert found[0] == found[2] == 0 and found[1] == found[3] == found[4] > 0


def test_a_tier_is_the_default_and_the_best_priority(writer, keys_file):
    async def main(app, shelf):
        seen, answers = [], []
        async with shelf.lease(writer.name) as served:
            real = served.engine.generate
            served.engine.generate = lambda *a, **named: seen.append(named["priority"]) or real(*a, **named)
            for key, priority in ((ANNA, None), (BERT, None), (CARLA, None), (ANNA, "low"), (CARLA, 2), (BERT, "low"),
                                  (BERT, "high"), (BERT, 1), (CARLA, "high")):
                answers.append(await Client(PATH, body(writer, priority=priority), key).ask(app))
        return seen, answers

    seen, answers = serve(main, settings_for(writer, keys_file=keys_file))
    high, normal, low = Priority
    assert seen == [high, low, normal, low, low, low] and [answer.status for answer in answers] == [200] * 6 + [403] * 3
    error = answers[-3].json()["error"]
    assert error["param"] == "priority" and "the key 'bert' may ask for low at best" in error["message"]


def test_a_key_may_ask_so_often_and_is_told_when_again(keys_file):
    now_s, served = [0.0], []

    async def app(scope, receive, send):
        served.append(scope["mini_vllm.caller"])

    gate = AccessGate(app, read_keys(keys_file), lambda: now_s[0])

    def ask(path=PATH, key=BERT):
        client = Client(path, {}, key)
        asyncio.run(client.ask(gate))
        return client

    assert [ask().status for _ in range(5)] == [None] * 5
    refused = ask()
    assert refused.status == 429 and refused.headers[b"retry-after"] == b"12"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert ask("/v1/models").status is None and ask(key=ANNA).status is None
    now_s[0] = 12.0
    assert [ask().status, ask().status] == [None, 429]
    assert served[0] == Caller("bert", Priority.LOW, Priority.LOW, False)


def test_a_bucket_refills_to_the_brim_and_no_further():
    now_s = [100.0]
    bucket = TokenBucket(6, lambda: now_s[0])
    assert [bucket.take() for _ in range(6)] == [0.0] * 6 and bucket.take() == pytest.approx(10)
    now_s[0] += 5
    assert bucket.take() == pytest.approx(5), "who is refused pays nothing"
    now_s[0] += 1e6
    assert [bucket.take() for _ in range(6)] == [0.0] * 6 and bucket.take() > 0


def test_a_request_for_several_texts_pays_for_each():
    now_s = [0.0]
    caller = Caller("bert", Priority.LOW, Priority.LOW, False, TokenBucket(5, lambda: now_s[0]))
    caller.bucket.take()  # the gate does this before the body is read
    caller.pay_for(4)
    with pytest.raises(ApiError, match=r"may ask for 5 texts per minute \(prompts times n\); wait 12.0 s") as caught:
        caller.pay_for(3)
    assert caught.value.status == 429 and caught.value.code == "rate_limit_exceeded"
    caller.pay_for(2)
    with pytest.raises(ApiError, match="the request is for 72 texts .* 'bert' may ask for 5 per minute") as caught:
        caller.pay_for(72)
    assert caught.value.status == 400
    Caller(None, Priority.HIGH, Priority.NORMAL, True).pay_for(10**6)


def test_72_prompts_of_a_key_that_may_ask_5_times_a_minute_are_refused(writer, keys_file):
    async def main(app, shelf):
        return await Client(PATH, body(writer, prompt=["a"] * 72), BERT).ask(app)

    answer = serve(main, settings_for(writer, keys_file=keys_file, max_waiting=100))
    assert answer.status == 400 and answer.json()["error"]["code"] == "too_many_texts"


def test_what_is_prepared_is_prepared_by_priority_and_key(talker, keys_file, monkeypatch):
    holders = []

    @asynccontextmanager
    async def turn(self, holder):
        holders.append(holder)
        yield

    async def main(app, shelf):
        request = {"model": talker.name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        for key, fields in ((ANNA, {"response_format": {"type": "json_object"}}), (BERT, {})):
            assert (await Client("/v1/chat/completions", {**request, **fields}, key=key).ask(app)).status == 200

    monkeypatch.setattr(Turns, "turn", turn)
    serve(main, settings_for(talker, keys_file=keys_file))
    # a turn for the body, the grammar, its check, the template and the tokenizer; the second has no grammar
    assert holders == [(Priority.HIGH, "anna")] * 5 + [(Priority.LOW, "bert")] * 3


# ---- shares


@pytest.fixture
def shared():
    """Return a clock, and a function that takes seats for a key: 4 sequences may run, and 6 may wait."""
    now_s, kept = [0.0], []
    seats = Seats(4, 6, clock=lambda: now_s[0])

    def take(key, count, priority=Priority.NORMAL, end=lambda: None):
        kept.append(seats.taken(count, priority, key, end))
        kept[-1].__enter__()
        return kept[-1]

    return now_s, take


def refusal(take, *arguments):
    with pytest.raises(ApiError) as caught:
        take(*arguments)
    assert caught.value.status == 429 and caught.value.headers["Retry-After"] == "1"
    return caught.value.code


def test_a_key_that_is_alone_may_hold_everything_until_another_asks(shared):
    now_s, take = shared
    ended = []
    held = [take("anna", 1, Priority.NORMAL, functools.partial(ended.append, number)) for number in range(10)]
    take("bert", 2)
    assert ended == [9, 8, 7, 6, 5], "its newest requests end, until it holds its share: 5 of 10"
    assert refusal(take, "anna", 1) == "key_share_exceeded"
    for each in held:
        each.__exit__(None, None, None)
    take("anna", 5)
    assert refusal(take, "anna", 1) == "key_share_exceeded", "seven are in flight for four seats: some wait"


def test_places_are_taken_from_a_key_only_as_far_as_the_other_is_below_its_share(shared):
    now_s, take = shared
    ended = []
    take("anna", 10, Priority.NORMAL, lambda: ended.append("anna"))
    assert refusal(take, "anna", 1) == "queue_full"
    assert refusal(take, "bert", 6) == "key_share_exceeded"
    assert refusal(take, "bert", 1, Priority.LOW) == "queue_full"
    take("carla", 10, Priority.HIGH)
    assert refusal(take, "bert", 1) == "queue_full", "carla's have a better priority, and would have to end as well"
    assert not ended


def test_requests_in_the_seats_do_not_end_for_another_key():
    ended, seats = [], Seats(8, 2)
    with ExitStack() as stack:
        for number in range(10):
            end = functools.partial(ended.append, number)
            stack.enter_context(seats.taken(1, Priority.NORMAL, "anna", end))
        stack.enter_context(seats.taken(2, Priority.NORMAL, "bert"))
    assert ended == [9, 8], "half of ten are five, but eight have seats"


def test_a_key_has_half_of_the_seats_while_there_is_another(shared):
    """Check that the rest of its requests wait where they delay nobody, and that each waits only for its own key's."""
    now_s, take = shared

    async def main():
        seats, inside = Seats(4, 16, clock=lambda: now_s[0]), []

        async def settle():
            for _ in range(3):
                await asyncio.sleep(0)

        @asynccontextmanager
        async def request(name, count, key):
            with seats.taken(count, Priority.NORMAL, key) as claim:
                entering = asyncio.create_task(seats.enter(claim, count, 100))
                entering.add_done_callback(lambda task: task.cancelled() or task.exception() or inside.append(name))
                await settle()
                yield entering
                entering.cancel()

        async with AsyncExitStack() as stack:
            anna = [request(f"a{number}", 1, "anna") for number in range(7)]
            for each in anna:
                await each.__aenter__()
            assert inside == ["a0", "a1", "a2", "a3"], "a key that is alone has all four seats"
            await stack.enter_async_context(request("b0", 2, "bert"))
            assert inside[4:] == ["b0"], "the engine learns of it at once: it is the first to wait for a seat"
            too_large = await stack.enter_async_context(request("b1", 3, "bert"))
            with pytest.raises(ApiError, match="3 texts at once; while there are other keys, the limit is 2"):
                await too_large
            for number in range(3):
                await anna[number].__aexit__(None, None, None)
                await settle()
            assert inside[5:] == ["a4"], "now anna has two seats: a3's and a4's"
        now_s[0] = 9.9
        await anna[3].__aexit__(None, None, None)
        await settle()
        assert inside[6:] == ["a5"]
        now_s[0] = 10.0
        await anna[4].__aexit__(None, None, None)
        await settle()
        assert inside[7:] == ["a6"], "bert has sent nothing for ten seconds"
        await asyncio.wait_for(_enter_alone(seats), 10)

    asyncio.run(main())


async def _enter_alone(seats):
    with seats.taken(2, Priority.NORMAL, "carla") as claim:
        assert await seats.enter(claim, 8, 100) == Priority.NORMAL
    with seats.taken(4, Priority.LOW, "anna") as claim:
        assert await seats.enter(claim, 8, 100) == Priority.LOW
    with seats.taken(9, Priority.LOW, "bert") as claim, pytest.raises(ApiError):
        await seats.enter(claim, 8, 100)


def test_what_a_key_has_beyond_its_share_because_it_is_alone_has_a_lower_priority():
    async def main():
        seats, got = Seats(4, 16, clock=lambda: 0.0), []
        with ExitStack() as stack:
            async def ask(key, count, num_slots, priority=Priority.NORMAL):
                claim = stack.enter_context(seats.taken(count, priority, key))
                got.append(await asyncio.wait_for(seats.enter(claim, num_slots, 100), 10))

            for _ in range(4):
                await ask("anna", 1, 10)
            await ask("carla", 12, 10, Priority.LOW)
            await ask("bert", 1, 10)
        assert got == [Priority.NORMAL] * 2 + [Priority.LOW] * 3 + [Priority.NORMAL]

    asyncio.run(main())


def test_a_key_has_half_of_the_kv_cache_while_there_is_another():
    async def main():
        seats = Seats(8, 16, clock=lambda: 0.0)
        with ExitStack() as stack:
            claims = [stack.enter_context(seats.taken(1, Priority.NORMAL, key)) for key in ("anna", "bert", "bert")]
            assert await seats.enter(claims[1], 60, 100) == Priority.LOW, "alone it may exceed the share of 50"
            waiting = asyncio.create_task(seats.enter(claims[2], 10, 100))
            assert await seats.enter(claims[0], 50, 100) == Priority.NORMAL
            assert not waiting.done()
        with pytest.raises(asyncio.CancelledError):
            waiting.cancel()
            await waiting

    asyncio.run(main())


def test_a_refusal_counts_for_a_while_and_only_for_keys_of_the_same_priority(shared):
    now_s, take = shared
    held = take("anna", 10)
    assert refusal(take, "bert", 6) == "key_share_exceeded"
    held.__exit__(None, None, None)
    take("anna", 5)
    assert refusal(take, "anna", 2) == "key_share_exceeded"
    take("anna", 3, Priority.LOW)
    now_s[0] = 10.0
    take("anna", 2)


def test_a_key_that_asks_keeps_its_part_while_it_goes_on_asking(shared):
    now_s, take = shared
    held = take("anna", 10)
    take("bert", 1).__exit__(None, None, None)
    held.__exit__(None, None, None)
    for _ in range(5):
        now_s[0] += 9
        take("bert", 1).__exit__(None, None, None)
        assert refusal(take, "anna", 6) == "key_share_exceeded", "between two requests of bert"
    now_s[0] += 10
    take("anna", 10)


def test_without_keys_nothing_is_shared_out(shared):
    now_s, take = shared
    take(None, 8)
    assert refusal(take, None, 3) == "queue_full"
    take(None, 2)


def test_a_key_that_fills_the_queue_gives_places_back_when_another_key_asks(writer, keys_file):
    """Check that the newest requests of the one end with 429, whole or streamed, and that the other is answered."""
    async def main(app, shelf):
        async with shelf.lease(writer.name) as served:
            await served.engine.pause()
            anna = [Client(PATH, body(writer, n=2, stream=number == 3, priority="normal"), ANNA) for number in range(4)]
            asking = [asyncio.create_task(client.ask(app)) for client in anna]
            while shelf.seats(writer.name)._num_taken(Priority.NORMAL) < 8:
                await asyncio.sleep(0)
            carla = asyncio.create_task(Client(PATH, body(writer), CARLA).ask(app))
            await asyncio.gather(*asking[2:])
            served.engine.resume()
            await asyncio.gather(carla, *asking)
            return [client.status for client in anna], anna[2].json(), anna[3].json(), carla.result().status

    statuses, whole, streamed, other = serve(
        main, settings_for(writer, keys_file=keys_file, sizes={"max_num_seqs": 4}, max_waiting=4))
    assert statuses == [200, 200, 429, 429] and other == 200
    for refused in (whole, streamed):
        assert refused["error"]["code"] == "key_share_exceeded" and "another key" in refused["error"]["message"]


def test_seats_are_held_until_the_engine_has_let_go(writer):
    """Check that a client that sends requests and disconnects cannot fill the engine with abandoned work."""
    async def main(app, shelf):
        async with shelf.lease(writer.name) as served:
            is_held, may_go = threading.Event(), threading.Event()
            served.engine._thread.inbox.put(lambda engine: (is_held.set(), may_go.wait(30)))
            client, inbox = Client(PATH, body(writer, prompt=["a", "b"])), served.engine._thread.inbox
            asking = asyncio.create_task(client.ask(app))
            while not is_held.is_set() or inbox.qsize() < 2:
                await asyncio.sleep(0)
            client.has_left.set()
            while inbox.qsize() < 4:  # the engine is told that both have disconnected
                await asyncio.sleep(0)
            for _ in range(100):  # every task that can continue now does
                await asyncio.sleep(0)
            before = shelf.seats(writer.name)._num_taken(Priority.LOW)
            may_go.set()
            await asking
            return before, shelf.seats(writer.name)._num_taken(Priority.LOW)

    assert serve(main, settings_for(writer)) == (2, 0)


def test_every_key_is_compared_in_constant_time(keys_file, monkeypatch):
    compared = []
    monkeypatch.setattr(keys_module.hmac, "compare_digest", lambda a, b: compared.append(len(b)) or a == b)
    ring = read_keys(keys_file)
    assert ring.find(ANNA).name == "anna" and ring.find("x") is None
    assert compared == [32] * 6


def test_a_key_is_nowhere_but_in_its_file(writer, keys_file, caplog):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        with caplog.at_level(logging.DEBUG):
            async def main(app, shelf):
                for key in (ANNA, "a-wrong-key-that-is-secret-too"):
                    await Client(PATH, body(writer, temperature=9), key).ask(app)
                    await Client(PATH, body(writer), key).ask(app)
            serve(main, settings_for(writer, keys_file=keys_file))
    finally:
        logging.getLogger().removeHandler(handler)
    ring = read_keys(keys_file)
    told = stream.getvalue() + caplog.text + repr(list(ring)) + repr(vars(ring))
    assert "secret" not in told and hashlib.sha256(ANNA.encode()).hexdigest() not in told
    assert not any(repr(key.digest) in told for key in ring) and ring.names == ["anna", "bert", "carla"]


@pytest.mark.parametrize("text, message", [
    ("", r"must contain at least one table \[keys.NAME\]"), ("[keys]", "must contain at least one table"),
    ("keys = 5", "must contain at least one table"),
    ("[keys.a]\nkey = 'abcdefghijklmnop'\n[more]", "must contain at least one table"),
    ("[keys.a]\nkey = 'abcdefghijklmnop", r"is not TOML \(at "),
    ("[keys]\na = 'abcdefghijklmnop'", "keys.a must be a table"),
    ("[keys.a]", "keys.a must have either a key or its sha256"),
    ("[keys.a]\nkey = 'abcdefghijklmno'", "keys.a: key must have at least 16 characters"),
    ("[keys.a]\nkey = 'abcdefgh ijklmnop'", "keys.a: key must have at least 16 characters, ASCII without spaces"),
    ("[keys.a]\nsha256 = 'abc'", "keys.a: sha256 must be 64 hexadecimal digits"),
    ("[keys.a]\nkey = 'abcdefghijklmnop'\ntier = 'best'", "tier is 'best', must be high, normal, low"),
    ("[keys.a]\nkey = 'abcdefghijklmnop'\nadmin = 1", "admin is 1, must be true or false"),
    ("[keys.a]\nkey = 'abcdefghijklmnop'\nrequests_per_minute = 0", "requests_per_minute is 0, must be a whole number"),
    ("[keys.a]\nkey = 'abcdefghijklmnop'\nteir = 'low'",
     "has the unknown field 'teir'; known fields: key, sha256, tier"),
    ("[keys.a]\nkey = 'abcdefghijklmnop'\n[keys.b]\nkey = 'abcdefghijklmnop'", "keys.a and keys.b are the same key"),
])
def test_a_file_that_cannot_be_read_is_told_without_its_keys(tmp_path, text, message):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_keys(path)
    assert "abcdefgh" not in str(caught.value) and str(caught.value).startswith(str(path))


def test_a_digest_stands_for_its_key(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f"[keys.anna]\nsha256 = '{hashlib.sha256(ANNA.encode()).hexdigest().upper()}'")
    assert read_keys(path).find(ANNA).name == "anna" and ANNA in KEYS


@pytest.mark.parametrize("host, is_served", [
    ("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.8.0.1", True), ("0.0.0.0", False), ("::", False),
    ("10.0.0.1", False), ("here", False),
])
def test_without_keys_only_this_machine_is_served(host, is_served, keys_file):
    if is_served:
        assert ServerSettings(host=host).host == host
    else:
        with pytest.raises(ValueError, match=r"which other machines can reach; without keys, .* Add --keys keys.toml"):
            ServerSettings(host=host)
    assert ServerSettings(host=host, keys_file=keys_file).host == host
