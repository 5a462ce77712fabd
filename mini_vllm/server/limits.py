"""A rate that is kept on average and may be exceeded for a moment: the token bucket.

    capacity ┌───┐  it fills at the rate, a request takes one out;
             │▒▒▒│  an empty one says when the next will be there
             └───┘
"""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """``per_minute`` requests a minute. As many may come at once, after a quiet minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds. Tests pass their own, so that they need not sleep."""
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at_s = clock()

    def take(self) -> float:
        """0 if one was taken; else nothing was, and in so many seconds there will be one."""
        now_s = self._clock()
        self._level = min(self.per_minute, self._level + (now_s - self._at_s) * self.per_minute / 60)
        self._at_s = now_s
        if self._level >= 1 - 1e-9:
            self._level -= 1
            return 0.0
        return (1 - self._level) * 60 / self.per_minute
