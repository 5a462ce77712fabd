"""Bodies of requests, no larger and no more intricate than allowed.

Bytes are counted as they arrive, whatever the client announced. Before a body is parsed, its values are counted: a list
of 600,000 empty objects fits into 2 MB, and parsing and validating it would keep the event loop from all other callers.
"""

from __future__ import annotations

import asyncio
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.server.errors import ApiError

#: How much more than allowed is read and thrown away. A client that is still sending when the connection closes sees
#: a reset instead of the 413.
MAX_DISCARDED_BYTES = 256 * 2**20
#: How long a client may take to send a body.
BODY_S = 60.0
#: How many values in lists and objects a body may contain (a prompt of token ids has many), how many lists and objects,
#: and how many quotation marks, escaped ones included.
MAX_VALUES, MAX_CONTAINERS, MAX_QUOTES = 2**18, 2**14, 2**17
#: A number of thousands of digits takes long to read, and none is needed.
LONG_NUMBER = re.compile(rb"[0-9]{400}")
TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class BodyBound:
    """ASGI middleware: reads the body whole, and hands it on in one piece."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app, self.max_body_bytes = app, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            num_bytes = dict(scope["headers"]).get(b"content-length", b"")
            body = await asyncio.wait_for(self._read(receive, num_bytes), BODY_S)
            check_shape(body or b"")
        except asyncio.TimeoutError:
            error = ApiError(408, f"the body did not arrive within {BODY_S:g} s", code="body_too_slow",
                             headers={"Connection": "close"})
            return await error.to_response()(scope, receive, send)
        except ApiError as error:
            return await error.to_response()(scope, receive, send)
        if body is not None:  # else the client has left
            await self.app(scope, _Once(body, receive), send)

    async def _read(self, receive: Receive, content_length: bytes) -> bytes | None:
        """The whole body; None if the client leaves before it is there."""
        limit, most = self.max_body_bytes, self.max_body_bytes + MAX_DISCARDED_BYTES
        if content_length.isdigit() and int(content_length[:20]) > most:
            raise self._too_large(int(content_length[:20]))
        parts: list[bytes] = []
        num_bytes = 0
        is_last = False
        while not is_last and num_bytes <= most:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part, is_last = message.get("body", b""), not message.get("more_body", False)
            num_bytes += len(part)
            if num_bytes <= limit:
                parts.append(part)
        if num_bytes > limit:
            raise self._too_large(num_bytes)
        return b"".join(parts)

    def _too_large(self, num_bytes: int) -> ApiError:
        return ApiError(413, f"the body has {num_bytes} bytes or more, the bound is {self.max_body_bytes}",
                        code="body_too_large", headers={"Connection": "close"})


def check_shape(body: bytes) -> None:
    """Raise ApiError if parsing ``body`` as JSON would take long. It takes a few hundredths of a second to find out."""
    num_quotes = body.count(b'"')
    if num_quotes > MAX_QUOTES:
        raise _too_intricate(num_quotes, "quotation marks", MAX_QUOTES)
    if (body.count(b",") <= MAX_VALUES and body.count(b"[") + body.count(b"{") <= MAX_CONTAINERS
            and not LONG_NUMBER.search(body)):
        return
    structure = TEXT.sub(b"", body)  # commas, brackets and digits in texts cost nothing
    if LONG_NUMBER.search(structure):
        raise ApiError(400, "the body has a number of 400 digits or more", code="body_too_intricate")
    for num, what, most in ((structure.count(b","), "values", MAX_VALUES),
                            (structure.count(b"[") + structure.count(b"{"), "lists and objects", MAX_CONTAINERS)):
        if num > most:
            raise _too_intricate(num, what, most)


def _too_intricate(num: int, what: str, most: int) -> ApiError:
    return ApiError(400, f"the body has {num} {what}, the bound is {most}", code="body_too_intricate")


class _Once:
    """``receive`` for the application: the body, then whatever the connection says."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
