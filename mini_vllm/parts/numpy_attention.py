"""Attention written in numpy, as a replacement for the engine's.

It never sees the real pool. It gets a small pool that contains just the blocks of the requests of a step, and tables
with the positions of the blocks in it:

    the engine   pool of 400 blocks,  tables [[17, 3], [17, 210, 8]]
    passed on    pool of 4 blocks:    3, 8, 17, 210      tables [[2, 0], [2, 3, 1]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx

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
