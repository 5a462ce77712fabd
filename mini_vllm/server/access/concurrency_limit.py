"""The limit on sequences in flight: the seats of a model's engine, and a bounded queue for them.

A sequence counts from when its request is accepted until it is answered. It is accepted while fewer than
``max_num_seqs + max_waiting`` sequences of its priority or a better one are in flight. So a queue full of low-priority
requests does not block high-priority ones, and the total is at most three times the bound.

Among the keys of one priority, no key may hold more than its share of the bound while another key waits or was
rejected. A rejected key counts until it has sent no request for a while: otherwise the other key would take every place
again between two of its requests. A key that is alone may hold everything.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mini_vllm.request import Priority
from mini_vllm.server.errors import ApiError, retry_later

#: The Retry-After of a rejected client: a step takes a fraction of it, an answer a few times as long.
RETRY_AFTER_S = 1.0
#: How long a rejected key counts as waiting after its last request: long enough for the client to retry.
REFUSAL_COUNTS_S = 10.0


class Seats:
    """The sequences in flight of one model."""

    def __init__(self, max_num_seqs: int, max_waiting: int, key_share: float = 0.5,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.max_num_seqs, self.max_waiting, self.key_share, self._clock = max_num_seqs, max_waiting, key_share, clock
        #: The number of sequences in flight, by priority, and by priority and key.
        self._num_taken: Counter[Priority] = Counter()
        self._num_held: Counter[tuple[Priority, str | None]] = Counter()
        #: The time of the last request of a rejected key.
        self._refused_s: dict[tuple[Priority, str | None], float] = {}

    @property
    def bound(self) -> int:
        return self.max_num_seqs + self.max_waiting

    @contextmanager
    def taken(self, num_sequences: int, priority: Priority, key: str | None = None) -> Iterator[None]:
        """Hold seats for the sequences of one request of ``key`` (None if the server has no keys).

        Raise ApiError, and take no seat: 400 if the request can never be accepted, 429 if it cannot be accepted now.
        """
        if num_sequences > self.bound:
            raise ApiError(400, f"the request is for {num_sequences} texts (prompts times n); at most {self.bound} can "
                           "be in flight at once", param="n", code="too_many_texts")
        num_before = sum(self._num_taken[each] for each in Priority if each <= priority)
        holder = priority, key
        if num_before + num_sequences > self.bound:
            self._refused_s[holder] = self._clock()
            raise retry_later(429, f"the queue is full: {num_before} texts of priority {priority.name.lower()} or "
                              f"better are running or waiting, the limit is {self.bound}; try again later",
                              "queue_full", RETRY_AFTER_S)
        share = max(1, int(self.key_share * self.bound))
        if key is not None and self._num_held[holder] + num_sequences > share and self._others_wait(priority, key):
            self._refused_s[holder] = self._clock()
            raise retry_later(429, f"the key {key!r} has {self._num_held[holder]} texts running or waiting; while "
                              f"other keys wait, the limit is {share}; try again later", "key_share_exceeded",
                              RETRY_AFTER_S)
        if self._was_refused(holder):
            self._refused_s[holder] = self._clock()
        self._num_taken[priority] += num_sequences
        self._num_held[holder] += num_sequences
        try:
            yield
        finally:
            self._num_taken[priority] -= num_sequences
            self._num_held[holder] -= num_sequences

    def _others_wait(self, priority: Priority, key: str) -> bool:
        """Check whether another key of this priority was rejected recently, or has sequences while some wait."""
        holders = {*self._num_held, *self._refused_s}
        others = [holder for holder in holders if holder[0] == priority and holder[1] != key]
        if any(self._was_refused(holder) for holder in others):
            return True
        some_wait = sum(self._num_taken[each] for each in Priority if each <= priority) > self.max_num_seqs
        return some_wait and any(self._num_held[holder] for holder in others)

    def _was_refused(self, holder: tuple[Priority, str | None]) -> bool:
        """Check whether the key was rejected, and sent its last request recently."""
        return self._clock() - self._refused_s.get(holder, -math.inf) < REFUSAL_COUNTS_S
