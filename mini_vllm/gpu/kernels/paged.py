"""Paged attention by kernels: decoding requests, and chunks of prompts.

A call may contain both: requests with one token come first, as everywhere in ``fast``. As with the simple attention,
slots after a context may hold anything: the kernels do not use their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.gpu.kernels.kernel import CUDA, Kernel, bits_of, dialect_here
from mini_vllm.gpu.kernels.step_upload import uploaded
from mini_vllm.gpu.kernels.tables import padded_tables, round_width

DECODE = Kernel("decode", ("queries", "pool", "tables", "context_lens"), ("out",),
                before=("own_tokens",), after=("join_warps",))
DECODE_TILES = replace(DECODE, name="decode_tiles", headers=("tensor_cores", "tokens"))
MERGE = Kernel("merge", ("partials",), ("out",))
CHUNK = Kernel("chunk", ("queries", "pool", "tables", "context_lens", "query_starts", "tiles"), ("out",))
CHUNK_TILES = replace(CHUNK, name="chunk_tiles", headers=("tensor_cores", "tokens"))

#: Query heads that a thread block takes at once, and its warps: their data is in registers. With tensor cores the heads
#: are the columns of a tile.
MAX_HEADS, MAX_TILE_HEADS, DECODE_WARPS = 4, 8, 8
#: With tensor cores a warp needs many registers. A step with more than ``FEW_BLOCKS`` thread blocks gives each of them
#: fewer warps, so that more thread blocks run at once.
FEW_BLOCKS, TILE_WARPS_OF_FEW, TILE_WARPS_OF_MANY = 128, 8, 3
#: When tensor cores are used: these number types, these head sizes, and blocks of a multiple of this many tokens.
TILE_DTYPES, TILE_HEAD_DIMS, TILE_TOKENS = (mx.float16, mx.bfloat16), (64, 128), 16
#: The merge at the end uses shared memory, of which an Apple GPU has 32 KiB.
MAX_SHARED_BYTES = 32 * 1024
#: Tokens that a seat reads before it computes.
UNROLL = 2
#: Thread blocks that keep a large GPU busy, and the context length from which splitting is worth it for that.
ENOUGH_BLOCKS, TOKENS_PER_SPLIT, MAX_SPLITS = 256, 1024, 32
#: Rows of a chunk; with tensor cores, those of a tile.
ROWS_PER_WARP, TILE_ROWS = 8, 16
MIN_HEAD_DIM, MAX_HEAD_DIM, HEAD_DIM_STEP = 32, 256, 16
DTYPES = (mx.float16, mx.bfloat16, mx.float32)


def can_attend(head_dim: int, dtype: mx.Dtype) -> bool:
    """Check whether the kernels support such vectors: a thread reads eight numbers of one half of a head."""
    return MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM and head_dim % HEAD_DIM_STEP == 0 and dtype in DTYPES


@dataclass(frozen=True)
class PoolShape:
    """The constants of an engine's attention, the same in every call."""

    num_kv_heads: int
    #: Query heads that share a KV head.
    group_size: int
    head_dim: int
    block_size: int
    scale: float
    dtype: mx.Dtype

    @classmethod
    def of(cls, queries: mx.array, pool: mx.array, scale: float) -> PoolShape:
        num_kv_heads = pool.shape[1] // 2
        return cls(num_kv_heads, queries.shape[1] // num_kv_heads, pool.shape[3], pool.shape[2], scale, pool.dtype)

    @property
    def suits_tiles(self) -> bool:
        """Whether tensor cores support this shape."""
        return (dialect_here() is CUDA and self.dtype in TILE_DTYPES and self.head_dim in TILE_HEAD_DIMS
                and self.block_size % TILE_TOKENS == 0)


@dataclass(frozen=True)
class Decoding:
    """The division of decoding requests among thread blocks."""

    kernel: Kernel
    #: Per thread block: its warps, and the query heads that it takes.
    warps: int
    heads: int
    #: Thread blocks that share a KV head.
    num_parts: int

    @classmethod
    @cache
    def of(cls, shape: PoolShape, num_requests: int) -> Decoding:
        """Choose how to decode, with tensor cores where possible.

        A group is divided evenly: 7 heads into 4 and 3, 9 into 3 x 3.
        """
        by_tiles = shape.suits_tiles
        num_parts = -(-shape.group_size // (MAX_TILE_HEADS if by_tiles else MAX_HEADS))
        heads = -(-shape.group_size // num_parts)
        are_few = num_requests * shape.num_kv_heads * num_parts <= FEW_BLOCKS
        warps = DECODE_WARPS if not by_tiles else TILE_WARPS_OF_FEW if are_few else TILE_WARPS_OF_MANY
        while warps * heads * (shape.head_dim + 2) * 4 > MAX_SHARED_BYTES:
            warps //= 2
        return cls(DECODE_TILES if by_tiles else DECODE, warps, heads, -(-shape.group_size // heads))

    def num_splits(self, num_pairs: int, longest: int) -> int:
        """Return the number of parts into which each context of a batch is split: a power of two.

        Splitting lets few requests keep a GPU busy. ``num_pairs`` counts the pairs of a request and a KV head.
        """
        wanted = -(-ENOUGH_BLOCKS // (num_pairs * self.num_parts))
        most = min(wanted, longest // TOKENS_PER_SPLIT, MAX_SPLITS)
        return 1 << max(most, 1).bit_length() - 1


def decode(queries: mx.array, pool: mx.array, tables: mx.array, context_lens: mx.array, shape: PoolShape,
           window: int | None = None) -> mx.array:
    """Compute attention for the last token of each request.

    ``queries`` is [num_requests, num_heads, head_dim]; ``tables`` [num_requests, width] and ``context_lens``
    [num_requests] are int32.
    """
    num_requests, num_heads, head_dim = queries.shape
    width, how = tables.shape[1], Decoding.of(shape, num_requests)
    num_splits = how.num_splits(num_requests * shape.num_kv_heads, width * shape.block_size)
    is_split = num_splits > 1
    out_shape = (num_requests, num_heads, num_splits, head_dim + 2) if is_split else queries.shape
    out_dtype = mx.float32 if is_split else queries.dtype
    parameters = {"T": queries.dtype, "OUT": out_dtype, "HEAD_DIM": head_dim, "HEADS": how.heads,
                  "BLOCK_SIZE": shape.block_size, "WARPS": how.warps, "SPLIT": is_split,
                  "SCALE": bits_of(shape.scale), "WINDOW": window or 0}
    if how.kernel is DECODE:
        parameters["UNROLL"] = UNROLL
    (out,) = how.kernel([queries, pool, tables, context_lens], parameters,
                        (shape.num_kv_heads * how.num_parts, num_requests, num_splits), how.warps,
                        [(out_shape, out_dtype)])
    if not is_split:
        return out
    (merged,) = MERGE([out], {"HEAD_DIM": head_dim, "OUT": queries.dtype}, (num_requests * num_heads, 1, 1), 1,
                      [(queries.shape, queries.dtype)])
    return merged


@dataclass(frozen=True)
class ChunkArrays:
    """The chunks of a step, as the kernel takes them."""

    tables: mx.array
    context_lens: mx.array
    query_starts: mx.array
    #: [num_tiles, 2]: the request, and the first of its rows.
    tiles: mx.array

    @classmethod
    def of(cls, block_tables: Sequence[Sequence[int]], context_lens: Sequence[int], num_queries: Sequence[int],
           shape: PoolShape) -> ChunkArrays:
        width = round_width(max(-(-context_len // shape.block_size) for context_len in context_lens))
        starts = np.concatenate([[0], np.cumsum(num_queries)]).astype(np.int32)
        return cls(*uploaded([padded_tables(block_tables, width), np.asarray(context_lens, dtype=np.int32), starts,
                              find_tiles(num_queries, shape)]))


@dataclass(frozen=True)
class Chunking:
    """The division of chunks among thread blocks."""

    kernel: Kernel
    #: Per thread block: its warps, and the rows of each.
    warps: int
    rows_per_warp: int

    @classmethod
    def of(cls, shape: PoolShape) -> Chunking:
        """Choose how to divide chunks.

        Without tensor cores the queries of all rows are in shared memory, as float32.
        """
        if shape.suits_tiles:
            return cls(CHUNK_TILES, 4, TILE_ROWS)
        return cls(CHUNK, 4 if shape.head_dim <= 128 else 2, ROWS_PER_WARP)


def find_tiles(num_queries: Sequence[int], shape: PoolShape) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Return the request and the first row of each thread block.

    The last rows of a chunk come first, as they see most.
    """
    how = Chunking.of(shape)
    rows = how.warps * how.rows_per_warp
    tiles = [(request, first) for request, num in enumerate(num_queries)
             for first in reversed(range(0, num * shape.group_size, rows))]
    return np.array(tiles, dtype=np.int32).reshape(-1, 2)


def attend_chunks(queries: mx.array, pool: mx.array, chunks: ChunkArrays, shape: PoolShape,
                  window: int | None = None) -> mx.array:
    """Compute attention for each token of the chunks, like ``queries`` [num_tokens, num_heads, head_dim]."""
    how = Chunking.of(shape)
    parameters = {"T": queries.dtype, "HEAD_DIM": shape.head_dim, "BLOCK_SIZE": shape.block_size,
                  "SCALE": bits_of(shape.scale), "WINDOW": window or 0}
    if how.kernel is CHUNK:
        parameters |= {"WARPS": how.warps, "ROWS_PER_WARP": how.rows_per_warp}
    (out,) = how.kernel([queries, pool, chunks.tables, chunks.context_lens, chunks.query_starts, chunks.tiles],
                        parameters, (chunks.tiles.shape[0], shape.num_kv_heads, 1), how.warps,
                        [(queries.shape, queries.dtype)])
    return out


@dataclass(frozen=True)
class StepAttention:
    """The requests of a step for attention: requests with one token, which come first, and chunks."""

    #: Tables [num_decodes, width] and context_lens [num_decodes]. None: no request has one token.
    decodes: tuple[mx.array, mx.array] | None
    chunks: ChunkArrays | None = None

    @classmethod
    def of(cls, block_tables: Sequence[Sequence[int]], context_lens: Sequence[int], num_queries: Sequence[int],
           shape: PoolShape) -> StepAttention:
        """Arrange the requests of a step. A request with one token that follows a chunk is a chunk of one."""
        num = next((i for i, queries in enumerate(num_queries) if queries > 1), len(num_queries))
        decodes = decode_arrays(block_tables[:num], context_lens[:num], shape.block_size) if num else None
        has_chunks = num < len(num_queries)
        return cls(decodes, ChunkArrays.of(block_tables[num:], context_lens[num:], num_queries[num:], shape)
                   if has_chunks else None)

    def attend(self, queries: mx.array, pool: mx.array, shape: PoolShape, window: int | None = None) -> mx.array:
        """Compute attention for each token of the step, like ``queries`` [num_tokens, num_heads, head_dim]."""
        outs, num = [], 0
        if self.decodes is not None:
            num = self.decodes[1].shape[0]
            outs.append(decode(queries[:num], pool, *self.decodes, shape, window))
        if self.chunks is not None:
            outs.append(attend_chunks(queries[num:], pool, self.chunks, shape, window))
        return mx.concatenate(outs) if len(outs) > 1 else outs[0]


def decode_arrays(block_tables: Sequence[Sequence[int]], context_lens: Sequence[int], block_size: int
                  ) -> tuple[mx.array, mx.array]:
    """Return the arguments of ``decode``: tables and context_lens."""
    width = round_width(-(-max(context_lens) // block_size))
    tables, lens = uploaded([padded_tables(block_tables, width), np.asarray(context_lens, dtype=np.int32)])
    return tables, lens


class KernelAttention:
    """Called like ``paged_attention``. Like ``FastAttention``, it recognises a step by the lists that it is given."""

    def __init__(self) -> None:
        self._step: tuple[object, object, object] | None = None
        self._plan = StepAttention(None)

    def __call__(self, queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                 context_lens: Sequence[int], query_starts: Sequence[int], scale: float,
                 window: int | None = None) -> mx.array:
        shape = PoolShape.of(queries, pool, scale)
        known = self._step
        if (known is None or known[0] is not block_tables or known[1] is not context_lens
                or known[2] is not query_starts):
            num_queries = np.diff(query_starts).tolist()
            if num_queries != sorted(num_queries, key=lambda num: num > 1):
                raise ValueError("requests that compute one token must come first in a step, but the numbers of tokens "
                                 f"are {num_queries}")
            self._plan = StepAttention.of(block_tables, context_lens, num_queries, shape)
            self._step = block_tables, context_lens, query_starts
        return self._plan.attend(queries, pool, shape, window)
