"""The scheduler: it decides which requests compute in the next step, and how many tokens.

There are no separate phases for prefill and decode. A request has ``num_tokens`` and ``num_computed_tokens``, and a
step computes some or all of the difference: a whole prompt, a chunk of a prompt, or the one token that was sampled
last.

The rules of this lab:

 1. **Limits.** A step computes at most ``max_num_batched_tokens`` tokens (the *budget*). At most ``max_num_seqs``
    sequences run (the *seats*).
 2. **Running before waiting.** Running requests are served before waiting ones. Among the running requests, those with
    one token to go are served first, so that no request that decodes waits for the prompt of another. Apart from that,
    they are served in the order in which they were admitted.
 3. **Chunks.** A request gets all its tokens that are not computed yet, or as many as the budget leaves. So a long
    prompt is computed in chunks, in the same steps in which other requests decode.
 4. **Admission** is in the order of the queue, and no request is passed over. The first request in the queue is
    admitted if there are seats for all its sequences and enough free blocks. The free blocks must be enough for *all*
    its tokens (not just the first chunk), for what the running requests still need for their tokens, and for the blocks
    set aside. A prefix that is in the prefix cache is adopted, not computed: ``num_cached_tokens`` says how many tokens
    it has. If this hit ends inside a block, that block has to be copied. If there is no room for the copy, the request
    gives up the block and computes the tokens in it.
 5. **A request that can never fit** is refused when it arrives.
 6. **Abort** ends a request wherever it is, and frees its blocks.

A running request that needs a block when none is free gets nothing in this step, not even a smaller chunk; the requests
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

#: The fraction of the pool that admission leaves free.
WATERMARK = 0.01


@dataclass(frozen=True)
class SchedulerOutput:
    """The plan of one step. Given."""

    #: Request id → tokens to compute, in batch order: requests with one token first, apart from that in planned order.
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

    #: The tokens that this step may still give out.
    budget: int
    #: Request id → tokens given to it. Its slots are allocated; its ``num_computed_tokens`` has not changed yet.
    plan: dict[str, int] = field(default_factory=dict)


class Scheduler:
    """The requests that wait and the requests that run, with one KV cache.

    A waiting request holds no blocks. A running request has a seat, and blocks for its computed tokens.
    """

    def __init__(self, kv_cache: KVCacheManager, max_num_seqs: int = 64, max_num_batched_tokens: int = 1024,
                 queue: PriorityQueueWithAging | None = None, watermark: float = WATERMARK) -> None:
        """Check the settings and start without requests. Given."""
        for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, must be a whole number, at least 1")
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(f"max_num_batched_tokens is {max_num_batched_tokens}, must be at least max_num_seqs "
                             f"({max_num_seqs}): each running request computes one token per step")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}, must be a fraction of the pool, at least 0 and below 1")
        self.kv_cache = kv_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.num_blocks = kv_cache.block_pool.num_blocks - 1  # without the null block
        self.num_watermark_blocks = math.ceil(watermark * self.num_blocks)
        #: The requests that wait; the next one to serve is at the front.
        self.waiting = PriorityQueueWithAging() if queue is None else queue
        #: The requests that run, in the order in which they were admitted.
        self.running: list[Request] = []
        #: All requests that wait or run, by id.
        self.requests: dict[str, Request] = {}

    def _num_blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that ``num_tokens`` tokens need. Given."""
        return -(-num_tokens // self.kv_cache.block_size)

    # ---- Task 1: a request arrives

    def add_request(self, request: Request) -> None:
        """Put a request into the queue.

        A request that can never be served is refused here. Otherwise it would block all requests behind it forever,
        because no request is passed over.

        After:
        - the request is in ``waiting``, and in ``requests`` under its id
        Raises:
        - ValueError if its id is in use by a request that waits or runs
        - ValueError if its ``num_sequences`` (the number of samples of its prompt) is above ``max_num_seqs``
        - ValueError if its ``num_tokens`` tokens need more blocks than the pool has (``num_blocks``)
        - what ``waiting.put`` raises, for example for an ``arrival_time`` of NaN
        - in each case nothing has changed, neither in the scheduler nor in the request
        - the message of each ValueError above names the value and the bound, or the id

        Example: the pool has 6 blocks of 4 tokens. A request of 24 tokens is accepted; one of 25 tokens is refused.
        """
        raise NotImplementedError("Task 1: Scheduler.add_request")

    def has_unfinished_requests(self) -> bool:
        """Return whether any request waits or runs."""
        raise NotImplementedError("Task 1: Scheduler.has_unfinished_requests")

    # ---- Task 2: a request ends

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request that waits or runs here, and give it this status.

        A request with the status RUNNING runs; any other status (PREEMPTED in lab 4.2) means that it waits.

        After:
        - the request is not in ``requests``, ``running`` or ``waiting``
        - if it ran, it holds no blocks (``kv_cache.free``)
        - ``request.status`` is ``status``

        Example: a runs with 3 blocks, b with 2. After ``finish(a, FINISHED_LENGTH)`` b runs, and 2 blocks are in use.
        """
        raise NotImplementedError("Task 2: Scheduler.finish")

    def abort_request(self, request_id: str) -> Request | None:
        """End the request with this id as FINISHED_ABORTED, wherever it is, and return it.

        Return None if there is no such request.
        """
        raise NotImplementedError("Task 2: Scheduler.abort_request")

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` share the computed prompt of ``parent`` and continue from there as a running request. Given."""
        self.kv_cache.fork(parent, child)
        child.num_computed_tokens, child.num_cached_tokens = parent.num_computed_tokens, parent.num_cached_tokens
        child.arrival_time = parent.arrival_time
        child.status = RequestStatus.RUNNING
        parent.num_sequences -= 1
        self.running.append(child)
        self.requests[child.request_id] = child

    # ---- Task 3: a step for the running requests

    def schedule(self) -> SchedulerOutput:
        """Plan a step. The model runner then computes what the returned plan says.

        Start with a ``_Step`` that has a budget of ``max_num_batched_tokens`` and an empty plan. The running requests
        get their tokens first (``_schedule_running``). If any request waits, ``_schedule_waiting`` (Task 4) gives out
        the rest of the budget; if none waits, it is not called. Return what ``_complete`` returns for this step.
        """
        raise NotImplementedError("Task 3: Scheduler.schedule")

    def _schedule_running(self, step: _Step) -> None:
        """Give the running requests their tokens.

        A request has ``num_tokens - num_computed_tokens`` tokens to go. ``kv_cache.allocate_slots`` returns a list of
        new blocks, which is empty if the last block has room. It returns None if there is no room.

        After:
        - requests with one token to go were served before all others; apart from that, in the order of ``running``
        - each request got all its tokens to go, or as many as were left in ``step.budget``, and has slots for them
        - ``step.plan`` maps its id to the number of tokens that it computes; ``step.budget`` is smaller by that number
        - a request for which no budget or no room was left is not in the plan; no smaller chunk is tried
        - requests behind one that got nothing are still served
        - ``running`` and the requests themselves have not changed

        Example: the budget is 8. Three requests run: long has 32 tokens to go, a and b have 1 each. The plan is a: 1,
        b: 1, long: 6.
        """
        raise NotImplementedError("Task 3: Scheduler._schedule_running")

    def _complete(self, step: _Step) -> SchedulerOutput:
        """Advance the requests in the finished plan of ``step``, and return the plan as a SchedulerOutput.

        After:
        - ``num_computed_tokens`` of each request in ``step.plan`` is larger by the number of tokens that it computes in
          this step
        - it is advanced nowhere else: ``allocate_slots`` must count from the old number
        Returns:
        - ``num_scheduled_tokens`` and ``requests``, both with requests that compute one token before those that compute
          more; apart from that, in the order of ``step.plan``
        - ``copies``, the pairs (source's id, copy's id) of all blocks in ``kv_cache.block_pool.pending_copies``, even
          if no request is in the plan

        Example: the plan ``{"p": 6, "a": 1, "q": 1}`` is returned as ``{"a": 1, "q": 1, "p": 6}``.
        """
        raise NotImplementedError("Task 3: Scheduler._complete")

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """Record that the step planned in ``output`` has run, and append the sampled tokens.

        After:
        - the KV cache was told that the step has run (``kv_cache.finish_step``), even if no token was sampled or no
          request was planned
        - each request in ``output.requests`` whose id is in ``token_ids`` has that token as its last output token
          (``append_output_token``)
        - the other requests got no token: they are in the middle of their prompts
        - tokens went to the objects in ``output.requests``, never to ``self.requests[id]``: that id may belong to
          another request by now

        Example: with ``{"a": 0}``, a gets the token 0, even if a was aborted while the step ran. b gets none.
        """
        raise NotImplementedError("Task 3: Scheduler.update_from_output")

    # ---- Task 4: admission

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit requests from the front of the queue, as long as a request waits and budget is left.

        Admit the first request in the queue if ``_admit`` gives it tokens and there are enough seats: its
        ``num_sequences`` and the ``num_sequences`` of all running requests together are at most ``max_num_seqs``.

        After:
        - an admitted request has left the queue, and is the last in ``running``
        - ``step.plan`` maps its id to the number of tokens that it computes; ``step.budget`` is smaller by that number
        - a request that was not admitted stays where it is, and so do all requests behind it: no request is passed over

        Example: there are 4 seats, and a and b run. A request with 3 samples waits until a or b has ended. A small
        request behind it also waits.
        """
        raise NotImplementedError("Task 4: Scheduler._schedule_waiting")

    def _admit(self, request: Request, step: _Step) -> int:
        """Adopt the cached prefix of ``request``, and allocate slots for as many more tokens as ``step.budget`` allows.

        In Task 4 there is room unless ``allocate_slots`` returns None; that call also adopts the hits. In Task 5,
        ``_has_room`` must also be true. If it is not, and the hit ends inside a block, try once more without that last
        block: it would have to be copied, and its tokens can be computed instead.

        After:
        - ``num_computed_tokens`` and ``num_cached_tokens`` of the request are the number of cached tokens that were
          adopted (``_complete`` adds the tokens that it computes)
        - its status is RUNNING
        - ``step``, the queue and ``running`` have not changed: the caller updates them
        Returns:
        - the number of tokens that the request computes now, without the cached ones
        - 0 if there is no room, neither with all hits nor without a last hit that would have to be copied; then nothing
          has changed, not even the order of the free blocks

        Example: 13 of 16 tokens are cached, in 4 blocks of 4. A pool of 5 blocks has room for a copy of the fourth, so
        3 tokens are computed. A pool of 4 blocks has no room for it: the fourth is given up, and 4 tokens are computed.
        """
        raise NotImplementedError("Task 4: Scheduler._admit")

    # ---- Task 5: room for a whole request

    def _num_promised_blocks(self) -> int:
        """Return the number of blocks that the running requests still need for the tokens that they have.

        For each of them: the number of blocks for its ``num_tokens`` tokens, minus the number of blocks in its block
        table (``kv_cache.get_block_ids``). If the table has more blocks than the tokens need, the request needs 0
        blocks, not a negative number.
        """
        raise NotImplementedError("Task 5: Scheduler._num_promised_blocks")

    def _has_room(self, request: Request, hits: list[KVCacheBlock], num_cached: int) -> bool:
        """Return whether *all* tokens of a waiting request fit, even if the next step would compute only a few of them.

        Its new blocks: the number of blocks for all its ``num_tokens`` tokens, minus one per hit, plus one if
        ``num_cached`` ends inside a block, because the last hit is copied before it is written into. (Count blocks, not
        uncached tokens: these may begin inside a block.)
        The free blocks: a hit in the free queue (``ref_cnt`` 0) is about to leave it, so it does not count as free.

        Returns:
        - whether its new blocks, ``_num_promised_blocks`` and ``_num_blocks_set_aside`` together are at most the number
          of free blocks

        Example: 13 of 17 tokens are cached, in 4 blocks of 4. The last 4 tokens need 5 - 4 + 1 = 2 new blocks.
        """
        raise NotImplementedError("Task 5: Scheduler._has_room")

    def _num_blocks_set_aside(self, request: Request) -> int:
        """Return the number of blocks that admission must leave free. Given.

        These are a few blocks for running requests to grow into (the watermark), and one for each further sequence of
        ``request``, because each sequence starts by copying the last block of the prompt. The number is 0 while no
        request runs: a request that is alone may use the whole pool.
        """
        return self.num_watermark_blocks + request.num_sequences - 1 if self.running else 0
