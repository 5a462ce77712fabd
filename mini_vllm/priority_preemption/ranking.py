"""Which request gives way to which, by base priority and age.

The age of a request is the total time that it has waited.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property

from mini_vllm.request import Request
from mini_vllm.request_queue import PriorityQueueWithAging


class Standing:
    """The running requests before a step. None of them has aged since it was admitted."""

    def __init__(self, running: Sequence[Request], queue: PriorityQueueWithAging, admitted_s: Mapping[str, float],
                 now_s: float, num_protected: int) -> None:
        """Store the running requests and their times.

        ``admitted_s`` gives the time at which each was admitted; a request without an entry has just been admitted.
        ``num_protected`` is the number of sequences that keep their seats against a better request because they are
        older.
        """
        self._running, self._queue, self._admitted_s, self._now_s = running, queue, admitted_s, now_s
        self._num_protected = num_protected
        self._protected: dict[int, set[str]] = {}

    @cached_property
    def worst_priority(self) -> int:
        return max((request.priority for request in self._running), default=0)

    def came_s(self, request: Request) -> float:
        """Return the arrival time of a running request, shifted as if it had waited its total waiting time without a
        break."""
        ran_s = self._now_s - self._admitted_s.get(request.request_id, self._now_s)
        return (request.arrival_time or 0.0) + ran_s

    @cached_property
    def _orders(self) -> dict[str, tuple[float, float]]:
        """Request id → the queue position of a running request if it returned there now."""
        orders = {}
        for request in self._running:
            waiting = copy(request)
            waiting.arrival_time = self.came_s(request)
            orders[request.request_id] = self._queue.order(waiting)
        return orders

    def has_below(self, request: Request) -> bool:
        """Check whether any running request must give way to ``request``."""
        return request.priority < self.worst_priority and any(self._is_below(other, request) for other in self._running)

    def below(self, request: Request) -> list[Request]:
        """Return the requests that must give way to ``request``; the one that would be served last is first."""
        below = [other for other in reversed(self._running) if self._is_below(other, request)]
        return sorted(below, key=self._queue.order, reverse=True)

    def _is_below(self, other: Request, request: Request) -> bool:
        if other.priority <= request.priority:
            return False
        order = self._orders.get(request.request_id) or self._queue.order(request)
        return (self._orders[other.request_id] > order
                or other.request_id not in self._protected_against(request.priority))

    def _protected_against(self, priority: int) -> set[str]:
        """Return the oldest running requests that are worse than ``priority``: they are protected."""
        if priority not in self._protected:
            worse = sorted((other for other in self._running if other.priority > priority),
                           key=lambda other: self._orders[other.request_id])
            ends = itertools.accumulate(other.num_sequences for other in worse)
            self._protected[priority] = {other.request_id for other, end in zip(worse, ends)
                                         if end - other.num_sequences < self._num_protected}
        return self._protected[priority]
