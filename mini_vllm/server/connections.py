"""Connections: how many there may be, and how long one may take to say what it wants.

Connecting needs no key, and a connection takes a file descriptor. So a connection is closed if the head of a request
has not arrived within ``HEAD_S``. When there are as many connections as file descriptors allow, with some to spare for
models and processes, the oldest one without a whole request makes room for the new one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
#: How often the log may say the same.
LOG_EVERY_S = 60.0
#: asyncio accepts this many connections before it looks at any of them.
NUM_ACCEPTED_AT_ONCE = 32
MAX_CONNECTIONS = 8192


def max_connections() -> int:
    """Return how many connections there may be: half of what the process may open."""
    try:
        import resource
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError, ValueError):
        limit = 256
    return MAX_CONNECTIONS if limit < 0 else max(8, min(MAX_CONNECTIONS, limit // 2))


class BoundedConnection(H11Protocol):
    """One connection of uvicorn's, with a limit on its silence and on the number of its kind."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.made_s = 0.0
        self._head_limit: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether the head of a request has arrived that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def has_whole_request(self) -> bool:
        """Whether its body has arrived, too: a client may send half of one and wait."""
        return self.has_request and not self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.made_s = self.loop.time()
        self._limit_the_head()
        if len(self.connections) > max_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_the_limit()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.has_request:
            self._forget_the_limit()
        elif self._head_limit is None and not self.transport.is_closing():
            self._limit_the_head()

    def _limit_the_head(self) -> None:
        self._head_limit = self.loop.call_later(HEAD_S, self._close_if_silent)

    def _forget_the_limit(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _close_if_silent(self) -> None:
        self._head_limit = None
        if not self.has_request:
            self.transport.abort()

    def _make_room(self) -> None:
        """Close the oldest connection without a whole request; if all have one, this one."""
        waiting = [each for each in self.connections if isinstance(each, BoundedConnection)
                   and not each.has_whole_request and not each.transport.is_closing()]
        oldest = min(waiting, key=lambda each: each.made_s, default=self)
        oldest.transport.abort()
        log.warning("more than %d connections are open: the oldest without a request is closed for each new one",
                    max_connections())


class OnceInAWhile(logging.Filter):
    """Lets a message through, and the same one again only after a while, whatever its arguments are."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now_s = str(record.msg)[:40], time.monotonic()
        if now_s - self._last_s.get(key, -LOG_EVERY_S) < LOG_EVERY_S:
            return False
        self._last_s = {**self._last_s, key: now_s} if len(self._last_s) < 100 else {key: now_s}
        return True


once_in_a_while = OnceInAWhile()
log = logging.getLogger("mini_vllm.server.connections")
log.addFilter(once_in_a_while)
