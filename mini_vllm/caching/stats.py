"""What the prefix cache saved: counted as requests get their first slots."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: Requests over which ``recent_hit_rate`` looks back.
HIT_RATE_WINDOW = 100


@dataclass(frozen=True)
class PrefixCacheStats:
    """What the prefix cache did since the last reset.

    A request counts once, when it gets its first slots. What it finds again after a preemption does not count.
    """

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_blocks: int = 0
    #: Of the last HIT_RATE_WINDOW requests alone.
    recent_hit_rate: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.num_hit_tokens / self.num_query_tokens if self.num_query_tokens else 0.0


class PrefixCacheCounter:
    """Counts queries. The pool counts evictions, since it was made; here is how many there were at the last reset."""

    def __init__(self, num_evictions: int = 0) -> None:
        self._num_evictions_before = num_evictions
        self._num_queries = self._num_query_tokens = self._num_hit_tokens = 0
        #: Tokens asked for, tokens found.
        self._recent: deque[tuple[int, int]] = deque(maxlen=HIT_RATE_WINDOW)

    def count(self, num_query_tokens: int, num_hit_tokens: int) -> None:
        self._num_queries += 1
        self._num_query_tokens += num_query_tokens
        self._num_hit_tokens += num_hit_tokens
        self._recent.append((num_query_tokens, num_hit_tokens))

    def stats(self, num_evictions: int) -> PrefixCacheStats:
        num_asked, num_found = (sum(column) for column in zip(*self._recent)) if self._recent else (0, 0)
        return PrefixCacheStats(self._num_queries, self._num_query_tokens, self._num_hit_tokens,
                                num_evictions - self._num_evictions_before,
                                num_found / num_asked if num_asked else 0.0)
