"""Split-KV decoding: many requests with a few tokens each, attended block by block directly from the pool.

Each split (request, block) gives a *partial*: the contribution of the block's tokens to the softmax of the request. It
consists of their weights relative to the highest score of the whole request, the sum of the weights, and the values
weighted by them. So the partials of a request are simply added. A prefix that several requests share gives a partial to
each of them, from one large product instead of many small ones: cascade attention.

Most steps have so few tokens that starting an operation takes longer than computing it: fewer operations are better.

Whole blocks are multiplied; slots that a request does not see get weight 0. So every slot must hold a number, even
slots after a context; the engine ensures that. On a CPU, MLX's ``gather_mm`` supports only float32, and so does this
module.
"""

from __future__ import annotations

import functools

from mini_vllm.backend import mx
from mini_vllm.fast.exp import exp_below_zero
from mini_vllm.fast.gather_attention import gather
from mini_vllm.fast.split_plan import PartialSums, SharedPrefix, SplitPlan
from mini_vllm.fast.streams import joined, streams

#: All weights of a prefix may be 0, if the request's other tokens score much higher.
SMALLEST_SUM = 1e-30


def attend_splits(queries: mx.array, pool: mx.array, plan: SplitPlan) -> mx.array:
    """Compute attention for each token, [num_tokens, num_heads, head_dim], like ``queries``, which are scaled."""
    if plan.row_tokens is not None:
        queries = queries[plan.row_tokens]
    blocks = _BlockPartials(queries, pool, plan)
    out = blocks.attended(plan.num_requests) if plan.sums is None else _add_up(blocks, queries, pool, plan, plan.sums)
    if plan.token_rows is not None:
        out = out[plan.token_rows]
    return out.astype(queries.dtype)


def _add_up(blocks: _BlockPartials, queries: mx.array, pool: mx.array, plan: SplitPlan, sums: PartialSums) -> mx.array:
    """Compute attention for each row, [num_rows, num_heads, head_dim], from the partials of its blocks and its
    prefix."""
    num_rows, num_heads, _ = queries.shape
    parts: list[_BlockPartials | _PrefixPartials] = [blocks]
    for prefix in plan.prefixes:
        with mx.stream(next(streams)):
            parts.append(_PrefixPartials(queries, pool, prefix))
    highest = joined([part.highest for part in parts])[sums.partials].max(axis=1)
    if sums.requests is not None:
        highest = mx.full((num_rows, num_heads), -mx.inf).at[sums.requests].maximum(highest)
    tops, start, partials = highest[sums.rows], 0, []
    for part in parts:
        end = start + part.highest.shape[0]
        with mx.stream(part.stream):
            partials.append(mx.concatenate(part.weigh(tops[start:end]), axis=-1))
        start = end
    # [num_partials, num_heads, head_dim + 1] → [num_sums, width, …] → [num_sums, …]
    out = (joined(partials)[sums.partials] * sums.factors).sum(axis=1)
    if sums.requests is not None:
        out = mx.zeros((num_rows, *out.shape[1:])).at[sums.requests].add(out)
    return out[..., :-1] / out[..., -1:]


class _BlockPartials:
    """The partials of all splits, for each row of their requests.

    Rows and query heads that share a KV head are multiplied together, [num_rows * group, head_dim] and [head_dim,
    block_size]. The heads of a single row are multiplied separately where products of one vector are much faster.
    """

    def __init__(self, queries: mx.array, pool: mx.array, plan: SplitPlan) -> None:
        self.stream = mx.default_stream(mx.default_device())  # the stream on which this part is computed
        self._num_rows, (_, self._num_heads, head_dim) = plan.num_rows, queries.shape
        num_blocks, num_both, block_size, _ = pool.shape
        self._products = plan.products
        self._matrices = pool.reshape(num_blocks * num_both, block_size, head_dim)
        num_splits = plan.mask.shape[0]
        #: The number of products per split.
        self._per_split = self._products.keys.shape[0] // num_splits
        heads_per_product = self._num_heads // self._per_split
        if self._num_rows > 1:
            queries = queries.reshape(-1, self._num_rows, self._per_split, heads_per_product, head_dim).swapaxes(1, 2)
        scores = mx.gather_mm(queries.reshape(-1, self._num_rows * heads_per_product, head_dim),
                              self._matrices.swapaxes(1, 2), self._products.queries, self._products.keys)
        shape = ((num_splits, self._num_heads) if self._num_rows == 1 else
                 (num_splits, self._per_split, self._num_rows, heads_per_product))
        #: [num_splits, num_heads, block_size], or [num_splits, products, num_rows, heads, block_size]
        self._scores = scores.reshape(*shape, block_size).astype(mx.float32) + plan.mask

    @functools.cached_property
    def highest(self) -> mx.array:
        """[num_splits * num_rows, num_heads]"""
        return self._to_rows(self._scores.max(axis=-1))

    def weigh(self, tops: mx.array) -> list[mx.array]:
        """Return the values weighted and the sums of weights, with scores relative to ``tops``.

        ``tops`` is [num_splits * num_rows, num_heads], the values [num_splits * num_rows, num_heads, head_dim], and the
        sums [num_splits * num_rows, num_heads, 1].
        """
        if self._num_rows > 1:
            tops = tops.reshape(-1, self._num_rows, self._per_split, self._num_heads // self._per_split).swapaxes(1, 2)
        weights = exp_below_zero(self._scores - tops[..., None])
        return [self._to_rows(self._weighted_values(weights)), self._to_rows(weights.sum(axis=-1, keepdims=True))]

    def attended(self, num_requests: int) -> mx.array:
        """Compute attention for each row, [num_requests * num_rows, num_heads, head_dim]; all requests have equally
        many splits."""
        scores = self._scores.reshape(num_requests, -1, *self._scores.shape[1:])
        tops = scores.max(axis=-1, keepdims=True).max(axis=1, keepdims=True)
        weights = exp_below_zero(scores - tops)
        sums = weights.sum(axis=-1, keepdims=True).sum(axis=1)
        return self._to_rows(self._weighted_values(weights).sum(axis=1) / sums)

    def _weighted_values(self, weights: mx.array) -> mx.array:
        """Multiply weights by values: […, block_size] → […, head_dim]"""
        num_products, block_size = self._products.weights.shape[0], weights.shape[-1]
        out = mx.gather_mm(weights.astype(self._matrices.dtype).reshape(num_products, -1, block_size), self._matrices,
                           self._products.weights, self._products.values)
        return out.reshape(*weights.shape[:-1], -1).astype(mx.float32)

    def _to_rows(self, x: mx.array) -> mx.array:
        """Reshape [n, products, num_rows, heads, …] → [n * num_rows, num_heads, …]"""
        return x if self._num_rows == 1 else x.swapaxes(1, 2).reshape(-1, self._num_heads, *x.shape[4:])


class _PrefixPartials:
    """The partials of all rows of the requests that share a prefix. In this class, each row counts as a request."""

    def __init__(self, queries: mx.array, pool: mx.array, prefix: SharedPrefix) -> None:
        self.stream = mx.default_stream(mx.default_device())  # the stream on which this part is computed
        keys, self._values = gather(pool, prefix.matrices)
        num_kv_heads, _, head_dim = keys.shape
        own = queries[prefix.row_ids]
        self._num_requests, self._num_heads, _ = own.shape
        stacked = own.reshape(self._num_requests, num_kv_heads, -1, head_dim).swapaxes(0, 1)
        #: [num_kv_heads, num_keys, num_requests * group], as in a tile
        self._scores = (keys @ stacked.reshape(num_kv_heads, -1, head_dim).swapaxes(1, 2)).astype(mx.float32)
        #: [num_requests, num_heads]
        self.highest = self._to_heads(self._scores.max(axis=1)).squeeze(-1)

    def _to_heads(self, x: mx.array) -> mx.array:
        """Reshape [num_kv_heads, num_requests * group, ...] → [num_requests, num_heads, ...]"""
        num_kv_heads = x.shape[0]
        return (x.reshape(num_kv_heads, self._num_requests, self._num_heads // num_kv_heads, -1).swapaxes(0, 1)
                .reshape(self._num_requests, self._num_heads, -1))

    def weigh(self, tops: mx.array) -> list[mx.array]:
        """Return weighted values and sums as ``_BlockPartials.weigh`` does, with ``tops`` [num_requests, num_heads]."""
        num_kv_heads = self._scores.shape[0]
        own_tops = tops.reshape(self._num_requests, num_kv_heads, -1).swapaxes(0, 1).reshape(num_kv_heads, 1, -1)
        weights = exp_below_zero(self._scores - own_tops)
        sums = weights.sum(axis=1)[..., None]
        if self._values.dtype == mx.float32:
            out = weights.swapaxes(1, 2) @ self._values
        else:  # thousands of values may sum to more than half precision holds: their mean does not
            shares = (weights.swapaxes(1, 2) / mx.maximum(sums, SMALLEST_SUM)).astype(self._values.dtype)
            out = (shares @ self._values).astype(mx.float32) * sums
        return [self._to_heads(out), self._to_heads(sums)]
