"""The savings of the prefix cache, counted when requests get their first slots."""

from __future__ import annotations

from collections import deque

#: The number of requests that ``recent_hit_rate`` covers.
HIT_RATE_WINDOW = 100


class PrefixCacheCounter:
    """Counts requests that got their first slots since the last reset: their tokens, and the tokens found for them."""

    def __init__(self, num_evictions_before: int = 0) -> None:
        """Start at zero. ``num_evictions_before`` is the pool's count of evictions now; they do not count here."""
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
