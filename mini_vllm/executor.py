"""From the plan of a step to its tokens: what the model runner computes, and which requests get a token.

    plan ──▶ RequestSteps ──▶ model runner ──▶ logits ──▶ sampler ──▶ StepResult
                                                 └─▶ log-probabilities of prompts

The logits of each token predict the next one. A request needs those of its last token; one with a draft also needs
those of the draft. A request with ``prompt_logprobs`` needs them for all its tokens: a step that computes prompt tokens
4 to 7 scores tokens 5 to 8.

    prompt       t0   t1   t2   t3 │ t4   t5   t6   t7 │ t8
    this step                      │ ●    ●    ●    ●  │
    it scores                      │      t5   t6   t7 │ t8
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, cast

from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.lookahead import LookAhead
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.parts import KVCacheManagerPart, ModelRunnerPart, SamplerPart, VerifierPart
from mini_vllm.request import Request, TokenLogprob
from mini_vllm.sampler import report_logprobs, token_logprobs
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import LiveRequests, SequenceGroup, with_texts
from mini_vllm.speculation.drafts import Verifier


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


class Executor:
    """Computes what the scheduler has planned.

    It changes no request, so that a failed step can be computed again: the tokens are in the result. Only
    log-probabilities of a prompt are stored in its group at once; a second computation gives the same ones.
    """

    def __init__(self, kv_cache: KVCacheManagerPart, runner: ModelRunnerPart, sampler: SamplerPart,
                 lookahead: LookAhead, live: LiveRequests, tokenizer: Tokenizer, verifier: VerifierPart | None = None
                 ) -> None:
        self._kv_cache, self._runner, self._sampler = kv_cache, runner, sampler
        self._lookahead, self._live, self._tokenizer = lookahead, live, tokenizer
        self._verifier = Verifier() if verifier is None else verifier

    def compute(self, plan: SchedulerOutput) -> StepResult:
        """Return the next tokens, and their log-probabilities where requested.

        Raise ValueError if there is NaN among keys, values or logits, or if the largest logit of a row is infinite.
        Errors of the model are passed on.
        """
        ids, drafts = [request.request_id for request in plan.requests], plan.drafts
        ahead = self._lookahead.take(plan)
        if ahead is not None:
            self._lookahead.begin_next(plan.requests, ahead.rows, ahead.chosen)
            return self._result(ids, ahead.chosen.wait(), [None] * len(ids), drafts)
        logits = self._compute_logits(plan, drafts)
        names, rows, sources = self._rows_to_choose(plan.requests, drafts)
        if not rows:
            mx.eval(self._runner.cache.pools)  # MLX is lazy and no token is read: compute the K/V now
            return StepResult()
        if sources != list(range(len(sources))):
            logits = logits[mx.array(sources)]
        chosen = self._sampler.choose(logits, rows)
        if names == ids:  # one token for each request
            self._lookahead.begin_next(plan.requests, rows, chosen)
        tokens = chosen.wait()
        return self._result(names, tokens, token_logprobs(logits, tokens, rows), drafts)

    def _compute_logits(self, plan: SchedulerOutput, drafts: Mapping[str, list[int]]) -> mx.array:
        """Return the logits after the last token of each request that needs a next one, and after those of its draft.

        Log-probabilities of prompts are stored on the way.
        """
        steps = [self._request_step(request, plan.num_scheduled_tokens[request.request_id],
                                    drafts.get(request.request_id, [])) for request in plan.requests]
        logits = self._runner.step(steps, plan.copies)
        if any(step.needs_all_logits for step in steps):
            groups = [self._live.group_of(request.request_id) for request in plan.requests]
            logits = take_prompt_logprobs(plan.requests, groups, steps, logits, self._tokenizer, drafts)
        return logits

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
        drawn: dict[str, list[FurtherToken | ValueError]] = {}
        for name, token, logprob in zip(names, tokens, logprobs):
            drawn.setdefault(name, []).append(token if isinstance(token, ValueError) else FurtherToken(token, logprob))
        result = StepResult()
        for name, along_draft in drawn.items():
            if isinstance(along_draft[0], ValueError):
                result.errors[name] = along_draft[0]
                continue
            good = cast(list[FurtherToken], list(takewhile(lambda each: isinstance(each, FurtherToken), along_draft)))
            if len(good) > 1:
                good = good[:len(self._verifier.accept(drafts[name], [each.token_id for each in good]))]
            if len(good) > 1:
                result.further[name] = good[1:]
            result.token_ids[name] = good[0].token_id
            if good[0].logprob is not None:
                result.logprobs[name] = good[0].logprob
        return result


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
