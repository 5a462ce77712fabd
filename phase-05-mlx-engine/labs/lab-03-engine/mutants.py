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
        story="Registers the request before the scheduler accepts it. A rejected request stays live forever and is "
              "never served.",
        replace=ADD,
        by="        self.live.add(group)\n        self.scheduler.add_request(group.leader)\n",
        killed_by="test_task_1_a_rejected_request_leaves_no_trace",
        breaks=("LLMEngine.add_request: live and the scheduler are unchanged then",
                "invariant 5: A rejected request leaves no trace"),
    ),
    Mutant(
        name="who-is-refused-hears-nothing",
        story="Ignores the scheduler's error and returns the id. The caller waits for an answer that is never "
              "computed.",
        replace=ADD,
        by="        try:\n            self.scheduler.add_request(group.leader)\n"
           "        except ValueError:\n            return group.request_id\n        self.live.add(group)\n",
        killed_by="test_task_1_a_rejected_request_leaves_no_trace",
        breaks="LLMEngine.add_request: ValueError if the inputs or the scheduler reject the request",
    ),
    Mutant(
        name="blocks-are-taken-at-the-door",
        story="Reserves the blocks of the prompt on arrival: a waiting request keeps others from running.",
        replace=ADD,
        by=ADD + "        self.kv_cache.allocate_slots(group.leader, group.leader.num_tokens)\n",
        killed_by="test_task_1_a_request_that_came_waits",
        breaks="LLMEngine.add_request: nothing is computed, and the request holds no block",
    ),
    Mutant(
        name="every-sample-waits",
        story="Adds all sequences to the scheduler: the prompt of three samples is computed three times.",
        replace="        self.scheduler.add_request(group.leader)\n",
        by="        for sequence in group.sequences:\n            self.scheduler.add_request(sequence.request)\n",
        killed_by="test_task_1_of_several_samples_the_leader_waits",
        breaks="LLMEngine.add_request: the scheduler has the group's leader, and none of its other sequences",
    ),
    Mutant(
        name="priority-is-lost-on-the-way",
        story="Loses the priority: the caller asks for HIGH, and the queue gets NORMAL.",
        replace="process(prompt, sampling_params, request_id, priority, extra_keys)",
        by="process(prompt, sampling_params, request_id, Priority.NORMAL, extra_keys)",
        killed_by="test_task_1_priority_and_keys_go_with_the_request",
        breaks="LLMEngine.add_request: whose leader has the caller's priority and extra_keys",
    ),
    Mutant(
        name="keys-are-lost-on-the-way",
        story="Loses the extra keys: two tenants with different keys share cached blocks.",
        replace="process(prompt, sampling_params, request_id, priority, extra_keys)",
        by="process(prompt, sampling_params, request_id, priority, None)",
        killed_by="test_task_1_priority_and_keys_go_with_the_request",
        breaks="LLMEngine.add_request: whose leader has the caller's priority and extra_keys",
    ),
    Mutant(
        name="returns-what-it-was-given",
        story="Returns the argument: None if the engine had to choose an id.",
        replace="        return group.request_id\n",
        by="        return request_id\n",
        killed_by="test_task_1_an_id_is_made_if_there_is_none",
        breaks="LLMEngine.add_request: the group's id: request_id, or a new id if that is None",
    ),
    Mutant(
        name="returns-the-leaders-id",
        story="Returns the scheduler's id: a caller of three samples gets \"r#0\", which cannot be aborted.",
        replace="        return group.request_id\n",
        by="        return group.leader.request_id\n",
        killed_by="test_task_1_of_several_samples_the_leader_waits",
        breaks="LLMEngine.add_request: the user's id, not the leader's, even if n > 1",
    ),
    Mutant(
        name="only-computing-counts",
        story="Looks only at the live requests: an output that was put back is never returned.",
        replace="        return bool(self.live.groups or self.unseen)\n",
        by="        return bool(self.live.groups)\n",
        killed_by="test_task_1_an_unseen_output_still_has_to_be_reported",
        breaks="LLMEngine.has_unfinished_requests: something to return while unseen has an output",
    ),
    Mutant(
        name="who-waits-does-not-count",
        story="Looks only at running requests: if none runs, the loop ends, and a waiting request is never served.",
        replace="        return bool(self.live.groups or self.unseen)\n",
        by="        return bool(self.scheduler.running or self.unseen)\n",
        killed_by="test_task_1_a_request_that_came_waits",
        breaks="LLMEngine.has_unfinished_requests: There is something to compute while live has a group",
    ),
    Mutant(
        name="the-scheduler-is-asked",
        story="Asks the scheduler. After a failed step the scheduler no longer has its requests, and their callers "
              "wait.",
        replace="        return bool(self.live.groups or self.unseen)\n",
        by="        return bool(self.scheduler.has_unfinished_requests() or self.unseen)\n",
        killed_by="test_task_1_an_unseen_output_still_has_to_be_reported",
        breaks="LLMEngine.has_unfinished_requests: The scheduler cannot answer this",
    ),
    # ---- Task 2
    Mutant(
        name="the-blocks-of-the-step-alone",
        story="Passes only the blocks that the step writes. But attention also reads the earlier blocks.",
        replace="self.kv_cache.get_block_ids(request.request_id), end,\n",
        by="self.kv_cache.get_block_ids(request.request_id)[start // self.config.block_size:], end,\n",
        killed_by="test_task_2_the_runner_is_given_the_tokens_that_were_planned",
        breaks="LLMEngine._request_step: block_ids: the whole block table of the request",
    ),
    Mutant(
        name="logits-for-every-chunk",
        story="Samples after every step. A prompt in three chunks gets two superfluous tokens.",
        replace="needs_logits=end == request.num_tokens,",
        by="needs_logits=True,",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks=("invariant 1: A chunk in the middle of a prompt gets none",
                "LLMEngine.compute: one for each request whose step needs logits, and none for the others"),
    ),
    Mutant(
        name="logits-only-for-prompts",
        story="Compares with the length of the prompt: the first token is sampled, the second never is.",
        replace="needs_logits=end == request.num_tokens,",
        by="needs_logits=end == request.num_prompt_tokens,",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks="invariant 1: A token is sampled for a request exactly when the request's last token was computed",
    ),
    Mutant(
        name="logits-from-the-end-of-the-prompt-on",
        story="Treats everything after the prompt as decoding. But a preempted request computes its own output in "
              "chunks.",
        replace="needs_logits=end == request.num_tokens,",
        by="needs_logits=end >= request.num_prompt_tokens,",
        killed_by="test_task_2_a_preempted_request_gets_no_token_before_its_last",
        breaks="LLMEngine._request_step: needs_logits: whether these tokens include the last token that the request "
               "has so far",
    ),
    Mutant(
        name="the-context-ends-where-the-step-begins",
        story="Sets context_len to the number of tokens that had K/V before the step, without the new tokens.",
        replace="self.kv_cache.get_block_ids(request.request_id), end,\n",
        by="self.kv_cache.get_block_ids(request.request_id), start,\n",
        killed_by="test_task_2_the_runner_is_given_the_tokens_that_were_planned",
        breaks="LLMEngine._request_step: context_len: end",
    ),
    Mutant(
        name="a-call-of-the-runner-a-request",
        story="Runs one request after the other: the tokens are right, but the weights are read once per request.",
        replace="        logits = self._rows_to_sample(plan, steps, self.runner.step(steps, plan.copies))\n",
        by="        self.runner.cache.copy_blocks(plan.copies)\n"
           "        logits = mx.concatenate([self.runner.step([step]) for step in steps])\n"
           "        logits = self._rows_to_sample(plan, steps, logits)\n",
        killed_by="test_task_2_a_step_is_one_call",
        breaks="LLMEngine.compute: the runner was called once",
    ),
    Mutant(
        name="a-call-of-the-sampler-a-request",
        story="Samples request by request: it waits for the device once per request.",
        replace=SAMPLE,
        by=SAMPLE_ONE_BY_ONE,
        killed_by="test_task_2_a_step_is_one_call",
        breaks="LLMEngine.compute: the sampler was called once",
    ),
    Mutant(
        name="starts-where-it-should-end",
        story="Treats num_computed_tokens as the tokens computed before the step, which is true only between two "
              "steps.",
        replace="        end = request.num_computed_tokens\n        start = end - num_tokens\n",
        by="        start = request.num_computed_tokens\n        end = start + num_tokens\n",
        killed_by="test_task_2_the_runner_is_given_the_tokens_that_were_planned",
        breaks="LLMEngine._request_step: request.num_computed_tokens is where they end",
    ),
    Mutant(
        name="always-from-the-beginning",
        story="Takes the tokens of every chunk from the first token on: right only for the first chunk.",
        replace="request.all_token_ids[start:end]",
        by="request.all_token_ids[:num_tokens]",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks="LLMEngine._request_step: token_ids: the tokens from start to end, of the prompt and the output",
    ),
    Mutant(
        name="only-the-prompts-tokens",
        story="Takes the tokens from the prompt, which contains no output tokens.",
        replace="request.all_token_ids[start:end]",
        by="(request.prompt_token_ids + [0] * num_tokens)[start:end]",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks="LLMEngine._request_step: token_ids: the tokens from start to end, of the prompt and the output",
    ),
    Mutant(
        name="tokens-in-the-order-of-arrival",
        story="Assigns the tokens to the requests in their order of arrival. The plan has another order.",
        replace="        ids = [sequence.request.request_id for sequence in sequences]\n",
        by="        ids = [each.request.request_id for group in self.live.groups.values() for each in group.sequences\n"
           "               if each in sequences]\n",
        killed_by="test_task_2_a_batch_of_decodes_and_chunks_gives_each_request_its_own",
        breaks=("LLMEngine._rows_to_sample: for each step that needs logits, in the order of steps",
                "LLMEngine.compute: token_ids by request id: one for each request whose step needs logits",
                "invariant 7: each request generates the same text as when it is alone"),
    ),
    Mutant(
        name="counts-twice",
        story="Advances num_computed_tokens after the step. The scheduler has already done so when it planned.",
        replace="        if not sequences:\n            return StepResult()\n",
        by="        for request in plan.requests:\n"
           "            request.num_computed_tokens += plan.num_scheduled_tokens[request.request_id]\n"
           "        if not sequences:\n            return StepResult()\n",
        killed_by="test_task_2_compute_changes_no_request",
        breaks=("LLMEngine.compute: each request has the num_computed_tokens and the output tokens that it had before",
                "invariant 2: The scheduler counts tokens as computed when it plans"),
    ),
    Mutant(
        name="appends-twice",
        story="Appends the token when it is sampled; the scheduler appends it again.",
        replace="        ids = [sequence.request.request_id for sequence in sequences]\n",
        by="        ids = [sequence.request.request_id for sequence in sequences]\n"
           "        for sequence, token_id in zip(sequences, sampled.token_ids):\n"
           "            sequence.request.append_output_token(token_id)\n",
        killed_by="test_task_2_compute_changes_no_request",
        breaks=("LLMEngine.compute: each request has the num_computed_tokens and the output tokens that it had before",
                "invariant 2: and appends the sampled tokens when you deliver"),
    ),
    Mutant(
        name="copies-forgotten",
        story="Runs the step without the copies: a request that shares half a block reads the old content of its new "
              "block.",
        replace="steps, self.runner.step(steps, plan.copies))",
        by="steps, self.runner.step(steps))",
        killed_by="test_task_2_blocks_are_copied_before_the_step_writes",
        breaks="LLMEngine.compute: with a RequestStep for each request, in the order of the plan, and plan.copies",
    ),
    Mutant(
        name="everybody-gets-logprobs",
        story="Includes None for requests that did not ask for logprobs.",
        replace=" in zip(ids, sampled.logprobs) if logprob is not None}\n",
        by=" in zip(ids, sampled.logprobs)}\n",
        killed_by="test_task_2_log_probabilities_go_to_the_requests_that_asked",
        breaks="LLMEngine.compute: except those that are None",
    ),
    Mutant(
        name="nobody-gets-logprobs",
        story="Returns only the tokens.",
        replace="        return StepResult(dict(zip(ids, sampled.token_ids)), logprobs)\n",
        by="        return StepResult(dict(zip(ids, sampled.token_ids)))\n",
        killed_by="test_task_2_log_probabilities_go_to_the_requests_that_asked",
        breaks="LLMEngine.compute: logprobs by request id: the logprobs that the sampler returned",
    ),
    Mutant(
        name="prompts-are-not-scored",
        story="Leaves out needs_all_logits: a request that asked for prompt logprobs gets only those of one token.",
        replace="needs_all_logits=self._scores_prompt(request, start, end))",
        by="needs_all_logits=False)",
        killed_by="test_task_2_a_prompt_can_be_scored_chunk_by_chunk",
        breaks="LLMEngine._request_step: needs_all_logits: the result of _scores_prompt",
    ),
    Mutant(
        name="samples-for-nobody",
        story="Calls the sampler without rows; an empty index array has the wrong type.",
        replace="        if not sequences:\n            return StepResult()\n",
        by="",
        killed_by="test_task_2_a_chunk_in_the_middle_of_a_prompt_gets_no_token",
        breaks="LLMEngine.compute: the sampler was not called if there is no token to draw",
    ),
    Mutant(
        name="a-step-without-rows-is-left-to-mlx",
        story="Calls _rows_to_sample only if there is a row. The K/V of a chunk is then recorded but computed later.",
        replace="        logits = self._rows_to_sample(plan, steps, self.runner.step(steps, plan.copies))\n",
        by="        logits = self.runner.step(steps, plan.copies)\n"
           "        if any(step.needs_logits or step.needs_all_logits for step in steps):\n"
           "            logits = self._rows_to_sample(plan, steps, logits)\n",
        killed_by="test_task_2_a_step_without_tokens_is_computed_too",
        breaks="LLMEngine.compute: so that the K/V of the step is computed",
    ),
    Mutant(
        name="returns-before-prompts-are-scored",
        story="Returns early when no request gets a token: only the last chunk of a prompt is scored.",
        replace="        logits = self._rows_to_sample(plan, steps, self.runner.step(steps, plan.copies))\n",
        by="        logits = self.runner.step(steps, plan.copies)\n"
           "        if not any(step.needs_logits for step in steps):\n"
           "            mx.eval(self.runner.cache.pools)\n"
           "            return StepResult()\n"
           "        logits = self._rows_to_sample(plan, steps, logits)\n",
        killed_by="test_task_2_a_prompt_can_be_scored_chunk_by_chunk",
        breaks="LLMEngine.compute: _rows_to_sample was called, even in a step without tokens",
    ),
    Mutant(
        name="the-sampler-is-called-for-no-row",
        story="Calls the sampler in every step, even without a row: the tokens are right, but the call is wasted.",
        replace="        if not sequences:\n            return StepResult()\n",
        by="        if not sequences:\n            self.sampler.sample(logits, [])\n            return StepResult()\n",
        killed_by="test_task_2_a_step_is_one_call",
        breaks="LLMEngine.compute: the sampler was not called if there is no token to draw",
    ),
    # ---- Task 3
    Mutant(
        name="a-step-without-tokens-never-ends",
        story="Calls the scheduler only if there are tokens to append. After a step of chunks the KV cache treats "
              "the copies of that step as still pending, makes them again, and keeps their blocks.",
        replace="        self.scheduler.update_from_output(plan, result.token_ids)\n",
        by="        if result.token_ids:\n            self.scheduler.update_from_output(plan, result.token_ids)\n",
        killed_by="test_task_3_a_step_without_tokens_is_over_too",
        breaks=("LLMEngine.deliver: scheduler.update_from_output was called once, even in a step without tokens",
                "invariant 5: An aborted request keeps no block"),
    ),
    Mutant(
        name="looks-before-it-appends",
        story="Takes the tokens before the scheduler appends them: max_tokens is noticed one token too late.",
        replace="        self.scheduler.update_from_output(plan, result.token_ids)\n"
                "        self._fork(plan, result)\n        " + MOVED,
        by="        " + MOVED + "        self.scheduler.update_from_output(plan, result.token_ids)\n"
           "        self._fork(plan, result)\n",
        killed_by="test_task_3_the_last_token_of_max_tokens_is_the_last",
        breaks=("LLMEngine._take_tokens: each token has been appended to its request",
                "LLMEngine.deliver: every token has been appended to its request and turned into text"),
    ),
    Mutant(
        name="counts-its-own-tokens",
        story="Counts the tokens itself and ends the output one token early.",
        replace="            if reason is not None:\n",
        by="            if reason is None and len(sequence.output.token_ids) >= sequence.row.params.max_tokens - 1:\n"
           "                reason = \"length\"\n"
           "            if reason is not None:\n",
        killed_by="test_task_3_texts_stream_and_grow",
        breaks="LLMEngine._take_tokens: a sequence for which take_token returned a reason is finished with that reason",
    ),
    Mutant(
        name="a-finished-request-keeps-its-blocks",
        story="Sets the finish reason but leaves the request in the scheduler, which continues it.",
        replace="        self.scheduler.abort_request(sequence.request.request_id)\n",
        by="",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks=("LLMEngine._finish: the scheduler no longer has its request, and the request's blocks are "
                "free",
                "LLMEngine.deliver: its blocks and its place in the running batch are free",
                "invariant 3: frees its blocks and its place in the running batch in the step in which it ended"),
    ),
    Mutant(
        name="all-that-ends-was-aborted",
        story="Keeps FINISHED_ABORTED from abort_request, even for requests that reached their length.",
        replace="        sequence.request.status = RequestStatus(reason)\n",
        by="",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks=("LLMEngine._finish: if the scheduler had the request, the request has the status RequestStatus(reason)",
                "LLMEngine.deliver: its request has the status RequestStatus(reason)"),
    ),
    Mutant(
        name="over-before-it-is-out",
        story="Sets the status first. The scheduler then thinks that the request waits, and searches the queue.",
        replace="        self.scheduler.abort_request(sequence.request.request_id)\n"
                "        sequence.request.status = RequestStatus(reason)\n",
        by="        sequence.request.status = RequestStatus(reason)\n"
           "        self.scheduler.abort_request(sequence.request.request_id)\n",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks=("LLMEngine._finish: the scheduler no longer has its request",
                "README: It looks at the status to know whether the request runs or waits"),
    ),
    Mutant(
        name="the-rest-of-the-text-is-lost",
        story="Sets the finish reason and forgets the text that was held back for a stop string.",
        replace="        sequence.end(reason)\n",
        by="        sequence.output.finish_reason = reason\n",
        killed_by="test_task_3_what_was_held_back_comes_with_the_end",
        breaks="LLMEngine._finish: its text includes what was held back for a stop string",
    ),
    Mutant(
        name="the-text-is-decoded-again",
        story="Decodes all output tokens at the end, including those that stop the output.",
        replace="        sequence.end(reason)\n",
        by="        sequence.end(reason)\n"
           "        sequence.output.text = self.tokenizer.decode(sequence.output.token_ids, False)\n",
        killed_by="test_task_3_the_end_of_the_text_counts_but_is_not_shown",
        breaks="invariant 4: A text only grows",
    ),
    Mutant(
        name="finished-requests-are-told-again",
        story="Returns an output for every live request and releases none.",
        replace="            if output.finished:\n                self.let_go(group)\n",
        by="",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks=("LLMEngine.deliver: a request whose output is finished has been released",
                "invariant 4: A finished output is the last"),
    ),
    Mutant(
        name="only-live-lets-go",
        story="Removes a finished request only from live. Its counts are charged to the next request with that id.",
        replace="                self.let_go(group)\n        return outputs\n",
        by="                self.live.remove(group)\n        return outputs\n",
        killed_by="test_task_3_what_is_over_gives_seat_and_blocks_back_in_the_same_step",
        breaks="LLMEngine.deliver: a request whose output is finished has been released with let_go",
    ),
    Mutant(
        name="everybody-is-news",
        story="Returns outputs of all live requests in every step, including those that wait.",
        replace="        groups = {group.request_id: group for group in moved}\n",
        by="        groups = dict(self.live.groups)\n",
        killed_by="test_task_3_a_request_that_waits_or_is_in_its_prompt_has_no_output",
        breaks="LLMEngine.deliver: no output for a request that waits or is in the middle of its prompt",
    ),
    Mutant(
        name="tells-only-of-the-end",
        story="Returns only finished outputs. This is right for a caller that waits for the end, but streaming is "
              "impossible.",
        replace="            outputs.append(output)\n            if output.finished:\n",
        by="            if output.finished:\n                outputs.append(output)\n",
        killed_by="test_task_3_texts_stream_and_grow",
        breaks=("LLMEngine.deliver: one output for each request that moved",
                "invariant 4: Every step returns the outputs of the requests that moved"),
    ),
    Mutant(
        name="logprobs-stay-in-the-result",
        story="Takes the token without its log-probability.",
        replace="sequence.take_token(token_id, result.logprobs.get(request_id))",
        by="sequence.take_token(token_id, None)",
        killed_by="test_task_3_logprobs_and_timings_are_in_the_output",
        breaks="LLMEngine._take_tokens: with its own logprob, or None if result has none for it",
    ),
    Mutant(
        name="logprobs-of-the-leader",
        story="Looks up the logprob by request, not by sequence: the other samples get the leader's logprob, or none.",
        replace="sequence.take_token(token_id, result.logprobs.get(request_id))",
        by="sequence.take_token(token_id, result.logprobs.get(group.leader.request_id))",
        killed_by="test_task_5_an_output_a_request_and_a_step",
        breaks="LLMEngine._take_tokens: each sequence has taken its token, with its own logprob",
    ),
    Mutant(
        name="silent-while-text-is-held-back",
        story="Returns an output only if there is new text. A token that may begin a stop string is then not reported.",
        replace="            outputs.append(output)\n            if output.finished:\n",
        by="            if output.finished or any(each.text for each in output.outputs):\n"
           "                outputs.append(output)\n            if output.finished:\n",
        killed_by="test_task_3_what_was_held_back_comes_with_the_end",
        breaks="LLMEngine._take_tokens: the groups that got a token",
    ),
    Mutant(
        name="only-the-first-token-is-timed",
        story="Notes only the time of the first token: every request seems to take no time after it.",
        replace="            group.note_token(self.clock())\n",
        by="            if group.first_token_s is None:\n                group.note_token(self.clock())\n",
        killed_by="test_task_3_logprobs_and_timings_are_in_the_output",
        breaks="LLMEngine._take_tokens: each token has been noted in its group (note_token) at the time of clock()",
    ),
    Mutant(
        name="no-token-is-timed",
        story="Notes no times: a dashboard shows requests that never had a first token.",
        replace="            group.note_token(self.clock())\n",
        by="",
        killed_by="test_task_3_logprobs_and_timings_are_in_the_output",
        breaks="LLMEngine._take_tokens: each token has been noted in its group (note_token) at the time of clock()",
    ),
    Mutant(
        name="the-last-token-is-not-timed",
        story="Notes a token only if the sequence continues. A request with one token then has no first token.",
        replace="            group.note_token(self.clock())\n            if reason is not None:\n",
        by="            if reason is None:\n                group.note_token(self.clock())\n            else:\n",
        killed_by="test_task_3_logprobs_and_timings_are_in_the_output",
        breaks="LLMEngine._take_tokens: including the last one",
    ),
    # ---- Task 4
    Mutant(
        name="abort-forgets-who-waits",
        story="Ends only running requests. A waiting request is released by the engine but still served by the "
              "scheduler.",
        replace=ABORT,
        by="        for sequence in group.unfinished:\n"
           "            if sequence.request.status is RequestStatus.RUNNING:\n"
           "                self._finish(sequence, \"abort\")\n"
           "            else:\n                sequence.end(\"abort\")\n",
        killed_by="test_task_4_abort_of_one_that_waits",
        breaks=("LLMEngine.abort_request: End a request between two steps, in any state: it waits",
                "invariant 5: An aborted request keeps no block, and no later step returns an output for it"),
    ),
    Mutant(
        name="abort-forgets-who-was-preempted",
        story="Knows only the states waiting and running. A preempted request waits with another status.",
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
        story="Leaves the request in the scheduler: it continues, although its client is gone.",
        replace="            self._finish(sequence, \"abort\")\n",
        by="            sequence.end(\"abort\")\n",
        killed_by="test_task_4_abort_of_one_that_runs",
        breaks=("LLMEngine.abort_request: each of its unfinished sequences is finished",
                "LLMEngine.abort_request: all its blocks are free"),
    ),
    Mutant(
        name="abort-tells-before-it-ends",
        story="Makes the output first: it is not finished and lacks the text that was held back.",
        replace="        for sequence in group.unfinished:\n            self._finish(sequence, \"abort\")\n"
                "        self.let_go(group)\n        return group.to_output()\n",
        by="        output = group.to_output()\n"
           "        for sequence in group.unfinished:\n            self._finish(sequence, \"abort\")\n"
           "        self.let_go(group)\n        return output\n",
        killed_by="test_task_4_abort_of_one_that_runs",
        breaks=("LLMEngine.abort_request: with the reason \"abort\"",
                "LLMEngine.abort_request: its output, with the whole text so far"),
    ),
    Mutant(
        name="abort-knows-its-requests",
        story="Assumes that the id exists. But a client may disconnect just when its answer is complete.",
        replace="        group = self.live.groups.get(request_id)\n"
                "        if group is None:\n            return None\n",
        by="        group = self.live.groups[request_id]\n",
        killed_by="test_task_4_there_is_nothing_to_abort",
        breaks="LLMEngine.abort_request: None if request_id is not the user's id of a live request",
    ),
    Mutant(
        name="abort-forgets-what-was-put-back",
        story="Removes the request only from live; a later step returns an older output of it.",
        replace="            self._finish(sequence, \"abort\")\n        self.let_go(group)\n",
        by="            self._finish(sequence, \"abort\")\n        self.live.remove(group)\n",
        killed_by="test_task_4_what_was_put_back_of_an_aborted_request_is_not_told",
        breaks="LLMEngine.abort_request: it has been released with let_go: no later step returns an output for it",
    ),
    Mutant(
        name="abort-takes-what-has-ended",
        story="Drops outputs that were put back before it checks that the request is live: a caller never sees its "
              "last output.",
        replace="        group = self.live.groups.get(request_id)\n",
        by="        self.unseen.pop(request_id, None)\n        group = self.live.groups.get(request_id)\n",
        killed_by="test_task_4_there_is_nothing_to_abort",
        breaks="LLMEngine.abort_request: nothing changes then",
    ),
    Mutant(
        name="abort-takes-any-id",
        story='Also accepts the id of a sequence: aborting "r#1" ends the other samples.',
        replace="        group = self.live.groups.get(request_id)\n"
                "        if group is None:\n            return None\n",
        by="        if request_id not in self.live:\n            return None\n"
           "        group = self.live.groups.get(request_id) or self.live.group_of(request_id)\n",
        killed_by="test_task_5_abort_takes_the_users_id",
        breaks="LLMEngine.abort_request: None if request_id is not the user's id of a live request",
    ),
    Mutant(
        name="a-broken-step-stays-findable",
        story="Only raises the error. Full blocks are in the index since they were planned, but they were never "
              "written.",
        replace="                self._abandon(plan)\n                raise\n",
        by="                raise\n",
        killed_by="test_task_4_a_step_that_broke_leaves_nothing_to_find",
        breaks="LLMEngine._abandon: and its blocks from the prefix index",
    ),
    # ---- Task 5
    Mutant(
        name="samples-begin-alike",
        story="Samples one first token and gives it to all sequences.",
        replace=TOKEN,
        by="                    sequence.request.append_output_token(result.token_ids[leader.request_id])\n",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine._fork: each of these sequences has its own token of result appended to its request",
    ),
    Mutant(
        name="samples-draw-by-the-first-ones-row",
        story="Samples every sequence with the leader's row: the same seed and position give the same token.",
        replace="[sequence.row for sequence in sequences])",
        by="[self.live.group_of(each.request.request_id).sequences[0].row for each in sequences])",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine.compute: each with the sequence's own row",
    ),
    Mutant(
        name="samples-read-each-others-rows",
        story="Repeats the rows of logits by position instead of by prompt.",
        replace="                sources.append(row)\n",
        by="                sources.append(len(sources) % len(wanting))\n",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine.compute: all of them drawn from the request's one row of logits",
    ),
    Mutant(
        name="forks-miss-their-first-token",
        story="Forks, but forgets that the scheduler appended a token only to the leader.",
        replace=TOKEN,
        by="",
        killed_by="test_task_5_the_prompt_is_computed_once",
        breaks="LLMEngine._fork: each of these sequences has its own token of result appended to its request",
    ),
    Mutant(
        name="a-fork-is-counted-twice",
        story="Lowers num_sequences although scheduler.fork has already done so. It is then below 1, and more "
              "requests run than max_num_seqs allows.",
        replace=TOKEN,
        by=TOKEN + "                    leader.num_sequences -= 1\n",
        killed_by="test_task_5_every_sample_has_one_seat",
        breaks="LLMEngine._fork: num_sequences of the leader is 1",
    ),
    Mutant(
        name="forks-after-the-text",
        story="Takes the tokens first. A sample that ends with its first token is forked afterwards and keeps running.",
        replace="        self._fork(plan, result)\n        " + MOVED,
        by="        " + MOVED + "        self._fork(plan, result)\n",
        killed_by="test_task_5_one_sample_ends_and_the_others_go_on",
        breaks="LLMEngine.deliver: the sequences of a completed prompt were forked before any of them could end",
    ),
    Mutant(
        name="a-second-call-of-the-sampler",
        story="Samples for the requests of the plan, and makes a second call for the sequences to be forked.",
        replace=SAMPLE,
        by=SAMPLE_LEADERS_FIRST,
        killed_by="test_task_5_the_prompt_is_computed_once",
        breaks="LLMEngine.compute: the sampler was called once",
    ),
    Mutant(
        name="always-all-sequences",
        story="Gives a token to the whole group whenever one of its sequences computes: each of three samples gets "
              "three tokens in every step.",
        replace="        if request.num_sequences > 1:\n"
                "            return self.live.group_of(request.request_id).sequences\n"
                "        return [self.live.sequence(request.request_id)]\n",
        by="        return self.live.group_of(request.request_id).sequences\n",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine._sequences_of: Otherwise only its own sequence gets one",
    ),
    Mutant(
        name="an-output-a-sample",
        story="Returns one output per sample that got a token, instead of one per request.",
        replace="        for group in groups.values():\n            output = group.to_output()\n",
        by="        for group in [each for each in moved if each.request_id in self.live.groups]:\n"
           "            output = group.to_output()\n",
        killed_by="test_task_5_an_output_a_request_and_a_step",
        breaks=("LLMEngine.deliver: even if several of its sequences got a token",
                "invariant 4: each once"),
    ),
    Mutant(
        name="forks-in-the-middle-of-the-prompt",
        story="Forks as soon as a leader is in a plan, when only a chunk of its prompt is computed.",
        replace="            if leader.num_sequences > 1 and leader.request_id in result.token_ids:\n",
        by="            if leader.num_sequences > 1:\n",
        killed_by="test_task_5_abort_before_the_fork",
        breaks="LLMEngine._fork: a leader that got no token has not been forked",
    ),
    Mutant(
        name="abort-ends-who-is-over",
        story="Loops over all sequences: one that had already stopped is aborted.",
        replace=ABORT,
        by=ABORT.replace("unfinished", "sequences"),
        killed_by="test_task_5_one_sample_ends_and_the_others_go_on",
        breaks="LLMEngine.abort_request: a sequence that had already ended keeps its own reason",
    ),
    Mutant(
        name="the-last-sample-is-not-forked",
        story="Loops over one sequence too few: the last sample gets a first token but never a second.",
        replace="                for sequence in self.live.group_of(leader.request_id).sequences[1:]:\n",
        by="                for sequence in self.live.group_of(leader.request_id).sequences[1:-1]:\n",
        killed_by="test_task_5_the_prompt_is_computed_once",
        breaks="LLMEngine._fork: each other sequence of its group runs, on the leader's blocks",
    ),
    Mutant(
        name="every-token-has-a-row-of-its-own",
        story="Takes the next row for every sequence, although several samples share one row.",
        replace="                sources.append(row)\n",
        by="                sources.append(row if request.num_sequences > 1 else len(sources))\n",
        killed_by="test_task_5_three_samples_say_what_they_say_alone",
        breaks="LLMEngine.compute: all of them drawn from the request's one row of logits",
    ),
    # ---- Task 6
    Mutant(
        name="outgrown-requests-are-forgotten",
        story="Ignores requests that the scheduler has ended: their callers wait forever.",
        replace="        " + MOVED,
        by="        moved = [*self._take_tokens(result), *self._fail(result)]\n",
        killed_by="test_task_6_a_request_that_outgrows_the_pool_ends_with_what_it_has",
        breaks=("LLMEngine.deliver: the sequences of plan.finished have ended, with the reason \"kv_cache_full\"",
                "invariant 6: because it outgrew the pool"),
    ),
    Mutant(
        name="outgrown-is-length",
        story='Reports the reason "length", although the output is shorter.',
        replace="            self.live.sequence(request.request_id).end(request.status.value)\n",
        by="            self.live.sequence(request.request_id).end(\"length\")\n",
        killed_by="test_task_6_a_request_that_outgrows_the_pool_ends_with_what_it_has",
        breaks="LLMEngine._end_outgrown: each of these sequences has ended with the reason \"kv_cache_full\"",
    ),
    Mutant(
        name="the-outgrown-takes-its-siblings-along",
        story="Ends the whole group. The sample that waited could have continued, and its request stays in the "
              "scheduler.",
        replace="            self.live.sequence(request.request_id).end(request.status.value)\n",
        by="            for sequence in self.live.group_of(request.request_id).unfinished:\n"
           "                sequence.end(request.status.value)\n",
        killed_by="test_task_6_a_request_that_outgrows_the_pool_ends_with_what_it_has",
        breaks="LLMEngine._end_outgrown: the other sequences of its group continue",
    ),
    Mutant(
        name="one-outgrown-is-told",
        story="Returns only the first group. The callers of the others wait forever.",
        replace="        return [self.live.group_of(request.request_id) for request in plan.finished]\n",
        by="        return [self.live.group_of(request.request_id) for request in plan.finished[:1]]\n",
        killed_by="test_task_6_a_request_that_outgrows_the_pool_ends_with_what_it_has",
        breaks="LLMEngine._end_outgrown: the groups of all these requests",
    ),
    Mutant(
        name="the-outgrown-lose-the-end-of-their-text",
        story="Sets the finish reason and forgets the text that was held back for a stop string.",
        replace="            self.live.sequence(request.request_id).end(request.status.value)\n",
        by="            self.live.sequence(request.request_id).output.finish_reason = request.status.value\n",
        killed_by="test_task_6_a_request_that_outgrows_the_pool_ends_with_what_it_has",
        breaks="LLMEngine._end_outgrown: its text includes what was held back for a stop string",
    ),
    Mutant(
        name="movement-is-not-told",
        story="Counts idle steps and ignores the others: three idle steps in a day end all requests.",
        replace="        if not self.idle_steps.add(is_idle):\n            return {}\n",
        by="        if not is_idle or not self.idle_steps.add(is_idle):\n            return {}\n",
        killed_by="test_task_6_only_idle_steps_in_a_row_count",
        breaks="LLMEngine._errors_if_stalled: even if it is not: only consecutive idle steps count",
    ),
    Mutant(
        name="the-stall-is-blamed-on-the-leader",
        story="Makes the error for the leader, which may have ended and needs no blocks.",
        replace="        stalled = [group.unfinished[0].request for",
        by="        stalled = [group.leader for",
        killed_by="test_task_6_samples_that_stall_end_together",
        breaks="LLMEngine._errors_if_stalled: request is the request of the group's first unfinished sequence; the key "
               "is its id, and the value is StalledError.about(request, self.kv_cache)",
    ),
    Mutant(
        name="waits-for-ever",
        story="Never reports a stall. The loop around step() never ends.",
        replace="        if not self.idle_steps.add(is_idle):\n            return {}\n",
        by="        if True:\n            return {}\n",
        killed_by="test_task_6_a_stalled_request_ends_with_the_reason",
        breaks=("LLMEngine._errors_if_stalled: an error for every live request if nothing could be planned for too "
                "many steps",
                "invariant 6: Every request ends"),
    ),
    Mutant(
        name="one-idle-step-ends-everybody",
        story="Ignores the return value of add: the first step without a plan ends all requests.",
        replace="        if not self.idle_steps.add(is_idle):\n            return {}\n",
        by="        self.idle_steps.add(is_idle)\n        if not is_idle:\n            return {}\n",
        killed_by="test_task_6_a_stalled_request_ends_with_the_reason",
        breaks="LLMEngine._errors_if_stalled: an empty dictionary, as long as idle_steps.add returns False",
    ),
    Mutant(
        name="only-the-first-is-told-of-the-stall",
        story="Ends only one request. Each of the others waits three more steps.",
        replace="for group in self.live.groups.values()]\n        return {",
        by="for group in list(self.live.groups.values())[:1]]\n        return {",
        killed_by="test_task_6_a_stalled_request_ends_with_the_reason",
        breaks="LLMEngine._errors_if_stalled: otherwise a dictionary with an entry for each live group",
    ),
    Mutant(
        name="the-count-goes-on",
        story="Does not reset the count: a request that arrives after a stall has one step instead of three.",
        replace="        self.idle_steps = IdleSteps()\n",
        by="",
        killed_by="test_task_6_the_count_begins_again",
        breaks="LLMEngine._errors_if_stalled: the count begins again",
    ),
    Mutant(
        name="preempting-is-idling",
        story="Counts a step as idle because it computed nothing, although it preempted a request.",
        replace="bool(self.live.groups) and not plan.preempted and not plan.finished\n",
        by="bool(self.live.groups) and not plan.finished\n",
        killed_by="test_task_6_a_step_that_preempts_or_finishes_is_not_idle",
        breaks="LLMEngine._errors_if_stalled: plan has preempted no request and finished none",
    ),
    Mutant(
        name="finishing-is-idling",
        story="Counts a step as idle because it computed nothing, although it ended a request.",
        replace="bool(self.live.groups) and not plan.preempted and not plan.finished\n",
        by="bool(self.live.groups) and not plan.preempted\n",
        killed_by="test_task_6_a_step_that_preempts_or_finishes_is_not_idle",
        breaks="LLMEngine._errors_if_stalled: plan has preempted no request and finished none",
    ),
    Mutant(
        name="nobody-is-idle",
        story="Also counts steps without any request: after three of them, the next request is ended at once.",
        replace="bool(self.live.groups) and not plan.preempted and not plan.finished\n",
        by="not plan.preempted and not plan.finished\n",
        killed_by="test_task_6_telling_is_not_idling",
        breaks="LLMEngine._errors_if_stalled: A step is idle if there are live requests",
    ),
    Mutant(
        name="an-error-ends-one-sample",
        story="Ends only the sequence that the error names; the other samples stay live, but no step serves them.",
        replace="            for sequence in group.unfinished:\n                self._finish(sequence, \"error\")\n",
        by="            self._finish(self.live.sequence(request_id), \"error\")\n",
        killed_by="test_task_6_samples_that_stall_end_together",
        breaks=("LLMEngine._fail: all its unfinished sequences are finished",
                "LLMEngine.deliver: each request of result.errors has ended completely, with the reason \"error\""),
    ),
    Mutant(
        name="an-error-ends-who-is-over",
        story='Loops over all sequences: one that had ended with "stop" now has the reason "error".',
        replace="            for sequence in group.unfinished:\n                self._finish(sequence, \"error\")\n",
        by="            for sequence in group.sequences:\n                self._finish(sequence, \"error\")\n",
        killed_by="test_task_6_samples_that_stall_end_together",
        breaks="LLMEngine._fail: a sequence that had already ended keeps its own reason",
    ),
    Mutant(
        name="an-error-says-nothing",
        story='Ends with the reason "error" but does not store the error.',
        replace="            group.error = describe(error)\n",
        by="",
        killed_by="test_task_6_a_stalled_request_ends_with_the_reason",
        breaks=("LLMEngine._fail: group.error is describe(error)",
                "LLMEngine.deliver: its group.error is describe(error)",
                "invariant 6: or with an error that says why"),
    ),
    Mutant(
        name="one-failure-is-told",
        story="Returns only the first request that failed. The callers of the others wait forever.",
        replace="        return failed\n",
        by="        return failed[:1]\n",
        killed_by="test_task_6_a_stalled_request_ends_with_the_reason",
        breaks="LLMEngine._fail: the groups of all these requests",
    ),
]
