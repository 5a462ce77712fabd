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
        raise NotImplementedError("Task 1: PriorityQueueWithAging.__init__")
        #: The entries (*order, ticket, request). No two have the same ticket, so requests are never compared.
        self._heap: list[tuple[float, float, int, Request]] = []
        #: Request id → its ticket, and itself. Only who waits is here.
        self._waiting: dict[str, tuple[int, Request]] = {}
        #: ``next(self._tickets)`` is larger than all tickets before.
        self._tickets = itertools.count()

    # ---- Task 1: what waiting is worth

    def effective_priority(self, request: Request) -> float:
        """Its priority now: the base (``request.priority``), less what it has gained by waiting since it arrived.

        A request without an ``arrival_time`` (None) has not waited. 0.0 is a time like any other. One whose arrival is
        still to come has waited less than 0 seconds, and its number is above its base. Nothing is stored: asked later,
        the answer is another.
        """
        raise NotImplementedError("Task 1: PriorityQueueWithAging.effective_priority")

    def order(self, request: Request) -> tuple[float, float]:
        """What puts requests in order, whenever it is asked: of two, the one with the smaller is served first.

        The first number compares as the effective priorities do, at any time, but does not depend on the time. The
        second decides when the first are equal: who came first is served first, whatever its base.
        Only asked of requests that have an ``arrival_time``, as all have that were ever put: no need to check.
        """
        raise NotImplementedError("Task 1: PriorityQueueWithAging.order")

    # ---- Task 2: in and out

    def put(self, request: Request) -> None:
        """Take a request in. O(log n).

        After: it has an ``arrival_time``; one that it brought along is kept, and 0.0 is a time like any other. Of
        requests with the same ``order``, the one that was put first is served first.
        Raises ValueError if a request of that id is waiting already (the message names the id), or if the
        ``arrival_time`` that it brought is not finite (the message has the value); nothing changes then.
        """
        raise NotImplementedError("Task 2: PriorityQueueWithAging.put")

    def peek(self) -> Request:
        """The request to serve next; it stays. O(1). Raises IndexError if nobody waits.

        Task 4 comes back here: the first entry of the heap may be dead then. Drop it and look again.
        """
        raise NotImplementedError("Task 2: PriorityQueueWithAging.peek")

    def get(self) -> Request:
        """Take out the request to serve next. O(log n). Raises IndexError if nobody waits."""
        raise NotImplementedError("Task 2: PriorityQueueWithAging.get")

    def __len__(self) -> int:
        """How many requests wait. O(1)."""
        raise NotImplementedError("Task 2: PriorityQueueWithAging.__len__")

    # ---- Task 3: coming back

    def requeue(self, request: Request) -> None:
        """Take back a request that was served in part. It keeps its age, and goes before its equals. O(log n).

        Its equals are those with the same ``order``; it overtakes nobody who has a smaller one. Of equals that come
        back, the one that comes back last goes first: a scheduler takes its victims from behind.
        Raises ValueError, with the id, if a request of that id is waiting already, or if this one has no
        ``arrival_time``, so that it never was in a queue; nothing changes then.
        """
        raise NotImplementedError("Task 3: PriorityQueueWithAging.requeue")

    # ---- Task 4: leaving from the middle

    def __contains__(self, request: Request) -> bool:
        """Whether this very request waits. Another one of the same id is another request. O(1)."""
        raise NotImplementedError("Task 4: PriorityQueueWithAging.__contains__")

    def remove(self, request: Request) -> None:
        """Take out a request from wherever it stands. O(log n) on average.

        Raises ValueError, with the id, if this very request does not wait here; nothing changes then.
        A heap can only give up its first entry cheaply, so leave the entry where it is, *dead*, and let ``peek`` drop
        it when it comes to the front. A dead entry never speaks for anybody, not even for a request of the same id that
        is put in later.
        Dead entries that never reach the front must not pile up. When there are more than 8 more dead entries than
        living ones, rebuild the heap from the living. (The tests accept any margin from 0 to 16.)
        A rebuild is O(n), and happens once in n removals.
        """
        raise NotImplementedError("Task 4: PriorityQueueWithAging.remove")

    # ---- Task 5: looking at all of them

    def __iter__(self) -> Iterator[Request]:
        """The waiting requests in the order in which they will be served. O(n log n).

        They are those of the moment of the call: the queue may change while somebody goes through them.
        """
        raise NotImplementedError("Task 5: PriorityQueueWithAging.__iter__")
