"""Block tables as one array, a row a request, filled up with zeros: the null block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TableArray = npt.NDArray[np.int32]
MIN_WIDTH = 8


def round_width(num_blocks: int) -> int:
    """The next power of two, at least MIN_WIDTH: each width of the tables that is compiled for is compiled anew."""
    return max(MIN_WIDTH, 1 << (num_blocks - 1).bit_length())


def round_tokens(num_tokens: int) -> int:
    """How many tokens a step of ``num_tokens`` computes: the next power of two up to 16, of 16 up to 256, of 256 above.
    A product is planned anew for each number of rows, so few numbers are used."""
    if num_tokens <= 16:
        return 1 << (num_tokens - 1).bit_length()
    step = 16 if num_tokens <= 256 else 256
    return -(-num_tokens // step) * step


def padded_tables(block_tables: Sequence[Sequence[int]], width: int) -> TableArray:
    """[num_requests, width]. Of a table that is longer, what fits."""
    tables = np.zeros((len(block_tables), width), dtype=np.int32)
    for row, table in zip(tables, block_tables):
        row[:len(table)] = table[:width]
    return tables


class TableRows:
    """The same from step to step: a row whose table grew by a block gets that block, and nothing else is written."""

    def __init__(self) -> None:
        self._array = np.zeros((0, 0), dtype=np.int32)
        self._known: list[list[int]] = []
        #: Rows that were written whole, for tests and the curious.
        self.num_written = 0

    def update(self, block_tables: Sequence[Sequence[int]], num_rows: int, width: int) -> TableArray:
        """[num_rows, width], of which the rows after ``block_tables`` are zeros. It is changed by the next call."""
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
