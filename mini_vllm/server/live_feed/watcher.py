"""A watcher of the engine, which lives in an event loop."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from mini_vllm.engine_thread import post

#: A watcher that is further behind than this many events is sent the whole picture again instead.
MAX_EVENTS_BEHIND = 256


class Watcher:
    """One page's queue of messages.

    ``tell`` and ``tell_anew`` are called in the engine's thread and never wait; all other methods run in the loop.
    """

    def __init__(self, max_behind: int = MAX_EVENTS_BEHIND) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_behind = max_behind
        self._messages: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        #: The page is closed; the engine's thread forgets the watcher at the next step.
        self.is_gone = False
        #: It missed events, so the next message must be the whole picture.
        self.is_behind = False

    def tell(self, message: dict[str, Any]) -> None:
        post(self._loop, functools.partial(self._take, message))

    def tell_anew(self, message: dict[str, Any]) -> None:
        """Send the whole picture. It replaces all unread messages."""
        post(self._loop, functools.partial(self._take_anew, message))

    def _take(self, message: dict[str, Any]) -> None:
        if self.is_behind:
            return
        if len(self._messages) >= self._max_behind:
            self.is_behind = True
            self._messages.clear()
        else:
            self._messages.append(message)
        self._news.set()

    def _take_anew(self, message: dict[str, Any]) -> None:
        self.is_behind = False
        self._messages[:] = [message]
        self._news.set()

    async def next(self, timeout_s: float) -> list[dict[str, Any]]:
        """Wait for messages, and return all since the last call; return none after ``timeout_s``."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except asyncio.TimeoutError:
            return []
        self._news.clear()
        messages, self._messages = self._messages, []
        return messages
