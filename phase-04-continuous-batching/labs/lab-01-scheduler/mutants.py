"""Common mistakes in a scheduler, and the test that catches each of them."""

from course.mutants import Mutant

ADMISSION = """        while len(self.waiting) and step.budget:
            request = self.waiting.peek()
            num_seats = self.max_num_seqs - sum(other.num_sequences for other in self.running)
            num_new_tokens = self._admit(request, step) if request.num_sequences <= num_seats else 0
            if num_new_tokens == 0:
                return
            self.waiting.get()
"""

TOKENS_TO_COMPUTE = "        num_new_tokens = min(request.num_tokens - num_cached, step.budget)\n"

ASK_FOR_ROOM = """        while not self._has_room(request, hits, num_cached):
            num_half = num_cached % self.kv_cache.block_size
            if num_half == 0:
                return 0
            hits, num_cached = hits[:-1], num_cached - num_half
""" + TOKENS_TO_COMPUTE

MUTANTS = [
    Mutant(
        name="asks-only-the-queue",
        story="Checks only the ids in the queue. A request that runs is not in the queue, so its id is accepted again.",
        replace="        if request.request_id in self.requests:\n",
        by="        if request in self.waiting:\n",
        killed_by="test_task_1_an_id_in_use_is_refused",
        breaks="Scheduler.add_request: its id is in use by a request that waits or runs",
    ),
    Mutant(
        name="counts-the-null-block",
        story="Block 0 is part of the pool but holds no tokens. A prompt that needs one block too many waits forever.",
        replace="        if self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        by="        if self._num_blocks_for(request.num_tokens) > self.kv_cache.block_pool.num_blocks:\n",
        killed_by="test_task_1_a_prompt_larger_than_the_pool_is_refused",
        breaks="Scheduler.add_request: its num_tokens tokens need more blocks than the pool has (num_blocks)",
    ),
    Mutant(
        name="every-sample-has-its-own-prompt",
        story="Multiplies the prompt's blocks by the number of samples, although the samples share them.",
        replace="        if self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        by="        if request.num_sequences * self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        killed_by="test_task_1_more_sequences_than_seats_are_refused",
        breaks="Scheduler.add_request: its num_tokens tokens need more blocks than the pool has",
    ),
    Mutant(
        name="abort-forgets-the-queue",
        story="The client has disconnected, but its request still waits and is served later.",
        replace="        else:\n            self.waiting.remove(request)\n",
        by="",
        killed_by="test_task_2_abort_takes_a_waiting_request_out_of_the_queue",
        breaks="Scheduler.finish: the request is not in requests, running or waiting",
    ),
    Mutant(
        name="knows-two-states-only",
        story="Checks whether the request is WAITING. A preempted request also waits; it stays in the queue forever.",
        replace="        else:\n            self.waiting.remove(request)\n",
        by="        elif request.status is RequestStatus.WAITING:\n            self.waiting.remove(request)\n",
        killed_by="test_task_2_a_request_that_does_not_run_waits_whatever_its_status",
        breaks="Scheduler.finish: any other status (PREEMPTED in lab 4.2) means that it waits",
    ),
    Mutant(
        name="abort-forgets-the-blocks",
        story="Takes the request out of the batch, but never frees its blocks.",
        replace="            self.running.remove(request)\n            self.kv_cache.free(request)\n",
        by="            self.running.remove(request)\n",
        killed_by="test_task_2_abort_takes_a_running_request_out_of_the_batch",
        breaks=("Scheduler.finish: if it ran, it holds no blocks (kv_cache.free)",
                "invariant 6: When all requests have ended, all blocks are free"),
    ),
    Mutant(
        name="decoders-behind-a-prompt",
        story="Serves the running requests in the order of admission. A long prompt takes the whole budget in every "
              "step.",
        replace="sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):\n",
        by="self.running:\n",
        killed_by="test_task_3_those_with_one_token_to_go_come_first",
        breaks=("Scheduler._schedule_running: requests with one token to go were served before all others",
                "invariant 2: A request that decodes gets a token in every step"),
    ),
    Mutant(
        name="shortest-first",
        story="Sorts by the number of tokens to go. A long prompt waits for every shorter one that arrives.",
        replace="key=lambda request: request.num_tokens - request.num_computed_tokens > 1):\n",
        by="key=lambda request: request.num_tokens - request.num_computed_tokens):\n",
        killed_by="test_task_3_prompts_stand_in_the_order_of_admission",
        breaks="Scheduler._schedule_running: apart from that, in the order of running",
    ),
    Mutant(
        name="an-empty-list-is-no-room",
        story="`if not allocate_slots(...)`: a request with room in its last block gets nothing.",
        replace="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n",
        by="            if not self.kv_cache.allocate_slots(request, num_new_tokens):\n",
        killed_by="test_task_3_a_decoding_request_computes_one_token",
        breaks="Scheduler._schedule_running: which is empty if the last block has room. It returns None",
    ),
    Mutant(
        name="the-first-without-a-block-ends-the-round",
        story="Stops at the first request that finds no block. All requests behind it get nothing.",
        replace="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
                "                continue\n",
        by="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
           "                break\n",
        killed_by="test_task_3_a_request_without_a_block_does_not_hold_up_the_others",
        breaks="Scheduler._schedule_running: requests behind one that got nothing are still served",
    ),
    Mutant(
        name="the-batch-is-sorted-by-size",
        story="Sorts the plan by the number of tokens. Single tokens are first, but the chunks also change places.",
        replace="        planned = sorted(step.plan.items(), key=lambda entry: entry[1] > 1)\n",
        by="        planned = sorted(step.plan.items(), key=lambda entry: entry[1])\n",
        killed_by="test_task_3_prompts_stand_in_the_order_of_admission",
        breaks="Scheduler._complete: apart from that, in the order of step.plan",
    ),
    Mutant(
        name="the-last-chunk-exceeds-the-budget",
        story="Checks that some budget is left, then gives the request all its tokens to go.",
        replace="            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)\n",
        by="            num_new_tokens = request.num_tokens - request.num_computed_tokens if step.budget > 0 else 0\n",
        killed_by="test_task_3_a_long_prompt_is_computed_in_chunks",
        breaks=("Scheduler._schedule_running: each request got all its tokens to go, or as many as were left in "
                "step.budget",
                "invariant 1: A step computes at most max_num_batched_tokens tokens"),
    ),
    Mutant(
        name="every-one-has-the-whole-budget",
        story="Forgets to subtract the tokens from the budget.",
        replace="            step.budget -= num_new_tokens\n        # END TASK\n\n    def _complete",
        by="        # END TASK\n\n    def _complete",
        killed_by="test_task_3_the_budget_is_one_for_all",
        breaks="Scheduler._schedule_running: step.budget is smaller by that number",
    ),
    Mutant(
        name="advances-before-it-allocates",
        story="allocate_slots counts from num_computed_tokens, which has already been advanced. It allocates too many "
              "blocks too early.",
        replace="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
                "                continue\n",
        by="            request.num_computed_tokens += num_new_tokens\n"
           "            fits = self.kv_cache.allocate_slots(request, num_new_tokens) is not None\n"
           "            request.num_computed_tokens -= num_new_tokens\n"
           "            if not fits:\n                continue\n",
        killed_by="test_task_3_a_step_takes_no_more_blocks_than_its_tokens_need",
        breaks=("Scheduler._complete: allocate_slots must count from the old number",
                "invariant 3: after all slots of the step are allocated"),
    ),
    Mutant(
        name="moves-on-one-by-one",
        story="Advances each request as soon as it has its slots, and undoes that for _complete. A subclass that "
              "overrides this loop would advance no request.",
        replace="            step.budget -= num_new_tokens\n        # END TASK\n\n    def _complete",
        by="            step.budget -= num_new_tokens\n"
           "            request.num_computed_tokens += num_new_tokens\n"
           "        for request_id, num_new_tokens in step.plan.items():\n"
           "            self.requests[request_id].num_computed_tokens -= num_new_tokens\n"
           "        # END TASK\n\n    def _complete",
        killed_by="test_task_3_a_step_takes_no_more_blocks_than_its_tokens_need",
        breaks=("Scheduler._complete: it is advanced nowhere else",
                "Scheduler._schedule_running: running and the requests themselves have not changed"),
    ),
    Mutant(
        name="never-advances",
        story="Plans the same tokens again in every step.",
        replace="            self.requests[request_id].num_computed_tokens += num_new_tokens\n",
        by="            pass\n",
        killed_by="test_task_3_a_decoding_request_computes_one_token",
        breaks=("Scheduler._complete: num_computed_tokens of each request in step.plan is larger by the number of "
                "tokens that it computes",
                "invariant 3: num_computed_tokens grows once per step"),
    ),
    Mutant(
        name="advances-twice",
        story="Admission counts the first chunk as computed, and _complete counts it again.",
        replace="        request.num_computed_tokens = num_cached\n",
        by="        request.num_computed_tokens = num_cached + num_new_tokens\n",
        killed_by="test_task_4_a_small_mixed_case_step_by_step",
        breaks=("Scheduler._complete: it is advanced nowhere else",
                "Scheduler._admit: num_computed_tokens and num_cached_tokens of the request are the number of cached "
                "tokens that were adopted"),
    ),
    Mutant(
        name="samples-in-the-middle-of-a-prompt",
        story="Every request of a step gets a token, even if its prompt is not complete.",
        replace="            if request.request_id in token_ids:\n"
                "                request.append_output_token(token_ids[request.request_id])\n",
        by="            request.append_output_token(token_ids.get(request.request_id, 0))\n",
        killed_by="test_task_3_a_token_is_appended_only_where_one_was_sampled",
        breaks=("Scheduler.update_from_output: the other requests got no token: they are in the middle of their "
                "prompts",
                "invariant 7: The output of every request is what it would be alone"),
    ),
    Mutant(
        name="token-0-is-no-token",
        story="`if token_ids.get(...)`: 0 is a token id like any other, but it is falsy.",
        replace="            if request.request_id in token_ids:\n",
        by="            if token_ids.get(request.request_id):\n",
        killed_by="test_task_3_a_token_is_appended_only_where_one_was_sampled",
        breaks="Scheduler.update_from_output: whose id is in token_ids has that token as its last output token",
    ),
    Mutant(
        name="does-not-tell-that-the-step-has-run",
        story="Copies stay pending. Every later step makes them again and overwrites what was written since.",
        replace="        self.kv_cache.finish_step()\n",
        by="",
        killed_by="test_task_3_copies_are_planned_and_then_done_with",
        breaks="Scheduler.update_from_output: the KV cache was told that the step has run",
    ),
    Mutant(
        name="waiting-before-running",
        story="New requests get the budget first. A half-computed prompt waits for every request that arrives.",
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
        breaks="Scheduler.schedule: The running requests get their tokens first",
    ),
    Mutant(
        name="static-batching",
        story="Admits a batch, and admits the next one only when the whole batch is finished.",
        replace="        if len(self.waiting):\n            self._schedule_waiting(step)\n",
        by="        if len(self.waiting) and not self.running:\n            self._schedule_waiting(step)\n",
        killed_by="test_task_4_a_late_request_joins_the_batch_at_once",
        breaks="Scheduler.schedule: If any request waits, _schedule_waiting (Task 4) gives out the rest of the budget",
    ),
    Mutant(
        name="a-step-is-prompts-or-tokens",
        story="Does not mix prompts and decoding: while a prompt is computed, no request decodes.",
        replace="        self._schedule_running(step)\n",
        by="""        everybody = self.running
        self.running = [r for r in everybody if r.num_tokens - r.num_computed_tokens > 1] or everybody
        self._schedule_running(step)
        self.running = everybody
""",
        killed_by="test_task_4_a_long_prompt_never_stalls_decoding_requests",
        breaks="invariant 2: A request that decodes gets a token in every step",
    ),
    Mutant(
        name="the-admitted-cost-no-budget",
        story="Two prompts that arrive together are both computed whole, in one step that exceeds the budget.",
        replace="            step.budget -= num_new_tokens\n        # END TASK\n\n    def _admit",
        by="        # END TASK\n\n    def _admit",
        killed_by="test_task_4_random_traffic_keeps_the_limits_and_says_the_right_thing",
        breaks="Scheduler._schedule_waiting: step.budget is smaller by that number",
    ),
    Mutant(
        name="the-admitted-cost-twice-the-budget",
        story="_admit subtracts the tokens from the budget, and its caller subtracts them again.",
        replace="        request.status = RequestStatus.RUNNING\n        return num_new_tokens\n",
        by="        request.status = RequestStatus.RUNNING\n        step.budget -= num_new_tokens\n"
           "        return num_new_tokens\n",
        killed_by="test_task_4_a_small_mixed_case_step_by_step",
        breaks="Scheduler._admit: step, the queue and running have not changed",
    ),
    Mutant(
        name="one-seat-too-many",
        story="Admits a request even if one seat too few is free.",
        replace="if request.num_sequences <= num_seats else 0\n",
        by="if request.num_sequences <= num_seats + 1 else 0\n",
        killed_by="test_task_4_there_are_only_so_many_seats",
        breaks=("Scheduler._schedule_waiting: together are at most max_num_seqs",
                "invariant 1: At most max_num_seqs sequences run"),
    ),
    Mutant(
        name="counts-requests-not-sequences",
        story="A request with three samples takes one seat until it is forked. Then the batch is too large.",
        replace="self.max_num_seqs - sum(other.num_sequences for other in self.running)\n",
        by="self.max_num_seqs - len(self.running)\n",
        killed_by="test_task_4_every_sequence_of_a_request_takes_a_seat",
        breaks="Scheduler._schedule_waiting: the num_sequences of all running requests",
    ),
    Mutant(
        name="passes-over-the-head-of-the-queue",
        story="Admits the first request that fits. Small requests overtake a large one as long as they keep arriving.",
        replace=ADMISSION,
        by="""        for request in list(self.waiting):
            num_seats = self.max_num_seqs - sum(other.num_sequences for other in self.running)
            num_new_tokens = self._admit(request, step) if step.budget and request.num_sequences <= num_seats else 0
            if num_new_tokens == 0:
                continue
            self.waiting.remove(request)
""",
        killed_by="test_task_4_no_request_is_passed_over",
        breaks=("Scheduler._schedule_waiting: no request is passed over",
                "invariant 4: the first in the queue is admitted, or none is"),
    ),
    Mutant(
        name="taken-from-the-queue-before-it-was-admitted",
        story="Takes the request out of the queue, finds no room, and returns. The request neither waits nor runs.",
        replace=ADMISSION,
        by=ADMISSION.replace("            self.waiting.get()\n", "").replace("waiting.peek()", "waiting.get()"),
        killed_by="test_task_4_a_request_without_room_stays_in_front_of_the_queue",
        breaks="Scheduler._schedule_waiting: a request that was not admitted stays where it is",
    ),
    Mutant(
        name="forgets-to-look-for-hits",
        story="Does not look into the prefix cache. Every output is right, but cached tokens are computed again.",
        replace="        hits, num_cached = self.kv_cache.get_computed_blocks(request)\n",
        by="        hits, num_cached = [], 0\n",
        killed_by="test_task_4_a_cached_prompt_computes_one_token",
        breaks="Scheduler._admit: Adopt the cached prefix of request",
    ),
    Mutant(
        name="counts-cached-tokens-as-tokens-to-compute",
        story="Adopts the hits, but then plans to compute all tokens of the prompt, including the cached ones.",
        replace="        num_new_tokens = min(request.num_tokens - num_cached, step.budget)\n",
        by="        num_new_tokens = min(request.num_tokens, step.budget)\n",
        killed_by="test_task_4_a_cached_prompt_computes_one_token",
        breaks="Scheduler._admit: the number of tokens that the request computes now, without the cached ones",
    ),
    Mutant(
        name="admits-by-the-first-chunk",
        story="Checks only the slots of the next step. A half-computed prompt holds its blocks and can neither "
              "continue nor end.",
        replace="        while not self._has_room(request, hits, num_cached):\n",
        by="        while False:\n",
        killed_by="test_task_5_a_prompt_is_admitted_whole_or_not_at_all",
        breaks=("Scheduler._admit: In Task 5, _has_room must also be true",
                "invariant 5: An admitted request has room for all its tokens"),
    ),
    Mutant(
        name="takes-free-hits-for-room",
        story="Counts the cached blocks in the free queue twice: as hits and as free blocks.",
        replace="self.kv_cache.block_pool.get_num_free_blocks() - sum(block.ref_cnt == 0 for block in hits)\n",
        by="self.kv_cache.block_pool.get_num_free_blocks()\n",
        killed_by="test_task_5_cached_blocks_that_are_free_are_no_room",
        breaks="Scheduler._has_room: is about to leave it, so it does not count as free",
    ),
    Mutant(
        name="blocks-for-the-tokens-that-are-not-cached",
        story="Rounds up the number of tokens after the hit. If the hit ends inside a block, the result is one block "
              "too low: there seems to be room, but allocate_slots returns None, and the request waits forever.",
        replace="""        num_new = self._num_blocks_for(request.num_tokens) - len(hits)
        if num_cached % self.kv_cache.block_size:
            num_new += 1
""",
        by="        num_new = self._num_blocks_for(request.num_tokens - num_cached)\n",
        killed_by="test_task_5_tokens_after_half_a_block_may_need_a_block_more",
        breaks="Scheduler._has_room: Count blocks, not uncached tokens",
    ),
    Mutant(
        name="counts-the-copy-twice",
        story="Rounds up the number of tokens after the hit, and adds a block for the copy, which holds some of these "
              "tokens.",
        replace="        num_new = self._num_blocks_for(request.num_tokens) - len(hits)\n",
        by="        num_new = self._num_blocks_for(request.num_tokens - num_cached)\n",
        killed_by="test_task_5_a_hit_inside_a_block_is_kept_if_its_copy_just_fits",
        breaks="Scheduler._has_room: Its new blocks: the number of blocks for all its num_tokens "
               "tokens, minus one per hit",
    ),
    Mutant(
        name="forgets-what-was-promised",
        story="A new request takes the last block, although a half-computed prompt has just asked for it in vain.",
        replace="        return num_new + self._num_promised_blocks() + ",
        by="        return num_new + ",
        killed_by="test_task_5_blocks_that_a_running_prompt_still_needs_are_not_given_away",
        breaks=("Scheduler._has_room: whether its new blocks, _num_promised_blocks and",
                "invariant 5: in addition to the blocks that the running requests need for theirs"),
    ),
    Mutant(
        name="a-promise-below-nothing",
        story="A request that holds more blocks than it needs offsets what other requests lack, although they cannot "
              "use its blocks.",
        replace="""        return sum(max(self._num_blocks_for(request.num_tokens)
                       - len(self.kv_cache.get_block_ids(request.request_id)), 0) for request in self.running)
""",
        by="""        return sum(self._num_blocks_for(request.num_tokens)
                   - len(self.kv_cache.get_block_ids(request.request_id)) for request in self.running)
""",
        killed_by="test_task_5_a_table_longer_than_needed_promises_nothing",
        breaks="Scheduler._num_promised_blocks: the request needs 0 blocks, not a negative number",
    ),
    Mutant(
        name="sets-the-watermark-aside-always",
        story="Uses the watermark directly. A request that is alone and needs the whole pool waits forever.",
        replace="self._num_blocks_set_aside(request) <= num_free\n",
        by="self.num_watermark_blocks + request.num_sequences - 1 <= num_free\n",
        killed_by="test_task_5_some_blocks_are_set_aside_while_a_request_runs",
        breaks="Scheduler._num_blocks_set_aside: The number is 0 while no request runs",
    ),
    Mutant(
        name="sets-aside-nothing-for-samples",
        story="Uses the watermark directly, and forgets that each further sample copies a block.",
        replace="self._num_blocks_set_aside(request) <= num_free\n",
        by="(self.num_watermark_blocks if self.running else 0) <= num_free\n",
        killed_by="test_task_5_samples_of_a_prompt_need_a_block_each_for_their_copy",
        breaks="Scheduler._has_room: and _num_blocks_set_aside together are at most the number of free blocks",
    ),
    Mutant(
        name="gives-half-a-hit-up-and-asks-no-more",
        story="Gives up the half block, and does not ask again whether there is room. There may still be none.",
        replace="""        while not self._has_room(request, hits, num_cached):
            num_half = num_cached % self.kv_cache.block_size
""",
        by="""        if not self._has_room(request, hits, num_cached):
            num_half = num_cached % self.kv_cache.block_size
""",
        killed_by="test_task_5_there_must_be_room_without_the_half_block_too",
        breaks="Scheduler._admit: 0 if there is no room, neither with all hits nor without a last hit that "
               "would have to be copied",
    ),
    Mutant(
        name="holds-on-to-half-a-hit",
        story="The copy of the last hit does not fit and never will: the request waits forever.",
        replace="            if num_half == 0:\n                return 0\n",
        by="            return 0\n",
        killed_by="test_task_5_a_hit_inside_a_block_is_given_up_if_its_copy_does_not_fit",
        breaks="Scheduler._admit: try once more without that last block",
    ),
    Mutant(
        name="counts-before-half-a-hit-is-given-up",
        story="Counts the tokens to compute right after the cache lookup. Then the request gives up the half block, "
              "and its tokens are computed one step late.",
        replace=ASK_FOR_ROOM,
        by=TOKENS_TO_COMPUTE + ASK_FOR_ROOM.replace(TOKENS_TO_COMPUTE, ""),
        killed_by="test_task_5_a_hit_inside_a_block_is_given_up_if_its_copy_does_not_fit",
        breaks="Scheduler._admit: allocate slots for as many more tokens as step.budget allows",
    ),
    Mutant(
        name="just-enough-is-too-little",
        story="`<` for `<=`: a new request never gets the last free block.",
        replace="self._num_blocks_set_aside(request) <= num_free\n",
        by="self._num_blocks_set_aside(request) < num_free\n",
        killed_by="test_task_5_what_just_fits_is_admitted",
        breaks="Scheduler._has_room: Return whether all tokens of a waiting request fit",
    ),
    Mutant(
        name="came-but-is-not-in-the-books",
        story="The request waits, but the scheduler says that no request is left, so the server goes to sleep.",
        replace="        self.waiting.put(request)\n"
                "        self.requests[request.request_id] = request\n",
        by="        self.waiting.put(request)\n",
        killed_by="test_task_1_a_request_that_came_waits",
        breaks="Scheduler.add_request: the request is in waiting, and in requests under its id",
    ),
    Mutant(
        name="in-the-books-before-it-was-checked",
        story="Registers the request first and checks it afterwards. A refused request stays registered.",
        replace="        if request.num_sequences > self.max_num_seqs:\n",
        by="        self.requests[request.request_id] = request\n"
           "        if request.num_sequences > self.max_num_seqs:\n",
        killed_by="test_task_1_more_sequences_than_seats_are_refused",
        breaks="Scheduler.add_request: in each case nothing has changed, neither in the scheduler nor in the request",
    ),
    Mutant(
        name="in-the-books-before-the-queue-took-it",
        story="The queue may also refuse a request. Then the request is registered but does not wait, and the server "
              "never finishes.",
        replace="        self.waiting.put(request)\n"
                "        self.requests[request.request_id] = request\n",
        by="        self.requests[request.request_id] = request\n"
           "        self.waiting.put(request)\n",
        killed_by="test_task_1_what_the_queue_refuses_is_not_in_the_books",
        breaks=("Scheduler.add_request: what waiting.put raises",
                "Scheduler.add_request: in each case nothing has changed"),
    ),
    Mutant(
        name="too-many-says-no-more",
        story="Refuses the request, but the message does not name the limit.",
        replace="raise ValueError(f\"n is {request.num_sequences}, must be at most max_num_seqs "
                "({self.max_num_seqs})\")\n",
        by="raise ValueError(f\"n is {request.num_sequences}, which is too many\")\n",
        killed_by="test_task_1_more_sequences_than_seats_are_refused",
        breaks="Scheduler.add_request: the message of each ValueError above names the value and the bound",
    ),
    Mutant(
        name="as-many-samples-as-seats-are-too-many",
        story="Refuses a request that fills all seats.",
        replace="        if request.num_sequences > self.max_num_seqs:\n",
        by="        if request.num_sequences >= self.max_num_seqs:\n",
        killed_by="test_task_1_more_sequences_than_seats_are_refused",
        breaks="Scheduler.add_request: its num_sequences (the number of samples of its prompt) is above "
               "max_num_seqs",
    ),
    Mutant(
        name="refuses-by-the-prompt-alone",
        story="Ignores the output that a request may already have. A request that can never fit is accepted and waits "
              "forever.",
        replace="        if self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        by="        if self._num_blocks_for(request.num_prompt_tokens) > self.num_blocks:\n",
        killed_by="test_task_1_a_prompt_larger_than_the_pool_is_refused",
        breaks="Scheduler.add_request: its num_tokens tokens need more blocks than the pool has",
    ),
    Mutant(
        name="nobody-runs-so-nobody-is-left",
        story="Checks only the running requests. The first request of the day waits and is never served.",
        replace="        return bool(self.requests)\n",
        by="        return bool(self.running)\n",
        killed_by="test_task_1_a_request_that_came_waits",
        breaks="Scheduler.has_unfinished_requests: Return whether any request waits or runs",
    ),
    Mutant(
        name="its-id-stays-taken",
        story="The request has left the batch and its blocks are free, but its id stays in use forever.",
        replace="        del self.requests[request.request_id]\n",
        by="",
        killed_by="test_task_2_a_finished_request_gives_seat_and_blocks_back",
        breaks="Scheduler.finish: the request is not in requests, running or waiting",
    ),
    Mutant(
        name="whoever-ends-was-aborted",
        story="finish was written for abort. A request that finished normally is reported as aborted.",
        replace="        request.status = status\n",
        by="        request.status = RequestStatus.FINISHED_ABORTED\n",
        killed_by="test_task_2_a_finished_request_gives_seat_and_blocks_back",
        breaks="Scheduler.finish: request.status is status",
    ),
    Mutant(
        name="abort-of-nobody-is-an-error",
        story="A client that disconnects too late brings the server down.",
        replace="        request = self.requests.get(request_id)\n",
        by="        request = self.requests[request_id]\n",
        killed_by="test_task_2_abort_of_an_unknown_id_returns_none",
        breaks="Scheduler.abort_request: Return None if there is no such request",
    ),
    Mutant(
        name="abort-gives-nothing-back",
        story="Ends the request but returns None, as if the request did not exist.",
        replace="            self.finish(request, RequestStatus.FINISHED_ABORTED)\n"
                "        return request\n",
        by="            self.finish(request, RequestStatus.FINISHED_ABORTED)\n"
           "        return None\n",
        killed_by="test_task_2_abort_takes_a_waiting_request_out_of_the_queue",
        breaks="Scheduler.abort_request: wherever it is, and return it",
    ),
    Mutant(
        name="sorts-those-who-run",
        story="Sorts the list itself, so the order of admission is lost.",
        replace="        for request in sorted(self.running, key=lambda request: request.num_tokens - "
                "request.num_computed_tokens > 1):\n",
        by="        self.running.sort(key=lambda request: request.num_tokens - request.num_computed_tokens > 1)\n"
           "        for request in self.running:\n",
        killed_by="test_task_3_those_with_one_token_to_go_come_first",
        breaks="Scheduler._schedule_running: running and the requests themselves have not changed",
    ),
    Mutant(
        name="nothing-is-a-plan-too",
        story="A request that gets nothing is planned with 0 tokens. The model runner cannot handle that.",
        replace="            if num_new_tokens == 0:\n"
                "                continue\n"
                "            if self",
        by="            if num_new_tokens == 0:\n"
           "                step.plan[request.request_id] = 0\n"
           "                continue\n"
           "            if self",
        killed_by="test_task_3_the_budget_is_one_for_all",
        breaks="Scheduler._schedule_running: a request for which no budget or no room was left is not in the plan",
    ),
    Mutant(
        name="who-finds-no-block-uses-up-budget",
        story="Subtracts the tokens from the budget before it asks for slots. There are no slots, but the tokens are "
              "gone.",
        replace="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
                "                continue\n"
                "            step.plan[request.request_id] = num_new_tokens\n"
                "            step.budget -= num_new_tokens\n",
        by="            step.budget -= num_new_tokens\n"
           "            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
           "                continue\n"
           "            step.plan[request.request_id] = num_new_tokens\n",
        killed_by="test_task_3_a_request_without_a_block_gets_nothing_and_costs_nothing",
        breaks="Scheduler._schedule_running: step.plan maps its id to the number of tokens that it computes; "
               "step.budget is smaller by that number",
    ),
    Mutant(
        name="as-much-as-there-are-blocks-for",
        story="Halves a chunk until it fits. The request takes the last blocks, and still cannot finish its prompt.",
        replace="            if self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
                "                continue\n",
        by="            while num_new_tokens and self.kv_cache.allocate_slots(request, num_new_tokens) is None:\n"
           "                num_new_tokens //= 2\n"
           "            if num_new_tokens == 0:\n"
           "                continue\n",
        killed_by="test_task_3_a_request_without_a_block_gets_nothing_and_costs_nothing",
        breaks="Scheduler._schedule_running: no smaller chunk is tried",
    ),
    Mutant(
        name="who-has-spoken-decodes",
        story="Treats every request with output as decoding. A resumed request has output and many tokens to go.",
        replace="        for request in sorted(self.running, key=lambda request: request.num_tokens - "
                "request.num_computed_tokens > 1):\n",
        by="        for request in sorted(self.running, key=lambda request: not request.output_token_ids):\n",
        killed_by="test_task_3_those_with_one_token_to_go_come_first",
        breaks="Scheduler._schedule_running: requests with one token to go were served before all others",
    ),
    Mutant(
        name="single-by-what-is-to-go",
        story="Sorts the batch by the tokens to go. A chunk of one token ends up behind the longer chunks.",
        replace="        planned = sorted(step.plan.items(), key=lambda entry: entry[1] > 1)\n",
        by="        def is_chunk(entry):\n"
           "            request = self.requests[entry[0]]\n"
           "            return request.num_tokens - request.num_computed_tokens > 1\n"
           "        planned = sorted(step.plan.items(), key=is_chunk)\n",
        killed_by="test_task_3_a_chunk_of_one_token_stands_with_the_single_tokens",
        breaks="Scheduler._complete: both with requests that compute one token before those that compute more",
    ),
    Mutant(
        name="two-lists-in-two-orders",
        story="Sorts the numbers but leaves the requests in running order. The runner reads both lists in parallel.",
        replace="[self.requests[request_id] for request_id, _ in planned]",
        by="[request for request in self.running if request.request_id in step.plan]",
        killed_by="test_task_3_a_chunk_of_one_token_stands_with_the_single_tokens",
        breaks="Scheduler._complete: num_scheduled_tokens and requests, both with requests that compute one token",
    ),
    Mutant(
        name="copies-of-blocks-not-of-ids",
        story="Returns the pool's pairs of blocks; the runner needs block ids.",
        replace="        copies = [(source.block_id, copy.block_id) for source, copy in "
                "self.kv_cache.block_pool.pending_copies]\n",
        by="        copies = list(self.kv_cache.block_pool.pending_copies)\n",
        killed_by="test_task_3_copies_are_planned_and_then_done_with",
        breaks="Scheduler._complete: copies, the pairs (source's id, copy's id)",
    ),
    Mutant(
        name="a-token-for-whoever-has-the-id-now",
        story="Loops over the tokens and looks up their ids. A new request with an old id gets a token of another "
              "request.",
        replace="        for request in output.requests:\n"
                "            if request.request_id in token_ids:\n"
                "                request.append_output_token(token_ids[request.request_id])\n",
        by="        for request_id, token_id in token_ids.items():\n"
           "            self.requests[request_id].append_output_token(token_id)\n",
        killed_by="test_task_3_a_token_belongs_to_the_request_that_was_planned",
        breaks="Scheduler.update_from_output: tokens went to the objects in output.requests, never to "
               "self.requests[id]",
    ),
    Mutant(
        name="one-newcomer-a-step",
        story="Admits only one request per step.",
        replace="        while len(self.waiting) and step.budget:\n",
        by="        if len(self.waiting) and step.budget:\n",
        killed_by="test_task_4_there_are_only_so_many_seats",
        breaks="Scheduler._schedule_waiting: as long as a request waits and budget is left",
    ),
    Mutant(
        name="newcomers-go-to-the-front",
        story="Puts the newest request first in running. A half-computed prompt waits for the prompt of every new "
              "request.",
        replace="            self.running.append(request)\n"
                "            step.plan",
        by="            self.running.insert(0, request)\n"
           "            step.plan",
        killed_by="test_task_4_every_sequence_of_a_request_takes_a_seat",
        breaks="Scheduler._schedule_waiting: an admitted request has left the queue, and is the last in running",
    ),
    Mutant(
        name="what-is-cached-costs-budget",
        story="Cuts the prompt at the budget and subtracts the cached tokens from the chunk. After a long hit only "
              "one token is left.",
        replace="        num_new_tokens = min(request.num_tokens - num_cached, step.budget)\n",
        by="        num_new_tokens = max(min(request.num_tokens, step.budget) - num_cached, 1)\n",
        killed_by="test_task_4_a_chunk_after_a_hit_has_the_whole_budget",
        breaks="Scheduler._admit: allocate slots for as many more tokens as step.budget allows",
    ),
    Mutant(
        name="runs-and-is-called-waiting",
        story="Admits the request but does not change its status, so abort looks for it in the queue.",
        replace="        request.status = RequestStatus.RUNNING\n"
                "        return num_new_tokens\n",
        by="        return num_new_tokens\n",
        killed_by="test_task_4_abort_whether_waiting_mid_prompt_or_decoding",
        breaks="Scheduler._admit: its status is RUNNING",
    ),
    Mutant(
        name="does-not-say-what-was-cached",
        story="Uses the hit, but usage reports that all tokens were computed.",
        replace="        request.num_cached_tokens = num_cached\n",
        by="",
        killed_by="test_task_4_a_cached_prompt_computes_one_token",
        breaks="Scheduler._admit: num_computed_tokens and num_cached_tokens of the request are the number of cached "
               "tokens that were adopted",
    ),
    Mutant(
        name="cached-is-noted-before-there-is-room",
        story="Sets num_cached_tokens first, and then finds no room.",
        replace="        hits, num_cached = self.kv_cache.get_computed_blocks(request)\n",
        by="        hits, num_cached = self.kv_cache.get_computed_blocks(request)\n"
           "        request.num_cached_tokens = num_cached\n",
        killed_by="test_task_5_cached_blocks_that_are_free_are_no_room",
        breaks="Scheduler._admit: then nothing has changed, not even the order of the free blocks",
    ),
    Mutant(
        name="promises-for-the-prompt-alone",
        story="A resumed request also has output, for which no blocks are promised.",
        replace="        return sum(max(self._num_blocks_for(request.num_tokens)\n",
        by="        return sum(max(self._num_blocks_for(request.num_prompt_tokens)\n",
        killed_by="test_task_5_blocks_that_a_running_prompt_still_needs_are_not_given_away",
        breaks="Scheduler._num_promised_blocks: the number of blocks for its num_tokens tokens",
    ),
    Mutant(
        name="promises-for-all-tokens-to-go",
        story="Rounds up the number of tokens to go. The first of these tokens may fit into a block that the request "
              "already holds.",
        replace="        return sum(max(self._num_blocks_for(request.num_tokens)\n"
                "                       - len(self.kv_cache.get_block_ids(request.request_id)), 0) for request "
                "in self.running)\n",
        by="        return sum(self._num_blocks_for(request.num_tokens - request.num_computed_tokens) for "
           "request in self.running)\n",
        killed_by="test_task_5_blocks_that_are_shared_need_no_room",
        breaks="Scheduler._num_promised_blocks: minus the number of blocks in its block table",
    ),
    Mutant(
        name="one-makes-up-for-another",
        story="Adds first and limits the sum to 0 afterwards. A request with too many blocks offsets a request with "
              "too few.",
        replace="        return sum(max(self._num_blocks_for(request.num_tokens)\n"
                "                       - len(self.kv_cache.get_block_ids(request.request_id)), 0) for request "
                "in self.running)\n",
        by="        return max(sum(self._num_blocks_for(request.num_tokens)\n"
           "                       - len(self.kv_cache.get_block_ids(request.request_id)) for request in "
           "self.running), 0)\n",
        killed_by="test_task_5_what_one_holds_too_many_is_no_block_for_another",
        breaks="Scheduler._num_promised_blocks: For each of them: the number of blocks for its num_tokens tokens",
    ),
    Mutant(
        name="room-for-the-prompt-alone",
        story="A resumed request has output. It is admitted, but its last tokens find no block.",
        replace="        num_new = self._num_blocks_for(request.num_tokens) - len(hits)\n",
        by="        num_new = self._num_blocks_for(request.num_prompt_tokens) - len(hits)\n",
        killed_by="test_task_5_a_prompt_is_admitted_whole_or_not_at_all",
        breaks="Scheduler._has_room: Its new blocks: the number of blocks for all its num_tokens "
               "tokens",
    ),
    Mutant(
        name="shared-hits-are-not-free-either",
        story="Subtracts all hits from the free blocks, even hits that other requests hold and that were never in the "
              "free queue.",
        replace="sum(block.ref_cnt == 0 for block in hits)\n",
        by="len(hits)\n",
        killed_by="test_task_5_blocks_that_are_shared_need_no_room",
        breaks="Scheduler._has_room: a hit in the free queue (ref_cnt 0) is about to leave it",
    ),
    Mutant(
        name="nobody-waits-so-nobody-is-left",
        story="Checks only the waiting requests. The last requests of the day run and are never finished.",
        replace="        return bool(self.requests)\n",
        by="        return len(self.waiting) > 0\n",
        killed_by="test_task_1_an_id_in_use_is_refused",
        breaks="Scheduler.has_unfinished_requests: Return whether any request waits or runs",
    ),
    Mutant(
        name="nothing-sampled-nothing-happened",
        story="Returns at once if there are no tokens. But the step has run: all its requests computed chunks.",
        replace="        self.kv_cache.finish_step()\n",
        by="        if not token_ids:\n"
           "            return\n"
           "        self.kv_cache.finish_step()\n",
        killed_by="test_task_3_copies_are_planned_and_then_done_with",
        breaks="Scheduler.update_from_output: the KV cache was told that the step has run",
    ),
    Mutant(
        name="refused-and-has-arrived",
        story="Puts the request into the queue, counts its blocks, and removes it again. Now it has an arrival time.",
        replace="        if self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        by="        self.waiting.put(request)\n"
           "        self.waiting.remove(request)\n"
           "        if self._num_blocks_for(request.num_tokens) > self.num_blocks:\n",
        killed_by="test_task_1_a_prompt_larger_than_the_pool_is_refused",
        breaks="Scheduler.add_request: in each case nothing has changed, neither in the scheduler nor in the request",
    ),
    Mutant(
        name="copies-for-requests-only",
        story="Assumes that there is nothing to copy without requests. A pending copy is lost.",
        replace="for source, copy in self.kv_cache.block_pool.pending_copies]\n",
        by="for source, copy in self.kv_cache.block_pool.pending_copies if planned]\n",
        killed_by="test_task_3_copies_are_planned_and_then_done_with",
        breaks="Scheduler._complete: even if no request is in the plan",
    ),
    Mutant(
        name="a-step-without-requests-is-no-step",
        story="Tells the KV cache only about steps in which a request computed tokens. Copies of other steps are made "
              "again.",
        replace="        self.kv_cache.finish_step()\n",
        by="        if output.requests:\n"
           "            self.kv_cache.finish_step()\n",
        killed_by="test_task_3_copies_are_planned_and_then_done_with",
        breaks="Scheduler.update_from_output: even if no token was sampled or no request was planned",
    ),
    Mutant(
        name="promises-to-the-last-only",
        story="Assigns in the loop instead of adding. Only the last running request is counted.",
        replace="        return sum(max(self._num_blocks_for(request.num_tokens)\n"
                "                       - len(self.kv_cache.get_block_ids(request.request_id)), 0) for request "
                "in self.running)\n",
        by="        return sum(max(self._num_blocks_for(request.num_tokens)\n"
           "                       - len(self.kv_cache.get_block_ids(request.request_id)), 0) for request "
           "in self.running[-1:])\n",
        killed_by="test_task_5_blocks_that_a_running_prompt_still_needs_are_not_given_away",
        breaks="Scheduler._num_promised_blocks: For each of them: the number of blocks for its num_tokens tokens",
    ),
    Mutant(
        name="takes-the-hits-and-lets-them-go",
        story="Holds the hits while it looks for room. There is no room, and the released hits end up at the end of "
              "the free queue.",
        replace="        hits, num_cached = self.kv_cache.get_computed_blocks(request)\n",
        by="        hits, num_cached = self.kv_cache.get_computed_blocks(request)\n"
           "        self.kv_cache.block_pool.touch(hits)\n"
           "        self.kv_cache.block_pool.free_blocks(reversed(hits))\n",
        killed_by="test_task_5_cached_blocks_that_are_free_are_no_room",
        breaks="Scheduler._admit: then nothing has changed, not even the order of the free blocks",
    ),
]
