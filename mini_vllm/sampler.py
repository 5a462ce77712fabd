"""From logits to the next tokens: every request by its own parameters, all of them in one batch.

    raw logits ─┬─▶ log-softmax ─▶ logprobs, as the model meant them
                └─▶ + logit_bias ─▶ repetition penalty ─▶ min_tokens ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ draw

A token is drawn by *inverse CDF*: lay the tokens side by side, each as wide as its probability, throw one uniform
number at the line, and take the token it lands on.

    0            0.5           0.7   0.8            1
    ├── token 0 ──┼── token 1 ──┼─ 3 ─┼── token 4 ──┤        token 2 was filtered away: it has no width
                                    ▲ u = 0.74 draws token 3

The same seed gives the same token whatever else is in the batch, because nothing of a row depends on its company.
The number comes from the request's own generator, on the host. The line is always laid out in the order of the
vocabulary: a filter only takes width away, and no row sees whether another row was sorted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.request import SamplingParams, TokenLogprob

#: A row that keeps at most so many tokens by top-k needs just these in order, not the whole vocabulary. The number is
#: fixed, rather than the largest top_k of the batch, so that a row is always computed the same way.
NARROW_SORT_WIDTH = 1024

FLOAT32 = np.finfo(np.float32)
#: Times any float32 total, this still rounds to less than the total.
LARGEST_FLOAT32_BELOW_1 = float(np.nextafter(np.float32(1), np.float32(0)))


@dataclass
class SamplerRow:
    """What the sampler must know of one request."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    #: Not sampled, like the stop ids, until there are ``min_tokens`` output tokens.
    eos_token_ids: Collection[int]
    #: The request's own. Exactly one number is drawn for a sampled token, none for a greedy one.
    random: np.random.Generator


@dataclass
class SamplerOutput:
    token_ids: list[int]
    #: None where the request did not ask.
    logprobs: list[TokenLogprob | None]


def make_generator(seed: int | None, index: int = 0) -> np.random.Generator:
    """The generator of continuation ``index`` of a request. Without a seed, another one each time."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))


def is_plain_greedy(params: SamplingParams) -> bool:
    """True if the most likely token is the answer, and all of it: no logit changes, no log-probability is reported."""
    return (params.temperature == 0 and params.repetition_penalty == 1 and not params.logit_bias
            and params.min_tokens == 0 and params.logprobs is None)


class Sampler:
    """The next token of every row of a batch. It holds no state: what a draw needs is in the rows."""

    def greedy(self, logits: mx.array) -> mx.array:
        """The most likely token of each row; the lowest id among equals. Lazy, so nothing is checked."""
        return mx.argmax(logits, axis=-1)

    def sample(self, logits: mx.array, rows: Sequence[SamplerRow]) -> SamplerOutput:
        """One token a row, from ``logits`` of shape ``[num_rows, vocab_size]``. Evaluates.

        Raises ValueError if a row's logits are no distribution (NaN, +inf, all -inf) or its parameters do not fit
        the vocabulary. No random number has been drawn then.
        """
        num_rows, vocab_size = logits.shape
        if len(rows) != num_rows:
            raise ValueError(f"{len(rows)} rows for logits of {num_rows} rows")
        if not rows:
            return SamplerOutput([], [])
        for index, row in enumerate(rows):
            for token_id in row.params.logit_bias or ():
                if token_id >= vocab_size:
                    raise ValueError(f"row {index}: logit_bias names token {token_id}, "
                                     f"but the vocabulary has {vocab_size} tokens")
        logits = logits.astype(mx.float32)
        adjusted = _adjust(logits, rows)
        _check(logits, adjusted)

        token_ids = mx.argmax(adjusted, axis=-1)
        sampled = [index for index, row in enumerate(rows) if row.params.temperature > 0]
        if sampled:
            token_ids[mx.array(sampled)] = _draw(adjusted[mx.array(sampled)], [rows[index] for index in sampled])
        token_ids = token_ids.tolist()
        return SamplerOutput(token_ids, _logprobs(logits, token_ids, rows))


# ---- before the draw: what changes the logits, and what is refused


def _adjust(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """``logits`` after bias, repetition penalty and min_tokens. The argument itself stays as it is."""
    vocab_size = logits.shape[1]
    adjusted = logits

    biased = {i: row.params.logit_bias for i, row in enumerate(rows) if row.params.logit_bias}
    if biased:
        # A bias of +inf becomes the largest number there is: infinities could not be subtracted from each other.
        bias = np.minimum([value for biases in biased.values() for value in biases.values()], float(FLOAT32.max))
        adjusted = adjusted.at[_places(biased, vocab_size)].add(mx.array(bias.astype(np.float32)))

    seen = {i: list(chain(row.prompt_token_ids, row.output_token_ids)) for i, row in enumerate(rows)
            if row.params.repetition_penalty != 1}
    if seen:
        row_ids, token_ids = _places(seen, vocab_size)
        penalty = _column(row.params.repetition_penalty for row in rows)[row_ids, 0]
        old = adjusted[row_ids, token_ids]
        # A token seen twice is written twice, both times with the same value.
        adjusted = mx.array(adjusted)
        adjusted[row_ids, token_ids] = mx.where(old > 0, old / penalty, old * penalty)

    too_early = {i: [*row.eos_token_ids, *row.params.stop_token_ids] for i, row in enumerate(rows)
                 if len(row.output_token_ids) < row.params.min_tokens}
    if too_early:
        adjusted = adjusted.at[_places(too_early, vocab_size)].minimum(-math.inf)
    return adjusted if adjusted is logits else mx.minimum(adjusted, float(FLOAT32.max))


def _places(token_ids_of_row: dict[int, Collection[int]], vocab_size: int) -> tuple[mx.array, mx.array]:
    """Row numbers and token ids of all places, side by side. A token outside the vocabulary has no logit to change."""
    row_ids = np.repeat(list(token_ids_of_row), [len(token_ids) for token_ids in token_ids_of_row.values()])
    token_ids = np.array(list(chain.from_iterable(token_ids_of_row.values())), dtype=np.int64)
    inside = token_ids < vocab_size
    return mx.array(row_ids[inside].astype(np.int32)), mx.array(token_ids[inside].astype(np.int32))


def _check(logits: mx.array, adjusted: mx.array) -> None:
    """ValueError, naming the row, if there is nothing to draw from."""
    has_nan, largest = mx.any(mx.isnan(logits), axis=-1), mx.max(logits, axis=-1)
    largest_adjusted = largest if adjusted is logits else mx.max(adjusted, axis=-1)
    mx.eval(has_nan, largest, largest_adjusted)
    findings = zip(has_nan.tolist(), largest.tolist(), largest_adjusted.tolist())
    for index, (is_nan, top, top_adjusted) in enumerate(findings):
        if is_nan:
            raise ValueError(f"row {index}: the logits contain NaN")
        if math.isinf(top):
            raise ValueError(f"row {index}: " + ("a logit is +inf" if top > 0 else "all logits are -inf"))
        if top_adjusted == -math.inf:
            raise ValueError(f"row {index}: all logits are -inf after logit_bias and min_tokens, no token is left")


# ---- the draw


def _draw(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """A token a row, drawn with one number of the row's own generator. A filter sets scores to -inf: no width."""
    scores = (logits - mx.max(logits, axis=-1, keepdims=True)) / _column(row.params.temperature for row in rows)
    scores = _keep_top_k_and_top_p(scores, rows)
    # The largest score is 0, so exp(score) is the probability relative to the most likely token's.
    min_p = _column((row.params.min_p for row in rows), smallest=0)
    scores = mx.where(scores >= mx.log(min_p), scores, -math.inf)

    widths = mx.exp(scores)
    right_edges = mx.cumsum(widths, axis=-1)
    uniform = _column((min(row.random.random(), LARGEST_FLOAT32_BELOW_1) for row in rows), smallest=0)
    is_right_of_u = (right_edges > uniform * right_edges[:, -1:]) & (widths > 0)
    # The first token right of u. Should rounding leave none, the most likely one: scores are never above 0.
    return mx.argmax(mx.where(is_right_of_u, 1.0, scores), axis=-1)


def _keep_top_k_and_top_p(scores: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Write -inf over the ``scores`` that top-k and top-p drop. A row that uses neither is not touched, nor sorted."""
    vocab_size = scores.shape[1]
    groups: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        top_k = min(row.params.top_k or vocab_size, vocab_size)
        if top_k < vocab_size or row.params.top_p < 1:
            num_sorted = vocab_size if top_k > NARROW_SORT_WIDTH else min(NARROW_SORT_WIDTH, vocab_size)
            groups[num_sorted].append(index)
    for num_sorted, indices in groups.items():
        params = [rows[index].params for index in indices]
        top_k = mx.array([[min(p.top_k or vocab_size, vocab_size)] for p in params])
        top_p = mx.array([[p.top_p if p.top_p < 1 else math.inf] for p in params])
        scores[mx.array(indices)] = _keep_most_likely(scores[mx.array(indices)], num_sorted, top_k, top_p)
    return scores


def _keep_most_likely(scores: mx.array, num_sorted: int, top_k: mx.array, top_p: mx.array) -> mx.array:
    """Top-k, then top-p of what is left. Among equals the lowest ids stay.

    The values are sorted, not the ids: they tell how many tokens stay and the score of the last one. Which of several
    with that very score stay is counted off by id, so nothing hangs on whether the device's sort is stable.
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


def _column(values: Iterable[float], smallest: float = float(FLOAT32.tiny)) -> mx.array:
    """One number a row, as a column; none becomes 0 or inf just because float32 has a smaller range."""
    return mx.array(np.clip(list(values), smallest, float(FLOAT32.max)).astype(np.float32)[:, None])


# ---- after the draw


def _logprobs(logits: mx.array, token_ids: list[int], rows: Sequence[SamplerRow]) -> list[TokenLogprob | None]:
    """Log-probabilities by the raw logits, for the rows that ask."""
    asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    answers: list[TokenLogprob | None] = [None] * len(rows)
    if asking:
        raw = logits[mx.array(asking)]
        for index, logprobs in zip(asking, np.array(raw - mx.logsumexp(raw, axis=-1, keepdims=True))):
            top = _likeliest(logprobs, rows[index].params.logprobs)
            answers[index] = TokenLogprob(token_ids[index], float(logprobs[token_ids[index]]), top)
    return answers


def _likeliest(logprobs: np.ndarray, k: int) -> dict[int, float]:
    """The ``k`` likeliest tokens, most likely first, the lower id first among equals."""
    if k == 0:
        return {}
    smallest = np.partition(logprobs, -k)[-k] if k < len(logprobs) else -math.inf
    candidates = np.flatnonzero(logprobs >= smallest)
    order = candidates[np.argsort(-logprobs[candidates], kind="stable")][:k]
    return {int(token_id): float(logprobs[token_id]) for token_id in order}
