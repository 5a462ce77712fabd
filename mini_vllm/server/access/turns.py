"""Who is next, where requests wait for work that only a few may do at once: templates, schemas, grammars, texts."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mini_vllm.request import Priority

#: The priority of a request, and its key; None if the server has no keys.
Holder = tuple[Priority, str | None]
ANYONE: Holder = (Priority.NORMAL, None)
#: The number of requests of one key and priority that may wait in one place.
MAX_WAITING = 256


class Turns:
    """Gives turns: the best priority first, and within a priority the keys in turn. No key has all turns at once."""

    def __init__(self, most: int = 2, max_waiting: int = MAX_WAITING) -> None:
        self._most, self._max_waiting = most, max_waiting
        self._running: Counter[str | None] = Counter()
        #: The key that was served longest ago comes first.
        self._waiting: dict[Holder, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, holder: Holder) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the block is left. Raise ApiError (429) if too many of the key wait."""
        queue = self._waiting.setdefault(holder, deque())
        if len(queue) >= self._max_waiting:
            # The processes of templates and schemas import this module, and need no web framework.
            from mini_vllm.server.access.concurrency_limit import RETRY_AFTER_S
            from mini_vllm.server.errors import retry_later
            raise retry_later(429, f"{len(queue)} requests of this key wait to be prepared, the limit is "
                              f"{self._max_waiting}; try again later", "queue_full", RETRY_AFTER_S)
        place = asyncio.get_running_loop().create_future()
        queue.append(place)
        self._go_on()
        try:
            await place
            yield
        finally:
            if place in queue:
                queue.remove(place)
            elif not place.cancelled():
                self._running[holder[1]] -= 1
            self._go_on()

    def _go_on(self) -> None:
        """Give turns to those who wait, as far as there are any."""
        while sum(self._running.values()) < self._most:
            free = [holder for holder, queue in self._waiting.items() if queue and self._may_run(holder)]
            if not free:
                return
            holder = min(free, key=lambda each: each[0])
            queue = self._waiting.pop(holder)
            place = queue.popleft()
            if queue:
                self._waiting[holder] = queue
            if not place.done():  # the client is still there
                place.set_result(None)
                self._running[holder[1]] += 1

    def _may_run(self, holder: Holder) -> bool:
        return holder[1] is None or self._running[holder[1]] < max(1, self._most - 1)
