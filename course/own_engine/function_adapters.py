"""Parts made of functions on numpy arrays and lists: attention in numpy, and a sampler that calls a function.

The attention never sees the real pool. It gets a small pool that contains just the blocks of the requests of a step,
and tables with the positions of the blocks in it:

    the engine   pool of 400 blocks,  tables [[17, 3], [17, 210, 8]]
    passed on    pool of 4 blocks:    3, 8, 17, 210      tables [[2, 0], [2, 3, 1]]

The reference's sampler draws by the Gumbel-max trick: it adds random numbers to the scores and takes the largest sum.
So a function that finds the largest number of a list can choose tokens at any temperature, given the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.sampler import Sampler, filter_scores, gumbel_noise, noise_keys

#: queries, k_pool, v_pool, block_tables, query_lens, context_lens → the attention output of each query
Ragged = Callable[..., npt.NDArray[Any]]


class NumpyAttention:
    """Calls a function like ``ragged_paged_attention(queries, k_pool, v_pool, block_tables, query_lens, context_lens)``
    with numpy arrays, and converts its result to MLX."""

    def __init__(self, ragged: Ragged) -> None:
        self.ragged = ragged

    def __call__(self, queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                 context_lens: Sequence[int], query_starts: Sequence[int], scale: float,
                 window: int | None = None) -> mx.array:
        """Compute attention.

        Raise ValueError for a model with a sliding window, or a scale other than 1 / sqrt(head_dim).
        """
        _, num_both, block_size, head_dim = pool.shape
        if window is not None:
            raise ValueError(f"this attention supports no sliding window, but the model has one of {window} tokens")
        if not np.isclose(scale, head_dim ** -0.5):
            raise ValueError(f"this attention scales by 1 / sqrt({head_dim}), and the model by {scale}")
        used = [list(table[:-(-context_len // block_size)]) for table, context_len in zip(block_tables, context_lens)]
        block_ids = sorted({block_id for table in used for block_id in table})
        place = {block_id: index for index, block_id in enumerate(block_ids)}
        blocks = np.asarray(pool[mx.array(block_ids)].astype(mx.float32))
        keys, values = blocks[:, :num_both // 2], blocks[:, num_both // 2:]
        out = self.ragged(np.asarray(queries.astype(mx.float32)), keys, values,
                          [[place[block_id] for block_id in table] for table in used],
                          np.diff(query_starts).tolist(), list(context_lens))
        return mx.array(np.asarray(out, dtype=np.float32)).astype(queries.dtype)


def sampler_that_asks(choose: Callable[[list[float]], Any]) -> type[Sampler]:
    """Return a sampler class. ``choose`` gets the scores of all tokens, and returns the id of the largest."""
    class AskingSampler(Sampler):
        def greedy(self, logits: mx.array) -> mx.array:
            rows = cast(list[list[float]], logits.astype(mx.float32).tolist())
            return mx.array([_checked(choose(row), len(row)) for row in rows], dtype=mx.uint32)

        def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
            return self.greedy(_noisy_scores(logits, rows, num_ahead))

    return AskingSampler


def _noisy_scores(logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
    """Return the scores of which ``Sampler.draw`` takes the largest per row; at temperature 0, the logits."""
    logits = logits.astype(mx.float32)
    sampled = [index for index, row in enumerate(rows) if row.params.temperature > 0]
    if sampled:
        drawn = [rows[index] for index in sampled]
        scores = filter_scores(logits[mx.array(sampled)], drawn)
        logits[mx.array(sampled)] = scores + gumbel_noise(mx.array(noise_keys(drawn, num_ahead)), logits.shape[1])
    return logits


def _checked(token_id: Any, vocab_size: int) -> int:
    if type(token_id) is not int or not 0 <= token_id < vocab_size:
        raise ValueError(f"the function that chooses a token returned {token_id!r:.80}, must be an int from 0 to "
                         f"{vocab_size - 1}")
    return token_id
