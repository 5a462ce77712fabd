"""Who is next: a queue in which priority counts, and waiting counts too.

    effective priority = base priority - seconds waited * aging rate          the smallest is served first

       LOW 2 │●                             at rate 0.1 a LOW request that has waited 20 s
             │    ·                         stands level with a HIGH one that has just come,
    NORMAL 1 │        ·                     and goes first, because it came first
             │            ·
      HIGH 0 │                ●
             └─────────────────────▶ seconds waited
              0       10      20

All requests age at the same rate, so two of them never change places while they wait. Some number that does not change
orders them for good, and a plain heap does the rest in O(log n). Nothing is sorted again as time goes by.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator

from mini_vllm.request import Request

#: Priority levels a second: a LOW request overtakes fresh HIGH ones after 20 s.
DEFAULT_AGING_RATE = 0.1


class PriorityQueueWithAging:
    """Waiting requests, the one to serve next in front.

    However many wait, no call looks at all of them: ``put``, ``get``, ``requeue`` and ``remove`` are O(log n),
    ``peek``, ``len`` and ``in`` O(1). Only going through the queue, and a ``remove`` now and then, costs more.

    A request ages from its ``arrival_time``, which ``put`` sets if it has none. It keeps that for good: one that was
    served and comes back by ``requeue`` is as old as ever.
    """

    def __init__(self, aging_rate: float = DEFAULT_AGING_RATE, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives the seconds of now, each time it is called. Tests pass their own, so they need not sleep.

        After: both are attributes, as they were given. A rate of 0 is a rate: nobody ages.
        Raises ValueError, with the value and the bound, unless ``aging_rate`` is 0 or more and finite. NaN is neither.
        """
        if math.isnan(aging_rate) or math.isinf(aging_rate) or aging_rate < 0:
            raise ValueError(f"aging_rate must be 0 or more, and finite; it is {aging_rate}")
        self.aging_rate, self.clock = aging_rate, clock
        #: Base priority → a heap of [*order, ticket, request], with None for a request that was removed.
        self._heaps: dict[int, list[list]] = {}
        #: Request id → its entry. Only who waits is here.
        self._entries: dict[str, list] = {}
        self._tickets = itertools.count(1)

    def _enter(self, request: Request, ticket: int) -> None:
        entry = [*self.order(request), ticket, request]
        self._entries[request.request_id] = entry
        heapq.heappush(self._heaps.setdefault(int(request.priority), []), entry)

    def _first_heap(self) -> list[list]:
        if not self._entries:
            raise IndexError("the queue is empty")
        first = None
        for heap in self._heaps.values():
            while heap and heap[0][3] is None:
                heapq.heappop(heap)
            if heap and (first is None or heap[0] < first[0]):
                first = heap
        return first

    # ---- Task 1: what waiting is worth

    def effective_priority(self, request: Request) -> float:
        """Its priority now: the base (``request.priority``), less what it has gained by waiting since it arrived.

        A request without an ``arrival_time`` (None) has not waited. 0.0 is a time like any other. One whose arrival is
        still to come has waited less than 0 seconds, and its number is above its base. Nothing is stored: asked later,
        the answer is another.
        """
        now = self.clock()
        since = now if request.arrival_time is None else request.arrival_time
        return request.priority + (since - now) * self.aging_rate

    def order(self, request: Request) -> tuple[float, float]:
        """What puts requests in order, whenever it is asked: of two, the one with the smaller is served first.

        The first number compares as the effective priorities do, at any time, but does not depend on the time. The
        second decides when the first are equal: who came first is served first, whatever its base.
        Only asked of requests that have an ``arrival_time``, as all have that were ever put: no need to check.
        """
        return request.priority + self.aging_rate * request.arrival_time, request.arrival_time

    # ---- Task 2: in and out

    def put(self, request: Request) -> None:
        """Take a request in. O(log n).

        After: it has an ``arrival_time``; one that it brought along is kept, and 0.0 is a time like any other. Of
        requests with the same ``order``, the one that was put first is served first.
        Raises ValueError if a request of that id is waiting already (the message names the id), or if the
        ``arrival_time`` that it brought is not finite (the message has the value); nothing changes then.
        """
        if request.request_id in self._entries:
            raise ValueError(f"{request.request_id!r} waits already")
        if request.arrival_time is None:
            request.arrival_time = self.clock()
        if not -math.inf < request.arrival_time < math.inf:
            raise ValueError(f"{request.request_id!r} has the arrival_time {request.arrival_time}, which is not finite")
        self._enter(request, next(self._tickets))

    def peek(self) -> Request:
        """The request to serve next; it stays. O(1). Raises IndexError if nobody waits.

        Task 4 comes back here: the first entry of the heap may be dead then. Drop it and look again.
        """
        return self._first_heap()[0][3]

    def get(self) -> Request:
        """Take out the request to serve next. O(log n). Raises IndexError if nobody waits."""
        request = heapq.heappop(self._first_heap())[3]
        self._entries.pop(request.request_id)
        return request

    def __len__(self) -> int:
        """How many requests wait. O(1)."""
        return len(self._entries)

    # ---- Task 3: coming back

    def requeue(self, request: Request) -> None:
        """Take back a request that was served in part. It keeps its age, and goes before its equals. O(log n).

        Its equals are those with the same ``order``; it overtakes nobody who has a smaller one. Of equals that come
        back, the one that comes back last goes first: a scheduler takes its victims from behind.
        Raises ValueError, with the id, if a request of that id is waiting already, or if this one has no
        ``arrival_time``, so that it never was in a queue; nothing changes then.
        """
        if request.request_id in self._entries or request.arrival_time is None:
            why = "waits already" if request.request_id in self._entries else "has no arrival_time"
            raise ValueError(f"{request.request_id!r} cannot come back: it {why}")
        self._enter(request, -next(self._tickets))

    # ---- Task 4: leaving from the middle

    def __contains__(self, request: Request) -> bool:
        """Whether this very request waits. Another one of the same id is another request. O(1)."""
        return request.request_id in self._entries and self._entries[request.request_id][3] is request

    def remove(self, request: Request) -> None:
        """Take out a request from wherever it stands. O(log n) on average.

        Raises ValueError, with the id, if this very request does not wait here; nothing changes then.
        A heap can only give up its first entry cheaply, so leave the entry where it is, *dead*, and let ``peek`` drop
        it when it comes to the front. A dead entry never speaks for anybody, not even for a request of the same id that
        is put in later.
        Entries that never come to the front must not pile up: when more of them are dead than alive, and a few more (8,
        say; 100 are too many), make the heap anew from the living. That is O(n), and happens once in n removals.
        """
        if request not in self:
            raise ValueError(f"{request.request_id!r} does not wait here")
        self._entries.pop(request.request_id)[3] = None
        if sum(map(len, self._heaps.values())) > 2 * len(self._entries) + 8:
            for heap in self._heaps.values():
                heap[:] = [entry for entry in heap if entry[3] is not None]
                heapq.heapify(heap)

    # ---- Task 5: looking at all of them

    def __iter__(self) -> Iterator[Request]:
        """The waiting requests in the order in which they will be served. O(n log n).

        They are those of the moment of the call: the queue may change while somebody goes through them.
        """
        living = [[entry for entry in sorted(heap) if entry[3] is not None] for heap in self._heaps.values()]
        return iter([entry[3] for entry in heapq.merge(*living)])
