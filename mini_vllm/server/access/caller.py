"""Who asks, and what they may: checked before the body of a request is read.

Without keys everybody on this machine may do everything. With keys, whatever is under /v1 needs one, and so does every
request with a body; what shows other people's prompts, or stops them, needs an admin's.
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

#: Where the caller of a request stands in its scope.
CALLER = "mini_vllm.caller"
CHALLENGE = {"WWW-Authenticate": "Bearer"}
#: These compute something, and count against a key's rate.
COUNTED = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True)
class Caller:
    """Who sent a request. Nobody has a name where there are no keys."""

    name: str | None
    best_priority: Priority
    default_priority: Priority
    is_admin: bool
    #: What its rate leaves; None: it has none.
    bucket: TokenBucket | None = field(default=None, compare=False)

    def pay_for(self, num_texts: int) -> None:
        """Count the texts of a request against the rate, but for the one that the request itself has paid for. Raises
        ApiError: 400 if a minute's worth is not enough, 429 if it is not enough now. Nothing is counted then."""
        if self.bucket is None or num_texts == 1:
            return
        if num_texts > self.bucket.per_minute:
            raise ApiError(400, f"the request is for {num_texts} texts (prompts times n), but the key {self.name!r} "
                           f"may ask for {self.bucket.per_minute} per minute", param="n", code="too_many_texts")
        if wait_s := self.bucket.take(num_texts - 1):
            raise _too_often(self.name, self.bucket, wait_s)

    @property
    def extra_keys(self) -> tuple[str, ...] | None:
        """The salt of its prefixes: what one tenant's prompts left in the cache, no other finds."""
        return None if self.name is None else (self.name,)


class AccessGate:
    """ASGI middleware: finds out who asks, and turns away who may not or asks too often."""

    def __init__(self, app: ASGIApp, keys: KeyRing | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.app, self.keys = app, keys
        self._buckets = {key.name: TokenBucket(key.requests_per_minute, clock) for key in keys or ()
                         if key.requests_per_minute is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope[CALLER] = self._caller(scope)
            except ApiError as error:
                return await error.to_response()(scope, receive, send)
        await self.app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller | None:
        """None where no key was sent and none is needed to get this far."""
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
    """What a client sent as its key, if it sent any."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else ""
    return None


def refused_key(is_missing: bool) -> ApiError:
    message = ("this server asks for a key: send the header Authorization: Bearer YOUR_KEY" if is_missing else
               "this key is not known here")
    return ApiError(401, message, code="missing_api_key" if is_missing else "invalid_api_key", headers=CHALLENGE)


def caller_of(request: Request) -> Caller:
    """Raises the 401 if nobody is known to have sent it."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        raise refused_key(is_missing=True)
    return caller


def require_admin(request: Request) -> None:
    """A FastAPI dependency: without keys from this machine, else with an admin's key."""
    caller = caller_of(request)
    if not caller.is_admin:
        message = ("without keys this is only for who is on the server's own machine" if caller.name is None else
                   f"the key {caller.name!r} is not an admin's: this shows other people's prompts")
        raise ApiError(403, message, code="admin_only")
