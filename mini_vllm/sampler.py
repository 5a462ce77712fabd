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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mini_vllm.backend import mx
from mini_vllm.fast.tuning import compiled_on_gpu
from mini_vllm.sampling.by_rules import SamplesByRules
from mini_vllm.sampling.filters import drops_tokens, filter_scores, relative_scores
from mini_vllm.sampling.logit_rules import column
from mini_vllm.sampling.row import SamplerRow

#: Half a step of the generator, which gives multiples of 2 ** -32 from 0 on: no token gets infinite noise.
SMALLEST_UNIFORM = 2.0 ** -33


class Sampler(SamplesByRules):
    """Chooses the next token of every row of a batch. It is stateless: a draw depends only on the rows.

    ``sample``, which also adjusts logits and reports log-probabilities, is built on ``draw``.
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


def _draw(logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int) -> mx.array:
    """Draw a token for each row. Rows with equal keys at the same position get the same noise."""
    keys = mx.array(noise_keys(rows, num_ahead))
    if not any(drops_tokens(row) for row in rows):
        return _draw_by_temperature(logits, keys, column([row.params.temperature for row in rows]))
    return mx.argmax(filter_scores(logits, rows) + gumbel_noise(keys, logits.shape[1]), axis=-1)


def noisy_scores(logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
    """Return the scores of which ``Sampler.draw`` takes the largest per row; at temperature 0, the logits."""
    logits = logits.astype(mx.float32)
    sampled = [index for index, row in enumerate(rows) if row.params.temperature > 0]
    if sampled:
        drawn = [rows[index] for index in sampled]
        scores = filter_scores(logits[mx.array(sampled)], drawn)
        logits[mx.array(sampled)] = scores + gumbel_noise(mx.array(noise_keys(drawn, num_ahead)), logits.shape[1])
    return logits


def noise_keys(rows: Sequence[SamplerRow], num_ahead: int) -> NDArray[np.uint32]:
    """Return what determines the noise of each row, [num_rows, 2]."""
    numbers = np.array([(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead) for row in rows])
    return numbers.astype(np.uint32)


@compiled_on_gpu
def _draw_by_temperature(logits: mx.array, keys: mx.array, temperature: mx.array) -> mx.array:
    """Draw a token for each row when no filter drops a token. The scores are those of ``filter_scores``."""
    return mx.argmax(relative_scores(logits, temperature) + gumbel_noise(keys, logits.shape[1]), axis=-1)


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
