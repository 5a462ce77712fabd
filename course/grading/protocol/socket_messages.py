"""Messages over one socket: a length, JSON, then the raw bytes of arrays. Too large or too deep ones are refused.

    ┌────────────┬───────────┬──────────────┬──────────────────────────┐
    │ total: u32 │ json: u32 │ JSON in UTF-8 │ buffers, one after another │
    └────────────┴───────────┴──────────────┴──────────────────────────┘
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

MAX_MESSAGE_BYTES = 64 << 20
#: How many lists a message may contain: an empty list takes three bytes on the wire and sixty in memory.
MAX_LISTS = 1_000_000
#: How deep lists may be nested. Python's own JSON decoder would go on to the recursion limit.
MAX_DEPTH = 60
ENDED = "the process ended during this test: does the file under test call os._exit(), or crash the interpreter?"
_HEAD = struct.Struct("!II")

#: The longest single wait for bytes. After it, ``on_wait`` is called and may give up.
LOOK_S = 0.1


def _encoder() -> Callable[[Any], str]:
    """Return a function that does what JSONEncoder.encode does in about half the time, by skipping the code around
    the C encoder. Return JSONEncoder.encode itself if the C encoder is not available."""
    plain = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
    sample: list[Any] = ["?", 1, ["a", "ü", None, True, 1.5, float("inf"), [[], -(10 ** 30)]]]
    try:
        chunks = json.encoder.c_make_encoder(  # type: ignore[attr-defined]  # it is there in CPython
            None, plain, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
        if "".join(chunks(sample, 0)) != plain(sample):
            return plain
    except (AttributeError, TypeError, ValueError):
        return plain
    return lambda message: "".join(chunks(message, 0))


_ENCODE = _encoder()
_DECODE = json.JSONDecoder().raw_decode
_CHUNK_BYTES = 1 << 16

#: Called before every wait for bytes. Raises an exception to give up.
OnWait = Callable[[], None]


class ProtocolError(Exception):
    """The other side sent something that no honest side sends, or is gone."""


class Gone(ProtocolError):
    """The other side has closed its end."""


class Wire:
    """One end of the socket.

    The kernel does the waiting, and returns after a while. A timeout set in Python would cost one more system call per
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
        self._read = b""
        #: What has arrived since the start, in bytes and in messages; and the size of the last message's JSON.
        self.num_bytes = self.num_messages = self.num_last_bytes = 0

    def send(self, message: Any, buffers: list[bytes]) -> None:
        """Send a message. Raise ProtocolError if it is too large or the other side is gone."""
        try:
            text = _ENCODE(message).encode("ascii")
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"it cannot be sent: {error}") from None
        size = len(text) + sum(map(len, buffers))
        if size > self._max_bytes:
            raise ProtocolError(f"a message of {size:,} bytes, at most {self._max_bytes:,} are allowed")
        data = b"".join([_HEAD.pack(size, len(text)), text, *buffers])
        num_sent = self._send(data)
        while num_sent < len(data):
            num_sent += self._send(memoryview(data)[num_sent:])

    def _send(self, data: bytes | memoryview) -> int:
        """Send some of the data, and return how many bytes the kernel has taken."""
        self._on_wait()
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Gone(ENDED) from error

    def receive(self) -> tuple[Any, memoryview]:
        """Return the next message, and the bytes after it."""
        if len(self._read) < _HEAD.size:
            self._wait_for(_HEAD.size)
        size, text_size = _HEAD.unpack_from(self._read)
        if size > self._max_bytes or text_size > size:
            raise ProtocolError(f"a message of {size:,} bytes, at most {self._max_bytes:,} are allowed")
        self.num_messages += 1
        self.num_last_bytes = text_size
        end, text_end = _HEAD.size + size, _HEAD.size + text_size
        if len(self._read) < end:
            self._wait_for(end)
        body, self._read = self._read, self._read[end:]
        if text_size > MAX_LISTS and sum(body.count(each, 0, text_end) for each in (b"[", b"{")) > MAX_LISTS:
            raise ProtocolError(f"a message of more than {MAX_LISTS:,} lists")
        try:
            text = body[_HEAD.size:text_end].decode()
            message, num_read = _DECODE(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not a message: {type(error).__name__}") from None
        if num_read != len(text):
            raise ProtocolError("text after the end of a message")
        return message, memoryview(body)[text_end:end]

    def has_unread(self) -> bool:
        """Return whether data has arrived that was not asked for."""
        return bool(self._read or select.select([self._socket], [], [], 0)[0])

    def _wait_for(self, num_bytes: int) -> None:
        """Wait until ``num_bytes`` have arrived. The caller has checked that fewer are there."""
        if not self._read:  # most messages arrive in one piece
            self._read = self._receive_some()
        if len(self._read) < num_bytes:
            read = bytearray(self._read)
            while len(read) < num_bytes:
                read += self._receive_some()
            self._read = bytes(read)

    def _receive_some(self) -> bytes:
        while True:
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
            return data
