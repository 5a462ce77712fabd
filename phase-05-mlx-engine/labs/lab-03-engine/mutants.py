"""Mistakes people make in an engine, and the test that catches each."""

from course.mutants import Mutant

ADD = """        self.scheduler.add_request(group.leader)
        self.live.add(group)
"""
MOVED = "moved = [*self._end_outgrown(plan), *self._take_tokens(result), *self._fail(result)]\n"
ABORT = """        for sequence in group.unfinished:
            self._finish(sequence, "abort")
"""
TOKEN = ("                    sequence.request.append_output_token("
         "result.token_ids[sequence.request.request_id])\n")
SAMPLE = ("        sampled = self.sampler.sample(logits[mx.array(sources)], [sequence.row for sequence in sequences])\n"
          "        ids = [sequence.request.request_id for sequence in sequences]\n"
          "        logprobs = {name: logprob for name, logprob in zip(ids, sampled.logprobs) if logprob is not None}\n"
          "        return StepResult(dict(zip(ids, sampled.token_ids)), logprobs)\n")
SAMPLE_ONE_BY_ONE = """        result = StepResult()
        for sequence, source in zip(sequences, sources):
            sampled = self.sampler.sample(logits[source:source + 1], [sequence.row])
            result.token_ids[sequence.request.request_id] = sampled.token_ids[0]
            if sampled.logprobs[0] is not None:
                result.logprobs[sequence.request.request_id] = sampled.logprobs[0]
        return result
"""
SAMPLE_LEADERS_FIRST = """        result = StepResult()
        is_first = [source != before for source, before in zip(sources, [-1, *sources])]
        for wanted in (True, False):
            some = [number for number, first in enumerate(is_first) if first is wanted]
            if some:
                sampled = self.sampler.sample(logits[mx.array([sources[number] for number in some])],
                                              [sequences[number].row for number in some])
                ids = [sequences[number].request.request_id for number in some]
                result.update(StepResult(dict(zip(ids, sampled.token_ids)), {
                    name: logprob for name, logprob in zip(ids, sampled.logprobs) if logprob is not None}))
        return result
"""

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="a-refused-request-stays-registered",
        story="Registers first, asks the scheduler second. The refused one lives for ever, and is never served.",
        replace=ADD,
        by="        self.live.add(group)\n        self.scheduler.add_request(group.leader)\n",
        killed_by="test_task_1_who_is_refused_leaves_no_trace",
        breaks=("LLMEngine.add_request: Nothing has changed then: the id is free, and there is nothing to compute",
                "invariant 5: A refused request leaves no trace"),
    ),
    Mutant(
        name="who-is-refused-hears-nothing",
        story="Swallows the scheduler's no and returns the id. The caller waits for an answer that nobody computes.",
        replace=ADD,
        by="        try:\n            self.scheduler.add_request(group.leader)\n"
           "        except ValueError:\n            return group.request_id\n        self.live.add(group)\n",
        killed_by="test_task_1_who_is_refused_leaves_no_trace",
        breaks="LLMEngine.add_request: Raises ValueError if the request can never be served, by its inputs or by the "
               "scheduler",
    ),
    Mutant(
        name="blocks-are-taken-at-the-door",
        story="Reserves the blocks of the prompt as soon as a request comes: who waits keeps others from running.",
        replace=ADD,
        by=ADD + "        self.kv_cache.allocate_slots(group.leader, group.leader.num_tokens)\n",
        killed_by="test_task_1_a_request_that_came_waits",
        breaks="LLMEngine.add_request: Nothing is computed",
    ),
    Mutant(
        name="every-sample-waits",
        story="Gives all sequences to the scheduler: the prompt of three samples is computed three times.",
        replace="        self.scheduler.add_request(group.leader)\n",
        by="        for sequence in group.sequences:\n            self.scheduler.add_request(sequence.request)\n",
        killed_by="test_task_1_of_several_samples_the_leader_waits",
        breaks="LLMEngine.add_request: the scheduler has the leader, live has the group",
    ),
    Mutant(
        name="priority-is-lost-on-the-way",
        story="The caller said HIGH, the queue hears NORMAL.",
        replace="process(prompt, sampling_params, request_id, priority, extra_keys)",
        by="process(prompt, sampling_params, request_id, Priority.NORMAL, extra_keys)",
        killed_by="test_task_1_priority_and_keys_go_with_the_request",
        breaks="LLMEngine.add_request: self.inputs.process, called with all five",
    ),
    Mutant(
        name="keys-are-lost-on-the-way",
        story="Two tenants, told apart by their keys, share cached blocks after all.",
        replace="process(prompt, sampling_params, request_id, priority, extra_keys)",
        by="process(prompt, sampling_params, request_id, priority, None)",
        killed_by="test_task_1_priority_and_keys_go_with_the_request",
        breaks="LLMEngine.add_request: self.inputs.process, called with all five",
    ),
    Mutant(
        name="returns-what-it-was-given",
        story="Returns the argument: None for whoever let the engine choose an id.",
        replace="        return group.request_id\n",
        by="        return request_id\n",
        killed_by="test_task_1_an_id_is_made_if_there_is_none",
        breaks="LLMEngine.add_request: Take a request in and return its id",
    ),
    Mutant(
        name="only-computing-counts",
        story="Asks the live requests alone: an output that was put back is never told.",
        replace="        return bool(self.live.groups or self.unseen)\n",
        by="        return bool(self.live.groups)\n",
        killed_by="test_task_1_an_output_that_nobody_saw_is_something_to_tell",
        breaks="LLMEngine.has_unfinished_requests: Something to tell: unseen has an output",
    ),
    Mutant(
        name="who-waits-does-not-count",
        story="Asks for requests that run: with nobody running, the loop ends, and whoever waits is never served.",
        replace="        return bool(self.live.groups or self.unseen)\n",
        by="        return bool(self.scheduler.running or self.unseen)\n",
        killed_by="test_task_1_a_request_that_came_waits",
        breaks="LLMEngine.has_unfinished_requests: Something to compute: live.groups, a dictionary, has a request",
    ),
    # ---- Task 2
    Mutant(
        name="the-blocks-of-the-step-alone",
        story="Hands over the blocks that the step writes. What the earlier ones hold is read through them, too.",
        replace="self.kv_cache.get_block_ids(request.request_id), end,\n",
        by="self.kv_cache.get_block_ids(request.request_id)[start // self.config.block_size:], end,\n",
        killed_by="test_task_2_the_runner_is_given_the_tokens_that_were_planned",
        breaks="LLMEngine._request_step: block_ids: its block table",
    ),
    Mutant(
        name="logits-for-every-chunk",
        story="Samples after every step. A prompt in three chunks gets two tokens that nobody wanted.",
        replace="needs_logits=end == request.num_tokens,",
        by="needs_logits=True,",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks=("invariant 1: A chunk in the middle of a prompt gets none",
                "LLMEngine.compute: The others are in the middle of their prompt: no row, no token"),
    ),
    Mutant(
        name="logits-only-for-prompts",
        story="Compares with the length of the prompt: the first token comes, the second never does.",
        replace="needs_logits=end == request.num_tokens,",
        by="needs_logits=end == request.num_prompt_tokens,",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks="invariant 1: A token is sampled for a request exactly when its last token was computed",
    ),
    Mutant(
        name="logits-from-the-end-of-the-prompt-on",
        story="Takes all that follows the prompt for decoding. Who was preempted computes its own output in chunks.",
        replace="needs_logits=end == request.num_tokens,",
        by="needs_logits=end >= request.num_prompt_tokens,",
        killed_by="test_task_2_who_was_preempted_gets_no_token_before_its_last",
        breaks="LLMEngine._request_step: needs_logits: whether the last token that the request has is among them",
    ),
    Mutant(
        name="the-context-ends-where-the-step-begins",
        story="Takes context_len for what had K/V before the step. The new tokens are not part of it then.",
        replace="self.kv_cache.get_block_ids(request.request_id), end,\n",
        by="self.kv_cache.get_block_ids(request.request_id), start,\n",
        killed_by="test_task_2_the_runner_is_given_the_tokens_that_were_planned",
        breaks="LLMEngine._request_step: context_len: end",
    ),
    Mutant(
        name="a-call-of-the-runner-a-request",
        story="Runs one request after the other: right tokens, and the weights are read once for each of them.",
        replace="        logits = self._rows_to_sample(plan, steps, self.runner.step(steps, plan.copies))\n",
        by="        self.runner.cache.copy_blocks(plan.copies)\n"
           "        logits = mx.concatenate([self.runner.step([step]) for step in steps])\n"
           "        logits = self._rows_to_sample(plan, steps, logits)\n",
        killed_by="test_task_2_a_step_is_one_call",
        breaks="LLMEngine.compute: self.runner.step(steps, plan.copies), once",
    ),
    Mutant(
        name="a-call-of-the-sampler-a-request",
        story="Samples request by request: the device is waited for once for each of them.",
        replace=SAMPLE,
        by=SAMPLE_ONE_BY_ONE,
        killed_by="test_task_2_a_step_is_one_call",
        breaks="LLMEngine.compute: self.sampler.sample(logits, rows), once",
    ),
    Mutant(
        name="starts-where-it-should-end",
        story="Takes num_computed_tokens for what was computed before the step, as its name says between two steps.",
        replace="        end = request.num_computed_tokens\n        start = end - num_tokens\n",
        by="        start = request.num_computed_tokens\n        end = start + num_tokens\n",
        killed_by="test_task_2_the_runner_is_given_the_tokens_that_were_planned",
        breaks="LLMEngine._request_step: request.num_computed_tokens is where they end",
    ),
    Mutant(
        name="always-from-the-beginning",
        story="Counts the tokens of a chunk from the first token on: right for the first chunk.",
        replace="request.all_token_ids[start:end]",
        by="request.all_token_ids[:num_tokens]",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks="LLMEngine._request_step: token_ids: of request.all_token_ids, those from start to end",
    ),
    Mutant(
        name="only-the-prompts-tokens",
        story="Takes the tokens from the prompt, where no output token is.",
        replace="request.all_token_ids[start:end]",
        by="(request.prompt_token_ids + [0] * num_tokens)[start:end]",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks="LLMEngine._request_step: token_ids: of request.all_token_ids, those from start to end",
    ),
    Mutant(
        name="tokens-in-the-order-of-arrival",
        story="Hands the tokens to the requests in the order in which they came. The plan has another one.",
        replace="        ids = [sequence.request.request_id for sequence in sequences]\n",
        by="        ids = [each.request.request_id for group in self.live.groups.values() for each in group.sequences\n"
           "               if each in sequences]\n",
        killed_by="test_task_2_a_batch_of_decoders_and_chunks_gives_everybody_its_own",
        breaks=("LLMEngine.compute: one row for each request whose step needs logits, in the order of the plan",
                "invariant 7: each request says what it says alone"),
    ),
    Mutant(
        name="counts-twice",
        story="Advances num_computed_tokens after the step. The scheduler has done so in its plan.",
        replace="        if not sequences:\n            return StepResult()\n",
        by="        for request in plan.requests:\n"
           "            request.num_computed_tokens += plan.num_scheduled_tokens[request.request_id]\n"
           "        if not sequences:\n            return StepResult()\n",
        killed_by="test_task_2_compute_changes_no_request",
        breaks=("LLMEngine.compute: No request changes here",
                "invariant 2: The scheduler counts tokens as computed when it plans"),
    ),
    Mutant(
        name="appends-twice",
        story="Appends the token where it is sampled; the scheduler appends it again.",
        replace="        ids = [sequence.request.request_id for sequence in sequences]\n",
        by="        ids = [sequence.request.request_id for sequence in sequences]\n"
           "        for sequence, token_id in zip(sequences, sampled.token_ids):\n"
           "            sequence.request.append_output_token(token_id)\n",
        killed_by="test_task_2_compute_changes_no_request",
        breaks=("LLMEngine.compute: No request changes here",
                "invariant 2: and appends when you deliver"),
    ),
    Mutant(
        name="copies-forgotten",
        story="Runs the step without the copies: whoever shares half a block reads what lay in the new one before.",
        replace="steps, self.runner.step(steps, plan.copies))",
        by="steps, self.runner.step(steps))",
        killed_by="test_task_2_blocks_are_copied_before_the_step_writes",
        breaks="LLMEngine.compute: self.runner.step(steps, plan.copies)",
    ),
    Mutant(
        name="everybody-gets-logprobs",
        story="Passes on None for those who did not ask.",
        replace=" in zip(ids, sampled.logprobs) if logprob is not None}\n",
        by=" in zip(ids, sampled.logprobs)}\n",
        killed_by="test_task_2_log_probabilities_go_to_those_who_asked",
        breaks="LLMEngine.compute: of those alone that have one",
    ),
    Mutant(
        name="nobody-gets-logprobs",
        story="Returns the tokens alone.",
        replace="        return StepResult(dict(zip(ids, sampled.token_ids)), logprobs)\n",
        by="        return StepResult(dict(zip(ids, sampled.token_ids)))\n",
        killed_by="test_task_2_log_probabilities_go_to_those_who_asked",
        breaks="LLMEngine.compute: Returns a StepResult: token_ids and logprobs by request id",
    ),
    Mutant(
        name="prompts-are-not-scored",
        story="Leaves needs_all_logits out: whoever asked how likely its prompt is, hears of the first token only.",
        replace="needs_all_logits=self._scores_prompt(request, start, end))",
        by="needs_all_logits=False)",
        killed_by="test_task_2_a_prompt_can_be_scored_chunk_by_chunk",
        breaks="LLMEngine._request_step: needs_all_logits: what self._scores_prompt(request, start, end) says",
    ),
    Mutant(
        name="samples-for-nobody",
        story="Calls the sampler with no rows at all; an index of nothing has no type.",
        replace="        if not sequences:\n            return StepResult()\n",
        by="",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks="LLMEngine.compute: With nobody to sample for, it is not called",
    ),
    Mutant(
        name="a-step-without-rows-is-left-to-mlx",
        story="Calls _rows_to_sample where there is a row to take. A chunk's K/V is then noted, and computed later.",
        replace="        logits = self._rows_to_sample(plan, steps, self.runner.step(steps, plan.copies))\n",
        by="        logits = self.runner.step(steps, plan.copies)\n"
           "        if any(step.needs_logits or step.needs_all_logits for step in steps):\n"
           "            logits = self._rows_to_sample(plan, steps, logits)\n",
        killed_by="test_task_2_a_step_without_tokens_is_computed_too",
        breaks="LLMEngine.compute: After that the K/V of the step has been computed",
    ),
    Mutant(
        name="returns-before-prompts-are-scored",
        story="Returns early when nobody gets a token: of a prompt in chunks only the last is scored.",
        replace="        logits = self._rows_to_sample(plan, steps, self.runner.step(steps, plan.copies))\n",
        by="        logits = self.runner.step(steps, plan.copies)\n"
           "        if not any(step.needs_logits for step in steps):\n"
           "            mx.eval(self.runner.cache.pools)\n"
           "            return StepResult()\n"
           "        logits = self._rows_to_sample(plan, steps, logits)\n",
        killed_by="test_task_2_a_prompt_can_be_scored_chunk_by_chunk",
        breaks="LLMEngine.compute: self._rows_to_sample(plan, steps, logits), in every step",
    ),
    # ---- Task 3
    Mutant(
        name="a-step-without-tokens-never-ends",
        story="Calls the scheduler if there are tokens to append. After a step of chunks the KV cache takes the copies "
              "of that step for planned, makes them again, and keeps their blocks.",
        replace="        self.scheduler.update_from_output(plan, result.token_ids)\n",
        by="        if result.token_ids:\n            self.scheduler.update_from_output(plan, result.token_ids)\n",
        killed_by="test_task_3_a_step_without_tokens_is_over_too",
        breaks=("LLMEngine.deliver: It is called in every step, also in one without tokens",
                "invariant 5: An aborted one leaves no block"),
    ),
    Mutant(
        name="looks-before-it-appends",
        story="Takes the tokens before the scheduler appends them: max_tokens is reached one token too late.",
        replace="        self.scheduler.update_from_output(plan, result.token_ids)\n"
                "        self._fork(plan, result)\n        " + MOVED,
        by="        " + MOVED + "        self.scheduler.update_from_output(plan, result.token_ids)\n"
           "        self._fork(plan, result)\n",
        killed_by="test_task_3_the_last_token_of_max_tokens_is_the_last",
        breaks="LLMEngine._take_tokens: It has been appended already",
    ),
    Mutant(
        name="counts-its-own-tokens",
        story="Ends an output itself, by counting, one token early.",
        replace="            if reason is not None:\n",
        by="            if reason is None and len(sequence.output.token_ids) >= sequence.row.params.max_tokens - 1:\n"
           "                reason = \"length\"\n"
           "            if reason is not None:\n",
        killed_by="test_task_3_texts_stream_and_grow",
        breaks="LLMEngine._take_tokens: returns why it ends the output, or None",
    ),
    Mutant(
        name="a-finished-request-keeps-its-blocks",
        story="Writes the finish reason down, and leaves the request in the scheduler, which goes on with it.",
        replace="        self.scheduler.abort_request(sequence.request.request_id)\n",
        by="",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks=("LLMEngine._finish: takes its request out of wherever it is, and its blocks come home",
                "invariant 3: What is over gives its blocks and its seat back in the step in which it ended"),
    ),
    Mutant(
        name="all-that-ends-was-aborted",
        story="abort_request says FINISHED_ABORTED, of those as well that reached their length.",
        replace="        sequence.request.status = RequestStatus(reason)\n",
        by="",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks="LLMEngine._finish: request.status is RequestStatus(reason)",
    ),
    Mutant(
        name="over-before-it-is-out",
        story="Sets the status first. The scheduler finds no running request then, and looks for it in the queue.",
        replace="        self.scheduler.abort_request(sequence.request.request_id)\n"
                "        sequence.request.status = RequestStatus(reason)\n",
        by="        sequence.request.status = RequestStatus(reason)\n"
           "        self.scheduler.abort_request(sequence.request.request_id)\n",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks="LLMEngine._finish: Set it last",
    ),
    Mutant(
        name="the-rest-of-the-text-is-lost",
        story="Sets the finish reason and forgets the text that was held back for a stop string.",
        replace="        sequence.end(reason)\n",
        by="        sequence.output.finish_reason = reason\n",
        killed_by="test_task_3_what_was_held_back_comes_with_the_end",
        breaks="LLMEngine._finish: sequence.end(reason) completes its text",
    ),
    Mutant(
        name="the-text-is-decoded-anew",
        story="Decodes all output tokens at the end, those that stop the output included.",
        replace="        sequence.end(reason)\n",
        by="        sequence.end(reason)\n"
           "        sequence.output.text = self.tokenizer.decode(sequence.output.token_ids, False)\n",
        killed_by="test_task_3_the_end_of_the_text_counts_but_is_not_shown",
        breaks="invariant 4: A text only grows",
    ),
    Mutant(
        name="finished-requests-are-told-again",
        story="Returns an output of every live request, and lets go of none.",
        replace="            if output.finished:\n                self.let_go(group)\n",
        by="",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks=("LLMEngine.deliver: A group whose output is finished is let go",
                "invariant 4: A finished output is the last"),
    ),
    Mutant(
        name="everybody-is-news",
        story="Tells of all live requests in every step, those that wait included.",
        replace="        groups = {group.request_id: group for group in moved}\n",
        by="        groups = dict(self.live.groups)\n",
        killed_by="test_task_3_who_waits_or_is_in_its_prompt_has_no_output",
        breaks="LLMEngine.deliver: A group that just waits, or is in the middle of its prompt, has none",
    ),
    Mutant(
        name="tells-only-of-the-end",
        story="Returns what is finished. Right for whoever waits for all of it; nobody can stream.",
        replace="            outputs.append(output)\n            if output.finished:\n",
        by="            if output.finished:\n                outputs.append(output)\n",
        killed_by="test_task_3_texts_stream_and_grow",
        breaks=("LLMEngine.deliver: An output of each group that moved",
                "invariant 4: Every step returns the outputs of those that moved"),
    ),
    Mutant(
        name="logprobs-stay-in-the-result",
        story="Takes the token without its log-probability.",
        replace="sequence.take_token(token_id, result.logprobs.get(request_id))",
        by="sequence.take_token(token_id, None)",
        killed_by="test_task_3_logprobs_and_timings_are_in_the_output",
        breaks="LLMEngine._take_tokens: The logprob is None where result has none",
    ),
    Mutant(
        name="logprobs-of-the-leader",
        story="Looks the log-probability up by the request, not by the sequence: siblings get the leader's, or none.",
        replace="sequence.take_token(token_id, result.logprobs.get(request_id))",
        by="sequence.take_token(token_id, result.logprobs.get(group.leader.request_id))",
        killed_by="test_task_5_an_output_a_request_and_a_step",
        breaks="LLMEngine._take_tokens: Every token of result goes to its sequence",
    ),
    Mutant(
        name="silent-while-text-is-held-back",
        story="Tells of a request when there is text to show. A token that might begin a stop string is not news then.",
        replace="            outputs.append(output)\n            if output.finished:\n",
        by="            if output.finished or any(each.text for each in output.outputs):\n"
           "                outputs.append(output)\n            if output.finished:\n",
        killed_by="test_task_3_what_was_held_back_comes_with_the_end",
        breaks="LLMEngine._take_tokens: Returns the groups (live.group_of(request_id)) that got a token",
    ),
    Mutant(
        name="only-the-first-token-is-timed",
        story="Notes when the first token came, and nothing after that: every request seems to take no time.",
        replace="            group.note_token(self.clock())\n",
        by="            if group.first_token_s is None:\n                group.note_token(self.clock())\n",
        killed_by="test_task_3_logprobs_and_timings_are_in_the_output",
        breaks="LLMEngine._take_tokens: notes that a token came, for the request's timings",
    ),
    Mutant(
        name="no-token-is-timed",
        story="Forgets the clock: a dashboard shows requests that never had a first token.",
        replace="            group.note_token(self.clock())\n",
        by="",
        killed_by="test_task_3_logprobs_and_timings_are_in_the_output",
        breaks="LLMEngine._take_tokens: notes that a token came, for the request's timings",
    ),
    # ---- Task 4
    Mutant(
        name="abort-forgets-who-waits",
        story="Ends what runs. A request that waits is let go by the engine, and served by the scheduler.",
        replace=ABORT,
        by="        for sequence in group.unfinished:\n"
           "            if sequence.request.status is RequestStatus.RUNNING:\n"
           "                self._finish(sequence, \"abort\")\n"
           "            else:\n                sequence.end(\"abort\")\n",
        killed_by="test_task_4_abort_of_one_that_waits",
        breaks=("LLMEngine.abort_request: End a request between two steps, wherever it is: it waits",
                "invariant 5: An aborted one leaves no block, and is not told of again"),
    ),
    Mutant(
        name="abort-forgets-who-was-preempted",
        story="Knows two places, waiting and running. A preempted request waits, with another status.",
        replace=ABORT,
        by="        for sequence in group.unfinished:\n"
           "            if sequence.request.status in (RequestStatus.RUNNING, RequestStatus.WAITING):\n"
           "                self._finish(sequence, \"abort\")\n"
           "            else:\n                sequence.end(\"abort\")\n",
        killed_by="test_task_4_abort_of_one_that_was_preempted",
        breaks="LLMEngine.abort_request: or it was preempted",
    ),
    Mutant(
        name="abort-leaves-the-scheduler-alone",
        story="The client is gone; its request goes on in the scheduler, and its tokens find no taker.",
        replace="            self._finish(sequence, \"abort\")\n",
        by="            sequence.end(\"abort\")\n",
        killed_by="test_task_4_abort_of_one_that_runs",
        breaks=("LLMEngine.abort_request: each of its sequences that was not over is finished",
                "LLMEngine.abort_request: All its blocks are home"),
    ),
    Mutant(
        name="abort-tells-before-it-ends",
        story="Makes the output first: it is not finished, and lacks the text that was held back.",
        replace="        for sequence in group.unfinished:\n            self._finish(sequence, \"abort\")\n"
                "        self.let_go(group)\n        return group.to_output()\n",
        by="        output = group.to_output()\n"
           "        for sequence in group.unfinished:\n            self._finish(sequence, \"abort\")\n"
           "        self.let_go(group)\n        return output\n",
        killed_by="test_task_4_abort_of_one_that_runs",
        breaks=("LLMEngine.abort_request: with the reason \"abort\"",
                "LLMEngine.abort_request: Returns its output, with the text so far"),
    ),
    Mutant(
        name="abort-knows-its-requests",
        story="Takes it for granted that the id is there. A client hangs up just when its answer is complete.",
        replace="        group = self.live.groups.get(request_id)\n"
                "        if group is None:\n            return None\n",
        by="        group = self.live.groups[request_id]\n",
        killed_by="test_task_4_there_is_nothing_to_abort",
        breaks="LLMEngine.abort_request: None if no request has this id, or it has ended",
    ),
    Mutant(
        name="abort-forgets-what-was-put-back",
        story="Takes the request out of live alone; an older output of it is told by a later step.",
        replace="            self._finish(sequence, \"abort\")\n        self.let_go(group)\n",
        by="            self._finish(sequence, \"abort\")\n        self.live.remove(group)\n",
        killed_by="test_task_4_what_was_put_back_of_an_aborted_request_is_not_told",
        breaks="LLMEngine.abort_request: it has been let go: no further step tells of it",
    ),
    Mutant(
        name="abort-takes-what-has-ended",
        story="Drops what was put back before it asks whether the request lives: a caller never sees its last output.",
        replace="        group = self.live.groups.get(request_id)\n",
        by="        self.unseen.pop(request_id, None)\n        group = self.live.groups.get(request_id)\n",
        killed_by="test_task_4_there_is_nothing_to_abort",
        breaks="LLMEngine.abort_request: nothing changes then",
    ),
    Mutant(
        name="abort-takes-any-id",
        story="Finds the group by the id of a sequence, too: the abort of \"r#1\" ends its siblings.",
        replace="        group = self.live.groups.get(request_id)\n"
                "        if group is None:\n            return None\n",
        by="        if request_id not in self.live:\n            return None\n"
           "        group = self.live.groups.get(request_id) or self.live.group_of(request_id)\n",
        killed_by="test_task_5_abort_takes_the_users_id",
        breaks="LLMEngine.abort_request: The id is the user's",
    ),
    Mutant(
        name="a-broken-step-stays-findable",
        story="Lets the error pass. Full blocks are in the index since they were planned, and nobody has written them.",
        replace="                self._abandon(plan)\n                raise\n",
        by="                raise\n",
        killed_by="test_task_4_a_step_that_broke_leaves_nothing_to_find",
        breaks="LLMEngine._abandon: nobody finds what it was to write",
    ),
    # ---- Task 5
    Mutant(
        name="samples-begin-alike",
        story="Samples one first token and gives it to all.",
        replace=TOKEN,
        by="                    sequence.request.append_output_token(result.token_ids[leader.request_id])\n",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine._fork: Then its own token of result is appended",
    ),
    Mutant(
        name="samples-draw-by-the-first-ones-row",
        story="Samples every sequence by the leader's row: the same seed, the same position, the same token.",
        replace="[sequence.row for sequence in sequences])",
        by="[self.live.group_of(each.request.request_id).sequences[0].row for each in sequences])",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine.compute: by their own row",
    ),
    Mutant(
        name="samples-read-each-others-rows",
        story="Repeats the rows of logits by position instead of by prompt.",
        replace="                sources.append(row)\n",
        by="                sources.append(len(sources) % len(wanting))\n",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine.compute: for each sequence, the number of the row that it is sampled from",
    ),
    Mutant(
        name="forks-miss-their-first-token",
        story="Forks, and forgets that the scheduler appended a token to the leader only.",
        replace=TOKEN,
        by="",
        killed_by="test_task_5_the_prompt_is_computed_once",
        breaks="LLMEngine._fork: Then its own token of result is appended",
    ),
    Mutant(
        name="a-fork-is-counted-twice",
        story="Lowers num_sequences by hand, after scheduler.fork has. It is below 1 then, and more run than there are "
              "seats.",
        replace=TOKEN,
        by=TOKEN + "                    leader.num_sequences -= 1\n",
        killed_by="test_task_5_every_sample_has_one_seat",
        breaks="LLMEngine._fork: scheduler.fork itself lowers num_sequences of the leader by 1",
    ),
    Mutant(
        name="forks-after-the-text",
        story="Takes the tokens first. A sample that its first token has ended is forked after that, and runs on.",
        replace="        self._fork(plan, result)\n        " + MOVED,
        by="        " + MOVED + "        self._fork(plan, result)\n",
        killed_by="test_task_5_one_sample_ends_and_the_others_go_on",
        breaks="LLMEngine.deliver: a sequence must run, and have its token, before it can end",
    ),
    Mutant(
        name="a-second-call-of-the-sampler",
        story="Samples for the requests of the plan, and in a second call for those that are about to be forked.",
        replace=SAMPLE,
        by=SAMPLE_LEADERS_FIRST,
        killed_by="test_task_5_the_prompt_is_computed_once",
        breaks="LLMEngine.compute: self.sampler.sample(logits, rows), once",
    ),
    Mutant(
        name="always-all-sequences",
        story="Gives a token to the whole group whenever one of its sequences computes: three each, in every step.",
        replace="        if request.num_sequences > 1:\n"
                "            return self.live.group_of(request.request_id).sequences\n"
                "        return [self.live.sequence(request.request_id)]\n",
        by="        return self.live.group_of(request.request_id).sequences\n",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine._sequences_of: Otherwise it is one sequence among others, and gets a token for itself",
    ),
    Mutant(
        name="an-output-a-sample",
        story="Tells of a request as often as one of its samples got a token.",
        replace="        for group in groups.values():\n            output = group.to_output()\n",
        by="        for group in [each for each in moved if each.request_id in self.live.groups]:\n"
           "            output = group.to_output()\n",
        killed_by="test_task_5_an_output_a_request_and_a_step",
        breaks=("LLMEngine.deliver: one, even if two of its sequences got a token",
                "invariant 4: each once"),
    ),
    Mutant(
        name="forks-in-the-middle-of-the-prompt",
        story="Forks as soon as a leader is in a plan, with a chunk of its prompt computed.",
        replace="            if leader.num_sequences > 1 and leader.request_id in result.token_ids:\n",
        by="            if leader.num_sequences > 1:\n",
        killed_by="test_task_5_abort_before_the_fork",
        breaks="LLMEngine._fork: Whoever computed a prompt for several sequences, and got a token in this step",
    ),
    Mutant(
        name="abort-ends-who-is-over",
        story="Goes through all sequences: one that had stopped is aborted a second time.",
        replace=ABORT,
        by=ABORT.replace("unfinished", "sequences"),
        killed_by="test_task_5_one_sample_ends_and_the_others_go_on",
        breaks="LLMEngine.abort_request: one that was over keeps its own reason",
    ),
    # ---- Task 6
    Mutant(
        name="outgrown-requests-are-forgotten",
        story="The scheduler has ended it, the engine never hears of it: its caller waits for ever.",
        replace="        " + MOVED,
        by="        moved = [*self._take_tokens(result), *self._fail(result)]\n",
        killed_by="test_task_6_who_outgrows_the_pool_ends_with_what_it_has",
        breaks=("LLMEngine.deliver: the groups of _end_outgrown and of _fail moved, too",
                "invariant 6: because it outgrew the pool"),
    ),
    Mutant(
        name="outgrown-is-length",
        story="Says that the output had its full length. It had not.",
        replace="            self.live.sequence(request.request_id).end(request.status.value)\n",
        by="            self.live.sequence(request.request_id).end(\"length\")\n",
        killed_by="test_task_6_who_outgrows_the_pool_ends_with_what_it_has",
        breaks="LLMEngine._end_outgrown: the value of that, \"kv_cache_full\", is the reason by which their sequence "
               "ends",
    ),
    Mutant(
        name="the-outgrown-takes-its-siblings-along",
        story="Ends the whole group. The sample that waited could have said more, and its request is left behind.",
        replace="            self.live.sequence(request.request_id).end(request.status.value)\n",
        by="            for sequence in self.live.group_of(request.request_id).unfinished:\n"
           "                sequence.end(request.status.value)\n",
        killed_by="test_task_6_who_outgrows_the_pool_ends_with_what_it_has",
        breaks="LLMEngine._end_outgrown: the reason by which their sequence ends",
    ),
    Mutant(
        name="movement-is-not-told",
        story="Counts idle steps and passes over the others: three in a day are enough to end everybody.",
        replace="        if not self.idle_steps.add(is_idle):\n            return {}\n",
        by="        if not is_idle or not self.idle_steps.add(is_idle):\n            return {}\n",
        killed_by="test_task_6_only_idle_steps_in_a_row_count",
        breaks="LLMEngine._errors_if_stalled: counts idle steps in a row",
    ),
    Mutant(
        name="the-stall-is-blamed-on-the-leader",
        story="Asks the leader how many blocks are missing. It may be over, and needs none.",
        replace="        stalled = [group.unfinished[0].request for",
        by="        stalled = [group.leader for",
        killed_by="test_task_6_samples_that_stall_end_together",
        breaks="LLMEngine._errors_if_stalled: under the id of the request of its first unfinished sequence: "
               "StalledError.about(request, self.kv_cache)",
    ),
    Mutant(
        name="waits-for-ever",
        story="Goes on hoping. The loop around step() never ends.",
        replace="        if not self.idle_steps.add(is_idle):\n            return {}\n",
        by="        if True:\n            return {}\n",
        killed_by="test_task_6_a_stalled_request_ends_with_the_reason",
        breaks=("LLMEngine._errors_if_stalled: If that has gone on for too long, an error for every live request",
                "invariant 6: Every request ends"),
    ),
    Mutant(
        name="only-the-first-is-told-of-the-stall",
        story="Ends one request. The others wait three steps more, each.",
        replace="for group in self.live.groups.values()]\n        return {",
        by="for group in list(self.live.groups.values())[:1]]\n        return {",
        killed_by="test_task_6_a_stalled_request_ends_with_the_reason",
        breaks="LLMEngine._errors_if_stalled: For each live group",
    ),
    Mutant(
        name="the-count-goes-on",
        story="Never begins anew: whoever comes after a stall has one step instead of three.",
        replace="        self.idle_steps = IdleSteps()\n",
        by="",
        killed_by="test_task_6_the_count_begins_anew",
        breaks="LLMEngine._errors_if_stalled: And the count begins anew",
    ),
    Mutant(
        name="preempting-is-idling",
        story="Counts a step that computed nothing, though it took somebody's blocks for somebody else.",
        replace="bool(self.live.groups) and not plan.preempted and not plan.finished\n",
        by="bool(self.live.groups) and not plan.finished\n",
        killed_by="test_task_6_a_step_that_preempts_or_finishes_is_not_idle",
        breaks="LLMEngine._errors_if_stalled: it has preempted nobody and finished nobody either",
    ),
    Mutant(
        name="finishing-is-idling",
        story="Counts a step that computed nothing, though it ended somebody.",
        replace="bool(self.live.groups) and not plan.preempted and not plan.finished\n",
        by="bool(self.live.groups) and not plan.preempted\n",
        killed_by="test_task_6_a_step_that_preempts_or_finishes_is_not_idle",
        breaks="LLMEngine._errors_if_stalled: it has preempted nobody and finished nobody either",
    ),
    Mutant(
        name="nobody-is-idle",
        story="Counts steps without any request, too: three quiet moments, and the next request is ended at once.",
        replace="bool(self.live.groups) and not plan.preempted and not plan.finished\n",
        by="not plan.preempted and not plan.finished\n",
        killed_by="test_task_6_telling_is_not_idling",
        breaks="LLMEngine._errors_if_stalled: though there are live requests",
    ),
    Mutant(
        name="an-error-ends-one-sample",
        story="Ends the sequence that the error names; its siblings live on, without a step that would serve them.",
        replace="            for sequence in group.unfinished:\n                self._finish(sequence, \"error\")\n",
        by="            self._finish(self.live.sequence(request_id), \"error\")\n",
        killed_by="test_task_6_samples_that_stall_end_together",
        breaks="LLMEngine._fail: each ends a whole request, with all sequences of it that are not over",
    ),
    Mutant(
        name="an-error-ends-who-is-over",
        story="Goes through all sequences: one that had said \"stop\" has an error now.",
        replace="            for sequence in group.unfinished:\n                self._finish(sequence, \"error\")\n",
        by="            for sequence in group.sequences:\n                self._finish(sequence, \"error\")\n",
        killed_by="test_task_6_samples_that_stall_end_together",
        breaks="LLMEngine._fail: After: those are finished, with the reason \"error\"",
    ),
    Mutant(
        name="an-error-says-nothing",
        story="Ends with the reason \"error\", and keeps the error to itself.",
        replace="            group.error = describe(error)\n",
        by="",
        killed_by="test_task_6_a_stalled_request_ends_with_the_reason",
        breaks=("LLMEngine._fail: group.error says what happened: describe(error)",
                "invariant 6: or with an error that says why"),
    ),
]
