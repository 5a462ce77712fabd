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
from mini_vllm.streams import streams

#: Queries of a chunk that are attended at once.
QUERY_TILE = 128
#: Up to so many requests that decode are attended one by one: few products of whole contexts, not many of blocks.
MAX_DENSE_DECODES = 2
#: With fewer (request, block) pairs than this a second stream costs more than it saves.
MIN_PAIRS_TO_SPLIT = 64


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
        """Copy whole blocks (source, destination) in every layer, as if one after the other.

        A source may be the destination of an earlier copy, whose own source then serves both.
        """
        if not copies:
            return
        origins: dict[int, int] = {}
        for source, destination in copies:
            origins[destination] = origins.get(source, source)
        sources, destinations = mx.array(list(origins.values())), mx.array(list(origins))
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
        self._masks: dict[tuple[int, int], mx.array] = {}
        num_decodes = sum(span.num_new_tokens == 1 for span in spans)
        decodes = spans[:num_decodes]
        chunks = spans[num_decodes:]
        if any(span.num_new_tokens == 1 for span in chunks):
            raise ValueError("requests that compute one token come first in a step")
        if not spans:
            self.dense, self.tables, self.pairs = [], [], []
            return
        positions = np.concatenate([np.arange(span.context_len - span.num_new_tokens, span.context_len)
                                    for span in spans])
        blocks = np.concatenate([np.asarray(span.block_ids)[
            np.arange(span.context_len - span.num_new_tokens, span.context_len) // block_size] for span in spans])
        self.positions = mx.array(positions.astype(np.int32))
        self.block_ids = mx.array(blocks.astype(np.int32))
        self.offsets = mx.array((positions % block_size).astype(np.int32))
        #: Block and offset of the only token, if there is only one.
        self.slot = mx.array([int(blocks[0]), int(positions[0] % block_size)]) if len(positions) == 1 else None
        is_few = num_decodes <= MAX_DENSE_DECODES and not _share_a_block(decodes)
        #: Requests to attend one by one, and (request, block) pairs of the others; both in the order of the step.
        self.dense = list(spans) if is_few else chunks
        self.tables = [mx.array(np.asarray(span.block_ids[:-(-span.context_len // block_size)], dtype=np.int32))
                       for span in self.dense]
        self.pairs = [] if is_few else [PairPlan(half, block_size) for half in _halves(decodes, block_size)]

    def mask(self, num_queries: int, num_keys: int, group: int) -> mx.array:
        """[group * num_queries, num_keys]: -inf where a key comes after its query; the last of both are the same token.

        Made when first asked for, in the first layer; the others use it again.
        """
        if (num_queries, num_keys) not in self._masks:
            is_later = np.arange(num_keys) > np.arange(num_keys - num_queries, num_keys)[:, None]
            rows = np.where(is_later, np.float32(-np.inf), np.float32(0))
            self._masks[num_queries, num_keys] = mx.array(np.tile(rows, (group, 1)))
        return self._masks[num_queries, num_keys]


class PairPlan:
    """All (request, block) pairs of requests that decode; no request is padded to another's length.

    Blocks that several requests share at the beginning of their tables are attended once for all of them.
    """

    def __init__(self, spans: Sequence[Span], block_size: int) -> None:
        self.num_requests = len(spans)
        self.prefixes = find_shared_prefixes(spans, block_size)
        firsts = np.zeros(len(spans), dtype=np.int64)
        for prefix in self.prefixes:
            firsts[prefix.rows] = prefix.num_blocks
        context_lens = np.asarray([span.context_len for span in spans])
        counts = -(-context_lens // block_size) - firsts
        owners = np.repeat(np.arange(len(spans)), counts)
        blocks = np.concatenate([np.asarray(span.block_ids[first:first + n])
                                 for span, first, n in zip(spans, firsts, counts)])
        starts = np.concatenate([np.arange(first, first + n) for first, n in zip(firsts, counts)]) * block_size
        lengths = context_lens[owners] - starts
        self.blocks = mx.array(blocks.astype(np.uint32))
        self.owners = mx.array(owners.astype(np.uint32))
        #: 0 where the slot holds a token of the request, -inf where it does not.
        self.mask = mx.array(np.where(np.arange(block_size) < lengths[:, None], 0.0, -np.inf).astype(np.float32))
        #: The request of every partial result: first of the pairs, then of each shared prefix.
        self.part_owners = mx.array(np.concatenate([owners, *(p.rows for p in self.prefixes)]).astype(np.uint32))


def _share_a_block(spans: Sequence[Span]) -> bool:
    """Whether any two begin with the same block."""
    return len({span.block_ids[0] for span in spans}) < len(spans)


def _halves(spans: Sequence[Span], block_size: int) -> list[Sequence[Span]]:
    """Two runs of requests with about as many blocks each, for two streams; one run, if it would not pay.

    Requests that share a beginning are not torn apart: together they attend to it once.
    """
    counts = np.cumsum([-(-span.context_len // block_size) for span in spans])
    cut = int(np.searchsorted(counts, counts[-1] / 2)) + 1
    if len(streams) == 1 or counts[-1] < MIN_PAIRS_TO_SPLIT or cut >= len(spans) or _share_a_block(spans):
        return [spans]
    return [spans[:cut], spans[cut:]]


@dataclass(frozen=True)
class SharedPrefix:
    """Blocks at the beginning of several requests' tables."""

    rows: np.ndarray
    block_ids: mx.array
    num_blocks: int


def find_shared_prefixes(spans: Sequence[Span], block_size: int) -> list[SharedPrefix]:
    """Requests that begin with the same blocks, and how many. The last block of a request is never part of it."""
    families: dict[int, list[int]] = {}
    for row, span in enumerate(spans):
        families.setdefault(span.block_ids[0], []).append(row)
    prefixes = []
    for rows in families.values():
        limit = min((spans[row].context_len - 1) // block_size for row in rows)
        if len(rows) < 2 or limit < 1:
            continue
        tables = np.asarray([spans[row].block_ids[:limit] for row in rows])
        differs = (tables != tables[0]).any(axis=0)
        num_blocks = int(differs.argmax()) if differs.any() else limit
        prefixes.append(SharedPrefix(np.asarray(rows), mx.array(tables[0][:num_blocks].astype(np.int32)), num_blocks))
    return prefixes


def paged_attention(queries: mx.array, pool: mx.array, plan: AttentionPlan, scale: float) -> mx.array:
    """What each token of the step sees. ``queries`` is [num_tokens, num_heads, head_dim], and so is the result."""
    parts, start = [], 0
    for pairs in plan.pairs:
        end = start + pairs.num_requests
        with mx.stream(next(streams)):
            parts.append(_attend_pairs(queries[start:end], pool, pairs, scale))
        start = end
    for span, table in zip(plan.dense, plan.tables):
        end = start + span.num_new_tokens
        parts.append(_attend_dense(queries[start:end], pool, table, span, plan, scale))
        start = end
    return mx.concatenate(parts) if len(parts) > 1 else parts[0] if parts else queries


def _attend_dense(queries: mx.array, pool: mx.array, table: mx.array, span: Span, plan: AttentionPlan,
                  scale: float) -> mx.array:
    """One request by itself: bring its blocks together and attend as if they had never been apart.

    A long chunk is attended in tiles: a tile of queries needs no keys behind its own last one.
    """
    first = span.context_len - span.num_new_tokens
    with mx.stream(next(streams)):
        keys, values = _together(pool, table)
    queries = queries.swapaxes(0, 1)
    tiles = []
    for start in range(0, span.num_new_tokens, QUERY_TILE):
        end = min(start + QUERY_TILE, span.num_new_tokens)
        tile = queries[:, start:end], keys[:, :first + end], values[:, :first + end]
        if len(streams) == 1 or end - start == 1:
            with mx.stream(streams.latest):
                tiles.append(mx.fast.scaled_dot_product_attention(*(part[None] for part in tile), scale=scale,
                                                                  mask="causal" if end - start > 1 else None)[0])
        else:
            mask = plan.mask(end - start, first + end, queries.shape[0] // keys.shape[0])
            tiles.append(_attend_tile(*tile, mask, scale))
    out = tiles[0] if len(tiles) == 1 else mx.concatenate(tiles, axis=1)
    return out.swapaxes(0, 1)


def _attend_tile(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array, scale: float) -> mx.array:
    """A tile of consecutive tokens, the last of which has the last of ``keys``: half of the heads on each stream.

    ``queries`` is [num_heads, num_queries, head_dim], keys and values [num_kv_heads, num_keys, head_dim].
    """
    num_heads, num_queries, head_dim = queries.shape
    num_kv_heads = keys.shape[0]
    stacked = (queries * scale).reshape(num_kv_heads, num_heads // num_kv_heads * num_queries, head_dim)
    outs = []
    for heads in np.array_split(np.arange(num_kv_heads), len(streams)):
        if len(heads):
            half = slice(int(heads[0]), int(heads[-1]) + 1)
            with mx.stream(next(streams)):
                scores = (stacked[half] @ keys[half].swapaxes(1, 2)).astype(mx.float32) + mask
                weights = mx.exp(scores - scores.max(axis=-1, keepdims=True))
                out = (weights.astype(values.dtype) @ values[half]) / weights.sum(axis=-1, keepdims=True)
                outs.append(out.astype(queries.dtype))
    return mx.concatenate(outs).reshape(num_heads, num_queries, head_dim)


def _together(pool: mx.array, table: mx.array) -> tuple[mx.array, mx.array]:
    """Keys and values of some blocks as [num_kv_heads, num_tokens, head_dim]. This copies them."""
    _, num_both, block_size, head_dim = pool.shape
    both = pool[table].swapaxes(0, 1).reshape(num_both, table.shape[0] * block_size, head_dim)
    return both[:num_both // 2], both[num_both // 2:]


def _attend_pairs(queries: mx.array, pool: mx.array, plan: PairPlan, scale: float) -> mx.array:
    """Many requests, one token each: every (request, block) pair gives a part, and so does every shared prefix.

    A part is a softmax over some of a request's tokens: its maximum, its sum, and the values weighted by it. Parts of
    a request are put together by their maxima and sums, as in attention with a running softmax.
    """
    num_requests, num_heads, head_dim = queries.shape
    queries = queries * scale
    parts = [_pair_parts(queries, pool, plan)]
    for prefix in plan.prefixes:
        with mx.stream(next(streams)):
            parts.append(_prefix_parts(queries, pool, prefix))
    highest, total, out = (mx.concatenate(column) if len(parts) > 1 else column[0] for column in zip(*parts))
    owners = plan.part_owners
    overall = mx.full((num_requests, num_heads), -mx.inf).at[owners].maximum(highest)
    factor = mx.exp(highest - overall[owners])
    total = mx.zeros((num_requests, num_heads)).at[owners].add(total * factor)
    out = mx.zeros((num_requests, num_heads, head_dim)).at[owners].add(out * factor[..., None])
    return (out / total[..., None]).astype(queries.dtype)


def _pair_parts(queries: mx.array, pool: mx.array, plan: PairPlan) -> tuple[mx.array, mx.array, mx.array]:
    """Multiply every pair straight out of the pool.

    Query heads that share a KV head are multiplied one by one: a BLAS is far better at one row than at two or three.
    """
    num_requests, num_heads, head_dim = queries.shape
    num_blocks, num_both, block_size, _ = pool.shape
    num_kv_heads, num_pairs = num_both // 2, plan.blocks.shape[0]
    heads = mx.arange(num_heads, dtype=mx.uint32)
    rows = plan.owners[:, None] * num_heads + heads  # [num_pairs, num_heads]: which query
    cells = plan.blocks[:, None] * num_both + heads // (num_heads // num_kv_heads)  # which keys of the pool
    matrices = pool.reshape(num_blocks * num_both, block_size, head_dim)
    scores = mx.gather_mm(queries.reshape(num_requests * num_heads, 1, head_dim), matrices.swapaxes(1, 2),
                          lhs_indices=rows, rhs_indices=cells).squeeze(2)
    scores = scores.astype(mx.float32) + plan.mask[:, None]
    highest = scores.max(axis=-1)
    weights = mx.exp(scores - highest[..., None])
    out = mx.gather_mm(weights.astype(pool.dtype).reshape(num_pairs * num_heads, 1, block_size), matrices,
                       rhs_indices=(cells + num_kv_heads).reshape(-1))  # a block's values stand behind its keys
    return highest, weights.sum(axis=-1), out.reshape(num_pairs, num_heads, head_dim)


def _prefix_parts(queries: mx.array, pool: mx.array, prefix: SharedPrefix) -> tuple[mx.array, mx.array, mx.array]:
    """Attend all requests that share a prefix to it at once: one large product instead of many small ones."""
    keys, values = _together(pool, prefix.block_ids)
    num_kv_heads, _, head_dim = keys.shape
    own = queries[mx.array(prefix.rows)]
    num_rows, num_heads, _ = own.shape
    group = num_heads // num_kv_heads

    def to_heads(x: mx.array) -> mx.array:  # [num_kv_heads, num_rows * group, ...] → [num_rows, num_heads, ...]
        return x.reshape(num_kv_heads, num_rows, group, -1).swapaxes(0, 1).reshape(num_rows, num_heads, -1)

    stacked = own.reshape(num_rows, num_kv_heads, group, head_dim).swapaxes(0, 1)
    scores = (stacked.reshape(num_kv_heads, num_rows * group, head_dim) @ keys.swapaxes(1, 2)).astype(mx.float32)
    highest = scores.max(axis=-1, keepdims=True)
    weights = mx.exp(scores - highest)
    out = weights.astype(pool.dtype) @ values
    return to_heads(highest).squeeze(-1), to_heads(weights.sum(axis=-1, keepdims=True)).squeeze(-1), to_heads(out)
