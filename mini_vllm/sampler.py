"""From logits to the next tokens: every request by its own parameters, all of them in one batch.

    raw logits ─┬─▶ log-softmax ─▶ logprobs, as the model meant them
                └─▶ adjust: bias, penalties, what is not allowed ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ draw

A token is drawn by the *Gumbel-max trick*: add to the score of every token a random number from the Gumbel
distribution, and take the largest sum. Token i wins with the probability softmax(scores)[i], exactly.

    score   2.0   1.1  -inf   0.3        what filters dropped stays at -inf
    noise  -0.4   0.9   3.1   0.2
    sum     1.6   2.0  -inf   0.5        token 1 is drawn

**The same seed gives the same tokens, whatever else is in the batch.** The noise is a function of (seed, sample,
position, token) and of nothing else: there is no generator whose state a preemption or a failed step would have to
restore. And a draw bears rounding. A batch computes the same logits as a request alone but for the order of sums,
about 1e-6 in float32; that changes the winner only if the two largest sums are as near as that. Of 25,600 draws none
changed (``python -m mini_vllm.benchmark seeds``). Inverse CDF, one number thrown at a line of all tokens, has an edge a
token, and rounding moves all of them: 4 of 24,899 changed. ``python -m mini_vllm.fuzz sampler`` counts both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.streams import in_halves
from mini_vllm.request import TokenLogprob
from mini_vllm.sampling.filters import filter_scores
from mini_vllm.sampling.logit_rules import adjust, check_token_ids
from mini_vllm.sampling.logprobs import report_logprobs
from mini_vllm.sampling.row import SamplerRow

#: Half a step of the generator, which gives multiples of 2 ** -32 from 0 on: no token has infinite noise.
SMALLEST_UNIFORM = 2.0 ** -33


@dataclass
class SamplerOutput:
    """The next token of each row, and how likely it was."""

    token_ids: list[int]
    #: None where the request did not ask.
    logprobs: list[TokenLogprob | None]


class Sampler:
    """The next token of every row of a batch. It holds no state: what a draw needs is in the rows."""

    def greedy(self, logits: mx.array) -> mx.array:
        """The most likely token of each row; the lowest id among equals. Lazy, so nothing is checked."""
        return mx.argmax(logits, axis=-1)

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        """A token of each row, whose parameters are plain; lazy, too. It may be one that comes ``num_ahead`` tokens
        after the next: all that the noise depends on is known."""
        return _choose(logits.astype(mx.float32), rows, num_ahead)

    def sample(self, logits: mx.array, rows: Sequence[SamplerRow]) -> SamplerOutput:
        """One token for each row, from ``logits`` of shape ``[num_rows, vocab_size]``. Evaluates.

        Raises ValueError if a row's logits are no distribution (NaN, +inf, all -inf) or its parameters do not fit
        the vocabulary.
        """
        num_rows, vocab_size = logits.shape
        if len(rows) != num_rows:
            raise ValueError(f"{len(rows)} rows for logits of {num_rows} rows")
        if not rows:
            return SamplerOutput([], [])
        check_token_ids(rows, vocab_size)
        logits = logits.astype(mx.float32)
        adjusted = adjust(logits, rows)
        chosen = _choose(adjusted, rows)
        mx.async_eval(chosen)
        _check_distributions(logits, adjusted)
        token_ids = cast(list[int], chosen.tolist())
        return SamplerOutput(token_ids, _logprobs(logits, token_ids, rows))


def _choose(adjusted: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
    """The largest of each row: of its adjusted logits if it is greedy, else of its scores and noise together."""
    sampled = [index for index, row in enumerate(rows) if row.params.temperature > 0]
    if len(sampled) == len(rows):
        return _draw(adjusted, rows, num_ahead)
    chosen = mx.argmax(adjusted, axis=-1)
    if sampled:
        chosen[mx.array(sampled)] = _draw(adjusted[mx.array(sampled)], [rows[index] for index in sampled], num_ahead)
    return chosen


def _draw(adjusted: mx.array, rows: Sequence[SamplerRow], num_ahead: int) -> mx.array:
    """A token for each row. Rows with equal keys at the same position get the same noise."""
    keys = np.array([(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead) for row in rows])
    noise = gumbel_noise(mx.array(keys.astype(np.uint32)), adjusted.shape[1])
    return mx.argmax(filter_scores(adjusted, rows) + noise, axis=-1)


def gumbel_noise(keys: mx.array, vocab_size: int) -> mx.array:
    """[num_rows, vocab_size] numbers of the Gumbel distribution, each row from its own of ``keys`` [num_rows, 2].

    MLX's generator counts instead of remembering: number i of a key is a function of the key and i.
    """
    return in_halves(lambda keys: _gumbel_noise(keys, vocab_size), keys,
                     min_size=2 * tuning.MIN_NOISE_TO_SPLIT // vocab_size)


def _gumbel_noise(keys: mx.array, vocab_size: int) -> mx.array:
    uniform = mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))(keys)
    uniform = mx.maximum(uniform, SMALLEST_UNIFORM)
    # This is -log(-log1p(-uniform)). The log1p is put together from log, which is three times as fast on a CPU: what
    # ``1 - uniform`` loses by rounding is added again. Large noise comes of small numbers, so these must stay exact.
    rest = 1 - uniform
    return -mx.log((uniform - (1 - rest)) - mx.log(rest))


def _check_distributions(logits: mx.array, adjusted: mx.array) -> None:
    """Raise ValueError, naming the row, if there is nothing to draw from."""
    has_nan, largest = mx.any(mx.isnan(logits), axis=-1), mx.max(logits, axis=-1)
    largest_adjusted = largest if adjusted is logits else mx.max(adjusted, axis=-1)
    mx.eval(has_nan, largest, largest_adjusted)
    findings = zip(cast(list[bool], has_nan.tolist()), cast(list[float], largest.tolist()),
                   cast(list[float], largest_adjusted.tolist()))
    for index, (is_nan, top, top_adjusted) in enumerate(findings):
        if is_nan:
            raise ValueError(f"row {index}: the logits contain NaN")
        if math.isinf(top):
            raise ValueError(f"row {index}: " + ("a logit is +inf" if top > 0 else "all logits are -inf"))
        if top_adjusted == -math.inf:
            raise ValueError(f"row {index}: all logits are -inf after logit_bias, allowed_token_ids, bad_words and "
                             "min_tokens, no token is left")


def _logprobs(logits: mx.array, token_ids: list[int], rows: Sequence[SamplerRow]) -> list[TokenLogprob | None]:
    """Log-probabilities by the raw logits, for the rows that ask."""
    num_top = {index: row.params.logprobs for index, row in enumerate(rows) if row.params.logprobs is not None}
    answers: list[TokenLogprob | None] = [None] * len(rows)
    if num_top:
        asking = list(num_top)
        reports = report_logprobs(logits[mx.array(asking)], [token_ids[index] for index in asking],
                                  list(num_top.values()))
        for index, report in zip(asking, reports):
            answers[index] = report
    return answers
