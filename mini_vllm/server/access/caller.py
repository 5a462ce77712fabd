"""Identify callers and their permissions, before the body of a request is read.

Without keys every caller on this machine may do everything. With keys, every path under /v1 and every request with a
body needs a key. Routes that show or stop other callers' requests need an admin's key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mini_vllm.request import Priority
from mini_vllm.server.access.keys import KeyRing
from mini_vllm.server.access.rate_limits import TokenBucket
from mini_vllm.server.access.request_checks import WITH_BODY
from mini_vllm.server.errors import ApiError, retry_later
from mini_vllm.server.settings import is_loopback

#: The key of the caller in a request's scope.
CALLER = "mini_vllm.caller"
CHALLENGE = {"WWW-Authenticate": "Bearer"}
#: These routes compute, and count against a key's rate.
COUNTED = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True)
class Caller:
    """The sender of a request. Its name is None if the server has no keys."""

    name: str | None
    best_priority: Priority
    default_priority: Priority
    is_admin: bool
    #: What is left of its rate; None if it has no rate limit.
    bucket: TokenBucket | None = field(default=None, compare=False)

    def pay_for(self, num_texts: int) -> None:
        """Count the texts of a request against the rate, except the first, which was counted with the request.

        Raise ApiError, and count nothing: 400 if they exceed the limit of a whole minute, 429 if they exceed what is
        left now.
        """
        if self.bucket is None or num_texts == 1:
            return
        if num_texts > self.bucket.per_minute:
            raise ApiError(400, f"the request is for {num_texts} texts (prompts times n), but the key {self.name!r} "
                           f"may ask for {self.bucket.per_minute} per minute", param="n", code="too_many_texts")
        if wait_s := self.bucket.take(num_texts - 1):
            raise _too_often(self.name, self.bucket, wait_s)

    @property
    def extra_keys(self) -> tuple[str, ...] | None:
        """The salt of its prefixes, so that no caller finds another caller's prompts in the cache."""
        return None if self.name is None else (self.name,)


class AccessGate:
    """ASGI middleware that identifies the caller, and rejects callers without permission or above their rate."""

    def __init__(self, app: ASGIApp, keys: KeyRing | None, clock: Callable[[], float] = time.monotonic, *,
                 counts_rates: bool = True) -> None:
        self.app, self.keys = app, keys
        self._buckets = {key.name: TokenBucket(key.requests_per_minute, clock) for key in keys or ()
                         if key.requests_per_minute is not None and counts_rates}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope[CALLER] = self._caller(scope)
            except ApiError as error:
                return await error.to_response()(scope, receive, send)
        await self.app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller | None:
        """Return the caller; None if no key was sent and none is needed up to this point.

        Raise ApiError for a missing or unknown key, and for a caller above its rate.
        """
        if self.keys is None:
            is_here = scope.get("client") is None or is_loopback(scope["client"][0])
            return Caller(None, Priority.HIGH, Priority.NORMAL, is_admin=is_here)
        token = _bearer_token(scope)
        key = None if token is None else self.keys.find(token)
        path: str = scope["path"]
        if key is None:
            if token is None and not path.startswith("/v1") and scope["method"] not in WITH_BODY:
                return None
            raise refused_key(token is None)
        bucket = self._buckets.get(key.name)
        if bucket is not None and path in COUNTED and scope["method"] == "POST" and (wait_s := bucket.take()):
            raise _too_often(key.name, bucket, wait_s)
        return Caller(key.name, key.tier, key.tier, key.is_admin, bucket)


def _too_often(name: str | None, bucket: TokenBucket, wait_s: float) -> ApiError:
    return retry_later(429, f"the key {name!r} may ask for {bucket.per_minute} texts per minute (prompts times n); "
                       f"wait {wait_s:.1f} s", "rate_limit_exceeded", wait_s)


def _bearer_token(scope: Scope) -> str | None:
    """Return the key that a client sent; None if it sent none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else ""
    return None


def refused_key(is_missing: bool) -> ApiError:
    message = ("this server needs a key: send the header Authorization: Bearer YOUR_KEY" if is_missing else
               "this server does not know this key")
    return ApiError(401, message, code="missing_api_key" if is_missing else "invalid_api_key", headers=CHALLENGE)


def caller_of(request: Request) -> Caller:
    """Return the caller of a request. Raise a 401 if it is not known."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        raise refused_key(is_missing=True)
    return caller


def require_admin(request: Request) -> None:
    """Raise ApiError unless the caller is an admin: has an admin's key or, without keys, is on this machine.

    This is a FastAPI dependency.
    """
    caller = caller_of(request)
    if not caller.is_admin:
        message = ("without keys, the server allows this only from its own machine" if caller.name is None else
                   f"this shows other people's prompts, so it needs an admin's key; the key {caller.name!r} is not "
                   "an admin's")
        raise ApiError(403, message, code="admin_only")
