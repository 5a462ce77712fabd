"""Mistakes people make in a queue that ages, and the test that catches each."""

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
        story="0 is false: whoever asks for strict priority gets aging.",
        replace="        self.aging_rate = aging_rate\n",
        by="        self.aging_rate = aging_rate or DEFAULT_AGING_RATE\n",
        killed_by="test_task_1_a_rate_of_0_is_strict_priority",
        breaks="PriorityQueueWithAging.__init__: At a rate of 0 no request ages",
    ),
    Mutant(
        name="the-clock-is-read-once",
        story="Keeps the time at which the queue was made; nobody ever waits.",
        replace="        self.clock = clock\n",
        by="        now_s = clock()\n        self.clock = lambda: now_s\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
        breaks="PriorityQueueWithAging.__init__: clock gives the seconds of now, each time it is called",
    ),
    Mutant(
        name="who-came-at-0-has-not-waited",
        story="`if request.arrival_time`: 0.0 is false, and the first request of the day never ages.",
        replace="if request.arrival_time is not None else 0.0\n",
        by="if request.arrival_time else 0.0\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
        breaks="PriorityQueueWithAging.effective_priority: 0.0 is a time like any other",
    ),
    Mutant(
        name="the-larger-number-first",
        story="Takes 2 for more than 0: LOW is served before HIGH.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return -request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        killed_by="test_task_2_the_smaller_number_is_served_first",
        breaks=("PriorityQueueWithAging.order: of two, the one with the smaller is served first",
                "invariant 1: The next request to be served has the smallest base - waited * rate"),
    ),
    Mutant(
        name="the-order-ages-backwards",
        story="Copies the minus of the effective priority: who comes later is better off.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return request.priority - request.arrival_time * self.aging_rate, request.arrival_time\n",
        killed_by="test_task_1_order_agrees_with_effective_priority_and_never_changes",
        breaks="PriorityQueueWithAging.order: The first number compares as the effective priorities do, at any time",
    ),
    Mutant(
        name="of-equals-the-more-important-first",
        story="Breaks a tie by base priority, so that LOW is overtaken once more than the bound allows.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return request.priority + request.arrival_time * self.aging_rate, request.priority\n",
        killed_by="test_task_1_of_equal_effective_priorities_the_first_come_goes_first",
        breaks=("PriorityQueueWithAging.order: the request that came first is served first, whatever its base",
                "invariant 4: is overtaken only by requests that come before a + p / rate",
                "invariant 1: of equals, the one that came first"),
    ),
    Mutant(
        name="frozen-at-put",
        story="Sorts by the effective priority of the moment of put: nobody has waited then, so nobody ages.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        key = self.effective_priority(request), request.arrival_time\n"
           "        heapq.heappush(self._heap, (*key, ticket, request))\n",
        killed_by="test_task_2_who_has_waited_long_enough_goes_before_a_fresh_high",
        breaks=("invariant 1: The next request to be served has the smallest base - waited * rate",
                "invariant 4: is overtaken only by requests that come before a + p / rate"),
    ),
    Mutant(
        name="an-arrival-at-0-is-no-arrival",
        story="`if not request.arrival_time`: a request that came at 0.0 s comes anew.",
        replace="        if request.arrival_time is None:\n            request.arrival_time = self.clock()\n",
        by="        if not request.arrival_time:\n            request.arrival_time = self.clock()\n",
        killed_by="test_task_2_put_sets_the_arrival_time_only_if_there_is_none",
        breaks=("PriorityQueueWithAging.put: the one that it brought along (0.0 is a time like any other), or else now",
                "invariant 3: not put, if it has one"),
    ),
    Mutant(
        name="ties-by-request-id",
        story="The id stands before the ticket: of equals the one with the smaller name goes first.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        heapq.heappush(self._heap, (*self.order(request), request.request_id, ticket, request))\n",
        killed_by="test_task_2_equals_are_served_in_the_order_in_which_they_were_put",
        breaks="PriorityQueueWithAging.put: of requests with the same order, the one that was put first is served "
               "first",
    ),
    Mutant(
        name="requests-are-compared",
        story="No ticket in front of the request: the first tie is a TypeError.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        heapq.heappush(self._heap, (*self.order(request), request, ticket, request))\n",
        killed_by="test_task_2_equals_are_served_in_the_order_in_which_they_were_put",
        breaks="PriorityQueueWithAging.put: of requests with the same order, the one that was put first is served "
               "first",
    ),
    Mutant(
        name="peek-takes",
        story="Looks by popping, and forgets to put it back.",
        replace="            if self._is_alive(ticket, request):\n                return request\n",
        by="            if self._is_alive(ticket, request):\n"
           "                if len(self._heap) > 1:\n"
           "                    heapq.heappop(self._heap)\n"
           "                return request\n",
        killed_by="test_task_2_peek_shows_what_get_will_take",
        breaks="PriorityQueueWithAging.peek: The request to serve next; it stays",
    ),
    Mutant(
        name="none-from-an-empty-queue",
        story="Nobody waits, and get() says None; the caller trips over it later.",
        replace="        request = self.peek()\n        heapq.heappop(self._heap)\n",
        by="        if not self._waiting:\n            return None\n"
           "        request = self.peek()\n        heapq.heappop(self._heap)\n",
        killed_by="test_task_2_an_empty_queue_says_so",
        breaks="PriorityQueueWithAging.get: Raises IndexError if no request waits",
    ),
    Mutant(
        name="sorted-at-every-look",
        story="Sorts again because time has passed: right, and O(n) comparisons each time.",
        replace="        while self._heap:\n            *_, ticket, request = self._heap[0]\n",
        by="        self._heap.sort()\n        while self._heap:\n            *_, ticket, request = self._heap[0]\n",
        killed_by="test_task_2_put_and_get_cost_log_n",
        breaks=("PriorityQueueWithAging.get: O(log n)",
                "module: Nothing is sorted again as time goes by"),
    ),
    Mutant(
        name="requeue-resets-the-age",
        story="Comes back as if it had just arrived: preempted often enough, it never ends.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        request.arrival_time = self.clock()\n        self._push(request, next(self._tickets_before))\n",
        killed_by="test_task_3_a_requeued_request_is_as_old_as_ever",
        breaks=("PriorityQueueWithAging.requeue: its arrival_time is what it was",
                "invariant 3: and not requeue"),
    ),
    Mutant(
        name="requeue-goes-behind-its-equals",
        story="Takes a ticket like everybody: those who have not begun go first, and its work is lost twice.",
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
        breaks="PriorityQueueWithAging.requeue: overtakes no request with a smaller order",
    ),
    Mutant(
        name="a-ghost-is-served",
        story="Peek trusts the heap: who was removed comes to the front and is served.",
        replace="            if self._is_alive(ticket, request):\n                return request\n",
        by="            if True:\n                return request\n",
        killed_by="test_task_4_remove_takes_out_one_and_only_that",
        breaks=("PriorityQueueWithAging.peek: the first entry of the heap may be dead then. Drop it and look again",
                "invariant 5: A removed request is never served"),
    ),
    Mutant(
        name="alive-because-of-its-id",
        story="Asks whether the id waits, not whether this entry does: put the id again, and the dead entry lives.",
        replace="        return self._waiting.get(request.request_id, (None,))[0] == ticket\n",
        by="        return request.request_id in self._waiting\n",
        killed_by="test_task_4_a_new_request_of_a_removed_id_stands_at_its_own_place",
        breaks="PriorityQueueWithAging.remove: not even for one with the same id or",
    ),
    Mutant(
        name="alive-because-its-request-waits",
        story="Asks whether the request waits, not whether this entry does: put again, it wakes its own dead entry.",
        replace="        return self._waiting.get(request.request_id, (None,))[0] == ticket\n",
        by="        return self._waiting.get(request.request_id, (None, None))[1] is request\n",
        killed_by="test_task_5_random_traffic_as_the_naive_queue_has_it_and_within_the_bound",
        breaks="PriorityQueueWithAging.remove: not even for one with the same id or for this very one",
    ),
    Mutant(
        name="dead-entries-pile-up",
        story="Only peek drops the dead; those behind a patient living one stay for good.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if False:\n",
        killed_by="test_task_4_dead_entries_do_not_pile_up",
        breaks=("PriorityQueueWithAging.remove: Entries that never reach the front must not pile up",
                "invariant 5: After a remove the heap has at most 8 more dead entries than living ones"),
    ),
    Mutant(
        name="a-heap-with-holes",
        story="Leaves the dead out, and takes what is left for a heap.",
        replace="            heapq.heapify(self._heap)\n",
        by="",
        killed_by="test_task_4_remove_does_not_search_and_keeps_the_order",
        breaks="PriorityQueueWithAging.remove: the others are served in the same order as before, after a rebuild too",
    ),
    Mutant(
        name="len-counts-the-dead",
        story="The scheduler sees somebody waiting, and peek says that nobody is.",
        replace="        return len(self._waiting)\n",
        by="        return len(self._heap)\n",
        killed_by="test_task_4_remove_takes_out_one_and_only_that",
        breaks="PriorityQueueWithAging.__len__: How many requests wait",
    ),
    Mutant(
        name="looks-when-it-is-first-asked",
        story="A generator: nothing in it runs before the first next, and the queue has changed by then.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        yield from [request for *_, request in sorted(living)]\n",
        killed_by="test_task_5_an_iterator_shows_those_who_waited_when_it_was_made",
        breaks="PriorityQueueWithAging.__iter__: They are those of the moment of the call",
    ),
    Mutant(
        name="looks-again-at-each-one",
        story="A generator that asks who still waits as it goes: whoever leaves during the loop is not seen.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        return (entry[-1] for entry in sorted(living) if self._is_alive(*entry[-2:]))\n",
        killed_by="test_task_5_an_iterator_shows_those_who_waited_when_it_was_made",
        breaks="PriorityQueueWithAging.__iter__: the queue may change while the caller goes through them",
    ),
    Mutant(
        name="iterates-in-the-order-of-the-heap",
        story="Takes the heap's list for sorted. Its first entry is in place, the others need not be.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        return iter([request for *_, request in living])\n",
        killed_by="test_task_5_iteration_is_in_the_order_of_service",
        breaks="PriorityQueueWithAging.__iter__: The waiting requests in the order in which they will be served",
    ),
    Mutant(
        name="the-clock-is-wrapped",
        story="Keeps a clock of its own making. Whoever asks the queue for its clock gets another.",
        replace="        self.clock = clock\n",
        by="        self.clock = lambda: clock()\n",
        killed_by="test_task_1_rate_and_clock_are_attributes",
        breaks="PriorityQueueWithAging.__init__: both arguments are attributes, as they were given",
    ),
    Mutant(
        name="nobody-is-above-its-base",
        story="Cuts the wait at 0, but not the order: for one that is yet to come the two disagree.",
        replace="        return request.priority - waited_s * self.aging_rate\n",
        by="        return request.priority - max(waited_s, 0.0) * self.aging_rate\n",
        killed_by="test_task_1_order_agrees_with_effective_priority_and_never_changes",
        breaks="PriorityQueueWithAging.effective_priority: has waited less than 0 seconds, and its number is above",
    ),
    Mutant(
        name="nobody-is-below-0",
        story="Cuts at HIGH: who has waited longer than the bound stands level with all others who have.",
        replace="        return request.priority - waited_s * self.aging_rate\n",
        by="        return max(request.priority - waited_s * self.aging_rate, 0.0)\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
        breaks="PriorityQueueWithAging.effective_priority: less what it has gained by waiting since it arrived",
    ),
    Mutant(
        name="to-ask-is-to-arrive",
        story="Whoever asks for the priority of a request that has not come yet sets its arrival.",
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
        story="Sorts by the effective priority of the moment. Asked later, the order is another.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return self.effective_priority(request), request.arrival_time\n",
        killed_by="test_task_1_order_agrees_with_effective_priority_and_never_changes",
        breaks=("PriorityQueueWithAging.order: but does not depend on the time",
                "invariant 2: order(request) does not depend on the time"),
    ),
    Mutant(
        name="arrives-and-is-refused",
        story="Sets the arrival first, then looks whether the id is in use: a refused request has changed.",
        replace="        self._check_absent(request)\n"
                "        if request.arrival_time is None:\n"
                "            request.arrival_time = self.clock()\n",
        by="        if request.arrival_time is None:\n"
           "            request.arrival_time = self.clock()\n"
           "            self._check_absent(request)\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks=("PriorityQueueWithAging.put: in both cases nothing has changed, neither here nor in the request",
                "invariant 6: A call that raises has changed nothing"),
    ),
    Mutant(
        name="twins-wait-together",
        story="Asks whether this very request waits. Another one of the same id is taken in, and one of the two is "
              "never served.",
        replace="        self._check_absent(request)\n"
                "        if request.arrival_time is None:\n"
                "            request.arrival_time = self.clock()\n",
        by="        if request in self:\n"
           "            raise ValueError(f\"request {request.request_id!r} waits already\")\n"
           "        if request.arrival_time is None:\n"
           "            request.arrival_time = self.clock()\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks="PriorityQueueWithAging.put: ValueError, with the id, if a request of that id is waiting already",
    ),
    Mutant(
        name="nobody-knows-who-waits",
        story="Says that somebody waits already, and not who.",
        replace="raise ValueError(f\"request id {request.request_id!r} is in the queue already\")\n",
        by="raise ValueError(\"it is in the queue already\")\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks="PriorityQueueWithAging.put: ValueError, with the id, if a request",
    ),
    Mutant(
        name="nobody-is-shown",
        story="peek of an empty queue is None, and get takes the attributes of None.",
        replace="        raise IndexError(\"the queue is empty: no request waits\")\n",
        by="        return None\n",
        killed_by="test_task_2_an_empty_queue_says_so",
        breaks="PriorityQueueWithAging.peek: Raises IndexError if no request waits",
    ),
    Mutant(
        name="requeue-goes-before-its-level",
        story="Stands in front of all of the same level, also of those who came before it.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        ticket = next(self._tickets_before)\n"
           "        self._waiting[request.request_id] = ticket, request\n"
           "        heapq.heappush(self._heap, (self.order(request)[0], -math.inf, ticket, request))\n",
        killed_by="test_task_3_a_requeued_request_does_not_go_before_its_betters",
        breaks=("PriorityQueueWithAging.requeue: Its equals are the requests with the same order",
                "PriorityQueueWithAging.requeue: overtakes no request with a smaller order"),
    ),
    Mutant(
        name="who-comes-back-first-goes-first",
        story="Tickets before all others, but in the order of coming back: two victims change places.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        self._push(request, next(self._tickets) - 1_000_000)\n",
        killed_by="test_task_3_a_requeued_request_goes_before_its_equals",
        breaks="PriorityQueueWithAging.requeue: of equals that come back, the one that comes back last goes first",
    ),
    Mutant(
        name="requeue-sorts",
        story="Right, and O(n) comparisons for each that comes back.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        self._push(request, next(self._tickets_before))\n"
           "        self._heap.sort()\n",
        killed_by="test_task_3_requeue_costs_log_n",
        breaks="PriorityQueueWithAging.requeue: O(log n)",
    ),
    Mutant(
        name="who-waits-comes-back",
        story="Does not ask whether it waits already. Its old entry is dead, and its place another.",
        replace="        self._check_absent(request)\n"
                "        if request.arrival_time is None:\n"
                "            raise",
        by="        if request.arrival_time is None:\n"
           "            raise",
        killed_by="test_task_3_what_never_waited_cannot_come_back",
        breaks="PriorityQueueWithAging.requeue: ValueError, with the id, if a request of that id is waiting already",
    ),
    Mutant(
        name="comes-back-from-nowhere",
        story="Gives an arrival to whoever has none: the caller's mistake is never found.",
        replace="            raise ValueError(f\"request {request.request_id!r} has no arrival_time: put it "
                "in before it can come back\")\n",
        by="            request.arrival_time = self.clock()\n",
        killed_by="test_task_3_what_never_waited_cannot_come_back",
        breaks="PriorityQueueWithAging.requeue: if it has no arrival_time, so that it never was in a queue",
    ),
    Mutant(
        name="refused-with-an-arrival",
        story="Refuses, and has set the arrival. The second try goes through.",
        replace="        if request.arrival_time is None:\n"
                "            raise ValueError(",
        by="        if request.arrival_time is None:\n"
           "            request.arrival_time = self.clock()\n"
           "            raise ValueError(",
        killed_by="test_task_3_what_never_waited_cannot_come_back",
        breaks="PriorityQueueWithAging.requeue: in both cases nothing has changed, neither here nor in the request",
    ),
    Mutant(
        name="a-namesake-is-in-it",
        story="Asks for the id. A stranger of the same id is said to wait.",
        replace="        return self._waiting.get(request.request_id, (None, None))[1] is request\n",
        by="        return request.request_id in self._waiting\n",
        killed_by="test_task_4_contains_and_remove_mean_this_very_request",
        breaks="PriorityQueueWithAging.__contains__: Another one with the same id is another request",
    ),
    Mutant(
        name="a-namesake-is-removed",
        story="Asks for the id. A stranger of the same id takes the one that waits out.",
        replace="        if request not in self:\n",
        by="        if request.request_id not in self._waiting:\n",
        killed_by="test_task_4_contains_and_remove_mean_this_very_request",
        breaks="PriorityQueueWithAging.remove: ValueError, with the id, if this very request does not wait here",
    ),
    Mutant(
        name="gone-and-refused",
        story="Takes the entry out, then looks whose it was.",
        replace="        if request not in self:\n"
                "            raise ValueError(f\"request {request.request_id!r} is not in the queue\")\n"
                "        del self._waiting[request.request_id]\n",
        by="        _, found = self._waiting.pop(request.request_id, (None, None))\n"
           "        if found is not request:\n"
           "            raise ValueError(f\"request {request.request_id!r} is not in the queue\")\n",
        killed_by="test_task_4_contains_and_remove_mean_this_very_request",
        breaks="PriorityQueueWithAging.remove: nothing has changed then",
    ),
    Mutant(
        name="two-dead-to-one-living",
        story="Makes the heap anew when two thirds of it are dead.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if len(self._heap) > 3 * len(self._waiting) + 8:\n",
        killed_by="test_task_4_no_more_are_dead_than_wait",
        breaks=("invariant 5: After a remove the heap has at most 8 more dead entries than living ones",
                "PriorityQueueWithAging.remove: the heap has at most 8 more dead entries than living ones"),
    ),
    Mutant(
        name="a-hundred-are-a-few",
        story="Leaves a hundred dead entries where three requests wait.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if len(self._heap) > 2 * len(self._waiting) + 100:\n",
        killed_by="test_task_4_dead_entries_do_not_pile_up",
        breaks=("invariant 5: at most 8 more dead entries than living ones",
                "PriorityQueueWithAging.remove: the heap has at most 8 more dead entries than living ones"),
    ),
    Mutant(
        name="looks-whether-it-is-in-the-heap",
        story="Searches the heap for the request, and leaves the entry dead all the same. Nothing is compared, and "
              "everybody is looked at.",
        replace="        if request not in self:\n",
        by="        if not any(entry[-1] is request for entry in self._heap) or request not in self:\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.remove: O(log n) on average",
    ),
    Mutant(
        name="takes-from-a-copy",
        story="Makes a copy of the heap, to leave the old one in peace, at every get. Nothing is compared.",
        replace="        request = self.peek()\n        heapq.heappop(self._heap)\n",
        by="        request = self.peek()\n        self._heap = list(self._heap)\n        heapq.heappop(self._heap)\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.get: O(log n)",
    ),
    Mutant(
        name="counts-the-living",
        story="Goes through the heap for every len().",
        replace="        return len(self._waiting)\n",
        by="        return sum(self._is_alive(*entry[-2:]) for entry in self._heap)\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.__len__: O(1)",
    ),
    Mutant(
        name="shows-the-smallest-of-all",
        story="Goes through the heap for every peek. No heap is needed for that.",
        replace="            if self._is_alive(ticket, request):\n                return request\n",
        by="            living = [entry for entry in self._heap if self._is_alive(*entry[-2:])]\n"
           "            if self._is_alive(ticket, request):\n                return living[0][-1]\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.peek: it stays. O(1)",
    ),
    Mutant(
        name="asks-everybody-whether-it-is-them",
        story="Goes through all that wait, to see whether this one is among them.",
        replace="        return self._waiting.get(request.request_id, (None, None))[1] is request\n",
        by="        return any(other is request for _, other in self._waiting.values())\n",
        killed_by="test_task_2_no_call_goes_through_all_that_wait",
        breaks="PriorityQueueWithAging.__contains__: O(1)",
    ),
    Mutant(
        name="put-sorts",
        story="Right, and all are compared for each that comes.",
        replace="        self._push(request, next(self._tickets))\n        # END TASK\n",
        by="        self._push(request, next(self._tickets))\n        self._heap.sort()\n        # END TASK\n",
        killed_by="test_task_2_put_and_get_cost_log_n",
        breaks="PriorityQueueWithAging.put: O(log n)",
    ),
    Mutant(
        name="made-anew-after-every-few",
        story="Allows 8 dead entries, however many wait. Every ninth remove is O(n).",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if len(self._heap) > len(self._waiting) + 8:\n",
        killed_by="test_task_4_remove_does_not_search_and_keeps_the_order",
        breaks="PriorityQueueWithAging.remove: A rebuild is O(n), and",
    ),
    Mutant(
        name="shows-the-dead",
        story="Goes through the heap, and the heap has entries of those who left.",
        replace="        living = [entry for entry in self._heap if self._is_alive(*entry[-2:])]\n"
                "        return",
        by="        living = list(self._heap)\n"
           "        return",
        killed_by="test_task_5_iteration_is_in_the_order_of_service",
        breaks="PriorityQueueWithAging.__iter__: The waiting requests in the order",
    ),
    Mutant(
        name="sorts-without-tickets",
        story="Sorts who waits by order. Of equals, the one that came back stands behind.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        return iter(sorted((entry[-1] for entry in living), key=self.order))\n",
        killed_by="test_task_5_random_traffic_as_the_naive_queue_has_it_and_within_the_bound",
        breaks="PriorityQueueWithAging.__iter__: in the order in which they will be served",
    ),
    Mutant(
        name="rounded-to-thousandths",
        story="Rounds, so that floats that should be equal are. Those who are not quite equal are, too.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return round(request.priority + request.arrival_time * self.aging_rate, 3), "
           "request.arrival_time\n",
        killed_by="test_task_1_of_equal_effective_priorities_the_first_come_goes_first",
        breaks="PriorityQueueWithAging.order: The first number compares as the effective priorities do",
    ),
    Mutant(
        name="takes-any-rate",
        story="Does not check the rate. With NaN, no two requests can be compared.",
        replace="        _check_aging_rate(aging_rate)\n",
        by="",
        killed_by="test_task_1_a_rate_that_is_negative_or_not_finite_is_refused",
        breaks="PriorityQueueWithAging.__init__: Raises ValueError for what _check_aging_rate refuses",
    ),
    Mutant(
        name="never-arrives",
        story="Leaves the arrival to the caller. Since when a new request waits is not known.",
        replace="        self._check_absent(request)\n"
                "        if request.arrival_time is None:\n"
                "            request.arrival_time = self.clock()\n",
        by="        self._check_absent(request)\n",
        killed_by="test_task_2_put_sets_the_arrival_time_only_if_there_is_none",
        breaks="PriorityQueueWithAging.put: it has an arrival_time",
    ),
    Mutant(
        name="any-time-is-an-arrival",
        story="Does not check the arrival. A request that came at minus infinity is always first.",
        replace="        _check_arrival_time(request)\n        self._check_absent(request)\n",
        by="        self._check_absent(request)\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks="PriorityQueueWithAging.put: ValueError for what _check_arrival_time refuses",
    ),
    Mutant(
        name="in-the-queue-and-refused",
        story="Takes the request in, then looks at its arrival. NaN is in the heap, and nothing is in order any more.",
        replace=PUT,
        by=PUT.replace("        _check_arrival_time(request)\n", "") + "        _check_arrival_time(request)\n",
        killed_by="test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing",
        breaks="PriorityQueueWithAging.put: in both cases nothing has changed",
    ),
    Mutant(
        name="time-begins-at-0",
        story="Refuses arrivals below 0. A clock may begin anywhere.",
        replace="        _check_arrival_time(request)\n        self._check_absent(request)\n",
        by="        _check_arrival_time(request)\n        self._check_absent(request)\n"
           "        if request.arrival_time is not None and request.arrival_time < 0:\n"
           "            raise ValueError(f\"arrival_time is {request.arrival_time}, must be at least 0\")\n",
        killed_by="test_task_2_put_sets_the_arrival_time_only_if_there_is_none",
        breaks="PriorityQueueWithAging.put: the one that it brought along",
    ),
    Mutant(
        name="not-rebuilt-when-all-are-dead",
        story="Rebuilds the heap only if some entry lives. Where no other request waits, dead entries pile up.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if self._waiting and len(self._heap) > 2 * len(self._waiting) + 8:\n",
        killed_by="test_task_4_dead_entries_do_not_pile_up",
        breaks="PriorityQueueWithAging.remove: the heap has at most 8 more dead entries than living ones",
    ),
    Mutant(
        name="new-tickets-for-all",
        story="Rebuilds the heap by putting all in again. A request that came back is now behind its equals.",
        replace="            self._heap = [entry for entry in self._heap if self._is_alive(*entry[-2:])]\n"
                "            heapq.heapify(self._heap)\n",
        by="            self._heap = []\n"
           "            for _, living in list(self._waiting.values()):\n"
           "                self._push(living, next(self._tickets))\n",
        killed_by="test_task_4_a_removed_request_can_be_put_again_or_come_back",
        breaks="PriorityQueueWithAging.remove: the others are served in the same order as before, after a rebuild too",
    ),
]
