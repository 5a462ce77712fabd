"""Who computes how many tokens in the next step. There are no phases: a request has ``num_tokens`` and
``num_computed_tokens``, and a step computes some of the difference.

The rules, all of them:

 1. **Limits.** A step computes at most ``max_num_batched_tokens`` tokens (the *budget*). At most ``max_num_seqs``
    sequences run (the *seats*).
 2. **Running before waiting.** Requests that run come first; among them those with one token to go, so that nobody who
    decodes waits for somebody's prompt. Otherwise they stand in the order in which they were admitted.
 3. **Chunks.** A request is given all its tokens that are not computed yet, or what the budget leaves. So a long prompt
    is computed in chunks, in the same steps in which others decode. All wait for the whole step. So while others
    decode, a prompt that is the only one, running or waiting, gets at most ``max_num_chunk_tokens`` in a step. It gets
    fewer the more of it is computed, because each token attends to all before it: half as many after 1024 tokens, but
    at least a quarter. If another request waits too, it gets all that the budget leaves.
 4. **Admission** is in the order of the queue, and nobody is passed over. The first in the queue is admitted if budget
    is left (then all that run have got what they need), if there are seats for all its sequences, and blocks for *all*
    its tokens, not just the first chunk, beside the watermark: a few blocks kept free for running ones to grow into.
    When nobody runs there is no watermark.
 5. **Preemption.** If a running request needs a block and there is none, the one that would be served last gives way
    (``waiting.order``: priority and age together; of equals the one admitted last). That may be the one that asks. Its
    blocks go, its output stays, nothing of it counts as computed, and it waits in front of its equals. Tokens that it
    was given in this step return to the budget.
 6. A step that preempted admits nobody.
 7. **Resuming.** A preempted request is admitted like any other. All its tokens, prompt and output, are to be computed
    again, except what the prefix cache still has of them.
 8. **What cannot fit** ends at once: a prompt larger than the pool is refused when it comes, and a request that has
    grown until the whole pool could not hold it ends as FINISHED_KV_CACHE_FULL, with its output. Nobody is preempted
    for it.
 9. **Abort** takes a request out wherever it is, and its blocks come home.

The module is longer than most: the rules, and what they do to a request, belong together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, RequestStatus
from mini_vllm.request_queue import PriorityQueueWithAging

#: The part of the pool that admission leaves free.
WATERMARK = 0.01
#: A prompt token costs about twice as much after this many tokens as at the start (``tiny-tales`` on a CPU).
CONTEXT_THAT_DOUBLES_COST = 1024


@dataclass(frozen=True)
class SchedulerOutput:
    """The plan of one step."""

    #: Request id → tokens to compute, in the order of the batch.
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    #: The same requests, in the same order: those with one token first.
    requests: list[Request] = field(default_factory=list)
    #: Blocks to copy before anything is written: (source, destination).
    copies: list[tuple[int, int]] = field(default_factory=list)
    #: Requests that lost their blocks and wait again.
    preempted: list[Request] = field(default_factory=list)
    #: Requests that outgrew the pool. They are out of the scheduler already.
    finished: list[Request] = field(default_factory=list)


@dataclass
class _Step:
    """A step while it is being planned."""

    #: Tokens that may still be given out.
    budget: int
    #: Most tokens of a chunk at the beginning of a prompt: see rule 3. None: all that the budget leaves.
    max_chunk: int | None = None
    #: Request id → tokens given to it. Its slots exist; its ``num_computed_tokens`` is still what it was before.
    plan: dict[str, int] = field(default_factory=dict)
    #: Those that lost their blocks in this step, in that order.
    preempted: list[Request] = field(default_factory=list)
    #: Those that outgrew the pool in this step.
    finished: list[Request] = field(default_factory=list)

    def num_tokens_for(self, num_left: int, num_computed: int) -> int:
        """How many of its next ``num_left`` tokens a request may compute, after ``num_computed``."""
        if self.max_chunk is not None:
            limit = self.max_chunk * CONTEXT_THAT_DOUBLES_COST // (CONTEXT_THAT_DOUBLES_COST + num_computed)
            num_left = min(num_left, max(limit, self.max_chunk // 4, 1))
        return min(num_left, self.budget)

    def give(self, request: Request, num_new_tokens: int) -> None:
        self.plan[request.request_id] = num_new_tokens
        self.budget -= num_new_tokens


class Scheduler:
    """Requests that wait and requests that run, over one KV cache.

    A request that waits holds no blocks. One that runs has a seat, and blocks for what has been computed of it. A
    preempted request waits: it is in ``waiting`` and in ``requests``, not in ``running``.
    """

    def __init__(self, kv_cache: KVCacheManager, max_num_seqs: int = 64, max_num_batched_tokens: int = 1024,
                 queue: PriorityQueueWithAging | None = None, watermark: float = WATERMARK) -> None:
        for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, must be a whole number, at least 1")
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(f"max_num_batched_tokens is {max_num_batched_tokens}, must be at least max_num_seqs "
                             f"({max_num_seqs}): each running request computes a token a step")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}, must be a part of the pool, from 0 to below 1")
        self.kv_cache = kv_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        #: See rule 3; None leaves all of the budget to prompts.
        self.max_num_chunk_tokens: int | None = None
        self.num_blocks = kv_cache.block_pool.num_blocks - 1  # without the null block
        self.num_watermark_blocks = math.ceil(watermark * self.num_blocks)
        #: Those that wait, the next one in front.
        self.waiting = PriorityQueueWithAging() if queue is None else queue
        #: Those that run, in the order in which they were admitted.
        self.running: list[Request] = []
        #: All that wait or run, by id.
        self.requests: dict[str, Request] = {}
        #: How often a request lost its blocks, over all requests.
        self.num_preemptions = 0

    # ---- requests come and go

    def add_request(self, request: Request) -> None:
        """Let a request wait for its turn. Raises ValueError if it can never be served, or its id is in use."""
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
        """Take a request out wherever it is; None if it is nowhere."""
        request = self.requests.get(request_id)
        if request is not None:
            self.finish(request, RequestStatus.FINISHED_ABORTED)
        return request

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request that waits or runs. Its blocks come home; what they hold stays findable."""
        del self.requests[request.request_id]
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv_cache.free(request)
        else:
            self.waiting.remove(request)
        request.status = status

    def fork(self, parent: Request, child: Request) -> None:
        """The prompt has been computed: ``child`` shares all of it and runs on from there."""
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
        """Plan a step: slots are made, prefix hits adopted, and ``num_computed_tokens`` is already advanced to its
        value after the step."""
        step = _Step(self.max_num_batched_tokens, self._max_chunk())
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        planned = sorted(step.plan.items(), key=lambda entry: entry[1] > 1)  # the runner wants single tokens first
        for request_id, num_new_tokens in planned:
            self.requests[request_id].num_computed_tokens += num_new_tokens
        copies = [(source.block_id, copy.block_id) for source, copy in self.kv_cache.block_pool.pending_copies]
        return SchedulerOutput(dict(planned), [self.requests[request_id] for request_id, _ in planned], copies,
                               step.preempted, step.finished)

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """The step has run: append the tokens that were sampled."""
        self.kv_cache.finish_step()
        for request in output.requests:
            if request.request_id in token_ids:
                request.append_output_token(token_ids[request.request_id])

    def _max_chunk(self) -> int | None:
        """``max_num_chunk_tokens`` if somebody decodes and exactly one other request, running or waiting, does not."""
        num_decoding = sum(request.num_tokens - request.num_computed_tokens == 1 for request in self.running)
        is_only_prompt = len(self.running) - num_decoding + len(self.waiting) == 1
        return self.max_num_chunk_tokens if num_decoding and is_only_prompt else None

    # ---- inside: requests that run

    def _schedule_running(self, step: _Step) -> None:
        """Give the running ones their tokens, those with one token to go before all others."""
        for request in sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):
            num_left = request.num_tokens - request.num_computed_tokens
            num_new_tokens = step.num_tokens_for(num_left, request.num_computed_tokens)
            if request.status is not RequestStatus.RUNNING or num_new_tokens == 0:
                continue  # it lost its blocks to an earlier one of this step, or there is nothing to give
            slots = self.kv_cache.allocate_slots(request, num_new_tokens)
            if slots is not None or self._make_room(request, num_new_tokens, step):
                step.give(request, num_new_tokens)

    def _make_room(self, request: Request, num_new_tokens: int, step: _Step) -> bool:
        """Slots for a running request that got none: one victim after the other gives way.

        False if there will be none: ``request`` has outgrown the pool, or is itself the one to give way.
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
        """The running request that would be served last; of equals the one that was admitted last."""
        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals

    def _take_back(self, victim: Request, step: _Step) -> None:
        """``victim`` was given tokens earlier in this step, and is about to lose its blocks: its tokens return to the
        budget, and the blocks that it was to write are not findable.

        Full blocks are in the index from the moment their slots are made, because each layer of a step writes before it
        reads. This victim will not write. Whoever found its blocks would read what somebody else left there.
        """
        step.budget += step.plan.pop(victim.request_id)
        first = victim.num_computed_tokens // self.kv_cache.block_size
        self.kv_cache.block_pool.evict_blocks(self.kv_cache.get_block_ids(victim.request_id)[first:])

    def preempt(self, request: Request) -> None:
        """Take the blocks of a running request; it waits again, in front of its equals, with its output.

        What was written into the blocks stays findable until they are given out again.
        """
        self.running.remove(request)
        self.kv_cache.free(request)  # it reads num_computed_tokens: that much of the last block can be found again
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.num_preemptions += 1
        self.waiting.requeue(request)

    def _end_outgrown(self, request: Request, step: _Step) -> None:
        """A request has grown until the whole pool could not hold it. It may run, or wait after a preemption."""
        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)
        step.finished.append(request)

    # ---- inside: requests that wait

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit from the front of the queue while there is budget, a seat and room."""
        while len(self.waiting) and step.budget:
            request = self.waiting.peek()
            if self._has_outgrown(request.num_tokens):  # it lost its blocks before it could ask for more
                self._end_outgrown(request, step)
                continue
            num_seats = self.max_num_seqs - sum(other.num_sequences for other in self.running)
            num_new_tokens = self._admit(request, step) if request.num_sequences <= num_seats else 0
            if num_new_tokens == 0:
                return
            self.waiting.get()
            self.running.append(request)
            step.give(request, num_new_tokens)

    def _admit(self, request: Request, step: _Step) -> int:
        """Adopt what is cached and make slots for as many further tokens as the step allows; 0 if there is no room."""
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        while not self._has_room(request, hits, num_cached):
            num_half = num_cached % self.kv_cache.block_size
            if num_half == 0:
                return 0
            hits, num_cached = hits[:-1], num_cached - num_half  # do without the block that would have to be copied
        num_new_tokens = step.num_tokens_for(request.num_tokens - num_cached, num_cached)
        if self.kv_cache.allocate_slots(request, num_new_tokens, hits, num_cached) is None:
            return 0
        if request.status is RequestStatus.PREEMPTED:
            self._resume(request, num_cached)
        else:
            request.num_computed_tokens = request.num_cached_tokens = num_cached
            request.status = RequestStatus.RUNNING
        return num_new_tokens

    def _resume(self, request: Request, num_cached: int) -> None:
        """A preempted request is admitted; of its tokens ``num_cached`` were found in the cache.

        ``num_cached_tokens``, which is reported, stays as it was: most of what is found now, the request computed
        itself.
        """
        request.num_computed_tokens = num_cached
        request.status = RequestStatus.RUNNING

    def _has_room(self, request: Request, hits: list[KVCacheBlock], num_cached: int) -> bool:
        """Whether *all* tokens of ``request`` fit, beside what is set aside.

        A hit that stands in the free queue is about to leave it, so it is no room. Those that run need no room for the
        tokens that they have: while budget is left, they have got their slots.
        """
        num_free = self.kv_cache.block_pool.get_num_free_blocks() - sum(block.ref_cnt == 0 for block in hits)
        num_new = self._num_blocks_for(request.num_tokens) - len(hits)
        if num_cached % self.kv_cache.block_size:
            num_new += 1  # for a copy of the last hit, which may turn out not to be needed (KVCacheManager._must_fork)
        return num_new + self._num_blocks_set_aside(request) <= num_free

    def _num_blocks_set_aside(self, request: Request) -> int:
        """Blocks that must stay free when ``request`` is admitted: the watermark, and one for each of its sequences but
        one. If the prompt ends inside a block, all of them share that block, and all but the last copy it.

        0 while nobody runs: who is alone may have the whole pool. If it waited, nobody would ever make more room.
        """
        return self.num_watermark_blocks + request.num_sequences - 1 if self.running else 0

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.kv_cache.block_size)

    def _has_outgrown(self, num_tokens: int) -> bool:
        """Whether the whole pool, with nobody else in it, could not hold ``num_tokens`` tokens."""
        return self._num_blocks_for(num_tokens) > self.num_blocks
