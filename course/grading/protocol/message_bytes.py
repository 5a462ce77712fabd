"""The raw bytes of one message. They follow the message's JSON and are read in the order in which they were written."""

from __future__ import annotations

from typing import Any

from course.grading.protocol.bounds import check
from course.grading.protocol.socket_messages import ProtocolError


class Outgoing(list[bytes]):
    """The bytes of a message that is being written."""

    #: Whether the value being written is an attribute of one of this side's objects, which the other may only look at.
    is_guarded = False


class Incoming:
    """The bytes of a message that is being read."""

    __slots__ = ("_rest",)

    def __init__(self, rest: memoryview) -> None:
        self._rest = rest

    def take(self, num_bytes: Any, what: str, bound: int) -> memoryview:
        """Return the next bytes. Raise ProtocolError if there are fewer, and TooMuch if ``bound`` is exceeded."""
        if type(num_bytes) is not int or not 0 <= num_bytes <= len(self._rest):
            raise ProtocolError(f"{num_bytes!r} bytes of {len(self._rest)}")
        check(what, num_bytes, bound)
        data, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return data


#: For a value without raw bytes, such as an attribute that is decoded later.
NO_BYTES = Incoming(memoryview(b""))
