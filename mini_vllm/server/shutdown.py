"""Shutdown: new requests are rejected, endless streams are ended, and requests that take too long are cut off with an
error."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.server.api.answers import DONE, event
from mini_vllm.server.errors import retry_later

#: The Retry-After of a rejected client: by then another server may be running.
RETRY_AFTER_S = 5.0


class DrainGate:
    """ASGI middleware that rejects new requests while the server drains.

    Running answers are finished. A client that only listens, by GET, has its stream ended.
    """

    def __init__(self, app: ASGIApp, draining: asyncio.Event) -> None:
        self.app, self.draining = app, draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if self.draining.is_set() and scope["path"] != "/health":
            error = retry_later(503, "the server is stopping; try again later", "stopping", RETRY_AFTER_S)
            return await error.to_response()(scope, receive, send)
        if scope["method"] == "GET":
            await self._listen(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a GET, and end its answer when the server drains, even if the application left it open."""
        answer = _Answer(send)
        await self.app(scope, _Listener(receive, self.draining), answer)
        if answer.is_open and self.draining.is_set():
            await send({"type": "http.response.body", "body": b""})


class Farewell:
    """ASGI middleware that tells a client that is cut off that the server is stopping.

    The message is the answer or, if a stream has started, its last event. A request is cut off by cancelling its task.
    This middleware is outside of all code that waits for a client, so that no traceback appears in the log.
    """

    def __init__(self, app: ASGIApp, draining: asyncio.Event) -> None:
        self.app, self.draining = app, draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        answer = _Answer(send)
        try:
            await self.app(scope, receive, answer)
        except asyncio.CancelledError:
            if not self.draining.is_set():
                raise
            error = retry_later(503, "the server is stopping and could not wait for this answer; try again later",
                                "stopping", RETRY_AFTER_S)
            if not answer.has_begun:
                await error.to_response()(scope, receive, send)
            elif answer.is_open and answer.is_stream:
                await send({"type": "http.response.body", "body": event(error.to_dict()) + DONE})


class _Answer:
    """A ``send`` that tracks how much of an answer was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = self.is_open = self.is_stream = False

    async def __call__(self, message: Message) -> None:
        await self._send(message)
        if message["type"] == "http.response.start":
            self.has_begun = self.is_open = True
            self.is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
        else:
            self.is_open = message.get("more_body", False)


class _Listener:
    """A ``receive`` that reports a disconnect as soon as the server drains."""

    def __init__(self, receive: Receive, draining: asyncio.Event) -> None:
        self._receive, self._draining = receive, draining

    async def __call__(self) -> Message:
        message, end = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({message, end}, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "http.disconnect"}
        finally:
            message.cancel()
            end.cancel()
