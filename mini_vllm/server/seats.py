"""How many may be in flight: the seats of a model's engine, and a bounded queue for them.

A sequence counts from when its request is accepted until it is answered. One of some priority is accepted while there
are fewer than ``max_num_seqs + max_waiting`` of that priority or a better one. So a queue full of low requests turns no
high one away, and all together are at most three times the bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from mini_vllm.request import Priority
from mini_vllm.server.errors import ApiError, retry_later

#: What a client is told to wait before it asks again: steps take a fraction of that, answers a few times as long.
RETRY_AFTER_S = 1.0


class Seats:
    """The sequences in flight of one model."""

    def __init__(self, max_num_seqs: int, max_waiting: int) -> None:
        self.max_num_seqs, self.max_waiting = max_num_seqs, max_waiting
        self._num_taken: Counter[Priority] = Counter()

    @property
    def bound(self) -> int:
        return self.max_num_seqs + self.max_waiting

    @contextmanager
    def taken(self, num_sequences: int, priority: Priority) -> Iterator[None]:
        """Raises ApiError: 400 for what can never be taken, 429 for what cannot be now. Nothing is taken then."""
        if num_sequences > self.bound:
            raise ApiError(400, f"the request is for {num_sequences} texts (prompts times n); at most {self.bound} can "
                           "be in flight at once", param="n", code="too_many_texts")
        num_before = sum(self._num_taken[each] for each in Priority if each <= priority)
        if num_before + num_sequences > self.bound:
            raise retry_later(429, f"the queue is full: {num_before} texts of priority {priority.name.lower()} or "
                              f"better are running or waiting, the bound is {self.bound}; ask again later",
                              "queue_full", RETRY_AFTER_S)
        self._num_taken[priority] += num_sequences
        try:
            yield
        finally:
            self._num_taken[priority] -= num_sequences
