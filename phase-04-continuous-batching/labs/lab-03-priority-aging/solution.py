"""Which request is next: a queue in which priority counts, and waiting counts too.

    effective priority = base priority - seconds waited * aging rate          the smallest is served first

       LOW 2 │●                             at rate 0.1 a LOW request that has waited 20 s
             │    ·                         is level with a HIGH one that has just come,
    NORMAL 1 │        ·                     and goes first, because it came first
             │            ·
      HIGH 0 │                ●
             └─────────────────────▶ seconds waited
              0       10      20

All requests age at the same rate, so two of them never change places while they wait. A number that does not change
puts them in order for good, and a plain heap does the rest in O(log n). Nothing is sorted again as time goes by.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator

from mini_vllm.request import Request

#: Priority levels per second: a LOW request overtakes fresh HIGH ones after 20 s.
DEFAULT_AGING_RATE = 0.1


def _check_aging_rate(aging_rate: float) -> None:
    """Given. Raise ValueError unless ``aging_rate`` is 0 or more and finite. NaN is neither."""
    if not 0 <= aging_rate < math.inf:
        raise ValueError(f"aging_rate is {aging_rate!r}, must be priority levels per second, 0 or more and finite")


def _check_arrival_time(request: Request) -> None:
    """Given. Raise ValueError if ``request`` has an ``arrival_time`` that is not finite. None is allowed."""
    if request.arrival_time is not None and not math.isfinite(request.arrival_time):
        raise ValueError(f"request {request.request_id!r}: arrival_time is {request.arrival_time}, must be finite")


class PriorityQueueWithAging:
    """Waiting requests, the one to serve next in front.

    However many wait, no call looks at all of them: ``put``, ``get``, ``requeue`` and ``remove`` are O(log n),
    ``peek``, ``len`` and ``in`` O(1). Only going through the queue, and an occasional ``remove``, cost more.

    A request ages from its ``arrival_time``, which ``put`` sets if it has none. It keeps that for good: one that was
    served and comes back by ``requeue`` is as old as ever.
    """

    def __init__(self, aging_rate: float = DEFAULT_AGING_RATE, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives the seconds of now, each time it is called. Tests pass their own, so they need not sleep.

        After: both arguments are attributes, as they were given. At a rate of 0 no request ages.
        Raises ValueError for what ``_check_aging_rate`` refuses.
        """
        # TASK 1: PriorityQueueWithAging.__init__
        _check_aging_rate(aging_rate)
        self.aging_rate = aging_rate
        self.clock = clock
        # END TASK
        #: The entries (*order, ticket, request). No two have the same ticket, so requests are never compared.
        self._heap: list[tuple[float, float, int, Request]] = []
        #: Request id → its ticket, and itself. Only waiting requests are here.
        self._waiting: dict[str, tuple[int, Request]] = {}
        #: ``next(self._tickets)`` is larger than all tickets before.
        self._tickets = itertools.count()
        # SOLUTION ONLY
        self._tickets_before = itertools.count(-1, -1)
        # END SOLUTION ONLY

    # ---- Task 1: what waiting is worth

    def effective_priority(self, request: Request) -> float:
        """Its priority now: the base (``request.priority``), less what it has gained by waiting since it arrived.

        A request without an ``arrival_time`` (None) has not waited; 0.0 is a time like any other. One whose arrival is
        still to come has waited less than 0 seconds, and its number is above its base. Nothing is stored: a later call
        gives another answer.
        """
        # TASK 1: PriorityQueueWithAging.effective_priority
        waited_s = self.clock() - request.arrival_time if request.arrival_time is not None else 0.0
        return request.priority - waited_s * self.aging_rate
        # END TASK

    def order(self, request: Request) -> tuple[float, float]:
        """What puts requests in order, whenever it is asked: of two, the one with the smaller is served first.

        The first number compares as the effective priorities do, at any time, but does not depend on the time. The
        second decides if the first are equal: the request that came first is served first, whatever its base.
        Only called for requests that have an ``arrival_time``, as all have that were ever put: no need to check.
        """
        # TASK 1: PriorityQueueWithAging.order
        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time
        # END TASK

    # ---- Task 2: in and out

    def put(self, request: Request) -> None:
        """Take a request in. O(log n).

        After:
        - it has an ``arrival_time``: the one that it brought along (0.0 is a time like any other), or else now
        - of requests with the same ``order``, the one that was put first is served first
        Raises:
        - ValueError for what ``_check_arrival_time`` refuses
        - ValueError, with the id, if a request of that id is waiting already
        - in both cases nothing has changed, neither here nor in the request

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
        """The request to serve next; it stays. O(1). Raises IndexError if no request waits.

        Task 4 comes back here: the first entry of the heap may be dead then. Drop it and look again.
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
        """Take out the request to serve next, and return it. O(log n). Raises IndexError if no request waits."""
        # TASK 2: PriorityQueueWithAging.get
        request = self.peek()
        heapq.heappop(self._heap)
        del self._waiting[request.request_id]
        return request
        # END TASK

    def __len__(self) -> int:
        """How many requests wait. O(1)."""
        # TASK 2: PriorityQueueWithAging.__len__
        return len(self._waiting)
        # END TASK

    # ---- Task 3: coming back

    def requeue(self, request: Request) -> None:
        """Take back a request that was served in part. It keeps its age, and goes before its equals. O(log n).

        Its equals are the requests with the same ``order``.

        After:
        - its ``arrival_time`` is what it was
        - it is served before its equals, and overtakes no request with a smaller ``order``
        - of equals that come back, the one that comes back last goes first: a scheduler preempts the last one first
        Raises:
        - ValueError, with the id, if a request of that id is waiting already
        - ValueError, with the id, if it has no ``arrival_time``, so that it never was in a queue
        - in both cases nothing has changed, neither here nor in the request

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
            raise ValueError(f"request {request.request_id!r} has no arrival_time: put it in before it can come back")
        self._push(request, next(self._tickets_before))
        # END TASK

    # ---- Task 4: leaving from the middle

    def __contains__(self, request: Request) -> bool:
        """Whether this very request waits. Another one with the same id is another request. O(1)."""
        # TASK 4: PriorityQueueWithAging.__contains__
        return self._waiting.get(request.request_id, (None, None))[1] is request
        # END TASK

    def remove(self, request: Request) -> None:
        """Take out a request from wherever it is. O(log n) on average.

        A heap can only give up its first entry cheaply, so leave the entry where it is, *dead*, and let ``peek`` drop
        it when it comes to the front. Entries that never reach the front must not pile up: rebuild the heap from the
        living entries when too many are dead. A rebuild is O(n), and happens once in n removals.

        After:
        - it is never served; its dead entry speaks for no request that is put in later, not even for one with the same
          id or for this very one
        - the others are served in the same order as before, after a rebuild too
        - the heap has at most 8 more dead entries than living ones (the tests accept any margin from 0 to 16)
        Raises:
        - ValueError, with the id, if this very request does not wait here; nothing has changed then

        Example: 10 requests wait, and 18 entries are dead. The next ``remove`` leaves 9 living entries and 19 dead
        ones: 10 more, so it rebuilds the heap, and 9 entries are left.
        """
        # TASK 4: PriorityQueueWithAging.remove
        if request not in self:
            raise ValueError(f"request {request.request_id!r} is not in the queue")
        del self._waiting[request.request_id]
        if len(self._heap) > 2 * len(self._waiting) + 8:
            self._heap = [entry for entry in self._heap if self._is_alive(*entry[-2:])]
            heapq.heapify(self._heap)
        # END TASK

    # ---- Task 5: looking at all of them

    def __iter__(self) -> Iterator[Request]:
        """The waiting requests in the order in which they will be served. O(n log n).

        They are those of the moment of the call: the queue may change while the caller goes through them.
        """
        # TASK 5: PriorityQueueWithAging.__iter__
        living = [entry for entry in self._heap if self._is_alive(*entry[-2:])]
        return iter([request for *_, request in sorted(living)])
        # END TASK
    # SOLUTION ONLY

    def _check_absent(self, request: Request) -> None:
        if request.request_id in self._waiting:
            raise ValueError(f"request id {request.request_id!r} is in the queue already")

    def _push(self, request: Request, ticket: int) -> None:
        self._waiting[request.request_id] = ticket, request
        heapq.heappush(self._heap, (*self.order(request), ticket, request))

    def _is_alive(self, ticket: int, request: Request) -> bool:
        return self._waiting.get(request.request_id, (None,))[0] == ticket
    # END SOLUTION ONLY
