from course.mutants import Mutant

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="a-batch-of-all",
        story="Forgets max_num_seqs: the batch has as many requests as the pool has room for.",
        replace="requests[:limits.max_num_seqs]",
        by="requests",
        killed_by="test_task_1_a_batch_is_the_first_requests",
        breaks="StaticBatches: no more than max_num_seqs",
    ),
    Mutant(
        name="reserves-only-the-prompt",
        story="Reserves blocks for the prompt, and lets the output take what is left.",
        replace="-(-(request.num_prompt_tokens + request.max_tokens) // limits.block_size)",
        by="-(-request.num_prompt_tokens // limits.block_size)",
        killed_by="test_task_1_a_request_reserves_blocks_for_its_longest_output",
        breaks="StaticBatches: each reserves blocks for its prompt and max_tokens of output",
    ),
    Mutant(
        name="reserves-a-block-more",
        story="Rounds up by adding a block, even to a multiple of the block size.",
        replace="-(-(request.num_prompt_tokens + request.max_tokens) // limits.block_size)",
        by="(request.num_prompt_tokens + request.max_tokens) // limits.block_size + 1",
        killed_by="test_task_1_a_request_reserves_blocks_for_its_longest_output",
        breaks="StaticBatches: no more than fit into the pool",
    ),
    Mutant(
        name="passes-over-a-request-that-does-not-fit",
        story="Goes on after a request that does not fit, and takes smaller ones that come later.",
        replace="                if num_free < 0:\n                    break\n",
        by="                if num_free < 0:\n"
           "                    num_free -= -(request.num_prompt_tokens + request.max_tokens) // limits.block_size\n"
           "                    continue\n",
        killed_by="test_task_1_the_first_that_does_not_fit_ends_the_batch",
        breaks="StaticBatches: The first request that does not fit ends the batch",
    ),
    Mutant(
        name="fills-free-seats-at-once",
        story="Lets a waiting request take the seat of one that has ended: a continuous batch.",
        replace="        if not any(request.request_id in self._batch for request in requests):\n",
        by="        if True:\n",
        killed_by="test_task_1_the_next_batch_waits_for_the_last_of_this_one",
        breaks=("StaticBatches: a request that arrives later waits for the next batch",
                "invariant 3: serves a batch until all of it has ended"),
    ),
    Mutant(
        name="never-takes-another-batch",
        story="Takes a batch once. When it has ended, nothing is planned any more.",
        replace="        if not any(request.request_id in self._batch for request in requests):\n",
        by="        if not self._batch:\n",
        killed_by="test_task_1_the_next_batch_waits_for_the_last_of_this_one",
        breaks="StaticBatches.plan: if no request of it is left, take the next batch first",
    ),
    Mutant(
        name="a-whole-prompt-or-nothing",
        story="Leaves out a prompt that does not fit into the rest of the budget, instead of computing a chunk of it.",
        replace="            n = min(request.num_tokens - request.num_computed_tokens, budget)\n"
                "            if request.request_id in self._batch and n:\n",
        by="            n = request.num_tokens - request.num_computed_tokens\n"
           "            if request.request_id in self._batch and n <= budget:\n",
        killed_by="test_task_1_the_budget_is_given_out_in_the_order_of_arrival",
        breaks="StaticBatches.plan: or what is left of max_num_batched_tokens",
    ),
    Mutant(
        name="zero-tokens",
        story="Names a request that gets no tokens, because the budget is used up.",
        replace="            if request.request_id in self._batch and n:\n",
        by="            if request.request_id in self._batch:\n",
        killed_by="test_task_1_it_plans_what_the_naive_policy_plans",
        breaks=("StaticBatches.plan: a request that would get none is left out",
                "module: it gives a request at least 1 token"),
    ),
    Mutant(
        name="gives-the-tokens-backwards",
        story="Serves the request that arrived last first.",
        replace="        tokens = {}\n        for request in requests:\n",
        by="        tokens = {}\n        for request in reversed(requests):\n",
        killed_by="test_task_1_the_budget_is_given_out_in_the_order_of_arrival",
        breaks="StaticBatches.plan: in the order of arrival",
    ),
    Mutant(
        name="makes-room-by-preemption",
        story="Preempts the requests of the batch that came later, to serve the first one sooner.",
        replace="        return tokens, []\n",
        by="        return tokens, [each.request_id for each in requests if each.num_computed_tokens][1:]\n",
        killed_by="test_task_1_the_budget_is_given_out_in_the_order_of_arrival",
        breaks=("StaticBatches: Nothing is preempted", "StaticBatches.plan: an empty list"),
    ),
    Mutant(
        name="one-batch-for-all-policies",
        story="Keeps the batch in a class variable.",
        replace="            self._batch = set()\n",
        by="            self.__dict__.pop('_batch', None)\n            StaticBatches._batch = set()\n",
        killed_by="test_task_1_two_policies_have_two_batches",
        breaks="invariant 2: calls to another policy have no effect",
    ),
    # ---- Task 2
    Mutant(
        name="counts-all-blocks",
        story="Returns the blocks that the request will hold, including those that it holds already.",
        replace="    return -(-(request.num_computed_tokens + n) // limits.block_size) - request.num_blocks\n",
        by="    return -(-(request.num_computed_tokens + n) // limits.block_size)\n",
        killed_by="test_task_2_blocks_beyond_those_that_it_holds",
        breaks="num_new_blocks: in addition to those that it holds",
    ),
    Mutant(
        name="counts-blocks-of-the-new-tokens-alone",
        story="Forgets that the last block may have free slots.",
        replace="    return -(-(request.num_computed_tokens + n) // limits.block_size) - request.num_blocks\n",
        by="    return -(-n // limits.block_size)\n",
        killed_by="test_task_2_blocks_beyond_those_that_it_holds",
        breaks="num_new_blocks: how many blocks request needs for its next n tokens",
    ),
    Mutant(
        name="a-token-does-not-attend-to-itself",
        story="Counts only the tokens before each token.",
        replace="        num_attended += n * request.num_computed_tokens + n * (n + 1) // 2\n",
        by="        num_attended += n * request.num_computed_tokens + n * (n - 1) // 2\n",
        killed_by="test_task_2_the_time_of_a_step",
        breaks="step_time_us: a token attends to all tokens of its request before it and to itself",
    ),
    Mutant(
        name="forgets-the-chunks-before",
        story="A chunk attends only to itself.",
        replace="        num_attended += n * request.num_computed_tokens + n * (n + 1) // 2\n",
        by="        num_attended += n * (n + 1) // 2\n",
        killed_by="test_task_2_it_is_the_time_of_the_machine",
        breaks="invariant 4: the time that the machine takes",
    ),
    Mutant(
        name="rounds-for-each-request",
        story="Rounds the attention of each request up, and adds the results.",
        replace="        num_attended += n * request.num_computed_tokens + n * (n + 1) // 2\n",
        by="        total_us += -(-(n * request.num_computed_tokens + n * (n + 1) // 2) // limits.attended_per_us)\n",
        killed_by="test_task_2_the_attention_is_rounded_once_per_step",
        breaks="step_time_us: The sum of these numbers over the whole step, divided by attended_per_us and rounded up",
    ),
    Mutant(
        name="every-request-pays-the-fixed-part",
        story="Adds step_us once per request.",
        replace="        total_us += limits.token_us * n\n",
        by="        total_us += limits.token_us * n + limits.step_us\n",
        killed_by="test_task_2_the_time_of_a_step",
        breaks="step_time_us: how long a step takes",
    ),
    Mutant(
        name="the-first-token-is-due-at-its-time-alone",
        story="Forgets to add the arrival: all requests are due at the beginning of the trace.",
        replace="        return request.arrival_us + request.max_first_token_us\n",
        by="        return request.max_first_token_us\n",
        killed_by="test_task_2_the_first_token_is_due_after_the_arrival",
        breaks="due_us: The first one is due max_first_token_us after the arrival",
    ),
    Mutant(
        name="every-token-is-due-after-the-last",
        story="Counts max_token_us once instead of per output token, so early tokens give no slack to later ones.",
        replace="    return request.first_token_at_us + num_output_tokens * request.max_token_us\n",
        by="    return request.first_token_at_us + request.max_token_us\n",
        killed_by="test_task_2_later_tokens_are_due_after_the_first",
        breaks="due_us: The one after k output tokens is due k times max_token_us after the first one was ready",
    ),
    Mutant(
        name="slack-of-one-token",
        story="Assumes that one token is left, also for a prompt.",
        replace="        n = min(left.num_tokens - left.num_computed_tokens, limits.max_num_batched_tokens)\n"
                "        end_us += step_time_us(limits, [(left, n)])\n",
        by="        n = left.num_tokens - left.num_computed_tokens\n"
           "        end_us += step_time_us(limits, [(left, 1)])\n",
        killed_by="test_task_2_slack_is_what_is_left_when_it_runs_alone",
        breaks="slack_us: it computes all its uncomputed tokens",
    ),
    Mutant(
        name="one-step-for-any-prompt",
        story="Computes a long prompt in a single step, beyond the budget.",
        replace="        n = min(left.num_tokens - left.num_computed_tokens, limits.max_num_batched_tokens)\n",
        by="        n = left.num_tokens - left.num_computed_tokens\n",
        killed_by="test_task_2_a_long_prompt_takes_several_steps",
        breaks="slack_us: or max_num_batched_tokens",
    ),
    Mutant(
        name="slack-is-never-negative",
        story="Returns 0 for a token that will be late, so late requests look urgent.",
        replace="    return due_us(request) - end_us\n",
        by="    return max(due_us(request) - end_us, 0)\n",
        killed_by="test_task_2_slack_is_what_is_left_when_it_runs_alone",
        breaks="slack_us: The result is negative if the token will be late even if the request runs at once",
    ),
    Mutant(
        name="slack-until-the-token-is-due",
        story="Forgets that the request must compute first.",
        replace="    return due_us(request) - end_us\n",
        by="    return due_us(request) - now_us\n",
        killed_by="test_task_2_slack_is_what_is_left_when_it_runs_alone",
        breaks="slack_us: so that its next output token is still ready when it is due",
    ),
    # ---- Task 3: legal plans
    Mutant(
        name="more-than-the-budget",
        story="Never subtracts what it gave from the budget.",
        replace=", budget - n\n        return tokens, preempted\n",
        by=", budget\n        return tokens, preempted\n",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks=("module: at most max_num_batched_tokens", "invariant 1: Every plan is legal"),
    ),
    Mutant(
        name="more-than-the-pool",
        story="Never subtracts the blocks that it gave from the free ones.",
        replace="num_free - num_new_blocks(limits, request, n), num_seats - is_waiting\n",
        by="num_free, num_seats - is_waiting\n",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks=("module: together at most num_blocks", "SchedulingPolicy: Every plan is legal, whatever the limits"),
    ),
    Mutant(
        name="more-than-the-seats",
        story="Never subtracts the seats that it gave.",
        replace="num_seats - is_waiting\n                end_us",
        by="num_seats\n                end_us",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks=("module: at most max_num_seqs requests hold blocks", "SchedulingPolicy.plan: a legal plan"),
    ),
    Mutant(
        name="overtakes-without-end",
        story="Treats requests that have waited longer than max_overtaking_us like all others.",
        replace="            if request.request_id in preempted or is_waiting and (\n"
                "                    request.arrival_us - oldest_us > limits.max_overtaking_us):\n",
        by="            if request.request_id in preempted:\n",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks=("module: it admits no request while another one waits", "invariant 1: admits no request"),
    ),
    Mutant(
        name="gives-tokens-to-a-request-that-it-preempted",
        story="Forgets that a request further down the order was preempted to make room.",
        replace="            if request.request_id in preempted or is_waiting and (\n",
        by="            if is_waiting and (\n",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks="module: no request is both preempted and given tokens",
    ),
    Mutant(
        name="preempts-a-request-twice",
        story="Counts the blocks of a victim each time that some other request needs room.",
        replace="victim.num_blocks and victim.request_id not in preempted and may_lose",
        by="victim.num_blocks and may_lose",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks="module: it preempts only running requests, each once",
    ),
    Mutant(
        name="preempts-waiting-requests",
        story="Preempts whatever is last in the order.",
        replace="if victim.num_blocks and victim.request_id",
        by="if victim.request_id",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks="module: it preempts only running requests",
    ),
    Mutant(
        name="the-hopeless-get-nothing",
        story="Plans only requests that can still be in time. When no other is left, it plans nothing.",
        replace="sorted(hopeful + hopeless,",
        by="sorted(hopeful,",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks=("module: it computes at least 1 token", "SchedulingPolicy: every request ends",
                "invariant 1: every request ends"),
    ),
    Mutant(
        name="spare-blocks-at-any-price",
        story="Asks for spare blocks also where the pool has no more than the request needs.",
        replace="                num_needed = min(num_all + NUM_SPARE_BLOCKS, limits.num_blocks)\n",
        by="                num_needed = num_all + NUM_SPARE_BLOCKS\n",
        killed_by="test_task_3_a_request_that_fills_the_pool_ends",
        breaks="SchedulingPolicy: every request ends",
    ),
    Mutant(
        name="the-oldest-in-any-order",
        story="Puts requests that have waited longer than max_overtaking_us first, but not in the order of arrival: a "
              "later one of them is admitted, and an earlier one is preempted in the same step.",
        replace="key=lambda request: min(request.arrival_us, now_us - limits.max_overtaking_us))",
        by="key=lambda request: now_us - request.arrival_us <= limits.max_overtaking_us)",
        killed_by="test_task_3_every_plan_is_legal_on_small_machines",
        breaks="SchedulingPolicy: Every plan is legal, whatever the limits",
    ),
    Mutant(
        name="admits-and-forgets",
        story="Lets a request that has waited longest compute its first tokens, which is all that the rule asks for, "
              "and then serves it after all that are not late.",
        replace="key=lambda request: min(request.arrival_us, now_us - limits.max_overtaking_us))",
        by="key=lambda request: min(request.arrival_us, now_us - limits.max_overtaking_us) if not request.num_blocks"
           " else now_us)",
        killed_by="test_task_3_no_request_waits_for_ever",
        breaks=("SchedulingPolicy: every request ends", "invariant 1: also one that is late"),
    ),
    Mutant(
        name="a-clock-for-all-policies",
        story="Counts the calls of all policies in a class variable, and reverses every 50th order.",
        replace="        hopeful, hopeless = self._split(now_us, requests)\n",
        by="        hopeful, hopeless = self._split(now_us, requests)\n"
           "        SchedulingPolicy._calls = getattr(SchedulingPolicy, '_calls', 0) + 1\n"
           "        hopeful = hopeful[::1 if SchedulingPolicy._calls % 50 else -1]\n",
        killed_by="test_task_3_the_same_calls_get_the_same_plans",
        breaks=("SchedulingPolicy: Two policies know nothing about each other",
                "invariant 2: depend only on its own calls"),
    ),
    Mutant(
        name="draws-lots",
        story="Shuffles the late requests: no two runs have the same plans.",
        replace="        hopeful, hopeless = self._split(now_us, requests)\n",
        by="        hopeful, hopeless = self._split(now_us, requests)\n"
           "        __import__('random').shuffle(hopeful)\n",
        killed_by="test_task_3_the_same_calls_get_the_same_plans",
        breaks=("SchedulingPolicy: the same calls get the same plans",
                "invariant 2: the same calls get the same plans"),
    ),
    Mutant(
        name="reads-the-requests-to-come",
        story="Finds the iterator of the trace in the variables of its caller, copies it, and serves short requests "
              "first if many are about to arrive.",
        replace="        hopeful, hopeless = self._split(now_us, requests)\n",
        by="        hopeful, hopeless = self._split(now_us, requests)\n"
           "        frame, coming = __import__('sys')._getframe(1), None\n"
           "        while frame and coming is None:\n"
           "            coming = frame.f_locals.get('numbered')\n"
           "            frame = frame.f_back\n"
           "        if coming is not None:\n"
           "            later = list(__import__('copy').copy(coming.__reduce__()[1][0]))\n"
           "            if len(later) % 2:\n"
           "                hopeful = hopeful[::-1]\n",
        killed_by="test_task_3_the_requests_to_come_change_nothing",
        breaks=("SchedulingPolicy: no matter which requests come later",
                "invariant 2: no matter what is still to come"),
        only_in_process=True,
    ),
    Mutant(
        name="reads-the-lengths-of-outputs",
        story="Finds the machine in the variables of its caller, and serves the shortest output first.",
        replace="        hopeful, hopeless = self._split(now_us, requests)\n",
        by="        hopeful, hopeless = self._split(now_us, requests)\n"
           "        frame, live = __import__('sys')._getframe(1), None\n"
           "        while frame and live is None:\n"
           "            live = getattr(frame.f_locals.get('self'), '_live', None)\n"
           "            frame = frame.f_back\n"
           "        if live:\n"
           "            hopeful.sort(key=lambda each: live[each.request_id].arrival.num_output_tokens)\n",
        killed_by="test_task_3_the_lengths_of_outputs_change_nothing",
        breaks="invariant 2: the lengths of outputs are unknown",
        only_in_process=True,
    ),
    # ---- Task 3: goodput
    Mutant(
        name="first-come-first-served",
        story="Serves requests in the order of arrival, whatever their service level.",
        replace="        for request in sorted(requests, key=due_us):\n",
        by="        for request in requests:\n",
        killed_by="test_task_3_documents_three_quarters_of_the_way",
        breaks="invariant 5: three quarters on documents",
    ),
    Mutant(
        name="saves-the-late",
        story="Serves requests that are late already before all others.",
        replace="            if is_late or slack_us(self._limits, request, now_us) < 0:\n"
                "                hopeless.append(request)\n                continue\n",
        by="",
        killed_by="test_task_3_bursts_half_of_the_way",
        breaks="invariant 5: half on bursts",
    ),
    Mutant(
        name="as-long-a-step-as-the-budget-allows",
        story="Computes prompts in the largest chunks, although decoding requests wait for the whole step.",
        replace="            while n and tokens and first_late_us is not None and end_us + self._work_us(request, n) > "
                "first_late_us:\n                n = n * 3 // 4\n",
        by="",
        killed_by="test_task_3_the_recorded_traces_half_of_the_way",
        breaks="invariant 5: half on the recorded traces together",
    ),
    Mutant(
        name="never-gives-up-a-prompt",
        story="Keeps all prompts that could be in time alone, even if they cannot all be in time together.",
        replace="            if cost_us and end_us > due_us(request):\n",
        by="            if False:\n",
        killed_by="test_task_3_overload_three_quarters_of_the_way",
        breaks="invariant 5: on overload",
    ),
    Mutant(
        name="the-late-first",
        story="Has the two lists the wrong way round.",
        replace="sorted(hopeful + hopeless,",
        by="sorted(hopeless + hopeful,",
        killed_by="test_task_3_random_traces_three_quarters_of_the_way",
        breaks="invariant 5: on the random traces",
    ),
    Mutant(
        name="the-last-due-first",
        story="Sorts the wrong way: the request with the most time comes first.",
        replace="        return [request for _, request in chosen], hopeless\n",
        by="        return [request for _, request in chosen][::-1], hopeless\n",
        killed_by="test_task_3_bursts_half_of_the_way",
        breaks="invariant 5: on bursts",
    ),
]
