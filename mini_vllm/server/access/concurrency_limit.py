"""The limit on sequences in flight: the seats of a model's engine, and a bounded queue for them.

A sequence counts from when its request is accepted until it is answered. It is accepted while fewer than
``max_num_seqs + max_waiting`` sequences of its priority or a better one are in flight. So a queue full of low-priority
requests does not block high-priority ones, and the total is at most three times the bound.

Keys of one priority share the places:

- No key may hold more than its share of the bound while another key waits or asks. A key that is alone may hold
  everything. When another key then asks for places within its own share, the newest requests of the first end with 429.
- A key has at most its share of the seats and of the KV cache while there is another key. Its other requests wait here,
  and not in the engine's queue, where they would be ahead of the other key's.
- A key that is alone has all seats. What it has beyond its share, the engine computes with the next lower priority: if
  another key comes, its requests take these seats.

A key is there while it holds places, and until it has sent no request for a while: otherwise the other key would take
every place again between two of its requests.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mini_vllm.request import Priority
from mini_vllm.server.errors import ApiError, retry_later

#: The Retry-After of a rejected client: a step takes a fraction of it, an answer a few times as long.
RETRY_AFTER_S = 1.0
#: How long a key counts as present after its last request: long enough for a client that was rejected to retry.
COUNTS_S = 10.0


Holder = tuple[Priority, str | None]


@dataclass(eq=False)
class _Claim:
    """The places of one request. ``end`` makes it end."""

    holder: Holder
    num_sequences: int
    end: Callable[[], object]
    has_ended: bool = False
    #: The slots of the KV cache that its sequences may need.
    num_slots: int = 0
    #: Whether its sequences are in the engine, and what is set to their priority once they may be.
    is_in: bool = False
    may_enter: asyncio.Future[Priority] | None = None


class Seats:
    """The sequences in flight of one model."""

    def __init__(self, max_num_seqs: int, max_waiting: int, key_share: float = 0.5,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.max_num_seqs, self.max_waiting, self.key_share, self._clock = max_num_seqs, max_waiting, key_share, clock
        #: What is in flight, by priority and key, the oldest first.
        self._claims: dict[Holder, list[_Claim]] = {}
        self._all_slots = 0
        #: The time of a key's last request.
        self._asked_s: dict[Holder, float] = {}
        #: The time of the last request of a key that was rejected, or took places from another, and went on asking.
        self._refused_s: dict[Holder, float] = {}

    @property
    def bound(self) -> int:
        return self.max_num_seqs + self.max_waiting

    @contextmanager
    def taken(self, num_sequences: int, priority: Priority, key: str | None = None,
              end: Callable[[], object] = lambda: None) -> Iterator[_Claim]:
        """Hold seats for the sequences of one request of ``key`` (None if the server has no keys).

        Raise ApiError, and take no seat: 400 if the request can never be accepted, 429 if it cannot be accepted now.
        Call ``end`` to end the request because another key asks for its places; they are free from then on, and
        whatever then ends the block becomes a 429.
        """
        if num_sequences > self.bound:
            raise ApiError(400, f"the request is for {num_sequences} texts (prompts times n); at most {self.bound} can "
                           "be in flight at once", param="n", code="too_many_texts")
        holder = priority, key
        num_held, share = self._num_held(holder), self._share_of(self.bound)
        self._asked_s[holder] = self._clock()
        if key is not None and num_held + num_sequences > share and self._others_wait(holder):
            self._refused_s[holder] = self._clock()
            raise retry_later(429, f"the key {key!r} has {num_held} texts running or waiting; while other keys wait, "
                              f"the limit is {share}; try again later", "key_share_exceeded", RETRY_AFTER_S)
        num_missing = self._num_taken(priority) + num_sequences - self.bound
        if num_missing > 0 or self._was_refused(holder):
            self._refused_s[holder] = self._clock()
        if num_missing > 0:
            too_many = self._beyond_the_share(holder, max(share, self.max_num_seqs))
            if num_held + num_sequences > share or sum(claim.num_sequences for claim in too_many) < num_missing:
                raise retry_later(429, f"the queue is full: {self._num_taken(priority)} texts of priority "
                                  f"{priority.name.lower()} or better are running or waiting, the limit is "
                                  f"{self.bound}; try again later", "queue_full", RETRY_AFTER_S)
            for claim in too_many:
                self._claims[claim.holder].remove(claim)
                claim.has_ended = True
                claim.end()
        claim = _Claim(holder, num_sequences, end)
        self._claims.setdefault(holder, []).append(claim)
        try:
            yield claim
        except BaseException as error:
            if not claim.has_ended:
                raise
            raise retry_later(429, f"the request waited beyond the share of its key, which is {share} texts running or "
                              "waiting, and another key asked for places; try again later", "key_share_exceeded",
                              RETRY_AFTER_S) from error
        finally:
            if not claim.has_ended:
                self._claims[holder].remove(claim)
            for each in self._claims:
                self._let_in(each)

    async def enter(self, claim: _Claim, num_slots: int, all_slots: int) -> Priority:
        """Wait until the engine may compute the request, and return with which priority.

        Its sequences may need ``num_slots`` of the KV cache's ``all_slots``. Raise ApiError (429) if it asks for more
        sequences than a share.
        """
        if claim.holder[1] is None:
            return claim.holder[0]
        claim.num_slots, self._all_slots = num_slots, all_slots
        claim.may_enter = asyncio.get_running_loop().create_future()
        self._let_in(claim.holder)
        return await claim.may_enter

    def _let_in(self, holder: Holder) -> None:
        """Let the oldest requests of a key into the engine, as far as it has seats for them."""
        now_s, claims = self._clock(), self._claims[holder]
        is_alone = not any(self._claims.get(other) or now_s - self._asked_s[other] < COUNTS_S
                           for other in self._others(holder))
        share, share_of_slots = self._share_of(self.max_num_seqs), self._share_of(self._all_slots)
        num_in = sum(claim.num_sequences for claim in claims if claim.is_in)
        slots_in = sum(claim.num_slots for claim in claims if claim.is_in)
        for claim in claims:
            if claim.is_in or claim.may_enter is None or claim.may_enter.done():
                continue  # its prompts are still being read, or it ends
            num_in, slots_in = num_in + claim.num_sequences, slots_in + claim.num_slots
            is_first, is_within = num_in == claim.num_sequences, num_in <= share and slots_in <= share_of_slots
            if claim.num_sequences > share and not is_alone:
                num_in, slots_in = num_in - claim.num_sequences, slots_in - claim.num_slots
                claim.may_enter.set_exception(retry_later(
                    429, f"the request is for {claim.num_sequences} texts at once; while there are other keys, the "
                    f"limit is {share}: ask for fewer, or try again later", "key_share_exceeded", RETRY_AFTER_S))
            elif is_first or is_within or (is_alone and num_in <= self.max_num_seqs):
                claim.is_in = True
                claim.may_enter.set_result(holder[0] if is_within else Priority(min(holder[0] + 1, max(Priority))))
            else:
                return

    def _share_of(self, number: int) -> int:
        return max(1, int(self.key_share * number))

    def _num_held(self, holder: Holder) -> int:
        return sum(claim.num_sequences for claim in self._claims.get(holder, ()))

    def _num_taken(self, priority: Priority) -> int:
        """Return the number of sequences in flight of this priority or a better one."""
        return sum(self._num_held(holder) for holder in self._claims if holder[0] <= priority)

    def _beyond_the_share(self, asking: Holder, share: int) -> list[_Claim]:
        """Return the newest requests of the other keys of this priority, as far as a key holds more than ``share``."""
        found: list[_Claim] = []
        for other in self._others(asking):
            num_over = self._num_held(other) - share
            for claim in reversed(self._claims.get(other, ())):
                if num_over > 0:
                    found.append(claim)
                    num_over -= claim.num_sequences
        return found

    def _others_wait(self, holder: Holder) -> bool:
        """Check whether another key of this priority asked in vain recently, or has sequences while some wait."""
        some_wait = self._num_taken(holder[0]) > self.max_num_seqs
        return any(self._was_refused(other) or (some_wait and self._claims.get(other))
                   for other in self._others(holder))

    def _others(self, holder: Holder) -> list[Holder]:
        """Return the other keys of this priority."""
        return [other for other in self._asked_s if other[0] == holder[0] and other[1] != holder[1]]

    def _was_refused(self, holder: Holder) -> bool:
        """Check whether the key was rejected, and sent its last request recently."""
        return self._clock() - self._refused_s.get(holder, -math.inf) < COUNTS_S
