"""Copies a step's tables and positions to the GPU's own memory at once.

An array that the CPU has created is in memory that both can access. The location of each page is decided on access: the
GPU stalls until the page has been moved, and the page moves back when the CPU writes the next step's numbers next to
it. 28 layers read a step's tables, in every thread block. So all arrays of a step are put into one, which is copied
once:

    CPU   positions │ slots │ context_lens │ tables      one array
                          │ upload
    GPU   positions │ slots │ context_lens │ tables      slices of one array

MLX reuses freed memory for the next allocation of the same size. Memory that the CPU has used once stays accessible to
both CPU and GPU, so the copy must not be placed there. Therefore the copy always allocates more than the CPU ever
allocates at once: at least ``MIN_ROOM`` numbers.
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
#: The smallest size of the copy, in numbers: 1 MiB.
MIN_ROOM = 256 * 1024


def upload(numbers: mx.array) -> mx.array:
    """Copy the ``numbers`` [size] of int32 to the GPU. The result may be longer; what follows the numbers is
    meaningless."""
    if dialect_here() is not CUDA:
        return numbers
    (size,) = numbers.shape
    (there,) = UPLOAD([numbers], {"WARPS": WARPS}, (-(-size // (WARPS * WARP)), 1, 1), WARPS,
                      [((max(size, MIN_ROOM),), numbers.dtype)])
    return there


def slices(numbers: mx.array, shapes: Sequence[tuple[int, ...]]) -> list[mx.array]:
    """Return arrays of these ``shapes``, which follow each other in ``numbers``."""
    found, start = [], 0
    for shape in shapes:
        end = start + math.prod(shape)
        found.append(numbers[start:end].reshape(shape))
        start = end
    return found


def uploaded(arrays: Sequence[TableArray]) -> list[mx.array]:
    """Return the same arrays on the GPU."""
    numbers = mx.array(np.concatenate([array.reshape(-1) for array in arrays]))
    return slices(upload(numbers), [array.shape for array in arrays])
