"""Two limits: a number of bytes, and the token bucket, an average rate that may be exceeded for a moment.

    capacity ┌───┐  the bucket fills at the rate, and a request takes one token per text;
             │▒▒▒│  if there are too few, the bucket says when there will be enough
             └───┘
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable


class TokenBucket:
    """``per_minute`` texts per minute. After a quiet minute, all of them may come at once."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Make a full bucket. ``clock`` returns seconds; tests pass their own, so that they need not sleep."""
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at_s = clock()

    def take(self, count: int = 1) -> float:
        """Take ``count`` and return 0; or take nothing, and return the seconds until there will be enough.

        ``count`` must be at most ``per_minute``: the bucket never holds more.
        """
        now_s = self._clock()
        self._level = min(self.per_minute, self._level + (now_s - self._at_s) * self.per_minute / 60)
        self._at_s = now_s
        if self._level >= count - 1e-9:
            self._level -= count
            return 0.0
        return (count - self._level) * 60 / self.per_minute


class ByteBudget:
    """The bytes that all requests together may hold, those of one key at most half of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: Counter[str | None] = Counter()

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    def take(self, num_bytes: int, key: str | None = None) -> bool:
        """Take the bytes, and return whether that many were left. If not, take nothing."""
        if self.num_taken + num_bytes > self.most or (
                key is not None and self._taken[key] + num_bytes > self.most // 2):
            return False
        self._taken[key] += num_bytes
        return True

    def give_back(self, num_bytes: int, key: str | None = None) -> None:
        self._taken[key] -= num_bytes
