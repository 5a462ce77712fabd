"""Attention for a single request: gather its blocks, and attend as if they were contiguous.

A long chunk is attended in tiles: a tile of queries needs no keys after its own last token, nor any before the window
of its first.

    keys      0 ─────────────────────────▶ context_len
    tile 0    ██████████░
    tile 1    ███████████████░
    tile 2    ████████████████████░
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.attention import visible_keys
from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.exp import exp_below_zero
from mini_vllm.fast.request_span import Span
from mini_vllm.fast.streams import joined, streams


class GatherPlan:
    """The blocks of a span, and the masks of its tiles. Both are created once per step and used by every layer."""

    def __init__(self, span: Span, num_kv_heads: int, block_size: int, masks: CausalMasks) -> None:
        self.num_tokens, self.context_len = span.num_queries, span.context_len
        self.matrices = matrix_ids(span.block_ids[:span.num_blocks(block_size)], 2 * num_kv_heads)
        self.masks = masks


class CausalMasks:
    """The keys that a tile's queries see; the last query and the last key belong to the same token.

    Tiles of one size share their mask, across requests and layers.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self._additive: dict[tuple[int, int, int], mx.array] = {}
        self._boolean: dict[tuple[int, int], mx.array] = {}

    def additive(self, num_queries: int, num_keys: int, group: int) -> mx.array:
        """Return a mask [num_keys, group * num_queries]: -inf where a query does not see a key, else 0.

        It is repeated for each of the query heads that share a KV head.
        """
        if (num_queries, num_keys, group) not in self._additive:
            visible = visible_keys(num_queries, num_keys, self.window).T
            mask = np.where(visible, np.float32(0), np.float32(-np.inf))
            self._additive[num_queries, num_keys, group] = mx.array(np.tile(mask, group))
        return self._additive[num_queries, num_keys, group]

    def for_mlx(self, num_queries: int, num_keys: int) -> mx.array | str | None:
        """Return the mask for MLX's own attention: a keyword where one is enough, else [num_queries, num_keys]."""
        if self.window is None or num_keys <= self.window:
            return "causal" if num_queries > 1 else None
        if (num_queries, num_keys) not in self._boolean:
            self._boolean[num_queries, num_keys] = mx.array(visible_keys(num_queries, num_keys, self.window))
        return self._boolean[num_queries, num_keys]


def matrix_ids(block_ids: Sequence[int], num_both: int) -> mx.array:
    """Return the indices of the blocks' matrices in the pool, [num_both, num_blocks].

    A matrix is [block_size, head_dim], and each block has ``num_both`` of them. Row i contains the i-th of every block.
    """
    ids = np.asarray(block_ids) * num_both + np.arange(num_both)[:, None]
    return mx.array(ids.astype(np.uint32))


def gather(pool: mx.array, matrices: mx.array) -> tuple[mx.array, mx.array]:
    """Copy the keys and values of some blocks, each [num_kv_heads, num_tokens, head_dim]."""
    num_blocks, num_both, block_size, head_dim = pool.shape
    gathered = pool.reshape(num_blocks * num_both, block_size, head_dim)[matrices]
    both = gathered.reshape(num_both, matrices.shape[1] * block_size, head_dim)
    return both[:num_both // 2], both[num_both // 2:]


def attend_gathered(queries: mx.array, pool: mx.array, plan: GatherPlan, scale: float) -> mx.array:
    """Compute attention for each token of one request, [num_queries, num_heads, head_dim], like ``queries``."""
    first, window = plan.context_len - plan.num_tokens, plan.masks.window
    stream = next(streams)
    with mx.stream(stream):
        keys, values = gather(pool, plan.matrices)
    queries = queries.swapaxes(0, 1)
    tiles = []
    for start in range(0, plan.num_tokens, tuning.QUERY_TILE):
        end = min(start + tuning.QUERY_TILE, plan.num_tokens)
        seen = slice(0 if window is None else max(first + start + 1 - window, 0), first + end)
        num_queries, num_keys = end - start, seen.stop - seen.start
        tile = queries[:, start:end], keys[:, seen], values[:, seen]
        if num_queries == 1 or not tuning.softmax_by_hand_is_faster():
            with mx.stream(stream):
                tiles.append(_attend_by_mlx(*tile, plan.masks.for_mlx(num_queries, num_keys), scale))
        else:
            group = queries.shape[0] // keys.shape[0]
            tiles.append(_attend_by_hand(*tile, plan.masks.additive(num_queries, num_keys, group), scale))
    out = tiles[0] if len(tiles) == 1 else mx.concatenate(tiles, axis=1)
    return out.swapaxes(0, 1)


def _attend_by_mlx(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | str | None,
                   scale: float) -> mx.array:
    return mx.fast.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=scale, mask=mask)[0]


def _attend_by_hand(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array, scale: float) -> mx.array:
    """Compute the same, with the softmax of half of the heads on each stream.

    Products stay on one stream: a product uses all cores, and two at a time only slow each other down. ``queries`` is
    [num_heads, num_queries, head_dim], keys and values [num_kv_heads, num_keys, head_dim].
    """
    num_heads, num_queries, head_dim = queries.shape
    num_kv_heads = keys.shape[0]
    stacked = (queries * scale).reshape(num_kv_heads, num_heads // num_kv_heads * num_queries, head_dim)
    # [num_kv_heads, num_keys, group * num_queries]: MLX reduces columns faster than rows
    scores = (keys @ stacked.swapaxes(1, 2)).astype(mx.float32)
    middle = -(-num_kv_heads // 2)
    halves = [slice(middle), slice(middle, None)] if num_kv_heads > 1 else [slice(None)]
    weights, sums = [], []
    for half in halves:
        with mx.stream(next(streams)):
            masked = scores[half] + mask
            weights.append(exp_below_zero(masked - masked.max(axis=1, keepdims=True)))
            sums.append(weights[-1].sum(axis=1)[..., None])
    outs = [weights[i].astype(values.dtype).swapaxes(1, 2) @ values[half] / sums[i] for i, half in enumerate(halves)]
    return joined(outs).astype(queries.dtype).reshape(num_heads, num_queries, head_dim)
