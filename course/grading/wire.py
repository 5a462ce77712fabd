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
#: How deep lists may lie in each other. Python's own JSON would go on to the recursion limit.
MAX_DEPTH = 60
ENDED = "the process ended during this test: does the file under test call os._exit(), or crash the interpreter?"
_HEAD = struct.Struct("!II")

#: Called before every wait for bytes; returns how many seconds to wait at most, or raises.
OnWait = Callable[[], "float | None"]


class ProtocolError(Exception):
    """The other side sent what no honest one sends, or is gone."""


class Gone(ProtocolError):
    """The other side has closed its end."""


class Wire:
    """One end of the socket."""

    def __init__(self, connection: socket.socket, on_wait: OnWait = lambda: None,
                 max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._socket = connection
        self._on_wait = on_wait
        self._max_bytes = max_bytes
        #: What has come in since the start, in bytes.
        self.num_bytes = 0

    def send(self, message: Any, buffers: list[bytes]) -> None:
        """Raises ProtocolError if it is too large, or nobody listens any more."""
        text = _dumps(message)
        size = len(text) + sum(map(len, buffers))
        if size > self._max_bytes:
            raise ProtocolError(f"a message of {size:,} bytes, at most {self._max_bytes:,} are allowed")
        self._send_all(b"".join([_HEAD.pack(size, len(text)), text, *buffers]))

    def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                self._socket.settimeout(self._on_wait())
                view = view[self._socket.send(view):]
            except TimeoutError:
                continue
            except OSError as error:
                raise Gone(ENDED) from error

    def receive(self) -> tuple[Any, memoryview]:
        """The next message, and the bytes after it."""
        head = self._take(_HEAD.size)
        size, text_size = _HEAD.unpack(head)
        if size > self._max_bytes or text_size > size:
            raise ProtocolError(f"a message of {size:,} bytes, at most {self._max_bytes:,} are allowed")
        body = self._take(size)
        try:
            message = json.loads(bytes(body[:text_size]))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not a message: {type(error).__name__}") from None
        return message, body[text_size:]

    def _take(self, size: int) -> memoryview:
        self.num_bytes += size
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            try:
                self._socket.settimeout(self._on_wait())
                num_read = self._socket.recv_into(view)
            except TimeoutError:
                continue
            except OSError as error:
                raise Gone(ENDED) from error
            if num_read == 0:
                raise Gone(ENDED)
            view = view[num_read:]
        return memoryview(buffer)


def _dumps(message: Any) -> bytes:
    try:
        return json.dumps(message, separators=(",", ":")).encode("ascii")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"it cannot be sent: {error}") from None
