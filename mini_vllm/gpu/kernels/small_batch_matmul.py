"""Products of a few rows, one per token, with a weight matrix: by our own kernel on CUDA.

MLX passes such products to cuBLAS, which makes 1000 rows fast. Submitting one takes a CPU about three times as long as
starting one of our kernels; and 28 layers have 112 of them, so that with few requests the GPU waits for the CPU. Each
weight is read once. What follows a product is done by the same kernel, or the next:

    product            alone
    gated_product      of two matrices, gate and up, and ``gate * sigmoid(gate) * up`` of both
    product_in_parts   of a matrix with few columns, too few thread blocks for a large GPU: each sum is split into
                       parts, which ``add_norm`` adds up
"""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.backend import mx, nn
from mini_vllm.gpu.kernels.kernel import CUDA, Kernel, dialect_here

SKINNY = Kernel("skinny", ("x", "weight"), ("out",), headers=("tensor_cores",))
ROWS_PER_TILE, COLUMNS, DEPTH_STEP = 16, 8, 32
#: With more rows or columns than this, cuBLAS is faster. Our kernel reads all rows again for every 8 or 16 columns.
MAX_ROWS, MAX_COLUMNS = 64, 16_384


@dataclass(frozen=True)
class Tiling:
    """The division of a product: the columns of a thread block (``groups`` times eight), its warps, and the parts of
    each sum (``splits``)."""

    groups: int
    warps: int
    splits: int = 1

    @classmethod
    def of(cls, num_rows: int, is_gated: bool = False, in_parts: bool = False) -> Tiling:
        """Choose a tiling.

        With many rows a thread block takes two times eight columns, since reading the rows takes longest.
        """
        tiles = num_tiles(num_rows)
        groups = 1 if tiles == 1 and not is_gated else 2
        return cls(groups, 4 if in_parts or tiles > 2 else 8, 4 if in_parts else 1)


def num_tiles(num_rows: int) -> int:
    return -(-num_rows // ROWS_PER_TILE)


def can_multiply(num_rows: int, num_columns: int, depth: int, dtype: mx.Dtype, tiling: Tiling) -> bool:
    return (num_rows <= MAX_ROWS and num_columns <= MAX_COLUMNS
            and num_columns % (COLUMNS * tiling.groups) == 0 and depth % (DEPTH_STEP * tiling.splits) == 0
            and dtype in (mx.float16, mx.bfloat16) and dialect_here() is CUDA)


def product(x: mx.array, weight: mx.array) -> mx.array:
    """Compute ``x @ weight.T``, [num_rows, depth] and [num_columns, depth] → [num_rows, num_columns]."""
    tiling = Tiling.of(x.shape[0])
    return _run(x, weight, tiling) if _can_run(x, weight, tiling) else x @ weight.T


def gated_product(x: mx.array, weight: mx.array) -> mx.array | None:
    """Compute ``swiglu`` of both halves of ``x @ weight.T``: [num_rows, num_columns / 2].

    Return None if not supported.
    """
    tiling = Tiling.of(x.shape[0], is_gated=True)
    return _run(x, weight, tiling, is_gated=True) if _can_run(x, weight, tiling) else None


def product_in_parts(x: mx.array, weight: mx.array) -> mx.array:
    """Return parts that add up to ``x @ weight.T``, [num_parts, num_rows, num_columns] of float32; or the product
    itself.

    A row of ``x`` may be a matrix, as attention returns it: flattening would be one more operation in every layer.
    """
    tiling = Tiling.of(x.shape[0], in_parts=True)
    return _run(x, weight, tiling) if _can_run(x, weight, tiling) else product(flat(x), weight)


def flat(x: mx.array) -> mx.array:
    """Flatten ``x`` to one row of numbers per token."""
    return x.reshape(x.shape[0], -1)


def _can_run(x: mx.array, weight: mx.array, tiling: Tiling) -> bool:
    num_columns, depth = weight.shape
    return weight.dtype == x.dtype and can_multiply(x.shape[0], num_columns, depth, x.dtype, tiling)


def _run(x: mx.array, weight: mx.array, tiling: Tiling, is_gated: bool = False) -> mx.array:
    num_rows, num_columns = x.shape[0], weight.shape[0]
    in_parts = tiling.splits > 1
    out_dtype = mx.float32 if in_parts else x.dtype
    shape = (num_rows, num_columns // 2 if is_gated else num_columns)
    parameters = {"T": x.dtype, "OUT": out_dtype, "TILES": num_tiles(num_rows), "GROUPS": tiling.groups,
                  "WARPS": tiling.warps, "GATED": is_gated}
    thread_blocks = (num_columns // (COLUMNS * tiling.groups), tiling.splits, 1)
    (out,) = SKINNY([x, weight], parameters, thread_blocks, tiling.warps,
                    [((tiling.splits, *shape) if in_parts else shape, out_dtype)])
    return out


def multiply(layer: nn.Module, x: mx.array, plain: type) -> mx.array:
    """Compute ``layer(x)``, by the kernel if the layer is a ``plain`` matrix that is not packed."""
    if type(layer) is not plain:
        found: mx.array = layer(x)
        return found
    out = product(x, layer.weight)
    return out + layer.bias if "bias" in layer else out


def multiply_in_parts(layer: nn.Module, x: mx.array, plain: type) -> mx.array:
    """Compute ``layer(x)``, or parts that add up to it."""
    if type(layer) is plain and "bias" not in layer:
        return product_in_parts(x, layer.weight)
    return multiply(layer, flat(x), plain)


def multiply_gated(layer: nn.Module, x: mx.array, plain: type) -> mx.array | None:
    """Compute ``swiglu`` of both halves of ``layer(x)``. Return None if not supported."""
    return gated_product(x, layer.weight) if type(layer) is plain and "bias" not in layer else None
