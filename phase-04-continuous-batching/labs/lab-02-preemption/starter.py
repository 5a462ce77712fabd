"""The scheduler when memory runs out: which request is preempted, what it keeps, and how it resumes.

It extends the scheduler of lab 4.1 and contains only what is new or different. The base class still decides how
requests arrive and end (``add_request``, ``abort_request``, ``finish``, ``fork``), what happens after a step
(``update_from_output``), how a request is admitted, and whether there is room for it. The rules of lab 4.1 about
limits, running before waiting, chunks, admission and abort still hold. The new rules:

 1. **Preemption.** If a running request needs a block and none is free, the running request that would be served last
    is preempted: the one with the largest ``waiting.order``, which combines priority and age; if several are equal, the
    one admitted last. It may be the request that needs the block. The preempted request loses its blocks and keeps its
    output. None of its tokens count as computed, and it waits in front of requests with the same order. Tokens that it
    was given in this step return to the budget, for the requests that are planned later in this step: the request that
    needed the block still computes only as many tokens as it asked for.
 2. A step that preempts a request admits none.
 3. **Resuming.** A preempted request is admitted like any other. It computes all its tokens again, prompt and output,
    except those that are still in the prefix cache.
 4. **A request that cannot fit** ends at once. A prompt larger than the pool was refused when it arrived. A request
    that has grown until the whole pool cannot hold it ends as FINISHED_KV_CACHE_FULL and keeps its output. No request
    is preempted for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from course.base import lab_4_1 as base
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, RequestStatus
from mini_vllm.request_queue import PriorityQueueWithAging

WATERMARK = base.WATERMARK
#: The plan of one step. In this lab its ``preempted`` and ``finished`` may contain requests.
SchedulerOutput = base.SchedulerOutput


@dataclass
class _Step(base._Step):
    """A step while it is being planned: ``budget`` and ``plan`` as in lab 4.1, and two more lists. Given."""

    #: Requests that were preempted in this step, in the order of their preemption.
    preempted: list[Request] = field(default_factory=list)
    #: Requests that outgrew the pool in this step.
    finished: list[Request] = field(default_factory=list)


class Scheduler(base.Scheduler):
    """The scheduler of lab 4.1, extended: it preempts requests when memory runs out.

    A preempted request is in ``waiting`` and in ``requests``, but not in ``running``, and holds no blocks.
    """

    def __init__(self, kv_cache: KVCacheManager, max_num_seqs: int = 64, max_num_batched_tokens: int = 1024,
                 queue: PriorityQueueWithAging | None = None, watermark: float = WATERMARK) -> None:
        """Check the settings and start without requests. Given."""
        super().__init__(kv_cache, max_num_seqs, max_num_batched_tokens, queue, watermark)
        #: The number of preemptions, over all requests.
        self.num_preemptions = 0

    def _has_outgrown(self, num_tokens: int) -> bool:
        """Return whether ``num_tokens`` tokens are more than the whole pool can hold. Given."""
        return self._num_blocks_for(num_tokens) > self.num_blocks

    # ---- Task 1: a step

    def schedule(self) -> SchedulerOutput:
        """Plan a step: allocate slots, adopt prefix hits, and advance ``num_computed_tokens``.

        Task 1: add the two missing calls; the rest is given. Plan the running requests first (``_schedule_running``),
        then admit waiting ones (``_schedule_waiting``). Both calls fill ``step``. A step that preempted a request
        (``step.preempted``) admits none: the freed blocks are for running requests, and the preempted request would be
        admitted again at once.
        """
        step = _Step(budget=self.max_num_batched_tokens)
        raise NotImplementedError("Task 1: Scheduler.schedule")
        return replace(self._complete(step), preempted=step.preempted, finished=step.finished)

    def _schedule_running(self, step: _Step) -> None:
        """Give the running requests their tokens. A request that finds no room may get it from another request.

        Two things are new. If ``allocate_slots`` returns None (an empty list means that there is room), ask
        ``_make_room``, which returns whether the request has slots after all. And ``_make_room`` changes ``running``,
        and may return tokens to ``step.budget``.

        After:
        - as in lab 4.1, requests with one token to go were served before all others; apart from that, in the order of
          ``running``
        - each request got all its tokens to go, or as many as were left in ``step.budget``, and has slots for them
        - ``step.plan`` maps its id to the number of tokens that it computes; ``step.budget`` is smaller by that number
        - a request that got nothing is not in the plan, and the requests behind it are still served
        - a request that was preempted earlier in this step no longer runs (``request.status``): it is skipped
        - a request for which room was made computes as many tokens as it asked for, and no more; tokens that returned
          to the budget are for the requests after it

        Example: the budget is 6. x and low are given 1 token each, and long asks for 4. low is preempted, and its token
        returns to the budget. The plan is x: 1, long: 4.
        """
        raise NotImplementedError("Task 1: Scheduler._schedule_running")

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit requests from the front of the queue, as in lab 4.1. Given.

        One case is new. A request may have been preempted when it had more tokens than the pool has slots. The base
        stops at this request, as at any request that finds no room. But this request will never find room. So it ends
        (``_end_outgrown``) instead of blocking the queue forever, and the requests behind it get their turn.
        """
        super()._schedule_waiting(step)
        while len(self.waiting) and step.budget and self._has_outgrown(self.waiting.peek().num_tokens):
            self._end_outgrown(self.waiting.peek(), step)
            super()._schedule_waiting(step)

    def _admit(self, request: Request, step: _Step) -> int:
        """Admit a new request as in lab 4.1; ``_resume`` a preempted one (Task 2). Given."""
        if request.status is RequestStatus.PREEMPTED:
            return self._resume(request, step)
        return super()._admit(request, step)

    # ---- Task 2: preempt and resume

    def preempt(self, request: Request) -> None:
        """Take all blocks from a running request. The request waits again and keeps its output.

        After:
        - the request is not in ``running``, but in ``waiting``, in front of requests with the same order; its arrival
          time has not changed (``waiting.requeue``)
        - it holds no block (``kv_cache.free``), and none of its tokens count as computed (``num_computed_tokens`` is 0)
        - its computed tokens can be found again in the prefix cache, even those in its half-filled last block:
          ``kv_cache.free`` reads ``num_computed_tokens`` to know how many they are
        - its status is PREEMPTED
        - its own ``num_preemptions`` and the scheduler's have grown by one
        - ``output_token_ids``, ``all_token_ids``, ``num_cached_tokens`` and ``requests`` have not changed

        Example: a has 10 tokens, 3 of them output; 9 are computed, in 3 blocks. After ``preempt(a)`` a holds no block,
        0 tokens are computed, and a still has its 10 tokens.
        """
        raise NotImplementedError("Task 2: Scheduler.preempt")

    def _resume(self, request: Request, step: _Step) -> int:
        """Admit a preempted request as the base admits any other (``super()._admit``).

        The base sets ``num_cached_tokens`` to the number of tokens that it finds in the cache. But most of the tokens
        found now were computed by this request itself, before it was preempted.

        After:
        - ``num_cached_tokens``, which usage reports, is what it was before, even if that was 0
        - everything else is as the base left it: the tokens that were found count as computed, and the request runs
        - if there was no room, nothing has changed
        Returns:
        - the base's result: the number of tokens that the request computes now, or 0 if there was no room

        Example: b found 8 cached tokens when it arrived. It is preempted with 18 tokens, comes back and finds 16. Then
        ``num_computed_tokens`` is 16, ``num_cached_tokens`` is still 8, and the result is 2.
        """
        raise NotImplementedError("Task 2: Scheduler._resume")

    # ---- Task 3: choose a victim and make room

    def _choose_victim(self) -> Request:
        """Return the running request that would be served last; if several are equal, the one that was admitted last.

        ``waiting.order(request)`` works for waiting and running requests. It combines priority, age and arrival: of two
        requests, the one with the smaller order is served first. This method changes nothing.
        """
        raise NotImplementedError("Task 3: Scheduler._choose_victim")

    def _make_room(self, request: Request, num_new_tokens: int, step: _Step) -> bool:
        """Make slots for the next ``num_new_tokens`` tokens of ``request``, after ``allocate_slots`` returned None.

        Preempt one victim after the other (``_choose_victim``, ``preempt``), until ``allocate_slots`` returns slots. An
        empty list is not None: if a victim shared a block with ``request``, the block now belongs to ``request`` alone,
        which then needs no new one.

        Before:
        - ``request`` runs; when it was admitted, the whole pool could hold it
        After:
        - all victims are in ``step.preempted``, in the order in which they were preempted; there are no more than
          needed
        - Task 4: a victim that was in ``step.plan`` was taken back (``_take_back``) *before* it was preempted
        - Task 5: if the whole pool can no longer hold the ``num_tokens`` tokens of ``request`` (``_has_outgrown``), no
          request was preempted, and ``request`` has ended (``_end_outgrown``); ``num_tokens`` includes the new tokens
        Returns:
        - True if ``request`` has slots for its new tokens
        - False if ``request`` itself was a victim: it is preempted like any other request, and needs no room then
        - False if ``request`` has ended

        Example: high needs 2 blocks; low 1 and low 2 hold one each. low 2 is preempted, then low 1: high has its slots.
        """
        raise NotImplementedError("Task 3: Scheduler._make_room")

    # ---- Task 4: a victim that was already planned

    def _take_back(self, victim: Request, step: _Step) -> None:
        """Undo the plan for ``victim``, which was given tokens earlier in this step. It still holds its blocks.

        Full blocks are in the index of the prefix cache as soon as their slots are allocated, because a step writes
        before it reads. This victim will not write its new blocks. A request that found them in the index would read
        the old content of another request.

        After:
        - the victim is not in the plan
        - its tokens are in the budget again, for the requests that are planned later
        - the blocks that it was to write in this step are not in the index (``kv_cache.block_pool.evict_blocks``, by
          block id): these are all blocks of its table, starting with the block of position ``num_computed_tokens``
        - the blocks before them stay in the index

        Example: blocks of 4, 6 tokens computed, 8 planned. Blocks 1, 2 and 3 of its table are evicted; block 0 stays.
        """
        raise NotImplementedError("Task 4: Scheduler._take_back")

    # ---- Task 5: a request that cannot fit

    def _end_outgrown(self, request: Request, step: _Step) -> None:
        """End a request that has outgrown the whole pool. It may run, or wait after a preemption.

        After:
        - the request has ended as FINISHED_KV_CACHE_FULL, and holds no blocks
        - its output has not changed
        - it is in ``step.finished``, so that its caller is told, whether it ran or waited

        Example: the pool has 5 blocks of 4 tokens, and a request has 21 tokens. It ends and keeps its output so far.
        """
        raise NotImplementedError("Task 5: Scheduler._end_outgrown")
