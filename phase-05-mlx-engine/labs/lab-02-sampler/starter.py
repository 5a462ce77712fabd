"""The sampler: from the logits of a batch to the next token of each row.

Every row belongs to one request and is drawn with that request's parameters. All rows are drawn at once:

    logits ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ scores ─┬─▶ the largest sum wins
                                            key of the row ─▶ noise ─┘

The rules of this lab:

 1. **Greedy.** With temperature 0, take the token with the largest logit; among equal logits, the lowest id.
 2. **The Gumbel-max trick.** Otherwise every token has a *score* (the logarithm of its relative probability, or -inf if
    a filter dropped it) and *noise* (a random number from the Gumbel distribution). The token with the largest sum of
    score and noise wins. Token i wins with probability ``softmax(scores)[i]``, exactly.
 3. **Where the noise comes from.** The noise is a function of the request's key and of the number of tokens that the
    request has generated; nothing is remembered between two calls. So the same seed gives the same tokens, whatever
    else is in the batch, wherever in the batch the row is, and however often the request was preempted.
 4. **Filters**, in this order: temperature, top-k, top-p, min-p. Each filter sees only the tokens that the previous one
    kept. A row without a filter is not affected by another row's filter.

        temperature   each logit's distance to the largest logit of its row is divided by the temperature
        top-k         the top_k most likely tokens stay; all tokens if top_k is 0 or above vocab_size
        top-p         the nucleus stays: the smallest number of most likely tokens whose probabilities add up to top_p
                      or more; all tokens if top_p is 1
        min-p         tokens that are at least min_p times as likely as the most likely token stay

    If top-k or top-p must choose among equally likely tokens, those with the lowest ids stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow

#: Half of the generator's resolution: the generator returns multiples of 2 ** -32, beginning with 0.
SMALLEST_UNIFORM = 2.0 ** -33


class Sampler:
    """Draws the next token of every row of a batch. It has no state: everything that a draw needs is in the rows."""

    # ---- Task 1: greedy

    def greedy(self, logits: mx.array) -> mx.array:
        """Return the most likely token id of each row of ``logits`` [num_rows, vocab_size], as an array [num_rows].

        Among equal logits the lowest id wins.
        """
        raise NotImplementedError("Task 1: Sampler.greedy")

    # ---- Task 3: a draw

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        """Draw a token for each row of ``logits`` [num_rows, vocab_size], with the parameters of that row in ``rows``.

        The engine may begin a step before it has read the tokens of the previous step. Then the token to draw is not
        the next one of each request, but the one ``num_ahead`` positions later.

        Before:
        - there is at least one row
        - in each row the largest logit is finite; others may be -inf
        - logits are float32, float16 or bfloat16
        After:
        - ``logits`` and ``rows`` have not changed
        Returns:
        - an array [num_rows] of token ids
        - for a row with ``row.params.temperature`` 0: the token that ``greedy`` returns; filters and noise do not
          matter
        - for any other row: the token with the largest sum of score and noise (``gumbel_noise``)
        - the key of its noise is ``row.key[0]`` and ``row.key[1] + len(row.output_token_ids) + num_ahead``, the latter
          modulo 2 ** 32
        - score and noise are computed in float32, whatever the type of the logits
        - a token with logit -inf is never drawn
        - the token depends on nothing else: not on the other rows, not on the place in the batch, and not on *which*
          tokens the output contains

        Example: with ``row.key`` (7, 3), 5 output tokens and ``num_ahead`` 1, the key of the noise is (7, 9).
        """
        raise NotImplementedError("Task 3: Sampler.draw")


# ---- Task 2: noise


def gumbel_noise(keys: mx.array, vocab_size: int) -> mx.array:
    """Return numbers from the Gumbel distribution, [num_rows, vocab_size] float32; row i depends only on ``keys[i]``.

    Each number is computed from a uniform random number u. If u were 0, the noise would be infinite, so
    SMALLEST_UNIFORM replaces it. In float32, ``1 - u`` loses most digits of a small u. Small values of u matter most,
    because they give the large noise that wins. A loop over ``keys`` gives the right numbers, but it pays a fixed cost
    per row that ``mx.vmap`` pays only once.

    Before:
    - ``keys`` is [num_rows, 2] of uint32: two words form one key of MLX's generator
    Returns:
    - row i is ``-log(-log(1 - u))``, element by element
    - u is ``mx.random.uniform(shape=(vocab_size,), key=keys[i])``, from 0 to below 1
    - a u below SMALLEST_UNIFORM is replaced by SMALLEST_UNIFORM
    - each number is within 1e-5 of the exact result for its u

    Example::

        >>> noise = gumbel_noise(mx.array([[7, 0], [7, 14]], dtype=mx.uint32), 4)
        >>> [[round(number, 2) for number in row] for row in noise.tolist()]
        [[1.87, 0.52, -0.29, 0.25], [0.21, 2.51, 1.76, 1.84]]
    """
    raise NotImplementedError("Task 2: gumbel_noise")


# ---- Tasks 3 to 6: scores


def _column(values: Sequence[float]) -> mx.array:
    """Return one number per row, as a column [num_rows, 1] in float32. Given.

    Python floats have a larger range than float32: 1e-50 would become 0, and 1e50 inf. The nearest finite float32 above
    0 replaces such a number, and every 0 is replaced in the same way. (For a ``min_p`` of 0 the replacement is 1.2e-38:
    a score below -87 is dropped, which changes no draw. Noise is between -2.9 and 22.9, so such a token could not win
    against the most likely one.)
    """
    limits = np.finfo(np.float32)
    return mx.array(np.clip(values, limits.tiny, limits.max).astype(np.float32)[:, None])


def _scores(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Return the score of each token: the logarithm of its probability relative to the most likely token of its row.

    A dropped token has the score -inf. The ``if`` statements are given: a filter that no row uses is not computed. Each
    filter is a separate task. The scores of a row with temperature 0 do not matter, because ``draw`` ignores them.

    Before:
    - ``logits`` is [num_rows, vocab_size] in float32; the ``params`` of each row say how to score it
    Returns:
    - an array like ``logits``; the largest score of a row is 0, so its most likely token is never dropped
    - temperature (task 3): each logit's distance to the largest logit of its row, divided by ``params.temperature``
    - top-k (task 4): the ``params.top_k`` most likely tokens stay; all tokens if it is 0 or above vocab_size
    - top-p (task 5): of these, the nucleus for ``params.top_p`` stays; all of these if it is 1
    - min-p (task 6): of these, all that are at least ``params.min_p`` times as likely as the most likely token stay

    Example: tokens with the weights 8, 4, 3 and 1 have the scores 0, -0.69, -0.98 and -2.08. With ``top_k`` 3 and
    ``top_p`` 0.6 the scores are 0, -0.69, -inf and -inf: top-k keeps a total weight of 15, and 8 of 15 is less than
    0.6.
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
    """Return ``scores`` with all but the ``num_kept`` largest of each row replaced by -inf.

    The k-th largest value is the border. If several tokens have exactly that score, some of them may have to be
    dropped. A sort of ids (``mx.argsort``) may change the order of equal scores: on a CPU it keeps that order, so the
    tests cannot tell, but MLX does not promise it. MLX also does not check an index: an index past the end reads
    whatever is in memory there.

    Before:
    - ``scores`` is [num_rows, vocab_size]
    - ``num_kept`` is [num_rows, 1], integers from 1 to vocab_size; the caller must ensure this
    Returns:
    - exactly ``num_kept`` scores of each row are unchanged; a score that was already -inf may be one of them
    - the others are -inf
    - of equal scores on the border, those with the lowest ids stay

    Example::

        >>> _keep_most_likely(mx.array([[-1.0, 0.0, -1.0, -2.0]]), mx.array([[2]])).tolist()
        [[-1.0, 0.0, -inf, -inf]]
    """
    raise NotImplementedError("Task 4: _keep_most_likely")


# ---- Task 5: top-p


def _num_in_nucleus(scores: mx.array, top_p: mx.array) -> mx.array:
    """Return the size of each row's nucleus.

    The nucleus is the smallest number of most likely tokens whose probabilities add up to ``top_p`` or more. In
    float32, adding a very unlikely token does not change the sum. So where ``top_p`` is 1, do not let the sum decide
    which tokens stay. The sum of all probabilities may also end below 1, and even below 0.999999.

    Before:
    - ``scores`` is [num_rows, vocab_size], the largest of each row is 0
    - ``top_p`` is [num_rows, 1], above 0 and at most 1
    Returns:
    - an array [num_rows, 1] of integers, at least 1
    - at most vocab_size, even if the sum of all probabilities ends below ``top_p``
    - vocab_size where ``top_p`` is 1
    - probabilities are those of the tokens that are left: a token with score -inf has probability 0, and the others
      add up to 1
    - the token that crosses ``top_p`` belongs to the nucleus

    Example::

        >>> scores = mx.log(mx.array([[4, 3, 2, 1], [4, 3, 2, 1]]) / 4)  # running sums: 0.4, 0.7, 0.9, 1
        >>> _num_in_nucleus(scores, mx.array([[0.5], [1.0]])).tolist()
        [[2], [4]]
    """
    raise NotImplementedError("Task 5: _num_in_nucleus")


# ---- Task 6: min-p


def _keep_min_p(scores: mx.array, min_p: mx.array) -> mx.array:
    """Return ``scores`` with -inf for tokens less than ``min_p`` times as likely as the most likely one of their row.

    Before:
    - ``scores`` is [num_rows, vocab_size], the largest of each row is 0
    - ``min_p`` is [num_rows, 1], above 0 and at most 1
    Returns:
    - with ``min_p`` 1, exactly the tokens that are as likely as the most likely one stay
    - with a smaller ``min_p``, a token that is exactly ``min_p`` times as likely stays, up to rounding: a logarithm in
      float32 may fall on either side of the border

    Example::

        >>> _keep_min_p(mx.array([[0.0, -1.0, -2.0]]), mx.array([[0.3]])).tolist()
        [[0.0, -1.0, -inf]]
    """
    raise NotImplementedError("Task 6: _keep_min_p")
