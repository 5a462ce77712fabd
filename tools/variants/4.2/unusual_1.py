"""The scheduler when memory runs out: who gives way, what it keeps, and how it comes back.

It extends the scheduler of lab 4.1, and has only what is new or different. What comes and goes (``add_request``,
``abort_request``, ``finish``, ``fork``), what happens after a step (``update_from_output``), how a request is admitted
and whether there is room for it: all of that is the base's. So are its rules, about limits, running before waiting,
chunks, admission and abort. The new rules:

 1. **Preemption.** If a running request needs a block and there is none, the one that would be served last gives way:
    the one with the largest ``waiting.order``, which is priority and age together; of equals the one admitted last. It
    may be the one that asks. Its blocks go, its output stays, nothing of it counts as computed, and it waits in front
    of its equals. Tokens that it was given in this step return to the budget.
 2. A step that preempted admits nobody.
 3. **Resuming.** A preempted request is admitted like any other. All its tokens, prompt and output, are to be computed,
    except what the prefix cache still has of them.
 4. **What cannot fit** ends at once: a prompt larger than the pool was refused when it came, and a request that has
    grown until the whole pool could not hold it ends as FINISHED_KV_CACHE_FULL, with its output. Nobody is preempted
    for it.
"""

from __future__ import annotations

from collections import deque
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
    """A step while it is being planned: ``budget`` and ``plan``, as in lab 4.1, and who had to go. Given."""

    #: Those that lost their blocks in this step, in that order.
    preempted: list[Request] = field(default_factory=list)
    #: Those that outgrew the pool in this step.
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

        Task 1: make the two calls that are missing; the rest is given. Those who run are planned first
        (``_schedule_running``), then those who wait are admitted (``_schedule_waiting``). Both fill ``step``. A step
        that preempted somebody (``step.preempted``) admits nobody: the blocks that became free are for those who run,
        and the one that has just lost them would come straight back.
        """
        step = _Step(budget=self.max_num_batched_tokens)
        for phase in (self._schedule_running, self._schedule_waiting):
            if not step.preempted:
                phase(step)
        return replace(self._complete(step), preempted=step.preempted, finished=step.finished)

    def _schedule_running(self, step: _Step) -> None:
        """Give the running ones their tokens.

        As in lab 4.1: in the order of ``running``, but those with one token to go before all others, each gets all its
        tokens to go, or what ``step.budget`` leaves, and slots for them (``kv_cache.allocate_slots``); then
        ``step.plan`` says how many, and they are taken off ``step.budget``. Who gets nothing is not in the plan, and
        those behind it are served all the same.
        Two things are new. Who gets no slots (None; an empty list is room) does not just go without: ``_make_room``
        says whether it has some after all. And one that lost its blocks to somebody earlier in this step does not run
        any more (``request.status``): it is passed over.
        ``_make_room`` changes ``running``, and may put tokens back into ``step.budget``. They are for those who come
        after: who asked for room has slots for as many tokens as it asked for, and computes no more.
        """
        queue = deque(request for request in self.running if request.num_tokens - request.num_computed_tokens == 1)
        queue.extend(request for request in self.running if request.num_tokens - request.num_computed_tokens != 1)
        while queue:
            request = queue.popleft()
            num_new = min(request.num_tokens - request.num_computed_tokens, step.budget)
            if request.status is RequestStatus.RUNNING and num_new > 0:
                if (self.kv_cache.allocate_slots(request, num_new) is not None
                        or self._make_room(request, num_new, step)):
                    step.plan[request.request_id] = num_new
                    step.budget -= num_new

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit from the front of the queue, as in lab 4.1. Given.

        One case is new. A request may have been preempted when it had more tokens than the pool has slots. The base
        stops at it, as at any that finds no room; but this one never will. So it ends (``_end_outgrown``), instead of
        standing in front of all others for ever, and those behind it are looked at.
        """
        super()._schedule_waiting(step)
        while len(self.waiting) and step.budget and self._has_outgrown(self.waiting.peek().num_tokens):
            self._end_outgrown(self.waiting.peek(), step)
            super()._schedule_waiting(step)

    def _admit(self, request: Request, step: _Step) -> int:
        """As in lab 4.1; but one that was preempted and comes back is ``_resume``d (Task 2). Given."""
        if request.status is RequestStatus.PREEMPTED:
            return self._resume(request, step)
        return super()._admit(request, step)

    # ---- Task 2: out, and in again

    def preempt(self, request: Request) -> None:
        """Take the blocks of a running request. It waits again, with its output.

        After: it is not in ``running``, but in ``waiting``, in front of its equals and as old as before
        (``waiting.requeue``). It holds no block (``kv_cache.free``), so nothing of it counts as computed
        (``num_computed_tokens`` is 0). Its status is PREEMPTED. Its own ``num_preemptions`` and the scheduler's are one
        more. ``output_token_ids``, ``all_token_ids``, ``num_cached_tokens`` and ``requests`` are as they were.

        ``kv_cache.free`` reads ``num_computed_tokens``: that much of the last block is worth finding again.
        """
        request.status = RequestStatus.PREEMPTED
        self.waiting.requeue(request)
        self.kv_cache.free(request)
        request.num_computed_tokens = 0
        self.running = [other for other in self.running if other is not request]
        for counter in (self, request):
            counter.num_preemptions += 1

    def _resume(self, request: Request, step: _Step) -> int:
        """Admit a preempted request like any other: as the base does (``super()._admit``), and with its answer.

        After: ``num_cached_tokens``, which goes on the bill, is what it was before. The base writes there what it finds
        in the cache; but most of what is found now, the request computed itself, before it lost it. All else is as the
        base left it: what was found counts as computed, and the request runs. If there was no room (0), nothing has
        changed.
        """
        bill = request.num_cached_tokens
        try:
            return super()._admit(request, step)
        finally:
            request.num_cached_tokens = bill

    # ---- Task 3: somebody gives way

    def _choose_victim(self) -> Request:
        """The running request that would be served last; of equals the one that was admitted last.

        ``waiting.order(request)`` puts requests in order, those that run too: of two, the one with the smaller is
        served first. It knows priority, age and arrival. Nothing changes here.
        """
        return max(reversed(self.running), key=self.waiting.order)

    def _make_room(self, request: Request, num_new_tokens: int, step: _Step) -> bool:
        """Slots for the next ``num_new_tokens`` tokens of a running request, for which ``allocate_slots`` gave None.

        Preempt one victim after the other, until ``allocate_slots`` gives slots: return True then. (An empty list is
        not None: a victim that shared a block leaves it to ``request``, which needs no new one then.) The victim may be
        ``request`` itself; it gives way like any other, and there is nobody left to make room for: return False. All
        victims are in ``step.preempted``, in that order.

        Task 4: a victim that is in ``step.plan`` already is taken back (``_take_back``) *before* it is preempted.
        Task 5: if the whole pool could not hold the ``num_tokens`` tokens of ``request`` (``_has_outgrown``), nobody
        gives way: ``_end_outgrown``, and return False. The new ones are not added: they are among ``num_tokens``.
        """
        if self._has_outgrown(request.num_tokens):
            return bool(self._end_outgrown(request, step))
        victim = None
        slots = None
        while slots is None and victim is not request:
            victim = self._choose_victim()
            if victim.request_id in step.plan:
                self._take_back(victim, step)
            step.preempted += [victim]
            self.preempt(victim)
            if victim is not request:
                slots = self.kv_cache.allocate_slots(request, num_new_tokens)
        return slots is not None

    # ---- Task 4: a victim that was planned already

    def _take_back(self, victim: Request, step: _Step) -> None:
        """``victim`` was given tokens earlier in this step, and is about to lose its blocks. It still holds them.

        After: it is not in the plan, and its tokens are in the budget again, for those who come after. And the blocks
        that it was to write in this step are not findable (``kv_cache.block_pool.evict_blocks``, by block id). Those
        are the blocks from that of position ``num_computed_tokens`` on. What lies before them stays findable.

        Full blocks are in the index from the moment their slots are made, because a step writes before it reads. This
        victim will not write. Whoever found its blocks would read what somebody else left there.
        """
        size = self.kv_cache.block_size
        written_from = victim.num_computed_tokens - victim.num_computed_tokens % size
        unwritten = [block_id for index, block_id in enumerate(self.kv_cache.get_block_ids(victim.request_id))
                     if index * size >= written_from]
        self.kv_cache.block_pool.evict_blocks(unwritten)
        step.budget += step.plan[victim.request_id]
        del step.plan[victim.request_id]

    # ---- Task 5: what cannot fit

    def _end_outgrown(self, request: Request, step: _Step) -> None:
        """A request has grown until the whole pool could not hold it. It may run, or wait after a preemption.

        After: it has ended as FINISHED_KV_CACHE_FULL, its blocks have come home, its output is as it was, and it is in
        ``step.finished``, so that whoever waits for it is told.
        """
        step.finished += [request]
        self.finish(request, RequestStatus.FINISHED_KV_CACHE_FULL)
