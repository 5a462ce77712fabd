"""Block tables as one array, one row per request, padded with zeros: the null block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TableArray = npt.NDArray[np.int32]
MIN_WIDTH = 8


def round_width(num_blocks: int) -> int:
    """Return the next power of two, at least MIN_WIDTH. Every width of the tables has to be compiled separately."""
    return max(MIN_WIDTH, 1 << (num_blocks - 1).bit_length())


def round_tokens(num_tokens: int) -> int:
    """Return the number of tokens that a step of ``num_tokens`` computes after rounding up.

    It is the next power of two up to 16, the next multiple of 16 up to 256, and of 256 above. A product is planned
    again for each number of rows, so few numbers are used.
    """
    if num_tokens <= 16:
        return 1 << (num_tokens - 1).bit_length()
    step = 16 if num_tokens <= 256 else 256
    return -(-num_tokens // step) * step


def padded_tables(block_tables: Sequence[Sequence[int]], width: int) -> TableArray:
    """Return the tables as an array [num_requests, width]. A longer table is cut off."""
    tables = np.zeros((len(block_tables), width), dtype=np.int32)
    for row, table in zip(tables, block_tables):
        row[:len(table)] = table[:width]
    return tables


class TableRows:
    """Tables that are kept from step to step: a row whose table grew by a block gets that block, and nothing else is
    written."""

    def __init__(self) -> None:
        self._array = np.zeros((0, 0), dtype=np.int32)
        self._known: list[list[int]] = []
        #: Rows that were written as a whole, for tests and inspection.
        self.num_written = 0

    def update(self, block_tables: Sequence[Sequence[int]], num_rows: int, width: int) -> TableArray:
        """Return an array [num_rows, width]; rows after ``block_tables`` are zeros. The next call changes the array."""
        if self._array.shape != (num_rows, width):
            self._array = np.zeros((num_rows, width), dtype=np.int32)
            self._known = [[] for _ in range(num_rows)]
        for index, table in enumerate(block_tables):
            known = self._known[index]
            if known != table:
                self._write(index, known, list(table))
        for index in range(len(block_tables), num_rows):
            if self._known[index]:
                self._write(index, self._known[index], [])
        return self._array

    def _write(self, index: int, known: list[int], table: list[int]) -> None:
        start = len(known)
        if table[:start] == known:
            self._array[index, start:len(table)] = table[start:self._array.shape[1]]
        else:
            self._array[index] = 0
            self._array[index, :len(table)] = table[:self._array.shape[1]]
            self.num_written += 1
        self._known[index] = table
