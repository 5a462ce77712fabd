"""A GGUF file: fields with names, and tensors.

    magic, version, number of tensors, number of fields
    fields:   name, type, value            a text: length, bytes; a list: type, length, entries
    tensors:  name, shape, type, offset    offsets count from the data, which begins at a multiple of the alignment
    data

A quantised tensor stores 32 or 256 numbers as a block: whole numbers of a few bits, the scale in half precision and, in
some types, a minimum. Blocks of 256 also have a small scale for each group of 16 or 32 numbers. All unpacked numbers
are exact in float32, except that those of types with a minimum are rounded once.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx
from mini_vllm.models.config import LoadError

Array = npt.NDArray[Any]

MAGIC, VERSIONS = b"GGUF", (2, 3)
#: Type of a field, or of the entries of a list → its code in Python's struct
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
ALIGNMENT, DEFAULT_ALIGNMENT = "general.alignment", 32
#: Bytes that are unpacked at a time: intermediate arrays are several times as large.
BYTES_AT_ONCE = 2**17

#: The names of the types of tensors, in the order of their numbers. A gap is a type that no file has any more.
NAMES = dict(enumerate(
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL "
    "IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4 NVFP4".split()))


class _Tensor(NamedTuple):
    name: str
    kind: str
    #: Rows first, unlike in the file.
    shape: tuple[int, ...]
    #: The bytes of its data, from and to
    start: int
    end: int


class GGUFFile:
    """Reads the header at once, and tensors when asked. Raises LoadError for a file that is damaged or truncated."""

    def __init__(self, file: Path) -> None:
        self.fields: dict[str, Any] = {}
        self._at = 0
        try:
            with open(file, "rb") as stream:
                self._bytes = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
            self._tensors = self._read_header()
        except struct.error:
            raise LoadError(f"{file}: truncated: {file.stat().st_size} bytes, its header is longer") from None
        except ValueError as error:
            raise LoadError(f"{file}: {error}") from None

    def tensors(self, unpacked: mx.Dtype) -> Iterator[tuple[str, dict[str, mx.array]]]:
        """Yield the name of each tensor, and its arrays. Quantised ones that MLX cannot multiply become ``unpacked``
        floats."""
        data: Array = np.frombuffer(self._bytes, np.uint8)
        for name, kind, shape, start, end in self._tensors:
            yield name, _read_tensor(name, kind, shape, data[start:end], unpacked)

    def _read_header(self) -> list[_Tensor]:
        magic = self._read("4s")
        if magic != MAGIC:
            raise ValueError(f"begins with {magic!r}; a GGUF file begins with {MAGIC!r}")
        version, num_tensors, num_fields = self._read("I"), self._read("Q"), self._read("Q")
        if version not in VERSIONS:
            raise ValueError(f"is version {version} of GGUF, must be 2 or 3")
        for _ in range(num_fields):
            name = self._read_text()
            self.fields[name] = self._read_value(name)
        alignment = self.fields.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"{ALIGNMENT} is {alignment!r}, must be a whole number, at least 1")
        heads = [self._read_tensor_head() for _ in range(num_tensors)]
        data_start, tensors = -(-self._at // alignment) * alignment, []
        for name, kind, shape, offset in heads:
            block_size, num_bytes = TYPES[kind][:2]
            if shape[-1] % block_size:
                raise ValueError(f"{name} has the shape {shape}, but {kind} packs {block_size} numbers together")
            start = data_start + offset
            end = start + math.prod(shape) // block_size * num_bytes
            if end > len(self._bytes):
                raise ValueError(f"truncated: {len(self._bytes)} bytes, {name} ends at {end}")
            tensors.append(_Tensor(name, kind, shape, start, end))
        return tensors

    def _read_value(self, name: str) -> object:
        kind, count = self._read("I"), None
        if kind == LIST:
            kind, count = self._read("I"), self._read("Q")
        if kind == TEXT:
            return self._read_text() if count is None else [self._read_text() for _ in range(count)]
        if kind not in SCALARS:
            raise ValueError(f"{name} has type {kind}, which is not supported")
        return self._read(SCALARS[kind]) if count is None else [*self._read_all(f"{count}{SCALARS[kind]}")]

    def _read_tensor_head(self) -> tuple[str, str, tuple[int, ...], int]:
        name, num_dimensions = self._read_text(), self._read("I")
        if not 1 <= num_dimensions <= 4:
            raise ValueError(f"{name} has {num_dimensions} dimensions, must be from 1 to 4")
        shape = self._read_all(f"{num_dimensions}Q")[::-1]
        number, offset = self._read("I"), self._read("Q")
        kind = NAMES.get(number, "-")
        if kind not in TYPES:
            raise ValueError(f"{name} is of type {number if kind == '-' else kind}, which is not supported; "
                             f"supported: {', '.join(TYPES)}")
        return name, kind, shape, offset

    def _read_text(self) -> str:
        content: bytes = self._read(f"{self._read('Q')}s")
        return content.decode("utf-8", "replace")

    def _read(self, code: str) -> Any:
        return self._read_all(code)[0]

    def _read_all(self, code: str) -> tuple[Any, ...]:
        """Read what a code of Python's struct says, and move on. Raise struct.error beyond the end of the file."""
        values = struct.unpack_from(f"<{code}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{code}")
        return values


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


def _read_tensor(name: str, kind: str, shape: tuple[int, ...], data: Array, unpacked: mx.Dtype) -> dict[str, mx.array]:
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
