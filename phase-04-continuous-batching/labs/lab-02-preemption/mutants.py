"""Mistakes people make when memory runs out, and the test that catches each."""

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
        story="Gives the blocks that somebody has just lost to the next one in the queue.",
        replace="        if not step.preempted:\n            self._schedule_waiting(step)\n",
        by="        self._schedule_waiting(step)\n",
        killed_by="test_task_3_a_step_that_preempted_admits_nobody",
    ),
    Mutant(
        name="decoders-behind-a-prompt",
        story="Serves the running ones as they were admitted; a long prompt takes the budget first.",
        replace="sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):\n",
        by="list(self.running):\n",
        killed_by="test_task_1_those_with_one_token_to_go_come_first",
    ),
    Mutant(
        name="serves-one-that-has-just-lost-its-blocks",
        story="Goes through the list of the beginning of the step, and does not ask who still runs.",
        replace="            if request.status is not RequestStatus.RUNNING or num_new_tokens == 0:\n",
        by="            if num_new_tokens == 0:\n",
        killed_by="test_task_3_the_later_one_gives_way_and_comes_back",
    ),
    Mutant(
        name="goes-through-running-while-it-changes",
        story="A victim leaves the list, the loop skips whoever stood behind it.",
        replace="        for request in sorted(self.running, key=lambda request: request.num_tokens - "
                "request.num_computed_tokens > 1):\n",
        by="        self.running.sort(key=lambda request: request.num_tokens - request.num_computed_tokens > 1)\n"
           "        for request in self.running:\n",
        killed_by="test_task_4_the_victims_tokens_return_to_the_budget",
    ),
    Mutant(
        name="plans-who-found-no-room",
        story="Asks for room, and plans the request whatever the answer is.",
        replace="            if slots is None and not self._make_room(request, num_new_tokens, step):\n"
                "                continue\n",
        by="            if slots is None:\n                self._make_room(request, num_new_tokens, step)\n",
        killed_by="test_task_3_who_asks_may_be_the_one_to_give_way",
    ),
    # ---- Task 2
    Mutant(
        name="keeps-the-computed-count",
        story="The blocks are gone, but its tokens still count as computed.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        self.kv_cache.free(request)\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
    ),
    Mutant(
        name="throws-the-output-away",
        story="Starts the request from its prompt again. The reader sees the answer begin twice.",
        replace="        request.num_preemptions += 1\n",
        by="        request.num_preemptions += 1\n        request.output_token_ids.clear()\n"
           "        request.all_token_ids = list(request.prompt_token_ids)\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
    ),
    Mutant(
        name="keeps-the-blocks",
        story="Only the books say that it was preempted; nobody gets a block by it.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
    ),
    Mutant(
        name="status-stays-running",
        story="It waits, and whoever looks at its status believes that it runs.",
        replace="        request.status = RequestStatus.PREEMPTED\n",
        by="",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
    ),
    Mutant(
        name="stays-in-running",
        story="Waits and runs at once, and will be chosen as victim again and again.",
        replace="        self.running.remove(request)\n        self.kv_cache.free(request)\n"
                "        request.num_computed_tokens = 0\n",
        by="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
    ),
    Mutant(
        name="put-instead-of-requeue",
        story="Goes behind all who came at the same time, as if it had just arrived.",
        replace="        self.waiting.requeue(request)\n",
        by="        self.waiting.put(request)\n",
        killed_by="test_task_2_a_preempted_request_waits_in_front_of_its_equals_and_keeps_its_age",
    ),
    Mutant(
        name="starts-to-age-anew",
        story="Sets its arrival to now: a LOW request that is preempted often enough never ends.",
        replace="        self.waiting.requeue(request)\n",
        by="        request.arrival_time = self.waiting.clock()\n        self.waiting.requeue(request)\n",
        killed_by="test_task_2_a_preempted_request_waits_in_front_of_its_equals_and_keeps_its_age",
    ),
    Mutant(
        name="forgets-before-it-frees",
        story="Sets the computed count to 0 first. The cache then believes that the last block holds nothing.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        request.num_computed_tokens = 0\n        self.kv_cache.free(request)\n",
        killed_by="test_task_2_it_finds_its_own_blocks_again",
    ),
    Mutant(
        name="does-not-count-on-the-request",
        story="Only the scheduler counts. The cache takes the one that comes back for a new one, and reports its own "
              "blocks as hits.",
        replace="        request.num_preemptions += 1\n",
        by="",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
    ),
    Mutant(
        name="bills-what-it-found-again",
        story="Comes back through the base's admission, which writes what it finds on the bill.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
    ),
    Mutant(
        name="adds-what-it-found-again",
        story="cached_tokens grows with every preemption, up to more than the prompt has.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="        request.num_cached_tokens += num_cached_tokens\n",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
    ),
    Mutant(
        name="resumes-from-nothing",
        story="Adopts what the cache still has, and then counts it as not computed.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="        request.num_cached_tokens = num_cached_tokens\n        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_it_finds_its_own_blocks_again",
    ),
    Mutant(
        name="comes-back-without-its-tokens",
        story="Lets the base admit it, and forgets to pass the answer on: it holds its blocks, and still waits.",
        replace="        num_new_tokens = super()._admit(request, step)\n",
        by="        super()._admit(request, step)\n        num_new_tokens = 0\n",
        killed_by="test_task_2_all_its_tokens_are_computed_again_and_it_goes_on",
    ),
    # ---- Task 3
    Mutant(
        name="the-first-gives-way",
        story="The request that has waited and computed longest loses everything.",
        replace="        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals\n",
        by="        return self.running[0]\n",
        killed_by="test_task_3_the_later_one_gives_way_and_comes_back",
    ),
    Mutant(
        name="the-latest-gives-way-whatever-its-priority",
        story="Pops the end of running: right as long as all have the same priority.",
        replace="        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals\n",
        by="        return self.running[-1]\n",
        killed_by="test_task_3_the_lowest_priority_gives_way_not_the_latest",
    ),
    Mutant(
        name="the-lowest-priority-whatever-its-age",
        story="Forgets aging: who has aged into service by waiting is thrown out of it again.",
        replace="key=self.waiting.order)  # max keeps the first of equals\n",
        by="key=lambda request: request.priority)\n",
        killed_by="test_task_3_an_old_low_one_is_served_before_a_new_normal_one",
    ),
    Mutant(
        name="of-equals-the-first",
        story="max keeps the first of equals, which in running is the oldest.",
        replace="max(reversed(self.running), key=self.waiting.order)",
        by="max(self.running, key=self.waiting.order)",
        killed_by="test_task_3_of_equals_the_one_admitted_last_gives_way",
    ),
    Mutant(
        name="never-gives-way-itself",
        story="Takes the last of the others, so the least urgent request throws out a more urgent one.",
        replace="            victim = self._choose_victim()\n",
        by="            others = [other for other in reversed(self.running) if other is not request]\n"
           "            victim = max(others or [request], key=self.waiting.order)\n",
        killed_by="test_task_3_who_asks_may_be_the_one_to_give_way",
    ),
    Mutant(
        name="gives-way-and-goes-on",
        story="Preempts itself and is then planned as if it had slots.",
        replace="            if victim is request:\n                return False\n",
        by="            if victim is request:\n                break\n",
        killed_by="test_task_3_who_asks_may_be_the_one_to_give_way",
    ),
    Mutant(
        name="does-not-say-whom-it-preempted",
        story="The plan names no victims; so the step admits somebody, too.",
        replace="            step.preempted.append(victim)\n",
        by="",
        killed_by="test_task_3_the_plan_says_who_was_preempted",
    ),
    Mutant(
        name="an-empty-list-is-no-room",
        story="`while not allocate_slots(...)`: goes on to preempt when the block has become its own.",
        replace="        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="        while not self.kv_cache.allocate_slots(request, num_new_tokens):\n",
        killed_by="test_task_3_room_may_be_made_without_a_new_block",
    ),
    # ---- Task 4
    Mutant(
        name="the-victim-stays-in-the-plan",
        story="Its tokens are computed in blocks that belong to somebody else by now.",
        replace="        step.budget += step.plan.pop(victim.request_id)\n",
        by="        step.budget += step.plan[victim.request_id]\n",
        killed_by="test_task_4_a_victim_that_was_planned_leaves_the_plan",
    ),
    Mutant(
        name="the-budget-does-not-come-back",
        story="The step computes less than it could: the victim's tokens are given to nobody.",
        replace="        step.budget += step.plan.pop(victim.request_id)\n",
        by="        step.plan.pop(victim.request_id)\n",
        killed_by="test_task_4_the_victims_tokens_return_to_the_budget",
    ),
    Mutant(
        name="looks-at-the-budget-again-when-room-was-made",
        story="A victim's tokens came back, so it takes more than it asked for. There are no slots for these.",
        replace="            step.plan[request.request_id] = num_new_tokens\n",
        by="            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n"
           "            step.plan[request.request_id] = num_new_tokens\n",
        killed_by="test_task_4_who_made_room_computes_what_it_asked_for",
    ),
    Mutant(
        name="asks-for-more-when-room-was-made",
        story="A victim's tokens came back, so it asks for slots for more, and others give way for them, too.",
        replace="            if victim is request:\n                return False\n",
        by="            if victim is request:\n                return False\n"
           "            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n",
        killed_by="test_task_4_who_made_room_computes_what_it_asked_for",
    ),
    Mutant(
        name="unwritten-blocks-stay-findable",
        story="The index names a block that nobody has written. Whoever adopts it reads garbage.",
        replace="        self.kv_cache.block_pool.evict_blocks("
                "self.kv_cache.get_block_ids(victim.request_id)[first:])\n",
        by="",
        killed_by="test_task_4_blocks_that_will_not_be_written_are_not_findable",
    ),
    Mutant(
        name="preempts-before-it-takes-back",
        story="By then the block table is empty, and nothing is left to take out of the index.",
        replace="            if victim.request_id in step.plan:\n                self._take_back(victim, step)\n"
                "            self.preempt(victim)\n",
        by="            self.preempt(victim)\n            if victim.request_id in step.plan:\n"
           "                self._take_back(victim, step)\n",
        killed_by="test_task_4_blocks_that_will_not_be_written_are_not_findable",
    ),
    Mutant(
        name="forgets-all-of-the-victims-blocks",
        story="Takes what was computed long ago out of the index, too; all of it is computed again.",
        replace="[first:])\n",
        by="[:])\n",
        killed_by="test_task_4_what_the_victim_had_computed_stays_findable",
    ),
    Mutant(
        name="forgets-the-last-block-only",
        story="Right as long as a victim decodes. One with a chunk leaves blocks in the index that nobody wrote.",
        replace="[first:])\n",
        by="[first:][-1:])\n",
        killed_by="test_task_4_of_a_chunk_no_block_is_findable",
    ),
    Mutant(
        name="one-victim-is-enough",
        story="Preempts once and does not ask again whether there is room now.",
        replace="        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="        if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        killed_by="test_task_4_several_may_have_to_give_way_to_one",
    ),
    # ---- Task 5
    Mutant(
        name="counts-the-tokens-to-come-twice",
        story="num_tokens has them already: a request in the middle of its prompt ends without a word.",
        replace="        if self._has_outgrown(request.num_computed_tokens + num_new_tokens):\n",
        by="        if self._has_outgrown(request.num_tokens + num_new_tokens):\n",
        killed_by="test_task_5_who_is_in_the_middle_of_its_prompt_has_not_outgrown_the_pool",
    ),
    Mutant(
        name="outgrown-means-alone",
        story="Ends who finds no block when nobody else runs. Samples that share the pool preempt each other first.",
        replace="        if self._has_outgrown(request.num_computed_tokens + num_new_tokens):\n",
        by="        if len(self.running) == 1:\n",
        killed_by="test_task_5_samples_that_share_the_pool_outgrow_it_together",
    ),
    Mutant(
        name="preempts-for-what-can-never-fit",
        story="Takes everybody's blocks for a request that the empty pool could not hold.",
        replace="        if self._has_outgrown(request.num_computed_tokens + num_new_tokens):\n"
                "            self._end_outgrown(request, step)\n            return False\n",
        by="",
        killed_by="test_task_5_who_outgrows_the_pool_ends_with_its_output_and_preempts_nobody",
    ),
    Mutant(
        name="tries-what-can-never-fit-for-ever",
        story="Leaves a request that has outgrown the pool in front of the queue, and everybody behind it.",
        replace=END_OUTGROWN,
        by="",
        killed_by="test_task_5_who_was_preempted_with_a_token_too_many_does_not_block_the_queue",
    ),
    Mutant(
        name="ends-only-who-is-first-before-the-step",
        story="Looks at the front of the queue once, before anybody is admitted.",
        replace="        super()._schedule_waiting(step)\n" + END_OUTGROWN,
        by="""        if len(self.waiting) and step.budget and self._has_outgrown(self.waiting.peek().num_tokens):
            self._end_outgrown(self.waiting.peek(), step)
        super()._schedule_waiting(step)
""",
        killed_by="test_task_5_who_can_never_fit_ends_though_others_stand_before_it",
    ),
    Mutant(
        name="outgrown-when-it-just-fits",
        story="Ends a request that fills the pool to the last slot.",
        replace="        return self._num_blocks_for(num_tokens) > self.num_blocks\n",
        by="        return self._num_blocks_for(num_tokens) >= self.num_blocks\n",
        killed_by="test_task_5_who_just_fits_comes_back",
    ),
    Mutant(
        name="counts-the-null-block-as-room",
        story="Preempts for a request that needs a block which is never given out, itself in the end.",
        replace="        return self._num_blocks_for(num_tokens) > self.num_blocks\n",
        by="        return self._num_blocks_for(num_tokens) > self.kv_cache.block_pool.num_blocks\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
    ),
    Mutant(
        name="ends-it-on-paper-only",
        story="Sets the status and leaves the request, and its blocks, where they are.",
        replace="        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        by="        request.status = RequestStatus.FINISHED_KV_CACHE_FULL\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
    ),
    Mutant(
        name="ends-it-without-a-word",
        story="Nobody is told that it has ended; its reader waits for ever.",
        replace="        step.finished.append(request)\n",
        by="        pass\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
    ),
]
