"""The scheduler decides which requests compute how many tokens in the next step. There are no phases: a request has
``num_tokens`` and ``num_computed_tokens``, and a step computes some of the difference.

The rules, all of them:

 1. **Limits.** A step computes at most ``max_num_batched_tokens`` tokens (the *budget*). At most ``max_num_seqs``
    sequences run (the *seats*).
 2. **Running before waiting.** Running requests come first; among them those with one token to go, so that no decoding
    request waits for another's prompt. Otherwise they are in the order in which they were admitted.
 3. **Chunks.** A request is given all its uncomputed tokens, or what the budget leaves. So a long prompt is computed in
    chunks, in the same steps in which other requests decode. Every request waits for the whole step. So if other
    requests decode and only one prompt, running or waiting, is unfinished, this prompt gets at most
    ``max_num_chunk_tokens`` per step. The limit shrinks as the prompt is computed, because each token attends to all
    before it: to half after 1024 tokens, and to no less than a quarter. If another prompt is also unfinished, the
    limit does not apply.
 4. **Admission** follows the order of the queue, and no request is passed over. The first request in the queue is
    admitted if budget is left (then all running requests have what they need), if there are seats for all its
    sequences, and if there are blocks for *all* its tokens, not just the first chunk, in addition to the watermark: a
    few blocks kept free for running requests to grow into. When no request is running there is no watermark.
 5. **Preemption.** If a running request needs a block and none is free, the running request that would be last in the
    waiting queue is preempted (``waiting.order``: priority and age together; among equals the one admitted last). It
    may be the request that needs the block. It loses its blocks and keeps its output, none of its tokens count as
    computed, and it waits in front of its equals. Tokens that it was given in this step return to the budget.
 6. A step that preempted a request because a block was lacking (rule 5) admits none afterwards.
 7. **Resuming.** A preempted request is admitted like any other. All its tokens, prompt and output, must be computed
    again, except those still in the prefix cache.
 8. **A request that cannot fit** ends at once: a prompt larger than the pool is rejected on arrival, and a request that
    has grown until the whole pool could not hold it ends as FINISHED_KV_CACHE_FULL, with its output. No request is
    preempted for it.
 9. **Abort** removes a request in any state and frees its blocks.
10. **Priority**, only if ``preempt_for_priority`` is set; an exception to rules 4 and 6. A running request gives way to
    a waiting one of better *base* priority that is before it in the queue's order. It gives up its seat and its blocks,
    if the better request lacks them: the request that would be served last leaves first, as in rule 5, and none leaves
    if all together would not be enough. The better request is admitted before the running ones are planned. It leaves
    each decoding request a token, and takes what it can use of the rest before worse prompts; rule 3 does not limit its
    chunks if only worse requests decode. Half of the seats are for age: a request that has become old may be before a
    better one in the queue's order, but only while requests worse than the better one hold less than half of the seats.
    Beyond that, the better one is admitted first, and running requests give way to it, the youngest first.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, RequestStatus
from mini_vllm.request_queue import PriorityQueueWithAging

#: The fraction of the pool that admission leaves free.
WATERMARK = 0.01
#: After this many tokens a prompt token costs about twice as much as at the start (``tiny-tales`` on a CPU).
CONTEXT_THAT_DOUBLES_COST = 1024


@dataclass(frozen=True)
class SchedulerOutput:
    """The plan of one step."""

    #: Request id → number of tokens to compute, in the order of the batch.
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    #: The same requests, in the same order: those with one token first.
    requests: list[Request] = field(default_factory=list)
    #: Blocks to copy before anything is written: (source, destination).
    copies: list[tuple[int, int]] = field(default_factory=list)
    #: Requests that lost their blocks and wait again.
    preempted: list[Request] = field(default_factory=list)
    #: Requests that outgrew the pool. The scheduler has already removed them.
    finished: list[Request] = field(default_factory=list)
    #: Request id → guesses for its next tokens, computed and checked in the same step; see ``speculation``. They are
    #: not in ``num_scheduled_tokens``, and not yet tokens of the request.
    drafts: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class _Step:
    """A step while it is being planned."""

    #: Tokens that may still be given out.
    budget: int
    #: Largest chunk at the start of a prompt: see rule 3. None: all that the budget leaves.
    max_chunk: int | None = None
    #: Request id → tokens given to it. Its slots exist; its ``num_computed_tokens`` has not been advanced yet.
    plan: dict[str, int] = field(default_factory=dict)
    #: Requests that lost their blocks in this step, in that order.
    preempted: list[Request] = field(default_factory=list)
    #: Requests that outgrew the pool in this step.
    finished: list[Request] = field(default_factory=list)

    def num_tokens_for(self, num_left: int, num_computed: int) -> int:
        """Return how many of its next ``num_left`` tokens a request with ``num_computed`` computed ones may compute."""
        if self.max_chunk is not None:
            limit = self.max_chunk * CONTEXT_THAT_DOUBLES_COST // (CONTEXT_THAT_DOUBLES_COST + num_computed)
            num_left = min(num_left, max(limit, self.max_chunk // 4, 1))
        return min(num_left, self.budget)

    def give(self, request: Request, num_new_tokens: int) -> None:
        self.plan[request.request_id] = num_new_tokens
        self.budget -= num_new_tokens


def _num_left(request: Request) -> int:
    """Return the number of tokens that are not computed yet."""
    return request.num_tokens - request.num_computed_tokens


class Scheduler:
    """Waiting and running requests over one KV cache.

    A waiting request holds no blocks. A running request has a seat, and blocks for its computed tokens. A preempted
    request waits: it is in ``waiting`` and in ``requests``, not in ``running``.
    """

    def __init__(self, kv_cache: KVCacheManager, max_num_seqs: int = 64, max_num_batched_tokens: int = 1024,
                 queue: PriorityQueueWithAging | None = None, watermark: float = WATERMARK) -> None:
        for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, must be a whole number, at least 1")
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(f"max_num_batched_tokens is {max_num_batched_tokens}, must be at least max_num_seqs "
                             f"({max_num_seqs}): each running request computes a token per step")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}, must be a fraction of the pool, at least 0 and below 1")
        self.kv_cache = kv_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        #: See rule 3; None leaves all of the budget to prompts.
        self.max_num_chunk_tokens: int | None = None
        #: See rule 10.
        self.preempt_for_priority = False
        self.num_blocks = kv_cache.block_pool.num_blocks - 1  # without the null block
        self.num_watermark_blocks = math.ceil(watermark * self.num_blocks)
        #: Waiting requests, the next one in front.
        self.waiting = PriorityQueueWithAging() if queue is None else queue
        #: Running requests, in the order of admission.
        self.running: list[Request] = []
        #: All waiting and running requests, by id.
        self.requests: dict[str, Request] = {}
        #: How often a request lost its blocks, summed over all requests.
        self.num_preemptions = 0

    # ---- adding and ending requests

    def add_request(self, request: Request) -> None:
        """Add a request to the waiting queue. Raise ValueError if it can never be served, or if its id is in use."""
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id!r} is in use")
        if request.num_sequences > self.max_num_seqs:
            raise ValueError(f"n is {request.num_sequences}, must be at most max_num_seqs ({self.max_num_seqs})")
        if self._has_outgrown(request.num_tokens):
            raise ValueError(f"request {request.request_id!r} has {request.num_tokens} prompt tokens, which need "
                             f"{self._num_blocks_for(request.num_tokens)} blocks of {self.kv_cache.block_size} tokens; "
                             f"the pool has {self.num_blocks}")
        self.waiting.put(request)
        self.requests[request.request_id] = request

    def abort_request(self, request_id: str) -> Request | None:
        """Remove a request in any state and return it; None if there is no such request."""
        request = self.requests.get(request_id)
        if request is not None:
            self.finish(request, RequestStatus.FINISHED_ABORTED)
        return request

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a waiting or running request. Its blocks are freed; their content stays findable."""
        del self.requests[request.request_id]
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv_cache.free(request)
        else:
            self.waiting.remove(request)
        request.status = status

    def fork(self, parent: Request, child: Request) -> None:
        """Start ``child`` as a running request that shares the whole computed prompt of ``parent``."""
        self.kv_cache.fork(parent, child)
        child.num_computed_tokens, child.num_cached_tokens = parent.num_computed_tokens, parent.num_cached_tokens
        child.arrival_time = parent.arrival_time
        child.status = RequestStatus.RUNNING
        parent.num_sequences -= 1
        self.running.append(child)
        self.requests[child.request_id] = child

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    # ---- a step

    def schedule(self) -> SchedulerOutput:
        """Plan a step: make slots, adopt prefix hits, and advance ``num_computed_tokens`` as if the step had run."""
        step = _Step(self.max_num_batched_tokens, self._max_chunk())
        gave_way = self._admit_better(step) if self.preempt_for_priority else []
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        preempted = [request for request in dict.fromkeys([*gave_way, *step.preempted])
                     if request.status is RequestStatus.PREEMPTED]  # the others were admitted again at once
        planned = sorted(step.plan.items(), key=lambda entry: entry[1] > 1)  # the runner needs single tokens first
        for request_id, num_new_tokens in planned:
            self.requests[request_id].num_computed_tokens += num_new_tokens
        copies = [(source.block_id, copy.block_id) for source, copy in self.kv_cache.block_pool.pending_copies]
        return SchedulerOutput(dict(planned), [self.requests[request_id] for request_id, _ in planned], copies,
                               preempted, step.finished)

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """Declare a step done, its copies and its K/V, and append the sampled tokens."""
        self.kv_cache.finish_step()
        for request in output.requests:
            if request.request_id in token_ids:
                request.append_output_token(token_ids[request.request_id])

    def _max_chunk(self) -> int | None:
        """Return ``max_num_chunk_tokens`` if rule 3 limits the chunks of this step; else None.

        The rule applies if a request decodes and exactly one other request, running or waiting, does not. With rule 10,
        one of the decoding requests must not be worse than the other.
        """
        decoding = [request for request in self.running if _num_left(request) == 1]
        if len(self.running) - len(decoding) + len(self.waiting) != 1:
            return None
        prompt = self.waiting.peek() if len(self.waiting) else max(self.running, key=_num_left)
        counts = any(request.priority <= prompt.priority or not self.preempt_for_priority for request in decoding)
        return self.max_num_chunk_tokens if counts else None

    # ---- inside: running requests

    def _schedule_running(self, step: _Step) -> None:
        """Give the running requests their tokens, those with one token to go first; with rule 10, then better ones."""
        def turn(request: Request) -> tuple[bool, tuple[float, ...]]:
            is_prompt = _num_left(request) > 1
            return is_prompt, self.waiting.order(request) if is_prompt and self.preempt_for_priority else ()

        for request in sorted(self.running, key=turn):
            num_new_tokens = step.num_tokens_for(_num_left(request), request.num_computed_tokens)
            if request.status is not RequestStatus.RUNNING or request.request_id in step.plan or num_new_tokens == 0:
                continue  # it lost its blocks earlier in this step, was just admitted, or there is nothing to give
            slots = self.kv_cache.allocate_slots(request, num_new_tokens)
            if slots is not None or self._make_room(request, num_new_tokens, step):
                step.give(request, num_new_tokens)

    def _make_room(self, request: Request, num_new_tokens: int, step: _Step) -> bool:
        """Allocate slots for a running request that got none, by preempting one victim after the other.

        Return False if that is impossible: ``request`` has outgrown the pool, or is itself the victim.
        """
        if self._has_outgrown(request.num_computed_tokens + num_new_tokens):
            self._end_outgrown(request, step)
            return False
        while self.kv_cache.allocate_slots(request, num_new_tokens) is None:
            victim = self._choose_victim()
            if victim.request_id in step.plan:
                self._take_back(victim, step)
            self.preempt(victim)
            step.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _choose_victim(self) -> Request:
        """Return the running request that would be served last; among equals the one that was admitted last."""
        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals

    def _take_back(self, victim: Request, step: _Step) -> None:
        """Take back the tokens that ``victim`` was given earlier in this step, because it is about to lose its blocks.

        The tokens return to the budget. The victim will not write its blocks, so no other request may find them. Those
        that were admitted later in this step may have found them already: they are preempted first.
        """
        step.budget += step.plan.pop(victim.request_id)
        first = victim.num_computed_tokens // self.kv_cache.block_size
        unwritten = set(self.kv_cache.get_block_ids(victim.request_id)[first:])
        for other in self.running[::-1]:
            if other.request_id in step.plan and unwritten.intersection(self.kv_cache.get_block_ids(other.request_id)):
                self._take_back(other, step)
                self.preempt(other)
                step.preempted.append(other)
        self.kv_cache.forget_unwritten(victim)

    def preempt(self, request: Request) -> None:
        """Preempt a running request: take its blocks and let it wait in front of its equals. It keeps its output.

        What was written into the blocks stays findable until they are given out again.
        """
        self.running.remove(request)
        self.kv_cache.free(request)  # free reads num_computed_tokens: that much of the last block can be found again
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.num_preemptions += 1
        self.waiting.requeue(request)

    def _end_outgrown(self, request: Request, step: _Step) -> None:
        """End a request that the whole pool can no longer hold. It may be running, or waiting after a preemption."""
        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)
        step.finished.append(request)

    # ---- inside: waiting requests

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit requests from the front of the queue while there is budget, a seat and room."""
        while len(self.waiting) and step.budget:
            request = self._next_waiting()
            if self._has_outgrown(request.num_tokens):  # it lost its blocks before it could ask for more
                self._end_outgrown(request, step)
                continue
            num_seats = self.max_num_seqs - sum(other.num_sequences for other in self.running)
            num_new_tokens = self._admit(request, step) if request.num_sequences <= num_seats else 0
            if num_new_tokens == 0:
                return
            step.give(request, num_new_tokens)

    def _admit(self, request: Request, step: _Step, num_promised: int = 0) -> int:
        """Start a waiting request: adopt cached blocks, and make slots for as many further tokens as the step allows.

        ``num_promised`` blocks are left to running requests that have not been planned yet. Return the number of
        further tokens. If it is 0, there is no room, and the request still waits.
        """
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        while not self._has_room(request, hits, num_cached, num_promised):
            num_half = num_cached % self.kv_cache.block_size
            if num_half == 0:
                return 0
            hits, num_cached = hits[:-1], num_cached - num_half  # skip the block that would have to be copied
        num_new_tokens = step.num_tokens_for(request.num_tokens - num_cached, num_cached)
        if self.kv_cache.allocate_slots(request, num_new_tokens, hits, num_cached) is None:
            return 0
        if request.status is not RequestStatus.PREEMPTED:  # it finds mostly what it has computed itself
            request.num_cached_tokens = num_cached
        request.num_computed_tokens = num_cached
        request.status = RequestStatus.RUNNING
        self.waiting.remove(request)
        self.running.append(request)
        return num_new_tokens

    def _has_room(self, request: Request, hits: list[KVCacheBlock], num_cached: int, num_promised: int) -> bool:
        """Check whether *all* tokens of ``request`` fit, in addition to the blocks set aside and those promised.

        In rule 4, running requests need no room for their current tokens: while budget is left, they already have their
        slots.
        """
        return self._num_blocks_to_spare(request, hits, num_cached) >= num_promised

    def _num_blocks_to_spare(self, request: Request, hits: list[KVCacheBlock], num_cached: int) -> int:
        """Return how many blocks would be free if ``request`` were admitted, without those set aside.

        A negative number says how many are lacking. A hit in the free queue is about to leave it, so it does not count
        as free.
        """
        num_free = self.kv_cache.block_pool.get_num_free_blocks() - sum(block.ref_cnt == 0 for block in hits)
        num_new = self._num_blocks_for(request.num_tokens) - len(hits)
        if num_cached % self.kv_cache.block_size:
            num_new += 1  # for a copy of the last hit, which may turn out not to be needed (KVCacheManager._must_fork)
        return num_free - num_new - self._num_blocks_set_aside(request)

    def _num_blocks_set_aside(self, request: Request) -> int:
        """Return the number of blocks that must stay free when ``request`` is admitted.

        They are the watermark, and one block for each of its sequences except one: if the prompt ends inside a block,
        all sequences share that block, and all but the last copy it. Return 0 while no request is running: a request
        that is alone may use the whole pool. If it waited, no other request would ever make room.
        """
        return self.num_watermark_blocks + request.num_sequences - 1 if self.running else 0

    # ---- inside: requests that give way (rule 10)

    def _next_waiting(self) -> Request:
        """Return the request to admit next: the first in the queue, or the best one while worse ones hold half of the
        seats."""
        front = self.waiting.peek()
        if not self.preempt_for_priority:
            return front
        better = [request for request in self.requests.values()
                  if request.priority < front.priority and request.status is not RequestStatus.RUNNING]
        if not better:
            return front
        best = min(better, key=lambda request: (request.priority, self.waiting.order(request)))
        num_worse = sum(other.num_sequences for other in self.running if other.priority > best.priority)
        return best if num_worse >= self._num_seats_for_age else front

    @property
    def _num_seats_for_age(self) -> int:
        return max(self.max_num_seqs // 2, 1)

    def _admit_better(self, step: _Step) -> list[Request]:
        """Admit the next waiting requests while running ones must give way to them. Return those that gave way."""
        gone: list[Request] = []
        while len(self.waiting):
            request = self._next_waiting()
            worse = self._worse_than(request)
            leaving = self._leaving_for(request, worse) if worse else None
            if leaving is None:
                break
            staying = [other for other in self.running if other not in leaving and other.request_id not in step.plan]
            num_kept_tokens = sum(_num_left(other) for other in staying if _num_left(other) == 1 or other not in worse)
            if num_kept_tokens >= step.budget:
                break
            for other in leaving:
                self.preempt(other)
            gone += leaving
            num_promised = sum(self._num_blocks_lacking(other) for other in self.running)
            num_new_tokens = self._admit(request, _Step(step.budget - num_kept_tokens, step.max_chunk), num_promised)
            if num_new_tokens == 0:
                break
            step.give(request, num_new_tokens)
        return gone

    def _worse_than(self, request: Request) -> list[Request]:
        """Return the running requests that must give way to ``request``, the one that would be served last first."""
        giving_way: list[Request] = []
        num_older = 0
        for other in sorted((other for other in self.running if other.priority > request.priority),
                            key=self.waiting.order):
            if num_older >= self._num_seats_for_age or self.waiting.order(other) > self.waiting.order(request):
                giving_way.append(other)
            num_older += other.num_sequences
        return giving_way[::-1]

    def _leaving_for(self, request: Request, worse: list[Request]) -> list[Request] | None:
        """Return the first of ``worse`` that must leave, so that ``request`` has its seats and blocks.

        Return None if all of them together would not be enough. A block is freed when its last owner leaves.
        """
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        hits = hits[:num_cached // self.kv_cache.block_size]  # a half-filled one is skipped if there is no room
        kept_ids = {block.block_id for block in hits}
        num_seats = self.max_num_seqs - request.num_sequences - sum(other.num_sequences for other in self.running)
        num_blocks = (self._num_blocks_to_spare(request, hits, len(hits) * self.kv_cache.block_size)
                      - sum(self._num_blocks_lacking(other) for other in self.running))
        blocks = self.kv_cache.block_pool.blocks
        num_owners_gone: Counter[int] = Counter()
        leaving: list[Request] = []
        for other in worse:
            if num_seats >= 0 and num_blocks >= 0:
                break
            table = self.kv_cache.get_block_ids(other.request_id)
            num_owners_gone.update(table)
            num_seats += other.num_sequences
            num_blocks += self._num_blocks_lacking(other) + sum(
                num_owners_gone[block_id] == blocks[block_id].ref_cnt and block_id not in kept_ids
                for block_id in table)
            leaving.append(other)
            if len(leaving) == len(self.running):  # a request that is alone may use the whole pool
                num_blocks += self._num_blocks_set_aside(request)
        return leaving if num_seats >= 0 and num_blocks >= 0 else None

    def _num_blocks_lacking(self, request: Request) -> int:
        """Return the number of blocks that a running request has yet to take for its current tokens.

        The block that it writes next is copied if it is shared.
        """
        table = self.kv_cache.get_block_ids(request.request_id)
        written = table[request.num_computed_tokens // self.kv_cache.block_size:][:1]
        num_copies = sum(self.kv_cache.block_pool.blocks[block_id].ref_cnt > 1 for block_id in written)
        return max(self._num_blocks_for(request.num_tokens) - len(table), 0) + num_copies

    # ---- inside: numbers

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.kv_cache.block_size)

    def _has_outgrown(self, num_tokens: int) -> bool:
        """Check whether ``num_tokens`` tokens do not fit into the whole, otherwise empty pool."""
        return self._num_blocks_for(num_tokens) > self.num_blocks
