"""The types of tensors in a GGUF file: how many bytes each takes, and how its numbers are unpacked.

A quantised type stores 32 or 256 numbers as a block: whole numbers of a few bits, the scale in half precision and, in
some types, a minimum. Blocks of 256 also have a small scale for each group of 16 or 32 numbers. All results are exact
in float32, except that those of types with a minimum are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx

Array = npt.NDArray[Any]

#: Bytes that are unpacked at a time: intermediate arrays are several times as large.
BYTES_AT_ONCE = 2**17

#: The names of the types, in the order of their numbers. A gap is a type that no file has any more.
NAMES = dict(enumerate(
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL "
    "IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4 NVFP4".split()))


class TensorType(NamedTuple):
    #: How many numbers a block has, and how many bytes
    block_size: int
    num_bytes: int
    #: Blocks [n, num_bytes] → numbers [n, block_size] in float32
    unpack: Callable[[Array], Array] | None = None
    #: For types that MLX can multiply as they are. Blocks → whole numbers [n, 32] of 4 or 8 bits, scale, bias [n, 1]
    split: Callable[[Array], tuple[Array, Array, Array]] | None = None


def _half(blocks: Array, at: int) -> Array:
    """Return the half-precision number at a byte of each block, [n, 1]."""
    numbers: Array = np.ascontiguousarray(blocks[:, at:at + 2]).view(np.float16)
    return numbers


def _fields(data: Array, group: int, bits: int) -> Array:
    """Split bytes into numbers of a few bits, [n, numbers]: in each group of bytes, first the lowest bits of all
    bytes, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    numbers: Array = (data.reshape(len(data), -1, 1, group) >> shifts) & (2**bits - 1)
    return numbers.reshape(len(data), -1)


def _scaled(scales: Array, numbers: Array, minima: Array | None = None) -> Array:
    """Multiply each group of numbers by its scale, and subtract its minimum."""
    num_blocks, num_groups = scales.shape
    out = scales[:, :, None] * numbers.reshape(num_blocks, num_groups, -1).astype(np.float32)
    if minima is not None:
        out -= minima[:, :, None]
    return out.reshape(num_blocks, -1)


def _q4_0(blocks: Array) -> tuple[Array, Array, Array]:
    scale = _half(blocks, 0)
    return _fields(blocks[:, 2:], 16, 4), scale, scale * np.float16(-8)


def _q4_1(blocks: Array) -> tuple[Array, Array, Array]:
    return _fields(blocks[:, 4:], 16, 4), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Array) -> tuple[Array, Array, Array]:
    scale = _half(blocks, 0)
    return blocks[:, 2:] ^ 128, scale, scale * np.float16(-128)


def _five_bits(blocks: Array, at: int) -> Array:
    numbers: Array = _fields(blocks[:, at + 4:], 16, 4) | _fields(blocks[:, at:at + 4], 1, 1) << 4
    return numbers


def _q5_0(blocks: Array) -> Array:
    return _scaled(_half(blocks, 0).astype(np.float32), _five_bits(blocks, 2).astype(np.int8) - 16)


def _q5_1(blocks: Array) -> Array:
    scale, minimum = (_half(blocks, at).astype(np.float32) for at in (0, 2))
    return _scaled(scale, _five_bits(blocks, 4), -minimum)


def _q2_k(blocks: Array) -> Array:
    scale, minimum = (_half(blocks, at).astype(np.float32) for at in (80, 82))
    return _scaled(scale * (blocks[:, :16] & 15), _fields(blocks[:, 16:80], 32, 2), minimum * (blocks[:, :16] >> 4))


def _q3_k(blocks: Array) -> Array:
    scales = _fields(blocks[:, 96:104], 8, 4) | _fields(blocks[:, 104:108], 4, 2) << 4
    numbers = _fields(blocks[:, 32:96], 32, 2) | _fields(blocks[:, :32], 32, 1) << 2
    return _scaled(_half(blocks, 108).astype(np.float32) * (scales.astype(np.int8) - 32), numbers.astype(np.int8) - 4)


def _scales_and_minima(blocks: Array) -> tuple[Array, Array]:
    """Return the eight scales and minima of Q4_K and Q5_K. They have six bits, those of the last four groups in two
    pieces."""
    scale, minimum = (_half(blocks, at).astype(np.float32) for at in (0, 2))
    low, high, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    return (scale * np.hstack([low & 63, rest & 15 | low >> 6 << 4]),
            minimum * np.hstack([high & 63, rest >> 4 | high >> 6 << 4]))


def _q4_k(blocks: Array) -> Array:
    scales, minima = _scales_and_minima(blocks)
    return _scaled(scales, _fields(blocks[:, 16:], 32, 4), minima)


def _q5_k(blocks: Array) -> Array:
    scales, minima = _scales_and_minima(blocks)
    return _scaled(scales, _fields(blocks[:, 48:], 32, 4) | _fields(blocks[:, 16:48], 32, 1) << 4, minima)


def _q6_k(blocks: Array) -> Array:
    numbers = _fields(blocks[:, :128], 64, 4) | _fields(blocks[:, 128:192], 32, 2) << 4
    return _scaled(_half(blocks, 208).astype(np.float32) * blocks[:, 192:208].view(np.int8),
                   numbers.astype(np.int8) - 32)


TYPES = {
    "F32": TensorType(1, 4), "F16": TensorType(1, 2), "BF16": TensorType(1, 2),
    "Q4_0": TensorType(32, 18, split=_q4_0), "Q4_1": TensorType(32, 20, split=_q4_1),
    "Q5_0": TensorType(32, 22, _q5_0), "Q5_1": TensorType(32, 24, _q5_1), "Q8_0": TensorType(32, 34, split=_q8_0),
    "Q2_K": TensorType(256, 84, _q2_k), "Q3_K": TensorType(256, 110, _q3_k), "Q4_K": TensorType(256, 144, _q4_k),
    "Q5_K": TensorType(256, 176, _q5_k), "Q6_K": TensorType(256, 210, _q6_k),
}


def read_tensor(name: str, kind: str, shape: tuple[int, ...], data: Array, unpacked: mx.Dtype) -> dict[str, mx.array]:
    """Return the tensor under its name or, if MLX can multiply it as it is, as weight, scales and biases.

    Quantised tensors that MLX cannot multiply become floats of the type ``unpacked``.
    """
    if kind == "BF16":
        return {name: mx.array(data.view(np.uint16).reshape(shape)).view(mx.bfloat16)}
    if kind in ("F32", "F16"):
        return {name: mx.array(data.view(np.float32 if kind == "F32" else np.float16).reshape(shape))}
    block_size, num_bytes, unpack, split = TYPES[kind]
    blocks = data.reshape(-1, num_bytes)
    if unpack is not None:
        floats, step = np.empty((len(blocks), block_size), np.float32), max(BYTES_AT_ONCE // num_bytes, 1)
        for start in range(0, len(blocks), step):
            floats[start:start + step] = unpack(blocks[start:start + step])
        return {name: mx.array(floats.reshape(shape)).astype(unpacked)}
    assert split is not None
    numbers, scales, biases = split(blocks)
    if num_bytes < 32:  # 4 bits: two numbers per byte
        numbers = numbers[:, ::2] | numbers[:, 1::2] << 4
    stem, rows = name.removesuffix(".weight"), shape[:-1]
    return {name: mx.array(np.ascontiguousarray(numbers).view(np.uint32).reshape(*rows, -1)),
            f"{stem}.scales": mx.array(scales.reshape(*rows, -1)),
            f"{stem}.biases": mx.array(biases.reshape(*rows, -1))}
