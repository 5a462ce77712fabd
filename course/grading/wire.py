"""Messages over one socket: a length, JSON, then the raw bytes of arrays. What is too large or too deep is refused.

    ┌────────────┬───────────┬──────────────┬──────────────────────────┐
    │ total: u32 │ json: u32 │ JSON in UTF-8 │ buffers, one after another │
    └────────────┴───────────┴──────────────┴──────────────────────────┘
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

MAX_MESSAGE_BYTES = 64 << 20
#: How many lists a message may hold: an empty one takes three bytes on the wire, and sixty in memory.
MAX_LISTS = 1_000_000
#: How deep lists may lie in each other. Python's own JSON would go on to the recursion limit.
MAX_DEPTH = 60
ENDED = "the process ended during this test: does the file under test call os._exit(), or crash the interpreter?"
_HEAD = struct.Struct("!II")

#: How long one wait for bytes takes at most, before whoever waits is asked whether to go on.
LOOK_S = 0.1
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
_DECODE = json.JSONDecoder().decode
_CHUNK_BYTES = 1 << 16

#: Called before every wait for bytes. Raises to give up.
OnWait = Callable[[], None]


class ProtocolError(Exception):
    """The other side sent what no honest one sends, or is gone."""


class Gone(ProtocolError):
    """The other side has closed its end."""


class Wire:
    """One end of the socket.

    The kernel does the waiting, and returns after a while: a timeout of Python's would cost a system call more for each
    message.
    """

    def __init__(self, connection: socket.socket, on_wait: OnWait | None = None,
                 max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        connection.setblocking(True)
        if on_wait is not None:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, int(LOOK_S * 1e6)))
        self._socket = connection
        self._on_wait = on_wait or (lambda: None)
        self._max_bytes = max_bytes
        self._read = bytearray()
        #: What has come in since the start, in bytes.
        self.num_bytes = 0

    def send(self, message: Any, buffers: list[bytes]) -> None:
        """Raises ProtocolError if it is too large, or nobody listens any more."""
        try:
            text = _ENCODE(message).encode("ascii")
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"it cannot be sent: {error}") from None
        size = len(text) + sum(map(len, buffers))
        if size > self._max_bytes:
            raise ProtocolError(f"a message of {size:,} bytes, at most {self._max_bytes:,} are allowed")
        view = memoryview(b"".join([_HEAD.pack(size, len(text)), text, *buffers]))
        while view:
            self._on_wait()
            try:
                view = view[self._socket.send(view):]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Gone(ENDED) from error

    def receive(self) -> tuple[Any, memoryview]:
        """The next message, and the bytes after it."""
        size, text_size = _HEAD.unpack(self._take(_HEAD.size))
        if size > self._max_bytes or text_size > size:
            raise ProtocolError(f"a message of {size:,} bytes, at most {self._max_bytes:,} are allowed")
        body = self._take(size)
        if text_size > MAX_LISTS and body.count(b"[", 0, text_size) + body.count(b"{", 0, text_size) > MAX_LISTS:
            raise ProtocolError(f"a message of more than {MAX_LISTS:,} lists")
        try:
            message = _DECODE(str(memoryview(body)[:text_size], "utf-8"))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not a message: {type(error).__name__}") from None
        return message, memoryview(body)[text_size:]

    def _take(self, size: int) -> bytearray:
        """The next bytes, so many."""
        while len(self._read) < size:
            self._on_wait()
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise Gone(ENDED) from error
            if not data:
                raise Gone(ENDED)
            self.num_bytes += len(data)
            self._read += data
        taken, self._read = self._read[:size], self._read[size:]
        return taken
