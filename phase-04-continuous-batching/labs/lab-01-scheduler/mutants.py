"""Mistakes people make in a scheduler, and the test that catches each."""

from course.mutants import Mutant

ADMISSION = """        while len(self.waiting) and step.budget:
            request = self.waiting.peek()
            num_seats = self.max_num_seqs - sum(other.num_sequences for other in self.running)
            num_new_tokens = self._admit(request, step) if request.num_sequences <= num_seats else 0
            if num_new_tokens == 0:
                return
            self.waiting.get()
"""

MUTANTS = [
    Mutant(
        name="asks-only-the-queue",
        story="The queue refuses an id that waits. One that runs already is not in it.",
        replace="        if request.request_id in self.requests:\n",
        by="        if request in self.waiting:\n",
        killed_by="test_task_1_an_id_in_use_is_refused",
    ),
    Mutant(
        name="counts-the-null-block",
        story="Block 0 is part of the pool, but holds no tokens: a prompt of one block too many waits for ever.",
        replace="        if self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        by="        if self._num_blocks_for(request.num_tokens) > self.kv_cache.block_pool.num_blocks:\n",
        killed_by="test_task_1_a_prompt_larger_than_the_pool_is_refused",
    ),
    Mutant(
        name="every-sample-has-its-own-prompt",
        story="Multiplies the prompt's blocks by the number of samples, which share them.",
        replace="        if self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        by="        if request.num_sequences * self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        killed_by="test_task_1_more_sequences_than_seats_are_refused",
    ),
    Mutant(
        name="abort-forgets-the-queue",
        story="The client is gone, but its request still waits, and is served to nobody.",
        replace="        else:\n            self.waiting.remove(request)\n",
        by="",
        killed_by="test_task_2_abort_takes_a_waiting_request_out_of_the_queue",
    ),
    Mutant(
        name="knows-two-states-only",
        story="Asks whether the request is WAITING. One that was preempted waits too; it stays in the queue for ever.",
        replace="        else:\n            self.waiting.remove(request)\n",
        by="        elif request.status is RequestStatus.WAITING:\n            self.waiting.remove(request)\n",
        killed_by="test_task_2_whoever_does_not_run_waits_whatever_its_status_is_called",
    ),
    Mutant(
        name="abort-forgets-the-blocks",
        story="Takes the request out of the batch; its blocks stay in its table, which nobody will ever free.",
        replace="            self.running.remove(request)\n            self.kv_cache.free(request)\n",
        by="            self.running.remove(request)\n",
        killed_by="test_task_2_abort_takes_a_running_request_out_of_the_batch",
    ),
    Mutant(
        name="decoders-behind-a-prompt",
        story="Serves the running ones as they were admitted; a long prompt takes the whole budget, step after step.",
        replace="sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):\n",
        by="self.running:\n",
        killed_by="test_task_3_those_with_one_token_to_go_come_first",
    ),
    Mutant(
        name="shortest-first",
        story="Sorts by what is to go: a long prompt waits for every shorter one that comes.",
        replace="key=lambda request: request.num_tokens - request.num_computed_tokens > 1):\n",
        by="key=lambda request: request.num_tokens - request.num_computed_tokens):\n",
        killed_by="test_task_3_prompts_stand_in_the_order_of_admission",
    ),
    Mutant(
        name="an-empty-list-is-no-room",
        story="`if not allocate_slots(...)`: whoever has room in its last block gets nothing.",
        replace="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="            if not self.kv_cache.allocate_slots(request, num_new_tokens):\n",
        killed_by="test_task_3_whoever_decodes_computes_one_token",
    ),
    Mutant(
        name="the-first-without-a-block-ends-the-round",
        story="Takes one that finds no block for a sign that nobody will; all behind it stand still.",
        replace="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
                "                continue\n",
        by="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
           "                break\n",
        killed_by="test_task_3_who_finds_no_block_does_not_hold_up_the_others",
    ),
    Mutant(
        name="the-batch-is-sorted-by-size",
        story="Sorts the plan by its numbers: single tokens come first, and the chunks change places too.",
        replace="        planned = sorted(step.plan.items(), key=lambda entry: entry[1] > 1)\n",
        by="        planned = sorted(step.plan.items(), key=lambda entry: entry[1])\n",
        killed_by="test_task_3_prompts_stand_in_the_order_of_admission",
    ),
    Mutant(
        name="the-last-chunk-exceeds-the-budget",
        story="Asks whether there is budget, then gives all that is to go.",
        replace="            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n",
        by="            num_new_tokens = request.num_tokens - request.num_computed_tokens if step.budget > 0 else 0\n",
        killed_by="test_task_3_a_long_prompt_is_computed_in_chunks",
    ),
    Mutant(
        name="every-one-has-the-whole-budget",
        story="Forgets to take off what it has given.",
        replace="            step.budget -= num_new_tokens\n        # END TASK\n\n    def _complete",
        by="        # END TASK\n\n    def _complete",
        killed_by="test_task_3_the_budget_is_one_for_all",
    ),
    Mutant(
        name="advances-before-it-allocates",
        story="allocate_slots counts from num_computed_tokens, which has moved already: blocks too many, too soon.",
        replace="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
                "                continue\n",
        by="            request.num_computed_tokens += num_new_tokens\n"
           "            fits = self.kv_cache.allocate_slots(request, num_new_tokens) is not None\n"
           "            request.num_computed_tokens -= num_new_tokens\n"
           "            if not fits:\n                continue\n",
        killed_by="test_task_3_a_step_takes_no_more_blocks_than_its_tokens_need",
    ),
    Mutant(
        name="never-advances",
        story="Plans the same tokens again in every step.",
        replace="            self.requests[request_id].num_computed_tokens += num_new_tokens\n",
        by="            pass\n",
        killed_by="test_task_3_whoever_decodes_computes_one_token",
    ),
    Mutant(
        name="advances-twice",
        story="Admission counts the first chunk as computed, and _complete counts it once more.",
        replace="        request.num_computed_tokens = num_cached\n",
        by="        request.num_computed_tokens = num_cached + num_new_tokens\n",
        killed_by="test_task_4_a_small_mixed_case_step_by_step",
    ),
    Mutant(
        name="samples-in-the-middle-of-a-prompt",
        story="Every request of a step gets a token, also those whose prompt is not complete.",
        replace="            if request.request_id in token_ids:\n"
                "                request.append_output_token(token_ids[request.request_id])\n",
        by="            request.append_output_token(token_ids.get(request.request_id, 0))\n",
        killed_by="test_task_3_a_token_is_appended_only_where_one_was_sampled",
    ),
    Mutant(
        name="token-0-is-no-token",
        story="`if token_ids.get(...)`: 0 is a token id like any other, and false.",
        replace="            if request.request_id in token_ids:\n",
        by="            if token_ids.get(request.request_id):\n",
        killed_by="test_task_3_a_token_is_appended_only_where_one_was_sampled",
    ),
    Mutant(
        name="does-not-tell-that-the-step-has-run",
        story="Copies stay pending and are made again in every later step, over what was written since.",
        replace="        self.kv_cache.finish_step()\n",
        by="",
        killed_by="test_task_3_copies_are_planned_and_then_done_with",
    ),
    Mutant(
        name="waiting-before-running",
        story="Newcomers take the budget first; a prompt that is half computed waits for everybody who comes.",
        replace="""        self._schedule_running(step)
        if len(self.waiting):
            self._schedule_waiting(step)
""",
        by="""        before = list(self.running)
        self._schedule_waiting(step)
        admitted, self.running = self.running[len(before):], before
        self._schedule_running(step)
        self.running = before + admitted
""",
        killed_by="test_task_4_a_small_mixed_case_step_by_step",
    ),
    Mutant(
        name="static-batching",
        story="Admits a batch, and the next one when the last of it is done.",
        replace="        if len(self.waiting):\n            self._schedule_waiting(step)\n",
        by="        if len(self.waiting) and not self.running:\n            self._schedule_waiting(step)\n",
        killed_by="test_task_4_a_late_request_joins_the_batch_at_once",
    ),
    Mutant(
        name="a-step-is-prompts-or-tokens",
        story="Does not mix: while a prompt is being computed, nobody decodes.",
        replace="        self._schedule_running(step)\n",
        by="""        everybody = self.running
        self.running = [r for r in everybody if r.num_tokens - r.num_computed_tokens > 1] or everybody
        self._schedule_running(step)
        self.running = everybody
""",
        killed_by="test_task_4_a_long_prompt_never_stalls_those_who_decode",
    ),
    Mutant(
        name="the-admitted-cost-no-budget",
        story="Two prompts that come together are computed whole, in one step of twice the budget.",
        replace="            step.budget -= num_new_tokens\n        # END TASK\n\n    def _admit",
        by="        # END TASK\n\n    def _admit",
        killed_by="test_task_4_random_traffic_keeps_the_limits_and_says_the_right_thing",
    ),
    Mutant(
        name="the-admitted-cost-twice-the-budget",
        story="_admit takes the tokens off the budget, and so does its caller.",
        replace="        request.status = RequestStatus.RUNNING\n        return num_new_tokens\n",
        by="        request.status = RequestStatus.RUNNING\n        step.budget -= num_new_tokens\n"
           "        return num_new_tokens\n",
        killed_by="test_task_4_a_small_mixed_case_step_by_step",
    ),
    Mutant(
        name="one-seat-too-many",
        story="Asks whether there is a seat for one less than it has.",
        replace="if request.num_sequences <= num_seats else 0\n",
        by="if request.num_sequences <= num_seats + 1 else 0\n",
        killed_by="test_task_4_there_are_only_so_many_seats",
    ),
    Mutant(
        name="counts-requests-not-sequences",
        story="A request of three samples takes one seat, until it is forked; then the batch is too large.",
        replace="self.max_num_seqs - sum(other.num_sequences for other in self.running)\n",
        by="self.max_num_seqs - len(self.running)\n",
        killed_by="test_task_4_every_sequence_of_a_request_takes_a_seat",
    ),
    Mutant(
        name="passes-over-the-head-of-the-queue",
        story="Admits the first that fits. Small requests overtake a large one for as long as they come.",
        replace=ADMISSION,
        by="""        for request in list(self.waiting):
            num_seats = self.max_num_seqs - sum(other.num_sequences for other in self.running)
            num_new_tokens = self._admit(request, step) if step.budget and request.num_sequences <= num_seats else 0
            if num_new_tokens == 0:
                continue
            self.waiting.remove(request)
""",
        killed_by="test_task_4_nobody_is_passed_over",
    ),
    Mutant(
        name="taken-from-the-queue-before-it-was-admitted",
        story="Takes the request out, finds no room, and returns. It is neither waiting nor running any more.",
        replace=ADMISSION,
        by=ADMISSION.replace("            self.waiting.get()\n", "").replace("waiting.peek()", "waiting.get()"),
        killed_by="test_task_4_who_finds_no_room_stays_in_front_of_the_queue",
    ),
    Mutant(
        name="forgets-to-look-for-hits",
        story="Everything is right, and everything is computed again.",
        replace="        hits, num_cached = self.kv_cache.get_computed_blocks(request)\n",
        by="        hits, num_cached = [], 0\n",
        killed_by="test_task_4_a_cached_prompt_computes_one_token",
    ),
    Mutant(
        name="counts-cached-tokens-as-tokens-to-compute",
        story="Adopts the hits, and computes the whole prompt behind them once more.",
        replace="        num_new_tokens = min(request.num_tokens - num_cached, step.budget)\n",
        by="        num_new_tokens = min(request.num_tokens, step.budget)\n",
        killed_by="test_task_4_a_cached_prompt_computes_one_token",
    ),
    Mutant(
        name="admits-by-the-first-chunk",
        story="Asks only for the slots of the next step. Half a prompt holds its blocks and can neither go on nor end.",
        replace="        while not self._has_room(request, hits, num_cached):\n",
        by="        while False:\n",
        killed_by="test_task_5_a_prompt_is_admitted_whole_or_not_at_all",
    ),
    Mutant(
        name="takes-free-hits-for-room",
        story="Counts the cached blocks in the free queue twice: as found, and as free.",
        replace="self.kv_cache.block_pool.get_num_free_blocks() - sum(block.ref_cnt == 0 for block in hits)\n",
        by="self.kv_cache.block_pool.get_num_free_blocks()\n",
        killed_by="test_task_5_cached_blocks_that_are_free_are_no_room",
    ),
    Mutant(
        name="blocks-for-the-tokens-that-are-not-cached",
        story="Rounds up what is left after the hit. If that hit ends inside a block, this is one block too few: there "
              "seems to be room, allocate_slots says no, and the request waits for ever.",
        replace="""        num_new = self._num_blocks_for(request.num_tokens) - len(hits)
        if num_cached % self.kv_cache.block_size:
            num_new += 1
""",
        by="        num_new = self._num_blocks_for(request.num_tokens - num_cached)\n",
        killed_by="test_task_5_tokens_after_half_a_block_may_need_a_block_more",
    ),
    Mutant(
        name="counts-the-copy-twice",
        story="Rounds up what is left after the hit, and adds a block for the copy, in which some of that lies.",
        replace="        num_new = self._num_blocks_for(request.num_tokens) - len(hits)\n",
        by="        num_new = self._num_blocks_for(request.num_tokens - num_cached)\n",
        killed_by="test_task_5_a_hit_inside_a_block_is_kept_if_its_copy_just_fits",
    ),
    Mutant(
        name="forgets-what-was-promised",
        story="A newcomer takes the last block, which a half-computed prompt has just asked for in vain.",
        replace="        return num_new + self._num_promised_blocks() + ",
        by="        return num_new + ",
        killed_by="test_task_5_blocks_that_a_running_prompt_still_needs_are_not_given_away",
    ),
    Mutant(
        name="a-promise-below-nothing",
        story="Who holds more than it needs makes up for what others lack, in the books only.",
        replace="""        return sum(max(self._num_blocks_for(request.num_tokens)
                       - len(self.kv_cache.get_block_ids(request.request_id)), 0) for request in self.running)
""",
        by="""        return sum(self._num_blocks_for(request.num_tokens)
                   - len(self.kv_cache.get_block_ids(request.request_id)) for request in self.running)
""",
        killed_by="test_task_5_a_table_longer_than_needed_promises_nothing",
    ),
    Mutant(
        name="sets-the-watermark-aside-always",
        story="Takes the watermark itself: who is alone and needs the pool waits for ever.",
        replace="self._num_blocks_set_aside(request) <= num_free\n",
        by="self.num_watermark_blocks + request.num_sequences - 1 <= num_free\n",
        killed_by="test_task_5_some_blocks_are_set_aside_while_somebody_runs",
    ),
    Mutant(
        name="sets-aside-nothing-for-samples",
        story="Takes the watermark itself, and forgets that each further sample copies a block.",
        replace="self._num_blocks_set_aside(request) <= num_free\n",
        by="(self.num_watermark_blocks if self.running else 0) <= num_free\n",
        killed_by="test_task_5_samples_of_a_prompt_need_a_block_each_for_their_copy",
    ),
    Mutant(
        name="gives-half-a-hit-up-and-asks-no-more",
        story="Without the copy one block less is needed. That need not be enough.",
        replace="""        while not self._has_room(request, hits, num_cached):
            num_half = num_cached % self.kv_cache.block_size
""",
        by="""        if not self._has_room(request, hits, num_cached):
            num_half = num_cached % self.kv_cache.block_size
""",
        killed_by="test_task_5_there_must_be_room_without_the_half_block_too",
    ),
    Mutant(
        name="holds-on-to-half-a-hit",
        story="The copy of the last hit does not fit, and never will: the request waits for ever.",
        replace="            if num_half == 0:\n                return 0\n",
        by="            return 0\n",
        killed_by="test_task_5_a_hit_inside_a_block_is_given_up_if_its_copy_does_not_fit",
    ),
]
