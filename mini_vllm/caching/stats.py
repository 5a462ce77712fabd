"""What the prefix cache saved: counted as requests get their first slots."""

from __future__ import annotations

from collections import deque

#: Requests over which ``recent_hit_rate`` looks back.
HIT_RATE_WINDOW = 100


class PrefixCacheCounter:
    """Requests that got their first slots since the last reset: tokens they asked for, and tokens found for them."""

    def __init__(self, num_evictions_before: int = 0) -> None:
        """``num_evictions_before``: the pool counts evictions since it was made, and this many do not count here."""
        self.num_evictions_before = num_evictions_before
        self.num_queries = self.num_query_tokens = self.num_hit_tokens = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=HIT_RATE_WINDOW)

    def count(self, num_query_tokens: int, num_hit_tokens: int) -> None:
        self.num_queries += 1
        self.num_query_tokens += num_query_tokens
        self.num_hit_tokens += num_hit_tokens
        self._recent.append((num_query_tokens, num_hit_tokens))

    @property
    def recent_hit_rate(self) -> float:
        num_asked, num_found = (sum(column) for column in zip(*self._recent)) if self._recent else (0, 0)
        return num_found / num_asked if num_asked else 0.0
