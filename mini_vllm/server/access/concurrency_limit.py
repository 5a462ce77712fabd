"""How many may be in flight: the seats of a model's engine, and a bounded queue for them.

A sequence counts from when its request is accepted until it is answered. One of some priority is accepted while there
are fewer than ``max_num_seqs + max_waiting`` of that priority or a better one. So a queue full of low requests turns no
high one away, and all together are at most three times the bound.

Among the keys of one priority, none may hold more than its share of the bound while another one waits or was refused.
A key that was refused counts until it has not asked for a while: else the other would take every place again between
two of its requests. A key that is alone may hold everything.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mini_vllm.request import Priority
from mini_vllm.server.errors import ApiError, retry_later

#: What a client is told to wait before it asks again: steps take a fraction of that, answers a few times as long.
RETRY_AFTER_S = 1.0
#: How long a key that was refused counts as one that waits, from when it last asked: long enough to ask again.
REFUSAL_COUNTS_S = 10.0


class Seats:
    """The sequences in flight of one model."""

    def __init__(self, max_num_seqs: int, max_waiting: int, key_share: float = 0.5,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.max_num_seqs, self.max_waiting, self.key_share, self._clock = max_num_seqs, max_waiting, key_share, clock
        #: How many sequences are in flight, by priority, and by priority and key.
        self._num_taken: Counter[Priority] = Counter()
        self._num_held: Counter[tuple[Priority, str | None]] = Counter()
        #: When a key that was refused has last asked.
        self._refused_s: dict[tuple[Priority, str | None], float] = {}

    @property
    def bound(self) -> int:
        return self.max_num_seqs + self.max_waiting

    @contextmanager
    def taken(self, num_sequences: int, priority: Priority, key: str | None = None) -> Iterator[None]:
        """Hold seats for the sequences of one request of ``key``; None: there are no keys.

        Raises ApiError: 400 for what can never be taken, 429 for what cannot be now. Nothing is taken then.
        """
        if num_sequences > self.bound:
            raise ApiError(400, f"the request is for {num_sequences} texts (prompts times n); at most {self.bound} can "
                           "be in flight at once", param="n", code="too_many_texts")
        num_before = sum(self._num_taken[each] for each in Priority if each <= priority)
        holder = priority, key
        if num_before + num_sequences > self.bound:
            self._refused_s[holder] = self._clock()
            raise retry_later(429, f"the queue is full: {num_before} texts of priority {priority.name.lower()} or "
                              f"better are running or waiting, the bound is {self.bound}; ask again later",
                              "queue_full", RETRY_AFTER_S)
        share = max(1, int(self.key_share * self.bound))
        if key is not None and self._num_held[holder] + num_sequences > share and self._others_wait(priority, key):
            self._refused_s[holder] = self._clock()
            raise retry_later(429, f"the key {key!r} has {self._num_held[holder]} texts running or waiting; while "
                              f"others wait it may have {share}; ask again later", "key_share_exceeded", RETRY_AFTER_S)
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
        """Return whether another key of this priority was refused lately, or has sequences while some wait."""
        holders = {*self._num_held, *self._refused_s}
        others = [holder for holder in holders if holder[0] == priority and holder[1] != key]
        if any(self._was_refused(holder) for holder in others):
            return True
        some_wait = sum(self._num_taken[each] for each in Priority if each <= priority) > self.max_num_seqs
        return some_wait and any(self._num_held[holder] for holder in others)

    def _was_refused(self, holder: tuple[Priority, str | None]) -> bool:
        """Return whether the key was refused and has asked since, or then, not long ago."""
        return self._clock() - self._refused_s.get(holder, -math.inf) < REFUSAL_COUNTS_S
