"""The tokens that one request computes in a step, and its context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """The last ``num_queries`` tokens of a context of ``context_len``, whose blocks are ``block_ids``."""

    block_ids: Sequence[int]
    num_queries: int
    context_len: int

    def num_blocks(self, block_size: int) -> int:
        """Return the number of blocks that the context fills; the table may have more."""
        return -(-self.context_len // block_size)

    def within(self, window: int, block_size: int) -> Span:
        """Return the span without the blocks that none of its queries sees, as if the request began with the first one
        left.

            window of 5, blocks of 4    0 1 2 3 │ 4 5 6 7 │ 8 9 10 11 │ 12
            a token at 12 sees                               8 9 10 11   12
        """
        num_left_out = max(self.context_len - self.num_queries + 1 - window, 0) // block_size
        return Span(self.block_ids[num_left_out:], self.num_queries, self.context_len - num_left_out * block_size)
