"""Mistakes people make in a queue that ages, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="rate-0-means-the-default",
        story="0 is false: whoever asks for strict priority gets aging.",
        replace="        self.aging_rate = aging_rate\n",
        by="        self.aging_rate = aging_rate or DEFAULT_AGING_RATE\n",
        killed_by="test_task_1_a_rate_of_0_is_strict_priority",
    ),
    Mutant(
        name="the-clock-is-read-once",
        story="Keeps the time at which the queue was made; nobody ever waits.",
        replace="        self.clock = clock\n",
        by="        now_s = clock()\n        self.clock = lambda: now_s\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
    ),
    Mutant(
        name="who-came-at-0-has-not-waited",
        story="`if request.arrival_time`: 0.0 is false, and the first request of the day never ages.",
        replace="if request.arrival_time is not None else 0.0\n",
        by="if request.arrival_time else 0.0\n",
        killed_by="test_task_1_effective_priority_falls_while_a_request_waits",
    ),
    Mutant(
        name="the-larger-number-first",
        story="Takes 2 for more than 0: LOW is served before HIGH.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return -request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        killed_by="test_task_2_the_smaller_number_is_served_first",
    ),
    Mutant(
        name="the-order-ages-backwards",
        story="Copies the minus of the effective priority: who comes later is better off.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return request.priority - request.arrival_time * self.aging_rate, request.arrival_time\n",
        killed_by="test_task_1_order_agrees_with_effective_priority_and_never_changes",
    ),
    Mutant(
        name="of-equals-the-more-important-first",
        story="Breaks a tie by base priority, so that LOW is overtaken once more than the bound allows.",
        replace="        return request.priority + request.arrival_time * self.aging_rate, request.arrival_time\n",
        by="        return request.priority + request.arrival_time * self.aging_rate, request.priority\n",
        killed_by="test_task_1_of_equal_effective_priorities_the_first_come_goes_first",
    ),
    Mutant(
        name="frozen-at-put",
        story="Sorts by the effective priority of the moment of put: nobody has waited then, so nobody ages.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        key = self.effective_priority(request), request.arrival_time\n"
           "        heapq.heappush(self._heap, (*key, ticket, request))\n",
        killed_by="test_task_2_who_has_waited_long_enough_goes_before_a_fresh_high",
    ),
    Mutant(
        name="an-arrival-at-0-is-no-arrival",
        story="`if not request.arrival_time`: a request that came at 0.0 s comes anew.",
        replace="        if request.arrival_time is None:\n            request.arrival_time = self.clock()\n",
        by="        if not request.arrival_time:\n            request.arrival_time = self.clock()\n",
        killed_by="test_task_2_put_sets_the_arrival_time_only_if_there_is_none",
    ),
    Mutant(
        name="ties-by-request-id",
        story="The id stands before the ticket: of equals the one with the smaller name goes first.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        heapq.heappush(self._heap, (*self.order(request), request.request_id, ticket, request))\n",
        killed_by="test_task_2_equals_are_served_in_the_order_in_which_they_were_put",
    ),
    Mutant(
        name="requests-are-compared",
        story="No ticket in front of the request: the first tie is a TypeError.",
        replace="        heapq.heappush(self._heap, (*self.order(request), ticket, request))\n",
        by="        heapq.heappush(self._heap, (*self.order(request), request, ticket, request))\n",
        killed_by="test_task_2_equals_are_served_in_the_order_in_which_they_were_put",
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
    ),
    Mutant(
        name="none-from-an-empty-queue",
        story="Nobody waits, and get() says None; the caller trips over it later.",
        replace="        request = self.peek()\n        heapq.heappop(self._heap)\n",
        by="        if not self._waiting:\n            return None\n"
           "        request = self.peek()\n        heapq.heappop(self._heap)\n",
        killed_by="test_task_2_an_empty_queue_says_so",
    ),
    Mutant(
        name="sorted-at-every-look",
        story="Sorts again because time has passed: right, and O(n) comparisons each time.",
        replace="        while self._heap:\n            *_, ticket, request = self._heap[0]\n",
        by="        self._heap.sort()\n        while self._heap:\n            *_, ticket, request = self._heap[0]\n",
        killed_by="test_task_2_put_and_get_compare_log_n_times",
    ),
    Mutant(
        name="requeue-resets-the-age",
        story="Comes back as if it had just arrived: preempted often enough, it never ends.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        request.arrival_time = self.clock()\n        self._push(request, next(self._tickets_before))\n",
        killed_by="test_task_3_a_requeued_request_is_as_old_as_ever",
    ),
    Mutant(
        name="requeue-goes-behind-its-equals",
        story="Takes a ticket like everybody: those who have not begun go first, and its work is lost twice.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        self._push(request, next(self._tickets))\n",
        killed_by="test_task_3_a_preempted_request_runs_again_before_its_equals",
    ),
    Mutant(
        name="requeue-goes-before-everybody",
        story="appendleft, as in a plain queue: a preempted LOW request overtakes every HIGH one.",
        replace="        self._push(request, next(self._tickets_before))\n",
        by="        ticket = next(self._tickets_before)\n"
           "        self._waiting[request.request_id] = ticket, request\n"
           "        heapq.heappush(self._heap, (-math.inf, request.arrival_time, ticket, request))\n",
        killed_by="test_task_3_a_requeued_request_does_not_go_before_its_betters",
    ),
    Mutant(
        name="a-ghost-is-served",
        story="Peek trusts the heap: who was removed comes to the front and is served.",
        replace="            if self._is_alive(ticket, request):\n                return request\n",
        by="            if True:\n                return request\n",
        killed_by="test_task_4_remove_takes_out_one_and_only_that",
    ),
    Mutant(
        name="alive-because-of-its-id",
        story="Asks whether the id waits, not whether this entry does: put the id again, and the dead entry lives.",
        replace="        return self._waiting.get(request.request_id, (None,))[0] == ticket\n",
        by="        return request.request_id in self._waiting\n",
        killed_by="test_task_4_a_new_request_of_a_removed_id_stands_at_its_own_place",
    ),
    Mutant(
        name="alive-because-its-request-waits",
        story="Asks whether the request waits, not whether this entry does: put again, it wakes its own dead entry.",
        replace="        return self._waiting.get(request.request_id, (None,))[0] == ticket\n",
        by="        return self._waiting.get(request.request_id, (None, None))[1] is request\n",
        killed_by="test_task_5_random_traffic_as_the_naive_queue_has_it_and_within_the_bound",
    ),
    Mutant(
        name="dead-entries-pile-up",
        story="Only peek drops the dead; those behind a patient living one stay for good.",
        replace="        if len(self._heap) > 2 * len(self._waiting) + 8:\n",
        by="        if False:\n",
        killed_by="test_task_4_dead_entries_do_not_pile_up",
    ),
    Mutant(
        name="a-heap-with-holes",
        story="Leaves the dead out, and takes what is left for a heap.",
        replace="            heapq.heapify(self._heap)\n",
        by="",
        killed_by="test_task_4_remove_does_not_search_and_keeps_the_order",
    ),
    Mutant(
        name="len-counts-the-dead",
        story="The scheduler sees somebody waiting, and peek says that nobody is.",
        replace="        return len(self._waiting)\n",
        by="        return len(self._heap)\n",
        killed_by="test_task_4_remove_takes_out_one_and_only_that",
    ),
    Mutant(
        name="looks-when-it-is-first-asked",
        story="A generator: nothing in it runs before the first next, and the queue has changed by then.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        yield from [request for *_, request in sorted(living)]\n",
        killed_by="test_task_5_an_iterator_shows_those_who_waited_when_it_was_made",
    ),
    Mutant(
        name="looks-again-at-each-one",
        story="A generator that asks who still waits as it goes: whoever leaves during the loop is not seen.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        return (entry[-1] for entry in sorted(living) if self._is_alive(*entry[-2:]))\n",
        killed_by="test_task_5_an_iterator_shows_those_who_waited_when_it_was_made",
    ),
    Mutant(
        name="iterates-in-the-order-of-the-heap",
        story="Takes the heap's list for sorted. Its first entry is in place, the others need not be.",
        replace="        return iter([request for *_, request in sorted(living)])\n",
        by="        return iter([request for *_, request in living])\n",
        killed_by="test_task_5_iteration_is_in_the_order_of_service",
    ),
]
