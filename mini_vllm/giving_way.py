"""An option of the engine: a running request gives way to a better one that waits.

The scheduler's own rules preempt only when a running request needs a block. So as long as LOW requests hold every seat,
a HIGH one waits until one of them ends. With ``EngineConfig.preempt_for_priority`` this class is put over the
scheduler, whoever wrote it, and makes way before a step is planned:

    running  LOW LOW LOW LOW     waiting  HIGH LOW            all 4 seats are held
    running  LOW LOW LOW         waiting  HIGH LOW LOW        the LOW one that would be served last gives way
    running  LOW LOW LOW HIGH    waiting  LOW LOW             the plan admits as ever: from the front of the queue

 1. **Who gives way to whom.** A running request gives way to one of a better *base* priority that also stands before it
    in the queue's order. A LOW request that has aged past a HIGH one keeps its place: it would be next anyway.
 2. **For what.** Seats and blocks, if the better one lacks them: the one that would be served last goes first, as in
    rule 5 of the scheduler, and nobody goes if all of them were not enough. And tokens of the step: a prompt gives way
    to a better prompt. It comes back in the same step if there is a seat and something left for it.
 3. **Chunks.** A prompt beside worse requests that decode gets all that the budget leaves: rule 3 of the scheduler
    spares those that decode, and here they are the ones to wait.

Whoever gives way keeps its output, and what was computed of it stays findable; without prefix caching it is computed
again. Whenever somebody gives way, a better one is computed. With an aging rate above 0 a request of base p gives way
only to those of base q < p that come within (p - q) / rate seconds after it: LOW to HIGH, at rate 0.1, for 20 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.request import Request
from mini_vllm.scheduler import SchedulerOutput

if TYPE_CHECKING:  # what it is put over: any scheduler, or for the type checker the reference's
    from mini_vllm.scheduler import Scheduler as _Scheduler
else:
    _Scheduler = object


def with_giving_way(scheduler: type) -> type:
    """The same scheduler, whose running requests give way to better ones that wait."""
    return type(scheduler.__name__, (GivingWay, scheduler), {
        "__module__": scheduler.__module__, "__qualname__": scheduler.__qualname__, "__doc__": scheduler.__doc__})


@dataclass
class _Room:
    """What the next step has to give; below 0, it is promised already."""

    num_seats: int
    num_blocks: int
    num_tokens: int

    def has_place_for(self, need: _Room) -> bool:
        return need.num_seats <= self.num_seats and need.num_blocks <= self.num_blocks

    def take(self, need: _Room) -> None:
        self.num_seats -= need.num_seats
        self.num_blocks -= need.num_blocks
        self.num_tokens -= need.num_tokens

    def give_back(self, held: _Room) -> None:
        self.num_seats += held.num_seats
        self.num_blocks += held.num_blocks
        self.num_tokens += held.num_tokens


class GivingWay(_Scheduler):
    """Put over a scheduler. It calls and reads only what the engine itself does (see ``joints/calls.py``)."""

    #: The engine sets it; a simpler scheduler need not have it.
    max_num_chunk_tokens: int | None = None

    def schedule(self) -> SchedulerOutput:
        """Make way, then plan. Who gave way and was admitted again at once has lost nothing: it is not told of."""
        better = list(self._better_ones())
        gone = self._make_way(better) if better else []
        max_chunk = self.max_num_chunk_tokens
        if better:
            self.max_num_chunk_tokens = None
        try:
            output = super().schedule()
        finally:
            self.max_num_chunk_tokens = max_chunk
        told = {*output.requests, *output.preempted, *output.finished}
        output.preempted[:0] = [request for request in gone if request not in told]
        return output

    def _better_ones(self) -> Iterator[Request]:
        """Prompts that somebody who runs stands below: those that run, then those that wait, the next one first."""
        if not self.running:
            return
        worst = max(request.priority for request in self.running)
        for request in self.running:
            if _num_left(request) > 1 and request.priority < worst and self._has_below(request):
                yield request
        if len(self.waiting) and self.waiting.peek().priority < worst:
            for request in self.waiting:
                if not self._has_below(request):
                    return  # nobody is passed over
                yield request

    def _has_below(self, request: Request) -> bool:
        return any(self._is_below(other, request) for other in self.running)

    def _is_below(self, other: Request, request: Request) -> bool:
        """Whether ``other``, which runs, is to give way to ``request``."""
        return other.priority > request.priority and self.waiting.order(other) > self.waiting.order(request)

    # ---- who goes

    def _make_way(self, better: list[Request]) -> list[Request]:
        """Let running requests give way to ``better`` ones, until each of these has its place or nobody is left."""
        gone: list[Request] = []
        room = self._room()
        for request in better:
            if request not in self.running:
                leaving = self._leaving_for_place(request, room)
                if leaving is None:
                    break  # nobody is passed over
                gone += [self._let_go(other, room) for other in leaving]
                room.take(self._need_of(request))
            prompts = [other for other in self._below(request) if _num_left(other) > 1]
            while room.num_tokens < 0 and prompts:
                gone.append(self._let_go(prompts.pop(0), room))
        return gone

    def _below(self, request: Request) -> list[Request]:
        """Those that are to give way to ``request``; the one that would be served last is the first to go."""
        below = [other for other in reversed(self.running) if self._is_below(other, request)]
        return sorted(below, key=self.waiting.order, reverse=True)

    def _leaving_for_place(self, request: Request, room: _Room) -> list[Request] | None:
        """Who must go for seats and blocks; None if all of them would not be enough."""
        need, room = self._need_of(request), replace(room)
        kept = {block.block_id for block in self._hits(request)}
        owners: Counter[int] = Counter()
        leaving: list[Request] = []
        for other in self._below(request):
            if room.has_place_for(need):
                break
            room.give_back(self._held_by(other, owners, kept))
            leaving.append(other)
        return leaving if room.has_place_for(need) else None

    def _let_go(self, other: Request, room: _Room) -> Request:
        pool = self.kv_cache.block_pool
        num_free_before = pool.get_num_free_blocks()
        held = _Room(other.num_sequences, self._growth_of(other), _num_left(other))
        self.preempt(other)
        held.num_blocks += pool.get_num_free_blocks() - num_free_before
        room.give_back(held)
        return other

    # ---- what a request needs and holds

    def _room(self) -> _Room:
        """What is left beside those that run, and what they need for the tokens that they have."""
        num_free = self.kv_cache.block_pool.get_num_free_blocks() - getattr(self, "num_watermark_blocks", 0)
        return _Room(self.max_num_seqs - sum(request.num_sequences for request in self.running),
                     num_free - sum(map(self._growth_of, self.running)),
                     self.max_num_batched_tokens - sum(map(_num_left, self.running)))

    def _need_of(self, request: Request) -> _Room:
        """What ``request``, which waits, takes: hits that are free leave the free queue too."""
        hits = self._hits(request)
        num_new = self._num_blocks_of(request.num_tokens) - len(hits) + sum(block.ref_cnt == 0 for block in hits)
        num_left = request.num_tokens - len(hits) * self.kv_cache.block_size
        return _Room(request.num_sequences, num_new + request.num_sequences - 1, num_left)

    def _hits(self, request: Request) -> list[KVCacheBlock]:
        """Whole blocks of its tokens that are in the cache: the scheduler can do without the half of one."""
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        return hits[:num_cached // self.kv_cache.block_size]

    def _held_by(self, other: Request, owners: Counter[int], kept: set[int]) -> _Room:
        """What is free when ``other`` goes. Of blocks that it shares, the last of the ``owners`` that go frees them;
        ``kept`` ones are needed again."""
        table = self.kv_cache.get_block_ids(other.request_id)
        owners.update(table)
        blocks = self.kv_cache.block_pool.blocks
        num_freed = sum(owners[block_id] == blocks[block_id].ref_cnt and block_id not in kept for block_id in table)
        return _Room(other.num_sequences, num_freed + self._growth_of(other), _num_left(other))

    def _growth_of(self, request: Request) -> int:
        """Blocks that a running request still lacks for the tokens that it has."""
        num_held = len(self.kv_cache.get_block_ids(request.request_id))
        return max(self._num_blocks_of(request.num_tokens) - num_held, 0)

    def _num_blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.kv_cache.block_size)


def _num_left(request: Request) -> int:
    return request.num_tokens - request.num_computed_tokens
