"""Products of a few rows, a token each, with a matrix of weights: by a kernel of our own on CUDA.

MLX hands such products to cuBLAS, which makes 1000 rows fast. To hand one over takes a CPU about three times as long as
to start a kernel of ours; and 28 layers have 112 of them, so that with few requests the GPU waits for that. Each weight
is read once, and 16 rows cost as much as one.
"""

from __future__ import annotations

from mini_vllm.backend import mx, nn
from mini_vllm.fast.kernels.kernel import CUDA, Kernel, constants, dialect_here

SKINNY = Kernel("skinny", ("x", "weight", "sizes"), ("out",), headers=("tensor_cores",))
WARPS = 8
ROWS_PER_TILE, COLUMNS, DEPTH_STEP = 16, 8, 32
#: Fewer are a vector, for which MLX has its own kernel; more are worth cuBLAS's while. So are very many columns, for
#: each eight of which the rows are read anew.
MIN_ROWS, MAX_ROWS, MAX_COLUMNS = 2, 64, 16_384


def can_multiply(num_rows: int, num_columns: int, depth: int, dtype: mx.Dtype) -> bool:
    return (MIN_ROWS <= num_rows <= MAX_ROWS and num_columns <= MAX_COLUMNS and num_columns % COLUMNS == 0
            and depth % DEPTH_STEP == 0 and dtype in (mx.float16, mx.bfloat16) and dialect_here() is CUDA)


def product(x: mx.array, weight: mx.array) -> mx.array:
    """``x @ weight.T``, [num_rows, depth] and [num_columns, depth] → [num_rows, num_columns]."""
    (num_rows, depth), num_columns = x.shape, weight.shape[0]
    if weight.dtype != x.dtype or not can_multiply(num_rows, num_columns, depth, x.dtype):
        return x @ weight.T
    tiles = -(-num_rows // ROWS_PER_TILE)
    parameters = {"T": x.dtype, "TILES": tiles, "WARPS": WARPS}
    (out,) = SKINNY([x, weight, constants(num_rows, num_columns, depth)], parameters, (num_columns // COLUMNS, 1, 1),
                    WARPS, [((num_rows, num_columns), x.dtype)])
    return out


def multiply(layer: nn.Module, x: mx.array, plain: type) -> mx.array:
    """``layer(x)``; by the kernel if it is a ``plain`` matrix, and not packed."""
    if type(layer) is not plain:
        found: mx.array = layer(x)
        return found
    out = product(x, layer.weight)
    return out + layer.bias if "bias" in layer else out
