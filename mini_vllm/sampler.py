"""From logits to the next tokens: each request by its own parameters, all requests in one batch.

    raw logits ─┬─▶ log-softmax ─▶ logprobs, as the model meant them
                └─▶ adjust: bias, penalties, what is not allowed ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ draw

A token is drawn by the *Gumbel-max trick*: add to the score of every token a random number from the Gumbel
distribution, and take the largest sum. Token i wins with the probability softmax(scores)[i], exactly.

    score   2.0   1.1  -inf   0.3        filtered tokens stay at -inf
    noise  -0.4   0.9   3.1   0.2
    sum     1.6   2.0  -inf   0.5        token 1 is drawn

**The same seed gives the same tokens, whatever else is in the batch.** The noise is a function of (seed, sample,
position, token) and of nothing else: there is no generator whose state a preemption or a failed step would have to
restore. A draw also tolerates rounding. A batch computes the same logits as a single request except for the order of
sums, about 1e-6 in float32; that changes the winner only if the two largest sums are that close. Of 25,600 draws none
changed (``python tools/measure seeds``). Inverse-CDF sampling, one random number placed on a line of all tokens, has
one boundary per token, and rounding moves all of them: 2 of 25,600 draws changed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mini_vllm.backend import mx
from mini_vllm.fast.tuning import compiled_on_gpu
from mini_vllm.logit_rules import (
    NO_TOKEN_LEFT,
    SamplerRow,
    adjust,
    check_token_ids,
    column,
    grammar_masks,
    keep_allowed,
)
from mini_vllm.request import Logprob, TokenLogprob

#: Half a step of the generator, which gives multiples of 2 ** -32 from 0 on: no token gets infinite noise.
SMALLEST_UNIFORM = 2.0 ** -33
#: A row that keeps at most this many tokens by top-k sorts only these, not the whole vocabulary. The number is fixed,
#: instead of the largest top_k of the batch, so that a row is always computed the same way.
NARROW_SORT_WIDTH = 1024


@dataclass(frozen=True, repr=False)
class ChosenTokens:
    """A token for each of several rows of logits. The device may still be computing them."""

    #: [num_rows]
    token_ids: mx.array
    #: The largest logit of each row, or NaN if the row contains one; [num_rows, 1].
    largest: mx.array
    #: The same for the logits that the rules have left; None if no row has rules.
    largest_left: mx.array | None = None
    #: Rows whose grammar cannot say which tokens are possible, and why.
    errors: dict[int, ValueError] = field(default_factory=dict)

    def end(self) -> None:
        """Wait until nothing is written any more, if another thread computes the tokens."""

    def wait(self) -> list[int | ValueError]:
        """Wait for the tokens. Return the token of each row, or the error of a row whose rules leave none.

        Raise ValueError if the largest logit of a row is NaN or infinite: the model is broken, and any token would be
        meaningless. The check computes nothing new: a new computation would have to wait for the next step, which may
        already have been started.
        """
        for row, (score,) in enumerate(cast(list[list[float]], self.largest.tolist())):
            if math.isnan(score):
                raise ValueError(f"row {row}: the logits contain NaN")
            if math.isinf(score):
                raise ValueError(f"row {row}: " + ("a logit is +inf" if score > 0 else "all logits are -inf"))
        tokens = cast(list[int | ValueError], self.token_ids.tolist())
        if self.largest_left is not None:
            for row, (score,) in enumerate(cast(list[list[float]], self.largest_left.tolist())):
                if row in self.errors or score == -math.inf:
                    tokens[row] = self.errors.get(row) or ValueError(NO_TOKEN_LEFT)
        return tokens


@dataclass
class SamplerOutput:
    """The next token of each row, and its log-probability."""

    token_ids: list[int]
    #: None where the request did not ask for it.
    logprobs: list[TokenLogprob | None]


class Sampler:
    """Chooses the next token of every row of a batch. It is stateless: a draw depends only on the rows.

    ``choose`` and ``sample``, which also adjust the logits, are built on ``greedy`` and ``draw``.
    """

    def greedy(self, logits: mx.array) -> mx.array:
        """Return the most likely token of each row; the lowest id among equals.

        The result is lazy, so nothing is checked.
        """
        return mx.argmax(logits, axis=-1)

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        """Draw a token for each row by temperature, top-k, top-p and min-p only; at temperature 0, the most likely one.

        The result is lazy. The drawn token may be ``num_ahead`` tokens after the next one: everything the noise depends
        on is already known.
        """
        logits = logits.astype(mx.float32)
        sampled = [index for index, row in enumerate(rows) if row.params.temperature > 0]
        if len(sampled) == len(rows):
            return _draw(logits, rows, num_ahead)
        chosen = self.greedy(logits)
        if sampled:
            chosen[mx.array(sampled)] = _draw(logits[mx.array(sampled)], [rows[index] for index in sampled], num_ahead)
        return chosen

    def draw_and_check(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0
                       ) -> tuple[mx.array, mx.array]:
        """Return what ``draw`` returns, and the largest logit of each row [num_rows, 1]; NaN if it contains one."""
        if all(row.params.temperature == 0 for row in rows):
            token_ids = self.greedy(logits)  # argmax chooses a NaN if there is one
            return token_ids, mx.take_along_axis(logits, token_ids[:, None], axis=-1)
        return self.draw(logits, rows, num_ahead), _largest(logits)

    def choose(self, logits: mx.array | Future[Any], rows: Sequence[SamplerRow], num_ahead: int = 0) -> ChosenTokens:
        """Choose a token for each row, by all of its parameters. This starts the computation, without waiting for it.

        With ``num_ahead``, as in ``draw``, all rows must be plain. Another thread may still be computing the logits.
        """
        if isinstance(logits, Future):
            logits = mx.array(logits.result())
        if all(row.is_plain for row in rows):
            token_ids, largest = self.draw_and_check(logits, rows, num_ahead)
            mx.async_eval(token_ids, largest)
            return ChosenTokens(token_ids, largest)
        logits = logits.astype(mx.float32)
        mx.async_eval(logits)  # the device computes while the grammars are asked
        masks, errors = grammar_masks(rows)
        adjusted = keep_allowed(adjust(logits, rows), masks)
        token_ids, largest_left = self.draw_and_check(adjusted, rows)
        largest = largest_left if adjusted is logits else _largest(logits)
        mx.async_eval(token_ids, largest, largest_left)
        return ChosenTokens(token_ids, largest, largest_left, errors)

    def sample(self, logits: mx.array, rows: Sequence[SamplerRow]) -> SamplerOutput:
        """Sample one token per row from ``logits`` of shape ``[num_rows, vocab_size]``. This evaluates the arrays.

        Raise ValueError, which names the row, if its logits are not a distribution (NaN, +inf, all -inf), or if its
        parameters do not fit the vocabulary or leave no token.
        """
        num_rows, vocab_size = logits.shape
        if len(rows) != num_rows:
            raise ValueError(f"{len(rows)} rows for logits of {num_rows} rows")
        if not rows:
            return SamplerOutput([], [])
        check_token_ids(rows, vocab_size)
        token_ids = []
        for index, token in enumerate(self.choose(logits, rows).wait()):
            if isinstance(token, ValueError):
                raise ValueError(f"row {index}: {token}")
            token_ids.append(token)
        return SamplerOutput(token_ids, token_logprobs(logits, token_ids, rows))


@compiled_on_gpu
def _largest(logits: mx.array) -> mx.array:
    return mx.where(mx.isnan(logits).any(axis=-1, keepdims=True), mx.nan, logits.max(axis=-1, keepdims=True))


def _draw(logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int) -> mx.array:
    """Draw a token for each row. Rows with equal keys at the same position get the same noise."""
    keys = mx.array(noise_keys(rows, num_ahead))
    if not any(drops_tokens(row) for row in rows):
        return _draw_by_temperature(logits, keys, column([row.params.temperature for row in rows]))
    return mx.argmax(filter_scores(logits, rows) + gumbel_noise(keys, logits.shape[1]), axis=-1)


@compiled_on_gpu
def _draw_by_temperature(logits: mx.array, keys: mx.array, temperature: mx.array) -> mx.array:
    """Draw a token for each row when no filter drops a token. The scores are those of ``filter_scores``."""
    return mx.argmax(_relative_scores(logits, temperature) + gumbel_noise(keys, logits.shape[1]), axis=-1)


# ---- noise


def noise_keys(rows: Sequence[SamplerRow], num_ahead: int) -> NDArray[np.uint32]:
    """Return what determines the noise of each row, [num_rows, 2]."""
    numbers = np.array([(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead) for row in rows])
    return numbers.astype(np.uint32)


def gumbel_noise(keys: mx.array, vocab_size: int) -> mx.array:
    """Return Gumbel noise [num_rows, vocab_size]. Row i is drawn with row i of ``keys`` [num_rows, 2].

    MLX's generator is counter-based, without state: number i of a key is a function of the key and i.
    """
    uniform = mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))(keys)
    uniform = mx.maximum(uniform, SMALLEST_UNIFORM)
    # This is -log(-log1p(-uniform)). The log1p is composed from log, which is three times as fast on a CPU; what ``1 -
    # uniform`` loses by rounding is added back. Large noise comes from small numbers, so these must stay exact.
    rest = 1 - uniform
    return -mx.log((uniform - (1 - rest)) - mx.log(rest))


# ---- filters: temperature, top-k, top-p, min-p, in this order


def drops_tokens(row: SamplerRow) -> bool:
    """Check whether a filter may drop a token of this row."""
    return bool(row.params.top_k or row.params.min_p) or row.params.top_p < 1


def filter_scores(adjusted: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Return the log-probability of each token relative to the likeliest; -inf for tokens that a filter drops."""
    relative = _relative_scores(adjusted, column([row.params.temperature for row in rows]))
    relative = _keep_top_k_and_top_p(relative, rows)
    if any(row.params.min_p for row in rows):
        min_p = column([row.params.min_p for row in rows], smallest=0)
        relative = mx.where(relative >= mx.log(min_p), relative, -math.inf)
    return relative


def _relative_scores(adjusted: mx.array, temperature: mx.array) -> mx.array:
    return (adjusted - mx.max(adjusted, axis=-1, keepdims=True)) / temperature


def _keep_top_k_and_top_p(scores: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Replace the ``scores`` that top-k and top-p drop by -inf. A row that uses neither is unchanged and not sorted."""
    vocab_size = scores.shape[1]
    top_k_of_row = [min(row.params.top_k or vocab_size, vocab_size) for row in rows]
    groups: dict[int, list[int]] = defaultdict(list)
    for index, (row, top_k) in enumerate(zip(rows, top_k_of_row)):
        if top_k < vocab_size or row.params.top_p < 1:
            num_sorted = vocab_size if top_k > NARROW_SORT_WIDTH else min(NARROW_SORT_WIDTH, vocab_size)
            groups[num_sorted].append(index)
    for num_sorted, indices in groups.items():
        top_ks = mx.array([[top_k_of_row[index]] for index in indices])
        top_ps = mx.array([[rows[index].params.top_p if rows[index].params.top_p < 1 else math.inf]
                           for index in indices])
        scores[mx.array(indices)] = _keep_most_likely(scores[mx.array(indices)], num_sorted, top_ks, top_ps)
    return scores


def _keep_most_likely(scores: mx.array, num_sorted: int, top_k: mx.array, top_p: mx.array) -> mx.array:
    """Apply top-k, then top-p to the rest. Among equal scores the lowest ids are kept.

    The values are sorted, not the ids: they give the number of kept tokens and the score of the last one. Among tokens
    with exactly that score, the kept ones are counted off by id, so the result does not depend on a stable sort on the
    device.
    """
    vocab_size = scores.shape[1]
    largest = scores if num_sorted == vocab_size else mx.topk(scores, num_sorted, axis=-1)
    descending = -mx.sort(-largest, axis=-1)
    within_k = mx.arange(num_sorted) < top_k
    widths = mx.where(within_k, mx.exp(descending), 0.0)
    mass_before = mx.cumsum(widths, axis=-1, inclusive=False)
    mass = mass_before[:, -1:] + widths[:, -1:]
    num_kept = mx.sum(within_k & (mass_before < top_p * mass), axis=-1, keepdims=True)
    num_kept = mx.maximum(num_kept, 1)

    last_kept = mx.take_along_axis(descending, num_kept - 1, axis=-1)
    is_above, is_equal = scores > last_kept, scores == last_kept
    num_equal_kept = num_kept - mx.sum(is_above, axis=-1, keepdims=True)
    is_kept = is_above | (is_equal & (mx.cumsum(is_equal.astype(mx.int32), axis=-1) <= num_equal_kept))
    return mx.where(is_kept, scores, -math.inf)


# ---- log-probabilities by the model's own distribution: before bias, penalties, temperature and filters


def token_logprobs(logits: mx.array | None, tokens: Sequence[int | ValueError], rows: Sequence[SamplerRow]
                   ) -> list[TokenLogprob | None]:
    """Return the log-probabilities of the chosen tokens, for rows that have one and ask for it; None for the others.

    ``logits`` is None if no row asks.
    """
    asking = {index: (token, row.params.logprobs) for index, (token, row) in enumerate(zip(tokens, rows))
              if row.params.logprobs is not None and not isinstance(token, ValueError)}
    answers: list[TokenLogprob | None] = [None] * len(rows)
    if asking and logits is not None:
        reports = report_logprobs(logits[mx.array(list(asking))], *zip(*asking.values()))
        for index, report in zip(asking, reports):
            answers[index] = report
    return answers


def report_logprobs(logits: mx.array, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprob]:
    """Return the log-probability of ``token_ids[i]`` by row i of ``logits``, and the ``num_top[i]`` likeliest
    tokens."""
    logits = logits.astype(mx.float32)
    rows = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    return [TokenLogprob(token_id, float(logprobs[token_id]), _likeliest(logprobs, k),
                         rank=1 + int((logprobs > logprobs[token_id]).sum()))
            for logprobs, token_id, k in zip(rows, token_ids, num_top)]


def _likeliest(logprobs: NDArray[np.float32], k: int) -> dict[int, Logprob]:
    """Return the ``k`` likeliest tokens, most likely first. Equals have the same rank, the lower id first."""
    if k == 0:
        return {}
    smallest = np.partition(logprobs, -k)[-k] if k < len(logprobs) else -math.inf
    candidates = np.flatnonzero(logprobs >= smallest)
    order = candidates[np.argsort(-logprobs[candidates], kind="stable")][:k]
    values = logprobs[order]
    ranks = 1 + np.searchsorted(-values, -values)
    return {int(token_id): Logprob(float(value), int(rank)) for token_id, value, rank in zip(order, values, ranks)}
