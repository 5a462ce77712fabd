"""``sample`` for a sampler that has only ``draw``: logits are adjusted before, log-probabilities reported after.

    raw logits ─┬─▶ adjust: bias, penalties, forbidden tokens ─▶ draw ─▶ token
                └─▶ log-softmax ─▶ logprobs of that token, by the model's own distribution
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from mini_vllm.backend import mx
from mini_vllm.request import TokenLogprob
from mini_vllm.sampling.logit_rules import adjust, check_token_ids
from mini_vllm.sampling.logprobs import report_logprobs
from mini_vllm.sampling.row import SamplerRow

#: The error of a request whose own parameters contradict each other.
NO_TOKEN_LEFT = ("allowed_token_ids, bad_words, logit_bias, min_tokens, stop_token_ids and structured_outputs leave no "
                 "possible next token")


@dataclass
class SamplerOutput:
    """The next token of each row, and its log-probability."""

    token_ids: list[int]
    #: None where the request did not ask for it.
    logprobs: list[TokenLogprob | None]


class NoTokenLeftError(ValueError):
    """The parameters of some rows leave no token to draw; the model and the other rows are fine."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"row {rows[0]}: all logits are -inf after logit_bias, allowed_token_ids, bad_words and "
                         "min_tokens, no token is left")
        self.rows = rows


class Draws(Protocol):
    """The interface that ``SamplesByRules`` builds on."""

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        """Draw a token for each row, by temperature, top-k, top-p and min-p; the likeliest at temperature 0."""


class SamplesByRules:
    """Adds ``sample`` to a class that has ``draw``."""

    def sample(self: Draws, logits: mx.array, rows: Sequence[SamplerRow]) -> SamplerOutput:
        """Sample one token per row from ``logits`` of shape ``[num_rows, vocab_size]``. This evaluates the arrays.

        Raise ValueError if a row's logits are not a distribution (NaN, +inf, all -inf) or its parameters do not fit the
        vocabulary. Raise NoTokenLeftError, which names the rows, if the only problem is that parameters leave no token.
        """
        num_rows, vocab_size = logits.shape
        if len(rows) != num_rows:
            raise ValueError(f"{len(rows)} rows for logits of {num_rows} rows")
        if not rows:
            return SamplerOutput([], [])
        check_token_ids(rows, vocab_size)
        logits = logits.astype(mx.float32)
        adjusted = adjust(logits, rows)
        chosen = self.draw(adjusted, rows)
        mx.async_eval(chosen)
        _check_distributions(logits, adjusted)
        token_ids = cast(list[int], chosen.tolist())
        return SamplerOutput(token_ids, _logprobs(logits, token_ids, rows))


def _check_distributions(logits: mx.array, adjusted: mx.array) -> None:
    """Raise ValueError, naming the row, if there is nothing to draw from."""
    has_nan, largest = mx.any(mx.isnan(logits), axis=-1), mx.max(logits, axis=-1)
    largest_adjusted = largest if adjusted is logits else mx.max(adjusted, axis=-1)
    mx.eval(has_nan, largest, largest_adjusted)
    findings = zip(cast(list[bool], has_nan.tolist()), cast(list[float], largest.tolist()),
                   cast(list[float], largest_adjusted.tolist()))
    empty = []
    for index, (is_nan, top, top_adjusted) in enumerate(findings):
        if is_nan:
            raise ValueError(f"row {index}: the logits contain NaN")
        if math.isinf(top):
            raise ValueError(f"row {index}: " + ("a logit is +inf" if top > 0 else "all logits are -inf"))
        if top_adjusted == -math.inf:
            empty.append(index)
    if empty:
        raise NoTokenLeftError(empty)


def _logprobs(logits: mx.array, token_ids: list[int], rows: Sequence[SamplerRow]) -> list[TokenLogprob | None]:
    """Return the log-probabilities by the raw logits, for the rows that ask for them."""
    num_top = {index: row.params.logprobs for index, row in enumerate(rows) if row.params.logprobs is not None}
    answers: list[TokenLogprob | None] = [None] * len(rows)
    if num_top:
        asking = list(num_top)
        reports = report_logprobs(logits[mx.array(asking)], [token_ids[index] for index in asking],
                                  list(num_top.values()))
        for index, report in zip(asking, reports):
            answers[index] = report
    return answers
