"""Limits on the number of connections, and on how long a connection may keep the server waiting.

Connecting needs no key, and a connection takes a file descriptor. So a connection is closed if the head of a request
has not arrived within ``HEAD_S``, or if its client has read nothing of an answer for ``WRITE_S``. If there are more
connections than file descriptors allow (some are reserved for models and processes), the one that has kept the server
waiting longest is closed for the new one.

Bytes are parsed in pieces of ``PIECE_BYTES``, and a body may not consist of tiny chunks: h11 takes as long for a chunk
of one byte as for a chunk of thousands.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mini_vllm.server.errors import ApiError

HEAD_S = 10.0
#: How long a write may make no progress, and how many written bytes the system buffers. A slow client's reads become
#: visible in steps, of a hundred kilobytes or more over loopback: docs/serving.md has the resulting minimum rates.
WRITE_S, SEND_BUFFER_BYTES = 60.0, 2**16
#: The number of chunks of a body that may have any size. If there are more, their mean size must be at least this.
NUM_FREE_CHUNKS, MIN_CHUNK_BYTES = 256, 256
PIECE_BYTES = 2**14
#: The log repeats a message after this time at the earliest.
LOG_EVERY_S = 60.0
#: asyncio accepts this many connections before it looks at any of them.
NUM_ACCEPTED_AT_ONCE = 32
MAX_CONNECTIONS = 8192


def max_connections() -> int:
    """Return the maximum number of connections: half of the files that the process may open, within 8 and 8192."""
    try:
        import resource
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError, ValueError):
        limit = 256
    return MAX_CONNECTIONS if limit < 0 else max(8, min(MAX_CONNECTIONS, limit // 2))


class CountingParser(h11.Connection):
    """h11's side of a connection. It counts the written bytes, and rejects a body that consists of tiny chunks."""

    num_written = num_chunks = num_chunked_bytes = 0

    def next_event(self) -> Any:
        """Return h11's next event. Raise h11.RemoteProtocolError for a body of too many tiny chunks."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.num_chunks = self.num_chunked_bytes = 0
        elif isinstance(event, h11.Data):
            self.num_chunks += event.chunk_start
            self.num_chunked_bytes += len(event.data)
            if self.num_chunks > max(NUM_FREE_CHUNKS, self.num_chunked_bytes / MIN_CHUNK_BYTES):
                raise h11.RemoteProtocolError("tiny chunks")
        return event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """Count the bytes that h11 gives out."""
        parts = super().send_with_data_passthrough(event)
        self.num_written += sum(map(len, parts or ()))
        return parts


class BoundedConnection(H11Protocol):
    """A connection of uvicorn's, with limits on its silence, on its work, and on the number of connections."""

    conn: CountingParser

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = CountingParser(h11.SERVER)
        #: Since when the server has been waiting for this client, and how many bytes the client had read by then.
        self.waits_since_s = 0.0
        self._num_read = 0
        self._head_limit: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether the head of a request has arrived, and the request is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def has_whole_request(self) -> bool:
        """Whether its body has also arrived: a client may send half of a body and wait."""
        return self.has_request and not self.cycle.more_body

    @property
    def num_unread(self) -> int:
        """The number of bytes written for the client that the system has not accepted yet."""
        return self.transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.waits_since_s = self.loop.time()
        self._limit_the_head()
        if len(self.connections) > max_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_the_limit()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            if not self.transport.is_closing():
                super().data_received(data[start:start + PIECE_BYTES])
        if self.has_request:
            self._forget_the_limit()
        elif self._head_limit is None and not self.transport.is_closing():
            self._limit_the_head()

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP; uvicorn calls this. A client that has its answer gets no second one."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return self.transport.abort()
        if self.conn.num_chunks > NUM_FREE_CHUNKS:
            msg = f"the body has {self.conn.num_chunks} chunks of less than {MIN_CHUNK_BYTES} bytes on average; send " \
                  "larger ones"
        answer = ApiError(400, msg, code="invalid_http", headers={"Connection": "close"}).to_response()
        for event in (h11.Response(status_code=400, headers=answer.raw_headers, reason=b"Bad Request"),
                      h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def look(self, now_s: float) -> None:
        """Record whether the client has read anything since the last call.

        Close the connection if it has read nothing for ``WRITE_S``.
        """
        num_read = self.conn.num_written - self.num_unread
        if num_read != self._num_read or self.has_whole_request and not self.num_unread:
            self._num_read, self.waits_since_s = num_read, now_s
        elif self.num_unread and now_s - self.waits_since_s > WRITE_S:
            self.transport.abort()

    def _limit_the_head(self) -> None:
        self._head_limit = self.loop.call_later(HEAD_S, self._close_if_silent)

    def _forget_the_limit(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _close_if_silent(self) -> None:
        self._head_limit = None
        if not self.has_request:
            self.transport.abort()

    def _make_room(self) -> None:
        """Close the connection that has kept the server waiting longest; if there is none, close this one."""
        waiting = [each for each in self.connections if isinstance(each, BoundedConnection) and each is not self and (
            each.num_unread or not each.has_whole_request and not each.transport.is_closing())]
        min(waiting, key=lambda each: each.waits_since_s, default=self).transport.abort()
        log.warning("more than %d connections are open: each new connection closes the one that has kept the "
                    "server waiting longest", max_connections())


class OnceInAWhile(logging.Filter):
    """Passes a message, and passes it again only after ``LOG_EVERY_S``, whatever its arguments are."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now_s = str(record.msg)[:40], time.monotonic()
        if now_s - self._last_s.get(key, -LOG_EVERY_S) < LOG_EVERY_S:
            return False
        self._last_s = {**self._last_s, key: now_s} if len(self._last_s) < 100 else {key: now_s}
        return True


once_in_a_while = OnceInAWhile()
log = logging.getLogger("mini_vllm.server.access.connections")
log.addFilter(once_in_a_while)
