"""From the plan of a step to its tokens: what the model runner computes, and which requests get a token.

    plan ──▶ RequestSteps ──▶ model runner ──▶ logits ──▶ sampler ──▶ StepResult
                                                 └─▶ log-probabilities of prompts
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mini_vllm.backend import mx
from mini_vllm.engine_room.prompt_logprobs import newly_scored_positions, take_prompt_logprobs
from mini_vllm.lookahead import ChosenTokens, LookAhead, choose_tokens
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.parts import KVCacheManagerPart, ModelRunnerPart, SamplerPart, VerifierPart
from mini_vllm.request import Request, TokenLogprob
from mini_vllm.sampling.by_rules import NO_TOKEN_LEFT, NoTokenLeftError
from mini_vllm.sampling.logit_rules import keep_allowed
from mini_vllm.sampling.row import SamplerRow, draws_plainly, is_plain
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import LiveRequests
from mini_vllm.speculation.verifier import Verifier


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
        chosen = self._lookahead.take(plan)
        if chosen is not None:
            self._lookahead.begin_next(plan.requests, chosen)
            return StepResult(dict(zip(_ids(plan.requests), chosen.wait())))
        logits = self._compute_logits(plan)
        wanting = [request for request in plan.requests if request.num_computed_tokens == request.num_tokens]
        if not wanting:
            mx.eval(self._runner.cache.pools)  # MLX is lazy and no token is read: compute the K/V now
            return StepResult()
        return self._sample(plan, wanting, logits)

    def _compute_logits(self, plan: SchedulerOutput) -> mx.array:
        """Return the logits of each request that needs a next token.

        Log-probabilities of prompts are stored on the way.
        """
        drafts = [plan.drafts.get(request.request_id, []) for request in plan.requests]
        steps = [self._request_step(request, plan.num_scheduled_tokens[request.request_id], draft)
                 for request, draft in zip(plan.requests, drafts)]
        logits = self._runner.step(steps, plan.copies)
        if any(step.needs_all_logits for step in steps):
            groups = [self._live.group_of(request.request_id) for request in plan.requests]
            logits = take_prompt_logprobs(plan.requests, groups, steps, logits, self._tokenizer,
                                          [len(draft) for draft in drafts])
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

    def _sample(self, plan: SchedulerOutput, wanting: list[Request], logits: mx.array) -> StepResult:
        """Sample a token for every sequence of the requests ``wanting`` one, and after every token of a draft.

        ``logits`` has a row for each of these requests, and one for each token of its draft.
        """
        drafts = plan.drafts
        wanted, sources = self._wanted_rows(wanting, drafts)
        if sources != list(range(len(sources))):
            logits = logits[mx.array(sources)]
        rows = [each.row for each in wanted]
        if not all(is_plain(row.params) for row in rows):
            return self._sample_by_rules(wanted, logits, drafts)
        chosen = choose_tokens(self._sampler, logits, rows)
        # Looking ahead must not delay a request's first token.
        have_begun = all(request.output_token_ids for request in plan.requests)
        if have_begun and [each.request_id for each in wanted] == _ids(plan.requests):
            self._lookahead.begin_next(plan.requests, chosen)
        return self._result(wanted, chosen.wait(), [None] * len(wanted), drafts)

    def _sample_by_rules(self, wanted: list[_WantedRow], logits: mx.array, drafts: dict[str, list[int]]) -> StepResult:
        """Sample a token for every row by its rules. If there are grammars, rows without other rules are drawn at once.

        The masks of grammars are looked up while the device computes. A request that no token is left for gets an
        error. If that happens only after some tokens of its draft, it gets the tokens before, and no error yet.
        """
        mx.async_eval(logits)
        problems = _Problems()
        problems.look_up_masks(wanted)
        has_grammar = any(each.row.cursor is not None for each in wanted)
        at_once = [has_grammar and draws_plainly(each.row.params) for each in wanted]
        plain = problems.without(wanted, [index for index, is_so in enumerate(at_once) if is_so])
        others = [index for index, is_so in enumerate(at_once) if not is_so]
        chosen = self._choose(wanted, plain, logits) if plain else None
        try:
            sampled = self._sample_rows(wanted, problems.without(wanted, others), logits)
        except NoTokenLeftError as error:
            asked = problems.without(wanted, others)
            for index in error.rows:
                problems.add(wanted[asked[index]], ValueError(NO_TOKEN_LEFT))
            sampled = self._sample_rows(wanted, problems.without(wanted, others), logits)
        if chosen is not None:
            sampled.update((index, FurtherToken(token_id, None)) for index, token_id in zip(plain, chosen.wait()))
        order = sorted(sampled)
        result = self._result([wanted[index] for index in order], [sampled[index].token_id for index in order],
                              [sampled[index].logprob for index in order], drafts)
        result.errors = problems.errors()
        return result

    def _choose(self, wanted: list[_WantedRow], indices: list[int], logits: mx.array) -> ChosenTokens:
        """Begin to choose tokens for some of the rows. Only the logits of rows with a grammar are masked."""
        rows = [wanted[index].row for index in indices]
        logits = logits[mx.array(indices)] if len(indices) < len(wanted) else mx.array(logits)
        masks = {place: mask for place, row in enumerate(rows)
                 if row.cursor is not None and (mask := row.cursor.allowed()) is not None}
        if masks:
            places = mx.array(list(masks))
            logits[places] = keep_allowed(logits[places], list(masks.values()))
        chosen = choose_tokens(self._sampler, logits, rows)
        chosen.begin()
        return chosen

    def _sample_rows(self, wanted: list[_WantedRow], indices: list[int], logits: mx.array) -> dict[int, FurtherToken]:
        """Sample a token for some of the rows by their rules. Return the tokens by the indices of their rows."""
        if not indices:
            return {}
        if len(indices) < len(wanted):
            logits = logits[mx.array(indices, dtype=mx.int32)]
        output = self._sampler.sample(logits, [wanted[index].row for index in indices])
        return {index: FurtherToken(token_id, logprob)
                for index, token_id, logprob in zip(indices, output.token_ids, output.logprobs)}

    def _wanted_rows(self, requests: list[Request], drafts: dict[str, list[int]]) -> tuple[list[_WantedRow], list[int]]:
        """Return the rows that get a token, and the row of logits for each.

        A prompt that is about to be forked provides the row for all its sequences.
        """
        wanted: list[_WantedRow] = []
        sources: list[int] = []
        num_rows = 0
        for request in requests:
            if request.num_sequences > 1:
                own = [_WantedRow(sequence.request.request_id, sequence.row)
                       for sequence in self._live.group_of(request.request_id).sequences]
                sources += [num_rows] * len(own)
                num_rows += 1
            else:
                row, draft = self._live.sequence(request.request_id).row, drafts.get(request.request_id, [])
                rows = self._verifier.rows(row, draft) if draft else [row]
                own = [_WantedRow(request.request_id, each, num) for num, each in enumerate(rows)]
                sources += range(num_rows, num_rows + len(own))
                num_rows += len(own)
            wanted += own
        return wanted, sources

    def _result(self, wanted: list[_WantedRow], token_ids: list[int], logprobs: Sequence[TokenLogprob | None],
                drafts: dict[str, list[int]]) -> StepResult:
        """Return the tokens by request. Of the tokens drawn along a draft, those count that the verifier accepts."""
        drawn: dict[str, list[FurtherToken]] = {}
        for each, token_id, logprob in zip(wanted, token_ids, logprobs):
            drawn.setdefault(each.request_id, []).append(FurtherToken(token_id, logprob))
        result = StepResult()
        for request_id, tokens in drawn.items():
            if len(tokens) > 1:
                accepted = self._verifier.accept(drafts[request_id], [each.token_id for each in tokens])
                tokens = tokens[:len(accepted)]
                if len(tokens) > 1:
                    result.further[request_id] = tokens[1:]
            result.token_ids[request_id] = tokens[0].token_id
            if tokens[0].logprob is not None:
                result.logprobs[request_id] = tokens[0].logprob
        return result


class _WantedRow(NamedTuple):
    """A row of logits from which a token is sampled, for the sequence with this id."""

    request_id: str
    row: SamplerRow
    #: The number of drafted tokens before the sampled one.
    num_drafted: int = 0


class _Problems:
    """The requests for which no token can be drawn: after how many tokens of their draft, and why."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, Exception]] = {}

    def add(self, row: _WantedRow, error: Exception) -> None:
        known = self._first.get(row.request_id)
        if known is None or row.num_drafted < known[0]:
            self._first[row.request_id] = row.num_drafted, error

    def look_up_masks(self, wanted: list[_WantedRow]) -> None:
        """Look up the masks of all rows, which their grammars then keep. Add the rows for which that fails."""
        for each in wanted:
            if each.row.cursor is not None:
                try:
                    mask = each.row.cursor.allowed()
                except ValueError as error:
                    self.add(each, error)
                else:
                    if mask is not None and not mask.any():
                        self.add(each, ValueError(NO_TOKEN_LEFT))

    def without(self, wanted: list[_WantedRow], indices: list[int]) -> list[int]:
        """Return the indices of rows from which a token can be drawn."""
        return [index for index in indices
                if wanted[index].num_drafted < self._first.get(wanted[index].request_id, (math.inf, None))[0]]

    def errors(self) -> dict[str, Exception]:
        """Return the errors of requests that get no token at all."""
        return {request_id: error for request_id, (num_drafted, error) in self._first.items() if num_drafted == 0}


def _ids(requests: Iterable[Request]) -> list[str]:
    return [request.request_id for request in requests]
