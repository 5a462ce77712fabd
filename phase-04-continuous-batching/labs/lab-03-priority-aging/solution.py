"""Which request is next: a queue in which both priority and waiting time count.

    effective priority = base priority - seconds waited * aging rate          the smallest is served first

       LOW 2 │●                             at rate 0.1 a LOW request that has waited 20 s
             │    ·                         is level with a HIGH one that has just arrived,
    NORMAL 1 │        ·                     and is served first, because it arrived first
             │            ·
      HIGH 0 │                ●
             └─────────────────────▶ seconds waited
              0       10      20

All requests age at the same rate, so two waiting requests never change places. A number that never changes gives their
order, so a plain heap is enough, with O(log n) per operation. Nothing is sorted again as time passes.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator

from mini_vllm.request import Request

#: Priority levels per second: LOW requests that have waited 20 s are served before new HIGH requests.
DEFAULT_AGING_RATE = 0.1


def _check_aging_rate(aging_rate: float) -> None:
    """Raise ValueError unless ``aging_rate`` is 0 or more and finite. NaN is neither. Given."""
    if not 0 <= aging_rate < math.inf:
        raise ValueError(f"aging_rate is {aging_rate!r}, must be priority levels per second, 0 or more and finite")


def _check_arrival_time(request: Request) -> None:
    """Raise ValueError if ``request`` has an ``arrival_time`` that is not finite. None is allowed. Given."""
    if request.arrival_time is not None and not math.isfinite(request.arrival_time):
        raise ValueError(f"request {request.request_id!r}: arrival_time is {request.arrival_time}, must be finite")


class PriorityQueueWithAging:
    """Waiting requests; the one to serve next is at the front.

    No call looks at all waiting requests: ``put``, ``get``, ``requeue`` and ``remove`` are O(log n), and ``peek``,
    ``len`` and ``in`` are O(1). There are two exceptions: iterating over the queue, and an occasional ``remove``.

    A request ages from its ``arrival_time``, which ``put`` sets if the request has none. The arrival time never changes
    after that, even if the request is served and comes back by ``requeue``.
    """

    def __init__(self, aging_rate: float = DEFAULT_AGING_RATE, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty queue. Each call of ``clock`` returns the current time in seconds; tests pass a fake clock.

        After: both arguments are attributes, exactly as given. At a rate of 0 no request ages.
        Raises ValueError for a rate that ``_check_aging_rate`` refuses.
        """
        # TASK 1: PriorityQueueWithAging.__init__
        _check_aging_rate(aging_rate)
        self.aging_rate = aging_rate
        self.clock = clock
        # END TASK
        #: The entries (*order, ticket, request). No two entries have the same ticket, so requests are never compared.
        self._heap: list[tuple[float, float, int, Request]] = []
        #: Request id → (ticket, request). Contains only waiting requests.
        self._waiting: dict[str, tuple[int, Request]] = {}
        #: ``next(self._tickets)`` is larger than all earlier tickets.
        self._tickets = itertools.count()
        # SOLUTION ONLY
        self._tickets_before = itertools.count(-1, -1)
        # END SOLUTION ONLY

    # ---- Task 1: effective priority and order

    def effective_priority(self, request: Request) -> float:
        """Return the current priority: the base (``request.priority``), minus the seconds waited times the aging rate.

        A request without an ``arrival_time`` (None) has waited 0 seconds; 0.0 is a valid time. If its arrival is in the
        future, the request has waited less than 0 seconds, and the result is above its base. Nothing is stored: a later
        call may return a different result.
        """
        # TASK 1: PriorityQueueWithAging.effective_priority
        waited_s = self.clock() - request.arrival_time if request.arrival_time is not None else 0.0
        return request.priority - waited_s * self.aging_rate
        # END TASK

    def order(self, request: Request) -> tuple[float, float]:
        """Return a constant tuple that orders requests: of two, the one with the smaller tuple is served first.

        The first number orders requests as their effective priorities do, at any time, but does not depend on the time.
        The second number breaks ties: the request that arrived first is served first, regardless of its base. You need
        not check ``arrival_time``: every request that was ever put has one.
        """
        # TASK 1: PriorityQueueWithAging.order
        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time
        # END TASK

    # ---- Task 2: put and get

    def put(self, request: Request) -> None:
        """Add a request to the queue. O(log n).

        After:
        - it has an ``arrival_time``: the one that it already had (0.0 is a valid time), otherwise the current time
        - of requests with the same ``order``, the one that was put first is served first
        Raises:
        - ValueError for an arrival time that ``_check_arrival_time`` refuses
        - ValueError that names the id, if a request with that id is already waiting
        - in both cases nothing has changed, neither in the queue nor in the request

        Example::

            >>> queue = PriorityQueueWithAging(clock=lambda: 7.0)
            >>> queue.put(Request("first", [1]))
            >>> queue.put(Request("second", [1], arrival_time=7.0))
            >>> [(request.request_id, request.arrival_time) for request in (queue.get(), queue.get())]
            [('first', 7.0), ('second', 7.0)]
        """
        # TASK 2: PriorityQueueWithAging.put
        _check_arrival_time(request)
        self._check_absent(request)
        if request.arrival_time is None:
            request.arrival_time = self.clock()
        self._push(request, next(self._tickets))
        # END TASK

    def peek(self) -> Request:
        """Return the request to serve next, without removing it. O(1). Raises IndexError if no request waits.

        In Task 4, extend this method: the first entry of the heap may then be dead. Drop it and look again.
        """
        # TASK 2: PriorityQueueWithAging.peek
        while self._heap:
            *_, ticket, request = self._heap[0]
            if self._is_alive(ticket, request):
                return request
            heapq.heappop(self._heap)
        raise IndexError("the queue is empty: no request waits")
        # END TASK

    def get(self) -> Request:
        """Remove the request to serve next, and return it. O(log n). Raises IndexError if no request waits."""
        # TASK 2: PriorityQueueWithAging.get
        request = self.peek()
        heapq.heappop(self._heap)
        del self._waiting[request.request_id]
        return request
        # END TASK

    def __len__(self) -> int:
        """Return the number of waiting requests. O(1)."""
        # TASK 2: PriorityQueueWithAging.__len__
        return len(self._waiting)
        # END TASK

    # ---- Task 3: requeue

    def requeue(self, request: Request) -> None:
        """Put back a request that was partly served. It keeps its age, and is served before its equals. O(log n).

        Its equals are the requests with the same ``order``.

        After:
        - its ``arrival_time`` has not changed
        - it is served before its equals, but does not overtake any request with a smaller ``order``
        - if several equals come back, the one that comes back last is served first: a scheduler preempts the last one
          first
        Raises:
        - ValueError that names the id, if a request with that id is already waiting
        - ValueError that names the id, if the request has no ``arrival_time``: then it was never in a queue
        - in both cases nothing has changed, neither in the queue nor in the request

        Example::

            >>> queue = PriorityQueueWithAging(clock=lambda: 7.0)
            >>> for name in "abc":
            ...     queue.put(Request(name, [1]))
            >>> a, b = queue.get(), queue.get()
            >>> queue.requeue(b)
            >>> queue.requeue(a)
            >>> [request.request_id for request in queue]
            ['a', 'b', 'c']
        """
        # TASK 3: PriorityQueueWithAging.requeue
        self._check_absent(request)
        if request.arrival_time is None:
            raise ValueError(f"request {request.request_id!r} has no arrival_time: put it before you requeue it")
        self._push(request, next(self._tickets_before))
        # END TASK

    # ---- Task 4: remove

    def __contains__(self, request: Request) -> bool:
        """Return whether this very request waits. Another request with the same id does not count. O(1)."""
        # TASK 4: PriorityQueueWithAging.__contains__
        return self._waiting.get(request.request_id, (None, None))[1] is request
        # END TASK

    def remove(self, request: Request) -> None:
        """Remove a request from any position. O(log n) on average.

        Removing an entry from a heap is cheap only at the front. So leave the entry where it is, *dead*, and let
        ``peek`` drop it when it reaches the front. Dead entries that never reach the front must not pile up: rebuild
        the heap from the live entries when too many are dead. A rebuild is O(n), but happens only once in n removals.

        After:
        - it is never served; its dead entry does not count as an entry of any request that is put later, not even of
          one with the same id or of this very request
        - the other requests are served in the same order as before, even after a rebuild
        - the heap has at most 8 more dead entries than live ones (the tests accept any margin from 0 to 16)
        Raises:
        - ValueError that names the id, if this very request does not wait here; then nothing has changed

        Example: 10 requests wait, and 18 entries are dead. The next ``remove`` leaves 9 live entries and 19 dead ones.
        That is 10 more, so it rebuilds the heap, and 9 entries are left.
        """
        # TASK 4: PriorityQueueWithAging.remove
        if request not in self:
            raise ValueError(f"request {request.request_id!r} is not in the queue")
        del self._waiting[request.request_id]
        if len(self._heap) > 2 * len(self._waiting) + 8:
            self._heap = [entry for entry in self._heap if self._is_alive(*entry[-2:])]
            heapq.heapify(self._heap)
        # END TASK

    # ---- Task 5: iterate

    def __iter__(self) -> Iterator[Request]:
        """Return an iterator over the waiting requests in the order in which they will be served. O(n log n).

        It contains the requests that wait at the moment of the call: the queue may change while the caller iterates.
        """
        # TASK 5: PriorityQueueWithAging.__iter__
        living = [entry for entry in self._heap if self._is_alive(*entry[-2:])]
        return iter([request for *_, request in sorted(living)])
        # END TASK
    # SOLUTION ONLY

    def _check_absent(self, request: Request) -> None:
        if request.request_id in self._waiting:
            raise ValueError(f"request id {request.request_id!r} is already in the queue")

    def _push(self, request: Request, ticket: int) -> None:
        self._waiting[request.request_id] = ticket, request
        heapq.heappush(self._heap, (*self.order(request), ticket, request))

    def _is_alive(self, ticket: int, request: Request) -> bool:
        return self._waiting.get(request.request_id, (None,))[0] == ticket
    # END SOLUTION ONLY
