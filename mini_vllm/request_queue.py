"""The waiting queue: priority counts, and so does waiting time.

    effective priority = base priority - seconds waited * aging rate          the smallest is served first

    HIGH 0 ─┬───────────────●─────────▶     at rate 0.1 a LOW request that has waited 20 s
            │           ·                   is level with a HIGH one that has just arrived,
    NORMAL 1│      ·                        and goes first, because it arrived first
            │  ·
    LOW 2 ──●─────────────────────────▶ seconds waited

All requests age at the same rate, so two requests never change places while they wait: their order is fixed from the
moment both are waiting. ``base + arrival * rate`` gives this order permanently, and a plain heap maintains it in O(log
n); nothing is sorted again as time passes.

**The bound.** A request of base priority p that arrives at time a is overtaken only by requests that arrive before ``a
+ p / rate``: a later request has the larger number, even at priority 0. For LOW (2) at rate 0.1 that is 20 s. So a
request waits at most for the requests that were in the queue when it arrived and those that arrive within the next 20
s, however long the stream of HIGH requests continues. With rate 0, strict priority, there is no such bound.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator

from mini_vllm.request import Request

#: Priority levels per second: a LOW request overtakes new HIGH ones after 20 s.
DEFAULT_AGING_RATE = 0.1


class PriorityQueueWithAging:
    """Waiting requests, the next one to serve in front.

    ``put``, ``get`` and ``requeue`` take O(log n). So does ``remove`` on average: occasionally it rebuilds the heap.

    A request ages from its ``arrival_time``, which ``put`` sets if it is None. The request keeps it forever: one that
    was served and returns by ``requeue`` has not become younger.
    """

    def __init__(self, aging_rate: float = DEFAULT_AGING_RATE, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty queue. ``clock`` returns seconds; tests pass their own, so that they need not sleep."""
        if isinstance(aging_rate, bool) or not isinstance(aging_rate, (int, float)) or not 0 <= aging_rate < math.inf:
            raise ValueError(f"aging_rate is {aging_rate!r}, must be priority levels per second, 0 or more and finite")
        self.aging_rate = aging_rate
        self.clock = clock
        #: (*order, ticket, request id). An entry whose ticket is no longer in ``_waiting`` is dead.
        self._heap: list[tuple[float, float, int, str]] = []
        #: Request id → its ticket and the request.
        self._waiting: dict[str, tuple[int, Request]] = {}
        self._tickets_after, self._tickets_before = itertools.count(), itertools.count(-1, -1)

    def put(self, request: Request) -> None:
        """Add a request. Raise ValueError if a request with its id is already waiting."""
        self._check_absent(request)
        if request.arrival_time is None:
            request.arrival_time = self.clock()
        self._push(request, next(self._tickets_after))

    def requeue(self, request: Request) -> None:
        """Return a partly served request to the queue. It keeps its age, and goes before its equals.

        Raise ValueError if a request with its id is already waiting, or if it has never been in a queue.
        """
        self._check_absent(request)
        self._push(request, next(self._tickets_before))

    def get(self) -> Request:
        """Remove and return the request to serve next. Raise IndexError if the queue is empty."""
        request = self.peek()
        heapq.heappop(self._heap)
        del self._waiting[request.request_id]
        return request

    def peek(self) -> Request:
        """Return the request to serve next without removing it. Raise IndexError if the queue is empty."""
        while self._heap:
            ticket, request_id = self._heap[0][-2:]
            if request_id in self._waiting and self._waiting[request_id][0] == ticket:
                return self._waiting[request_id][1]
            heapq.heappop(self._heap)
        raise IndexError("the queue is empty")

    def remove(self, request: Request) -> None:
        """Remove a request from any position. Raise ValueError if it is not waiting here."""
        if request not in self:
            raise ValueError(f"request {request.request_id!r} is not in the queue")
        del self._waiting[request.request_id]
        if len(self._heap) > 2 * len(self._waiting) + 8:  # dead entries never outnumber the living for long
            self._heap = [entry for entry in self._heap if self._waiting.get(entry[-1], (None,))[0] == entry[-2]]
            heapq.heapify(self._heap)

    def effective_priority(self, request: Request) -> float:
        """Return the priority of ``request`` now: its base priority less what it has gained by waiting."""
        waited_s = self.clock() - request.arrival_time if request.arrival_time is not None else 0.0
        return request.priority - waited_s * self.aging_rate

    def order(self, request: Request) -> tuple[float, float]:
        """Return the sort key of ``request``, which never changes. The request with the smaller key is served first.

        The first number compares like the effective priorities at any time, but does not depend on the time. The second
        decides if the first are equal: the request that arrived first is served first, whatever its base priority.
        Raise ValueError for a request that has never been in a queue, and so has no arrival time.
        """
        if request.arrival_time is None:
            raise ValueError(f"request {request.request_id!r} has no arrival time: it has never been in a queue")
        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: Request) -> bool:
        return self._waiting.get(request.request_id, (None, None))[1] is request

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests in the order in which they will be served."""
        entries = sorted((*self.order(request), ticket, request_id)
                         for request_id, (ticket, request) in self._waiting.items())
        return iter([self._waiting[request_id][1] for *_, request_id in entries])

    def _check_absent(self, request: Request) -> None:
        if request.request_id in self._waiting:
            raise ValueError(f"request id {request.request_id!r} is in the queue already")

    def _push(self, request: Request, ticket: int) -> None:
        order, arrival_time = self.order(request)
        if not math.isfinite(arrival_time):
            raise ValueError(f"request {request.request_id!r}: arrival_time is {arrival_time}, must be finite")
        self._waiting[request.request_id] = ticket, request
        heapq.heappush(self._heap, (order, arrival_time, ticket, request.request_id))
