"""Filters of the tokens that may be drawn: temperature, top-k, top-p, min-p, in this order."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from mini_vllm.backend import mx
from mini_vllm.sampling.logit_rules import column
from mini_vllm.sampling.row import SamplerRow

#: A row that keeps at most this many tokens by top-k sorts only these, not the whole vocabulary. The number is fixed,
#: instead of the largest top_k of the batch, so that a row is always computed the same way.
NARROW_SORT_WIDTH = 1024


def drops_tokens(row: SamplerRow) -> bool:
    """Check whether a filter may drop a token of this row."""
    return bool(row.params.top_k or row.params.min_p) or row.params.top_p < 1


def relative_scores(adjusted: mx.array, temperature: mx.array) -> mx.array:
    """Return the log-probability of each token relative to the likeliest, before any filter."""
    return (adjusted - mx.max(adjusted, axis=-1, keepdims=True)) / temperature


def filter_scores(adjusted: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Return the log-probability of each token relative to the likeliest; -inf for tokens that a filter drops."""
    temperature = column([row.params.temperature for row in rows])
    relative = relative_scores(adjusted, temperature)
    relative = _keep_top_k_and_top_p(relative, rows)
    if any(row.params.min_p for row in rows):
        min_p = column([row.params.min_p for row in rows], smallest=0)
        relative = mx.where(relative >= mx.log(min_p), relative, -math.inf)
    return relative


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
