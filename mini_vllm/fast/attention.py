"""``paged_attention`` for speed: the same call, and the same results except for rounding.

Requests that compute equally few tokens, next to each other in the step, attend together. Their blocks are multiplied
where they are: ``gather_mm`` finds matrices by their index in the pool. Short tables are filled up to the longest one,
and what a token does not see gets weight 0.

    request   blocks          products with queries, then with values
    A         1 2 3 4         (A, 1) (A, 2) (A, 3) (A, 4)
    B         5 6             (B, 5) (B, 6) (B, 6) (B, 6)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx

#: Requests that compute more tokens than this attend one by one: a chunk of a prompt fills a product by itself.
MAX_TOGETHER = 8
#: Requests attend together if filling up their tables multiplies the number of blocks by at most this.
MAX_FILLED = 2
#: A ``gather_mm`` of more products does not start on CUDA, which counts thread blocks in 16 bits.
MAX_PRODUCTS = 65_535


class Batch(NamedTuple):
    """The three lists that attention is called with."""

    block_tables: tuple[tuple[int, ...], ...]
    context_lens: tuple[int, ...]
    query_starts: tuple[int, ...]


class FastAttention:
    """The attention of one engine, whose layers all have the same shape.

    It is called once per layer, and plans once per step: as long as tables, lengths and starts are equal. Slots after a
    context must hold numbers, any numbers.
    """

    def __init__(self) -> None:
        self._batch: Batch | None = None
        #: By window.
        self._parts: dict[int | None, list[_Together | _Alone]] = {}

    def __call__(self, queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                 context_lens: Sequence[int], query_starts: Sequence[int], scale: float,
                 window: int | None = None) -> mx.array:
        """Compute attention like ``paged_attention``."""
        batch = Batch(tuple(map(tuple, block_tables)), tuple(context_lens), tuple(query_starts))
        if batch != self._batch:
            self._batch, self._parts = batch, {}
        if window not in self._parts:
            self._parts[window] = list(_plan(batch, pool.shape[1] // 2, pool.shape[2], window))
        outs = [part.attend(queries[part.tokens], pool, scale) for part in self._parts[window]]
        return mx.concatenate(outs) if len(outs) > 1 else outs[0]


def _plan(batch: Batch, num_kv_heads: int, block_size: int, window: int | None) -> Iterator[_Together | _Alone]:
    """Yield the requests of a step, those that attend together as one part."""
    nums = np.diff(batch.query_starts).tolist()
    num_blocks = [-(-context_len // block_size) for context_len in batch.context_lens]
    start = 0
    while start < len(nums):
        end, most, total = start + 1, num_blocks[start], num_blocks[start]
        while end < len(nums) and nums[end] == nums[start] <= MAX_TOGETHER:
            most, total = max(most, num_blocks[end]), total + num_blocks[end]
            num_filled = most * (end + 1 - start)
            if num_filled > MAX_FILLED * total or num_filled * num_kv_heads > MAX_PRODUCTS:
                break
            end += 1
        starts = batch.query_starts[start:end + 1]
        part = Batch(batch.block_tables[start:end], batch.context_lens[start:end], starts)
        yield _Alone(part, window) if end == start + 1 else _Together(part, num_kv_heads, block_size, window)
        start = end


class _Alone:
    """One request."""

    def __init__(self, batch: Batch, window: int | None) -> None:
        self.tokens, self._window = slice(*batch.query_starts), window
        self._batch = batch._replace(query_starts=(0, self.tokens.stop - self.tokens.start))

    def attend(self, queries: mx.array, pool: mx.array, scale: float) -> mx.array:
        return paged_attention(queries, pool, *self._batch, scale, self._window)


class _Together:
    """Several requests that compute equally many tokens."""

    def __init__(self, batch: Batch, num_kv_heads: int, block_size: int, window: int | None) -> None:
        tables, lens, starts = batch
        self.tokens = slice(starts[0], starts[-1])
        self._num_requests, num_queries = len(tables), starts[1] - starts[0]
        num_blocks = [-(-context_len // block_size) for context_len in lens]
        width = max(num_blocks)
        # Filled up with blocks of the same request, so that nothing wrong in one request reaches another.
        blocks = np.array([table[:num] + table[num - 1:num] * (width - num) for table, num in zip(tables, num_blocks)])
        # A block is 2 * num_kv_heads matrices, keys before values; a request has a matrix of queries per KV head.
        heads = np.arange(num_kv_heads)
        keys = blocks[..., None] * 2 * num_kv_heads + heads
        queries = np.broadcast_to(np.arange(len(tables))[:, None, None] * num_kv_heads + heads, keys.shape)
        self._queries, self._keys, self._values, self._weights = map(
            _indices, (queries, keys, keys + num_kv_heads, np.arange(keys.size)))
        # [num_requests, width, 1, 1, num_queries, block_size], as scores are below
        positions = np.asarray(lens).reshape(-1, 1, 1, 1, 1, 1) - num_queries + np.arange(num_queries)[:, None]
        slots = np.arange(width * block_size).reshape(width, 1, 1, 1, block_size)
        seen = slots <= positions
        if window is not None:
            seen &= slots > positions - window
        self._mask = mx.array(np.where(seen, np.float32(0), np.float32(-np.inf)))

    def attend(self, queries: mx.array, pool: mx.array, scale: float) -> mx.array:
        _, num_both, block_size, head_dim = pool.shape
        num_requests, width, _, _, num_queries, _ = self._mask.shape
        matrices = pool.reshape(-1, block_size, head_dim)
        shape = (num_requests, width, num_both // 2, -1, num_queries)
        # Query heads that share a KV head are one matrix, [group * num_queries, head_dim].
        heads = (queries * scale).reshape(num_requests, num_queries, -1, head_dim).swapaxes(1, 2)
        rows = heads.reshape(num_requests * num_both // 2, -1, head_dim)
        scores = mx.gather_mm(rows, matrices.swapaxes(1, 2), self._queries, self._keys).astype(mx.float32)
        scores = scores.reshape(*shape, block_size) + self._mask
        weights = mx.exp(scores - scores.max(axis=-1, keepdims=True).max(axis=1, keepdims=True))
        sums = weights.sum(axis=-1, keepdims=True).sum(axis=1)
        weights = weights.astype(pool.dtype).reshape(len(self._weights), -1, block_size)
        out = mx.gather_mm(weights, matrices, self._weights, self._values).astype(mx.float32)
        out = out.reshape(*shape, head_dim).sum(axis=1) / sums  # [num_requests, KV heads, group, num_queries, head_dim]
        return out.reshape(num_requests, -1, num_queries, head_dim).swapaxes(1, 2).reshape(
            queries.shape).astype(queries.dtype)


def _indices(numbers: npt.NDArray[np.integer]) -> mx.array:
    return mx.array(numbers.reshape(-1).astype(np.uint32))
