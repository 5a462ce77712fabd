"""The engine: requests in, text out, step by step.

    add_request ──▶ scheduler.schedule ──▶ compute ──▶ deliver ──▶ RequestOutput
                           ▲             runner, sampler   │
                           └────────── one more token ─────┘

All pieces are there: ``EngineFrame`` has put them together. What is missing is the loop that lets them work, and the
care for every request from the moment it comes until its last block is home.

A request of the user is a ``SequenceGroup``: one prompt, ``n`` outputs. Each output is a ``SequenceState``, with the
``Request`` that the scheduler knows, the row that the sampler reads, and the text so far.

    live.groups["r"] ──▶ SequenceGroup ─┬─ SequenceState ── Request "r#0"   the leader: it computes the prompt
                                        └─ SequenceState ── Request "r#1"   forked from it when that is done
"""

from __future__ import annotations

from mini_vllm.backend import mx
from mini_vllm.engine_room.executor import StepResult
from mini_vllm.engine_room.frame import EngineFrame, describe
from mini_vllm.engine_room.idle import IdleSteps, StalledError
from mini_vllm.engine_room.prompt_logprobs import newly_scored_positions, take_prompt_logprobs
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.prompts import Prompt, PromptTokens
from mini_vllm.request import Priority, Request, RequestOutput, RequestStatus, SamplingParams
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import SequenceGroup, SequenceState


class LLMEngine(EngineFrame):
    """Serves many requests at once, a step at a time.

    Its frame has made ``scheduler``, ``kv_cache``, ``runner``, ``sampler``, ``inputs`` and ``live``. See the README for
    what of each is needed here.
    """

    # ---- the step

    def step(self) -> list[RequestOutput]:
        """Plan one step, compute it, and return the outputs of the requests that moved. Given.

        What the model or the sampler raises is raised, after ``_abandon``. Whoever called ``step`` ends the requests
        then, with ``abort_request`` or ``fail_all``.
        """
        self.trace.start_step(self.scheduler)
        plan = self.scheduler.schedule()
        self.trace.record_plan(self.scheduler, plan)

        if plan.requests:
            self.num_steps += 1
            self.idle_steps.add(False)
            self.note_start(plan)
            try:
                result = self.compute(plan)
            except BaseException:
                self._abandon(plan)
                raise
        else:
            # Whoever planned these copies was preempted or has ended, but the copies may be in the index.
            self.runner.cache.copy_blocks(plan.copies)
            result = StepResult(errors=self._errors_if_stalled(plan))
        self.trace.record_computed()

        outputs = self.deliver(plan, result)
        self.trace.end_step(plan, result.token_ids)
        return self.with_unseen(outputs)

    def _abandon(self, plan: SchedulerOutput) -> None:
        """A step broke: its requests leave the scheduler, and nobody finds what it was to write. Given."""
        block_ids = {block_id for request in plan.requests
                     for block_id in self.kv_cache.get_block_ids(request.request_id)}
        for request in plan.requests:
            self.scheduler.abort_request(request.request_id)
        self.kv_cache.finish_step()
        self.discard(block_ids)

    # ---- Task 1: coming

    def add_request(self, prompt: Prompt | PromptTokens, sampling_params: SamplingParams | None = None,
                    request_id: str | None = None, priority: Priority = Priority.NORMAL,
                    extra_keys: tuple[object, ...] | None = None) -> str:
        """Take a request in and return its id.

        ``self.inputs.process``, called with all five, checks what can be wrong with a request by itself, gives it an id
        if it has none, and makes a ``SequenceGroup`` of it. Its ``leader`` is the Request that the scheduler is to
        serve; the other sequences come later. ``self.live.add(group)`` makes it known to the engine.
        After: the scheduler has the leader, ``live`` has the group. Nothing is computed.
        Raises ValueError if the request can never be served, by its inputs or by the scheduler, which refuses a prompt
        larger than the pool. Nothing has changed then: the id is free, and there is nothing to compute.
        """
        group = self.inputs.process(prompt, sampling_params, request_id, priority, extra_keys)
        self.scheduler.add_request(group.leader)
        self.live.add(group)
        return group.request_id

    def has_unfinished_requests(self) -> bool:
        """Whether a further ``step`` has something to compute, or to tell.

        Something to compute: ``live.groups``, a dictionary, has a request. Something to tell: ``unseen`` has an output,
        which somebody put back because it was another caller's.
        """
        return bool(self.live.groups) or bool(self.unseen)

    # ---- Task 2: from a plan to tokens

    def _request_step(self, request: Request, num_tokens: int) -> RequestStep:
        """What the runner is to compute of ``request``: the ``num_tokens`` tokens that were scheduled.

        The scheduler has counted them already: ``request.num_computed_tokens`` is where they *end*. So

            all_token_ids  [ . . . . . . | . . . . | . . . ]
                                         ▲         ▲
                                         start     end = num_computed_tokens

        ``token_ids``: of ``request.all_token_ids``, those from start to end. ``block_ids``: its block table,
        ``kv_cache.get_block_ids``. ``context_len``: end. ``needs_logits``: whether the last token that the request has
        is among them; what comes after any other token is known. ``needs_all_logits``: what
        ``self._scores_prompt(request, start, end)`` says.
        """
        end = request.num_computed_tokens
        start = end - num_tokens
        return RequestStep(token_ids=request.all_token_ids[start:end],
                           block_ids=self.kv_cache.get_block_ids(request.request_id), context_len=end,
                           needs_logits=end == request.num_tokens,
                           needs_all_logits=self._scores_prompt(request, start, end))

    def compute(self, plan: SchedulerOutput) -> StepResult:
        """The tokens that come of ``plan``, which has at least one request. No request changes here.

        1. ``self.runner.step(steps, plan.copies)``, once, with a RequestStep for each of ``plan.requests``, in that
           order. ``plan.num_scheduled_tokens[request_id]`` says how many tokens each of them computes.
        2. ``self._rows_to_sample(plan, steps, logits)``, in every step: of what the runner returned, one row for each
           request whose step needs logits, in the order of the plan. The others are in the middle of their prompt: no
           row, no token. After that the K/V of the step has been computed, or a token depends on it.
        3. ``self.sampler.sample(logits, rows)``, once, with ``row`` of each such request's sequence,
           ``self.live.sequence(request_id)``. It returns ``token_ids`` and ``logprobs``, both in the order of the rows;
           a logprob is None if the request did not ask. With nobody to sample for, it is not called.

        Returns a StepResult: ``token_ids`` and ``logprobs`` by request id, of those alone that have one.

        Task 5: a request that is about to be forked needs a token for each of its sequences. ``_sequences_of`` says
        which; all of them are sampled from the one row of logits that their prompt has, by their own ``row``. So the
        sampler gets ``logits[mx.array(sources)]``: for each sequence, the number of the row that it is sampled from.
        """
        steps = [self._request_step(request, plan.num_scheduled_tokens[request.request_id]) for request in plan.requests]
        logits = self.runner.step(steps, plan.copies)
        logits = self._rows_to_sample(plan, steps, logits)
        wanting = [request for request, step in zip(plan.requests, steps) if step.needs_logits]
        if not wanting:
            return StepResult()
        sequences: list[SequenceState] = []
        sources: list[int] = []
        for row_number, request in enumerate(wanting):
            own = self._sequences_of(request)
            sequences += own
            sources += [row_number] * len(own)
        sampled = self.sampler.sample(logits[mx.array(sources)], [sequence.row for sequence in sequences])
        ids = [sequence.request.request_id for sequence in sequences]
        logprobs = {request_id: logprob for request_id, logprob in zip(ids, sampled.logprobs) if logprob is not None}
        return StepResult(token_ids=dict(zip(ids, sampled.token_ids)), logprobs=logprobs)

    def _scores_prompt(self, request: Request, start: int, end: int) -> bool:
        """Whether the caller asked how likely its prompt is, and these tokens tell something of it. Given."""
        return bool(newly_scored_positions(self.live.group_of(request.request_id), start, end))

    def _rows_to_sample(self, plan: SchedulerOutput, steps: list[RequestStep], logits: mx.array) -> mx.array:
        """Of the runner's logits, a row for each step that needs logits. How likely prompts are is noted on the way.
        MLX is lazy: if there is no row, nobody reads a result, and the K/V is computed here. Given."""
        if any(step.needs_all_logits for step in steps):
            groups = [self.live.group_of(request.request_id) for request in plan.requests]
            logits = take_prompt_logprobs(plan.requests, groups, steps, logits, self.tokenizer)
        if not any(step.needs_logits for step in steps):
            mx.eval(self.runner.cache.pools)
        return logits

    # ---- Task 3: from tokens to text, and out

    def _finish(self, sequence: SequenceState, reason: str) -> None:
        """One sequence is over, for this finish reason: "stop", "length", "abort" or "error".

        ``sequence.end(reason)`` completes its text: what was held back, because it might have become a stop string,
        comes now. ``scheduler.abort_request`` takes its request out of wherever it is, and its blocks come home. One
        that was not forked yet it does not know: it returns None then, and there is nothing to do.
        After: ``request.status`` is ``RequestStatus(reason)``. Set it last. The scheduler looks at it to know whether
        the request runs or waits, and ``abort_request`` itself sets it to ``FINISHED_ABORTED``.
        """
        sequence.end(reason)
        self.scheduler.abort_request(sequence.request.request_id)
        sequence.request.status = RequestStatus(reason)

    def _take_tokens(self, result: StepResult) -> list[SequenceGroup]:
        """Every token of ``result`` goes to its sequence, ``live.sequence(request_id)``. It has been appended already.

        ``sequence.take_token(token_id, logprob)`` turns it into text, and returns why it ends the output, or None. The
        logprob is None where ``result`` has none. A sequence that is over is finished, in this same step, so that its
        blocks and its seat are free in the next.
        ``group.note_token(self.clock())`` notes that a token came, for the request's ``timings``.
        Returns the groups (``live.group_of(request_id)``) that got a token. A group may be there twice, if two of its
        sequences got one; ``deliver`` tells of it once.
        """
        groups = []
        for request_id, token_id in result.token_ids.items():
            sequence, group = self.live.sequence(request_id), self.live.group_of(request_id)
            reason = sequence.take_token(token_id, result.logprobs.get(request_id))
            group.note_token(self.clock())
            if reason is not None:
                self._finish(sequence, reason)
            groups.append(group)
        return groups

    def deliver(self, plan: SchedulerOutput, result: StepResult) -> list[RequestOutput]:
        """The step that was planned has been computed: tokens are appended, texts grow, what is over is let go.

        1. ``scheduler.update_from_output(plan, result.token_ids)`` tells the KV cache that the step is over, and
           appends to each request its token. It is called in every step, also in one without tokens.
        2. ``_take_tokens``.
        3. An output of each group that moved, ``group.to_output()``: one, even if two of its sequences got a token
           (compare groups by ``request_id``; a group cannot be in a set). A group that just waits, or is in the middle
           of its prompt, has none.
        4. A group whose output is ``finished`` is let go: ``self.let_go(group)``. It has been told for the last time.

        Returns these outputs, in any order.

        Task 5: ``_fork``, before 2: a sequence must run, and have its token, before it can end. (Whether before 1 or
        after it makes no difference.)
        Task 6: the groups of ``_end_outgrown`` and of ``_fail`` moved, too.
        """
        self.scheduler.update_from_output(plan, result.token_ids)
        self._fork(plan, result)
        moved = self._take_tokens(result)
        moved += self._end_outgrown(plan)
        moved += self._fail(result)
        outputs = []
        for group in {group.request_id: group for group in moved}.values():
            output = group.to_output()
            outputs.append(output)
            if output.finished:
                self.let_go(group)
        return outputs

    # ---- Task 4: abort

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request between two steps, wherever it is: it waits, it runs, or it was preempted.

        After: each of its sequences that was not over is finished, with the reason "abort"; one that was over keeps its
        own reason. All its blocks are home, and it has been let go: no further step tells of it.
        Returns its output, with the text so far. None if no request has this id, or it has ended: nothing changes then.
        The id is the user's, so ask ``live.groups.get``: ``live.group_of`` knows "r#0" and "r#1", and not their "r".
        """
        group = self.live.groups.get(request_id)
        if group is None:
            return None
        for sequence in group.unfinished:
            self._finish(sequence, "abort")
        self.let_go(group)
        return group.to_output()

    # ---- Task 5: n outputs of one prompt

    def _sequences_of(self, request: Request) -> list[SequenceState]:
        """The sequences that get a token when ``request`` has computed its last one.

        While ``request.num_sequences`` is above 1, it computes a prompt for that many: all ``sequences`` of its group.
        Otherwise it is one sequence among others, and gets a token for itself.
        """
        if request.num_sequences > 1:
            return self.live.group_of(request.request_id).sequences
        return [self.live.sequence(request.request_id)]

    def _fork(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Whoever computed a prompt for several sequences, and got a token in this step, is forked now.

        For every further sequence of its group: ``scheduler.fork(leader, request)``, and it runs on from the leader's
        blocks. Then its own token of ``result`` is appended (``request.append_output_token``): the scheduler did so
        only for requests of the plan. ``scheduler.fork`` itself lowers ``num_sequences`` of the leader by 1, so it is 1
        when all are forked.
        """
        for leader in plan.requests:
            if leader.num_sequences > 1 and leader.request_id in result.token_ids:
                for sequence in self.live.group_of(leader.request_id).sequences[1:]:
                    self.scheduler.fork(leader, sequence.request)
                    sequence.request.append_output_token(result.token_ids[sequence.request.request_id])

    # ---- Task 6: what cannot go on

    def _end_outgrown(self, plan: SchedulerOutput) -> list[SequenceGroup]:
        """``plan.finished`` are requests that grew until the whole pool could not hold them. The scheduler has taken
        them out, and set their status: the value of that, "kv_cache_full", is the reason by which their sequence ends.
        It is the fifth finish reason, and the only one that does not go through ``_finish``.

        Returns their groups.
        """
        groups = []
        for request in plan.finished:
            self.live.sequence(request.request_id).end(request.status.value)
            groups.append(self.live.group_of(request.request_id))
        return groups

    def _errors_if_stalled(self, plan: SchedulerOutput) -> dict[str, Exception]:
        """Called when ``plan`` computes nothing. If that has gone on for too long, an error for every live request.

        A step is idle if it moved nobody, though there are live requests: it has preempted nobody and finished nobody
        either. ``self.idle_steps.add(is_idle)`` counts idle steps in a row, and says whether this was one too many.
        Then nothing would ever be planned again. For each live group, under the id of the request of its first
        unfinished sequence: ``StalledError.about(request, self.kv_cache)``. And the count begins anew
        (``self.idle_steps = IdleSteps()``): it says nothing of requests that come later.
        Returns an empty dictionary otherwise.
        """
        is_idle = bool(self.live.groups) and not plan.preempted and not plan.finished
        if not self.idle_steps.add(is_idle):
            return {}
        self.idle_steps = IdleSteps()
        errors: dict[str, Exception] = {}
        for group in self.live.groups.values():
            request = group.unfinished[0].request
            errors[request.request_id] = StalledError.about(request, self.kv_cache)
        return errors

    def _fail(self, result: StepResult) -> list[SequenceGroup]:
        """``result.errors``, by request id: each ends a whole request, with all sequences of it that are not over.

        After: those are finished, with the reason "error", and ``group.error`` says what happened: ``describe(error)``.
        Returns the groups that failed.
        """
        groups = []
        for request_id, error in result.errors.items():
            group = self.live.group_of(request_id)
            for sequence in group.unfinished:
                self._finish(sequence, "error")
            group.error = describe(error)
            groups.append(group)
        return groups
