"""Common mistakes in a queue with aging, and the test that catches each of them."""

from course.mutants import Mutant

PUT = """        _check_arrival_time(request)
        self._check_absent(request)
        if request.arrival_time is None:
            request.arrival_time = self.clock()
        self._push(request, next(self._tickets))
"""

MUTANTS = [
    Mutant(
        name="rate-0-means-the-default",
        story="0 is falsy: a caller that asks for strict priority gets aging.",
        replace="        self.aging_rate = aging_rate\n",
        by="        self.aging_rate = aging_rate or DEFAULT_AGING_RATE\n",
        killed_by="test_task_1_a_rate_of_0_is_strict_priority",
        breaks="PriorityQueueWithAging.__init__: At a rate of 0 no request ages",
    ),
    Mutant(
        name="the-clock-is-read-once",
        story="Stores the time at which the queue was created, so no request ever waits.",
        replace="        self.clock = clock\n",
        by="        now_s = clock()\n        self.clock = lambda: now_s\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
        breaks="PriorityQueueWithAging.__init__: Each call of clock returns the current time in seconds",
    ),
    Mutant(
        name="who-came-at-0-has-not-waited",
        story="`if request.arrival_time`: 0.0 is falsy, so the first request of the day never ages.",
        replace="if request.arrival_time is not None else 0.0\n",
        by="if request.arrival_time else 0.0\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
        breaks="PriorityQueueWithAging.effective_priority: 0.0 is a valid time",
    ),
    Mutant(
        name="the-larger-number-first",
        story="Treats 2 as more urgent than 0: LOW is served before HIGH.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return -request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        killed_by="test_task_2_the_smaller_number_is_served_first",
        breaks=("PriorityQueueWithAging.order: of two, the one with the smaller tuple is served first",
                "invariant 1: The next request to be served has the smallest base - waited * rate"),
    ),
    Mutant(
        name="the-order-ages-backwards",
        story="Copies the minus sign of the effective priority: a request that arrives later is served earlier.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return request.priority - request.arrival_time * self.aging_rate, request.arrival_time\n",
        killed_by="test_task_1_order_agrees_with_effective_priority_and_never_changes",
        breaks="PriorityQueueWithAging.order: The first number orders requests as their effective priorities do, at "
               "any time",
    ),
    Mutant(
        name="of-equals-the-more-important-first",
        story="Breaks a tie by base priority, so that LOW is overtaken once more than the bound allows.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return request.priority + request.arrival_time * self.aging_rate, request.priority\n",
        killed_by="test_task_1_of_equal_effective_priorities_the_first_come_goes_first",
        breaks=("PriorityQueueWithAging.order: the request that arrived first is served first, regardless of its base",
                "invariant 4: can be overtaken only by requests that arrive before a + p / rate",
                "invariant 1: if several are equal, the one that arrived first"),
    ),
    Mutant(
        name="frozen-at-put",
        story="Sorts by the effective priority at the time of put. No request has waited then, so no request ages.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        key = self.effective_priority(request), request.arrival_time\n"
           "        heapq.heappush(self._heap, (*key, ticket, request))\n",
        killed_by="test_task_2_a_request_that_waited_long_enough_goes_before_a_new_high",
        breaks=("invariant 1: The next request to be served has the smallest base - waited * rate",
                "invariant 4: can be overtaken only by requests that arrive before a + p / rate"),
    ),
    Mutant(
        name="an-arrival-at-0-is-no-arrival",
        story="`if not request.arrival_time`: a request that arrived at 0.0 s gets a new arrival time.",
        replace="        if request.arrival_time is None:\n            request.arrival_time = self.clock()\n",
        by="        if not request.arrival_time:\n            request.arrival_time = self.clock()\n",
        killed_by="test_task_2_put_sets_the_arrival_time_only_if_there_is_none",
        breaks=("PriorityQueueWithAging.put: the one that it already had (0.0 is a valid time), otherwise the "
                "current time",
                "invariant 3: put does not change an existing arrival time"),
    ),
    Mutant(
        name="ties-by-request-id",
        story="Puts the id before the ticket: of equals, the one with the smaller id is served first.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        heapq.heappush(self._heap, (*self.order(request), request.request_id, ticket, request))\n",
        killed_by="test_task_2_equals_are_served_in_the_order_in_which_they_were_put",
        breaks="PriorityQueueWithAging.put: of requests with the same order, the one that was put first is served "
               "first",
    ),
    Mutant(
        name="requests-are-compared",
        story="Has no ticket before the request: the first tie raises a TypeError.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        heapq.heappush(self._heap, (*self.order(request), request, ticket, request))\n",
        killed_by="test_task_2_equals_are_served_in_the_order_in_which_they_were_put",
        breaks="PriorityQueueWithAging.put: of requests with the same order, the one that was put first is served "
               "first",
    ),
    Mutant(
        name="peek-takes",
        story="Pops the request to look at it, and forgets to put it back.",
        replace="            if self._is_alive(ticket, request):\n                return request\n",
        by="            if self._is_alive(ticket, request):\n"
           "                if len(self._heap) > 1:\n"
           "                    heapq.heappop(self._heap)\n"
           "                return request\n",
        killed_by="test_task_2_peek_shows_what_get_will_take",
        breaks="PriorityQueueWithAging.peek: Return the request to serve next, without removing it",
    ),
    Mutant(
        name="none-from-an-empty-queue",
        story="No request waits, and get() returns None; the caller fails later.",
        replace="        request = self.peek()\n        heapq.heappop(self._heap)\n",
        by="        if not self._waiting:\n            return None\n"
           "        request = self.peek()\n        heapq.heappop(self._heap)\n",
        killed_by="test_task_2_an_empty_queue_says_so",
        breaks="PriorityQueueWithAging.get: Raises IndexError if no request waits",
    ),
    Mutant(
        name="sorted-at-every-look",
        story="Sorts again because time has passed: correct, but O(n) comparisons each time.",
        replace="        while self._heap:\n            *_, ticket, request = self._heap[0]\n",
        by="        self._heap.sort()\n        while self._heap:\n            *_, ticket, request = self._heap[0]\n",
        killed_by="test_task_2_put_and_get_cost_log_n",
        breaks=("PriorityQueueWithAging.get: O(log n)",
                "module: Nothing is sorted again as time passes"),
    ),
    Mutant(
        name="requeue-resets-the-age",
        story="Treats the request as if it had just arrived: a request that is preempted often enough never ends.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        request.arrival_time = self.clock()\n        self._push(request, next(self._tickets_before))\n",
        killed_by="test_task_3_a_requeued_request_is_as_old_as_ever",
        breaks=("PriorityQueueWithAging.requeue: its arrival_time has not changed",
                "invariant 3: and neither does requeue"),
    ),
    Mutant(
        name="requeue-goes-behind-its-equals",
        story="Gives the request a normal ticket, so equals that have not started are served before it.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        self._push(request, next(self._tickets))\n",
        killed_by="test_task_3_a_preempted_request_runs_again_before_its_equals",
        breaks="PriorityQueueWithAging.requeue: it is served before its equals",
    ),
    Mutant(
        name="requeue-goes-before-everybody",
        story="appendleft, as in a plain queue: a preempted LOW request overtakes every HIGH one.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        ticket = next(self._tickets_before)\n"
           "        self._waiting[request.request_id] = ticket, request\n"
           "        heapq.heappush(self._heap, (-math.inf, request.arrival_time, ticket, request))\n",
        killed_by="test_task_3_a_requeued_request_does_not_go_before_its_betters",
        breaks="PriorityQueueWithAging.requeue: does not overtake any request with a smaller order",
    ),
    Mutant(
        name="a-ghost-is-served",
        story="peek trusts the heap: a removed request reaches the front and is served.",
        replace="            if self._is_alive(ticket, request):\n                return request\n",
        by="            if True:\n                return request\n",
        killed_by="test_task_4_remove_takes_out_one_and_only_that",
        breaks=("PriorityQueueWithAging.peek: the first entry of the heap may then be dead. Drop it and look again",
                "invariant 5: A removed request is never served"),
    ),
    Mutant(
        name="alive-because-of-its-id",
        story="Checks whether the id waits, not whether this entry does: if the id is put again, the dead entry "
              "becomes live.",
        replace="        return self._waiting.get(request.request_id, (None,))[0] == ticket\n",
        by="        return request.request_id in self._waiting\n",
        killed_by="test_task_4_a_new_request_of_a_removed_id_stands_at_its_own_place",
        breaks="PriorityQueueWithAging.remove: not even of one with the same id or",
    ),
    Mutant(
        name="alive-because-its-request-waits",
        story="Checks whether the request waits, not whether this entry does: if the request is put again, its dead "
              "entry becomes live.",
        replace="        return self._waiting.get(request.request_id, (None,))[0] == ticket\n",
        by="        return self._waiting.get(request.request_id, (None, None))[1] is request\n",
        killed_by="test_task_5_random_traffic_as_the_naive_queue_has_it_and_within_the_bound",
        breaks="PriorityQueueWithAging.remove: not even of one with the same id or of this very request",
    ),
    Mutant(
        name="dead-entries-pile-up",
        story="Only peek drops dead entries; those behind a live entry that stays at the front are never dropped.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if False:\n",
        killed_by="test_task_4_dead_entries_do_not_pile_up",
        breaks=("PriorityQueueWithAging.remove: Dead entries that never reach the front must not pile up",
                "invariant 5: After a remove the heap has at most 8 more dead entries than live ones"),
    ),
    Mutant(
        name="a-heap-with-holes",
        story="Drops the dead entries, and treats the rest as a heap without heapify.",
        replace="            heapq.heapify(self._heap)\n",
        by="",
        killed_by="test_task_4_remove_does_not_search_and_keeps_the_order",
        breaks="PriorityQueueWithAging.remove: the other requests are served in the same order as before, even after "
               "a rebuild",
    ),
    Mutant(
        name="len-counts-the-dead",
        story="Also counts dead entries: len says that a request waits, but peek says that none does.",
        replace="        return len(self._waiting)\n",
        by="        return len(self._heap)\n",
        killed_by="test_task_4_remove_takes_out_one_and_only_that",
        breaks="PriorityQueueWithAging.__len__: Return the number of waiting requests",
    ),
    Mutant(
        name="looks-when-it-is-first-asked",
        story="Is a generator: it runs no line before the first next(), and by then the queue has changed.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        yield from [request for *_, request in sorted(living)]\n",
        killed_by="test_task_5_an_iterator_shows_the_requests_that_waited_when_it_was_made",
        breaks="PriorityQueueWithAging.__iter__: It contains the requests that wait at the moment of the call",
    ),
    Mutant(
        name="looks-again-at-each-one",
        story="Is a generator that checks during the loop which requests still wait. It skips a request that leaves "
              "during the loop.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        return (entry[-1] for entry in sorted(living) if self._is_alive(*entry[-2:]))\n",
        killed_by="test_task_5_an_iterator_shows_the_requests_that_waited_when_it_was_made",
        breaks="PriorityQueueWithAging.__iter__: the queue may change while the caller iterates",
    ),
    Mutant(
        name="iterates-in-the-order-of-the-heap",
        story="Treats the heap's list as sorted. Only its first entry is sure to be in place.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        return iter([request for *_, request in living])\n",
        killed_by="test_task_5_iteration_is_in_the_order_of_service",
        breaks="PriorityQueueWithAging.__iter__: an iterator over the waiting requests in the order in which they "
               "will be served",
    ),
    Mutant(
        name="the-clock-is-wrapped",
        story="Stores a wrapper around the clock. A caller that reads the queue's clock gets another object.",
        replace="        self.clock = clock\n",
        by="        self.clock = lambda: clock()\n",
        killed_by="test_task_1_rate_and_clock_are_attributes",
        breaks="PriorityQueueWithAging.__init__: both arguments are attributes, exactly as given",
    ),
    Mutant(
        name="nobody-is-above-its-base",
        story="Treats a negative wait as 0, but order does not: for an arrival in the future the two disagree.",
        replace="        return request.priority - waited_s * self.aging_rate\n",
        by="        return request.priority - max(waited_s, 0.0) * self.aging_rate\n",
        killed_by="test_task_1_order_agrees_with_effective_priority_and_never_changes",
        breaks="PriorityQueueWithAging.effective_priority: has waited less than 0 seconds, and the result is above",
    ),
    Mutant(
        name="nobody-is-below-0",
        story="Limits the result to 0 or more: all requests that have waited longer than the bound have the same "
              "priority.",
        replace="        return request.priority - waited_s * self.aging_rate\n",
        by="        return max(request.priority - waited_s * self.aging_rate, 0.0)\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
        breaks="PriorityQueueWithAging.effective_priority: minus the seconds waited times the aging rate",
    ),
    Mutant(
        name="to-ask-is-to-arrive",
        story="Sets the arrival time when the priority of a new request is asked for.",
        replace="        waited_s = self.clock() - request.arrival_time if request.arrival_time is not None "
                "else 0.0\n",
        by="        if request.arrival_time is None:\n"
           "            request.arrival_time = self.clock()\n"
           "        waited_s = self.clock() - request.arrival_time\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
        breaks="PriorityQueueWithAging.effective_priority: Nothing is stored",
    ),
    Mutant(
        name="the-order-reads-the-clock",
        story="Sorts by the current effective priority, so a later call returns a different order.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return self.effective_priority(request), request.arrival_time\n",
        killed_by="test_task_1_order_agrees_with_effective_priority_and_never_changes",
        breaks=("PriorityQueueWithAging.order: but does not depend on the time",
                "invariant 2: order(request) does not depend on the time"),
    ),
    Mutant(
        name="arrives-and-is-refused",
        story="Sets the arrival time first, then checks whether the id is in use: a refused request has changed.",
        replace="        self._check_absent(request)\n"
                "        if request.arrival_time is None:\n"
                "            request.arrival_time = self.clock()\n",
        by="        if request.arrival_time is None:\n"
           "            request.arrival_time = self.clock()\n"
           "            self._check_absent(request)\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks=("PriorityQueueWithAging.put: in both cases nothing has changed, neither in the queue nor in the "
                "request",
                "invariant 6: A call that raises has changed nothing"),
    ),
    Mutant(
        name="twins-wait-together",
        story="Checks whether this very request waits. Another request with the same id is accepted, and one of the "
              "two is never served.",
        replace="        self._check_absent(request)\n"
                "        if request.arrival_time is None:\n"
                "            request.arrival_time = self.clock()\n",
        by="        if request in self:\n"
           "            raise ValueError(f\"request {request.request_id!r} waits already\")\n"
           "        if request.arrival_time is None:\n"
           "            request.arrival_time = self.clock()\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks="PriorityQueueWithAging.put: ValueError that names the id, if a request with that id is already "
               "waiting",
    ),
    Mutant(
        name="nobody-knows-who-waits",
        story="Says that a request is already waiting, but does not name its id.",
        replace="raise ValueError(f\"request id {request.request_id!r} is already in the queue\")\n",
        by="raise ValueError(\"it is already in the queue\")\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks="PriorityQueueWithAging.put: ValueError that names the id, if a request",
    ),
    Mutant(
        name="nobody-is-shown",
        story="peek of an empty queue returns None, and get reads an attribute of None.",
        replace="        raise IndexError(\"the queue is empty: no request waits\")\n",
        by="        return None\n",
        killed_by="test_task_2_an_empty_queue_says_so",
        breaks="PriorityQueueWithAging.peek: Raises IndexError if no request waits",
    ),
    Mutant(
        name="requeue-goes-before-its-level",
        story="Puts the request in front of all requests with the same level, even those that arrived before it.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        ticket = next(self._tickets_before)\n"
           "        self._waiting[request.request_id] = ticket, request\n"
           "        heapq.heappush(self._heap, (self.order(request)[0], -math.inf, ticket, request))\n",
        killed_by="test_task_3_a_requeued_request_does_not_go_before_its_betters",
        breaks=("PriorityQueueWithAging.requeue: Its equals are the requests with the same order",
                "PriorityQueueWithAging.requeue: does not overtake any request with a smaller order"),
    ),
    Mutant(
        name="who-comes-back-first-goes-first",
        story="Uses tickets smaller than all others, but gives the smallest to the first that comes back: two victims "
              "change places.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        self._push(request, next(self._tickets) - 1_000_000)\n",
        killed_by="test_task_3_a_requeued_request_goes_before_its_equals",
        breaks="PriorityQueueWithAging.requeue: if several equals come back, the one that comes back last is served "
               "first",
    ),
    Mutant(
        name="requeue-sorts",
        story="Correct, but O(n) comparisons for each request that comes back.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        self._push(request, next(self._tickets_before))\n"
           "        self._heap.sort()\n",
        killed_by="test_task_3_requeue_costs_log_n",
        breaks="PriorityQueueWithAging.requeue: O(log n)",
    ),
    Mutant(
        name="who-waits-comes-back",
        story="Does not check whether the request already waits. Its old entry is dead, and its place changes.",
        replace="        self._check_absent(request)\n"
                "        if request.arrival_time is None:\n"
                "            raise",
        by="        if request.arrival_time is None:\n"
           "            raise",
        killed_by="test_task_3_what_never_waited_cannot_come_back",
        breaks="PriorityQueueWithAging.requeue: ValueError that names the id, if a request with that id is already "
               "waiting",
    ),
    Mutant(
        name="comes-back-from-nowhere",
        story="Sets an arrival time for a request that has none, so the caller's mistake is never found.",
        replace="            raise ValueError(f\"request {request.request_id!r} has no arrival_time: put it "
                "before you requeue it\")\n",
        by="            request.arrival_time = self.clock()\n",
        killed_by="test_task_3_what_never_waited_cannot_come_back",
        breaks="PriorityQueueWithAging.requeue: if the request has no arrival_time: then it was never in a queue",
    ),
    Mutant(
        name="refused-with-an-arrival",
        story="Refuses the request, but has set its arrival time. A second call is accepted.",
        replace="        if request.arrival_time is None:\n"
                "            raise ValueError(",
        by="        if request.arrival_time is None:\n"
           "            request.arrival_time = self.clock()\n"
           "            raise ValueError(",
        killed_by="test_task_3_what_never_waited_cannot_come_back",
        breaks="PriorityQueueWithAging.requeue: in both cases nothing has changed, neither in the queue nor in the "
               "request",
    ),
    Mutant(
        name="a-namesake-is-in-it",
        story="Checks the id. Another request with the same id seems to wait.",
        replace="        return self._waiting.get(request.request_id, (None, None))[1] is request\n",
        by="        return request.request_id in self._waiting\n",
        killed_by="test_task_4_contains_and_remove_mean_this_very_request",
        breaks="PriorityQueueWithAging.__contains__: Another request with the same id does not count",
    ),
    Mutant(
        name="a-namesake-is-removed",
        story="Checks the id. Removing another request with the same id removes the one that waits.",
        replace="        if request not in self:\n",
        by="        if request.request_id not in self._waiting:\n",
        killed_by="test_task_4_contains_and_remove_mean_this_very_request",
        breaks="PriorityQueueWithAging.remove: ValueError that names the id, if this very request does not wait here",
    ),
    Mutant(
        name="gone-and-refused",
        story="Removes the entry first, then checks whose it was.",
        replace="        if request not in self:\n"
                "            raise ValueError(f\"request {request.request_id!r} is not in the queue\")\n"
                "        del self._waiting[request.request_id]\n",
        by="        _, found = self._waiting.pop(request.request_id, (None, None))\n"
           "        if found is not request:\n"
           "            raise ValueError(f\"request {request.request_id!r} is not in the queue\")\n",
        killed_by="test_task_4_contains_and_remove_mean_this_very_request",
        breaks="PriorityQueueWithAging.remove: then nothing has changed",
    ),
    Mutant(
        name="two-dead-to-one-living",
        story="Rebuilds the heap only when two thirds of it are dead.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if len(self._heap) > 3 * len(self._waiting) + 8:\n",
        killed_by="test_task_4_no_more_are_dead_than_wait",
        breaks=("invariant 5: After a remove the heap has at most 8 more dead entries than live ones",
                "PriorityQueueWithAging.remove: the heap has at most 8 more dead entries than live ones"),
    ),
    Mutant(
        name="a-hundred-are-a-few",
        story="Leaves a hundred dead entries although only three requests wait.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if len(self._heap) > 2 * len(self._waiting) + 100:\n",
        killed_by="test_task_4_dead_entries_do_not_pile_up",
        breaks=("invariant 5: at most 8 more dead entries than live ones",
                "PriorityQueueWithAging.remove: the heap has at most 8 more dead entries than live ones"),
    ),
    Mutant(
        name="looks-whether-it-is-in-the-heap",
        story="Searches the heap for the request, and still leaves the entry dead. It compares nothing, but looks at "
              "every entry.",
        replace="        if request not in self:\n",
        by="        if not any(entry[-1] is request for entry in self._heap) or request not in self:\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.remove: O(log n) on average",
    ),
    Mutant(
        name="takes-from-a-copy",
        story="Copies the heap at every get, to leave the old one unchanged. It compares nothing.",
        replace="        request = self.peek()\n        heapq.heappop(self._heap)\n",
        by="        request = self.peek()\n        self._heap = list(self._heap)\n        heapq.heappop(self._heap)\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.get: O(log n)",
    ),
    Mutant(
        name="counts-the-living",
        story="Goes through the whole heap for every len().",
        replace="        return len(self._waiting)\n",
        by="        return sum(self._is_alive(*entry[-2:]) for entry in self._heap)\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.__len__: O(1)",
    ),
    Mutant(
        name="shows-the-smallest-of-all",
        story="Goes through the whole heap for every peek, which makes the heap pointless.",
        replace="            if self._is_alive(ticket, request):\n                return request\n",
        by="            living = [entry for entry in self._heap if self._is_alive(*entry[-2:])]\n"
           "            if self._is_alive(ticket, request):\n                return living[0][-1]\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.peek: without removing it. O(1)",
    ),
    Mutant(
        name="asks-everybody-whether-it-is-them",
        story="Goes through all waiting requests to find this one.",
        replace="        return self._waiting.get(request.request_id, (None, None))[1] is request\n",
        by="        return any(other is request for _, other in self._waiting.values())\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.__contains__: O(1)",
    ),
    Mutant(
        name="put-sorts",
        story="Correct, but compares all requests for each new one.",
        replace="        self._push(request, next(self._tickets))\n        # END TASK\n",
        by="        self._push(request, next(self._tickets))\n        self._heap.sort()\n        # END TASK\n",
        killed_by="test_task_2_put_and_get_cost_log_n",
        breaks="PriorityQueueWithAging.put: O(log n)",
    ),
    Mutant(
        name="rebuilt-after-every-few",
        story="Allows 8 dead entries, however many requests wait. Every ninth remove is O(n).",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if len(self._heap) > len(self._waiting) + 8:\n",
        killed_by="test_task_4_remove_does_not_search_and_keeps_the_order",
        breaks="PriorityQueueWithAging.remove: A rebuild is O(n), but happens only once in n removals",
    ),
    Mutant(
        name="shows-the-dead",
        story="Goes through the heap, which also contains entries of removed requests.",
        replace="        living = [entry for entry in self._heap if self._is_alive(*entry[-2:])]\n"
                "        return",
        by="        living = list(self._heap)\n"
           "        return",
        killed_by="test_task_5_iteration_is_in_the_order_of_service",
        breaks="PriorityQueueWithAging.__iter__: an iterator over the waiting requests in the order",
    ),
    Mutant(
        name="sorts-without-tickets",
        story="Sorts the waiting requests by order only. A request that came back ends up behind its equals.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        return iter(sorted((entry[-1] for entry in living), key=self.order))\n",
        killed_by="test_task_5_random_traffic_as_the_naive_queue_has_it_and_within_the_bound",
        breaks="PriorityQueueWithAging.__iter__: in the order in which they will be served",
    ),
    Mutant(
        name="rounded-to-thousandths",
        story="Rounds, so that floats that should be equal are equal. But floats that are nearly equal also become "
              "equal.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return round(request.priority + request.arrival_time * self.aging_rate, 3), "
           "request.arrival_time\n",
        killed_by="test_task_1_of_equal_effective_priorities_the_first_come_goes_first",
        breaks="PriorityQueueWithAging.order: The first number orders requests as their effective priorities do",
    ),
    Mutant(
        name="takes-any-rate",
        story="Does not check the rate. With NaN, no two requests can be compared.",
        replace="        _check_aging_rate(aging_rate)\n",
        by="",
        killed_by="test_task_1_a_rate_that_is_negative_or_not_finite_is_refused",
        breaks="PriorityQueueWithAging.__init__: Raises ValueError for a rate that _check_aging_rate refuses",
    ),
    Mutant(
        name="never-arrives",
        story="Does not set the arrival time, so the queue cannot know how long a new request has waited.",
        replace="        self._check_absent(request)\n"
                "        if request.arrival_time is None:\n"
                "            request.arrival_time = self.clock()\n",
        by="        self._check_absent(request)\n",
        killed_by="test_task_2_put_sets_the_arrival_time_only_if_there_is_none",
        breaks="PriorityQueueWithAging.put: it has an arrival_time",
    ),
    Mutant(
        name="any-time-is-an-arrival",
        story="Does not check the arrival time. A request that arrived at minus infinity is always first.",
        replace="        _check_arrival_time(request)\n        self._check_absent(request)\n",
        by="        self._check_absent(request)\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks="PriorityQueueWithAging.put: ValueError for an arrival time that _check_arrival_time refuses",
    ),
    Mutant(
        name="in-the-queue-and-refused",
        story="Adds the request, then checks its arrival time. NaN is in the heap, and the heap is no longer ordered.",
        replace=PUT,
        by=PUT.replace("        _check_arrival_time(request)\n", "") + "        _check_arrival_time(request)\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks="PriorityQueueWithAging.put: in both cases nothing has changed",
    ),
    Mutant(
        name="time-begins-at-0",
        story="Refuses arrival times below 0. But a clock may start anywhere.",
        replace="        _check_arrival_time(request)\n        self._check_absent(request)\n",
        by="        _check_arrival_time(request)\n        self._check_absent(request)\n"
           "        if request.arrival_time is not None and request.arrival_time < 0:\n"
           "            raise ValueError(f\"arrival_time is {request.arrival_time}, must be at least 0\")\n",
        killed_by="test_task_2_put_sets_the_arrival_time_only_if_there_is_none",
        breaks="PriorityQueueWithAging.put: the one that it already had",
    ),
    Mutant(
        name="not-rebuilt-when-all-are-dead",
        story="Rebuilds the heap only if some entry is live. If no other request waits, dead entries pile up.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if self._waiting and len(self._heap) > 2 * len(self._waiting) + 8:\n",
        killed_by="test_task_4_dead_entries_do_not_pile_up",
        breaks="PriorityQueueWithAging.remove: the heap has at most 8 more dead entries than live ones",
    ),
    Mutant(
        name="new-tickets-for-all",
        story="Rebuilds the heap by putting all requests in again. A request that came back is now behind its equals.",
        replace="            self._heap = [entry for entry in self._heap if self._is_alive(*entry[-2:])]\n"
                "            heapq.heapify(self._heap)\n",
        by="            self._heap = []\n"
           "            for _, living in list(self._waiting.values()):\n"
           "                self._push(living, next(self._tickets))\n",
        killed_by="test_task_4_a_removed_request_can_be_put_again_or_come_back",
        breaks="PriorityQueueWithAging.remove: the other requests are served in the same order as before, even after "
               "a rebuild",
    ),
]
