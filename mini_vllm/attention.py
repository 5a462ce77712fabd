"""Keys and values in blocks, and attention over them for a ragged batch.

    pools[layer]              [num_blocks, 2 * num_kv_heads, block_size, head_dim]: a block's keys, then its values
    position p of a request   block table[p // block_size], offset p % block_size

A step computes a flat row of tokens, requests that decode one token first, then those that compute a chunk:

    row      0   1   2 │ 3  4  5  6  7 │ 8  9
             A   B   C │ D  D  D  D  D │ E  E          no padding: each row is a token
    decode ────────────┘ └── chunks ────────────

All K/V of the step is written before any of it is read, so requests of one step can share a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mini_vllm.backend import mx


class PagedKVCache:
    """The K/V arrays of all layers, addressed by block id.

    Writing is in place only while nothing else holds the array: a stray reference would turn every token into a copy
    of the whole pool. Nobody but this class keeps one.
    """

    def __init__(self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int,
                 dtype: mx.Dtype) -> None:
        self.block_size = block_size
        self.pools = [mx.zeros((num_blocks, 2 * num_kv_heads, block_size, head_dim), dtype) for _ in range(num_layers)]
        #: Blocks copied since the start, counted once and not once a layer.
        self.num_copied_blocks = 0
        mx.eval(self.pools)

    @staticmethod
    def block_bytes(num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: mx.Dtype) -> int:
        """What one block costs in all layers together."""
        return 2 * num_layers * num_kv_heads * block_size * head_dim * dtype.size

    def write(self, layer: int, keys_values: mx.array, block_ids: mx.array, offsets: mx.array) -> None:
        """Store keys and values [num_tokens, 2 * num_kv_heads, head_dim] at (block, offset), one pair a token."""
        self.pools[layer][block_ids, :, offsets] = keys_values

    def write_one(self, layer: int, keys_values: mx.array, slot: mx.array) -> None:
        """The same for a single token at ``slot``, an array of its block and offset: half the cost on a CPU."""
        self.pools[layer] = mx.slice_update(self.pools[layer], keys_values[:, :, None], slot, axes=(0, 2))

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer. All sources are read before any is written."""
        if not copies:
            return
        sources, destinations = (mx.array(ids) for ids in zip(*copies))
        for pool in self.pools:
            pool[destinations] = pool[sources]
        self.num_copied_blocks += len(copies)


@dataclass(frozen=True)
class Span:
    """What one request computes in a step: ``num_new_tokens`` positions that end at ``context_len``."""

    block_ids: Sequence[int]
    num_new_tokens: int
    context_len: int


class AttentionPlan:
    """Where the tokens of a step are written and what each attends to: made once a step, used by every layer."""

    def __init__(self, spans: Sequence[Span], block_size: int) -> None:
        self.block_size = block_size
        self.num_decodes = sum(span.num_new_tokens == 1 for span in spans)
        self.decodes = spans[:self.num_decodes]
        self.chunks = spans[self.num_decodes:]
        if any(span.num_new_tokens == 1 for span in self.chunks):
            raise ValueError("requests that compute one token come first in a step")
        positions = np.concatenate([np.arange(span.context_len - span.num_new_tokens, span.context_len)
                                    for span in spans])
        blocks = np.concatenate([np.asarray(span.block_ids)[
            np.arange(span.context_len - span.num_new_tokens, span.context_len) // block_size] for span in spans])
        self.positions = mx.array(positions.astype(np.int32))
        self.block_ids = mx.array(blocks.astype(np.int32))
        self.offsets = mx.array((positions % block_size).astype(np.int32))
        #: Block and offset of the only token, if there is only one.
        self.slot = mx.array([int(blocks[0]), int(positions[0] % block_size)]) if len(positions) == 1 else None
        self.chunk_tables = [mx.array(np.asarray(span.block_ids[:self._num_blocks(span)], dtype=np.int32))
                             for span in self.chunks]
        if self.num_decodes == 1:
            span = self.decodes[0]
            self.table = mx.array(np.asarray(span.block_ids[:self._num_blocks(span)], dtype=np.int32))
        elif self.num_decodes > 1:
            self._plan_pairs()

    def _num_blocks(self, span: Span) -> int:
        return -(-span.context_len // self.block_size)

    def _plan_pairs(self) -> None:
        """Flatten all (request, block) pairs of the decoding requests; no request is padded to another's length."""
        counts = [self._num_blocks(span) for span in self.decodes]
        owners = np.repeat(np.arange(self.num_decodes), counts)
        blocks = np.concatenate([np.asarray(span.block_ids[:n]) for span, n in zip(self.decodes, counts)])
        firsts = np.concatenate([np.arange(n) * self.block_size for n in counts])
        lengths = np.asarray([span.context_len for span in self.decodes])[owners] - firsts
        self.pair_owners = mx.array(owners.astype(np.uint32))
        self.pair_blocks = mx.array(blocks.astype(np.uint32))
        #: 0 where the slot holds a token of the request, -inf where it does not.
        self.pair_mask = mx.array(np.where(np.arange(self.block_size) < lengths[:, None], 0.0, -np.inf)
                                  .astype(np.float32))


def paged_attention(queries: mx.array, pool: mx.array, plan: AttentionPlan, scale: float) -> mx.array:
    """What each token of the step sees. ``queries`` is [num_tokens, num_heads, head_dim], and so is the result."""
    parts = []
    n = plan.num_decodes
    if n == 1:
        parts.append(_attend_dense(queries[:1], pool, plan.table, plan.decodes[0], scale))
    elif n > 1:
        parts.append(_attend_pairs(queries[:n] if plan.chunks else queries, pool, plan, scale))
    for span, table in zip(plan.chunks, plan.chunk_tables):
        parts.append(_attend_dense(queries[n:n + span.num_new_tokens], pool, table, span, scale))
        n += span.num_new_tokens
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def _attend_dense(queries: mx.array, pool: mx.array, table: mx.array, span: Span, scale: float) -> mx.array:
    """One request by itself: bring its blocks together and attend as if they had never been apart."""
    _, num_both, block_size, head_dim = pool.shape
    together = pool[table].swapaxes(0, 1).reshape(1, num_both, table.shape[0] * block_size, head_dim)
    keys, values = mx.split(together[:, :, :span.context_len], 2, axis=1)
    out = mx.fast.scaled_dot_product_attention(queries.swapaxes(0, 1)[None], keys, values, scale=scale,
                                               mask="causal" if span.num_new_tokens > 1 else None)
    return out[0].swapaxes(0, 1)


def _attend_pairs(queries: mx.array, pool: mx.array, plan: AttentionPlan, scale: float) -> mx.array:
    """Many requests, one token each: multiply every (request, block) pair straight out of the pool.

    Each pair gives a partial softmax; the parts of a request are put together by their maxima and sums, as in
    attention with a running softmax. Query heads that share a KV head are multiplied one by one: a BLAS is far better
    at one row than at two or three.
    """
    num_requests, num_heads, head_dim = queries.shape
    num_blocks, num_both, block_size, _ = pool.shape
    num_kv_heads = num_both // 2
    owners, num_pairs = plan.pair_owners, plan.pair_blocks.shape[0]
    heads = mx.arange(num_heads, dtype=mx.uint32)
    rows = owners[:, None] * num_heads + heads  # [num_pairs, num_heads]: which query
    cells = plan.pair_blocks[:, None] * num_both + heads // (num_heads // num_kv_heads)  # which keys of the pool
    matrices = pool.reshape(num_blocks * num_both, block_size, head_dim)

    scores = mx.gather_mm((queries * scale).reshape(num_requests * num_heads, 1, head_dim), matrices.swapaxes(1, 2),
                          lhs_indices=rows, rhs_indices=cells).squeeze(2)
    scores = scores.astype(mx.float32) + plan.pair_mask[:, None]
    highest = mx.full((num_requests, num_heads), -mx.inf).at[owners].maximum(scores.max(axis=-1))
    weights = mx.exp(scores - highest[owners][..., None])
    total = mx.zeros((num_requests, num_heads)).at[owners].add(weights.sum(axis=-1))
    parts = mx.gather_mm(weights.astype(pool.dtype).reshape(num_pairs * num_heads, 1, block_size), matrices,
                         rhs_indices=(cells + num_kv_heads).reshape(-1))  # a block's values stand behind its keys
    parts = parts.reshape(num_pairs, num_heads, head_dim)
    out = mx.zeros((num_requests, num_heads, head_dim)).at[owners].add(parts)
    return (out / total[..., None]).astype(queries.dtype)
