"""The engine: requests in, text out, step by step.

    add_request ─▶ scheduler ─▶ model runner ─▶ sampler ─▶ detokenizer, stop checks ─▶ RequestOutput
                      ▲                                                │
                      └────────────── one more token ──────────────────┘
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mini_vllm.attention import PagedKVCache
from mini_vllm.backend import dequantise_is_faster, mx
from mini_vllm.checks import an_instance, token_ids
from mini_vllm.engine_config import EngineConfig, EngineMetrics, EngineParts, parse_memory
from mini_vllm.fast.plan import Span
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.models.prompts import Prompt, PromptReader, PromptTokens
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.recovery import Recovery
from mini_vllm.request import (
    Priority,
    Request,
    RequestOutput,
    RequestStatus,
    SamplingParams,
    TokenLogprob,
    checked_extra_keys,
    checked_priority,
)
from mini_vllm.sampler import SamplerRow, is_plain, report_logprobs
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import STATUS_OF, SequenceGroup, SequenceState, with_texts
from mini_vllm.trace.recorder import StepTrace

CPU_CHUNK_TOKENS = 96
#: Looking ahead made a model of 22 MB 1.2 times as fast for one request, 1.1 times for 2 to 4, no faster for more;
#: one of 109 MB 0.93 times.
CPU_MAX_LOOKAHEAD, CPU_SMALL_MODEL_BYTES = 4, 64_000_000


@dataclass(frozen=True)
class StepAhead:
    """A step that was begun before it was planned."""

    requests: list[Request]
    #: The tokens it computes, and where it writes them.
    spans: list[Span]
    #: The tokens that come of it, and their logits; both may still be being computed.
    chosen: mx.array
    scores: mx.array


class LLMEngine:
    """Serves many requests at once, a step at a time. Not for several threads."""

    def __init__(self, config: EngineConfig | None = None, parts: EngineParts | None = None,
                 loaded: LoadedModel | None = None, trace: StepTrace | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """``trace`` records every step; see trace.py. ``clock`` gives the seconds of which ``timings`` speak."""
        self.config = an_instance("config", EngineConfig() if config is None else config, EngineConfig)
        parts = an_instance("parts", EngineParts() if parts is None else parts, EngineParts)
        self.loaded = loaded or load(self.config.model)
        self.tokenizer = self.loaded.tokenizer
        model_config = self.loaded.config
        limit = model_config.max_position_embeddings
        self.max_model_len = limit if self.config.max_model_len is None else self.config.max_model_len
        if not 1 < self.max_model_len <= limit:
            raise ValueError(f"max_model_len is {self.max_model_len}, must be from 2 to {limit}, the model's own limit")
        self.prompts = PromptReader(self.tokenizer, model_config.vocab_size, self.max_model_len)
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
        self._clock = clock
        self._max_lookahead = self._max_requests_to_look_ahead()
        self._ahead: StepAhead | None = None
        #: Outputs of requests whose caller did not see the step that made them; see ``put_back``.
        self._unseen: dict[str, RequestOutput] = {}
        self._groups: dict[str, SequenceGroup] = {}
        self._sequences: dict[str, tuple[SequenceGroup, SequenceState]] = {}
        self._ids = itertools.count()

    def _max_num_chunk_tokens(self) -> int | None:
        limit = self.config.max_num_chunk_tokens
        return limit if limit is not None or not dequantise_is_faster() else CPU_CHUNK_TOKENS

    def _max_requests_to_look_ahead(self) -> int:
        """See EngineConfig.enable_lookahead."""
        if self.config.enable_lookahead is not None or not dequantise_is_faster():
            return 0 if self.config.enable_lookahead is False else self.config.max_num_seqs
        from mlx.utils import tree_flatten  # not above: the backend must be the first to import MLX
        num_bytes = sum(array.nbytes for _, array in tree_flatten(self.loaded.model.parameters()))
        return CPU_MAX_LOOKAHEAD if num_bytes < CPU_SMALL_MODEL_BYTES else 0

    def _num_blocks(self) -> int:
        model, size = self.loaded.config, self.config.block_size
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
        params = self._check_params(sampling_params)
        priority, extra_keys = checked_priority(priority), checked_extra_keys(extra_keys)
        request_id = self._check_id(request_id, params.n)
        group = self._make_group(request_id, self.prompts.read(prompt), params, priority, extra_keys)
        leader = group.sequences[0].request  # it computes the prompt for all of them; see _fork
        leader.num_sequences = params.n
        self.scheduler.add_request(leader)
        self._groups[request_id] = group
        self._sequences.update({s.request.request_id: (group, s) for s in group.sequences})
        return request_id

    def _check_params(self, params: SamplingParams | None) -> SamplingParams:
        """The parameters, if this engine can do what they ask for."""
        params = SamplingParams() if params is None else an_instance("sampling_params", params, SamplingParams)
        if params.n > self.config.max_num_seqs:
            raise ValueError(f"n is {params.n}, must be at most max_num_seqs ({self.config.max_num_seqs})")
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            token_ids(name, list(getattr(params, name) or ()), self.loaded.config.vocab_size)
        return params

    def _check_id(self, request_id: str | None, n: int) -> str:
        """The id, or a new one; neither it nor those of its sequences are in use."""
        if request_id is None:
            return next(new for new in map("request-{}".format, self._ids) if self._id_in_use(new, n) is None)
        used = self._id_in_use(an_instance("request_id", request_id, str), n)
        if used is not None:
            raise ValueError(f"request id {used!r} is in use")
        return request_id

    def _id_in_use(self, request_id: str, n: int) -> str | None:
        for wanted in (request_id, *(_sequence_id(request_id, index, n) for index in range(n))):
            if wanted in self._groups or wanted in self._sequences or wanted in self._unseen:
                return wanted
        return None

    def _make_group(self, request_id: str, prompt: PromptTokens, params: SamplingParams, priority: Priority,
                    extra_keys: tuple | None) -> SequenceGroup:
        group = SequenceGroup(request_id, prompt.text, prompt.token_ids, arrived_s=self._clock())
        if params.prompt_logprobs is not None:
            group.prompt_logprobs = [None]
            extra_keys = (*(extra_keys or ()), object())  # which no other request has: nothing is found in the cache
        room = self.max_model_len - len(prompt.token_ids)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        params = replace(params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))
        bad_words = self._bad_words(params)
        for index in range(params.n):
            request = Request(_sequence_id(request_id, index, params.n), prompt.token_ids, params, priority,
                              extra_keys=extra_keys)
            group.sequences.append(SequenceState(request, index, self.tokenizer, bad_words))
        return group

    def _bad_words(self, params: SamplingParams) -> list[tuple[int, ...]]:
        """The token sequences of ``bad_words``: as they stand, and with a space before them."""
        spellings = [spelling for word in params.bad_words for spelling in (word, f" {word.lstrip()}")]
        try:
            sequences = [tuple(self.tokenizer.encode(spelling, add_special_tokens=False)) for spelling in spellings]
        except ValueError as error:
            raise ValueError(f"bad_words: {error}") from None
        return [sequence for sequence in dict.fromkeys(sequences) if sequence]

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is; its text so far is returned. None if there is no such request."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        for sequence in group.sequences:
            if not sequence.finished:
                self._finish(sequence, RequestStatus.FINISHED_ABORTED, "abort")
        self._unseen.pop(request_id, None)  # this output is newer
        self._forget(group)
        return group.to_output()

    def fail_all(self, error: Exception) -> list[RequestOutput]:
        """``step`` itself raised, and no request is to blame: end all of them with the error. The engine is empty then,
        but for outputs of others that were put back.

        What the broken step was to write may have been indexed, so the whole prefix cache is let go.
        """
        outputs = []
        for request_id, group in list(self._groups.items()):
            unfinished = [sequence.output for sequence in group.sequences if not sequence.finished]
            output = self.abort_request(request_id)
            for completion in unfinished:
                completion.finish_reason = "error"
            outputs.append(replace(output, error=f"{type(error).__name__}: {error}"))
        self.kv_cache.finish_step()
        self.kv_cache.reset_prefix_cache()
        return outputs

    def has_unfinished_requests(self) -> bool:
        """Whether a further ``step`` has something to compute, or to tell."""
        return bool(self._groups or self._unseen)

    def put_back(self, outputs: Iterable[RequestOutput]) -> None:
        """Outputs of a step that are somebody else's: the next step returns them, unless it has newer ones."""
        self._unseen.update({output.request_id: output for output in outputs})

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Raises RuntimeError, and forgets nothing, while a request holds blocks."""
        self.kv_cache.reset_prefix_cache()

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

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
        self._note_start(plan)
        if plan.requests:
            self.num_steps += 1
            try:
                try:
                    token_ids, logprobs = self._compute(plan)
                except Exception as error:
                    token_ids, logprobs, errors = self.recovery.compute_apart(plan, error, self._compute)
                    self._drop_ahead()
            except BaseException:  # somebody pressed Ctrl-C; the requests may go on, or be aborted
                self._drop_ahead()
                self.recovery.undo(plan)
                raise
        else:
            self.runner.cache.copy_blocks(plan.copies)  # for blocks that were given back, but may be found
        if self.trace is not None:
            self.trace.record_computed()
        self.scheduler.update_from_output(plan, token_ids)
        self._fork(plan, token_ids)
        touched: dict[str, SequenceGroup] = {}
        now_s = self._clock()
        for request in plan.finished:
            group, sequence = self._sequences[request.request_id]
            sequence.end(request.status.value)
            touched[group.request_id] = group
        for request_id, token_id in token_ids.items():
            group, sequence = self._sequences[request_id]
            reason = sequence.take_token(token_id, logprobs.get(request_id))
            group.note_token(now_s)
            if reason is not None:
                self._finish(sequence, STATUS_OF[reason], reason)
            touched[group.request_id] = group
        for request_id, error in errors.items():  # after the tokens: what others of its request got counts
            group = self._sequences[request_id][0]
            group.error = f"{type(error).__name__}: {error}"
            self._fail(group)
            touched[group.request_id] = group
        outputs = [group.to_output() for group in touched.values()]
        for output in outputs:
            if output.finished:
                self._forget(self._groups[output.request_id])
        if self.trace is not None:
            self.trace.end_step(plan, token_ids)
        if self._unseen:
            unseen, self._unseen = self._unseen, {}
            outputs = list({**unseen, **{output.request_id: output for output in outputs}}.values())
        return outputs

    def _note_start(self, plan: SchedulerOutput) -> None:
        now_s = self._clock()
        for request in plan.requests:
            group = self._sequences[request.request_id][0]
            if group.started_s is None:
                group.started_s = now_s

    def _compute(self, plan: SchedulerOutput) -> tuple[dict[str, int], dict[str, TokenLogprob]]:
        """Next tokens, and their log-probabilities where asked for. Raises ValueError where something is NaN."""
        ahead = self._ahead
        if ahead is not None and self._is_planned(ahead.requests, plan):
            self._ahead = None
            return self._take_tokens(plan.requests, ahead.chosen, ahead.scores), {}
        self._drop_ahead()
        steps, sampled = [], []
        for request in plan.requests:
            end = request.num_computed_tokens
            start = end - plan.num_scheduled_tokens[request.request_id]
            is_last = end == request.num_tokens
            steps.append(RequestStep(request.all_token_ids[start:end], self.kv_cache.get_block_ids(request.request_id),
                                     end, is_last, bool(self._new_prompt_positions(request, start, end))))
            if is_last:
                sampled.append(request)
        logits = self.runner.step(steps, plan.copies)
        if any(step.needs_all_logits for step in steps):
            logits = self._take_prompt_logprobs(plan.requests, steps, logits)
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
        if all(is_plain(row.params) for row in rows):
            chosen, scores = self._choose(logits, rows)
            have_begun = all(request.output_token_ids for request in plan.requests)  # a first token is waited for
            if have_begun and ids == [request.request_id for request in plan.requests]:
                return self._take_tokens(plan.requests, chosen, scores), {}
            return dict(zip(ids, _checked(chosen, scores))), {}
        result = self.sampler.sample(logits, rows)
        return (dict(zip(ids, result.token_ids)),
                {request_id: logprob for request_id, logprob in zip(ids, result.logprobs) if logprob is not None})

    def _new_prompt_positions(self, request: Request, start: int, end: int) -> range:
        """Prompt tokens of which a step from ``start`` to ``end`` tells for the first time how likely they are: the
        logits of each token are about the one after it."""
        known = self._sequences[request.request_id][0].prompt_logprobs
        if known is None:
            return range(0)
        return range(max(start + 1, len(known)), min(end + 1, request.num_prompt_tokens))

    def _take_prompt_logprobs(self, requests: list[Request], steps: list[RequestStep], logits: mx.array) -> mx.array:
        """Note how likely the tokens of prompts are, and return the rows that the sampler wants."""
        row, wanted = 0, []
        for request, step in zip(requests, steps):
            first_row = row
            row += len(step.token_ids) if step.needs_all_logits else int(step.needs_logits)
            if step.needs_logits:
                wanted.append(row - 1)
            if not step.needs_all_logits:
                continue
            start = step.context_len - len(step.token_ids)
            positions = self._new_prompt_positions(request, start, step.context_len)
            first_row += positions.start - 1 - start
            reports = report_logprobs(logits[first_row:first_row + len(positions)],
                                      [request.prompt_token_ids[position] for position in positions],
                                      [request.sampling_params.prompt_logprobs] * len(positions))
            known = self._sequences[request.request_id][0].prompt_logprobs
            known += [None] * (positions.start - len(known))  # there are some only if a prefix was found after all
            known += [with_texts(report, self.tokenizer) for report in reports]
        return logits[mx.array(wanted)] if wanted else logits[:0]

    def _choose(self, logits: mx.array, rows: list[SamplerRow], num_ahead: int = 0) -> tuple[mx.array, mx.array]:
        """A token of each row, and the largest logit, which is not a number if any is not. Nothing is computed yet."""
        if all(row.params.temperature == 0 for row in rows):
            chosen = self.sampler.greedy(logits)
            return chosen, mx.take_along_axis(logits, chosen[:, None], axis=-1)
        largest = mx.where(mx.isnan(logits).any(axis=-1, keepdims=True), mx.nan, logits.max(axis=-1, keepdims=True))
        return self.sampler.draw(logits, rows, num_ahead), largest

    def _take_tokens(self, requests: list[Request], chosen: mx.array, scores: mx.array) -> dict[str, int]:
        """The tokens of a step in which every request gets one; while they are computed, the next step is begun."""
        mx.async_eval(chosen, scores)
        if len(requests) <= self._max_lookahead:
            try:
                self._begin_next(requests, chosen)
            except Exception:  # a guess that fails is none; if there is something wrong, the step itself will show it
                self._drop_ahead()
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
        rows = [self._sequences[request.request_id][1].row for request in requests]
        following = self._choose(self.runner.step_ahead(chosen, spans), rows, num_ahead=1)
        mx.async_eval(following)
        self._ahead = StepAhead(list(requests), spans, *following)

    def _drop_ahead(self) -> None:
        """Forget the step that was begun before it was planned, if there is one: what was guessed did not come.

        What it wrote may not be numbers, which would harm who gets the block next. Masking is no help, since 0 times
        NaN is NaN; so zeros are written over it.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            size = self.config.block_size
            places = [(span.block_ids, divmod(span.context_len - 1, size)) for span in ahead.spans]
            self.runner.cache.clear_slots([(block_ids[index], offset) for block_ids, (index, offset) in places])

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
        if self._ahead is not None and sequence.request in self._ahead.requests:
            self._drop_ahead()
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
    """Tokens, unless the largest logit is no number that one can choose by: then the model is broken, and any token
    would be a lie.

    Nothing is computed here: it would have to wait for the next step, which may have been begun.
    """
    for row, (score,) in enumerate(scores.tolist()):
        if score != score:
            raise ValueError(f"row {row}: the logits contain NaN")
        if math.isinf(score):
            raise ValueError(f"row {row}: " + ("a logit is +inf" if score > 0 else "all logits are -inf"))
    return chosen.tolist()


def _sequence_id(request_id: str, index: int, n: int) -> str:
    """The id under which the scheduler knows continuation ``index`` of a request."""
    return request_id if n == 1 else f"{request_id}#{index}"
