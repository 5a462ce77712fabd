"""Rotate queries and keys, and write keys and values: everything between two products and attention, in one kernel.

**The pool is an input of this kernel, and the kernel writes into it.** MLX has no such concept: a computed array does
not change, and a kernel returns new ones. But a new pool per token is out of the question. MLX's own solution, giving
an array's memory to the last operation that uses it, costs an operation per layer, and a copy of the whole pool if
anything else still holds it. Writing is safe here because other arrays than the pool determine the order:

    turn(layer, heads, pool) ──▶ queries ──▶ attention(queries, pool) ──▶ … ──▶ the next token ──▶ turn(layer, …)

Attention takes the queries that this kernel returns, so it runs afterwards; the next step of the same layer takes a
token that resulted from that attention. Everything else that touches the pool (copies of blocks) does so between steps,
when all work has been submitted to the GPU, which executes it in that order.
"""

from __future__ import annotations

from mini_vllm.backend import mx
from mini_vllm.gpu.kernels.kernel import WARP, Kernel, bits_of
from mini_vllm.gpu.kernels.paged import PoolShape

TURN = Kernel("turn", ("heads", "pool", "slots", "cosines", "sines", "weight"), ("out",))
WARPS = 4


def turn_and_write(heads: mx.array, pool: mx.array, slots: mx.array, cosines: mx.array, sines: mx.array,
                   norm: tuple[mx.array, float] | None, shape: PoolShape) -> mx.array:
    """Return queries [num_tokens, num_heads, head_dim] from ``heads`` [num_tokens, (num_heads + 2 * num_kv_heads) *
    head_dim].

    Keys and values are written into ``pool``. ``slots`` [num_tokens] is int32, ``cosines`` and ``sines`` [num_tokens,
    head_dim / 2] are float32, and ``norm`` is weights [num_heads + num_kv_heads, head_dim] and epsilon.
    """
    num_tokens, num_heads = heads.shape[0], shape.num_kv_heads * shape.group_size
    num_vectors = num_tokens * (num_heads + 2 * shape.num_kv_heads)
    lanes = next(lanes for lanes in (4, 8, 16, 32) if shape.head_dim <= lanes * 8)
    weight, eps = norm or (cosines, 0.0)
    parameters = {"T": heads.dtype, "HEAD_DIM": shape.head_dim, "BLOCK_SIZE": shape.block_size, "WARPS": WARPS,
                  "NORM": norm is not None, "EPS": bits_of(eps)}
    (queries,) = TURN([heads, pool, slots, cosines, sines, weight], parameters,
                      (-(-num_vectors * lanes // (WARPS * WARP)), 1, 1), WARPS,
                      [((num_tokens, num_heads, shape.head_dim), heads.dtype)])
    return queries
