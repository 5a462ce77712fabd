"""Connections that say nothing, or too slowly: they are closed, and others are served."""

import asyncio
import logging
import socket

import pytest

from mini_vllm.server import body, connections
from mini_vllm.server.conftest import Client, running, settings_for
from mini_vllm.server.connections import OnceInAWhile, max_connections

HALF = b"GET /health HTTP/1.1\r\nHost: local"
REST = b"host\r\n\r\n"


@pytest.fixture
def server(writer):
    with running(settings_for(writer)) as server:
        yield server


def connect(server, sent=b""):
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(sent)
    return connection


def is_closed(connection):
    """Read until the other end closes it."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


def answer(connection):
    return connection.recv(1000).split(b"\r\n")[0]


def test_half_a_head_is_waited_for_and_not_for_ever(server, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with connect(server, HALF) as half, connect(server) as silent:
        assert is_closed(half) and is_closed(silent)
    monkeypatch.setattr(connections, "HEAD_S", 10.0)
    with connect(server, HALF) as slow:
        slow.sendall(REST)
        assert answer(slow) == b"HTTP/1.1 200 OK"


def test_the_second_request_of_a_connection_is_limited_too(server, monkeypatch):
    with connect(server, HALF + REST) as connection:
        assert answer(connection) == b"HTTP/1.1 200 OK"
        monkeypatch.setattr(connections, "HEAD_S", 0.2)
        connection.sendall(HALF)
        assert is_closed(connection)


HALF_BODY = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             b"Content-Length: 99\r\n\r\n{")


@pytest.mark.parametrize("sent", [HALF, HALF_BODY], ids=["head", "body"])
def test_the_oldest_connection_without_a_whole_request_makes_room(server, monkeypatch, sent):
    monkeypatch.setattr(connections, "max_connections", lambda: 3)
    held = []
    for content in (sent, HALF, HALF):  # one after the other, so that the first is the oldest
        held.append(connect(server, content))
        while len(server.server.server_state.connections) < len(held):
            pass
    with connect(server, HALF + REST) as fourth:
        assert answer(fourth) == b"HTTP/1.1 200 OK" and is_closed(held[0])
    held[1].sendall(REST)
    assert answer(held[1]) == b"HTTP/1.1 200 OK"
    for connection in held:
        connection.close()


def test_half_of_the_files_may_be_connections(monkeypatch):
    resource = pytest.importorskip("resource")
    for limit, expected in ((256, 128), (10, 8), (10**6, 8192), (resource.RLIM_INFINITY, 8192)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        assert max_connections() == expected


def test_the_log_says_the_same_once_in_a_while(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now_s[0])
    said = OnceInAWhile()

    def passes(message, *arguments):
        return said.filter(logging.LogRecord("x", logging.WARNING, "", 0, message, arguments, None))

    assert [passes("%d are open", 1), passes("%d are open", 2), passes("another")] == [True, False, True]
    now_s[0] = 60.0
    assert passes("%d are open", 3)


def test_a_body_that_does_not_arrive_is_not_waited_for(writer, monkeypatch):
    from mini_vllm.server.app import make_app
    monkeypatch.setattr(body, "BODY_S", 0.01)

    class Slow(Client):
        async def receive(self):
            if not self._is_read:
                self._is_read = True
                return {"type": "http.request", "body": b"{", "more_body": True}
            await asyncio.Event().wait()

    answer = asyncio.run(Slow("/v1/completions", b"").ask(make_app(settings_for(writer))))
    assert answer.status == 408 and answer.json()["error"]["code"] == "body_too_slow"
    assert answer.headers[b"connection"] == b"close"
