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
from collections.abc import Callable
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
        checks = (
            (request.request_id in self.requests, "request_id", request.request_id, "an id that is not in use"),
            (request.num_sequences > self.max_num_seqs, "num_sequences", request.num_sequences,
             f"at most {self.max_num_seqs} (max_num_seqs)"),
            (self._num_blocks_for(request.num_tokens) > self.num_blocks, "num_tokens", request.num_tokens,
             f"at most {self.num_blocks} blocks of {self.kv_cache.block_size}, and needs "
             f"{self._num_blocks_for(request.num_tokens)}"),
        )
        for is_wrong, name, value, bound in checks:
            if is_wrong:
                raise ValueError(f"{name} is {value!r}, must be {bound}")
        self.waiting.put(request)
        self.requests = {**self.requests, request.request_id: request}

    def has_unfinished_requests(self) -> bool:
        """Whether anybody waits or runs."""
        return any((self.running, len(self.waiting)))

    # ---- Task 2: going

    def finish(self, request: Request, status: RequestStatus) -> None:
        """A request that waits or runs here ends here, with this status.

        One whose status is RUNNING runs. All others wait, whatever their status is called.
        After: it is neither in ``requests`` nor in ``running`` nor in ``waiting``. If it ran, its blocks have come home
        (``kv_cache.free``), and its seat is free. ``request.status`` is ``status``.
        """
        match request.status:
            case RequestStatus.RUNNING:
                self.running = [other for other in self.running if other is not request]
                self.kv_cache.free(request)
            case _:
                self.waiting.remove(request)
        self.requests = {key: other for key, other in self.requests.items() if other is not request}
        request.status = status

    def abort_request(self, request_id: str) -> Request | None:
        """Take a request out wherever it is, as FINISHED_ABORTED, and return it. None if it is nowhere."""
        try:
            request = self.requests[request_id]
        except KeyError:
            return None
        return self.finish(request, RequestStatus.FINISHED_ABORTED) or request

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
        step = _Step(self.max_num_batched_tokens, {})
        for phase, wanted in ((self._schedule_running, True), (self._schedule_waiting, len(self.waiting) > 0)):
            if wanted:
                phase(step)
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
        def to_go(request: Request) -> int:
            return request.num_tokens - request.num_computed_tokens

        single = tuple(request for request in self.running if to_go(request) == 1)
        several = tuple(request for request in self.running if to_go(request) > 1)
        for request in (*single, *several):
            if step.budget == 0:
                return
            num_new = to_go(request) if to_go(request) < step.budget else step.budget
            if self.kv_cache.allocate_slots(request, num_new) is not None:
                step.plan |= {request.request_id: num_new}
                step.budget = step.budget - num_new

    def _complete(self, step: _Step) -> SchedulerOutput:
        """The plan of ``step`` is complete: its requests move on, and the plan is returned as a SchedulerOutput.

        After: ``num_computed_tokens`` of each request in ``step.plan`` is larger by the tokens that it computes in this
        step. This happens here and nowhere else: until now slots were counted from the old number.

        Both ``num_scheduled_tokens`` and ``requests`` list those that compute one token before those that compute more,
        and leave them in the order of ``step.plan`` otherwise: the model runner wants it so. ``copies`` are the pairs
        (source's id, copy's id) of the blocks in ``kv_cache.block_pool.pending_copies``.
        """
        ones = [key for key, num_new in step.plan.items() if num_new == 1]
        more = [key for key, num_new in step.plan.items() if num_new != 1]
        by_id = {request.request_id: request for request in self.running}
        output = SchedulerOutput({key: step.plan[key] for key in ones + more}, [by_id[key] for key in ones + more])
        for request in output.requests:
            request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]
        output.copies.extend((pair[0].block_id, pair[1].block_id) for pair in self.kv_cache.block_pool.pending_copies)
        return output

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """The step that ``output`` planned has run.

        The KV cache is told so (``kv_cache.finish_step``). And each request of the step (``output.requests``) for which
        ``token_ids`` has a token, by its id, gets it as an output token (``request.append_output_token``), even if it
        was aborted in the meantime, and another has come under its id. The others are in the middle of their prompt:
        nothing was sampled for them.
        """
        missing = object()
        for request in output.requests:
            token_id = token_ids.get(request.request_id, missing)
            if token_id is not missing:
                request.append_output_token(token_id)
        self.kv_cache.finish_step()

    # ---- Task 4: admission

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit from the front of the queue, while somebody waits and there is budget.

        Seats: the ``num_sequences`` of all that run, and of the one to be admitted, are at most ``max_num_seqs``
        together. If there are seats for the first in the queue, and ``_admit`` gives it tokens, it leaves the queue,
        joins the end of ``running``, ``step.plan`` says how many tokens it computes, and they are taken off
        ``step.budget``. If not, it stays where it is, and so do all behind it: nobody is passed over.
        """
        if step.budget == 0 or not len(self.waiting):
            return
        first = self.waiting.peek()
        if sum(request.num_sequences for request in [*self.running, first]) > self.max_num_seqs:
            return
        num_new = self._admit(first, step)
        if num_new:
            self.waiting.remove(first)
            self.running = [*self.running, first]
            step.plan[first.request_id] = num_new
            step.budget -= num_new
            self._schedule_waiting(step)

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
        block_size = self.kv_cache.block_size
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        num_whole = num_cached // block_size
        tries = [(hits, num_cached)]
        if num_cached > num_whole * block_size:
            tries.append((hits[:num_whole], num_whole * block_size))
        for hits, num_cached in tries:
            if self._has_room(request, hits, num_cached):
                num_new = min(step.budget, request.num_tokens - num_cached)
                if self.kv_cache.allocate_slots(request, num_new, hits, num_cached) is not None:
                    request.num_computed_tokens = request.num_cached_tokens = num_cached
                    request.status = RequestStatus.RUNNING
                    return num_new
        return 0

    # ---- Task 5: room for all of it

    def _num_promised_blocks(self) -> int:
        """Blocks that the running requests still need for the tokens that they have.

        For each: the blocks for its ``num_tokens`` tokens, less those in its table (``kv_cache.get_block_ids``). A
        table may be longer than that; then it needs none, and not fewer than none.
        """
        missing = (self._num_blocks_for(request.num_tokens) - len(self.kv_cache.get_block_ids(request.request_id))
                   for request in self.running)
        return sum(filter(lambda number: number > 0, missing))

    def _has_room(self, request: Request, hits: list[KVCacheBlock], num_cached: int) -> bool:
        """Whether *all* tokens of a waiting request fit, however few of them the next step would compute.

        It needs the blocks of all its ``num_tokens`` tokens, less one for each hit; and one more if ``num_cached`` ends
        inside a block, because the last hit is copied before it is written into. (Count blocks, not tokens that are not
        cached: these need not begin where a block begins.) Beside these there must be room for
        ``_num_promised_blocks`` and for ``_num_blocks_set_aside``.
        Room is what is free in the pool. A hit that stands in the free queue (``ref_cnt`` 0) is about to leave it, so
        it is no room.
        """
        room = self.kv_cache.block_pool.get_num_free_blocks()
        room -= self._num_promised_blocks()
        room -= self._num_blocks_set_aside(request)
        room -= self._num_blocks_for(request.num_tokens)
        room -= bool(num_cached % self.kv_cache.block_size)
        for block in hits:
            room += block.ref_cnt > 0
        return room >= 0

    def _num_blocks_set_aside(self, request: Request) -> int:
        """Blocks that admission leaves alone. Given.

        A few for running ones to grow into (the watermark), and one for each further sequence of ``request``, which
        begins by copying the last block of the prompt. None while nobody runs: who is alone may have the whole pool.
        """
        return self.num_watermark_blocks + request.num_sequences - 1 if self.running else 0
