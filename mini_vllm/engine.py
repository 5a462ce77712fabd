"""The engine: requests in, text out, step by step.

    add_request ─▶ scheduler ─▶ model runner ─▶ sampler ─▶ detokenizer, stop checks ─▶ RequestOutput
                      ▲                                                │
                      └────────────── one more token ──────────────────┘

Other modules hold the rest: ``engine_frame`` (puts the parts together), ``sequences`` (checks new requests, and has the
text of each output), ``executor`` (computes a plan, also if the step fails, and starts the next one early),
``speculation`` (guesses tokens), ``metrics`` (counters, and stalls).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.engine_frame import EngineFrame, describe
from mini_vllm.executor import Executor, LookAhead, StepResult
from mini_vllm.metrics import NO_DRAFTS, IdleSteps, NoTrace, StalledError
from mini_vllm.models.loader import LoadedModel
from mini_vllm.models.prompts import Prompt, PromptTokens
from mini_vllm.native.runner import NativeRunner
from mini_vllm.request import Priority, RequestOutput, RequestStatus, SamplingParams, TokenLogprob
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import STATUS_OF, SequenceGroup, SequenceState
from mini_vllm.speculation.speculation import Speculation


class LLMEngine(EngineFrame):
    """Serves many requests at once, one step at a time. Not thread-safe."""

    def __init__(self, config: EngineConfig | None = None, parts: EngineParts | None = None,
                 loaded: LoadedModel | None = None, trace: NoTrace | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Build the engine. ``EngineFrame`` assembles the pieces; this adds what is between plan and text."""
        super().__init__(config, parts, loaded, trace, clock)
        self._make_helpers()
        #: The last outputs that were made, for the case that ``step`` fails before it returns them.
        self._delivered: list[RequestOutput] = []

    def _make_helpers(self) -> None:
        """Create the pieces between the scheduler and the runner."""
        can_look_ahead = self.runner.can_step_ahead and (
            self.config.enable_lookahead or not isinstance(self.runner, NativeRunner))  # it leaves no core idle
        self.speculation = None if self.drafter is None else Speculation(
            self.config.num_speculative_tokens, self.drafter, self.scheduler, self.kv_cache, self.sizes.draft_costs,
            self.parts.guess_record)
        self.lookahead = LookAhead(self.sizes.max_num_lookahead if can_look_ahead else 0, self.scheduler, self.runner,
                                   self.sampler, self.speculation)
        self.executor = Executor(self.scheduler, self.runner, self.sampler, self.lookahead, self.live, self.tokenizer,
                                 self.parts.verifier())

    # ---- requests come and go

    def add_request(self, prompt: Prompt | PromptTokens, sampling_params: SamplingParams | None = None,
                    request_id: str | None = None, priority: Priority = Priority.NORMAL,
                    extra_keys: tuple[object, ...] | None = None) -> str:
        """Add a request and return its id. Raise ValueError, and add nothing, if the request can never be served."""
        group = self.inputs.process(prompt, sampling_params, request_id, priority, extra_keys)
        self.scheduler.add_request(group.leader)  # the leader computes the prompt for all sequences; see _fork
        self.live.add(group)
        return group.request_id

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request in any state and return its text so far.

        Return None, and change nothing, if no such request is live. If it has ended, and no step has returned its last
        output yet, the next step does.
        """
        group = self.live.groups.get(request_id)
        if group is None:
            return None
        unfinished = group.unfinished
        try:
            for sequence in unfinished:
                self._finish(sequence, RequestStatus.FINISHED_ABORTED, "abort")
            self.let_go(group)
        except Exception:  # the other requests must not suffer: they wait, and their K/V is computed again
            logging.getLogger("mini_vllm").exception("aborting request %r failed", request_id)
            for sequence in unfinished:
                sequence.request.status = RequestStatus.FINISHED_ABORTED
            self._delivered = []
            self.put_back(self._start_over(None))
            self.unseen.pop(request_id, None)
        return group.to_output()

    def let_go(self, group: SequenceGroup) -> None:
        """Release a request that has ended, also what was learned for guessing its tokens."""
        if self.speculation is not None:
            for sequence in group.sequences:
                self.speculation.forget(sequence.request)
        super().let_go(group)

    def draft_counts(self) -> dict[str, int]:
        if self.speculation is None:
            return {}
        return {"num_drafted_tokens": self.speculation.num_drafted_tokens,
                "num_accepted_tokens": self.speculation.num_accepted_tokens}

    def has_unfinished_requests(self) -> bool:
        """Check whether another ``step`` has something to compute or to report."""
        return bool(self.live.groups or self.unseen)

    # ---- the step

    def step(self) -> list[RequestOutput]:
        """Plan one step, compute it, and return the outputs of the requests that got a token, ended or failed.

        If the computation fails, its requests are computed one by one. A request that also fails alone ends with the
        error; the other requests and the engine continue. If anything else fails, no single request is to blame, and
        all that run end with the error. If too many steps in a row cannot plan anything, all requests end with a
        StalledError as their ``error``. Only Ctrl-C and the like is raised; then no request loses a token.
        """
        try:
            outputs = self._step()
        except BaseException as error:
            outputs = self._start_over(error)
            if not isinstance(error, Exception):
                self.put_back(outputs)
                raise
        return self.with_unseen(outputs)

    def _step(self) -> list[RequestOutput]:
        self._delivered = []
        self.trace.start_step(self.scheduler)
        plan = self.scheduler.schedule()
        if self.speculation is not None:
            plan = self.speculation.extend(plan, self.lookahead.has_started(plan))
        self.trace.record_plan(self.scheduler, plan)
        self.note_start(plan)

        result = self.compute(plan)
        self.trace.record_computed()

        outputs = self.deliver(plan, result)
        self.trace.end_step(plan, result.token_ids, self.speculation.last_drafts if self.speculation else NO_DRAFTS)
        return outputs

    def compute(self, plan: SchedulerOutput) -> StepResult:
        """Compute ``plan`` and return its tokens, or an error for every request if the engine has stalled."""
        has_moved = bool(plan.requests or plan.preempted or plan.finished)
        has_stalled = self.idle_steps.add(not has_moved and bool(self.live.groups))
        if plan.requests:
            self.num_steps += 1
            return self.executor.compute(plan)
        # A request was preempted or ended after its copies were planned, but their destinations may be in the index.
        self.runner.cache.copy_blocks(plan.copies)
        return StepResult(errors=self._give_up() if has_stalled else {})

    def _give_up(self) -> dict[str, Exception]:
        """Return an error for every request: no request has made progress for too long."""
        self.idle_steps = IdleSteps()
        waiting = [group.unfinished[0].request for group in self.live.groups.values()]
        return {request.request_id: StalledError.about(request, self.kv_cache) for request in waiting}

    def deliver(self, plan: SchedulerOutput, result: StepResult) -> list[RequestOutput]:
        """Append each sequence's token and release what has ended.

        Return an output for each request that made progress.
        """
        self.scheduler.update_from_output(plan, result.token_ids)
        self._fork(plan, result)
        # Failures come last: siblings of a failed sequence keep the token that they got in this step.
        moved = [*self._end_outgrown(plan), *self._take_tokens(result), *self._fail(result)]
        if self.speculation is not None:
            self.speculation.settle(plan)
        return self._report({group.request_id: group for group in moved}.values())

    def _report(self, groups: Iterable[SequenceGroup]) -> list[RequestOutput]:
        """Return the outputs of ``groups``, and release the requests that have ended."""
        groups = list(groups)
        self._delivered = outputs = [group.to_output() for group in groups]  # _start_over knows what was released
        for group, output in zip(groups, outputs):
            if output.finished:
                self.let_go(group)
        return outputs

    def _fork(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Fork each request with ``n`` > 1 whose prompt was completed in this step.

        The other sequences share all blocks of the leader, which computed the prompt, and continue from there.
        """
        for request in plan.requests:
            if request.request_id in result.token_ids and request.num_sequences > 1:
                for sequence in self.live.group_of(request.request_id).sequences[1:]:
                    self.scheduler.fork(request, sequence.request)
                    sequence.request.append_output_token(result.token_ids[sequence.request.request_id])

    def _end_outgrown(self, plan: SchedulerOutput) -> list[SequenceGroup]:
        """End the requests that the scheduler has already removed because the whole pool could not hold them."""
        for request in plan.finished:
            self.live.sequence(request.request_id).end(request.status.value)
        return [self.live.group_of(request.request_id) for request in plan.finished]

    def _take_tokens(self, result: StepResult) -> list[SequenceGroup]:
        now_s = self.clock()
        moved = []
        for request_id, token_id in result.token_ids.items():
            group, sequence = self.live.group_of(request_id), self.live.sequence(request_id)
            reason = self._take(sequence, token_id, result.logprobs.get(request_id))
            for further in result.further.get(request_id, ()):
                if reason is not None:
                    break  # the draft goes on after the end of the output
                sequence.request.append_output_token(further.token_id)
                sequence.request.num_computed_tokens += 1  # the token before it is an accepted draft
                reason = self._take(sequence, *further)
            group.note_token(now_s)
            if reason is not None:
                self._finish(sequence, STATUS_OF[reason], reason)
            moved.append(group)
        return moved

    def _take(self, sequence: SequenceState, token_id: int, logprob: TokenLogprob | None) -> str | None:
        if sequence.row.cursor is not None:
            self.trace.record_draw(sequence.request.request_id, sequence.row.cursor, token_id)
        return sequence.take_token(token_id, logprob)

    def _fail(self, result: StepResult) -> list[SequenceGroup]:
        """End the unfinished sequences of failed requests. The content of their blocks is not trusted."""
        failed = []
        for request_id, error in result.errors.items():
            group = self.live.group_of(request_id)
            group.error = describe(error)
            block_ids: set[int] = set()
            for sequence in group.unfinished:
                block_ids.update(self.kv_cache.get_block_ids(sequence.request.request_id))
                self._finish(sequence, RequestStatus.FINISHED_ERROR, "error")
            self.discard(block_ids)
            failed.append(group)
        return failed

    def _finish(self, sequence: SequenceState, status: RequestStatus, reason: str) -> None:
        """End one sequence and give its blocks back.

        This calls ``abort_request``, not ``finish``: the scheduler does not know a sequence that has not been forked
        yet, and ``abort_request`` returns None for it.
        """
        self.lookahead.drop_step_of(sequence.request)
        if self.scheduler.abort_request(sequence.request.request_id) is not None:
            sequence.request.status = status
        sequence.end(reason)

    # ---- errors that no single request caused

    def fail_all(self, error: Exception) -> list[RequestOutput]:
        """End all requests with ``error``. Afterwards only outputs kept by ``put_back`` are left."""
        self._delivered = []
        return self._start_over(error, ends_all=True)

    def _start_over(self, error: BaseException | None, ends_all: bool = False) -> list[RequestOutput]:
        """Create the scheduler and the KV cache again: what they hold may be half changed. No prefix stays cached.

        Requests that ran end with ``error`` if it is an Exception; those that waited wait again. Otherwise, as after
        Ctrl-C, all wait: they keep the tokens that they had, and their K/V is computed again. Return the outputs that
        the failed step did not return.
        """
        ended: list[SequenceGroup] = []
        self._make_scheduler(self.parts)
        self.runner.cache.clear_blocks(range(self.sizes.num_blocks))
        self.drafter = self._make_drafter(self.parts)
        self._make_helpers()
        for group in list(self.live.groups.values()):
            ends = ends_all or isinstance(error, Exception) and any(
                sequence.request.status is RequestStatus.RUNNING for sequence in group.unfinished)
            for sequence in group.unfinished:
                if sequence.return_to_last_token().is_finished:  # the scheduler had just ended it
                    sequence.end(sequence.request.status.value)
            refusal = None if ends else self._wait_again(group)
            if ends or refusal is not None:
                group.error = describe(refusal or error)  # type: ignore[arg-type]  # ``ends`` implies an error
                for sequence in group.unfinished:
                    sequence.request.status = RequestStatus.FINISHED_ERROR
                    sequence.end("error")
            if not group.unfinished:
                ended.append(group)
        outputs = {output.request_id: output for output in self._delivered}
        outputs.update((output.request_id, output) for output in self._report(ended))
        return list(outputs.values())

    def _wait_again(self, group: SequenceGroup) -> Exception | None:
        """Give the unfinished sequences of ``group`` to the scheduler. Return its error if it refuses one of them."""
        if not any(sequence.request.output_token_ids for sequence in group.sequences):
            group.leader.num_sequences = len(group.sequences)  # it will be forked, perhaps once more
        try:
            for sequence in group.unfinished[:1] if group.leader.num_sequences > 1 else group.unfinished:
                self.scheduler.add_request(sequence.request)
        except Exception as error:
            return error
        return None


def engine_of(config: EngineConfig | None = None, parts: EngineParts | None = None,
              loaded: LoadedModel | None = None, trace: NoTrace | None = None) -> LLMEngine:
    """Create an engine from ``parts``, of the class that ``parts`` names."""
    if parts is None or parts.engine is None:
        return LLMEngine(config, parts, loaded, trace)
    engine: LLMEngine = parts.engine(config, parts, loaded, trace)
    return engine
