"""Forbidden token sequences, prepared once for all rows that have the same words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np


class BadWords:
    """Finds the tokens that would complete one of the sequences.

    The last token of a sequence is banned when the output ends with the tokens before it. Those tokens are stored as
    bytes, which take a tenth of the memory of lists and a tenth of the time to compare.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        #: Second-to-last token of a sequence, if there is one → the tokens before the last one, and the last one.
        self._after: dict[tuple[int, ...], list[tuple[bytes, int]]] = defaultdict(list)
        self._max_len = 1
        for *beginning, last in filter(None, dict.fromkeys(map(tuple, sequences))):
            self._after[tuple(beginning[-1:])].append((_as_bytes(beginning), last))
            self._max_len = max(self._max_len, len(beginning))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Yield the sequences."""
        for beginning, last in chain.from_iterable(self._after.values()):
            yield (*np.frombuffer(beginning, dtype=np.int64).tolist(), last)

    def banned_after(self, output: Sequence[int]) -> list[int]:
        """Return the tokens that must not be next."""
        candidates = [word for previous in {(), tuple(output[-1:])} for word in self._after.get(previous, ())]
        tail = _as_bytes(output[-self._max_len:]) if candidates else b""
        return [last for beginning, last in candidates if tail.endswith(beginning)]


def _as_bytes(token_ids: Sequence[int]) -> bytes:
    return np.array(token_ids, dtype=np.int64).tobytes()
