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
        breaks=("Scheduler.schedule: A step that preempted a request (step.preempted) admits none",
                "module: A step that preempted admits no request"),
    ),
    Mutant(
        name="decoders-behind-a-prompt",
        story="Serves the running ones as they were admitted; a long prompt takes the budget first.",
        replace="sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):\n",
        by="list(self.running):\n",
        killed_by="test_task_1_those_with_one_token_to_go_come_first",
        breaks="Scheduler._schedule_running: requests with one token to go were served before all others",
    ),
    Mutant(
        name="serves-one-that-has-just-lost-its-blocks",
        story="Goes through the list of the beginning of the step, and does not ask who still runs.",
        replace="            if request.status is not RequestStatus.RUNNING or num_new_tokens == 0:\n",
        by="            if num_new_tokens == 0:\n",
        killed_by="test_task_3_the_later_one_gives_way_and_comes_back",
        breaks=("Scheduler._schedule_running: lost its blocks earlier in this step does not run any more",
                "invariant 4: A request is in the plan only if it has slots"),
    ),
    Mutant(
        name="goes-through-running-while-it-changes",
        story="A victim leaves the list, the loop skips whoever stood behind it.",
        replace="        for request in sorted(self.running, key=lambda request: request.num_tokens - "
                "request.num_computed_tokens > 1):\n",
        by="        self.running.sort(key=lambda request: request.num_tokens - request.num_computed_tokens > 1)\n"
           "        for request in self.running:\n",
        killed_by="test_task_4_the_victims_tokens_return_to_the_budget",
        breaks="Scheduler._schedule_running: _make_room changes running",
    ),
    Mutant(
        name="plans-who-found-no-room",
        story="Asks for room, and plans the request whatever the answer is.",
        replace="            if slots is None and not self._make_room(request, num_new_tokens, step):\n"
                "                continue\n",
        by="            if slots is None:\n                self._make_room(request, num_new_tokens, step)\n",
        killed_by="test_task_3_who_asks_may_be_the_one_to_give_way",
        breaks=("Scheduler._schedule_running: a request that got nothing is not in the plan",
                "invariant 4: A request is in the plan only if it has slots"),
    ),
    # ---- Task 2
    Mutant(
        name="keeps-the-computed-count",
        story="The blocks are gone, but its tokens still count as computed.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        self.kv_cache.free(request)\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks=("Scheduler.preempt: nothing of it counts as computed (num_computed_tokens is 0)",
                "invariant 2: and nothing of it counts as computed"),
    ),
    Mutant(
        name="throws-the-output-away",
        story="Starts the request from its prompt again. The reader sees the answer begin twice.",
        replace="        request.num_preemptions += 1\n",
        by="        request.num_preemptions += 1\n        request.output_token_ids.clear()\n"
           "        request.all_token_ids = list(request.prompt_token_ids)\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks=("Scheduler.preempt: output_token_ids, all_token_ids, num_cached_tokens and requests are as they "
                "were",
                "invariant 1: The output of every request is what it would have been alone, token for token"),
    ),
    Mutant(
        name="keeps-the-blocks",
        story="Only the books say that it was preempted; nobody gets a block by it.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks=("Scheduler.preempt: it holds no block (kv_cache.free)",
                "invariant 2: A request that waits holds no block"),
    ),
    Mutant(
        name="status-stays-running",
        story="It waits, and whoever looks at its status believes that it runs.",
        replace="        request.status = RequestStatus.PREEMPTED\n",
        by="",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks="Scheduler.preempt: its status is PREEMPTED",
    ),
    Mutant(
        name="stays-in-running",
        story="Waits and runs at once, and will be chosen as victim again and again.",
        replace="        self.running.remove(request)\n        self.kv_cache.free(request)\n"
                "        request.num_computed_tokens = 0\n",
        by="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks="Scheduler.preempt: it is not in running, but in waiting",
    ),
    Mutant(
        name="put-instead-of-requeue",
        story="Goes behind all who came at the same time, as if it had just arrived.",
        replace="        self.waiting.requeue(request)\n",
        by="        self.waiting.put(request)\n",
        killed_by="test_task_2_a_preempted_request_waits_in_front_of_its_equals_and_keeps_its_age",
        breaks=("Scheduler.preempt: in front of its equals",
                "invariant 6: and waits in front of its equals"),
    ),
    Mutant(
        name="starts-to-age-anew",
        story="Sets its arrival to now: a LOW request that is preempted often enough never ends.",
        replace="        self.waiting.requeue(request)\n",
        by="        request.arrival_time = self.waiting.clock()\n        self.waiting.requeue(request)\n",
        killed_by="test_task_2_a_preempted_request_waits_in_front_of_its_equals_and_keeps_its_age",
        breaks=("Scheduler.preempt: and as old as before",
                "invariant 6: A preempted request is as old as it was"),
    ),
    Mutant(
        name="forgets-before-it-frees",
        story="Sets the computed count to 0 first. The cache then believes that the last block holds nothing.",
        replace="        self.kv_cache.free(request)\n        request.num_computed_tokens = 0\n",
        by="        request.num_computed_tokens = 0\n        self.kv_cache.free(request)\n",
        killed_by="test_task_2_it_finds_its_own_blocks_again",
        breaks="Scheduler.preempt: what was computed of it can be found again, its half-filled last block too",
    ),
    Mutant(
        name="does-not-count-on-the-request",
        story="Only the scheduler counts. The cache takes the one that comes back for a new one, and reports its own "
              "blocks as hits.",
        replace="        request.num_preemptions += 1\n",
        by="",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
        breaks="Scheduler.preempt: its own num_preemptions and the scheduler's are one more",
    ),
    Mutant(
        name="bills-what-it-found-again",
        story="Comes back through the base's admission, which writes what it finds on the bill.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
        breaks="Scheduler._resume: num_cached_tokens, which usage reports, is what it was before",
    ),
    Mutant(
        name="adds-what-it-found-again",
        story="cached_tokens grows with every preemption, up to more than the prompt has.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="        request.num_cached_tokens += num_cached_tokens\n",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
        breaks="Scheduler._resume: num_cached_tokens, which usage reports, is what it was before",
    ),
    Mutant(
        name="resumes-from-nothing",
        story="Adopts what the cache still has, and then counts it as not computed.",
        replace="        request.num_cached_tokens = num_cached_tokens\n",
        by="        request.num_cached_tokens = num_cached_tokens\n        request.num_computed_tokens = 0\n",
        killed_by="test_task_2_it_finds_its_own_blocks_again",
        breaks="Scheduler._resume: what was found counts as computed",
    ),
    Mutant(
        name="comes-back-without-its-tokens",
        story="Lets the base admit it, and forgets to pass the answer on: it holds its blocks, and still waits.",
        replace="        num_new_tokens = super()._admit(request, step)\n",
        by="        super()._admit(request, step)\n        num_new_tokens = 0\n",
        killed_by="test_task_2_all_its_tokens_are_computed_again_and_it_goes_on",
        breaks="Scheduler._resume: the base's answer: the number of tokens that it computes now",
    ),
    # ---- Task 3
    Mutant(
        name="the-first-gives-way",
        story="The request that has waited and computed longest loses everything.",
        replace="        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals\n",
        by="        return self.running[0]\n",
        killed_by="test_task_3_the_later_one_gives_way_and_comes_back",
        breaks=("Scheduler._choose_victim: The running request that would be served last",
                "invariant 3: The request that would be served last gives way"),
    ),
    Mutant(
        name="the-latest-gives-way-whatever-its-priority",
        story="Pops the end of running: right as long as all have the same priority.",
        replace="        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals\n",
        by="        return self.running[-1]\n",
        killed_by="test_task_3_the_lowest_priority_gives_way_not_the_latest",
        breaks=("Scheduler._choose_victim: The running request that would be served last",
                "invariant 3: The request that would be served last gives way"),
    ),
    Mutant(
        name="the-lowest-priority-whatever-its-age",
        story="Forgets aging: who has aged into service by waiting is thrown out of it again.",
        replace="key=self.waiting.order)  # max keeps the first of equals\n",
        by="key=lambda request: request.priority)\n",
        killed_by="test_task_3_an_old_low_one_is_served_before_a_new_normal_one",
        breaks="Scheduler._choose_victim: It knows priority, age and arrival",
    ),
    Mutant(
        name="of-equals-the-first",
        story="max keeps the first of equals, which in running is the oldest.",
        replace="max(reversed(self.running), key=self.waiting.order)",
        by="max(self.running, key=self.waiting.order)",
        killed_by="test_task_3_of_equals_the_one_admitted_last_gives_way",
        breaks="Scheduler._choose_victim: of equals the one that was admitted last",
    ),
    Mutant(
        name="never-gives-way-itself",
        story="Takes the last of the others, so the least urgent request throws out a more urgent one.",
        replace="            victim = self._choose_victim()\n",
        by="            others = [other for other in reversed(self.running) if other is not request]\n"
           "            victim = max(others or [request], key=self.waiting.order)\n",
        killed_by="test_task_3_who_asks_may_be_the_one_to_give_way",
        breaks="Scheduler._make_room: False if request itself was a victim",
    ),
    Mutant(
        name="gives-way-and-goes-on",
        story="Preempts itself and is then planned as if it had slots.",
        replace="            if victim is request:\n                return False\n",
        by="            if victim is request:\n                break\n",
        killed_by="test_task_3_who_asks_may_be_the_one_to_give_way",
        breaks="Scheduler._make_room: False if request itself was a victim",
    ),
    Mutant(
        name="does-not-say-whom-it-preempted",
        story="The plan names no victims; so the step admits somebody, too.",
        replace="            step.preempted.append(victim)\n",
        by="",
        killed_by="test_task_3_the_plan_says_who_was_preempted",
        breaks="Scheduler._make_room: all victims are in step.preempted, in the order in which they gave way",
    ),
    Mutant(
        name="an-empty-list-is-no-room",
        story="`while not allocate_slots(...)`: goes on to preempt when the block has become its own.",
        replace="        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="        while not self.kv_cache.allocate_slots(request, num_new_tokens):\n",
        killed_by="test_task_3_room_may_be_made_without_a_new_block",
        breaks="Scheduler._make_room: An empty list is not None",
    ),
    # ---- Task 4
    Mutant(
        name="the-victim-stays-in-the-plan",
        story="Its tokens are computed in blocks that belong to somebody else by now.",
        replace="        step.budget += step.plan.pop(victim.request_id)\n",
        by="        step.budget += step.plan[victim.request_id]\n",
        killed_by="test_task_4_a_victim_that_was_planned_leaves_the_plan",
        breaks="Scheduler._take_back: it is not in the plan",
    ),
    Mutant(
        name="the-budget-does-not-come-back",
        story="The step computes less than it could: the victim's tokens are given to nobody.",
        replace="        step.budget += step.plan.pop(victim.request_id)\n",
        by="        step.plan.pop(victim.request_id)\n",
        killed_by="test_task_4_the_victims_tokens_return_to_the_budget",
        breaks="Scheduler._take_back: its tokens are in the budget again, for the requests that come after",
    ),
    Mutant(
        name="looks-at-the-budget-again-when-room-was-made",
        story="A victim's tokens came back, so it takes more than it asked for. There are no slots for these.",
        replace="            step.plan[request.request_id] = num_new_tokens\n",
        by="            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n"
           "            step.plan[request.request_id] = num_new_tokens\n",
        killed_by="test_task_4_who_made_room_computes_what_it_asked_for",
        breaks=("Scheduler._schedule_running: room was made computes as many tokens as it asked for, and no more",
                "invariant 4: A request is in the plan only if it has slots"),
    ),
    Mutant(
        name="asks-for-more-when-room-was-made",
        story="A victim's tokens came back, so it asks for slots for more, and others give way for them, too.",
        replace="            if victim is request:\n                return False\n",
        by="            if victim is request:\n                return False\n"
           "            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n",
        killed_by="test_task_4_who_made_room_computes_what_it_asked_for",
        breaks="Scheduler._schedule_running: what came back into the budget is for those after it",
    ),
    Mutant(
        name="unwritten-blocks-stay-findable",
        story="The index names a block that nobody has written. Whoever adopts it reads garbage.",
        replace="        self.kv_cache.block_pool.evict_blocks("
                "self.kv_cache.get_block_ids(victim.request_id)[first:])\n",
        by="",
        killed_by="test_task_4_blocks_that_will_not_be_written_are_not_findable",
        breaks=("Scheduler._take_back: of the blocks that it was to write in this step, none is findable",
                "invariant 5: Every block in the index of the prefix cache has been written, or is written in this "
                "step"),
    ),
    Mutant(
        name="preempts-before-it-takes-back",
        story="By then the block table is empty, and nothing is left to take out of the index.",
        replace="            if victim.request_id in step.plan:\n                self._take_back(victim, step)\n"
                "            self.preempt(victim)\n",
        by="            self.preempt(victim)\n            if victim.request_id in step.plan:\n"
           "                self._take_back(victim, step)\n",
        killed_by="test_task_4_blocks_that_will_not_be_written_are_not_findable",
        breaks="Scheduler._make_room: was taken back (_take_back) before it was preempted",
    ),
    Mutant(
        name="forgets-all-of-the-victims-blocks",
        story="Takes what was computed long ago out of the index, too; all of it is computed again.",
        replace="[first:])\n",
        by="[:])\n",
        killed_by="test_task_4_what_the_victim_had_computed_stays_findable",
        breaks="Scheduler._take_back: what lies before them stays findable",
    ),
    Mutant(
        name="forgets-the-last-block-only",
        story="Right as long as a victim decodes. One with a chunk leaves blocks in the index that nobody wrote.",
        replace="[first:])\n",
        by="[first:][-1:])\n",
        killed_by="test_task_4_of_a_chunk_no_block_is_findable",
        breaks="Scheduler._take_back: they are all from that of position num_computed_tokens on",
    ),
    Mutant(
        name="one-victim-is-enough",
        story="Preempts once and does not ask again whether there is room now.",
        replace="        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="        if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        killed_by="test_task_4_several_may_have_to_give_way_to_one",
        breaks="Scheduler._make_room: One victim after the other gives way (_choose_victim, preempt), until",
    ),
    # ---- Task 5
    Mutant(
        name="counts-the-tokens-to-come-twice",
        story="num_tokens has them already: a request in the middle of its prompt ends without a word.",
        replace="        if self._has_outgrown(request.num_tokens):\n",
        by="        if self._has_outgrown(request.num_tokens + num_new_tokens):\n",
        killed_by="test_task_5_who_is_in_the_middle_of_its_prompt_has_not_outgrown_the_pool",
        breaks="Scheduler._make_room: the new tokens are among num_tokens",
    ),
    Mutant(
        name="outgrown-means-alone",
        story="Ends who finds no block when nobody else runs. Samples that share the pool preempt each other first.",
        replace="        if self._has_outgrown(request.num_tokens):\n",
        by="        if len(self.running) == 1:\n",
        killed_by="test_task_5_samples_that_share_the_pool_outgrow_it_together",
        breaks="Scheduler._make_room: if the whole pool cannot hold the num_tokens tokens of request any more",
    ),
    Mutant(
        name="preempts-for-what-can-never-fit",
        story="Takes everybody's blocks for a request that the empty pool could not hold.",
        replace="        if self._has_outgrown(request.num_tokens):\n"
                "            self._end_outgrown(request, step)\n            return False\n",
        by="",
        killed_by="test_task_5_who_outgrows_the_pool_ends_with_its_output_and_preempts_nobody",
        breaks=("Scheduler._make_room: no request gave way, and request has ended (_end_outgrown)",
                "invariant 7: No request is preempted for it"),
    ),
    Mutant(
        name="tries-what-can-never-fit-for-ever",
        story="Leaves a request that has outgrown the pool in front of the queue, and everybody behind it.",
        replace=END_OUTGROWN,
        by="",
        killed_by="test_task_5_who_was_preempted_with_a_token_too_many_does_not_block_the_queue",
        breaks=("Scheduler._schedule_waiting: So it ends (_end_outgrown) instead of blocking the queue for "
                "ever",
                "invariant 7: What can never fit ends at once"),
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
        breaks="Scheduler._schedule_waiting: and those behind it are looked at",
    ),
    Mutant(
        name="outgrown-when-it-just-fits",
        story="Ends a request that fills the pool to the last slot.",
        replace="        return self._num_blocks_for(num_tokens) > self.num_blocks\n",
        by="        return self._num_blocks_for(num_tokens) >= self.num_blocks\n",
        killed_by="test_task_5_who_just_fits_comes_back",
        breaks="Scheduler._has_outgrown: Whether num_tokens tokens are more than the whole pool can hold",
    ),
    Mutant(
        name="counts-the-null-block-as-room",
        story="Preempts for a request that needs a block which is never given out, itself in the end.",
        replace="        return self._num_blocks_for(num_tokens) > self.num_blocks\n",
        by="        return self._num_blocks_for(num_tokens) > self.kv_cache.block_pool.num_blocks\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
        breaks="Scheduler._has_outgrown: Whether num_tokens tokens are more than the whole pool can hold",
    ),
    Mutant(
        name="ends-it-on-paper-only",
        story="Sets the status and leaves the request, and its blocks, where they are.",
        replace="        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        by="        request.status = RequestStatus.FINISHED_KV_CACHE_FULL\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
        breaks="Scheduler._end_outgrown: and holds no blocks",
    ),
    Mutant(
        name="ends-it-without-a-word",
        story="Nobody is told that it has ended; its reader waits for ever.",
        replace="        step.finished.append(request)\n",
        by="        pass\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
        breaks="Scheduler._end_outgrown: it is in step.finished, so that its caller is told",
    ),
    Mutant(
        name="admits-nobody-after-an-end",
        story="Takes an end for a preemption. The blocks of the one that outgrew the pool lie idle for a step.",
        replace="        if not step.preempted:\n",
        by="        if not step.preempted and not step.finished:\n",
        killed_by="test_task_5_who_outgrows_the_pool_ends_with_its_output_and_preempts_nobody",
        breaks="Scheduler.schedule: then waiting ones are admitted (_schedule_waiting)",
    ),
    Mutant(
        name="takes-more-if-there-are-slots",
        story="A victim's tokens came back, and its blocks too, so it asks for slots for more. They were for those "
              "behind.",
        replace="            step.plan[request.request_id] = num_new_tokens\n"
                "            step.budget -= num_new_tokens\n",
        by="            more = min(request.num_tokens - request.num_computed_tokens, step.budget)\n"
           "            if more > num_new_tokens and self.kv_cache.allocate_slots(request, more) is not None:\n"
           "                num_new_tokens = more\n"
           "            step.plan[request.request_id] = num_new_tokens\n"
           "            step.budget -= num_new_tokens\n",
        killed_by="test_task_4_who_made_room_computes_what_it_asked_for",
        breaks="Scheduler._schedule_running: computes as many tokens as it asked for, and no more",
    ),
    Mutant(
        name="passes-over-the-last-victim-only",
        story="Two gave way to one. The first of them is served, and takes the blocks back.",
        replace="            if request.status is not RequestStatus.RUNNING or num_new_tokens == 0:\n",
        by="            if request in step.preempted[-1:] or num_new_tokens == 0:\n",
        killed_by="test_task_3_all_who_gave_way_are_passed_over",
        breaks="Scheduler._schedule_running: lost its blocks earlier in this step does not run any more",
    ),
    Mutant(
        name="the-round-ends-with-who-gives-way-itself",
        story="One found no room and gave way; all behind it stand still.",
        replace="            if slots is None and not self._make_room(request, num_new_tokens, step):\n"
                "                continue\n",
        by="            if slots is None and not self._make_room(request, num_new_tokens, step):\n"
           "                break\n",
        killed_by="test_task_3_who_gives_way_itself_does_not_hold_up_the_others",
        breaks="Scheduler._schedule_running: and those behind it are served all the same",
    ),
    Mutant(
        name="counts-only-its-own-victims",
        story="Counts where it makes room. Who is preempted by the engine, because a step broke, is not counted.",
        replace="        self.num_preemptions += 1\n"
                "        self.waiting.requeue(request)\n",
        by="        self.waiting.requeue(request)\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks="Scheduler.preempt: its own num_preemptions and the scheduler's are one more",
    ),
    Mutant(
        name="forgets-the-bill",
        story="Sets all counts to 0, that of the cached tokens too.",
        replace="        request.num_computed_tokens = 0\n",
        by="        request.num_computed_tokens = request.num_cached_tokens = 0\n",
        killed_by="test_task_2_what_it_finds_again_is_not_counted_again",
        breaks="Scheduler.preempt: num_cached_tokens and requests are as they were",
    ),
    Mutant(
        name="out-of-the-books",
        story="Takes it out of requests, as if it had ended. Nobody can abort it, and the server goes to sleep.",
        replace="        self.waiting.requeue(request)\n",
        by="        self.waiting.requeue(request)\n"
           "        del self.requests[request.request_id]\n",
        killed_by="test_task_2_preempt_takes_the_blocks_and_leaves_the_output",
        breaks="Scheduler.preempt: num_cached_tokens and requests are as they were",
    ),
    Mutant(
        name="asks-as-a-new-one",
        story="Calls it WAITING, so that the base takes it in. If there is no room, it comes back next time as a "
              "new one, with a new bill.",
        replace="        num_new_tokens = super()._admit(request, step)\n",
        by="        request.status = RequestStatus.WAITING\n"
           "        num_new_tokens = super()._admit(request, step)\n",
        killed_by="test_task_2_who_finds_no_room_stays_as_it_was",
        breaks="Scheduler._resume: if there was no room, nothing has changed",
    ),
    Mutant(
        name="looks-at-half-the-order",
        story="Takes the first number of the order. Of two on the same level, the one that came first may lose its "
              "blocks.",
        replace="key=self.waiting.order)  # max keeps the first of equals\n",
        by="key=lambda request: self.waiting.order(request)[0])\n",
        killed_by="test_task_3_on_the_same_level_the_one_that_came_later_gives_way",
        breaks="Scheduler._choose_victim: of two, the one with the smaller is served first",
    ),
    Mutant(
        name="victims-in-another-order",
        story="Names the last victim first.",
        replace="            step.preempted.append(victim)\n",
        by="            step.preempted.insert(0, victim)\n",
        killed_by="test_task_3_all_who_gave_way_are_passed_over",
        breaks="Scheduler._make_room: all victims are in step.preempted, in the order in which they gave way",
    ),
    Mutant(
        name="goes-without-and-keeps-its-blocks",
        story="It is the one to give way; so it gets nothing, and keeps what it has. All may come to wait for each "
              "other.",
        replace="            if victim.request_id in step.plan:\n"
                "                self._take_back(victim, step)\n",
        by="            if victim is request:\n"
           "                return False\n"
           "            if victim.request_id in step.plan:\n"
           "                self._take_back(victim, step)\n",
        killed_by="test_task_3_who_asks_may_be_the_one_to_give_way",
        breaks="Scheduler._make_room: it gives way like any other",
    ),
    Mutant(
        name="outgrown-by-the-token-to-come",
        story="Counts the token that comes next, too. One that fills the pool to the last slot ends.",
        replace="        if self._has_outgrown(request.num_tokens):\n",
        by="        if self._has_outgrown(request.num_tokens + 1):\n",
        killed_by="test_task_3_room_may_be_made_without_a_new_block",
        breaks="Scheduler._make_room: if the whole pool cannot hold the num_tokens tokens of request any more",
    ),
    Mutant(
        name="one-token-comes-back",
        story="A victim decodes, so one token returns. Of one with a chunk, the others are lost.",
        replace="        step.budget += step.plan.pop(victim.request_id)\n",
        by="        del step.plan[victim.request_id]\n"
           "        step.budget += 1\n",
        killed_by="test_task_4_all_of_a_chunk_returns_to_the_budget",
        breaks="Scheduler._take_back: its tokens are in the budget again",
    ),
    Mutant(
        name="forgets-the-block-before",
        story="Begins at the last token that was computed. At the end of a block that is the block before, which is "
              "written.",
        replace="        first = victim.num_computed_tokens // self.kv_cache.block_size\n",
        by="        first = (victim.num_computed_tokens - 1) // self.kv_cache.block_size\n",
        killed_by="test_task_4_what_the_victim_had_computed_stays_findable",
        breaks="Scheduler._take_back: they are all from that of position num_computed_tokens on",
    ),
    Mutant(
        name="begins-at-the-next-block",
        story="Rounds up. The block that was half written and was to be filled now stays findable, as a full one.",
        replace="        first = victim.num_computed_tokens // self.kv_cache.block_size\n",
        by="        first = self._num_blocks_for(victim.num_computed_tokens)\n",
        killed_by="test_task_4_blocks_that_will_not_be_written_are_not_findable",
        breaks="Scheduler._take_back: they are all from that of position num_computed_tokens on",
    ),
    Mutant(
        name="ended-by-its-length",
        story="Reports it as one that said all it wanted to.",
        replace="RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        by="RequestStatus.FINISHED_LENGTH)\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
        breaks="Scheduler._end_outgrown: it has ended as FINISHED_KV_CACHE_FULL",
    ),
    Mutant(
        name="ends-with-nothing-said",
        story="Throws away what it had said: whoever waits for it gets an empty answer.",
        replace="        step.finished.append(request)\n",
        by="        request.output_token_ids.clear()\n"
           "        step.finished.append(request)\n",
        killed_by="test_task_5_who_outgrows_the_pool_ends_with_its_output_and_preempts_nobody",
        breaks="Scheduler._end_outgrown: its output is as it was",
    ),
    Mutant(
        name="ends-only-who-runs",
        story="Does the base's work itself, for one that runs. One that waits after a preemption is not in running.",
        replace="        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        by="        self.running.remove(request)\n"
           "        self.kv_cache.free(request)\n"
           "        del self.requests[request.request_id]\n"
           "        request.status = RequestStatus.FINISHED_KV_CACHE_FULL\n",
        killed_by="test_task_5_who_was_preempted_with_a_token_too_many_does_not_block_the_queue",
        breaks="Scheduler._end_outgrown: It may run, or wait after a preemption",
    ),
    Mutant(
        name="every-one-has-the-whole-budget",
        story="Forgets to take off what it has given.",
        replace="            step.plan[request.request_id] = num_new_tokens\n"
                "            step.budget -= num_new_tokens\n",
        by="            step.plan[request.request_id] = num_new_tokens\n",
        killed_by="test_task_1_those_who_run_come_first_with_one_budget_for_all",
        breaks="Scheduler._schedule_running: and they are taken off step.budget",
    ),
    Mutant(
        name="all-to-go-or-nothing",
        story="Gives no chunks: a prompt waits until the budget has room for all of it.",
        replace="            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n",
        by="            num_new_tokens = request.num_tokens - request.num_computed_tokens\n"
           "            if num_new_tokens > step.budget:\n"
           "                continue\n",
        killed_by="test_task_1_those_with_one_token_to_go_come_first",
        breaks="Scheduler._schedule_running: each got all its tokens to go, or what was left of step.budget",
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
        story="Lets two give way where one is enough.",
        replace="        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="        while len(step.preempted) < 2 or self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        killed_by="test_task_3_the_plan_says_who_was_preempted",
        breaks="Scheduler._make_room: there are no more than needed",
    ),
    Mutant(
        name="makes-room-and-does-not-say-so",
        story="The slots are made, and the answer is None: the request computes nothing in this step.",
        replace="            if victim is request:\n                return False\n        return True\n",
        by="            if victim is request:\n                return False\n",
        killed_by="test_task_3_the_plan_says_who_was_preempted",
        breaks="Scheduler._make_room: True if request has slots for its new tokens",
    ),
    Mutant(
        name="ended-and-planned",
        story="Says that there is room for a request that has just ended.",
        replace="            self._end_outgrown(request, step)\n            return False\n",
        by="            self._end_outgrown(request, step)\n            return True\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
        breaks="Scheduler._make_room: False if request has ended",
    ),
    Mutant(
        name="forgets-the-first-block-only",
        story="No request finds the others while the first is missing. As soon as one computes the first again, the "
              "next finds blocks after it that were never written.",
        replace="[first:])\n",
        by="[first:first + 1])\n",
        killed_by="test_task_4_of_a_chunk_no_block_is_findable",
        breaks="Scheduler._take_back: of the blocks that it was to write in this step, none is findable",
    ),
    Mutant(
        name="tells-only-of-those-that-ran",
        story="A request that waited after a preemption ends, and its caller never hears of it.",
        replace="        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n"
                "        step.finished.append(request)\n",
        by="        if request.status is RequestStatus.RUNNING:\n"
           "            step.finished.append(request)\n"
           "        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)\n",
        killed_by="test_task_5_the_plan_says_who_outgrew_the_pool",
        breaks="Scheduler._end_outgrown: so that its caller is told, whether it ran or waited",
    ),
]
