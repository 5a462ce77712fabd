"""Compares the kernels with the plain operations that they replace, on small random batches of a model's own shape.

The kernels are compiled on the user's machine, by a compiler and for a GPU that we may never have seen. So an engine
uses the kernels only if their results agree here. The plain operations are computed on the CPU, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mini_vllm.attention import paged_attention, slot_mapping, token_positions
from mini_vllm.backend import mx, on_cpu
from mini_vllm.gpu.kernels import add_norm as add_norm_module
from mini_vllm.gpu.kernels import rope_and_write as turn_module
from mini_vllm.gpu.kernels import small_batch_matmul as skinny_module
from mini_vllm.gpu.kernels.paged import FEW_BLOCKS, KernelAttention, PoolShape
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.network import Rope

#: Called like ``paged_attention``.
Attend = Callable[..., mx.array]
#: The largest error allowed, for numbers of size 1.
TOLERANCES = {mx.float32: 2e-4, mx.float16: 1e-2, mx.bfloat16: 6e-2}


@dataclass(frozen=True)
class ProofCase:
    """A batch: the number of tokens that each request computes, and the length of its context, which ends with them."""

    num_queries: tuple[int, ...]
    context_lens: tuple[int, ...]
    window: int | None = None

    @property
    def query_starts(self) -> list[int]:
        return [0, *np.cumsum(self.num_queries).tolist()]


def cases(block_size: int, window: int | None) -> list[ProofCase]:
    """Return the batches to check.

    - three decoding requests with short contexts
    - one decoding request with a context that is long enough to be split
    - many decoding requests
    - one decoding request, one chunk without earlier tokens, and one chunk with earlier tokens

    If there is a ``window``, each batch is checked without it and with it.
    """
    long, many = 2 * block_size + 2100, FEW_BLOCKS + 1
    found = [ProofCase((1, 1, 1), (1, block_size + 3, 5 * block_size)), ProofCase((1,), (long,)),
             ProofCase((1,) * many, tuple(1 + request % (2 * block_size) for request in range(many))),
             ProofCase((1, 7, 70), (4, 7, 3 * block_size + 70))]
    return found + [ProofCase(case.num_queries, case.context_lens, window) for case in found if window is not None]


def find_fault(config: ModelConfig, block_size: int, dtype: mx.Dtype,
               attention: Attend | None = None) -> str:
    """Return what is wrong with the kernels for a model of this shape; empty if nothing is.

    A test may pass another ``attention`` to be checked instead of ours.
    """
    try:
        worst = {"attention": _attention_error(config, block_size, dtype, attention or KernelAttention()),
                 "turn": _turn_error(config, block_size, dtype),
                 "add_norm": _add_norm_error(config, dtype),
                 "product": _product_error(config, dtype)}
    except Exception as error:  # any error of a compiler or a driver
        return f"cannot be used: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    bad = [f"{name} is off by {error:.3g}" for name, error in worst.items() if not error <= TOLERANCES[dtype]]
    return f"{', '.join(bad)}; {TOLERANCES[dtype]:g} is allowed" if bad else ""


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    return mx.array(rng.standard_normal(shape, dtype=np.float32)).astype(dtype)


def random_tables(rng: np.random.Generator, context_lens: Sequence[int], block_size: int
                  ) -> tuple[list[list[int]], int]:
    """Return tables of blocks in random order, without the null block, and the number of blocks in the pool."""
    counts = [-(-context_len // block_size) for context_len in context_lens]
    order = (rng.permutation(sum(counts)) + 1).tolist()
    ends = np.cumsum(counts).tolist()
    return [order[end - count:end] for count, end in zip(counts, ends)], sum(counts) + 1


def attention_error(case: ProofCase, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int,
                    dtype: mx.Dtype, attention: Attend, seed: int = 0, is_spoiled: bool = False) -> float:
    """Return the largest difference to the simple attention in one case.

    ``is_spoiled`` puts NaN into slots of no context.
    """
    rng = np.random.default_rng(seed)
    tables, num_blocks = random_tables(rng, case.context_lens, block_size)
    pool = random_array(rng, (num_blocks, 2 * num_kv_heads, block_size, head_dim), dtype)
    queries = random_array(rng, (case.query_starts[-1], num_heads, head_dim), dtype)
    batch = (tables, list(case.context_lens), case.query_starts, head_dim ** -0.5, case.window)
    found = attention(queries, spoiled(pool, tables, case.context_lens) if is_spoiled else pool, *batch)
    mx.eval(found)
    with on_cpu():
        expected = paged_attention(queries.astype(mx.float32), pool.astype(mx.float32), *batch)
        return _difference(found, expected)


def spoiled(pool: mx.array, tables: Sequence[Sequence[int]], context_lens: Sequence[int]) -> mx.array:
    """Return the pool with NaN in all slots that are in no context."""
    num_blocks, _, block_size, _ = pool.shape
    is_read = np.zeros((num_blocks, block_size), dtype=bool)
    for table, context_len in zip(tables, context_lens):
        is_read.reshape(-1)[slot_mapping([table], np.arange(context_len), [0, context_len], block_size)] = True
    return mx.where(mx.array(is_read)[:, None, :, None], pool, mx.nan).astype(pool.dtype)


def _attention_error(config: ModelConfig, block_size: int, dtype: mx.Dtype, attention: Attend) -> float:
    windows = [window for layer in range(config.num_layers) if (window := config.window(layer)) is not None]
    return _worst(attention_error(case, config.num_heads, config.num_kv_heads, config.head_dim, block_size, dtype,
                                  attention, seed)
                  for seed, case in enumerate(cases(block_size, min(windows, default=None))))


def _turn_error(config: ModelConfig, block_size: int, dtype: mx.Dtype) -> float:
    """Return the error of the queries, and of the keys and values found in the pool afterwards."""
    rng = np.random.default_rng(0)
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    num_rotated, lens, num_queries = num_heads + num_kv_heads, (block_size + 3, 5), (4, 5)
    tables, num_blocks = random_tables(rng, lens, block_size)
    starts = [0, 4, 9]
    positions = token_positions(lens, starts)
    slots = slot_mapping(tables, positions, starts, block_size)
    pool = mx.zeros((num_blocks, 2 * num_kv_heads, block_size, head_dim), dtype)
    heads = random_array(rng, (sum(num_queries), num_rotated + num_kv_heads, head_dim), dtype)
    weight = random_array(rng, (num_rotated, head_dim), dtype)
    frequencies = mx.array(10_000.0 ** (-np.arange(0, head_dim, 2, dtype=np.float32) / head_dim))
    angles = mx.array(positions.astype(np.float32))[:, None] * frequencies
    norm = (weight, config.rms_norm_eps) if config.qk_norm else None
    mx.eval(pool)
    shape = PoolShape(num_kv_heads, num_heads // num_kv_heads, head_dim, block_size, 1.0, dtype)
    queries = turn_module.turn_and_write(heads.reshape(len(positions), -1), pool, mx.array(slots.astype(np.int32)),
                                         mx.cos(angles), mx.sin(angles), norm, shape)
    mx.eval(queries)
    with on_cpu():
        plain = heads.astype(mx.float32)
        if norm is not None:
            normed = mx.fast.rms_norm(plain[:, :num_rotated], None, norm[1]) * weight.astype(mx.float32)
            plain = mx.concatenate([normed, plain[:, num_rotated:]], axis=1)
        rope = Rope(frequencies, 1.0, num_rotated, num_kv_heads)
        expected = Rope.rotate(plain, rope.angles(mx.array(positions.astype(np.int32))))
        blocks, offsets = (mx.array(part) for part in np.divmod(slots, block_size))
        written = pool.astype(mx.float32)[blocks, :, offsets]
        return _worst([_difference(queries, expected[:, :num_heads]), _difference(written, expected[:, num_heads:])])


def _add_norm_error(config: ModelConfig, dtype: mx.Dtype) -> float:
    rng = np.random.default_rng(0)
    x, whole = (random_array(rng, (5, config.hidden_size), dtype) for _ in range(2))
    num_parts = skinny_module.Tiling.of(5, in_parts=True).splits
    parts = random_array(rng, (num_parts, 5, config.hidden_size), mx.float32)
    weight = random_array(rng, (config.hidden_size,), dtype)
    errors = []
    for added in (whole, parts):
        total, normed = add_norm_module.add_norm(x, added, weight, config.rms_norm_eps)
        mx.eval(total, normed)
        with on_cpu():
            expected = x.astype(mx.float32) + (added.sum(axis=0) if added.ndim == 3 else added.astype(mx.float32))
            expected_norm = mx.fast.rms_norm(expected, weight.astype(mx.float32), config.rms_norm_eps)
            errors += [_difference(total, expected), _difference(normed, expected_norm)]
    return _worst(errors)


def _product_error(config: ModelConfig, dtype: mx.Dtype) -> float:
    """Return the error of products, relative to the size of the sums, and of the operations fused with them.

    Few rows and as many as the kernel takes are tried, so that each of its tilings is used.
    """
    rng = np.random.default_rng(0)
    weight = random_array(rng, (config.hidden_size, config.intermediate_size), dtype)
    both = random_array(rng, (2 * config.intermediate_size, config.hidden_size), dtype)
    errors = []
    for num_rows in (1, 32, 33, 64):
        x = random_array(rng, (num_rows, config.intermediate_size), dtype) * config.intermediate_size ** -0.5
        y = random_array(rng, (num_rows, config.hidden_size), dtype) * config.hidden_size ** -0.5
        found, parts = skinny_module.product(x, weight), skinny_module.product_in_parts(x, weight)
        gated = skinny_module.gated_product(y, both)
        mx.eval(found, parts, gated)
        with on_cpu():
            expected = x.astype(mx.float32) @ weight.astype(mx.float32).T
            added_up = parts.sum(axis=0) if parts.ndim == 3 else parts
            errors += [_difference(found, expected), _difference(added_up, expected)]
            if gated is not None:
                gate, up = mx.split(y.astype(mx.float32) @ both.astype(mx.float32).T, 2, axis=-1)
                errors.append(_difference(gated, gate * mx.sigmoid(gate) * up))
    return _worst(errors)


def _difference(found: mx.array, expected: mx.array) -> float:
    """Return the largest difference, relative for numbers above 1; NaN if there is one."""
    expected = expected.astype(mx.float32)
    apart = mx.abs(found.astype(mx.float32) - expected) / mx.maximum(mx.abs(expected), 1)
    return float("nan") if mx.isnan(apart).any().item() else float(np.array(apart.max()))


def _worst(errors: Iterable[float]) -> float:
    """Return the largest error; NaN if there is one, which ``max`` may miss."""
    found = list(errors)
    return float("nan") if any(np.isnan(found)) else max(found)
