"""The measurement tells answers, errors, answers that are cut off and answers that never come from each other."""

import asyncio

import pytest

from measure import router_kill
from measure.router_kill import Outcome
from mini_vllm.server.replicas.exchange import Address, Connections
from mini_vllm.server.replicas.test_proxy import CHUNKED, EVENTS, Worker, chunk, die, whole

ALL = b"".join(map(chunk, EVENTS)) + chunk(b"")
ERROR = chunk(b'data: {"error": {}}\n\n') + chunk(EVENTS[-1]) + chunk(b"")


@pytest.mark.parametrize("sent, is_stream, wanted", [
    (whole({"text": "a"}), False, Outcome("answered", has_started=True)),
    (CHUNKED + ALL, True, Outcome("answered", has_started=True)),
    (whole({"error": {}}, b"503 Service Unavailable"), False, Outcome("error", has_started=False)),
    (CHUNKED + chunk(EVENTS[0]) + ERROR, True, Outcome("error", has_started=True)),
    (CHUNKED + chunk(EVENTS[0]), True, Outcome("cut off", has_started=True)),
    (CHUNKED + chunk(EVENTS[0]) + chunk(b""), True, Outcome("cut off", has_started=True)),
    (b"", False, Outcome("cut off", has_started=False)),
    (None, False, Outcome("hung", has_started=False)),
])
def test_an_outcome_says_how_a_request_ended(sent, is_stream, wanted, monkeypatch):
    killed = []
    monkeypatch.setattr(router_kill.os, "kill", lambda pid, number: killed.append(pid))
    if sent is None:
        monkeypatch.setattr(router_kill, "LIMIT_S", 0.05)

    async def main():
        worker = await Worker("a").start()

        async def answer(writer):
            if sent is None:
                await asyncio.Event().wait()
            writer.write(sent)
            await writer.drain()
            if wanted.end == "cut off" and not sent.endswith(chunk(b"")):
                die(writer)

        worker.answer = answer
        client = Connections(Address("127.0.0.1", worker.port))
        outcomes = await router_kill._run(client, [(is_stream, b"{}")] * 3, victim=7)
        worker.server.close()
        return outcomes

    assert asyncio.run(main()) == [wanted] * 3 and killed == [7]
