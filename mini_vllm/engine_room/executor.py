"""From the plan of a step to its tokens: what the model runner computes, and which requests get a token.

    plan ──▶ RequestSteps ──▶ model runner ──▶ logits ──▶ sampler ──▶ StepResult
                                                 └─▶ log-probabilities of prompts
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mini_vllm.backend import mx
from mini_vllm.engine_room.prompt_logprobs import newly_scored_positions, take_prompt_logprobs
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.lookahead import LookAhead, choose_tokens
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Request, TokenLogprob
from mini_vllm.sampler import Sampler
from mini_vllm.sampling.by_rules import NO_TOKEN_LEFT, NoTokenLeftError
from mini_vllm.sampling.row import SamplerRow, is_plain
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import LiveRequests, SequenceState


@dataclass
class StepResult:
    """The result of a step, by the ids that the scheduler knows."""

    token_ids: dict[str, int] = field(default_factory=dict)
    #: For tokens whose request asked for it.
    logprobs: dict[str, TokenLogprob] = field(default_factory=dict)
    #: For requests that cannot continue.
    errors: dict[str, Exception] = field(default_factory=dict)

    def update(self, other: StepResult) -> None:
        self.token_ids.update(other.token_ids)
        self.logprobs.update(other.logprobs)
        self.errors.update(other.errors)


class Executor:
    """Computes what the scheduler has planned.

    It changes no request, so that a failed step can be computed again: the tokens are in the result. Only
    log-probabilities of a prompt are stored in its group at once; a second computation gives the same ones.
    """

    def __init__(self, kv_cache: KVCacheManager, runner: ModelRunner, sampler: Sampler, lookahead: LookAhead,
                 live: LiveRequests, tokenizer: Tokenizer) -> None:
        self._kv_cache, self._runner, self._sampler = kv_cache, runner, sampler
        self._lookahead, self._live, self._tokenizer = lookahead, live, tokenizer

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
        steps = [self._request_step(request, plan.num_scheduled_tokens[request.request_id])
                 for request in plan.requests]
        logits = self._runner.step(steps, plan.copies)
        if any(step.needs_all_logits for step in steps):
            groups = [self._live.group_of(request.request_id) for request in plan.requests]
            logits = take_prompt_logprobs(plan.requests, groups, steps, logits, self._tokenizer)
        return logits

    def _request_step(self, request: Request, num_tokens: int) -> RequestStep:
        """Return the step of the ``num_tokens`` scheduled tokens; ``num_computed_tokens`` already includes them."""
        end = request.num_computed_tokens
        start = end - num_tokens
        scored = newly_scored_positions(self._live.group_of(request.request_id), start, end)
        return RequestStep(request.all_token_ids[start:end], self._kv_cache.get_block_ids(request.request_id), end,
                           needs_logits=end == request.num_tokens, needs_all_logits=bool(scored))

    def _sample(self, plan: SchedulerOutput, wanting: list[Request], logits: mx.array) -> StepResult:
        """Sample a token for every sequence of the requests ``wanting`` one; ``logits`` has a row for each request."""
        sequences, sources = self._sequences_of(wanting)
        if len(sequences) > len(wanting):
            logits = logits[mx.array(sources)]
        ids, rows = _ids(each.request for each in sequences), [each.row for each in sequences]
        if not all(is_plain(row.params) for row in rows):
            return self._sample_by_rules(ids, rows, logits)
        chosen = choose_tokens(self._sampler, logits, rows)
        # Looking ahead must not delay a request's first token.
        have_begun = all(request.output_token_ids for request in plan.requests)
        if have_begun and ids == _ids(plan.requests):
            self._lookahead.begin_next(plan.requests, chosen)
        return StepResult(dict(zip(ids, chosen.wait())))

    def _sample_by_rules(self, ids: list[str], rows: list[SamplerRow], logits: mx.array) -> StepResult:
        """Sample a token for every row. Rows whose own parameters leave no token get an error; the others continue."""
        errors: dict[str, Exception] = {}
        try:
            result = self._sampler.sample(logits, rows)
        except NoTokenLeftError as error:
            errors = {ids[index]: ValueError(NO_TOKEN_LEFT) for index in error.rows}
            staying = [index for index in range(len(rows)) if ids[index] not in errors]
            result = self._sampler.sample(logits[mx.array(staying, dtype=mx.int32)], [rows[index] for index in staying])
            ids = [ids[index] for index in staying]
        return StepResult(dict(zip(ids, result.token_ids)), {
            request_id: logprob for request_id, logprob in zip(ids, result.logprobs) if logprob is not None}, errors)

    def _sequences_of(self, requests: list[Request]) -> tuple[list[SequenceState], list[int]]:
        """Return the sequences that get a token, and the row of logits for each.

        A prompt that is about to be forked provides the row for all its sequences.
        """
        sequences: list[SequenceState] = []
        sources: list[int] = []
        for row, request in enumerate(requests):
            own = (self._live.group_of(request.request_id).sequences if request.num_sequences > 1
                   else [self._live.sequence(request.request_id)])
            sequences += own
            sources += [row] * len(own)
        return sequences, sources


def _ids(requests: Iterable[Request]) -> list[str]:
    return [request.request_id for request in requests]
