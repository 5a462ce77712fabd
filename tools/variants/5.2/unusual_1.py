"""The sampler: from the logits of a batch to the next token of each row.

Every row belongs to one request and is drawn by that request's parameters, all rows in one go:

    logits ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ scores ─┬─▶ the largest sum is the token
                                            key of the row ─▶ noise ─┘

The rules of this lab:

 1. **Greedy.** With temperature 0 the token with the largest logit comes; of equals, the one with the lowest id.
 2. **The Gumbel-max trick.** Otherwise every token gets a *score* (a logarithm of how likely it is, -inf if a filter
    dropped it) and a random number of the Gumbel distribution, its *noise*. The largest sum wins. Token i wins with the
    probability ``softmax(scores)[i]``, exactly.
 3. **Where the noise comes from.** It is a function of the request's key and of how many tokens the request has already
    said; nothing is remembered between two calls. So the same seed gives the same tokens, whatever else is in the
    batch, wherever in the batch the row stands, and however often the request was preempted.
 4. **Filters**, in this order: temperature, top-k, top-p, min-p. Each looks at what the one before it has left. A row
    that does not ask for a filter does not notice that another row does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.sampling.row import SamplerRow

#: Half a step of the generator, which gives multiples of 2 ** -32, from 0 on.
SMALLEST_UNIFORM = 2.0 ** -33


class Sampler:
    """The next token of every row of a batch. It holds no state: what a draw needs is in the rows."""

    # ---- Task 1: greedy

    def greedy(self, logits: mx.array) -> mx.array:
        """The most likely token of each row of ``logits`` [num_rows, vocab_size]; the lowest id among equals.

        After: an array [num_rows] of token ids, each below vocab_size.
        """
        vocab_size = logits.shape[-1]
        is_largest = logits == mx.max(logits, axis=-1, keepdims=True)
        return mx.min(mx.where(is_largest, mx.arange(vocab_size), vocab_size), axis=-1)

    # ---- Task 3: a draw

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        """A token for each row of ``logits`` [num_rows, vocab_size], by the parameters of the same row of ``rows``.

        Before: there is a row at least. In each the largest logit is finite; others may be -inf, and such a token is
        never drawn. Logits may be float32, float16 or bfloat16.
        After: an array [num_rows] of token ids. ``logits`` and ``rows`` are as they were.

        - A row with ``row.params.temperature`` 0 gets what ``greedy`` says; filters and noise are not for it.
        - Any other gets the token with the largest sum of score (``_scores``) and noise (``gumbel_noise``), computed in
          float32 whatever the type of the logits. The key of its noise is the pair of
          ``row.key[0]`` and ``row.key[1] + len(row.output_token_ids) + num_ahead``, the latter modulo 2 ** 32.

        Nothing else decides: not the other rows, not the place in the batch, not *which* tokens the output has.

        ``num_ahead`` is for the engine, which begins a step before the tokens of the last one are read: the token to
        draw is then not the next of each request, but one that comes ``num_ahead`` tokens later.
        """
        tokens = self.greedy(logits)
        random = [index for index, row in enumerate(rows) if row.params.temperature > 0]
        if random:
            chosen = [rows[index] for index in random]
            some = logits[mx.array(random)].astype(mx.float32)
            words = np.array([row.key for row in chosen], dtype=np.uint64)
            words[:, 1] += np.array([len(row.output_token_ids) + num_ahead for row in chosen], dtype=np.uint64)
            keys = mx.array((words & np.uint64(0xFFFFFFFF)).astype(np.uint32))
            sums = _scores(some, chosen) + gumbel_noise(keys, logits.shape[-1])
            tokens[mx.array(random)] = self.greedy(sums).astype(tokens.dtype)
        return tokens


# ---- Task 2: noise


def gumbel_noise(keys: mx.array, vocab_size: int) -> mx.array:
    """Numbers of the Gumbel distribution, [num_rows, vocab_size], float32; row i comes of ``keys[i]`` alone.

    Before: ``keys`` is [num_rows, 2], of uint32: two words make a key of MLX's generator.
    After: row i is, number by number,

        u = mx.random.uniform(shape=(vocab_size,), key=keys[i])       from 0 to below 1
        u = the larger of u and SMALLEST_UNIFORM
        noise = -log(-log(1 - u))

    to within 1e-5 of what exact arithmetic makes of u. Two things stand in the way. A u of 0 would give infinite noise,
    hence SMALLEST_UNIFORM. And in float32 ``1 - u`` forgets most of a small u, which is just where large noise, the
    noise that wins, comes from: ``mx.log1p(x)`` is log(1 + x) without that loss.

    ``mx.vmap(function)`` is the function for every row at once: it is called with the rows of an array and stacks what
    comes of them. A loop over ``keys`` gives the same numbers, but pays for every row what vmap pays once.
    """
    noises = []
    for key in keys:
        u = mx.random.uniform(shape=(vocab_size,), key=key)
        u = mx.where(u < SMALLEST_UNIFORM, mx.array(SMALLEST_UNIFORM, dtype=mx.float32), u)
        noises.append(-mx.log(-mx.log1p(-u)))
    return mx.stack(noises)


# ---- Tasks 3 to 6: scores


def _column(values: Sequence[float]) -> mx.array:
    """One number a row, as a column [num_rows, 1] in float32. Given.

    Python's floats go further than float32: 1e-50 would become 0, and 1e50 inf. Here the nearest finite float32 above 0
    stands in for such a number, and for 0, too. (For a ``min_p`` of 0 that is 1.2e-38: a score below -87 is dropped,
    which changes no draw. Noise lies between -2.9 and 22.9, so such a token could not win against the likeliest.)
    """
    limits = np.finfo(np.float32)
    return mx.array(np.clip(values, limits.tiny, limits.max).astype(np.float32)[:, None])


def _scores(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """How likely each token is, as a logarithm, relative to the likeliest of its row; -inf for those that are dropped.

    Before: ``logits`` is [num_rows, vocab_size] in float32; ``params`` of each row says how to score it.
    Returns an array of the same shape. What a row with temperature 0 gets does not matter: ``draw`` does not look at
    it. After: the largest score of any other row is 0; its likeliest token is never dropped. In this order:

    - *temperature* (task 3): the distance of each logit to the largest of its row, divided by ``params.temperature``;
    - *top-k* (task 4): the ``params.top_k`` most likely tokens stay; all of them if that is 0, or above vocab_size;
    - *top-p* (task 5): of those, the nucleus for ``params.top_p`` stays; all of them if that is 1;
    - *min-p* (task 6): of those, all that are at least ``params.min_p`` times as likely as the likeliest stay.

    The conditions are given: a filter that no row asks for is not computed. Each filter is its own task.
    """
    scores, params = logits, [row.params for row in rows]
    largest = mx.max(logits, axis=1)[:, None]
    scores = mx.divide(mx.subtract(logits, largest), _column([p.temperature for p in params]))
    if any(p.top_k for p in params):
        sizes = np.array([[p.top_k] for p in params])
        sizes = np.where(sizes == 0, scores.shape[1], np.minimum(sizes, scores.shape[1]))
        scores = _keep_most_likely(scores, mx.array(sizes))
    if any(p.top_p < 1 for p in params):
        nucleus = _num_in_nucleus(scores, _column([p.top_p for p in params]))
        scores = _keep_most_likely(scores, nucleus)
    if any(p.min_p for p in params):
        scores = _keep_min_p(scores, _column([p.min_p for p in params]))
    return scores


# ---- Task 4: top-k


def _keep_most_likely(scores: mx.array, num_kept: mx.array) -> mx.array:
    """``scores`` with -inf in place of all but the ``num_kept`` largest of each row; of equals the lowest ids stay.

    Before: ``scores`` is [num_rows, vocab_size]; ``num_kept`` is [num_rows, 1], whole numbers from 1 to vocab_size.
    After: exactly ``num_kept`` scores of each row are what they were, the others are -inf. (One that was -inf already
    may be among those that stay.)

    The k-th largest value tells what lies above the border and what on it. If several tokens have that very score,
    some of them may have to go: count them off by id. A sort of ids (``mx.argsort``) would do only if equal scores kept
    their order in it. On a CPU they do, so the tests cannot tell; MLX does not promise it, and on a GPU it may be
    otherwise.

    MLX does not check an index: ``mx.take_along_axis`` one past the end reads whatever lies there. So ``num_kept`` must
    be from 1 to vocab_size, and whoever calls this sees to that.
    """
    # A whole number that no two tokens of a row share: how far below the likeliest (scores are not above 0, so that the
    # bits of their size sort as they do), then the id.
    bits = (mx.abs(scores) + 0.0).astype(mx.float32).view(mx.uint32).astype(mx.uint64)
    ids = mx.arange(scores.shape[-1]).astype(mx.uint64)
    ranks = bits * (2 ** 32) + ids
    last = mx.take_along_axis(mx.sort(ranks, axis=-1), num_kept - 1, axis=-1)
    return mx.where(ranks <= last, scores, mx.array(-math.inf))


# ---- Task 5: top-p


def _num_in_nucleus(scores: mx.array, top_p: mx.array) -> mx.array:
    """The size of each row's nucleus: the fewest most likely tokens whose probabilities add up to ``top_p`` or more.

    Before: ``scores`` is [num_rows, vocab_size], the largest of each row 0; ``top_p`` is [num_rows, 1], from above 0
    to 1.
    After: [num_rows, 1] of whole numbers from 1 to vocab_size. Probabilities are those of what is left: a token with
    score -inf has none, and the others add up to 1. The token that crosses ``top_p`` belongs to the nucleus. Where
    ``top_p`` is 1 the answer is vocab_size: a sum in float32 does not notice the least likely tokens, so it must not
    decide about them. Below 1 such a sum may end short of 1, and even of 0.999999: the answer is at most vocab_size all
    the same.
    """
    vocab_size = scores.shape[-1]
    weights = mx.exp(mx.sort(scores, axis=-1)[:, ::-1])
    total = mx.sum(weights, axis=-1, keepdims=True)
    reached = mx.cumsum(weights, axis=-1) >= top_p * total
    first = mx.where(mx.any(reached, axis=-1), mx.argmax(reached, axis=-1), vocab_size - 1)[:, None]
    size = first.astype(mx.int32) + 1
    return mx.where(top_p == 1.0, mx.full(size.shape, vocab_size, dtype=mx.int32), size)


# ---- Task 6: min-p


def _keep_min_p(scores: mx.array, min_p: mx.array) -> mx.array:
    """``scores`` with -inf in place of tokens less than ``min_p`` times as likely as the likeliest of their row.

    Before: ``scores`` is [num_rows, vocab_size], the largest of each row 0; ``min_p`` is [num_rows, 1], up to 1.
    After: with ``min_p`` 1 all that are as likely as the likeliest stay, exactly. With any other a token that is just
    ``min_p`` times as likely stays, too, up to rounding: a logarithm in float32 may fall on either side of the border.
    """
    too_unlikely = mx.logical_not(scores >= mx.log(min_p))
    return mx.where(too_unlikely, mx.array(-math.inf), scores)
