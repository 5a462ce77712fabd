"""A GGUF file: fields with names, and tensors.

    magic, version, number of tensors, number of fields
    fields:   name, type, value            a text: length, bytes; a list: type, length, entries
    tensors:  name, shape, type, offset    offsets count from the data, which begins at a multiple of the alignment
    data

Every count and offset is checked against the size of the file.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.models.gguf_types import NAMES, TYPES, Array, read_tensor
from mini_vllm.models.json_fields import LoadError, shown

MAGIC, VERSIONS = b"GGUF", (2, 3)
#: Type of a field, or of the entries of a list → its code in Python's struct
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
ALIGNMENT, DEFAULT_ALIGNMENT = "general.alignment", 32


class _Tensor(NamedTuple):
    name: str
    kind: str
    #: Rows first, unlike in the file.
    shape: tuple[int, ...]
    #: The bytes of its data, from and to
    start: int
    end: int


class GGUFFile:
    """Reads the header at once, and tensors when asked. Raises LoadError, which names the field or tensor."""

    def __init__(self, file: Path) -> None:
        self.file, self._at = file, 4
        if not file.is_file():
            raise LoadError(f"{file} is not a regular file")
        self._size = file.stat().st_size
        if self._size < 24:
            self._refuse(f"truncated: {self._size} bytes, the header of a GGUF file alone has 24")
        with open(file, "rb") as stream:
            self._bytes = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        self._data: Array = np.frombuffer(self._bytes, np.uint8)
        magic = bytes(self._bytes[:4])
        if magic != MAGIC:
            self._refuse(f"begins with {magic!r}; a GGUF file begins with {MAGIC!r}")
        version, num_tensors, num_fields = self._scalar("I"), self._scalar("Q"), self._scalar("Q")
        if version not in VERSIONS:
            self._refuse(f"is version {version} of GGUF, must be 2 or 3")
        self.fields: dict[str, object] = {}
        for index in range(int(num_fields)):
            name = self._text(f"the name of field {index}")
            self.fields[name] = self._value(shown(name), int(self._scalar("I")))
        self._tensors = self._read_tensors(int(num_tensors))

    def tensors(self, unpacked: mx.Dtype) -> Iterator[tuple[str, dict[str, mx.array]]]:
        """Yield the name of each tensor, and its arrays. Quantised ones that MLX cannot multiply become ``unpacked``
        floats."""
        for name, kind, shape, start, end in self._tensors:
            yield name, read_tensor(name, kind, shape, self._data[start:end], unpacked)

    def _value(self, name: str, kind: int) -> object:
        if kind == TEXT:
            return self._text(name)
        if kind != LIST:
            return self._scalar(self._code(name, kind), name)
        kind, count = int(self._scalar("I")), int(self._scalar("Q"))
        if kind == TEXT:
            return [self._text(name) for _ in range(count)]
        code = np.dtype(self._code(name, kind)).newbyteorder("<")
        start = self._skip(count * code.itemsize, name)
        return np.frombuffer(self._bytes, code, count, start).tolist()

    def _read_tensors(self, count: int) -> list[_Tensor]:
        alignment = self.fields.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            self._refuse(f"{ALIGNMENT} is {alignment!r}, must be a whole number, at least 1")
        heads = [self._tensor_head(index) for index in range(count)]
        data_start, tensors = -(-self._at // alignment) * alignment, []
        for name, kind, shape, offset in heads:
            block_size, num_bytes = TYPES[kind][:2]
            if shape[-1] % block_size:
                self._refuse(f"{shown(name)} has the shape {shape}, but {kind} packs {block_size} numbers together")
            start = data_start + offset
            end = start + math.prod(shape) // block_size * num_bytes
            if end > self._size:
                self._refuse(f"truncated: {self._size} bytes, {shown(name)} ends at {end}")
            tensors.append(_Tensor(name, kind, shape, start, end))
        return tensors

    def _tensor_head(self, index: int) -> tuple[str, str, tuple[int, ...], int]:
        name = self._text(f"the name of tensor {index}")
        num_dimensions = int(self._scalar("I"))
        if not 1 <= num_dimensions <= 4:
            self._refuse(f"{shown(name)} has {num_dimensions} dimensions, must be from 1 to 4")
        shape = tuple(int(self._scalar("Q")) for _ in range(num_dimensions))[::-1]
        number, offset = int(self._scalar("I")), int(self._scalar("Q"))
        kind = NAMES.get(number, "-")
        if kind not in TYPES:
            self._refuse(f"{shown(name)} is of type {number if kind == '-' else kind}, which is not supported; "
                         f"supported: {', '.join(TYPES)}")
        return name, kind, shape, offset

    def _text(self, what: str) -> str:
        length = int(self._scalar("Q", what))
        start = self._skip(length, what)
        return str(self._bytes[start:start + length], "utf-8", "replace")

    def _code(self, name: str, kind: int) -> str:
        if kind not in SCALARS:
            self._refuse(f"{name} has type {kind}, which is not supported")
        return SCALARS[kind]

    def _scalar(self, code: str, what: str = "the header") -> int | float:
        form = f"<{code}"
        (value,) = struct.unpack_from(form, self._bytes, self._skip(struct.calcsize(form), what))
        return value  # type: ignore[no-any-return]  # struct's types do not say

    def _skip(self, num_bytes: int, what: str) -> int:
        """Move on, and return where it was."""
        start = self._at
        if num_bytes > self._size - start:
            self._refuse(f"truncated: {self._size} bytes, {what} ends at {start + num_bytes}")
        self._at += num_bytes
        return start

    def _refuse(self, complaint: str) -> NoReturn:
        raise LoadError(f"{self.file}: {complaint}")
