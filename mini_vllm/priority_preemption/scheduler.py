"""The extension of a scheduler that lets running requests give way. It makes room before a step is planned."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mini_vllm.priority_preemption.capacity import Departures, Room, need_of, num_left, promised_to, whole_hits
from mini_vllm.priority_preemption.ranking import Standing
from mini_vllm.request import Request, RequestStatus
from mini_vllm.scheduler import SchedulerOutput

# At run time ``GivingWay`` has no base: a subclass combines it with any scheduler. For the type checker, the base is
# the reference's scheduler.
if TYPE_CHECKING:
    from mini_vllm.scheduler import Scheduler as _Scheduler
else:
    _Scheduler = object

_RUNNING = RequestStatus.RUNNING


class GivingWay(_Scheduler):
    """A scheduler whose running requests give way.

    It uses only those methods and attributes of the scheduler that the engine uses (see ``parts/interfaces.py``).
    """

    #: The engine sets it; a simpler scheduler need not have it.
    max_num_chunk_tokens: int | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Request id → the time at which a running request was admitted.
        self._admitted_s: dict[str, float] = {}

    def schedule(self) -> SchedulerOutput:
        """Make room, then plan.

        A request that gave way and was admitted again at once has lost nothing and is not reported.
        """
        now_s: float = getattr(self.waiting, "clock", time.monotonic)()
        standing = Standing(list(self.running), self.waiting, self._admitted_s, now_s, self._num_protected)
        held = self._hold_back()
        try:
            better = list(self._better_ones(standing))
            gone = self._make_way(better, standing) if better else []
            held = [*self._hold_back(), *held]  # a request that gave way may be older than the better one
            output = self._plan(is_chunk_bound=not better)
        finally:
            for request in reversed(held):
                self.waiting.requeue(request)
        stayed = {request_id: at_s for request_id, at_s in self._admitted_s.items()
                  if request_id not in {request.request_id for request in gone}}
        self._admitted_s = {request.request_id: stayed.get(request.request_id, now_s) for request in self.running}
        told = {*output.requests, *output.preempted, *output.finished}
        output.preempted[:0] = [request for request in gone if request not in told]
        return output

    @property
    def _num_protected(self) -> int:
        """The number of seats that are protected by age: see rule 4."""
        return max(1, self.max_num_seqs // 2)

    def _hold_back(self) -> list[Request]:
        """Remove requests from the queue that precede a better one only by their age, beyond what rule 4 grants them.

        Return them in their order; they are put back once the step is planned.
        """
        if not len(self.waiting):
            return []
        front = self.waiting.peek().priority
        if not any(request.priority < front for request in self.requests.values() if request.status is not _RUNNING):
            return []  # the usual case
        waiting = list(self.waiting)
        best = min(request.priority for request in waiting)
        num_worse = sum(request.num_sequences for request in self.running if request.priority > best)
        held = []
        for request in itertools.takewhile(lambda request: request.priority > best, waiting):
            if num_worse >= self._num_protected:
                self.waiting.remove(request)
                held.append(request)
            num_worse += request.num_sequences
        return held

    def _plan(self, is_chunk_bound: bool) -> SchedulerOutput:
        """Return the scheduler's own plan."""
        max_chunk = self.max_num_chunk_tokens
        self.max_num_chunk_tokens = max_chunk if is_chunk_bound else None
        try:
            return super().schedule()
        finally:
            self.max_num_chunk_tokens = max_chunk

    def _better_ones(self, standing: Standing) -> Iterator[Request]:
        """Yield the prompts to which a running request must give way: running ones, then waiting ones in the order of
        the queue."""
        yield from (request for request in self.running if num_left(request) > 1 and standing.has_below(request))
        if len(self.waiting) and standing.has_below(self.waiting.peek()):
            for request in self.waiting:
                if not standing.has_below(request):
                    return  # no request is passed over
                yield request

    def _make_way(self, better: list[Request], standing: Standing) -> list[Request]:
        """Let running requests give way to the ``better`` ones, until each of these fits or no request is left to give
        way."""
        gone: list[Request] = []
        room = self._room()
        for request in better:
            if request not in self.running:
                below = [other for other in standing.below(request) if other not in gone]
                leaving = self._leaving_for(request, below, room)
                if leaving is None:
                    break  # no request is passed over
                for other in leaving:
                    room = self._let_go(other, room, standing)
                gone += leaving
                room -= need_of(self.kv_cache, request)
            prompts = [other for other in standing.below(request) if other not in gone and num_left(other) > 1]
            while room.num_tokens < 0 and prompts:
                gone.append(prompts.pop(0))
                room = self._let_go(gone[-1], room, standing)
        return gone

    def _leaving_for(self, request: Request, below: list[Request], room: Room) -> list[Request] | None:
        """Return those of ``below`` that must leave for the seats and blocks of ``request``; None if all would not be
        enough."""
        need = need_of(self.kv_cache, request)
        departures = Departures(self.kv_cache, whole_hits(self.kv_cache, request))
        leaving: list[Request] = []
        for other in below:
            if room.has_place_for(need):
                break
            room += departures.go(other)
            leaving.append(other)
        return leaving if room.has_place_for(need) else None

    def _let_go(self, other: Request, room: Room, standing: Standing) -> Room:
        """Preempt ``other``, keeping the age it has from waiting. Return ``room`` plus what it frees."""
        pool, promised = self.kv_cache.block_pool, promised_to(self.kv_cache, other)
        num_free_before = pool.get_num_free_blocks()
        other.arrival_time = standing.came_s(other)
        self.preempt(other)
        return room + promised + Room(0, pool.get_num_free_blocks() - num_free_before, 0)

    def _room(self) -> Room:
        """Return the seats, blocks and tokens that the running requests do not need in the next step."""
        num_free = self.kv_cache.block_pool.get_num_free_blocks() - getattr(self, "num_watermark_blocks", 0)
        room = Room(self.max_num_seqs, num_free, self.max_num_batched_tokens)
        for request in self.running:
            room -= promised_to(self.kv_cache, request)
        return room
