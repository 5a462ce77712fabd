"""A step's tables and positions, brought to the GPU's own memory at once.

An array that the CPU has made lies in memory that both see. Where it is, a page of it, is settled when it is touched:
the GPU stops until the page has come, and it goes back when the CPU writes the next step's numbers beside it. 28 layers
read a step's tables, each thread block of them. So all of a step's arrays come in one, which is copied once:

    CPU   positions │ slots │ context_lens │ tables      one array
                          │ upload
    GPU   positions │ slots │ context_lens │ tables      slices of one array

MLX hands memory that is given back to whoever next asks for as much. Whatever it gave the CPU once stays in memory that
both see, so the copy asks for more than the CPU ever does at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.gpu.kernels.kernel import CUDA, WARP, Kernel, dialect_here
from mini_vllm.gpu.kernels.tables import TableArray

UPLOAD = Kernel("upload", ("numbers",), ("out",))
WARPS = 8
#: Numbers that the copy has room for, at least: 1 MiB.
MIN_ROOM = 256 * 1024


def upload(numbers: mx.array) -> mx.array:
    """The ``numbers`` [size] of int32, and as much behind them as may be, which means nothing."""
    if dialect_here() is not CUDA:
        return numbers
    (size,) = numbers.shape
    (there,) = UPLOAD([numbers], {"WARPS": WARPS}, (-(-size // (WARPS * WARP)), 1, 1), WARPS,
                      [((max(size, MIN_ROOM),), numbers.dtype)])
    return there


def slices(numbers: mx.array, shapes: Sequence[tuple[int, ...]]) -> list[mx.array]:
    """Arrays of such ``shapes``, which lie in ``numbers`` one after the other."""
    found, start = [], 0
    for shape in shapes:
        end = start + math.prod(shape)
        found.append(numbers[start:end].reshape(shape))
        start = end
    return found


def uploaded(arrays: Sequence[TableArray]) -> list[mx.array]:
    """The same arrays, on the GPU."""
    numbers = mx.array(np.concatenate([array.reshape(-1) for array in arrays]))
    return slices(upload(numbers), [array.shape for array in arrays])
