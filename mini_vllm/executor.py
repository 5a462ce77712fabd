"""From the plan of a step to its tokens: what the model runner computes, and which requests get a token.

    plan ──▶ RequestSteps ──▶ model runner ──▶ logits ──▶ sampler ──▶ StepResult
                                                 └─▶ log-probabilities of prompts

The logits of each token predict the next one. A request needs those of its last token; one with a draft also needs
those of the draft. A request with ``prompt_logprobs`` needs them for all its tokens: a step that computes prompt tokens
4 to 7 scores tokens 5 to 8.

    prompt       t0   t1   t2   t3 │ t4   t5   t6   t7 │ t8
    this step                      │ ●    ●    ●    ●  │
    it scores                      │      t5   t6   t7 │ t8

**A step that fails.** A step writes the K/V of all its requests at once, and full blocks are findable from the moment
it is planned. So when a step fails, none of the K/V that it was to write is known to be there:

    a step of A, B, C and D fails; D shares a block that B was to write

    A alone: works   its token counts
    B alone: fails   it ends with the error; those of its blocks that no other request holds are removed from the
                     index and cleared
    C alone: works   its token counts
    D                is not tried: it is preempted, and computes what it needs again

**Look-ahead.** Between two steps the device would wait for Python to look at the tokens and plan the next step. But
when all requests decode, the next step is easy to guess: every request computes one more token, except those that get
their last token now, and no request joins. So ``LookAhead`` starts the next step while its input tokens are still
being computed:

    device   ── step 1 ──┬── step 2 ──┬── step 3 ──┬──
    Python      begin 2  │  tokens 1, │  tokens 2, │
                         │  begin 3   │  begin 4   │

If the step that is then planned is the one that was started, its tokens are used. If not, it is dropped: it has written
K/V only into slots whose tokens do not count as computed. These slots are overwritten when the tokens are computed, and
``drop`` zeroes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mini_vllm.attention import slot_mapping, token_positions
from mini_vllm.backend import mx
from mini_vllm.engine_frame import discard_blocks
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.parts import ModelRunnerPart, SamplerPart, SchedulerPart, VerifierPart
from mini_vllm.request import Request, TokenLogprob
from mini_vllm.sampler import ChosenTokens, report_logprobs, token_logprobs
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import LiveRequests, SequenceGroup, with_texts
from mini_vllm.speculation.speculation import Speculation


class FurtherToken(NamedTuple):
    """A token that a request gets in the same step as the one before it."""

    token_id: int
    #: None where the request did not ask for it.
    logprob: TokenLogprob | None


@dataclass
class StepResult:
    """The result of a step, by the ids that the scheduler knows."""

    token_ids: dict[str, int] = field(default_factory=dict)
    #: For tokens of ``token_ids`` whose request asked for it.
    logprobs: dict[str, TokenLogprob] = field(default_factory=dict)
    #: For requests that cannot continue.
    errors: dict[str, Exception] = field(default_factory=dict)
    #: The tokens after those of ``token_ids``, for requests whose drafts were accepted.
    further: dict[str, list[FurtherToken]] = field(default_factory=dict)

    def update(self, other: StepResult) -> None:
        self.token_ids.update(other.token_ids)
        self.further.update(other.further)
        self.logprobs.update(other.logprobs)
        self.errors.update(other.errors)


@dataclass(frozen=True)
class StartedStep:
    """A step that the device computes. It gives each of ``names``, the ids of sequences, a token."""

    names: list[str]
    #: The sampler's row for each token. A sequence with a draft has several.
    rows: list[SamplerRow]
    chosen: ChosenTokens
    #: A row for each token; may be None if no log-probability is asked for.
    logits: mx.array | None


class Executor:
    """Computes what the scheduler has planned.

    Unless a step fails, it changes no request, so that a failed step can be computed again: the tokens are in the
    result. Only log-probabilities of a prompt are stored in its group at once; a second computation gives the same
    ones.
    """

    def __init__(self, scheduler: SchedulerPart, runner: ModelRunnerPart, sampler: SamplerPart, lookahead: LookAhead,
                 live: LiveRequests, tokenizer: Tokenizer, verifier: VerifierPart) -> None:
        self._scheduler, self._kv_cache = scheduler, scheduler.kv_cache
        self._runner, self._sampler, self._lookahead = runner, sampler, lookahead
        self._live, self._tokenizer, self._verifier = live, tokenizer, verifier

    def compute(self, plan: SchedulerOutput) -> StepResult:
        """Return the next tokens, and their log-probabilities where requested.

        If the step fails, compute each request alone. Requests that also fail alone are in ``errors``.
        """
        try:
            return self._compute(plan)
        except Exception as error:
            result = self._compute_apart(plan, error)
            self._lookahead.drop()
            return result

    def _compute(self, plan: SchedulerOutput) -> StepResult:
        """Compute a step.

        Raise ValueError if there is NaN among keys, values or logits, or if the largest logit of a row is infinite.
        Errors of the model are passed on.
        """
        step = self._lookahead.take(plan) or self._start(plan)
        if step is None:
            return StepResult()
        self._lookahead.begin_next(plan.requests, step)
        tokens = step.chosen.wait()
        return self._result(step.names, tokens, token_logprobs(step.logits, tokens, step.rows), plan.drafts)

    def _start(self, plan: SchedulerOutput) -> StartedStep | None:
        """Start a step. If no request gets a token, compute it and return None."""
        steps = [self._request_step(request, plan.num_scheduled_tokens[request.request_id],
                                    plan.drafts.get(request.request_id, [])) for request in plan.requests]
        logits = self._runner.step(steps, plan.copies)
        if any(step.needs_all_logits for step in steps):
            groups = [self._live.group_of(request.request_id) for request in plan.requests]
            logits = take_prompt_logprobs(plan.requests, groups, steps, logits, self._tokenizer, plan.drafts)
        names, rows, sources = self._rows_to_choose(plan.requests, plan.drafts)
        if not rows:
            mx.eval(self._runner.cache.pools)  # MLX is lazy and no token is read: compute the K/V now
            return None
        if sources != list(range(len(sources))):
            logits = logits[mx.array(sources)]
        return StartedStep(names, rows, self._sampler.choose(logits, rows), logits)

    def _request_step(self, request: Request, num_tokens: int, draft: list[int]) -> RequestStep:
        """Return the step of the ``num_tokens`` scheduled tokens and the draft after them.

        ``num_computed_tokens`` already includes the scheduled tokens. The logits of a draft are all needed.
        """
        end = request.num_computed_tokens
        start = end - num_tokens
        scored = newly_scored_positions(self._live.group_of(request.request_id), start, end)
        return RequestStep([*request.all_token_ids[start:end], *draft],
                           self._kv_cache.get_block_ids(request.request_id), end + len(draft),
                           needs_logits=end == request.num_tokens, needs_all_logits=bool(scored or draft))

    def _rows_to_choose(self, requests: Iterable[Request], drafts: Mapping[str, list[int]]
                        ) -> tuple[list[str], list[SamplerRow], list[int]]:
        """Return what to choose a token for: the id of a sequence, its row, and the number of its row of logits.

        A sequence with a draft has a row for each drafted token, too. A prompt that is about to be forked has one row
        of logits for all its sequences.
        """
        names: list[str] = []
        rows: list[SamplerRow] = []
        sources: list[int] = []
        for request in requests:
            if request.num_computed_tokens < request.num_tokens:
                continue  # in the middle of its prompt
            first = sources[-1] + 1 if sources else 0
            if request.num_sequences > 1:
                sequences = self._live.group_of(request.request_id).sequences
                names += [sequence.request.request_id for sequence in sequences]
                rows += [sequence.row for sequence in sequences]
                sources += [first] * len(sequences)
            else:
                row, draft = self._live.sequence(request.request_id).row, drafts.get(request.request_id)
                own = self._verifier.rows(row, draft) if draft else [row]
                names += [request.request_id] * len(own)
                rows += own
                sources += range(first, first + len(own))
        return names, rows, sources

    def _result(self, names: Sequence[str], tokens: Sequence[int | ValueError],
                logprobs: Sequence[TokenLogprob | None], drafts: Mapping[str, list[int]]) -> StepResult:
        """Return the tokens by request. Of the tokens drawn along a draft, those count that the verifier accepts.

        If the rules leave a request no possible token, it gets an error. If that happens only after some tokens of its
        draft, it gets the tokens before, and no error yet.
        """
        drawn: dict[str, list[FurtherToken]] = {}
        failed: dict[str, ValueError] = {}
        for name, token, logprob in zip(names, tokens, logprobs):
            if isinstance(token, ValueError):
                failed.setdefault(name, token)
            elif name not in failed:
                drawn.setdefault(name, []).append(FurtherToken(token, logprob))
        result = StepResult(errors={name: error for name, error in failed.items() if name not in drawn})
        for name, good in drawn.items():
            if len(good) > 1:
                good = good[:len(self._verifier.accept(drafts[name], [each.token_id for each in good]))]
                result.further[name] = good[1:]
            result.token_ids[name] = good[0].token_id
            if good[0].logprob is not None:
                result.logprobs[name] = good[0].logprob
        return result

    # ---- a step that failed

    def _compute_apart(self, plan: SchedulerOutput, error: Exception) -> StepResult:
        """Compute the requests of a step that raised ``error`` one by one, in the order of admission.

        In that order, a request that shares a block follows the request that was to write it in this step. Drafts are
        not computed again: a wrong guess may be what failed.
        """
        result = StepResult()
        misled: list[Request] = []
        unwritten: set[int] = set()
        self._runner.cache.copy_blocks(plan.copies)
        self._clear_drafts(plan)
        for request in sorted(plan.requests, key=self._scheduler.running.index):
            num_new = plan.num_scheduled_tokens[request.request_id]
            if unwritten.intersection(self._kv_cache.get_block_ids(request.request_id)):
                misled.append(request)
            elif len(plan.requests) == 1 and not plan.drafts:
                result.errors[request.request_id] = error
            else:
                try:
                    result.update(self._compute(SchedulerOutput({request.request_id: num_new}, [request])))
                    continue
                except Exception as own_error:
                    result.errors[request.request_id] = own_error
            request.num_computed_tokens = max(request.num_computed_tokens - num_new, 0)
            unwritten.update(self._kv_cache.forget_unwritten(request))
        self._kv_cache.finish_step()
        for request in plan.requests:  # no token in an unwritten block, or after one, counts as computed
            table = self._kv_cache.get_block_ids(request.request_id)
            num_good = next((i for i, block_id in enumerate(table) if block_id in unwritten), len(table))
            request.num_computed_tokens = min(request.num_computed_tokens, num_good * self._kv_cache.block_size)
        for request in reversed(misled):
            self._scheduler.preempt(request)
        discard_blocks(unwritten, self._kv_cache, self._runner.cache)
        plan.preempted.extend(misled)
        return result

    def _clear_drafts(self, plan: SchedulerOutput) -> None:
        """Clear the slots after the contexts, in which a failed step may have left NaN for a guess."""
        drafting = [request for request in plan.requests if request.request_id in plan.drafts]
        if drafting:
            lengths = [len(plan.drafts[request.request_id]) for request in drafting]
            context_lens = [request.num_computed_tokens + length for request, length in zip(drafting, lengths)]
            starts = [0, *np.cumsum(lengths).tolist()]
            tables = [self._kv_cache.get_block_ids(request.request_id) for request in drafting]
            self._runner.cache.clear_slots(slot_mapping(tables, token_positions(context_lens, starts), starts,
                                                self._kv_cache.block_size))


# ---- log-probabilities of prompts


def newly_scored_positions(group: SequenceGroup, start: int, end: int) -> range:
    """Return the positions of the prompt tokens that a step from ``start`` to ``end`` scores, and no earlier step
    has."""
    if group.prompt_logprobs is None:
        return range(0)
    return range(max(start + 1, len(group.prompt_logprobs)), min(end + 1, len(group.prompt_token_ids)))


def take_prompt_logprobs(requests: Sequence[Request], groups: Sequence[SequenceGroup], steps: Sequence[RequestStep],
                         logits: mx.array, tokenizer: Tokenizer, drafts: Mapping[str, list[int]] | None = None
                         ) -> mx.array:
    """Store the log-probabilities of the prompts' tokens in ``groups``, and return the rows that the sampler needs.

    ``logits`` are those of a whole step, as the model runner returns them; each request has a group and a step. The
    sampler also needs the rows of ``drafts``.
    """
    end_row = 0
    wanted: list[int] = []
    for request, group, step in zip(requests, groups, steps):
        first_row = end_row
        end_row += len(step.token_ids) if step.needs_all_logits else int(step.needs_logits)
        if step.needs_logits:
            wanted += range(end_row - 1 - len((drafts or {}).get(request.request_id, ())), end_row)
        num_top, known = request.sampling_params.prompt_logprobs, group.prompt_logprobs
        start = step.context_len - len(step.token_ids)
        positions = newly_scored_positions(group, start, step.context_len)
        if not positions or num_top is None or known is None:
            continue
        first_row += positions.start - 1 - start
        reports = report_logprobs(logits[first_row:first_row + len(positions)],
                                  [request.prompt_token_ids[position] for position in positions],
                                  [num_top] * len(positions))
        known += [None] * (positions.start - len(known))  # adds none, unless a replaced cache ignores extra_keys
        known += [with_texts(report, tokenizer) for report in reports]
    return logits[mx.array(wanted)] if wanted else logits[:0]


# ---- look-ahead


@dataclass(frozen=True)
class StepAhead(StartedStep):
    """A step that was started before it was planned. It computes one token for each of ``requests``."""

    requests: list[Request]
    #: It writes into the slot of the last token of each context (``block_tables`` and ``context_lens``).
    block_tables: list[list[int]]
    context_lens: list[int]

    def is_planned_by(self, plan: SchedulerOutput) -> bool:
        return (plan.requests == self.requests and not plan.copies and not plan.drafts
                and all(num_tokens == 1 for num_tokens in plan.num_scheduled_tokens.values()))


class LookAhead:
    """Holds at most one step that was started early, in ``pending``."""

    def __init__(self, max_requests: int, scheduler: SchedulerPart, runner: ModelRunnerPart, sampler: SamplerPart,
                 speculation: Speculation | None) -> None:
        """Create it without a pending step.

        Steps of more than ``max_requests`` are not started early; 0 starts none. Steps in which drafts are expected to
        gain more are not started early either.
        """
        self.max_requests, self.max_num_seqs = max_requests, scheduler.max_num_seqs
        self._scheduler, self._runner, self._sampler, self._speculation = scheduler, runner, sampler, speculation
        self.pending: StepAhead | None = None
        #: Started steps that were not used: another step was planned, or the device raised an error.
        self.num_dropped = 0

    def begin_next(self, requests: list[Request], step: StartedStep) -> None:
        """Start the step after ``step``, if that gives each of ``requests`` one token and if it is wise.

        The next step must not delay a request's first token, and it can use only tokens that depend on no rule.
        """
        rows, chosen = step.rows, step.chosen
        if len(requests) > self.max_requests or [request.request_id for request in requests] != step.names or not all(
                row.is_plain and request.output_token_ids for request, row in zip(requests, rows)):
            return
        indices = [index for index, request in enumerate(requests) if not _ends_now(request)]
        staying = [requests[index] for index in indices]
        if self._is_likely(staying):
            token_ids = chosen.token_ids if len(staying) == len(requests) else chosen.token_ids[mx.array(indices)]
            self._begin(staying, [rows[index] for index in indices], token_ids)

    def _is_likely(self, staying: list[Request]) -> bool:
        """Check whether at least one request continues and no waiting request could be admitted."""
        has_seat = sum(request.num_sequences for request in staying) < self.max_num_seqs
        return (bool(staying) and not (has_seat and self._scheduler.waiting)
                and not (self._speculation and self._speculation.beats_lookahead(staying)))

    def _begin(self, requests: list[Request], rows: list[SamplerRow], token_ids: mx.array) -> None:
        """Allocate a slot for each of ``requests``, and start the step if all have one and no block must be copied.

        Otherwise the slots allocated so far are kept: the next plan needs the same ones.
        """
        kv_cache = self._scheduler.kv_cache
        for request in requests:
            if kv_cache.allocate_slots(request, 1) is None or kv_cache.block_pool.pending_copies:
                return
        block_tables = [kv_cache.get_block_ids(request.request_id) for request in requests]
        context_lens = [request.num_computed_tokens + 1 for request in requests]
        try:
            logits = self._runner.step_ahead(token_ids, block_tables, context_lens)
            following = self._sampler.choose(logits, rows, num_ahead=1)
        except RuntimeError:  # for example, the device is out of memory; the step itself will show it
            self.num_dropped += 1
            return
        self.pending = StepAhead([request.request_id for request in requests], rows, following, None, requests,
                                 block_tables, context_lens)

    def has_started(self, plan: SchedulerOutput) -> bool:
        """Check whether ``plan`` is the step that was started."""
        return self.pending is not None and self.pending.is_planned_by(plan)

    def take(self, plan: SchedulerOutput) -> StepAhead | None:
        """Return the step that was started if ``plan`` is that step. Otherwise drop it and return None."""
        if not self.has_started(plan):
            self.drop()
        ahead, self.pending = self.pending, None
        return ahead

    def drop(self) -> None:
        """Drop the step that was started, if there is one: the guess was wrong.

        It may have written NaN, which would spoil the next request that gets the block. Masking does not help, since 0
        times NaN is NaN, so its slots are zeroed.
        """
        ahead, self.pending = self.pending, None
        if ahead is not None:
            self.num_dropped += 1
            ahead.chosen.end()
            slots = slot_mapping(ahead.block_tables, np.array(ahead.context_lens) - 1, range(len(ahead.requests) + 1),
                                 self._scheduler.kv_cache.block_size)
            self._runner.cache.clear_slots(slots)

    def drop_step_of(self, request: Request) -> None:
        """Drop the step that was started if it computes a token of ``request``, which ends now."""
        if self.pending is not None and request in self.pending.requests:
            self.drop()


def _ends_now(request: Request) -> bool:
    """Check whether the token that is being computed is the request's last, whatever it is."""
    return len(request.output_token_ids) + 1 >= (request.sampling_params.max_tokens or math.inf)
