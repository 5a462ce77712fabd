"""The engine: requests in, text out, step by step.

    add_request ─▶ scheduler ─▶ model runner ─▶ sampler ─▶ detokenizer, stop checks ─▶ RequestOutput
                      ▲                                                │
                      └────────────── one more token ──────────────────┘

What else belongs to it stands beside it: ``lookahead`` (the next step, begun early), ``recovery`` (a step that breaks),
``sequences`` (the text of each output), and in ``engine_room`` what may come in, how a plan is computed, what happens
when nothing can be planned, and how many blocks there are. This module is longer than most: whoever follows a request
needs plan, compute and deliver, and how a request comes and goes, on one page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from mini_vllm.checks import an_instance
from mini_vllm.engine_config import EngineConfig, EngineMetrics, EngineParts
from mini_vllm.engine_room.executor import Executor, StepResult
from mini_vllm.engine_room.idle import IdleSteps, StalledError
from mini_vllm.engine_room.input_processor import InputProcessor
from mini_vllm.engine_room.sizes import EngineSizes
from mini_vllm.joints.fit import checked, fit, make_kv_cache
from mini_vllm.lookahead import LookAhead
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.models.prompts import Prompt, PromptReader, PromptTokens
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.recovery import Recovery
from mini_vllm.request import Priority, RequestOutput, RequestStatus, SamplingParams
from mini_vllm.scheduler import Scheduler, SchedulerOutput
from mini_vllm.sequences import STATUS_OF, LiveRequests, SequenceGroup, SequenceState
from mini_vllm.trace.recorder import NoTrace, StepTrace


class LLMEngine:
    """Serves many requests at once, a step at a time. Not for several threads."""

    def __init__(self, config: EngineConfig | None = None, parts: EngineParts | None = None,
                 loaded: LoadedModel | None = None, trace: StepTrace | NoTrace | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """``trace`` records every step; see trace/recorder.py. ``clock`` returns seconds; ``RequestOutput.timings`` is
        measured with it."""
        self.config = config = EngineConfig() if config is None else config
        an_instance("config", config, EngineConfig)
        parts = EngineParts() if parts is None else parts
        an_instance("parts", parts, EngineParts)
        parts = fit(parts)
        self.loaded = loaded or load(config.model)
        self.tokenizer = self.loaded.tokenizer
        sizes = EngineSizes.choose(config, self.loaded)
        self.max_model_len, self.max_num_batched_tokens = sizes.max_model_len, sizes.max_num_batched_tokens
        self.prompts = PromptReader(self.tokenizer, self.loaded.config.vocab_size, self.max_model_len)
        self.kv_cache = make_kv_cache(parts, sizes.num_blocks, config.block_size, config.enable_prefix_caching)
        self.scheduler: Scheduler = checked("scheduler", parts.scheduler(
            self.kv_cache, config.max_num_seqs, self.max_num_batched_tokens, parts.request_queue(config.aging_rate),
            config.watermark))
        self.scheduler.max_num_chunk_tokens = sizes.max_num_chunk_tokens  # a simpler scheduler need not read it
        self.sampler = parts.sampler()
        self.runner: ModelRunner = checked("model_runner", parts.model_runner(
            self.loaded.model, sizes.num_blocks, config.block_size, parts.attention))
        self.live = LiveRequests()
        max_num_lookahead = sizes.max_num_lookahead if hasattr(self.runner, "step_ahead") else 0
        self.lookahead = LookAhead(max_num_lookahead, config.max_num_seqs, self.scheduler, self.kv_cache,
                                   self.runner, self.sampler, self.live)
        self.executor = Executor(self.kv_cache, self.runner, self.sampler, self.lookahead, self.live, self.tokenizer)
        self.recovery = Recovery(self.scheduler, self.kv_cache, self.runner.cache, self.lookahead)
        self.trace = NoTrace() if trace is None else trace
        self.num_steps = 0
        self._clock = clock
        self._idle_steps = IdleSteps()
        #: Outputs of requests whose caller did not see the step that made them; see ``put_back``.
        self._unseen: dict[str, RequestOutput] = {}
        live, unseen = self.live, self._unseen  # not self: in a circle, an engine would outlive its last owner
        self._inputs = InputProcessor(config, self.prompts, lambda name: name in live or name in unseen, clock)

    # ---- requests come and go

    def add_request(self, prompt: Prompt | PromptTokens, sampling_params: SamplingParams | None = None,
                    request_id: str | None = None, priority: Priority = Priority.NORMAL,
                    extra_keys: tuple[object, ...] | None = None) -> str:
        """Take a request in and return its id. Raises ValueError, and takes nothing, if it can never be served."""
        group = self._inputs.process(prompt, sampling_params, request_id, priority, extra_keys)
        self.scheduler.add_request(group.leader)  # it computes the prompt for all of them; see _fork
        self.live.add(group)
        return group.request_id

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is; its text so far is returned. None if there is no such request."""
        group = self.live.groups.get(request_id)
        return None if group is None else self._abort(group)

    def _abort(self, group: SequenceGroup) -> RequestOutput:
        for sequence in group.unfinished:
            self._finish(sequence, RequestStatus.FINISHED_ABORTED, "abort")
        self._unseen.pop(group.request_id, None)  # this output is newer
        self.live.remove(group)
        return group.to_output()

    def fail_all(self, error: Exception) -> list[RequestOutput]:
        """``step`` itself raised, and no request is to blame: end all of them with the error. Afterwards only outputs
        kept by ``put_back`` are left.

        What the broken step was to write may have been indexed, so the whole prefix cache is let go.
        """
        outputs = []
        for group in list(self.live.groups.values()):
            unfinished = group.unfinished
            output = self._abort(group)
            for sequence in unfinished:
                sequence.output.finish_reason = "error"
            outputs.append(replace(output, error=_describe(error)))
        self.kv_cache.finish_step()
        self.kv_cache.reset_prefix_cache()
        return outputs

    def has_unfinished_requests(self) -> bool:
        """Whether a further ``step`` has something to compute, or to tell."""
        return bool(self.live.groups or self._unseen)

    def put_back(self, outputs: Iterable[RequestOutput]) -> None:
        """Keep outputs that belong to another caller; the next step returns them, unless it has newer ones."""
        self._unseen.update({output.request_id: output for output in outputs})

    # ---- what one may ask

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Raises RuntimeError, and forgets nothing, while a request holds blocks."""
        self.kv_cache.reset_prefix_cache()

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def metrics(self) -> EngineMetrics:
        """What sharing has saved so far."""
        stats, pool = self.kv_cache.stats, self.kv_cache.block_pool
        recent_hit_rate = getattr(stats, "recent_hit_rate", stats.hit_rate)  # a simpler manager does not count it
        return EngineMetrics(stats.num_queries, stats.num_query_tokens, stats.num_hit_tokens, stats.hit_rate,
                             recent_hit_rate, sum(block.ref_cnt > 1 for block in pool.blocks), pool.num_forks,
                             self.runner.cache.num_copied_blocks, stats.num_evicted_blocks, self.num_steps)

    # ---- the step

    def step(self) -> list[RequestOutput]:
        """Plan one step, compute it, and return the outputs of the requests that got a token, ended or failed.

        If the step fails, its requests are computed one by one: those that fail alone end with the error, and the
        others, and the engine, go on. If nothing can be planned again and again, all requests end with a StalledError
        as their ``error``; nothing is raised.
        """
        self.trace.start_step(self.scheduler)
        plan = self.scheduler.schedule()
        self.trace.record_plan(self.scheduler, plan)
        self._note_start(plan)

        result = self._compute(plan)
        self.trace.record_computed()

        outputs = self._deliver(plan, result)
        self.trace.end_step(plan, result.token_ids)
        return self._with_unseen(outputs)

    def _note_start(self, plan: SchedulerOutput) -> None:
        now_s = self._clock()
        for request in plan.requests:
            self.live.group_of(request.request_id).note_start(now_s)

    def _compute(self, plan: SchedulerOutput) -> StepResult:
        has_moved = bool(plan.requests or plan.preempted or plan.finished)
        has_stalled = self._idle_steps.add(not has_moved and bool(self.live.groups))
        if plan.requests:
            self.num_steps += 1
            return self.recovery.compute(plan, self.executor.compute)
        # Whoever planned these copies was preempted or has ended, but the copies may be in the index.
        self.runner.cache.copy_blocks(plan.copies)
        return StepResult(errors=self._give_up() if has_stalled else {})

    def _give_up(self) -> dict[str, Exception]:
        """An error for every request: nobody has moved for too long."""
        self._idle_steps = IdleSteps()
        waiting = [group.unfinished[0].request for group in self.live.groups.values()]
        return {request.request_id: StalledError.about(request, self.kv_cache) for request in waiting}

    def _deliver(self, plan: SchedulerOutput, result: StepResult) -> list[RequestOutput]:
        """Every sequence gets its token, and what has ended is let go. Returns an output of each request that moved."""
        self.scheduler.update_from_output(plan, result.token_ids)
        self._fork(plan, result)
        # Failures last: siblings of a failed sequence keep the token that they got in this step.
        moved = [*self._end_outgrown(plan), *self._take_tokens(result), *self._fail(result)]
        groups = {group.request_id: group for group in moved}
        outputs = [group.to_output() for group in groups.values()]
        for output in outputs:
            if output.finished:
                self.live.remove(groups[output.request_id])
        return outputs

    def _fork(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Requests with ``n`` > 1 whose prompt was completed in this step: the other sequences share all blocks of the
        leader, which computed it, and run on from there."""
        for request in plan.requests:
            if request.request_id in result.token_ids and request.num_sequences > 1:
                for sequence in self.live.group_of(request.request_id).sequences[1:]:
                    self.scheduler.fork(request, sequence.request)
                    sequence.request.append_output_token(result.token_ids[sequence.request.request_id])

    def _end_outgrown(self, plan: SchedulerOutput) -> list[SequenceGroup]:
        """Those that the scheduler has taken out already, because the whole pool could not hold them."""
        for request in plan.finished:
            self.live.sequence(request.request_id).end(request.status.value)
        return [self.live.group_of(request.request_id) for request in plan.finished]

    def _take_tokens(self, result: StepResult) -> list[SequenceGroup]:
        now_s = self._clock()
        moved = []
        for request_id, token_id in result.token_ids.items():
            group, sequence = self.live.group_of(request_id), self.live.sequence(request_id)
            reason = sequence.take_token(token_id, result.logprobs.get(request_id))
            group.note_token(now_s)
            if reason is not None:
                self._finish(sequence, STATUS_OF[reason], reason)
            moved.append(group)
        return moved

    def _fail(self, result: StepResult) -> list[SequenceGroup]:
        """End what is left of the requests that failed; what their blocks hold is not trusted."""
        failed = []
        for request_id, error in result.errors.items():
            group = self.live.group_of(request_id)
            group.error = _describe(error)
            block_ids: set[int] = set()
            for sequence in group.unfinished:
                block_ids.update(self.kv_cache.get_block_ids(sequence.request.request_id))
                self._finish(sequence, RequestStatus.FINISHED_ERROR, "error")
            self.recovery.discard(block_ids)
            failed.append(group)
        return failed

    def _finish(self, sequence: SequenceState, status: RequestStatus, reason: str) -> None:
        """End one sequence and give its blocks back.

        By ``abort_request``, not by ``finish``: the scheduler does not know a sequence that was not forked yet, and
        ``abort_request`` returns None for it.
        """
        self.lookahead.drop_step_of(sequence.request)
        sequence.end(reason)
        if self.scheduler.abort_request(sequence.request.request_id) is not None:
            sequence.request.status = status

    def _with_unseen(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        """These outputs, and those that were put back unless there is a newer one among these."""
        newest = self._unseen | {output.request_id: output for output in outputs}
        self._unseen.clear()
        return list(newest.values())


def engine_of(config: EngineConfig | None = None, parts: EngineParts | None = None,
              loaded: LoadedModel | None = None, trace: StepTrace | NoTrace | None = None) -> LLMEngine:
    """An engine of the class that ``parts`` names, of these parts."""
    engine_class: type[LLMEngine] = parts.engine if parts is not None and parts.engine is not None else LLMEngine
    return engine_class(config, parts, loaded, trace)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
