"""Common mistakes when memory runs out, and the test that catches each of them."""

from course.mutants import Mutant

END_OUTGROWN = """\
        while len(self.waiting) and step.budget and self._has_outgrown(self.waiting.peek().num_tokens):
            self._end_outgrown(self.waiting.peek(), step)
            super()._schedule_waiting(step)
"""

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="admits-in-a-step-that-preempted",
        story="Gives the blocks of a preempted request to the next request in the queue.",
        replace="        if not step.preempted:\n            self._schedule_waiting(step)\n",
        by="        self._schedule_waiting(step)\n",
        killed_by="test_task_3_a_step_that_preempted_admits_no_request",
        breaks=("Scheduler.schedule: A step that preempted a request (step.preempted) admits none",
                "module: A step that preempts a request admits none"),
    ),
    Mutant(
        name="decoders-behind-a-prompt",
        story="Serves the running requests in the order of admission. A long prompt takes the budget first.",
        replace="sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):\n",
        by="list(self.running):\n",
        killed_by="test_task_1_those_with_one_token_to_go_come_first",
        breaks="Scheduler._schedule_running: requests with one token to go were served before all others",
    ),
    Mutant(
        name="serves-one-that-has-just-lost-its-blocks",
        story="Loops over the list from the beginning of the step, and does not check which requests still run.",
        replace="            if request.status is not RequestStatus.RUNNING or num_new_tokens == 0:\n",
        by="            if num_new_tokens == 0:\n",
        killed_by="test_task_3_the_later_one_gives_way_and_comes_back",
        breaks=("Scheduler._schedule_running: was preempted earlier in this step no longer runs",
                "invariant 4: A request is in the plan only if it has slots"),
    ),
    Mutant(
        name="goes-through-running-while-it-changes",
        story="A victim leaves the list during the loop, so the loop skips the request behind it.",
        replace="        for request in sorted(self.running, key=lambda request: request.num_tokens - "
                "request.num_computed_tokens > 1):\n",
        by="        self.running.sort(key=lambda request: request.num_tokens - request.num_computed_tokens > 1)\n"
           "        for request in self.running:\n",
        killed_by="test_task_4_the_victims_tokens_return_to_the_budget",
        breaks="Scheduler._schedule_running: _make_room changes running",
    ),
    Mutant(
        name="plans-who-found-no-room",
        story="Asks for room, and plans the request regardless of the result.",
        replace="            if slots is None and not self._make_room(request, num_new_tokens, step):\n"
                "                continue\n",
        by="            if slots is None:\n                self._make_room(request, num_new_tokens, step)\n",
        killed_by="test_task_3_the_request_that_asks_may_be_the_victim",
        breaks=("Scheduler._schedule_running: a request that got nothing is not in the plan",
                "invariant 4: A request is in the plan only if it has slots"),
    ),
    # ---- Task 2
    Mutant(
        name="keeps-the-computed-count",
        story="The blocks are gone, but their tokens still count as computed.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        self.kv_cache.free(request)\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks=("Scheduler.preempt: none of its tokens count as computed (num_computed_tokens is 0)",
                "invariant 2: and none of its tokens count as computed"),
    ),
    Mutant(
        name="throws-the-output-away",
        story="Starts the request from its prompt again. The reader sees the answer begin twice.",
        replace="        request.num_preemptions += 1\n",
        by="        request.num_preemptions += 1\n        request.output_token_ids.clear()\n"
           "        request.all_token_ids = list(request.prompt_token_ids)\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks=("Scheduler.preempt: output_token_ids, all_token_ids, num_cached_tokens and requests have not changed",
                "invariant 1: The output of every request is what it would have been alone, token for token"),
    ),
    Mutant(
        name="keeps-the-blocks",
        story="Marks the request as preempted but frees no block.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks=("Scheduler.preempt: it holds no block (kv_cache.free)",
                "invariant 2: A waiting request holds no block"),
    ),
    Mutant(
        name="status-stays-running",
        story="The request waits, but its status says that it runs.",
        replace="        request.status = RequestStatus.PREEMPTED\n",
        by="",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks="Scheduler.preempt: its status is PREEMPTED",
    ),
    Mutant(
        name="stays-in-running",
        story="The request waits and runs at the same time, and is chosen as the victim again and again.",
        replace="        self.running.remove(request)\n        self.kv_cache.free(request)\n"
                "        request.num_computed_tokens = 0\n",
        by="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks="Scheduler.preempt: the request is not in running, but in waiting",
    ),
    Mutant(
        name="put-instead-of-requeue",
        story="The request goes behind all requests of the same age, as if it had just arrived.",
        replace="        self.waiting.requeue(request)\n",
        by="        self.waiting.put(request)\n",
        killed_by="test_task_2_a_preempted_request_waits_in_front_of_its_equals_and_keeps_its_age",
        breaks=("Scheduler.preempt: in front of requests with the same order",
                "invariant 6: and waits in front of requests with the same order"),
    ),
    Mutant(
        name="starts-to-age-again",
        story="Sets the arrival time to the current time. A LOW request that is preempted often enough never ends.",
        replace="        self.waiting.requeue(request)\n",
        by="        request.arrival_time = self.waiting.clock()\n        self.waiting.requeue(request)\n",
        killed_by="test_task_2_a_preempted_request_waits_in_front_of_its_equals_and_keeps_its_age",
        breaks=("Scheduler.preempt: its arrival time has not changed",
                "invariant 6: A preempted request keeps its arrival time"),
    ),
    Mutant(
        name="forgets-before-it-frees",
        story="Sets the computed count to 0 first. Then the cache assumes that the last block is empty.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        request.num_computed_tokens = 0\n        self.kv_cache.free(request)\n",
        killed_by="test_task_2_it_finds_its_own_blocks_again",
        breaks="Scheduler.preempt: its computed tokens can be found again in the prefix cache, even those in its "
               "half-filled last block",
    ),
    Mutant(
        name="does-not-count-on-the-request",
        story="Only the scheduler counts. The cache treats the resumed request as new, and reports its own blocks as "
              "hits.",
        replace="        request.num_preemptions += 1\n",
        by="",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
        breaks="Scheduler.preempt: its own num_preemptions and the scheduler's have grown by one",
    ),
    Mutant(
        name="bills-what-it-found-again",
        story="Resumes through the base's admission, which overwrites num_cached_tokens.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
        breaks="Scheduler._resume: num_cached_tokens, which usage reports, is what it was before",
    ),
    Mutant(
        name="adds-what-it-found-again",
        story="cached_tokens grows with every preemption, until it exceeds the prompt.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="        request.num_cached_tokens += num_cached_tokens\n",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
        breaks="Scheduler._resume: num_cached_tokens, which usage reports, is what it was before",
    ),
    Mutant(
        name="resumes-from-nothing",
        story="Adopts the cached tokens, but does not count them as computed.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="        request.num_cached_tokens = num_cached_tokens\n        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_it_finds_its_own_blocks_again",
        breaks="Scheduler._resume: the tokens that were found count as computed",
    ),
    Mutant(
        name="comes-back-without-its-tokens",
        story="Lets the base admit the request, but does not return its result: the request holds blocks and still "
              "waits.",
        replace="        num_new_tokens = super()._admit(request, step)\n",
        by="        super()._admit(request, step)\n        num_new_tokens = 0\n",
        killed_by="test_task_2_all_its_tokens_are_computed_again_and_it_goes_on",
        breaks="Scheduler._resume: the base's result: the number of tokens that the request computes now",
    ),
    # ---- Task 3
    Mutant(
        name="the-first-gives-way",
        story="The request that has waited and computed longest loses everything.",
        replace="        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals\n",
        by="        return self.running[0]\n",
        killed_by="test_task_3_the_later_one_gives_way_and_comes_back",
        breaks=("Scheduler._choose_victim: Return the running request that would be served last",
                "invariant 3: The request that would be served last is preempted"),
    ),
    Mutant(
        name="the-latest-gives-way-whatever-its-priority",
        story="Takes the last request in running, which is right only if all requests have the same priority.",
        replace="        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals\n",
        by="        return self.running[-1]\n",
        killed_by="test_task_3_the_lowest_priority_gives_way_not_the_latest",
        breaks=("Scheduler._choose_victim: Return the running request that would be served last",
                "invariant 3: The request that would be served last is preempted"),
    ),
    Mutant(
        name="the-lowest-priority-whatever-its-age",
        story="Ignores aging: a request that is running only because it has aged is preempted again.",
        replace="key=self.waiting.order)  # max keeps the first of equals\n",
        by="key=lambda request: request.priority)\n",
        killed_by="test_task_3_an_old_low_one_is_served_before_a_new_normal_one",
        breaks="Scheduler._choose_victim: It combines priority, age and arrival",
    ),
    Mutant(
        name="of-equals-the-first",
        story="max keeps the first of equal elements, which in running is the one admitted first.",
        replace="max(reversed(self.running), key=self.waiting.order)",
        by="max(self.running, key=self.waiting.order)",
        killed_by="test_task_3_of_equals_the_one_admitted_last_gives_way",
        breaks="Scheduler._choose_victim: if several are equal, the one that was admitted last",
    ),
    Mutant(
        name="never-gives-way-itself",
        story="Chooses among the other requests only, so the least urgent request preempts a more urgent one.",
        replace="            victim = self._choose_victim()\n",
        by="            others = [other for other in reversed(self.running) if other is not request]\n"
           "            victim = max(others or [request], key=self.waiting.order)\n",
        killed_by="test_task_3_the_request_that_asks_may_be_the_victim",
        breaks="Scheduler._make_room: False if request itself was a victim",
    ),
    Mutant(
        name="gives-way-and-goes-on",
        story="Preempts itself and is then planned as if it had slots.",
        replace="            if victim is request:\n                return False\n",
        by="            if victim is request:\n                break\n",
        killed_by="test_task_3_the_request_that_asks_may_be_the_victim",
        breaks="Scheduler._make_room: False if request itself was a victim",
    ),
    Mutant(
        name="does-not-say-whom-it-preempted",
        story="The plan names no victims, so the step also admits a request.",
        replace="            step.preempted.append(victim)\n",
        by="",
        killed_by="test_task_3_the_plan_lists_preempted_requests",
        breaks="Scheduler._make_room: all victims are in step.preempted, in the order in which they were preempted",
    ),
    Mutant(
        name="an-empty-list-is-no-room",
        story="`while not allocate_slots(...)`: keeps preempting although the request now owns the shared block.",
        replace="        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="        while not self.kv_cache.allocate_slots(request, num_new_tokens):\n",
        killed_by="test_task_3_room_may_be_made_without_a_new_block",
        breaks="Scheduler._make_room: An empty list is not None",
    ),
    # ---- Task 4
    Mutant(
        name="the-victim-stays-in-the-plan",
        story="Computes the victim's tokens in blocks that by now belong to another request.",
        replace="        step.budget += step.plan.pop(victim.request_id)\n",
        by="        step.budget += step.plan[victim.request_id]\n",
        killed_by="test_task_4_a_victim_that_was_planned_leaves_the_plan",
        breaks="Scheduler._take_back: the victim is not in the plan",
    ),
    Mutant(
        name="the-budget-does-not-come-back",
        story="The step computes less than it could, because the victim's tokens are lost.",
        replace="        step.budget += step.plan.pop(victim.request_id)\n",
        by="        step.plan.pop(victim.request_id)\n",
        killed_by="test_task_4_the_victims_tokens_return_to_the_budget",
        breaks="Scheduler._take_back: its tokens are in the budget again, for the requests that are planned later",
    ),
    Mutant(
        name="looks-at-the-budget-again-when-room-was-made",
        story="A victim's tokens returned, so the request plans more than it asked for. There are no slots for these "
              "tokens.",
        replace="            step.plan[request.request_id] = num_new_tokens\n",
        by="            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n"
           "            step.plan[request.request_id] = num_new_tokens\n",
        killed_by="test_task_4_a_request_that_made_room_computes_what_it_asked_for",
        breaks=("Scheduler._schedule_running: room was made computes as many tokens as it asked for, and no more",
                "invariant 4: A request is in the plan only if it has slots"),
    ),
    Mutant(
        name="asks-for-more-when-room-was-made",
        story="A victim's tokens returned, so the request asks for more slots, and further requests are preempted for "
              "them.",
        replace="            if victim is request:\n                return False\n",
        by="            if victim is request:\n                return False\n"
           "            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n",
        killed_by="test_task_4_a_request_that_made_room_computes_what_it_asked_for",
        breaks="Scheduler._schedule_running: tokens that returned to the budget are for the requests after it",
    ),
    Mutant(
        name="unwritten-blocks-stay-findable",
        story="The index contains a block that was never written. A request that adopts it reads garbage.",
        replace="        self.kv_cache.block_pool.evict_blocks("
                "self.kv_cache.get_block_ids(victim.request_id)[first:])\n",
        by="",
        killed_by="test_task_4_blocks_that_will_not_be_written_are_not_findable",
        breaks=("Scheduler._take_back: the blocks that it was to write in this step are not in the index",
                "invariant 5: Every block in the index of the prefix cache has been written, or is written in this "
                "step"),
    ),
    Mutant(
        name="preempts-before-it-takes-back",
        story="By then the block table is empty, so no block is taken out of the index.",
        replace="            if victim.request_id in step.plan:\n                self._take_back(victim, step)\n"
                "            self.preempt(victim)\n",
        by="            self.preempt(victim)\n            if victim.request_id in step.plan:\n"
           "                self._take_back(victim, step)\n",
        killed_by="test_task_4_blocks_that_will_not_be_written_are_not_findable",
        breaks="Scheduler._make_room: was taken back (_take_back) before it was preempted",
    ),
    Mutant(
        name="forgets-all-of-the-victims-blocks",
        story="Also takes blocks that were written earlier out of the index, so all tokens are computed again.",
        replace="[first:])\n",
        by="[:])\n",
        killed_by="test_task_4_what_the_victim_had_computed_stays_findable",
        breaks="Scheduler._take_back: the blocks before them stay in the index",
    ),
    Mutant(
        name="forgets-the-last-block-only",
        story="Correct as long as the victim decodes. A victim with a chunk leaves unwritten blocks in the index.",
        replace="[first:])\n",
        by="[first:][-1:])\n",
        killed_by="test_task_4_of_a_chunk_no_block_is_findable",
        breaks="Scheduler._take_back: these are all blocks of its table, starting with the block of position "
               "num_computed_tokens",
    ),
    Mutant(
        name="one-victim-is-enough",
        story="Preempts once and does not check whether there is room now.",
        replace="        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="        if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        killed_by="test_task_4_several_may_have_to_give_way_to_one",
        breaks="Scheduler._make_room: Preempt one victim after the other (_choose_victim, preempt), until",
    ),
    # ---- Task 5
    Mutant(
        name="counts-the-tokens-to-come-twice",
        story="num_tokens already includes the new tokens: a request in the middle of its prompt ends without warning.",
        replace="        if self._has_outgrown(request.num_tokens):\n",
        by="        if self._has_outgrown(request.num_tokens + num_new_tokens):\n",
        killed_by="test_task_5_a_request_inside_its_prompt_has_not_outgrown_the_pool",
        breaks="Scheduler._make_room: num_tokens includes the new tokens",
    ),
    Mutant(
        name="outgrown-means-alone",
        story="Ends a request that finds no block while no other request runs. Samples that share the pool preempt "
              "each other first.",
        replace="        if self._has_outgrown(request.num_tokens):\n",
        by="        if len(self.running) == 1:\n",
        killed_by="test_task_5_samples_that_share_the_pool_outgrow_it_together",
        breaks="Scheduler._make_room: if the whole pool can no longer hold the num_tokens tokens of request",
    ),
    Mutant(
        name="preempts-for-what-can-never-fit",
        story="Preempts all other requests for a request that even the empty pool could not hold.",
        replace="        if self._has_outgrown(request.num_tokens):\n"
                "            self._end_outgrown(request, step)\n            return False\n",
        by="",
        killed_by="test_task_5_a_request_that_outgrows_the_pool_keeps_its_output_and_preempts_none",
        breaks=("Scheduler._make_room: no request was preempted, and request has ended (_end_outgrown)",
                "invariant 7: No request is preempted for it"),
    ),
    Mutant(
        name="tries-what-can-never-fit-for-ever",
        story="Leaves a request that has outgrown the pool at the front of the queue. It blocks all requests behind "
              "it.",
        replace=END_OUTGROWN,
        by="",
        killed_by="test_task_5_a_preempted_request_with_a_token_too_many_does_not_block_the_queue",
        breaks=("Scheduler._schedule_waiting: So it ends (_end_outgrown) instead of blocking the queue forever",
                "invariant 7: A request that can never fit ends at once"),
    ),
    Mutant(
        name="ends-only-who-is-first-before-the-step",
        story="Checks the front of the queue only once, before any request is admitted.",
        replace="        super()._schedule_waiting(step)\n" + END_OUTGROWN,
        by="""        if len(self.waiting) and step.budget and self._has_outgrown(self.waiting.peek().num_tokens):
            self._end_outgrown(self.waiting.peek(), step)
        super()._schedule_waiting(step)
""",
        killed_by="test_task_5_a_request_that_can_never_fit_ends_although_others_are_before_it",
        breaks="Scheduler._schedule_waiting: and the requests behind it get their turn",
    ),
    Mutant(
        name="outgrown-when-it-just-fits",
        story="Ends a request that fills the pool to the last slot.",
        replace="        return self._num_blocks_for(num_tokens) > self.num_blocks\n",
        by="        return self._num_blocks_for(num_tokens) >= self.num_blocks\n",
        killed_by="test_task_5_a_request_that_just_fits_is_resumed",
        breaks="Scheduler._has_outgrown: Return whether num_tokens tokens are more than the whole pool can hold",
    ),
    Mutant(
        name="counts-the-null-block-as-room",
        story="Preempts requests for a request that needs the null block, which is never allocated. Finally it "
              "preempts the request itself.",
        replace="        return self._num_blocks_for(num_tokens) > self.num_blocks\n",
        by="        return self._num_blocks_for(num_tokens) > self.kv_cache.block_pool.num_blocks\n",
        killed_by="test_task_5_the_plan_lists_requests_that_outgrew_the_pool",
        breaks="Scheduler._has_outgrown: Return whether num_tokens tokens are more than the whole pool can hold",
    ),
    Mutant(
        name="ends-it-on-paper-only",
        story="Sets the status, but leaves the request and its blocks where they are.",
        replace="        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        by="        request.status = RequestStatus.FINISHED_KV_CACHE_FULL\n",
        killed_by="test_task_5_the_plan_lists_requests_that_outgrew_the_pool",
        breaks="Scheduler._end_outgrown: and holds no blocks",
    ),
    Mutant(
        name="ends-it-without-a-word",
        story="Does not report that the request has ended; its reader waits forever.",
        replace="        step.finished.append(request)\n",
        by="        pass\n",
        killed_by="test_task_5_the_plan_lists_requests_that_outgrew_the_pool",
        breaks="Scheduler._end_outgrown: it is in step.finished, so that its caller is told",
    ),
    Mutant(
        name="admits-nobody-after-an-end",
        story="Treats an end like a preemption. The blocks of the request that outgrew the pool are unused for one "
              "step.",
        replace="        if not step.preempted:\n",
        by="        if not step.preempted and not step.finished:\n",
        killed_by="test_task_5_a_request_that_outgrows_the_pool_keeps_its_output_and_preempts_none",
        breaks="Scheduler.schedule: then admit waiting ones (_schedule_waiting)",
    ),
    Mutant(
        name="takes-more-if-there-are-slots",
        story="A victim's tokens and blocks returned, so the request asks for more slots. They were for the requests "
              "behind it.",
        replace="            step.plan[request.request_id] = num_new_tokens\n"
                "            step.budget -= num_new_tokens\n",
        by="            more = min(request.num_tokens - request.num_computed_tokens, step.budget)\n"
           "            if more > num_new_tokens and self.kv_cache.allocate_slots(request, more) is not None:\n"
           "                num_new_tokens = more\n"
           "            step.plan[request.request_id] = num_new_tokens\n"
           "            step.budget -= num_new_tokens\n",
        killed_by="test_task_4_a_request_that_made_room_computes_what_it_asked_for",
        breaks="Scheduler._schedule_running: computes as many tokens as it asked for, and no more",
    ),
    Mutant(
        name="passes-over-the-last-victim-only",
        story="Two requests were preempted for one. The first victim is still served and takes the blocks back.",
        replace="            if request.status is not RequestStatus.RUNNING or num_new_tokens == 0:\n",
        by="            if request in step.preempted[-1:] or num_new_tokens == 0:\n",
        killed_by="test_task_3_all_victims_are_skipped",
        breaks="Scheduler._schedule_running: was preempted earlier in this step no longer runs",
    ),
    Mutant(
        name="the-round-ends-with-who-gives-way-itself",
        story="A request found no room and was preempted; all requests behind it get nothing.",
        replace="            if slots is None and not self._make_room(request, num_new_tokens, step):\n"
                "                continue\n",
        by="            if slots is None and not self._make_room(request, num_new_tokens, step):\n"
           "                break\n",
        killed_by="test_task_3_a_request_that_preempts_itself_does_not_hold_up_the_others",
        breaks="Scheduler._schedule_running: and the requests behind it are still served",
    ),
    Mutant(
        name="counts-only-its-own-victims",
        story="preempt does not increase the scheduler's count, so a request that the engine preempts after a failed "
              "step is not counted.",
        replace="        self.num_preemptions += 1\n"
                "        self.waiting.requeue(request)\n",
        by="        self.waiting.requeue(request)\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks="Scheduler.preempt: its own num_preemptions and the scheduler's have grown by one",
    ),
    Mutant(
        name="forgets-the-bill",
        story="Sets all counts to 0, including num_cached_tokens.",
        replace="        request.num_computed_tokens = 0\n",
        by="        request.num_computed_tokens = request.num_cached_tokens = 0\n",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
        breaks="Scheduler.preempt: num_cached_tokens and requests have not changed",
    ),
    Mutant(
        name="out-of-the-books",
        story="Removes the request from requests, as if it had ended. It cannot be aborted, and the server goes to "
              "sleep.",
        replace="        self.waiting.requeue(request)\n",
        by="        self.waiting.requeue(request)\n"
           "        del self.requests[request.request_id]\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks="Scheduler.preempt: num_cached_tokens and requests have not changed",
    ),
    Mutant(
        name="asks-as-a-new-one",
        story="Sets the status to WAITING so that the base admits the request. If there is no room, it later resumes "
              "as a new request, and num_cached_tokens is overwritten.",
        replace="        num_new_tokens = super()._admit(request, step)\n",
        by="        request.status = RequestStatus.WAITING\n"
           "        num_new_tokens = super()._admit(request, step)\n",
        killed_by="test_task_2_a_request_without_room_is_unchanged",
        breaks="Scheduler._resume: if there was no room, nothing has changed",
    ),
    Mutant(
        name="looks-at-half-the-order",
        story="Compares only the first number of the order. Of two requests on the same level, the one that arrived "
              "first may be preempted.",
        replace="key=self.waiting.order)  # max keeps the first of equals\n",
        by="key=lambda request: self.waiting.order(request)[0])\n",
        killed_by="test_task_3_on_the_same_level_the_one_that_came_later_gives_way",
        breaks="Scheduler._choose_victim: of two requests, the one with the smaller order is served first",
    ),
    Mutant(
        name="victims-in-another-order",
        story="Names the last victim first.",
        replace="            step.preempted.append(victim)\n",
        by="            step.preempted.insert(0, victim)\n",
        killed_by="test_task_3_all_victims_are_skipped",
        breaks="Scheduler._make_room: all victims are in step.preempted, in the order in which they were preempted",
    ),
    Mutant(
        name="goes-without-and-keeps-its-blocks",
        story="The request should be preempted, but it just gets no tokens and keeps its blocks. All requests may end "
              "up waiting for each other.",
        replace="            if victim.request_id in step.plan:\n"
                "                self._take_back(victim, step)\n",
        by="            if victim is request:\n"
           "                return False\n"
           "            if victim.request_id in step.plan:\n"
           "                self._take_back(victim, step)\n",
        killed_by="test_task_3_the_request_that_asks_may_be_the_victim",
        breaks="Scheduler._make_room: it is preempted like any other request",
    ),
    Mutant(
        name="outgrown-by-the-token-to-come",
        story="Also counts the token after the new ones. A request that fills the pool to the last slot ends.",
        replace="        if self._has_outgrown(request.num_tokens):\n",
        by="        if self._has_outgrown(request.num_tokens + 1):\n",
        killed_by="test_task_3_room_may_be_made_without_a_new_block",
        breaks="Scheduler._make_room: if the whole pool can no longer hold the num_tokens tokens of request",
    ),
    Mutant(
        name="one-token-comes-back",
        story="Assumes that a victim decodes and returns one token. If the victim had a chunk, the other tokens are "
              "lost.",
        replace="        step.budget += step.plan.pop(victim.request_id)\n",
        by="        del step.plan[victim.request_id]\n"
           "        step.budget += 1\n",
        killed_by="test_task_4_all_of_a_chunk_returns_to_the_budget",
        breaks="Scheduler._take_back: its tokens are in the budget again",
    ),
    Mutant(
        name="forgets-the-block-before",
        story="Starts at the last computed token. At a block boundary that is the previous block, which is written.",
        replace="        first = victim.num_computed_tokens // self.kv_cache.block_size\n",
        by="        first = (victim.num_computed_tokens - 1) // self.kv_cache.block_size\n",
        killed_by="test_task_4_what_the_victim_had_computed_stays_findable",
        breaks="Scheduler._take_back: these are all blocks of its table, starting with the block of position "
               "num_computed_tokens",
    ),
    Mutant(
        name="begins-at-the-next-block",
        story="Rounds up. The half-written block that this step was to fill stays in the index as a full one.",
        replace="        first = victim.num_computed_tokens // self.kv_cache.block_size\n",
        by="        first = self._num_blocks_for(victim.num_computed_tokens)\n",
        killed_by="test_task_4_blocks_that_will_not_be_written_are_not_findable",
        breaks="Scheduler._take_back: these are all blocks of its table, starting with the block of position "
               "num_computed_tokens",
    ),
    Mutant(
        name="ended-by-its-length",
        story="Reports the request as finished normally.",
        replace="RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        by="RequestStatus.FINISHED_LENGTH)\n",
        killed_by="test_task_5_the_plan_lists_requests_that_outgrew_the_pool",
        breaks="Scheduler._end_outgrown: the request has ended as FINISHED_KV_CACHE_FULL",
    ),
    Mutant(
        name="ends-with-nothing-said",
        story="Throws the output away: the caller gets an empty answer.",
        replace="        step.finished.append(request)\n",
        by="        request.output_token_ids.clear()\n"
           "        step.finished.append(request)\n",
        killed_by="test_task_5_a_request_that_outgrows_the_pool_keeps_its_output_and_preempts_none",
        breaks="Scheduler._end_outgrown: its output has not changed",
    ),
    Mutant(
        name="ends-only-who-runs",
        story="Does the work of the base's finish itself, but only for running requests. A request that waits after a "
              "preemption is not in running.",
        replace="        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        by="        self.running.remove(request)\n"
           "        self.kv_cache.free(request)\n"
           "        del self.requests[request.request_id]\n"
           "        request.status = RequestStatus.FINISHED_KV_CACHE_FULL\n",
        killed_by="test_task_5_a_preempted_request_with_a_token_too_many_does_not_block_the_queue",
        breaks="Scheduler._end_outgrown: It may run, or wait after a preemption",
    ),
    Mutant(
        name="every-one-has-the-whole-budget",
        story="Forgets to subtract the tokens from the budget.",
        replace="            step.plan[request.request_id] = num_new_tokens\n"
                "            step.budget -= num_new_tokens\n",
        by="            step.plan[request.request_id] = num_new_tokens\n",
        killed_by="test_task_1_running_requests_come_first_with_one_budget_for_all",
        breaks="Scheduler._schedule_running: step.budget is smaller by that number",
    ),
    Mutant(
        name="all-to-go-or-nothing",
        story="Gives no chunks: a prompt waits until the budget has room for all of it.",
        replace="            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n",
        by="            num_new_tokens = request.num_tokens - request.num_computed_tokens\n"
           "            if num_new_tokens > step.budget:\n"
           "                continue\n",
        killed_by="test_task_1_those_with_one_token_to_go_come_first",
        breaks="Scheduler._schedule_running: each request got all its tokens to go, or as many as were left in "
               "step.budget",
    ),
    Mutant(
        name="a-count-of-0-is-none",
        story="`before or after`: a request that had found nothing reports its own blocks as cached.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="        request.num_cached_tokens = num_cached_tokens or request.num_cached_tokens\n",
        killed_by="test_task_2_it_finds_its_own_blocks_again",
        breaks="Scheduler._resume: is what it was before, even if that was 0",
    ),
    Mutant(
        name="a-victim-in-reserve",
        story="Preempts two requests although one is enough.",
        replace="        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="        while len(step.preempted) < 2 or self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        killed_by="test_task_3_the_plan_lists_preempted_requests",
        breaks="Scheduler._make_room: there are no more than needed",
    ),
    Mutant(
        name="makes-room-and-does-not-say-so",
        story="The slots are allocated, but the method returns None: the request computes nothing in this step.",
        replace="            if victim is request:\n                return False\n        return True\n",
        by="            if victim is request:\n                return False\n",
        killed_by="test_task_3_the_plan_lists_preempted_requests",
        breaks="Scheduler._make_room: True if request has slots for its new tokens",
    ),
    Mutant(
        name="ended-and-planned",
        story="Returns that there is room for a request that has just ended.",
        replace="            self._end_outgrown(request, step)\n            return False\n",
        by="            self._end_outgrown(request, step)\n            return True\n",
        killed_by="test_task_5_the_plan_lists_requests_that_outgrew_the_pool",
        breaks="Scheduler._make_room: False if request has ended",
    ),
    Mutant(
        name="forgets-the-first-block-only",
        story="No request finds the other blocks while the first is missing. As soon as a request computes the first "
              "again, the next one finds blocks after it that were never written.",
        replace="[first:])\n",
        by="[first:first + 1])\n",
        killed_by="test_task_4_of_a_chunk_no_block_is_findable",
        breaks="Scheduler._take_back: the blocks that it was to write in this step are not in the index",
    ),
    Mutant(
        name="tells-only-of-those-that-ran",
        story="A request that waited after a preemption ends, and its caller is never told.",
        replace="        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n"
                "        step.finished.append(request)\n",
        by="        if request.status is RequestStatus.RUNNING:\n"
           "            step.finished.append(request)\n"
           "        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        killed_by="test_task_5_the_plan_lists_requests_that_outgrew_the_pool",
        breaks="Scheduler._end_outgrown: so that its caller is told, whether it ran or waited",
    ),
]
