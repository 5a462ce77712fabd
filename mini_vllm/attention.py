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

from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.exp import exp_below_zero
from mini_vllm.fast.plan import AttentionPlan, BlockTable, PairPlan, SharedPrefix, Span
from mini_vllm.fast.streams import streams

#: Weights of a prefix may all be 0, if the request's other tokens score so much higher.
SMALLEST_SUM = 1e-30


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

    def write(self, layer: int, keys_values: mx.array, rows: mx.array) -> None:
        """Store keys and values [num_tokens, 2 * num_kv_heads, head_dim], each vector in its row of the pool."""
        pool = self.pools[layer]
        vectors = pool.reshape(-1, pool.shape[-1])
        vectors[rows] = keys_values.reshape(-1, pool.shape[-1])
        self.pools[layer] = vectors.reshape(pool.shape)

    def write_one(self, layer: int, keys_values: mx.array, slot: mx.array) -> None:
        """The same for a single token at ``slot``, an array of its block and offset: half the cost on a CPU."""
        self.pools[layer] = mx.slice_update(self.pools[layer], keys_values[:, :, None], slot, axes=(0, 2))

    def write_run(self, layer: int, keys_values: mx.array, block_id: int, slots: slice) -> None:
        """The same for tokens that stand side by side in one block."""
        self.pools[layer][block_id, :, slots] = keys_values.swapaxes(0, 1)

    def write_step(self, layer: int, keys_values: mx.array, plan: AttentionPlan) -> None:
        """Store keys and values of all tokens of a step."""
        if plan.slot is not None:
            self.write_one(layer, keys_values, plan.slot)
            return
        num_one_by_one, num_both = len(plan.blocks), keys_values.shape[1]
        if num_one_by_one:
            self.write(layer, keys_values[:num_one_by_one], plan.rows(num_both))
        for run in plan.runs:
            self.write_run(layer, keys_values[run.rows], run.block_id, run.slots)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, as if one after the other.

        A source may be the destination of an earlier copy, whose own source then serves both.
        """
        if not copies:
            return
        origins: dict[int, int] = {}
        for source, destination in copies:
            origins[destination] = origins.get(source, source)
        sources, destinations = mx.array(list(origins.values())), mx.array(list(origins))
        copied = [pool[sources] for pool in self.pools]
        mx.eval(copied)  # a pool that is still to be read is not written in place: all of it would be copied
        for pool, blocks in zip(self.pools, copied):
            pool[destinations] = blocks
        self.num_copied_blocks += len(copies)

    def clear_blocks(self, block_ids: Sequence[int]) -> None:
        """Put zeros into whole blocks of every layer."""
        if block_ids:
            cleared = mx.array(block_ids)
            for pool in self.pools:
                pool[cleared] = 0

    def clear_slots(self, slots: Sequence[tuple[int, int]]) -> None:
        """Put zeros into single slots (block, offset) of every layer."""
        blocks, offsets = mx.array([block_id for block_id, _ in slots]), mx.array([offset for _, offset in slots])
        for pool in self.pools:
            pool[blocks, :, offsets] = 0


def paged_attention(queries: mx.array, pool: mx.array, plan: AttentionPlan, scale: float) -> mx.array:
    """What each token of the step sees. ``queries`` is [num_tokens, num_heads, head_dim], and so is the result."""
    parts, start = [], 0
    if plan.pairs:
        scaled = queries[:sum(pairs.num_requests for pairs in plan.pairs)] * scale
        for pairs in plan.pairs:
            end = start + pairs.num_requests
            with mx.stream(next(streams)):
                parts.append(_attend_pairs(scaled[start:end], pool, pairs))
            start = end
    for span, table in zip(plan.dense, plan.tables):
        end = start + span.num_new_tokens
        parts.append(_attend_dense(queries[start:end], pool, table, span, plan, scale))
        start = end
    return _joined(parts) if parts else queries


def _attend_dense(queries: mx.array, pool: mx.array, table: BlockTable, span: Span, plan: AttentionPlan,
                  scale: float) -> mx.array:
    """One request by itself: bring its blocks together and attend as if they had never been apart.

    A long chunk is attended in tiles: a tile of queries needs no keys after its own last one, nor any before the window
    of its first.
    """
    first = span.context_len - span.num_new_tokens
    stream = next(streams)
    with mx.stream(stream):
        keys, values = _together(pool, table)
    queries = queries.swapaxes(0, 1)
    tiles = []
    for start in range(0, span.num_new_tokens, tuning.QUERY_TILE):
        end = min(start + tuning.QUERY_TILE, span.num_new_tokens)
        first_key = 0 if plan.window is None else max(first + start + 1 - plan.window, 0)
        tile = queries[:, start:end], *(part[:, first_key:first + end] for part in (keys, values))
        if not tuning.softmax_by_hand_is_faster() or end - start == 1:
            with mx.stream(stream):
                mask = plan.visible(end - start, first + end - first_key)
                tiles.append(mx.fast.scaled_dot_product_attention(*(part[None] for part in tile), scale=scale,
                                                                  mask=mask)[0])
        else:
            mask = plan.mask(end - start, first + end - first_key, queries.shape[0] // keys.shape[0])
            tiles.append(_attend_tile(*tile, mask, scale))
    out = tiles[0] if len(tiles) == 1 else mx.concatenate(tiles, axis=1)
    return out.swapaxes(0, 1)


def _attend_tile(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array, scale: float) -> mx.array:
    """A tile of consecutive tokens, the last of which has the last of ``keys``: softmax of half of the heads on each
    stream. Products stay on one: they use all cores by themselves, and two at a time only get in each other's way.

    ``queries`` is [num_heads, num_queries, head_dim], keys and values [num_kv_heads, num_keys, head_dim].
    """
    num_heads, num_queries, head_dim = queries.shape
    num_kv_heads = keys.shape[0]
    stacked = (queries * scale).reshape(num_kv_heads, num_heads // num_kv_heads * num_queries, head_dim)
    scores = (keys @ stacked.swapaxes(1, 2)).astype(mx.float32)  # a row a key: MLX reduces columns faster than rows
    middle = -(-num_kv_heads // 2)
    halves = [slice(middle), slice(middle, None)] if num_kv_heads > 1 else [slice(None)]
    weights, sums = [], []
    for half in halves:
        with mx.stream(next(streams)):
            masked = scores[half] + mask
            weights.append(exp_below_zero(masked - masked.max(axis=1, keepdims=True)))
            sums.append(weights[-1].sum(axis=1)[..., None])
    outs = [weights[i].astype(values.dtype).swapaxes(1, 2) @ values[half] / sums[i] for i, half in enumerate(halves)]
    return _joined(outs).astype(queries.dtype).reshape(num_heads, num_queries, head_dim)


def _together(pool: mx.array, table: BlockTable) -> tuple[mx.array, mx.array]:
    """Keys and values of some blocks as [num_kv_heads, num_tokens, head_dim]. This copies them."""
    num_blocks, num_both, block_size, head_dim = pool.shape
    matrices = pool.reshape(num_blocks * num_both, block_size, head_dim)[table.matrices(num_both)]
    both = matrices.reshape(num_both, len(table) * block_size, head_dim)
    return both[:num_both // 2], both[num_both // 2:]


def _attend_pairs(queries: mx.array, pool: mx.array, plan: PairPlan) -> mx.array:
    """Many requests, one token each: every (request, block) pair gives a part, and so does every shared prefix.

    A part is what some of a request's tokens add to its softmax: their weights, measured from the highest score of the
    whole request, the sum of these, and the values weighted by them. So parts of a request are simply added.

    Most steps have so few tokens that starting an operation takes longer than computing it: the fewer, the better.
    """
    num_requests, num_heads, _ = queries.shape
    parts = [_PairParts(queries, pool, plan)]
    for prefix in plan.prefixes:
        with mx.stream(next(streams)):
            parts.append(_PrefixParts(queries, pool, prefix))
    highest = _joined([part.highest for part in parts])[plan.groups].max(axis=1)
    if plan.group_owners is not None:
        highest = mx.full((num_requests, num_heads), -mx.inf).at[plan.group_owners].maximum(highest)
    tops, start, sums = highest[plan.part_owners], 0, []
    for part in parts:
        end = start + part.highest.shape[0]
        with mx.stream(part.stream):
            sums.append(mx.concatenate(part.weigh(tops[start:end]), axis=-1))
        start = end
    # [num_parts, num_heads, head_dim + 1] → [num_groups, width, …] → [num_groups, …]
    out = (_joined(sums)[plan.groups] * plan.group_factors).sum(axis=1)
    if plan.group_owners is not None:
        out = mx.zeros((num_requests, *out.shape[1:])).at[plan.group_owners].add(out)
    return (out[..., :-1] / out[..., -1:]).astype(queries.dtype)


def _joined(arrays: list[mx.array]) -> mx.array:
    return mx.concatenate(arrays) if len(arrays) > 1 else arrays[0]


class _PairParts:
    """Every pair multiplied straight out of the pool.

    Query heads that share a KV head are multiplied together, [group, head_dim] and [head_dim, block_size]; one by one
    where products of one row are so much faster.
    """

    def __init__(self, queries: mx.array, pool: mx.array, plan: PairPlan) -> None:
        self.stream = mx.default_stream(mx.default_device())  # the one it is computed on
        num_requests, num_heads, head_dim = queries.shape
        num_blocks, num_both, block_size, _ = pool.shape
        num_kv_heads = num_both // 2
        rows_per_request = num_heads if tuning.one_vector_is_faster() else num_kv_heads
        self.matrices = pool.reshape(num_blocks * num_both, block_size, head_dim)
        self.indices = plan.indices(rows_per_request, num_kv_heads)
        scores = mx.gather_mm(queries.reshape(num_requests * rows_per_request, -1, head_dim),
                              self.matrices.swapaxes(1, 2), self.indices.queries, self.indices.keys)
        self.scores = scores.reshape(-1, num_heads, block_size).astype(mx.float32) + plan.mask
        #: [num_pairs, num_heads]
        self.highest = self.scores.max(axis=-1)

    def weigh(self, tops: mx.array) -> tuple[mx.array, mx.array]:
        """Weighted values [num_pairs, num_heads, head_dim] and sums of weights [num_pairs, num_heads, 1], with scores
        measured from ``tops`` [num_pairs, num_heads]."""
        weights = exp_below_zero(self.scores - tops[..., None])
        num_products, block_size = self.indices.rows.shape[0], weights.shape[-1]
        rows = weights.astype(self.matrices.dtype).reshape(num_products, -1, block_size)
        out = mx.gather_mm(rows, self.matrices, self.indices.rows, self.indices.values)
        return out.reshape(*weights.shape[:2], -1).astype(mx.float32), weights.sum(axis=-1, keepdims=True)


class _PrefixParts:
    """All requests that share a prefix attend to it at once: one large product instead of many small ones."""

    def __init__(self, queries: mx.array, pool: mx.array, prefix: SharedPrefix) -> None:
        self.stream = mx.default_stream(mx.default_device())  # the one it is computed on
        keys, self.values = _together(pool, prefix.blocks)
        num_kv_heads, _, head_dim = keys.shape
        own = queries[prefix.rows]
        self.num_rows, self.num_heads, _ = own.shape
        stacked = own.reshape(self.num_rows, num_kv_heads, -1, head_dim).swapaxes(0, 1)
        #: [num_kv_heads, num_keys, num_rows * group]: a row a key, as in a tile
        self.scores = (keys @ stacked.reshape(num_kv_heads, -1, head_dim).swapaxes(1, 2)).astype(mx.float32)
        #: [num_rows, num_heads]
        self.highest = self._to_heads(self.scores.max(axis=1)).squeeze(-1)

    def _to_heads(self, x: mx.array) -> mx.array:
        """[num_kv_heads, num_rows * group, ...] → [num_rows, num_heads, ...]"""
        num_kv_heads = x.shape[0]
        return (x.reshape(num_kv_heads, self.num_rows, self.num_heads // num_kv_heads, -1).swapaxes(0, 1)
                .reshape(self.num_rows, self.num_heads, -1))

    def weigh(self, tops: mx.array) -> tuple[mx.array, mx.array]:
        """As that of the pairs, with ``tops`` [num_rows, num_heads]."""
        num_kv_heads = self.scores.shape[0]
        own_tops = tops.reshape(self.num_rows, num_kv_heads, -1).swapaxes(0, 1).reshape(num_kv_heads, 1, -1)
        weights = exp_below_zero(self.scores - own_tops)
        sums = weights.sum(axis=1)[..., None]
        if self.values.dtype == mx.float32:
            out = weights.swapaxes(1, 2) @ self.values
        else:  # thousands of values may add up to more than half precision holds: their mean does not
            shares = (weights.swapaxes(1, 2) / mx.maximum(sums, SMALLEST_SUM)).astype(self.values.dtype)
            out = (shares @ self.values).astype(mx.float32) * sums
        return self._to_heads(out), self._to_heads(sums)
