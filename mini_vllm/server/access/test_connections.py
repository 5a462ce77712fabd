"""Connections that send nothing, read nothing, or do either too slowly are closed, and others are served."""

import asyncio
import json
import logging
import socket

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from mini_vllm.server.access import body_limit, connections
from mini_vllm.server.access.connections import (
    MIN_CHUNK_BYTES,
    NUM_FREE_CHUNKS,
    WRITE_S,
    BoundedConnection,
    CountingParser,
    OnceInAWhile,
    max_connections,
)
from mini_vllm.server.conftest import Client, running, settings_for

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
    """Read until the other end closes the connection."""
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


# ---- clients that do not read


def never_reads(server, num_requests=400):
    """Request the schema again and again without reading, and return the connection once the server cannot write."""
    before = set(server.server.server_state.connections)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * num_requests)
    while not any(each.transport.get_write_buffer_size() for each in server.server.server_state.connections - before):
        pass
    return connection


def test_connections_that_are_not_read_make_room_for_a_new_one(server, monkeypatch):
    monkeypatch.setattr(connections, "max_connections", lambda: 3)
    held = [never_reads(server) for _ in range(3)]
    with connect(server, HALF + REST) as fourth:
        assert answer(fourth) == b"HTTP/1.1 200 OK" and is_closed(held[0])
    for connection in held:
        connection.close()


def test_a_client_that_reads_nothing_is_not_waited_for(server, monkeypatch):
    with never_reads(server) as connection:
        monkeypatch.setattr(connections, "WRITE_S", -1.0)
        for _ in range(2):
            asyncio.run_coroutine_threadsafe(server.server.on_tick(0), server.loop).result(30)
        assert is_closed(connection)


class Transport:
    """Keeps the written bytes until a test reads them."""

    def __init__(self):
        self.num_unread, self.is_aborted, self.written, self._socket = 0, False, b"", socket.socket()

    def get_extra_info(self, name):
        return self._socket if name == "socket" else None

    def get_write_buffer_size(self):
        return self.num_unread

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.is_aborted

    def abort(self):
        self.is_aborted = True
        self._socket.close()

    close = abort


def made_connection():
    connection, transport = BoundedConnection(uvicorn.Config(app=None, log_config=None), ServerState(), {}), Transport()
    connection.connection_made(transport)
    return connection, transport


def test_a_slow_reader_is_waited_for_while_it_reads_anything():
    async def main():
        connection, transport = made_connection()
        connection.conn.num_written = transport.num_unread = 1000
        now_s, told = connection.waits_since_s, []
        for waited_s, num_read in ((WRITE_S - 1, 1), (WRITE_S - 1, 1), (WRITE_S - 1, 0), (2, 0)):
            now_s += waited_s
            transport.num_unread -= num_read
            connection.look(now_s)
            told.append(transport.is_aborted)
        connection.connection_lost(OSError())
        return told

    assert asyncio.run(main()) == [False, False, False, True]


# ---- bodies in tiny chunks


def feed(num_chunks, size):
    """Return the number of chunks of a body that are accepted."""
    parser = CountingParser(h11.SERVER)
    parser.receive_data(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert isinstance(parser.next_event(), h11.Request)
    for number in range(num_chunks):
        parser.receive_data(b"%x\r\n%b\r\n" % (size, b" " * size))
        try:
            parser.next_event()
        except h11.RemoteProtocolError:
            return number
    return num_chunks


@pytest.mark.parametrize("num_chunks, size, num_taken", [
    (2 * NUM_FREE_CHUNKS, 1, NUM_FREE_CHUNKS), (NUM_FREE_CHUNKS, 1, NUM_FREE_CHUNKS),
    (2 * NUM_FREE_CHUNKS, MIN_CHUNK_BYTES - 1, NUM_FREE_CHUNKS),
    (2 * NUM_FREE_CHUNKS, MIN_CHUNK_BYTES, 2 * NUM_FREE_CHUNKS)])
def test_tiny_chunks_are_taken_while_there_are_few(num_chunks, size, num_taken):
    assert feed(num_chunks, size) == num_taken


CHUNKED = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
           b"Transfer-Encoding: chunked\r\n\r\n")


def test_who_sends_tiny_chunks_is_told(server):
    with connect(server, CHUNKED + b"1\r\n{\r\n" * (NUM_FREE_CHUNKS + 1)) as connection:
        head, _, content = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    told = json.loads(content)["error"]["message"]
    assert told.startswith(f"the body has {NUM_FREE_CHUNKS + 1} chunks of less than {MIN_CHUNK_BYTES} bytes on average")


def test_who_has_an_answer_and_goes_on_with_nonsense_gets_no_other(server, caplog):
    with connect(server, CHUNKED.replace(b"application/json", b"text/plain")) as connection:
        assert answer(connection) == b"HTTP/1.1 415 Unsupported Media Type"
        connection.sendall(b"ZZ\r\n")
        assert is_closed(connection)
    assert not [line for line in caplog.messages if "Fatal error" in line]


def test_a_head_is_bounded_however_fast_it_comes():
    async def main():
        connection, transport = made_connection()
        connection.data_received(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a:b\r\n" * 40_000 + b"\r\n")
        connection.connection_lost(OSError())
        return transport.written

    assert asyncio.run(main()).startswith(b"HTTP/1.1 400 Bad Request")


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
    monkeypatch.setattr(body_limit, "BODY_S", 0.01)

    class Slow(Client):
        async def receive(self):
            if not self._is_read:
                self._is_read = True
                return {"type": "http.request", "body": b"{", "more_body": True}
            await asyncio.Event().wait()

    answer = asyncio.run(Slow("/v1/completions", b"").ask(make_app(settings_for(writer))))
    assert answer.status == 408 and answer.json()["error"]["code"] == "body_too_slow"
    assert answer.headers[b"connection"] == b"close"
