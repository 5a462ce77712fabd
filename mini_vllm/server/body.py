"""Bodies of requests, no larger than allowed: they are counted as they come, whatever the client says of them."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.server.errors import ApiError

#: So much more than allowed is read and thrown away, so that a client gets to read why.
MAX_DISCARDED_BYTES = 32 * 2**20


class BodyBound:
    """ASGI middleware: reads the body whole, and hands it on in one piece."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app, self.max_body_bytes = app, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            body = await self._read(receive, dict(scope["headers"]).get(b"content-length", b""))
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
