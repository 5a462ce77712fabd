"""The scheduler: who computes how many tokens in the next step.

There are no phases. A request has ``num_tokens`` and ``num_computed_tokens``, and a step computes some of the
difference: a whole prompt, a chunk of one, or the one token that was sampled last.

The rules of this lab:

 1. **Limits.** A step computes at most ``max_num_batched_tokens`` tokens (the *budget*). At most ``max_num_seqs``
    sequences run (the *seats*).
 2. **Running before waiting.** Requests that run come first; among them those with one token to go, so that nobody who
    decodes waits for somebody's prompt. Otherwise they stand in the order in which they were admitted.
 3. **Chunks.** A request is given all its tokens that are not computed yet, or what the budget leaves. So a long prompt
    is computed in chunks, in the same steps in which others decode.
 4. **Admission** is in the order of the queue, and nobody is passed over. The first in the queue is admitted if there
    are seats for all its sequences, and blocks for *all* its tokens (not just the first chunk) beside those which the
    running ones still need for theirs. What the prefix cache has of it is adopted, not computed.
 5. **What can never fit** is refused when it comes.
 6. **Abort** takes a request out wherever it is, and its blocks come home.

A running request that needs a block when there is none gets nothing in this step. Lab 4.2 does better: it extends the
class that you write here, and calls its methods by the names and with the parameters that they have now.
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
    #: Requests that lost their blocks and wait again. Empty in this lab.
    preempted: list[Request] = field(default_factory=list)
    #: Requests that outgrew the pool. Empty in this lab.
    finished: list[Request] = field(default_factory=list)


@dataclass
class _Step:
    """A step while it is being planned. Given."""

    #: Tokens that may still be given out.
    budget: int
    #: Request id → tokens given to it. Its slots exist; its ``num_computed_tokens`` is still what it was before.
    plan: dict[str, int] = field(default_factory=dict)


class Scheduler:
    """Requests that wait and requests that run, over one KV cache.

    A request that waits holds no blocks. One that runs has a seat, and blocks for what has been computed of it.
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

    def _num_blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens need. Given."""
        return -(-num_tokens // self.kv_cache.block_size)

    # ---- Task 1: coming

    def add_request(self, request: Request) -> None:
        """Let a request wait for its turn.

        After: it is in ``waiting`` (``put``) and in ``requests``, under its id.
        Raises ValueError, and nothing has changed then, if

        - its id is in use, by one that waits or by one that runs;
        - its ``num_sequences`` (how many samples of the prompt it will be) is above ``max_num_seqs``;
        - its ``num_tokens`` tokens need more blocks than the pool has (``num_blocks``).

        The message names the value and the bound. To let such a request wait would be worse than to refuse it: nobody
        is passed over, so everybody behind it would wait for ever, too. What ``put`` raises goes to the caller, and
        nothing has changed then either.
        """
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id!r} is in use, ids of live requests must be different")
        if request.num_sequences > self.max_num_seqs:
            raise ValueError(f"request {request.request_id!r} has num_sequences {request.num_sequences}, must be at most "
                             f"max_num_seqs ({self.max_num_seqs})")
        num_blocks = self._num_blocks_for(request.num_tokens)
        if num_blocks > self.num_blocks:
            raise ValueError(f"request {request.request_id!r} has {request.num_tokens} tokens and needs {num_blocks} blocks, "
                             f"the pool has {self.num_blocks}")
        self.waiting.put(request)
        self.requests[request.request_id] = request

    def has_unfinished_requests(self) -> bool:
        """Whether anybody waits or runs."""
        return len(self.waiting) > 0 or len(self.running) > 0

    # ---- Task 2: going

    def finish(self, request: Request, status: RequestStatus) -> None:
        """A request that waits or runs here ends here, with this status.

        One whose status is RUNNING runs. All others wait, whatever their status is called.
        After: it is neither in ``requests`` nor in ``running`` nor in ``waiting``. If it ran, its blocks have come home
        (``kv_cache.free``), and its seat is free. ``request.status`` is ``status``.
        """
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv_cache.free(request)
        else:
            self.waiting.remove(request)
        del self.requests[request.request_id]
        request.status = status

    def abort_request(self, request_id: str) -> Request | None:
        """Take a request out wherever it is, as FINISHED_ABORTED, and return it. None if it is nowhere."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        self.finish(request, RequestStatus.FINISHED_ABORTED)
        return request

    def fork(self, parent: Request, child: Request) -> None:
        """The prompt has been computed: ``child`` shares all of it and runs on from there. Given."""
        self.kv_cache.fork(parent, child)
        child.num_computed_tokens, child.num_cached_tokens = parent.num_computed_tokens, parent.num_cached_tokens
        child.arrival_time = parent.arrival_time
        child.status = RequestStatus.RUNNING
        parent.num_sequences -= 1
        self.running.append(child)
        self.requests[child.request_id] = child

    # ---- Task 3: a step for those who run

    def schedule(self) -> SchedulerOutput:
        """Plan a step. The step itself is computed by somebody else, from what is returned here.

        It begins as a ``_Step`` with a budget of ``max_num_batched_tokens`` and an empty plan. First
        ``_schedule_running`` fills it; then, if anybody waits, ``_schedule_waiting`` (Task 4) gives out what is left of
        the budget. Then the plan is complete. Returns what ``_complete`` makes of it.
        """
        step = _Step(budget=self.max_num_batched_tokens)
        self._schedule_running(step)
        if len(self.waiting):
            self._schedule_waiting(step)
        return self._complete(step)

    def _schedule_running(self, step: _Step) -> None:
        """Give the running requests their tokens.

        A request has ``num_tokens - num_computed_tokens`` tokens to go. They are served in the order of ``running``,
        but those with one token to go before all others. Each gets all its tokens to go, or what ``step.budget``
        leaves. For each, slots are made (``kv_cache.allocate_slots``); then ``step.plan`` says under its id how many
        tokens it computes, and they are taken off ``step.budget``.
        ``allocate_slots`` answers with the blocks that are new. An empty list is not None: the request had room in its
        last block, and goes on.
        Who gets nothing is not in the plan: because the budget is spent, or because there is no block (allocate_slots
        gave None; no smaller chunk is tried then). Those behind it are served all the same. ``running`` and the
        requests themselves do not change here.
        """
        in_order = sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens != 1)
        for request in in_order:
            num_to_go = request.num_tokens - request.num_computed_tokens
            num_new = min(num_to_go, step.budget)
            if num_new < 1:
                continue
            new_blocks = self.kv_cache.allocate_slots(request, num_new)
            if new_blocks is None:
                continue
            step.plan[request.request_id] = num_new
            step.budget -= num_new

    def _complete(self, step: _Step) -> SchedulerOutput:
        """The plan of ``step`` is complete: its requests move on, and the plan is returned as a SchedulerOutput.

        After: ``num_computed_tokens`` of each request in ``step.plan`` is larger by the tokens that it computes in this
        step. This happens here and nowhere else: until now slots were counted from the old number.

        Both ``num_scheduled_tokens`` and ``requests`` list those that compute one token before those that compute more,
        and leave them in the order of ``step.plan`` otherwise: the model runner wants it so. ``copies`` are the pairs
        (source's id, copy's id) of the blocks in ``kv_cache.block_pool.pending_copies``.
        """
        in_order = sorted(step.plan.items(), key=lambda item: item[1] != 1)
        requests = []
        for request_id, num_new in in_order:
            request = self.requests[request_id]
            request.num_computed_tokens += num_new
            requests.append(request)
        copies = [(source.block_id, copy.block_id) for source, copy in self.kv_cache.block_pool.pending_copies]
        return SchedulerOutput(num_scheduled_tokens=dict(in_order), requests=requests, copies=copies)

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """The step that ``output`` planned has run.

        The KV cache is told so (``kv_cache.finish_step``). And each request of the step (``output.requests``) for which
        ``token_ids`` has a token, by its id, gets it as an output token (``request.append_output_token``), even if it
        was aborted in the meantime, and another has come under its id. The others are in the middle of their prompt:
        nothing was sampled for them.
        """
        self.kv_cache.finish_step()
        for request in output.requests:
            if request.request_id in token_ids:
                request.append_output_token(token_ids[request.request_id])

    # ---- Task 4: admission

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit from the front of the queue, while somebody waits and there is budget.

        Seats: the ``num_sequences`` of all that run, and of the one to be admitted, are at most ``max_num_seqs``
        together. If there are seats for the first in the queue, and ``_admit`` gives it tokens, it leaves the queue,
        joins the end of ``running``, ``step.plan`` says how many tokens it computes, and they are taken off
        ``step.budget``. If not, it stays where it is, and so do all behind it: nobody is passed over.
        """
        num_seats = self.max_num_seqs - sum(running.num_sequences for running in self.running)
        while len(self.waiting) and step.budget > 0:
            request = self.waiting.peek()
            if request.num_sequences > num_seats:
                break
            num_new = self._admit(request, step)
            if num_new == 0:
                break
            self.waiting.get()
            self.running.append(request)
            num_seats -= request.num_sequences
            step.plan[request.request_id] = num_new
            step.budget -= num_new

    def _admit(self, request: Request, step: _Step) -> int:
        """Adopt what is cached of ``request``, and make slots for as many further tokens as ``step.budget`` allows.

        ``get_computed_blocks`` finds the hits and says how many tokens they hold; ``allocate_slots`` adopts them
        together with the slots it makes, or gives None.
        Returns how many tokens it is to compute now, cached ones not counted. After: its ``num_computed_tokens`` and
        its ``num_cached_tokens`` are what was found in the cache (``_complete`` adds what it computes), its status is
        RUNNING. ``step``, the queue and ``running`` are the caller's business: they are as they were.
        Returns 0 if there is no room, and nothing has changed then.

        Task 5: before slots are made, ask ``_has_room``. If it says no, and the hit ends inside a block, try once more
        without that last block: it costs a block to copy it into, and its tokens can be computed instead. If there is
        no room even so, return 0.
        """
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        if not self._has_room(request, hits, num_cached):
            if num_cached % self.kv_cache.block_size == 0:
                return 0
            hits = hits[:-1]
            num_cached = len(hits) * self.kv_cache.block_size
            if not self._has_room(request, hits, num_cached):
                return 0
        num_new = min(request.num_tokens - num_cached, step.budget)
        if self.kv_cache.allocate_slots(request, num_new, hits, num_cached) is None:
            return 0
        request.num_computed_tokens = num_cached
        request.num_cached_tokens = num_cached
        request.status = RequestStatus.RUNNING
        return num_new

    # ---- Task 5: room for all of it

    def _num_promised_blocks(self) -> int:
        """Blocks that the running requests still need for the tokens that they have.

        For each: the blocks for its ``num_tokens`` tokens, less those in its table (``kv_cache.get_block_ids``). A
        table may be longer than that; then it needs none, and not fewer than none.
        """
        num_promised = 0
        for request in self.running:
            num_held = len(self.kv_cache.get_block_ids(request.request_id))
            num_promised += max(self._num_blocks_for(request.num_tokens) - num_held, 0)
        return num_promised

    def _has_room(self, request: Request, hits: list[KVCacheBlock], num_cached: int) -> bool:
        """Whether *all* tokens of a waiting request fit, however few of them the next step would compute.

        It needs the blocks of all its ``num_tokens`` tokens, less one for each hit; and one more if ``num_cached`` ends
        inside a block, because the last hit is copied before it is written into. (Count blocks, not tokens that are not
        cached: these need not begin where a block begins.) Beside these there must be room for
        ``_num_promised_blocks`` and for ``_num_blocks_set_aside``.
        Room is what is free in the pool. A hit that stands in the free queue (``ref_cnt`` 0) is about to leave it, so
        it is no room.
        """
        num_needed = self._num_blocks_for(request.num_tokens) - len(hits)
        if num_cached % self.kv_cache.block_size != 0:
            num_needed += 1
        num_free_hits = sum(block.ref_cnt == 0 for block in hits)
        room = self.kv_cache.block_pool.get_num_free_blocks() - num_free_hits
        return num_needed + self._num_promised_blocks() + self._num_blocks_set_aside(request) <= room

    def _num_blocks_set_aside(self, request: Request) -> int:
        """Blocks that admission leaves alone. Given.

        A few for running ones to grow into (the watermark), and one for each further sequence of ``request``, which
        begins by copying the last block of the prompt. None while nobody runs: who is alone may have the whole pool.
        """
        return self.num_watermark_blocks + request.num_sequences - 1 if self.running else 0
