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
 5. **Preemption.** If a running request needs a block and none is free, the running request that would be served last
    is preempted (``waiting.order``: priority and age together; among equals the one admitted last). It may be the
    request that needs the block. It loses its blocks and keeps its output, none of its tokens count as computed, and
    it waits in front of its equals. Tokens that it was given in this step return to the budget.
 6. A step that preempted a request admits none.
 7. **Resuming.** A preempted request is admitted like any other. All its tokens, prompt and output, must be computed
    again, except those still in the prefix cache.
 8. **A request that cannot fit** ends at once: a prompt larger than the pool is rejected on arrival, and a request that
    has grown until the whole pool could not hold it ends as FINISHED_KV_CACHE_FULL, with its output. No request is
    preempted for it.
 9. **Abort** removes a request in any state and frees its blocks.

The module is longer than most: the rules and their implementation belong together.
"""

from __future__ import annotations

import math
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
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        planned = sorted(step.plan.items(), key=lambda entry: entry[1] > 1)  # the runner needs single tokens first
        for request_id, num_new_tokens in planned:
            self.requests[request_id].num_computed_tokens += num_new_tokens
        copies = [(source.block_id, copy.block_id) for source, copy in self.kv_cache.block_pool.pending_copies]
        return SchedulerOutput(dict(planned), [self.requests[request_id] for request_id, _ in planned], copies,
                               step.preempted, step.finished)

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """Append the sampled tokens of a step that has run."""
        self.kv_cache.finish_step()
        for request in output.requests:
            if request.request_id in token_ids:
                request.append_output_token(token_ids[request.request_id])

    def _max_chunk(self) -> int | None:
        """Return ``max_num_chunk_tokens`` if rule 3 limits the chunks of this step; else None.

        The rule applies if a request decodes and exactly one other request, running or waiting, does not.
        """
        num_decoding = sum(request.num_tokens - request.num_computed_tokens == 1 for request in self.running)
        is_only_prompt = len(self.running) - num_decoding + len(self.waiting) == 1
        return self.max_num_chunk_tokens if num_decoding and is_only_prompt else None

    # ---- inside: running requests

    def _schedule_running(self, step: _Step) -> None:
        """Give the running requests their tokens, those with one token to go first."""
        for request in sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):
            num_left = request.num_tokens - request.num_computed_tokens
            num_new_tokens = step.num_tokens_for(num_left, request.num_computed_tokens)
            if request.status is not RequestStatus.RUNNING or num_new_tokens == 0:
                continue  # it lost its blocks to an earlier request of this step, or there is nothing to give
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

        The tokens return to the budget, and the blocks that it was to write are removed from the index. Full blocks are
        in the index from the moment their slots are made, because each layer of a step writes before it reads. The
        victim will not write its blocks: another request that found them would read stale content.
        """
        step.budget += step.plan.pop(victim.request_id)
        first = victim.num_computed_tokens // self.kv_cache.block_size
        self.kv_cache.block_pool.evict_blocks(self.kv_cache.get_block_ids(victim.request_id)[first:])

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
        """Adopt cached blocks and make slots for as many further tokens as the step allows.

        Return the number of further tokens; 0 if there is no room.
        """
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        while not self._has_room(request, hits, num_cached):
            num_half = num_cached % self.kv_cache.block_size
            if num_half == 0:
                return 0
            hits, num_cached = hits[:-1], num_cached - num_half  # skip the block that would have to be copied
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
        """Resume a preempted request; ``num_cached`` of its tokens were found in the cache.

        ``num_cached_tokens``, which is reported, is unchanged: most of the tokens found now were computed by the
        request itself.
        """
        request.num_computed_tokens = num_cached
        request.status = RequestStatus.RUNNING

    def _has_room(self, request: Request, hits: list[KVCacheBlock], num_cached: int) -> bool:
        """Check whether *all* tokens of ``request`` fit, in addition to the blocks set aside.

        A hit in the free queue is about to leave it, so it does not count as free. Running requests need no room for
        their current tokens: while budget is left, they already have their slots.
        """
        num_free = self.kv_cache.block_pool.get_num_free_blocks() - sum(block.ref_cnt == 0 for block in hits)
        num_new = self._num_blocks_for(request.num_tokens) - len(hits)
        if num_cached % self.kv_cache.block_size:
            num_new += 1  # for a copy of the last hit, which may turn out not to be needed (KVCacheManager._must_fork)
        return num_new + self._num_blocks_set_aside(request) <= num_free

    def _num_blocks_set_aside(self, request: Request) -> int:
        """Return the number of blocks that must stay free when ``request`` is admitted.

        They are the watermark, and one block for each of its sequences except one: if the prompt ends inside a block,
        all sequences share that block, and all but the last copy it. Return 0 while no request is running: a request
        that is alone may use the whole pool. If it waited, no other request would ever make room.
        """
        return self.num_watermark_blocks + request.num_sequences - 1 if self.running else 0

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.kv_cache.block_size)

    def _has_outgrown(self, num_tokens: int) -> bool:
        """Check whether ``num_tokens`` tokens do not fit into the whole, otherwise empty pool."""
        return self._num_blocks_for(num_tokens) > self.num_blocks
