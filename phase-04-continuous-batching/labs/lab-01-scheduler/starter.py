"""The scheduler: which requests compute how many tokens in the next step.

There are no phases. A request has ``num_tokens`` and ``num_computed_tokens``, and a step computes some of the
difference: a whole prompt, a chunk of one, or the one token that was sampled last.

The rules of this lab:

 1. **Limits.** A step computes at most ``max_num_batched_tokens`` tokens (the *budget*). At most ``max_num_seqs``
    sequences run (the *seats*).
 2. **Running before waiting.** Running requests come first; among them those with one token to go, so that no request
    that decodes waits for the prompt of another. Apart from that, the order is that in which they were admitted.
 3. **Chunks.** A request is given all its tokens that are not computed yet, or what the budget leaves. So a long prompt
    is computed in chunks, in the same steps in which other requests decode.
 4. **Admission** is in the order of the queue, and no request is passed over. The first in the queue is admitted if
    there are seats for all its sequences, and free blocks for *all* its tokens (not just the first chunk) besides those
    which the running requests still need for theirs, and those set aside. What the prefix cache has of it is adopted,
    not computed: ``num_cached_tokens`` says how much. If the hit ends inside a block, that block has to be copied. If
    the copy does not fit, the block is given up, and its tokens are computed.
 5. **What can never fit** is refused when it arrives.
 6. **Abort** takes a request out wherever it is, and its blocks are free again.

A running request that needs a block when there is none gets nothing in this step, no smaller chunk either; the requests
behind it are served. Lab 4.2 does better. It extends the class that you write here: it overrides ``schedule``,
``_schedule_running(step)``, ``_schedule_waiting(step)`` and ``_admit(request, step)``, and calls the last two and
``_complete(step)``. So keep these names and parameters; ``step`` is a ``_Step``.
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

    #: Request id → tokens to compute, in the order of the batch: those with one token first, else in planned order.
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    #: The same requests, in the same order.
    requests: list[Request] = field(default_factory=list)
    #: Blocks to copy before anything is written, as ids (source, copy): all of ``block_pool.pending_copies``.
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
        #: The requests that wait, the next one in front.
        self.waiting = PriorityQueueWithAging() if queue is None else queue
        #: The requests that run, in the order in which they were admitted.
        self.running: list[Request] = []
        #: All requests that wait or run, by id.
        self.requests: dict[str, Request] = {}

    def _num_blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens need. Given."""
        return -(-num_tokens // self.kv_cache.block_size)

    # ---- Task 1: coming

    def add_request(self, request: Request) -> None:
        """Let a request wait for its turn.

        A request that can never be served is refused here. No request is passed over, so those behind it would wait for
        ever.

        After:
        - it is in ``waiting`` and in ``requests``, under its id
        Raises:
        - ValueError if its id is in use, by a request that waits or by one that runs
        - ValueError if its ``num_sequences`` (the number of samples of its prompt) is above ``max_num_seqs``
        - ValueError if its ``num_tokens`` tokens need more blocks than the pool has (``num_blocks``)
        - what ``waiting.put`` raises, for example for an ``arrival_time`` of NaN
        - in each case nothing has changed, neither here nor in the request
        - each message names the value and the bound, or the id

        Example: of 6 blocks of 4 tokens, a request of 24 tokens may wait for all; one of 25 tokens is refused.
        """
        raise NotImplementedError("Task 1: Scheduler.add_request")

    def has_unfinished_requests(self) -> bool:
        """Whether any request waits or runs."""
        raise NotImplementedError("Task 1: Scheduler.has_unfinished_requests")

    # ---- Task 2: going

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request that waits or runs here, with this status.

        A request with the status RUNNING runs; any other status (PREEMPTED in lab 4.2) means that it waits.

        After:
        - it is neither in ``requests`` nor in ``running`` nor in ``waiting``
        - if it ran, it holds no blocks (``kv_cache.free``)
        - ``request.status`` is ``status``

        Example: a runs with 3 blocks, b with 2. After ``finish(a, FINISHED_LENGTH)`` b runs, and 2 blocks are in use.
        """
        raise NotImplementedError("Task 2: Scheduler.finish")

    def abort_request(self, request_id: str) -> Request | None:
        """End the request of this id as FINISHED_ABORTED, wherever it is, and return it. None if there is none."""
        raise NotImplementedError("Task 2: Scheduler.abort_request")

    def fork(self, parent: Request, child: Request) -> None:
        """The prompt has been computed: ``child`` shares all of it and runs on from there. Given."""
        self.kv_cache.fork(parent, child)
        child.num_computed_tokens, child.num_cached_tokens = parent.num_computed_tokens, parent.num_cached_tokens
        child.arrival_time = parent.arrival_time
        child.status = RequestStatus.RUNNING
        parent.num_sequences -= 1
        self.running.append(child)
        self.requests[child.request_id] = child

    # ---- Task 3: a step for the running requests

    def schedule(self) -> SchedulerOutput:
        """Plan a step. The model runner computes it, from what is returned here.

        It begins as a ``_Step`` with a budget of ``max_num_batched_tokens`` and an empty plan. The running requests get
        their tokens first (``_schedule_running``). If any request waits, ``_schedule_waiting`` (Task 4) gives out what
        is left of the budget; if none waits, it is not called. Returns what ``_complete`` makes of the step.
        """
        raise NotImplementedError("Task 3: Scheduler.schedule")

    def _schedule_running(self, step: _Step) -> None:
        """Give the running requests their tokens.

        A request has ``num_tokens - num_computed_tokens`` tokens to go. ``kv_cache.allocate_slots`` answers with a list
        of new blocks, which is empty if the last block has room, or with None if there is no room.

        After:
        - requests with one token to go were served before all others; apart from that, in the order of ``running``
        - each got all its tokens to go, or what was left of ``step.budget``, and has slots for them
        - ``step.plan`` says under its id how many tokens it computes, and they are taken off ``step.budget``
        - a request for which no budget or no room was left is not in the plan; no smaller chunk is tried
        - requests behind one that got nothing are served all the same
        - ``running`` and the requests themselves have not changed

        Example: the budget is 8; long (32 tokens to go), a and b (1 each) run. The plan is a: 1, b: 1, long: 6.
        """
        raise NotImplementedError("Task 3: Scheduler._schedule_running")

    def _complete(self, step: _Step) -> SchedulerOutput:
        """The plan of ``step`` is complete: its requests move on, and the plan is returned as a SchedulerOutput.

        After:
        - ``num_computed_tokens`` of each request in ``step.plan`` is larger by the tokens that it computes in this step
        - it moves nowhere else: while slots are made, they are counted from the old number
        Returns:
        - ``num_scheduled_tokens`` and ``requests``, both with requests that compute one token before those that compute
          more; apart from that, in the order of ``step.plan``
        - ``copies``, the pairs (source's id, copy's id) of all blocks in ``kv_cache.block_pool.pending_copies``, also
          if no request is in the plan

        Example: the plan ``{"p": 6, "a": 1, "q": 1}`` is returned as ``{"a": 1, "q": 1, "p": 6}``.
        """
        raise NotImplementedError("Task 3: Scheduler._complete")

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """The step that ``output`` planned has run.

        After:
        - the KV cache was told so (``kv_cache.finish_step``), even if nothing was sampled or no request was planned
        - each request of ``output.requests`` whose id is in ``token_ids`` has that token as its last output token
          (``append_output_token``); the others are in the middle of their prompts, and have no new one
        - tokens went to the objects in ``output.requests``, never to ``self.requests[id]``: that id may belong to
          another request by now

        Example: with ``{"a": 0}``, a gets the token 0, even if a was aborted while the step ran; b gets none.
        """
        raise NotImplementedError("Task 3: Scheduler.update_from_output")

    # ---- Task 4: admission

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit requests from the front of the queue, while one waits and budget is left.

        The first in the queue is admitted if the ``num_sequences`` of all running requests and its own are together at
        most ``max_num_seqs`` (the seats), and if ``_admit`` gives it tokens.

        After:
        - an admitted request has left the queue, and is the last in ``running``
        - ``step.plan`` says under its id how many tokens it computes, and they are taken off ``step.budget``
        - a request that was not admitted stays where it is, and so do all behind it: no request is passed over

        Example: 4 seats, a and b run. A request of 3 samples waits until a or b has ended; so does a small one behind
        it.
        """
        raise NotImplementedError("Task 4: Scheduler._schedule_waiting")

    def _admit(self, request: Request, step: _Step) -> int:
        """Adopt what is cached of ``request``, and make slots for as many further tokens as ``step.budget`` allows.

        In Task 4 there is room if ``allocate_slots`` does not give None; it adopts the hits together with the slots it
        makes. In Task 5 ``_has_room`` must be true as well. If it is not, and the hit ends inside a block, there may be
        room without that last block: it would have to be copied, and its tokens can be computed instead.

        After:
        - its ``num_computed_tokens`` and its ``num_cached_tokens`` are the number of cached tokens that were adopted
          (``_complete`` adds what it computes)
        - its status is RUNNING
        - ``step``, the queue and ``running`` are as they were: they are the caller's business
        Returns:
        - the number of tokens that it computes now, cached ones not counted
        - 0 if there is no room, with all its hits or without a last one that would have to be copied; nothing has
          changed then, not even the order of the free blocks

        Example: 13 of 16 tokens are cached, in 4 blocks of 4. A pool of 5 blocks has room for a copy of the fourth: 3
        tokens are left to compute. A pool of 4 has not; the fourth is given up, and 4 are left.
        """
        raise NotImplementedError("Task 4: Scheduler._admit")

    # ---- Task 5: room for a whole request

    def _num_promised_blocks(self) -> int:
        """The number of blocks that the running requests still need for the tokens that they have.

        For each of them: the blocks for its ``num_tokens`` tokens, less those in its table
        (``kv_cache.get_block_ids``). A table may be longer than that; then the request needs 0, not fewer.
        """
        raise NotImplementedError("Task 5: Scheduler._num_promised_blocks")

    def _has_room(self, request: Request, hits: list[KVCacheBlock], num_cached: int) -> bool:
        """Whether *all* tokens of a waiting request fit, however few of them the next step would compute.

        Its new blocks are those for all its ``num_tokens`` tokens, less one for each hit; and one more if
        ``num_cached`` ends inside a block, because the last hit is copied before it is written into. (Count blocks, not
        tokens that are not cached: these need not begin where a block begins.)
        A hit in the free queue (``ref_cnt`` 0) is about to leave it, so it does not count as free.

        Returns:
        - whether its new blocks, ``_num_promised_blocks`` and ``_num_blocks_set_aside`` are together at most the free
          blocks

        Example: 13 of 17 tokens are cached, in 4 blocks of 4. The last 4 tokens need 5 - 4 + 1 = 2 new blocks.
        """
        raise NotImplementedError("Task 5: Scheduler._has_room")

    def _num_blocks_set_aside(self, request: Request) -> int:
        """The number of blocks that admission leaves alone. Given.

        A few for running requests to grow into (the watermark), and one for each further sequence of ``request``, which
        begins by copying the last block of the prompt. 0 while no request runs: a request that is alone may have the
        whole pool.
        """
        return self.num_watermark_blocks + request.num_sequences - 1 if self.running else 0
