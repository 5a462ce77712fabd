"""The scheduler when memory runs out: who gives way, what it keeps, and how it comes back.

There are no phases. A request has ``num_tokens`` and ``num_computed_tokens``, and a step computes some of the
difference. The first four rules are those of lab 4.1; most of what they need is given here.

 1. **Limits.** A step computes at most ``max_num_batched_tokens`` tokens (the *budget*). At most ``max_num_seqs``
    sequences run (the *seats*).
 2. **Running before waiting.** Requests that run come first; among them those with one token to go. Otherwise they
    stand in the order in which they were admitted.
 3. **Chunks.** A request is given all its tokens that are not computed yet, or what the budget leaves.
 4. **Admission** is in the order of the queue, and nobody is passed over. The first in the queue is admitted if there
    are seats for all its sequences, and blocks for *all* its tokens (not just the first chunk) beside those which the
    running ones still need for theirs, and beside the watermark: a few blocks kept free for running ones to grow into.
    When nobody runs there is no watermark.
 5. **Preemption.** If a running request needs a block and there is none, the one that would be served last gives way:
    the one with the largest ``waiting.order``, which is priority and age together; of equals the one admitted last. It
    may be the one that asks. Its blocks go, its output stays, nothing of it counts as computed, and it waits in front
    of its equals. Tokens that it was given in this step return to the budget.
 6. A step that preempted admits nobody.
 7. **Resuming.** A preempted request is admitted like any other. All its tokens, prompt and output, are to be computed
    again, except what the prefix cache still has of them.
 8. **What cannot fit** ends at once: a prompt larger than the pool is refused when it comes, and a request that has
    grown until the whole pool could not hold it ends as FINISHED_KV_CACHE_FULL, with its output. Nobody is preempted
    for it.
 9. **Abort** takes a request out wherever it is, and its blocks come home.
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


@dataclass(frozen=True)
class SchedulerOutput:
    """The plan of one step. Given."""

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
    """A step while it is being planned. Given."""

    #: Tokens that may still be given out.
    budget: int
    #: Request id → tokens given to it. Its slots exist; its ``num_computed_tokens`` is still what it was before.
    plan: dict[str, int] = field(default_factory=dict)
    #: Those that lost their blocks in this step, in that order.
    preempted: list[Request] = field(default_factory=list)
    #: Those that outgrew the pool in this step.
    finished: list[Request] = field(default_factory=list)


class Scheduler:
    """Requests that wait and requests that run, over one KV cache.

    A request that waits holds no blocks. One that runs has a seat, and blocks for what has been computed of it. A
    preempted request waits: it is in ``waiting`` and in ``requests``, not in ``running``.
    """

    def __init__(self, kv_cache: KVCacheManager, max_num_seqs: int = 64, max_num_batched_tokens: int = 1024,
                 queue: PriorityQueueWithAging | None = None, watermark: float = WATERMARK) -> None:
        """Given."""
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

    # ---- requests come and go: as in lab 4.1, given

    def add_request(self, request: Request) -> None:
        """Let a request wait for its turn. Raises ValueError if it can never be served, or its id is in use. Given."""
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
        """Take a request out wherever it is; None if it is nowhere. Given."""
        request = self.requests.get(request_id)
        if request is not None:
            self.finish(request, RequestStatus.FINISHED_ABORTED)
        return request

    def finish(self, request: Request, status: RequestStatus) -> None:
        """A request that waits or runs here ends here, with this status. Given.

        What runs leaves ``running`` and its blocks come home; what waits, preempted or not, leaves the queue.
        """
        del self.requests[request.request_id]
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv_cache.free(request)
        else:
            self.waiting.remove(request)
        request.status = status

    def fork(self, parent: Request, child: Request) -> None:
        """The prompt has been computed: ``child`` shares all of it and runs on from there. Given."""
        self.kv_cache.fork(parent, child)
        child.num_computed_tokens, child.num_cached_tokens = parent.num_computed_tokens, parent.num_cached_tokens
        child.arrival_time = parent.arrival_time
        child.status = RequestStatus.RUNNING
        parent.num_sequences -= 1
        self.running.append(child)
        self.requests[child.request_id] = child

    def has_unfinished_requests(self) -> bool:
        """Whether anybody waits or runs. Given."""
        return bool(self.requests)

    def _num_blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens need. Given."""
        return -(-num_tokens // self.kv_cache.block_size)

    def _has_outgrown(self, num_tokens: int) -> bool:
        """Whether the whole pool, with nobody else in it, could not hold ``num_tokens`` tokens. Given."""
        return self._num_blocks_for(num_tokens) > self.num_blocks

    # ---- Task 1: a step

    def schedule(self) -> SchedulerOutput:
        """Plan a step: slots are made, prefix hits adopted, and ``num_computed_tokens`` is what it will be after it.

        Task 1: make the two calls that are missing; what follows them is given. Those who run are planned first
        (``_schedule_running``), then those who wait are admitted (``_schedule_waiting``). Both fill ``step``. A step
        that preempted somebody (``step.preempted``) admits nobody: the blocks that became free are for those who run,
        and the one that has just lost them would come straight back.
        """
        step = _Step(budget=self.max_num_batched_tokens)
        # TASK 1: Scheduler.schedule
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        # END TASK
        planned = sorted(step.plan.items(), key=lambda entry: entry[1] > 1)  # the runner wants single tokens first
        for request_id, num_new_tokens in planned:
            self.requests[request_id].num_computed_tokens += num_new_tokens
        copies = [(source.block_id, copy.block_id) for source, copy in self.kv_cache.block_pool.pending_copies]
        return SchedulerOutput(dict(planned), [self.requests[request_id] for request_id, _ in planned], copies,
                               step.preempted, step.finished)

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """The step has run: append the tokens that were sampled. Given."""
        self.kv_cache.finish_step()
        for request in output.requests:
            if request.request_id in token_ids:
                request.append_output_token(token_ids[request.request_id])

    def _schedule_running(self, step: _Step) -> None:
        """Give the running ones their tokens.

        As in lab 4.1: in the order of ``running``, but those with one token to go before all others, each gets all its
        tokens to go, or what ``step.budget`` leaves, and slots for them (``kv_cache.allocate_slots``); then
        ``step.plan`` says how many, and they are taken off ``step.budget``. Who gets nothing is not in the plan.
        Two things are new. Who gets no slots (None; an empty list is room) does not just go without: ``_make_room``
        says whether it has some after all. And one that lost its blocks to somebody earlier in this step does not run
        any more (``request.status``): it is passed over.
        ``_make_room`` changes ``running``, and may put tokens back into ``step.budget``.
        """
        # TASK 1: Scheduler._schedule_running
        for request in sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)
            if request.status is not RequestStatus.RUNNING or num_new_tokens == 0:
                continue
            slots = self.kv_cache.allocate_slots(request, num_new_tokens)
            if slots is None and not self._make_room(request, num_new_tokens, step):
                continue
            step.plan[request.request_id] = num_new_tokens
            step.budget -= num_new_tokens
        # END TASK

    # ---- admission: as in lab 4.1, given

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit from the front of the queue while there is budget, a seat and room. Given.

        As in lab 4.1, but for one case: a request may have been preempted when it had more tokens than the pool has
        slots. It ends (``_end_outgrown``), instead of standing in front of all others for ever.
        """
        while len(self.waiting) and step.budget:
            request = self.waiting.peek()
            if self._has_outgrown(request.num_tokens):
                self._end_outgrown(request, step)
                continue
            num_seats = self.max_num_seqs - sum(other.num_sequences for other in self.running)
            num_new_tokens = self._admit(request, step.budget) if request.num_sequences <= num_seats else 0
            if num_new_tokens == 0:
                return
            self.waiting.get()
            self.running.append(request)
            step.plan[request.request_id] = num_new_tokens
            step.budget -= num_new_tokens

    def _admit(self, request: Request, budget: int) -> int:
        """Adopt what is cached and make slots for as many further tokens as the budget allows; 0: no room. Given.

        As in lab 4.1, but one that was preempted and comes back is ``_resume``d.
        """
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        while not self._has_room(request, hits, num_cached):
            num_half = num_cached % self.kv_cache.block_size
            if num_half == 0:
                return 0
            hits, num_cached = hits[:-1], num_cached - num_half  # do without the block that would have to be copied
        num_new_tokens = min(request.num_tokens - num_cached, budget)
        if self.kv_cache.allocate_slots(request, num_new_tokens, hits, num_cached) is None:
            return 0
        if request.status is RequestStatus.PREEMPTED:
            self._resume(request, num_cached)
        else:
            request.num_computed_tokens = request.num_cached_tokens = num_cached
            request.status = RequestStatus.RUNNING
        return num_new_tokens

    def _has_room(self, request: Request, hits: list[KVCacheBlock], num_cached: int) -> bool:
        """Whether *all* tokens of a waiting request fit, beside what is promised and what is set aside. Given."""
        num_free = self.kv_cache.block_pool.get_num_free_blocks() - sum(block.ref_cnt == 0 for block in hits)
        num_new = self._num_blocks_for(request.num_tokens) - len(hits)
        if num_cached % self.kv_cache.block_size:
            num_new += 1  # the last hit is copied before it is written into
        return num_new + self._num_promised_blocks() + self._num_blocks_set_aside(request) <= num_free

    def _num_promised_blocks(self) -> int:
        """Blocks that the running requests still need for the tokens that they have. Given."""
        return sum(max(self._num_blocks_for(request.num_tokens)
                       - len(self.kv_cache.get_block_ids(request.request_id)), 0) for request in self.running)

    def _num_blocks_set_aside(self, request: Request) -> int:
        """Blocks that must stay free, beside those promised, when ``request`` is admitted. Given.

        ``num_watermark_blocks``, for running ones to grow into. And one for each sequence of ``request`` after the
        first (``num_sequences``): a sample begins by copying the last block of the prompt.
        0 while nobody runs: who is alone may have the whole pool. If it waited, nobody would ever make more room.
        """
        if not self.running:
            return 0
        return self.num_watermark_blocks + request.num_sequences - 1

    # ---- Task 2: out, and in again

    def preempt(self, request: Request) -> None:
        """Take the blocks of a running request. It waits again, with its output.

        After: it is not in ``running``, but in ``waiting``, in front of its equals and as old as before
        (``waiting.requeue``). It holds no block (``kv_cache.free``), so nothing of it counts as computed
        (``num_computed_tokens`` is 0). Its status is PREEMPTED. Its own ``num_preemptions`` and the scheduler's are one
        more. ``output_token_ids``, ``all_token_ids``, ``num_cached_tokens`` and ``requests`` are as they were.

        ``kv_cache.free`` reads ``num_computed_tokens``: so much of the last block is worth finding again.
        """
        # TASK 2: Scheduler.preempt
        self.running.remove(request)
        self.kv_cache.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.num_preemptions += 1
        self.waiting.requeue(request)
        # END TASK

    def _resume(self, request: Request, num_cached: int) -> None:
        """A preempted request is admitted; of its tokens ``num_cached`` were found in the cache.

        ``_admit`` calls it when the slots are made; the queue and ``running`` are its callers' business.
        After: it runs, and those ``num_cached`` tokens count as computed. They do not count in ``num_cached_tokens``,
        which goes on the bill: what it finds now it computed itself, before it lost it. That number stays what it
        was after the first admission.
        """
        # TASK 2: Scheduler._resume
        request.num_computed_tokens = num_cached
        request.status = RequestStatus.RUNNING
        # END TASK

    # ---- Task 3: somebody gives way

    def _choose_victim(self) -> Request:
        """The running request that would be served last; of equals the one that was admitted last.

        ``waiting.order(request)`` puts requests in order, those that run too: of two, the one with the smaller is
        served first. It knows priority, age and arrival. Nothing changes here.
        """
        # TASK 3: Scheduler._choose_victim
        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals
        # END TASK

    def _make_room(self, request: Request, num_new_tokens: int, step: _Step) -> bool:
        """Slots for the next ``num_new_tokens`` tokens of a running request, for which ``allocate_slots`` gave None.

        Preempt one victim after the other, until ``allocate_slots`` gives slots: return True then. (An empty list is
        not None: a victim that shared a block leaves it to ``request``, which needs no new one then.) The victim may be
        ``request`` itself; it gives way like any other, and there is nobody left to make room for: return False. All
        victims are in ``step.preempted``, in that order.

        Task 4: a victim that is in ``step.plan`` already is taken back (``_take_back``) *before* it is preempted.
        Task 5: if the whole pool could not hold the tokens computed so far and these (``_has_outgrown``), nobody gives
        way: ``_end_outgrown``, and return False. These are not added to ``num_tokens``: they are among them already.
        """
        # TASK 3: Scheduler._make_room
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
        # END TASK

    # ---- Task 4: a victim that was planned already

    def _take_back(self, victim: Request, step: _Step) -> None:
        """``victim`` was given tokens earlier in this step, and is about to lose its blocks. It still holds them.

        After: it is not in the plan, and its tokens are in the budget again, for those who come after. And the blocks
        that it was to write in this step are not findable (``kv_cache.block_pool.evict_blocks``, by block id). Those
        are the blocks from that of position ``num_computed_tokens`` on. What lies before them stays findable.

        Full blocks are in the index from the moment their slots are made, because a step writes before it reads. This
        victim will not write. Whoever found its blocks would read what somebody else left there.
        """
        # TASK 4: Scheduler._take_back
        step.budget += step.plan.pop(victim.request_id)
        first = victim.num_computed_tokens // self.kv_cache.block_size
        self.kv_cache.block_pool.evict_blocks(self.kv_cache.get_block_ids(victim.request_id)[first:])
        # END TASK

    # ---- Task 5: what cannot fit

    def _end_outgrown(self, request: Request, step: _Step) -> None:
        """A request has grown until the whole pool could not hold it. It may run, or wait after a preemption.

        After: it has ended as FINISHED_KV_CACHE_FULL, its blocks have come home, its output is as it was, and it is in
        ``step.finished``, so that whoever waits for it is told.
        """
        # TASK 5: Scheduler._end_outgrown
        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)
        step.finished.append(request)
        # END TASK
