"""The engine: requests in, text out, step by step.

    add_request ──▶ scheduler.schedule ──▶ compute ──▶ deliver ──▶ RequestOutput
                           ▲             runner, sampler   │
                           └────────── one more token ─────┘

``EngineFrame`` has already put the pieces together. You write the loop that runs them. It takes care of every request
from its arrival until its last block is free.

A user's request is a ``SequenceGroup``: one prompt, ``n`` outputs. Each output is a ``SequenceState``. It holds the
``Request`` that the scheduler knows, the row that the sampler reads, and the text so far.

    live.groups["r"] ──▶ SequenceGroup ─┬─ SequenceState ── Request "r#0"   the leader: it computes the prompt
                                        └─ SequenceState ── Request "r#1"   forked from the leader after the prompt
"""

from __future__ import annotations

from mini_vllm.backend import mx
from mini_vllm.engine_frame import EngineFrame, describe
from mini_vllm.executor import StepResult, newly_scored_positions, take_prompt_logprobs
from mini_vllm.metrics import IdleSteps, StalledError
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.prompts import Prompt, PromptTokens
from mini_vllm.request import Priority, Request, RequestOutput, RequestStatus, SamplingParams
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import SequenceGroup, SequenceState


class LLMEngine(EngineFrame):
    """Serves many requests at once, one step at a time.

    ``EngineFrame`` has created ``scheduler``, ``kv_cache``, ``runner``, ``sampler``, ``inputs`` and ``live``. A table
    in the README lists what you need from each of them.
    """

    # ---- the step

    def step(self) -> list[RequestOutput]:
        """Plan one step, compute it, and return the outputs of the requests that moved. Given.

        An error of the model or the sampler is raised again after ``_abandon``. The caller of ``step`` then ends the
        requests, with ``abort_request`` or ``fail_all``.
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
            # The requests that needed these copies were preempted or have ended, but the prefix index may contain the
            # copied blocks.
            self.runner.cache.copy_blocks(plan.copies)
            result = StepResult(errors=self._errors_if_stalled(plan))
        self.trace.record_computed()

        outputs = self.deliver(plan, result)
        self.trace.end_step(plan, result.token_ids)
        return self.with_unseen(outputs)

    def _abandon(self, plan: SchedulerOutput) -> None:
        """Remove the requests of a failed step from the scheduler, and its blocks from the prefix index. Given."""
        block_ids = {block_id for request in plan.requests
                     for block_id in self.kv_cache.get_block_ids(request.request_id)}
        for request in plan.requests:
            self.scheduler.abort_request(request.request_id)
        self.kv_cache.finish_step()
        self.discard(block_ids)

    # ---- Task 1: arrival

    def add_request(self, prompt: Prompt | PromptTokens, sampling_params: SamplingParams | None = None,
                    request_id: str | None = None, priority: Priority = Priority.NORMAL,
                    extra_keys: tuple[object, ...] | None = None) -> str:
        """Accept a request and return the user's id for it.

        ``inputs.process`` makes a group from the request. It may reject the request, and the scheduler may also do so.

        After:
        - the scheduler has the group's leader, and none of its other sequences
        - ``live`` has the group, whose leader has the caller's ``priority`` and ``extra_keys``
        - nothing is computed, and the request holds no block
        Returns:
        - the group's id: ``request_id``, or a new id if that is None
        - the user's id, not the leader's, even if n > 1
        Raises:
        - ValueError if the inputs or the scheduler reject the request; ``live`` and the scheduler are unchanged then

        Example::

            >>> engine = LLMEngine()
            >>> engine.add_request("Once", SamplingParams(n=3), "r")
            'r'
            >>> list(engine.scheduler.requests), len(engine.live.groups["r"].sequences)
            (['r#0'], 3)
        """
        raise NotImplementedError("Task 1: LLMEngine.add_request")

    def has_unfinished_requests(self) -> bool:
        """Return whether another ``step`` would have something to compute or to return.

        There is something to compute while ``live`` has a group, and something to return while ``unseen`` has an
        output. The scheduler cannot answer this: after ``_abandon`` it no longer has requests that are still live.
        """
        raise NotImplementedError("Task 1: LLMEngine.has_unfinished_requests")

    # ---- Task 2: from a plan to tokens

    def _request_step(self, request: Request, num_tokens: int) -> RequestStep:
        """Return what the runner must compute for ``request``: the ``num_tokens`` tokens that were scheduled.

        The scheduler has already counted them, so ``request.num_computed_tokens`` is where they *end*::

            all_token_ids  [ . . . . . . | . . . . | . . . ]
                                         ▲         ▲
                                         start     end = num_computed_tokens

        Returns:
        - ``token_ids``: the tokens from start to end, of the prompt and the output
        - ``block_ids``: the whole block table of the request
        - ``context_len``: end
        - ``needs_logits``: whether these tokens include the last token that the request has so far
        - ``needs_all_logits``: the result of ``_scores_prompt``

        Example, a prompt of 22 tokens and at most 8 per step::

            num_tokens   end   tokens     context_len   needs_logits
            8            8     0 to 7     8             False
            8            16    8 to 15    16            False
            6            22    16 to 21   22            True
            1            23    22         23            True          the first output token
        """
        raise NotImplementedError("Task 2: LLMEngine._request_step")

    def compute(self, plan: SchedulerOutput) -> StepResult:
        """Compute the tokens that result from ``plan``, and change no request.

        In task 2, handle requests with one sequence. In task 5, add requests that compute a prompt for several.

        Before:
        - ``plan`` has at least one request
        After:
        - the runner was called once, with a RequestStep for each request, in the order of the plan, and ``plan.copies``
        - ``_rows_to_sample`` was called, even in a step without tokens, so that the K/V of the step is computed
        - the sampler was called once, with a row of logits and a ``row`` for each token to draw
        - the sampler was not called if there is no token to draw
        - each request has the ``num_computed_tokens`` and the output tokens that it had before
        Returns:
        - ``token_ids`` by request id: one for each request whose step needs logits, and none for the others
        - ``logprobs`` by request id: the logprobs that the sampler returned, except those that are None
        - for a request with ``num_sequences`` above 1 (task 5): a token for each sequence of its group, all of them
          drawn from the request's one row of logits, each with the sequence's own ``row``

        Example, in which ``b`` and ``c`` compute their prompts::

            plan        a: 1     b: 8 of 22     c: the last 5 of 13
            logits      row 0    none           row 1
            token_ids   {"a": 453, "c": 12}
        """
        raise NotImplementedError("Task 2: LLMEngine.compute")

    def _scores_prompt(self, request: Request, start: int, end: int) -> bool:
        """Return whether the logits of all tokens from ``start`` to ``end`` are needed. Given.

        They are needed if the caller asked for log-probabilities of its prompt and these tokens contribute to them.
        """
        return bool(newly_scored_positions(self.live.group_of(request.request_id), start, end))

    def _rows_to_sample(self, plan: SchedulerOutput, steps: list[RequestStep], logits: mx.array) -> mx.array:
        """Return one row of the runner's logits for each step that needs logits, in the order of ``steps``. Given.

        Call it in every step. It records the log-probabilities of prompts for the requests that asked for them. It also
        evaluates the K/V of a step without rows: MLX is lazy, and otherwise nothing would compute them.
        """
        if any(step.needs_all_logits for step in steps):
            groups = [self.live.group_of(request.request_id) for request in plan.requests]
            logits = take_prompt_logprobs(plan.requests, groups, steps, logits, self.tokenizer)
        if not any(step.needs_logits for step in steps):
            mx.eval(self.runner.cache.pools)
        return logits

    # ---- Task 3: from tokens to text, and out

    def _finish(self, sequence: SequenceState, reason: str) -> None:
        """End one sequence with this finish reason: "stop", "length", "abort" or "error".

        The scheduler does not know a sequence that was not forked yet: its ``abort_request`` returns None for it.

        After:
        - the sequence's output has this reason, and its text includes what was held back for a stop string
        - the scheduler no longer has its request, and the request's blocks are free
        - if the scheduler had the request, the request has the status ``RequestStatus(reason)``

        Example: after ``_finish(sequence, "length")`` the status of its request is FINISHED_LENGTH.
        """
        raise NotImplementedError("Task 3: LLMEngine._finish")

    def _take_tokens(self, result: StepResult) -> list[SequenceGroup]:
        """Pass every token of ``result`` to its sequence, and finish the sequences that end with this token.

        Before:
        - each token has been appended to its request
        After:
        - each sequence has taken its token, with its own logprob, or None if ``result`` has none for it
        - a sequence for which ``take_token`` returned a reason is finished with that reason; the others continue
        - each token has been noted in its group (``note_token``) at the time of ``clock()``, including the last one
        Returns:
        - the groups that got a token; a group may be in the list more than once

        Example: "!" is a stop string of "r". ``r#0`` gets an "a" and continues. ``r#1`` gets a "!" and is finished,
        with the reason "stop". The group of both is returned.
        """
        raise NotImplementedError("Task 3: LLMEngine._take_tokens")

    def deliver(self, plan: SchedulerOutput, result: StepResult) -> list[RequestOutput]:
        """Append the tokens of a step, end complete sequences, and return the outputs of the requests that moved.

        A request moved if one of its sequences got a token. Task 6 adds requests that outgrew the pool or failed.

        After:
        - ``scheduler.update_from_output`` was called once, even in a step without tokens
        - every token has been appended to its request and turned into text
        - if a token ends its sequence, the sequence is finished in this step: it has the reason, its request has the
          status ``RequestStatus(reason)``, and its blocks and its place in the running batch are free
        - a request whose output is ``finished`` has been released with ``let_go``
        - task 5: the sequences of a completed prompt were forked before any of them could end
        - task 6: the sequences of ``plan.finished`` have ended, with the reason "kv_cache_full"
        - task 6: each request of ``result.errors`` has ended completely, with the reason "error", and its
          ``group.error`` is ``describe(error)``
        Returns:
        - one output for each request that moved, in any order, even if several of its sequences got a token
        - no output for a request that waits or is in the middle of its prompt

        Example: the three sequences of "r" get their fourth token, and ``max_tokens`` is 4. There is one output of "r",
        it is ``finished``, and "r" is no longer in ``live.groups``.
        """
        raise NotImplementedError("Task 3: LLMEngine.deliver")

    # ---- Task 4: abort

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request between two steps, in any state: it waits, it runs, or it was preempted.

        After:
        - each of its unfinished sequences is finished, with the reason "abort"
        - a sequence that had already ended keeps its own reason
        - all its blocks are free
        - it has been released with ``let_go``: no later step returns an output for it
        Returns:
        - its output, with the whole text so far
        - None if ``request_id`` is not the user's id of a live request; nothing changes then

        Example::

            >>> engine = LLMEngine()
            >>> name = engine.add_request("Once", SamplingParams(n=2), "r")
            >>> engine.abort_request("r#1"), engine.abort_request("r").finish_reason, engine.abort_request("r")
            (None, 'abort', None)
        """
        raise NotImplementedError("Task 4: LLMEngine.abort_request")

    # ---- Task 5: n outputs of one prompt

    def _sequences_of(self, request: Request) -> list[SequenceState]:
        """Return the sequences that get a token when ``request`` has computed its last token.

        While ``request.num_sequences`` is above 1, the request computes a prompt for its group, and all ``sequences``
        of the group get a token. Otherwise only its own sequence gets one.
        """
        raise NotImplementedError("Task 5: LLMEngine._sequences_of")

    def _fork(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Fork every leader that has completed a prompt for several sequences in this step.

        Such a leader is in the plan, its ``num_sequences`` is above 1, and it has a token in ``result``.

        After:
        - each other sequence of its group runs, on the leader's blocks
        - each of these sequences has its own token of ``result`` appended to its request
        - ``num_sequences`` of the leader is 1
        - a leader that got no token has not been forked

        Example: ``token_ids`` is ``{"r#0": 98, "r#1": 33, "r#2": 99}``. ``r#1`` and ``r#2`` are forked from ``r#0``,
        with the output tokens ``[33]`` and ``[99]``.
        """
        raise NotImplementedError("Task 5: LLMEngine._fork")

    # ---- Task 6: requests that cannot continue

    def _end_outgrown(self, plan: SchedulerOutput) -> list[SequenceGroup]:
        """End the sequences of the requests in ``plan.finished``, which no longer fit into the whole pool.

        The scheduler has already removed these requests, freed their blocks and set their status.

        After:
        - each of these sequences has ended with the reason "kv_cache_full", the value of that status
        - its text includes what was held back for a stop string
        - the other sequences of its group continue
        Returns:
        - the groups of all these requests

        Example: ``r#0`` outgrows the pool while ``r#1`` waits. ``r#0`` ends, ``r#1`` does not, and "r" has an output.
        """
        raise NotImplementedError("Task 6: LLMEngine._end_outgrown")

    def _errors_if_stalled(self, plan: SchedulerOutput) -> dict[str, Exception]:
        """Return an error for every live request if nothing could be planned for too many steps.

        ``step`` calls this function when ``plan`` computes nothing. A step is idle if there are live requests, and
        ``plan`` has preempted no request and finished none.

        After:
        - ``idle_steps.add`` has been told whether this step is idle, even if it is not: only consecutive idle steps
          count
        - if that was one idle step too many, the count begins again (``self.idle_steps = IdleSteps()``)
        Returns:
        - an empty dictionary, as long as ``idle_steps.add`` returns False
        - otherwise a dictionary with an entry for each live group. ``request`` is the request of the group's first
          unfinished sequence; the key is its id, and the value is ``StalledError.about(request, self.kv_cache)``

        Example: "a" and "w" wait, and nothing can be planned. The first two calls return ``{}``; the third returns an
        error for "a" and one for "w".
        """
        raise NotImplementedError("Task 6: LLMEngine._errors_if_stalled")

    def _fail(self, result: StepResult) -> list[SequenceGroup]:
        """End every request that has an error in ``result.errors``.

        After:
        - all its unfinished sequences are finished, with the reason "error"
        - a sequence that had already ended keeps its own reason
        - ``group.error`` is ``describe(error)``
        Returns:
        - the groups of all these requests

        Example::

            errors          {"r#1": StalledError("nothing could be planned")}
            output of "r"   finished, error "StalledError: nothing could be planned"
        """
        raise NotImplementedError("Task 6: LLMEngine._fail")
