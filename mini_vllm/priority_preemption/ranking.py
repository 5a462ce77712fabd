"""Who gives way to whom: base priority, and age. The age of a request is the time that it has waited, in all."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property

from mini_vllm.request import Request
from mini_vllm.request_queue import PriorityQueueWithAging


class Standing:
    """Those that run, before a step: none of them has aged since it was admitted."""

    def __init__(self, running: Sequence[Request], queue: PriorityQueueWithAging, admitted_s: Mapping[str, float],
                 now_s: float, num_protected: int) -> None:
        """``admitted_s``: when each was admitted. One that is not in it has just been. ``num_protected``: how many
        sequences keep their seats against a better request because they are older."""
        self._running, self._queue, self._admitted_s, self._now_s = running, queue, admitted_s, now_s
        self._num_protected = num_protected
        self._protected: dict[int, set[str]] = {}

    @cached_property
    def worst_priority(self) -> int:
        return max((request.priority for request in self._running), default=0)

    def came_s(self, request: Request) -> float:
        """When a running request would have come, if it had waited without a break for as long as it has in all."""
        ran_s = self._now_s - self._admitted_s.get(request.request_id, self._now_s)
        return (request.arrival_time or 0.0) + ran_s

    @cached_property
    def _orders(self) -> dict[str, tuple[float, float]]:
        """Where each would stand in the queue, if it went back there now."""
        orders = {}
        for request in self._running:
            waiting = copy(request)
            waiting.arrival_time = self.came_s(request)
            orders[request.request_id] = self._queue.order(waiting)
        return orders

    def has_below(self, request: Request) -> bool:
        """Whether anybody is to give way to ``request``."""
        return request.priority < self.worst_priority and any(self._is_below(other, request) for other in self._running)

    def below(self, request: Request) -> list[Request]:
        """Those that are to give way to ``request``; the one that would be served last is the first to go."""
        below = [other for other in reversed(self._running) if self._is_below(other, request)]
        return sorted(below, key=self._queue.order, reverse=True)

    def _is_below(self, other: Request, request: Request) -> bool:
        if other.priority <= request.priority:
            return False
        order = self._orders.get(request.request_id) or self._queue.order(request)
        return (self._orders[other.request_id] > order
                or other.request_id not in self._protected_against(request.priority))

    def _protected_against(self, priority: int) -> set[str]:
        """Of those that run and are worse than ``priority``, the oldest."""
        if priority not in self._protected:
            worse = sorted((other for other in self._running if other.priority > priority),
                           key=lambda other: self._orders[other.request_id])
            ends = itertools.accumulate(other.num_sequences for other in worse)
            self._protected[priority] = {other.request_id for other, end in zip(worse, ends)
                                         if end - other.num_sequences < self._num_protected}
        return self._protected[priority]
