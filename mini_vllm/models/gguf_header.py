"""Check the header of a GGUF file against its size before MLX reads it.

    magic, version, number of tensors, number of fields
    fields:   name, type, value            a text: length, bytes; a list: type, length, entries
    tensors:  name, shape, type, offset    offsets count from the data, which begins at a multiple of the alignment
    data

MLX trusts every count and offset in the file. One that points outside the file crashes the process, and with it all
other models that a server has loaded.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NoReturn

from mini_vllm.models.json_fields import LoadError, shown

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_FIELDS, MAX_TENSORS, MAX_NAME_BYTES, MAX_DIMENSIONS = 2**16, 2**16, 2**16, 4
#: Limits for a list, and for all fields together. The largest real lists, of merges, have half a million entries and 10
#: MB.
MAX_ENTRIES, MAX_FIELDS_BYTES = 2**20, 64 * 2**20
#: Type of a field, or of the entries of a list → its size in bytes. MLX crashes when it reads a float64 (12), and
#: supports no lists of lists.
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8}
TEXT, LIST = 8, 9
ALIGNMENT, DEFAULT_ALIGNMENT, UINT32 = "general.alignment", 32, 4
#: Type of a tensor → how many numbers are packed together, and into how many bytes. Floats and integers first, then the
#: quantised types by their number: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, then Q2_K to Q6_K.
PACKED = {0: (1, 4), 1: (1, 2), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2),
          2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
          10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)}


def check_gguf(file: Path) -> None:
    """Raise LoadError, which names the field or tensor, if the header does not fit the file."""
    if not file.is_file():
        raise LoadError(f"{file} is not a regular file")
    size = file.stat().st_size
    if size < 24:
        raise LoadError(f"{file}: truncated: {size} bytes, the header of a GGUF file alone has 24")
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _Header(file, data, size).check()


class _Header:
    """Walks over the header once. The next read begins at ``at``."""

    def __init__(self, file: Path, data: mmap.mmap, size: int) -> None:
        self.file, self.data, self.size, self.at = file, data, size, 0
        self.alignment = DEFAULT_ALIGNMENT

    def check(self) -> None:
        if self.data[:4] != MAGIC:
            self._refuse(f"begins with {self.data[:4]!r}; a GGUF file begins with {MAGIC!r}")
        self.at = 4
        version, num_tensors, num_fields = self._number("<I", 4), self._number("<Q", 8), self._number("<Q", 8)
        if version not in VERSIONS:
            self._refuse(f"is version {version} of GGUF, must be 2 or 3")
        for what, count, most in (("tensors", num_tensors, MAX_TENSORS), ("fields", num_fields, MAX_FIELDS)):
            if count > most:
                self._refuse(f"has {count} {what}, must be at most {most}")
        for index in range(num_fields):
            self._check_field(index)
            if self.at > MAX_FIELDS_BYTES:
                self._refuse(f"its fields have more than {MAX_FIELDS_BYTES} bytes")
        tensors = [self._read_tensor(index) for index in range(num_tensors)]
        start = -(-self.at // self.alignment) * self.alignment
        for name, offset, num_bytes in tensors:
            if offset % self.alignment:
                self._refuse(f"the offset of {name} is {offset}, must be a multiple of {self.alignment}")
            if start + offset + num_bytes > self.size:
                self._refuse(f"truncated: {self.size} bytes, {name} ends at {start + offset + num_bytes}")

    def _check_field(self, index: int) -> None:
        name = self._name(f"field {index}")
        kind = self._number("<I", 4)
        if name == ALIGNMENT:
            if kind != UINT32:
                self._refuse(f"{ALIGNMENT} has type {kind}, must be {UINT32}")
            self.alignment = self._number("<I", 4)
            if not 8 <= self.alignment <= 2**16 or self.alignment & (self.alignment - 1):
                self._refuse(f"{ALIGNMENT} is {self.alignment}, must be a power of 2 from 8 to {2**16}")
        elif kind == TEXT:
            self._skip(self._number("<Q", 8), name)
        elif kind == LIST:
            self._check_list(name)
        else:
            self._skip(self._size_of(kind, name), name)

    def _check_list(self, name: str) -> None:
        kind, count = self._number("<I", 4), self._number("<Q", 8)
        if count > MAX_ENTRIES:
            self._refuse(f"{name} has {count} entries, must have at most {MAX_ENTRIES}")
        if kind != TEXT:
            self._skip(count * self._size_of(kind, name), name)
            return
        data, at, size, length_at = self.data, self.at, self.size, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > size:
                break
            at += 8 + length_at(data, at)[0]
        else:
            if at <= size:
                self.at = at
                return
        self._refuse(f"truncated: a text of {name} ends after the file")

    def _read_tensor(self, index: int) -> tuple[str, int, int]:
        """Return name, offset and number of bytes."""
        name = self._name(f"tensor {index}")
        num_dimensions = self._number("<I", 4)
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            self._refuse(f"{name} has {num_dimensions} dimensions, must be from 1 to {MAX_DIMENSIONS}")
        shape = [self._number("<Q", 8) for _ in range(num_dimensions)]
        kind, offset = self._number("<I", 4), self._number("<Q", 8)
        if kind not in PACKED:
            self._refuse(f"{name} has type {kind}, which is not supported")
        num_packed, num_bytes = PACKED[kind]
        num_numbers = 1
        for length in shape:
            num_numbers *= length
        if not 0 < num_numbers <= self.size * 256 or shape[0] % num_packed:
            self._refuse(f"{name} has the shape {shape}, which does not fit its type or the file")
        return name, offset, num_numbers // num_packed * num_bytes

    def _name(self, what: str) -> str:
        length = self._number("<Q", 8)
        if length > MAX_NAME_BYTES:
            self._refuse(f"the name of {what} has {length} bytes, must be at most {MAX_NAME_BYTES}")
        start = self.at
        self._skip(length, what)
        return shown(self.data[start:self.at].decode("utf-8", "replace"))

    def _size_of(self, kind: int, name: str) -> int:
        if kind not in SCALARS:
            self._refuse(f"{name} has type {kind}, which is not supported")
        return SCALARS[kind]

    def _number(self, form: str, num_bytes: int) -> int:
        start = self.at
        self._skip(num_bytes, "the header")
        (number,) = struct.unpack_from(form, self.data, start)
        return int(number)

    def _skip(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.size - self.at:
            self._refuse(f"truncated: {self.size} bytes, {what} ends at {self.at + num_bytes}")
        self.at += num_bytes

    def _refuse(self, complaint: str) -> NoReturn:
        raise LoadError(f"{self.file}: {complaint}")
