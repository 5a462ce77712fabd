"""Limits on the size and the complexity of request bodies.

    read (408, 413, 503) ──▶ wait for a turn ──▶ has the client left? ──▶ check the shape (400) ──▶ the application

Bytes are counted as they arrive, whatever length the client announced. Before a body is parsed, its values are counted:
a list of 600,000 empty objects fits into 2 MB, and parsing and validating it would block the event loop for all other
callers. One body is parsed per turn of the event loop, so that other callers are served between two large bodies. The
keys are served in turn.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.server.access.caller import CALLER, Caller
from mini_vllm.server.access.concurrency_limit import RETRY_AFTER_S
from mini_vllm.server.access.rate_limits import ByteBudget
from mini_vllm.server.access.request_checks import WITH_BODY
from mini_vllm.server.access.turns import ANYONE, Turns
from mini_vllm.server.errors import ApiError, retry_later

#: How many bytes beyond the limit are read and discarded. A client that is still sending when the connection closes
#: sees a reset instead of the 413.
MAX_DISCARDED_BYTES = 256 * 2**20
#: How long a client may take to send a body.
BODY_S = 60.0
#: The limit of all large bodies together, from when they are read until they are answered. A small body is always
#: accepted: the number of connections limits those.
MAX_HELD_BYTES, SMALL_BYTES = 64 * 2**20, 2**16
#: The maximum number of values in lists and objects (a prompt of token ids has many), of lists and objects, and of
#: quotation marks, escaped ones included.
MAX_VALUES, MAX_CONTAINERS, MAX_QUOTES = 2**18, 2**14, 2**17
#: A number with thousands of digits takes long to parse, and no field needs one.
MAX_DIGITS = 399
#: A body with more values than this is parsed after a pause of this long per value, which is longer than parsing takes.
#: Pauses do not overlap, so the loop has time for other requests, whatever is sent.
MANY_VALUES, PAUSE_S = 2**14, 1e-6
#: Bodies that may wait for their turn: the number of connections is the real limit.
MAX_WAITING = 2**20
ZEROS = bytes.maketrans(b"123456789", b"000000000")


class BodyBound:
    """ASGI middleware that reads the whole body and passes it on in one piece."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self.app, self.max_body_bytes = app, max_body_bytes
        self.budget = ByteBudget(max_held_bytes)
        self._turns = Turns(most=1, max_waiting=MAX_WAITING)
        #: The turns of bodies with many values.
        self._large = Turns(most=1, max_waiting=MAX_WAITING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Requests with other methods have no body: ``request_checks.py`` has rejected those with one.
        if scope["type"] != "http" or scope["method"] not in WITH_BODY:
            return await self.app(scope, receive, send)
        caller: Caller | None = scope.get(CALLER)
        holder = ANYONE if caller is None else (caller.default_priority, caller.name)
        upload = _Upload(self.max_body_bytes, self.budget, holder[1])
        later: _Later | None = None
        try:
            try:
                num_bytes = dict(scope["headers"]).get(b"content-length", b"")
                body = await asyncio.wait_for(upload.read(receive, num_bytes), BODY_S)
                if body is None:  # the client has disconnected
                    return
                later = _Later(body, receive)
                num_values = min(body.count(b","), MAX_VALUES)
                if num_values > MANY_VALUES:
                    async with self._large.turn(holder):
                        await asyncio.sleep(num_values * PAUSE_S)
                async with self._turns.turn(holder):
                    await asyncio.sleep(0)
                if later.has_left:
                    return
                check_shape(body)
            except asyncio.TimeoutError:
                error = ApiError(408, f"the body did not arrive within {BODY_S:g} s", code="body_too_slow",
                                 headers={"Connection": "close"})
                return await error.to_response()(scope, receive, send)
            except ApiError as error:
                return await error.to_response()(scope, receive, send)
            await self.app(scope, later, send)
        finally:
            upload.let_go()
            if later is not None:
                later.cancel()


class _Upload:
    """The body of one request while it arrives, and the bytes that it holds of the budget."""

    def __init__(self, max_bytes: int, budget: ByteBudget, key: str | None) -> None:
        self._max_bytes, self._budget, self._key = max_bytes, budget, key
        self._parts: list[bytes] = []
        self._num_held = 0

    async def read(self, receive: Receive, content_length: bytes) -> bytes | None:
        """Return the whole body, or None if the client disconnects before it has arrived.

        Raise ApiError if the body cannot be kept. It is still read to its end, so that the client sees the error.
        """
        limit, most = self._max_bytes, self._max_bytes + MAX_DISCARDED_BYTES
        if content_length.isdigit() and int(content_length[:20]) > most:
            raise self._too_large(int(content_length[:20]))
        num_bytes, is_last, is_kept = 0, False, True
        while not is_last and num_bytes <= most:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part, is_last = message.get("body", b""), not message.get("more_body", False)
            num_bytes += len(part)
            is_kept = is_kept and num_bytes <= limit and (num_bytes <= SMALL_BYTES or self._hold(len(part)))
            if is_kept:
                self._parts.append(part)
            else:
                self.let_go()
        if num_bytes > limit:
            raise self._too_large(num_bytes)
        if not is_kept:
            raise retry_later(503, f"the bodies of all requests in flight have more than {self._budget.most} bytes, or "
                              "those of this key more than half of that; try again later", "too_many_bytes",
                              RETRY_AFTER_S)
        body, self._parts = b"".join(self._parts), []
        return body

    def let_go(self) -> None:
        self._budget.give_back(self._num_held, self._key)
        self._num_held = 0
        self._parts.clear()

    def _hold(self, num_bytes: int) -> bool:
        is_held = self._budget.take(num_bytes, self._key)
        self._num_held += num_bytes if is_held else 0
        return is_held

    def _too_large(self, num_bytes: int) -> ApiError:
        return ApiError(413, f"the body has {num_bytes} bytes or more, the limit is {self._max_bytes}",
                        code="body_too_large", headers={"Connection": "close"})


def check_shape(body: bytes) -> None:
    """Raise ApiError if parsing ``body`` as JSON would take long.

    The check takes a few hundredths of a second for any body: every part of it is one pass.
    """
    num_quotes = body.count(b'"')
    if num_quotes > MAX_QUOTES:
        raise _too_intricate(num_quotes, "quotation marks", MAX_QUOTES)
    if (body.count(b",") <= MAX_VALUES and body.count(b"[") + body.count(b"{") <= MAX_CONTAINERS
            and not has_long_number(body)):
        return
    structure = without_texts(body)  # commas, brackets and digits in strings cost nothing
    if has_long_number(structure):
        raise ApiError(400, f"the body has a number of {MAX_DIGITS + 1} digits or more", code="body_too_intricate")
    for num, what, most in ((structure.count(b","), "values", MAX_VALUES),
                            (structure.count(b"[") + structure.count(b"{"), "lists and objects", MAX_CONTAINERS)):
        if num > most:
            raise _too_intricate(num, what, most)


def has_long_number(body: bytes) -> bool:
    """Check whether a number has too many digits. A regular expression would start again at each digit."""
    return b"0" * (MAX_DIGITS + 1) in body.translate(ZEROS)


def without_texts(body: bytes) -> bytes:
    """Remove the text between quotation marks from JSON. An unterminated string reaches to the end of the body."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"'.join(unescaped.split(b'"')[::2])


def _too_intricate(num: int, what: str, most: int) -> ApiError:
    return ApiError(400, f"the body has {num} {what}, the limit is {most}", code="body_too_intricate")


class _Later:
    """``receive`` for the application: the body, then the connection's messages.

    It listens to the connection from the start, so that it knows whether the client has disconnected.
    """

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive
        self._next: asyncio.Future[Message] | None = asyncio.ensure_future(receive())

    @property
    def has_left(self) -> bool:
        return self._next is not None and self._next.done() and self._next.result()["type"] == "http.disconnect"

    def cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._next is not None:
            message, self._next = await self._next, None
            return message
        return await self._receive()
