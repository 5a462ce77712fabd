"""A server that was told to stop: who comes now is sent away, and streams without an end come to one."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.server.errors import retry_later

#: What a client is told to wait: by then another server may be there.
RETRY_AFTER_S = 5.0


class DrainGate:
    """ASGI middleware. Answers that are on their way are finished; who only listens, by GET, hears that all is over."""

    def __init__(self, app: ASGIApp, draining: asyncio.Event) -> None:
        self.app, self.draining = app, draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if self.draining.is_set() and scope["path"] != "/health":
            error = retry_later(503, "the server is stopping; ask again later", "stopping", RETRY_AFTER_S)
            return await error.to_response()(scope, receive, send)
        try:
            if scope["method"] == "GET":
                await self._listen(scope, receive, send)
            else:
                await self.app(scope, receive, send)
        except asyncio.CancelledError:
            if not self.draining.is_set():
                raise
            # It took longer than the server may wait. The connection is closed, which tells the client; no more is
            # to be said of it, and a traceback would be.

    async def _listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever the application did with the news, the answer that it began is ended."""
        is_open = False

        async def watched(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        await self.app(scope, _Listener(receive, self.draining), watched)
        if is_open and self.draining.is_set():
            await send({"type": "http.response.body", "body": b""})


class _Listener:
    """``receive`` that reports its client gone as soon as the server drains."""

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
