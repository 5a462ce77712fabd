"""The engine: requests in, text out. ``LLMEngine`` goes step by step, ``LLM`` runs a list of prompts to the end.

    add_request ─▶ scheduler ─▶ model runner ─▶ sampler ─▶ detokenizer, stop checks ─▶ RequestOutput
                      ▲                                                │
                      └────────────── one more token ──────────────────┘
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mini_vllm.attention import PagedKVCache, Span
from mini_vllm.backend import dequantise_is_faster, mx
from mini_vllm.engine_config import EngineConfig, EngineMetrics, EngineParts, parse_memory
from mini_vllm.loader import DEFAULT_MODEL, LoadedModel, load
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.progress_bar import progress_bar
from mini_vllm.recovery import Recovery
from mini_vllm.request import Priority, Request, RequestOutput, RequestStatus, SamplingParams, TokenLogprob, Usage
from mini_vllm.sampler import is_plain_greedy
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import STATUS_OF, SequenceGroup, SequenceState
from mini_vllm.trace import StepTrace

Prompt = str | Sequence[int]
CPU_CHUNK_TOKENS = 96
#: Looking ahead made a model of 22 MB 1.2 times as fast for one request, 1.1 times for 2 to 4, no faster for more;
#: one of 109 MB 0.93 times.
CPU_MAX_LOOKAHEAD, CPU_SMALL_MODEL_BYTES = 4, 64_000_000


class LLMEngine:
    """Serves many requests at once, a step at a time. Not for several threads."""

    def __init__(self, config: EngineConfig | None = None, parts: EngineParts | None = None,
                 loaded: LoadedModel | None = None, trace: StepTrace | None = None) -> None:
        """``trace`` records every step; see trace.py."""
        self.config = config or EngineConfig()
        parts = parts or EngineParts()
        self.loaded = loaded or load(self.config.model)
        self.tokenizer = self.loaded.tokenizer
        model_config = self.loaded.config
        limit = model_config.max_position_embeddings
        self.max_model_len = limit if self.config.max_model_len is None else self.config.max_model_len
        if not 1 < self.max_model_len <= limit:
            raise ValueError(f"max_model_len is {self.max_model_len}, must be from 2 to {limit}, the model's own limit")
        num_blocks = self._num_blocks()
        self.kv_cache = parts.kv_cache_manager(num_blocks, self.config.block_size, self.config.enable_prefix_caching,
                                               pool_class=parts.block_pool, tree_class=parts.prefix_tree)
        self.max_num_batched_tokens = self.config.max_num_batched_tokens
        if self.max_num_batched_tokens is None:
            self.max_num_batched_tokens = max(256 if dequantise_is_faster() else 2048, self.config.max_num_seqs)
        self.scheduler = parts.scheduler(self.kv_cache, self.config.max_num_seqs, self.max_num_batched_tokens,
                                         parts.request_queue(self.config.aging_rate), self.config.watermark)
        self.scheduler.max_num_chunk_tokens = self._max_num_chunk_tokens()  # a simpler scheduler need not read it
        self.sampler = parts.sampler()
        self.runner = ModelRunner(self.loaded.model, num_blocks, self.config.block_size)
        self.recovery = Recovery(self.scheduler, self.kv_cache, self.runner.cache)
        self.trace = trace
        self.num_steps = 0
        self._max_lookahead = self._max_requests_to_look_ahead()
        #: A step that was begun before it was planned: its requests, their tokens to be, and the logits of these.
        self._ahead: tuple[list[Request], mx.array, mx.array] | None = None
        self._groups: dict[str, SequenceGroup] = {}
        self._sequences: dict[str, tuple[SequenceGroup, SequenceState]] = {}
        self._ids = itertools.count()

    def _max_num_chunk_tokens(self) -> int | None:
        limit = self.config.max_num_chunk_tokens
        if limit is None:
            return CPU_CHUNK_TOKENS if dequantise_is_faster() else None
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ValueError(f"max_num_chunk_tokens is {limit!r}, must be a whole number, at least 1")
        return limit

    def _max_requests_to_look_ahead(self) -> int:
        """See EngineConfig.enable_lookahead."""
        if self.config.enable_lookahead is not None or not dequantise_is_faster():
            return 0 if self.config.enable_lookahead is False else self.config.max_num_seqs
        from mlx.utils import tree_flatten  # not above: the backend must be the first to import MLX
        num_bytes = sum(array.nbytes for _, array in tree_flatten(self.loaded.model.parameters()))
        return CPU_MAX_LOOKAHEAD if num_bytes < CPU_SMALL_MODEL_BYTES else 0

    def _num_blocks(self) -> int:
        model, size = self.loaded.config, self.config.block_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"block_size is {size!r}, must be a whole number of tokens, at least 1")
        if self.config.num_blocks is not None:
            return self.config.num_blocks
        block_bytes = PagedKVCache.block_bytes(model.num_layers, model.num_kv_heads, size, model.head_dim,
                                               self.loaded.model.model.norm.weight.dtype)
        budget = parse_memory(self.config.kv_memory)
        affordable = budget // block_bytes
        if affordable < 2:
            raise ValueError(f"kv_memory of {budget} bytes holds {affordable} blocks of {size} tokens; at least 2 are "
                             f"needed, which take {2 * block_bytes} bytes")
        usable = self.config.max_num_seqs * -(-self.max_model_len // size) + 1
        return min(affordable, usable)

    # ---- requests

    def add_request(self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None,
                    priority: Priority = Priority.NORMAL, extra_keys: tuple | None = None) -> str:
        """Take a request in and return its id. Raises ValueError, and takes nothing, if it can never be served."""
        params = sampling_params or SamplingParams()
        request_id = request_id if request_id is not None else f"request-{next(self._ids)}"
        if not _is_hashable_tuple(extra_keys):
            raise ValueError(f"extra_keys is {extra_keys!r}, must be a tuple of hashable values, or None")
        text = prompt if isinstance(prompt, str) else None
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        max_tokens = self.check_prompt(token_ids, params)
        self._check_tokens("logit_bias", params.logit_bias or ())
        self._check_tokens("stop_token_ids", params.stop_token_ids)
        group = SequenceGroup(request_id, text, token_ids)
        for index in range(params.n):
            group.sequences.append(self._make_sequence(group, index, params, max_tokens, priority, extra_keys))
        for used in (request_id, *(sequence.request.request_id for sequence in group.sequences)):
            if used in self._groups or used in self._sequences:
                raise ValueError(f"request id {used!r} is in use")
        leader = group.sequences[0].request  # it computes the prompt for all of them; see _fork
        leader.num_sequences = params.n
        self.scheduler.add_request(leader)
        self._groups[request_id] = group
        self._sequences.update({s.request.request_id: (group, s) for s in group.sequences})
        return request_id

    def check_prompt(self, token_ids: Sequence[int], params: SamplingParams) -> int:
        """Raises ValueError for a prompt that cannot be; returns how many tokens may follow it."""
        if not token_ids:
            raise ValueError("the prompt is empty: it has 0 tokens, at least 1 is needed")
        self._check_tokens("the prompt", token_ids)
        if len(token_ids) >= self.max_model_len:
            raise ValueError(f"the prompt has {len(token_ids)} tokens; the context is {self.max_model_len}, and at "
                             "least one must be left for the output")
        return min(params.max_tokens, self.max_model_len - len(token_ids))

    def _check_tokens(self, where: str, token_ids: Iterable[int]) -> None:
        size = self.loaded.config.vocab_size
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < size:
                raise ValueError(f"{where} has the token id {token_id!r}, must be from 0 to {size - 1}")

    def _make_sequence(self, group: SequenceGroup, index: int, params: SamplingParams, max_tokens: int,
                       priority: Priority, extra_keys: tuple | None) -> SequenceState:
        if max_tokens != params.max_tokens:
            params = replace(params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))
        request_id = group.request_id if params.n == 1 else f"{group.request_id}#{index}"
        request = Request(request_id, group.prompt_token_ids, params, priority, extra_keys=extra_keys)
        return SequenceState(request, index, self.tokenizer)

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is; its text so far is returned. None if there is no such request."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        for sequence in group.sequences:
            if not sequence.finished:
                self._finish(sequence, RequestStatus.FINISHED_ABORTED, "abort")
        self._forget(group)
        return group.to_output()

    def fail_all(self, error: Exception) -> list[RequestOutput]:
        """``step`` itself raised, and no request is to blame: end all of them with the error. The engine is empty then.

        What the broken step was to write may have been indexed, so the whole prefix cache is let go.
        """
        outputs = []
        for request_id, group in list(self._groups.items()):
            unfinished = [sequence.output for sequence in group.sequences if not sequence.finished]
            output = self.abort_request(request_id)
            for completion in unfinished:
                completion.finish_reason = "error"
            outputs.append(replace(output, error=f"{type(error).__name__}: {error}"))
        self._ahead = None
        self.kv_cache.finish_step()
        self.kv_cache.reset_prefix_cache()
        return outputs

    def has_unfinished_requests(self) -> bool:
        return bool(self._groups)

    def metrics(self) -> EngineMetrics:
        """What sharing has saved so far."""
        stats, pool = self.kv_cache.stats, self.kv_cache.block_pool
        return EngineMetrics(stats.num_queries, stats.num_query_tokens, stats.num_hit_tokens, stats.hit_rate,
                             stats.recent_hit_rate, sum(block.ref_cnt > 1 for block in pool.blocks), pool.num_forks,
                             self.runner.cache.num_copied_blocks, stats.num_evicted_blocks, self.num_steps)

    # ---- the step

    def step(self) -> list[RequestOutput]:
        """Compute one step and return the requests that it moved.

        If the step fails, its requests are computed one by one: those that fail alone end with the error, and the
        others, and the engine, go on.
        """
        if self.trace is not None:
            self.trace.start_step(self.scheduler)
        plan = self.scheduler.schedule()
        if self.trace is not None:
            self.trace.record_plan(self.scheduler, plan)
        token_ids: dict[str, int] = {}
        logprobs: dict[str, TokenLogprob] = {}
        errors: dict[str, Exception] = {}
        if plan.requests:
            self.num_steps += 1
            try:
                try:
                    token_ids, logprobs = self._compute(plan)
                except Exception as error:
                    token_ids, logprobs, errors = self.recovery.compute_apart(plan, error, self._compute)
                    self._ahead = None
            except BaseException:  # somebody pressed Ctrl-C; the requests may go on, or be aborted
                self._ahead = None
                self.recovery.undo(plan)
                raise
        else:
            self.runner.cache.copy_blocks(plan.copies)  # for blocks that were given back, but may be found
        if self.trace is not None:
            self.trace.record_computed()
        self.scheduler.update_from_output(plan, token_ids)
        self._fork(plan, token_ids)
        touched: dict[str, SequenceGroup] = {}
        for request in plan.finished:
            group, sequence = self._sequences[request.request_id]
            sequence.end(request.status.value)
            touched[group.request_id] = group
        for request_id, error in errors.items():
            group = self._sequences[request_id][0]
            group.error = f"{type(error).__name__}: {error}"
            self._fail(group)
            touched[group.request_id] = group
        for request_id, token_id in token_ids.items():
            group, sequence = self._sequences[request_id]
            if group.error is None:
                reason = sequence.take_token(token_id, logprobs.get(request_id))
                if reason is not None:
                    self._finish(sequence, STATUS_OF[reason], reason)
                touched[group.request_id] = group
        outputs = [group.to_output() for group in touched.values()]
        for output in outputs:
            if output.finished:
                self._forget(self._groups[output.request_id])
        if self.trace is not None:
            self.trace.end_step(plan, token_ids)
        return outputs

    def _compute(self, plan: SchedulerOutput) -> tuple[dict[str, int], dict[str, TokenLogprob]]:
        """Next tokens, and their log-probabilities where asked for. Raises ValueError where something is NaN."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and self._is_planned(ahead[0], plan):
            return self._take_greedy(plan.requests, *ahead[1:]), {}
        steps, sampled = [], []
        for request in plan.requests:
            end = request.num_computed_tokens
            start = end - plan.num_scheduled_tokens[request.request_id]
            is_last = end == request.num_tokens
            steps.append(RequestStep(request.all_token_ids[start:end], self.kv_cache.get_block_ids(request.request_id),
                                     end, is_last))
            if is_last:
                sampled.append(request)
        logits = self.runner.step(steps, plan.copies)
        if not sampled:
            mx.eval(self.runner.cache.pools)
            return {}, {}
        ids, sources = [], []  # a prompt that is about to be forked gives each of its sequences a token
        for index, request in enumerate(sampled):
            group, sequence = self._sequences[request.request_id]
            sequences = group.sequences if request.num_sequences > 1 else [sequence]
            ids += [each.request.request_id for each in sequences]
            sources += [index] * len(sequences)
        if len(sources) > len(sampled):
            logits = logits[mx.array(sources)]
        rows = [self._sequences[request_id][1].row for request_id in ids]
        if all(is_plain_greedy(row.params) for row in rows):
            chosen, scores = self._greedy(logits)
            have_begun = all(request.output_token_ids for request in plan.requests)  # a first token is waited for
            if have_begun and ids == [request.request_id for request in plan.requests]:
                return self._take_greedy(plan.requests, chosen, scores), {}
            return dict(zip(ids, _checked(chosen, scores))), {}
        result = self.sampler.sample(logits, rows)
        return (dict(zip(ids, result.token_ids)),
                {request_id: logprob for request_id, logprob in zip(ids, result.logprobs) if logprob is not None})

    def _greedy(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """The most likely token of each row, and its logit."""
        chosen = self.sampler.greedy(logits)
        return chosen, mx.take_along_axis(logits, chosen[:, None], axis=-1)

    def _take_greedy(self, requests: list[Request], chosen: mx.array, scores: mx.array) -> dict[str, int]:
        """The tokens of a step in which every request gets one; while they are computed, the next step is begun."""
        mx.async_eval(chosen, scores)
        if len(requests) <= self._max_lookahead:
            try:
                self._begin_next(requests, chosen)
            except Exception:  # a guess that fails is none; if there is something wrong, the step itself will show it
                self._ahead = None
        return dict(zip((request.request_id for request in requests), _checked(chosen, scores)))

    def _begin_next(self, requests: list[Request], chosen: mx.array) -> None:
        """Guess that every request goes on, and nobody comes, and compute the next step from tokens yet unknown.

        A wrong guess is thrown away. It has written K/V only into slots that belong to no computed token, and which
        are written again when their token is.
        """
        has_seat = sum(request.num_sequences for request in requests) < self.config.max_num_seqs
        if has_seat and self.scheduler.waiting or any(
                len(request.output_token_ids) + 2 > request.sampling_params.max_tokens for request in requests):
            return
        for request in requests:
            if self.kv_cache.allocate_slots(request, 1) is None or self.kv_cache.block_pool.pending_copies:
                return
        spans = [Span(self.kv_cache.get_block_ids(request.request_id), 1, request.num_computed_tokens + 1)
                 for request in requests]
        following = self._greedy(self.runner.step_ahead(chosen, spans))
        mx.async_eval(following)
        self._ahead = list(requests), *following

    @staticmethod
    def _is_planned(requests: list[Request], plan: SchedulerOutput) -> bool:
        return (plan.requests == requests and not plan.copies
                and all(n == 1 for n in plan.num_scheduled_tokens.values()))

    def _fork(self, plan: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """Prompts of several sequences that were finished in this step: the others run on from the leader's blocks."""
        for request in plan.requests:
            if request.request_id in token_ids and request.num_sequences > 1:
                for sequence in self._sequences[request.request_id][0].sequences[1:]:
                    self.scheduler.fork(request, sequence.request)
                    sequence.request.append_output_token(token_ids[sequence.request.request_id])

    def _finish(self, sequence: SequenceState, status: RequestStatus, reason: str) -> None:
        """End one sequence and give its blocks back."""
        sequence.end(reason)
        if self.scheduler.abort_request(sequence.request.request_id) is not None:
            sequence.request.status = status

    def _fail(self, group: SequenceGroup) -> None:
        """End what is left of a request that failed."""
        block_ids: set[int] = set()
        for sequence in group.sequences:
            if not sequence.finished:
                block_ids.update(self.kv_cache.get_block_ids(sequence.request.request_id))
                self._finish(sequence, RequestStatus.FINISHED_ERROR, "error")
        self.recovery.discard(block_ids)

    def _forget(self, group: SequenceGroup) -> None:
        del self._groups[group.request_id]
        for sequence in group.sequences:
            self._sequences.pop(sequence.request.request_id, None)


def _checked(chosen: mx.array, scores: mx.array) -> list[int]:
    """Greedy tokens, unless the best logit is not a number: then the model is broken, and any token would be a lie.

    Nothing is computed here: it would have to wait for the next step, which may have been begun.
    """
    for row, (score,) in enumerate(scores.tolist()):
        if score != score:
            raise ValueError(f"row {row}: the logits contain NaN")
    return chosen.tolist()


class LLM:
    """A model and an engine in one: give it prompts, get texts."""

    def __init__(self, model: str | Path = DEFAULT_MODEL, *, parts: EngineParts | None = None,
                 **settings: object) -> None:
        self.engine = LLMEngine(EngineConfig(model=model, **settings), parts)

    @property
    def tokenizer(self):
        return self.engine.tokenizer

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 use_progress: bool = False) -> list[RequestOutput]:
        """Continue every prompt; outputs come in the order of the prompts.

        A prompt is a text or a list of token ids. One that cannot be served is reported in its own output (``error``,
        finish reason "error"); the others finish.
        """
        prompts = [prompts] if isinstance(prompts, str) or _is_token_ids(prompts) else list(prompts)
        params = self._params_for(prompts, sampling_params)
        engine = self.engine
        results: dict[str, RequestOutput] = {}
        order = []
        try:
            for prompt, own in zip(prompts, params):
                try:
                    order.append(engine.add_request(prompt, own))
                except ValueError as error:
                    refused = f"refused-{len(order)}"
                    text, ids = (prompt, []) if isinstance(prompt, str) else (None, list(prompt))
                    results[refused] = RequestOutput(refused, text, ids, [], True, Usage(len(ids), 0), str(error))
                    order.append(refused)
            with progress_bar(len(order), use_progress) as advance:
                advance(len(results), 0)
                while engine.has_unfinished_requests():
                    outputs = engine.step()
                    for output in outputs:
                        if output.finished:
                            results[output.request_id] = output
                    advance(sum(output.finished for output in outputs), len(outputs))
        finally:
            for request_id in order:  # whatever ended the loop, nothing of this call stays behind
                engine.abort_request(request_id)
        return [results[request_id] for request_id in order]

    def chat(self, messages: Sequence[dict[str, str]] | Sequence[Sequence[dict[str, str]]],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_progress: bool = False) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [self.tokenizer.encode_chat(list(conversation)) for conversation in conversations]
        return self.generate(prompts, sampling_params, use_progress)

    @staticmethod
    def _params_for(prompts: list, params: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(params)} sampling params")
        return list(params)


def _is_token_ids(prompts: object) -> bool:
    return isinstance(prompts, (list, tuple)) and bool(prompts) and all(isinstance(item, int) for item in prompts)


def _is_hashable_tuple(value: object) -> bool:
    if value is None:
        return True
    try:
        hash(value)
    except TypeError:
        return False
    return isinstance(value, tuple)
