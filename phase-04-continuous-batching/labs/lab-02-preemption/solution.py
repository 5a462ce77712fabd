"""The scheduler when memory runs out: which request gives way, what it keeps, and how it comes back.

It extends the scheduler of lab 4.1, and contains only what is new or different. How requests arrive and end
(``add_request``, ``abort_request``, ``finish``, ``fork``), what happens after a step (``update_from_output``), how a
request is admitted and whether there is room for it: all of that is the base's. So are its rules, about limits, running
before waiting, chunks, admission and abort. The new rules:

 1. **Preemption.** If a running request needs a block and there is none, the one that would be served last gives way:
    the one with the largest ``waiting.order``, which is priority and age together; of equals the one admitted last. It
    may be the one that asks. Its blocks go, its output stays, nothing of it counts as computed, and it waits in front
    of its equals. Tokens that it was given in this step return to the budget. They are for the requests that come
    after: the one that asked computes as many as it asked for.
 2. A step that preempted admits no request.
 3. **Resuming.** A preempted request is admitted like any other. All its tokens, prompt and output, are to be computed,
    except what the prefix cache still has of them.
 4. **What cannot fit** ends at once: a prompt larger than the pool was refused when it arrived, and a request that has
    grown until the whole pool could not hold it ends as FINISHED_KV_CACHE_FULL, with its output. No request is
    preempted for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from course.base import lab_4_1 as base
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, RequestStatus
from mini_vllm.request_queue import PriorityQueueWithAging

WATERMARK = base.WATERMARK
#: The plan of one step. From now on its ``preempted`` and ``finished`` are not always empty.
SchedulerOutput = base.SchedulerOutput


@dataclass
class _Step(base._Step):
    """A step while it is being planned: ``budget`` and ``plan``, as in lab 4.1, and which requests had to go. Given."""

    #: Requests that lost their blocks in this step, in that order.
    preempted: list[Request] = field(default_factory=list)
    #: Requests that outgrew the pool in this step.
    finished: list[Request] = field(default_factory=list)


class Scheduler(base.Scheduler):
    """The scheduler of lab 4.1, which takes memory back when it runs out.

    A preempted request waits: it is in ``waiting`` and in ``requests``, not in ``running``, and holds no blocks.
    """

    def __init__(self, kv_cache: KVCacheManager, max_num_seqs: int = 64, max_num_batched_tokens: int = 1024,
                 queue: PriorityQueueWithAging | None = None, watermark: float = WATERMARK) -> None:
        """Given."""
        super().__init__(kv_cache, max_num_seqs, max_num_batched_tokens, queue, watermark)
        #: How often a request lost its blocks, over all requests.
        self.num_preemptions = 0

    def _has_outgrown(self, num_tokens: int) -> bool:
        """Whether ``num_tokens`` tokens are more than the whole pool can hold. Given."""
        return self._num_blocks_for(num_tokens) > self.num_blocks

    # ---- Task 1: a step

    def schedule(self) -> SchedulerOutput:
        """Plan a step: slots are made, prefix hits adopted, and ``num_computed_tokens`` is what it will be after it.

        Task 1: make the two calls that are missing; the rest is given. Running requests are planned first
        (``_schedule_running``), then waiting ones are admitted (``_schedule_waiting``). Both fill ``step``. A step that
        preempted a request (``step.preempted``) admits none: the blocks that became free are for running requests, and
        the one that has just lost them would come straight back.
        """
        step = _Step(budget=self.max_num_batched_tokens)
        # TASK 1: Scheduler.schedule
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        # END TASK
        return replace(self._complete(step), preempted=step.preempted, finished=step.finished)

    def _schedule_running(self, step: _Step) -> None:
        """Give the running requests their tokens. One that finds no room may get it from another.

        Two things are new. A request that gets no slots (None; an empty list is room) does not just go without:
        ``_make_room`` says whether it has some after all. And ``_make_room`` changes ``running``, and may put tokens
        back into ``step.budget``.

        After:
        - as in lab 4.1, requests with one token to go were served before all others; apart from that, in the order of
          ``running``
        - each got all its tokens to go, or what was left of ``step.budget``, and has slots for them
        - ``step.plan`` says under its id how many tokens it computes, and they are taken off ``step.budget``
        - a request that got nothing is not in the plan, and those behind it are served all the same
        - a request that lost its blocks earlier in this step does not run any more (``request.status``): it is passed
          over
        - a request for which room was made computes as many tokens as it asked for, and no more; what came back into
          the budget is for those after it

        Example: the budget is 6. x and low are given 1 token each, and long asks for 4. low gives way, and its token
        comes back. The plan is x: 1, long: 4.
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

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit from the front of the queue, as in lab 4.1. Given.

        One case is new. A request may have been preempted when it had more tokens than the pool has slots. The base
        stops at it, as at any request that finds no room; but this one never will. So it ends (``_end_outgrown``)
        instead of blocking the queue for ever, and those behind it are looked at.
        """
        super()._schedule_waiting(step)
        while len(self.waiting) and step.budget and self._has_outgrown(self.waiting.peek().num_tokens):
            self._end_outgrown(self.waiting.peek(), step)
            super()._schedule_waiting(step)

    def _admit(self, request: Request, step: _Step) -> int:
        """As in lab 4.1; but a request that was preempted and comes back is ``_resume``d (Task 2). Given."""
        if request.status is RequestStatus.PREEMPTED:
            return self._resume(request, step)
        return super()._admit(request, step)

    # ---- Task 2: out, and in again

    def preempt(self, request: Request) -> None:
        """Take the blocks of a running request. It waits again, with its output.

        After:
        - it is not in ``running``, but in ``waiting``, in front of its equals and as old as before
          (``waiting.requeue``)
        - it holds no block (``kv_cache.free``), and nothing of it counts as computed (``num_computed_tokens`` is 0)
        - what was computed of it can be found again, its half-filled last block too: ``kv_cache.free`` reads
          ``num_computed_tokens`` to know how much that is
        - its status is PREEMPTED
        - its own ``num_preemptions`` and the scheduler's are one more
        - ``output_token_ids``, ``all_token_ids``, ``num_cached_tokens`` and ``requests`` are as they were

        Example: 9 of a's 10 tokens are computed, in 3 blocks; 3 of the 10 are output. After ``preempt(a)`` a holds no
        block, 0 tokens are computed, and a still has its 10 tokens.
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

    def _resume(self, request: Request, step: _Step) -> int:
        """Admit a preempted request as the base admits any other (``super()._admit``).

        The base writes into ``num_cached_tokens`` what it finds in the cache. But most of what is found now, the
        request computed itself, before it lost it.

        After:
        - ``num_cached_tokens``, which usage reports, is what it was before, even if that was 0
        - all else is as the base left it: what was found counts as computed, and the request runs
        - if there was no room, nothing has changed
        Returns:
        - the base's answer: the number of tokens that it computes now, or 0 if there was no room

        Example: b found 8 cached tokens when it arrived. It is preempted with 18 tokens, comes back and finds 16. Then
        ``num_computed_tokens`` is 16, ``num_cached_tokens`` is still 8, and the answer is 2.
        """
        # TASK 2: Scheduler._resume
        num_cached_tokens = request.num_cached_tokens
        num_new_tokens = super()._admit(request, step)
        request.num_cached_tokens = num_cached_tokens
        return num_new_tokens
        # END TASK

    # ---- Task 3: a request gives way

    def _choose_victim(self) -> Request:
        """The running request that would be served last; of equals the one that was admitted last.

        ``waiting.order(request)`` puts requests in order, running ones too: of two, the one with the smaller is served
        first. It knows priority, age and arrival. Nothing changes here.
        """
        # TASK 3: Scheduler._choose_victim
        return max(reversed(self.running), key=self.waiting.order)  # max keeps the first of equals
        # END TASK

    def _make_room(self, request: Request, num_new_tokens: int, step: _Step) -> bool:
        """Make slots for the next ``num_new_tokens`` tokens of ``request``, for which ``allocate_slots`` gave None.

        One victim after the other gives way (``_choose_victim``, ``preempt``), until ``allocate_slots`` gives slots. An
        empty list is not None: a victim that shared a block leaves it to ``request``, which then needs no new one.

        Before:
        - ``request`` runs; when it was admitted, the whole pool could hold it
        After:
        - all victims are in ``step.preempted``, in the order in which they gave way; there are no more than needed
        - Task 4: a victim that was in ``step.plan`` was taken back (``_take_back``) *before* it was preempted
        - Task 5: if the whole pool cannot hold the ``num_tokens`` tokens of ``request`` any more (``_has_outgrown``),
          no request gave way, and ``request`` has ended (``_end_outgrown``); the new tokens are among ``num_tokens``
        Returns:
        - True if ``request`` has slots for its new tokens
        - False if ``request`` itself was a victim: it gives way like any other, and has nothing to make room for then
        - False if ``request`` has ended

        Example: high needs 2 blocks; low 1 and low 2 hold one each. low 2 gives way, then low 1: high has its slots.
        """
        # TASK 3: Scheduler._make_room
        if self._has_outgrown(request.num_tokens):
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

        Full blocks are in the index from the moment their slots are made, because a step writes before it reads. This
        victim will not write. A request that found its blocks would read what another one left there.

        After:
        - it is not in the plan
        - its tokens are in the budget again, for the requests that come after
        - of the blocks that it was to write in this step, none is findable (``kv_cache.block_pool.evict_blocks``, by
          block id): they are all from that of position ``num_computed_tokens`` on
        - what lies before them stays findable

        Example: blocks of 4, 6 tokens computed, 8 planned. Blocks 1, 2 and 3 of its table are evicted; block 0 stays.
        """
        # TASK 4: Scheduler._take_back
        step.budget += step.plan.pop(victim.request_id)
        first = victim.num_computed_tokens // self.kv_cache.block_size
        self.kv_cache.block_pool.evict_blocks(self.kv_cache.get_block_ids(victim.request_id)[first:])
        # END TASK

    # ---- Task 5: what cannot fit

    def _end_outgrown(self, request: Request, step: _Step) -> None:
        """End a request that has grown until the whole pool could not hold it. It may run, or wait after a preemption.

        After:
        - it has ended as FINISHED_KV_CACHE_FULL, and holds no blocks
        - its output is as it was
        - it is in ``step.finished``, so that its caller is told, whether it ran or waited

        Example: 5 blocks of 4 tokens, and a request has 21 tokens. It ends with what it has said so far.
        """
        # TASK 5: Scheduler._end_outgrown
        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)
        step.finished.append(request)
        # END TASK
