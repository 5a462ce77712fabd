"""The sampler: from the logits of a batch to the next token of each row.

Every row belongs to one request and is drawn by the parameters of that request, all rows at once:

    logits ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ scores ─┬─▶ the largest sum is the token
                                            key of the row ─▶ noise ─┘

The rules of this lab:

 1. **Greedy.** With temperature 0 the token is the one with the largest logit; of equals, the one with the lowest id.
 2. **The Gumbel-max trick.** Otherwise every token gets a *score* (a logarithm of how likely it is, -inf if a filter
    dropped it) and a random number of the Gumbel distribution, its *noise*. The largest sum wins. Token i wins with the
    probability ``softmax(scores)[i]``, exactly.
 3. **Where the noise comes from.** It is a function of the request's key and of the number of tokens that the request
    has generated; nothing is remembered between two calls. So the same seed gives the same tokens, whatever else is in
    the batch, wherever in the batch the row is, and however often the request was preempted.
 4. **Filters**, in this order: temperature, top-k, top-p, min-p. Each looks at what the one before it has left. A row
    that does not ask for a filter does not notice that another row does.

        temperature   the distance of each logit to the largest of its row is divided by it
        top-k         the top_k most likely tokens stay; all tokens if top_k is 0, or above vocab_size
        top-p         the nucleus stays, the fewest most likely tokens whose probabilities add up to top_p or more; all
                      tokens if top_p is 1
        min-p         tokens that are at least min_p times as likely as the likeliest stay

    If top-k or top-p must choose among equally likely tokens, those with the lowest ids stay.
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
        """The most likely token of each row of ``logits`` [num_rows, vocab_size]: an array [num_rows] of token ids.

        Of equal logits the one with the lowest id counts.
        """
        raise NotImplementedError("Task 1: Sampler.greedy")

    # ---- Task 3: a draw

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        """Draw a token for each row of ``logits`` [num_rows, vocab_size], by the parameters of that row of ``rows``.

        The engine may begin a step before the tokens of the step before it are read. Then the token to draw is not the
        next one of each request, but the one that follows ``num_ahead`` tokens later.

        Before:
        - there is at least one row
        - in each row the largest logit is finite; others may be -inf
        - logits are float32, float16 or bfloat16
        After:
        - ``logits`` and ``rows`` are as they were
        Returns:
        - an array [num_rows] of token ids
        - of a row with ``row.params.temperature`` 0: what ``greedy`` gives; filters and noise do not matter
        - of any other row: the token with the largest sum of score and noise (``gumbel_noise``)
        - the key of its noise is ``row.key[0]`` and ``row.key[1] + len(row.output_token_ids) + num_ahead``, the latter
          modulo 2 ** 32
        - score and noise are computed in float32, whatever the type of the logits
        - a token with logit -inf is never drawn
        - nothing else decides: not the other rows, not the place in the batch, not *which* tokens the output has

        Example: with ``row.key`` (7, 3), 5 output tokens and ``num_ahead`` 1, the key of the noise is (7, 9).
        """
        raise NotImplementedError("Task 3: Sampler.draw")


# ---- Task 2: noise


def gumbel_noise(keys: mx.array, vocab_size: int) -> mx.array:
    """Numbers of the Gumbel distribution, [num_rows, vocab_size] in float32; row i depends on ``keys[i]`` alone.

    A u of 0 would give infinite noise, hence SMALLEST_UNIFORM. In float32 ``1 - u`` loses most digits of a small u, and
    small u give the large noise, the noise that wins. A loop over ``keys`` gives the right numbers, but pays per row
    what ``mx.vmap`` pays once.

    Before:
    - ``keys`` is [num_rows, 2] of uint32: two words are a key of MLX's generator
    Returns:
    - row i is ``-log(-log(1 - u))``, number by number
    - u is ``mx.random.uniform(shape=(vocab_size,), key=keys[i])``, from 0 to below 1
    - a u below SMALLEST_UNIFORM is replaced by SMALLEST_UNIFORM
    - each number is within 1e-5 of what exact arithmetic makes of its u

    Example::

        >>> noise = gumbel_noise(mx.array([[7, 0], [7, 14]], dtype=mx.uint32), 4)
        >>> [[round(number, 2) for number in row] for row in noise.tolist()]
        [[1.87, 0.52, -0.29, 0.25], [0.21, 2.51, 1.76, 1.84]]
    """
    raise NotImplementedError("Task 2: gumbel_noise")


# ---- Tasks 3 to 6: scores


def _column(values: Sequence[float]) -> mx.array:
    """Given. One number per row, as a column [num_rows, 1] in float32.

    Python's floats go further than float32: 1e-50 would become 0, and 1e50 inf. The nearest finite float32 above 0
    replaces such a number, and 0. (For a ``min_p`` of 0 that is 1.2e-38: a score below -87 is dropped, which changes no
    draw. Noise is between -2.9 and 22.9, so such a token could not win against the likeliest.)
    """
    limits = np.finfo(np.float32)
    return mx.array(np.clip(values, limits.tiny, limits.max).astype(np.float32)[:, None])


def _scores(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """How likely each token is, as a logarithm relative to the likeliest of its row; -inf for a dropped token.

    The conditions are given: a filter that no row asks for is not computed. Each filter is its own task. The scores of
    a row with temperature 0 do not matter: ``draw`` does not look at them.

    Before:
    - ``logits`` is [num_rows, vocab_size] in float32; ``params`` of each row says how to score it
    Returns:
    - an array like ``logits``; the largest score of a row is 0, so its likeliest token is never dropped
    - temperature (task 3): the distance of each logit to the largest of its row, divided by ``params.temperature``
    - top-k (task 4): the ``params.top_k`` most likely tokens stay; all of them if that is 0, or above vocab_size
    - top-p (task 5): of these, the nucleus for ``params.top_p`` stays; all of them if that is 1
    - min-p (task 6): of these, all that are at least ``params.min_p`` times as likely as the likeliest stay

    Example: tokens as likely as 8, 4, 3 and 1 have the scores 0, -0.69, -0.98 and -2.08. With ``top_k`` 3 and ``top_p``
    0.6 they are 0, -0.69, -inf and -inf: top-k leaves 15, and 8 of 15 is less than 0.6.
    """
    scores, params = logits, [row.params for row in rows]
    raise NotImplementedError("Task 3: the temperature in _scores")
    if any(p.top_k for p in params):
        raise NotImplementedError("Task 4: top-k in _scores")
    if any(p.top_p < 1 for p in params):
        raise NotImplementedError("Task 5: top-p in _scores")
    if any(p.min_p for p in params):
        raise NotImplementedError("Task 6: min-p in _scores")
    return scores


# ---- Task 4: top-k


def _keep_most_likely(scores: mx.array, num_kept: mx.array) -> mx.array:
    """``scores`` with -inf in place of all but the ``num_kept`` largest of each row; of equals the lowest ids stay.

    The k-th largest value is the border. If several tokens have that very score, some of them may have to go. A sort
    of ids (``mx.argsort``) need not keep the order of equal scores: on a CPU it does, so the tests cannot tell; MLX
    does not promise it. MLX does not check an index either: one past the end reads whatever is in memory there.

    Before:
    - ``scores`` is [num_rows, vocab_size]
    - ``num_kept`` is [num_rows, 1], whole numbers from 1 to vocab_size; the caller must see to that
    Returns:
    - exactly ``num_kept`` scores of each row are what they were; one that was -inf already may be among them
    - the others are -inf
    - of equal scores on the border, those with the lowest ids stay

    Example::

        >>> _keep_most_likely(mx.array([[-1.0, 0.0, -1.0, -2.0]]), mx.array([[2]])).tolist()
        [[-1.0, 0.0, -inf, -inf]]
    """
    raise NotImplementedError("Task 4: _keep_most_likely")


# ---- Task 5: top-p


def _num_in_nucleus(scores: mx.array, top_p: mx.array) -> mx.array:
    """The size of each row's nucleus: the fewest most likely tokens whose probabilities add up to ``top_p`` or more.

    A sum in float32 does not notice the least likely tokens, so it must not decide about them where ``top_p`` is 1.
    The sum of all probabilities may end below 1, and even below 0.999999.

    Before:
    - ``scores`` is [num_rows, vocab_size], the largest of each row is 0
    - ``top_p`` is [num_rows, 1], above 0 and at most 1
    Returns:
    - an array [num_rows, 1] of whole numbers, at least 1
    - at most vocab_size, even if the sum of all probabilities ends below ``top_p``
    - vocab_size where ``top_p`` is 1
    - probabilities are those of what is left: a token with score -inf has none, and the others add up to 1
    - the token that crosses ``top_p`` belongs to the nucleus

    Example::

        >>> scores = mx.log(mx.array([[4, 3, 2, 1], [4, 3, 2, 1]]) / 4)  # added up: 0.4, 0.7, 0.9 and 1 of all
        >>> _num_in_nucleus(scores, mx.array([[0.5], [1.0]])).tolist()
        [[2], [4]]
    """
    raise NotImplementedError("Task 5: _num_in_nucleus")


# ---- Task 6: min-p


def _keep_min_p(scores: mx.array, min_p: mx.array) -> mx.array:
    """``scores`` with -inf in place of tokens less than ``min_p`` times as likely as the likeliest of their row.

    Before:
    - ``scores`` is [num_rows, vocab_size], the largest of each row is 0
    - ``min_p`` is [num_rows, 1], above 0 and at most 1
    Returns:
    - with ``min_p`` 1 all tokens that are as likely as the likeliest stay, exactly
    - with a smaller one, a token that is just ``min_p`` times as likely stays, up to rounding: a logarithm in float32
      may fall on either side of the border

    Example::

        >>> _keep_min_p(mx.array([[0.0, -1.0, -2.0]]), mx.array([[0.3]])).tolist()
        [[0.0, -1.0, -inf]]
    """
    raise NotImplementedError("Task 6: _keep_min_p")
