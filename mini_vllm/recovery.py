"""When a step breaks: who is to blame, and what may still be trusted.

A step writes the K/V of all its requests at once, and full blocks are findable from the moment it was planned. So when
it breaks, nothing that it was to write is known to be there:

    a step of A, B, C and D breaks; D shares a block that B was to write

    A alone: fine    its token counts
    B alone: fails   it ends with the error; its blocks are taken out of the index, and emptied
    C alone: fine    its token counts
    D                is not even tried: it is preempted, and computes again what it needs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mini_vllm.attention import PagedKVCache
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, RequestStatus, TokenLogprob
from mini_vllm.scheduler import Scheduler, SchedulerOutput

#: Of the requests of a step: next tokens, and their log-probabilities where asked for.
Tokens = tuple[dict[str, int], dict[str, TokenLogprob]]


class Recovery:
    def __init__(self, scheduler: Scheduler, kv_cache: KVCacheManager, cache: PagedKVCache) -> None:
        self.scheduler, self.kv_cache, self.cache = scheduler, kv_cache, cache

    def compute_apart(self, plan: SchedulerOutput, error: Exception, compute: Callable[[SchedulerOutput], Tokens]
                      ) -> tuple[dict[str, int], dict[str, TokenLogprob], dict[str, Exception]]:
        """The step raised ``error``. Compute its requests one by one, in the order of admission: who shares a block
        that another was to write in this step comes after it. Returns tokens, log-probabilities, and the errors of
        those that fail.
        """
        token_ids: dict[str, int] = {}
        logprobs: dict[str, TokenLogprob] = {}
        errors: dict[str, Exception] = {}
        misled: list[Request] = []
        unwritten: set[int] = set()
        self.cache.copy_blocks(plan.copies)
        for request in sorted(plan.requests, key=self.scheduler.running.index):
            request_id = request.request_id
            num_new = plan.num_scheduled_tokens[request_id]
            if unwritten.intersection(self.kv_cache.get_block_ids(request_id)):
                misled.append(request)
            elif len(plan.requests) == 1:
                errors[request_id] = error
            else:
                try:
                    new_ids, new_logprobs = compute(SchedulerOutput({request_id: num_new}, [request]))
                    token_ids.update(new_ids)
                    logprobs.update(new_logprobs)
                    continue
                except Exception as own_error:
                    errors[request_id] = own_error
            unwritten.update(self._take_back(request, num_new))
        self._forget_unwritten(plan, unwritten)
        for request in reversed(misled):
            self.scheduler.preempt(request)
        self.discard(unwritten)
        plan.preempted.extend(misled)
        return token_ids, logprobs, errors

    def undo(self, plan: SchedulerOutput) -> None:
        """The step was cut off, or so was ``compute_apart``: nothing of it counts, and its requests wait to be computed
        again."""
        unwritten = {destination for _, destination in plan.copies}
        running = [request for request in plan.requests if request.status is RequestStatus.RUNNING]
        for request in running:
            unwritten.update(self._take_back(request, plan.num_scheduled_tokens[request.request_id]))
        self._forget_unwritten(plan, unwritten)
        for request in reversed(running):
            self.scheduler.preempt(request)
        self.discard(unwritten)

    def discard(self, block_ids: Iterable[int]) -> None:
        """What these blocks hold is not trusted. Those that nobody holds any more are not found again, and no trace of
        it, such as K/V that are not numbers, is left in them for their next owner."""
        pool = self.kv_cache.block_pool
        given_back = [block_id for block_id in sorted(block_ids) if pool.blocks[block_id].ref_cnt == 0]
        pool.evict_blocks(given_back)
        self.cache.clear_blocks(given_back)

    def _take_back(self, request: Request, num_new: int) -> list[int]:
        """These tokens do not count as computed; returns the blocks that they were to be written into (and more, if
        they are taken back twice)."""
        request.num_computed_tokens = max(request.num_computed_tokens - num_new, 0)
        first = request.num_computed_tokens // self.kv_cache.block_size
        return self.kv_cache.get_block_ids(request.request_id)[first:]

    def _forget_unwritten(self, plan: SchedulerOutput, unwritten: set[int]) -> None:
        """These blocks do not hold what the step was to write: they are not findable, and nobody counts on them."""
        self.kv_cache.block_pool.evict_blocks(unwritten)
        self.kv_cache.finish_step()
        for request in plan.requests:
            table = self.kv_cache.get_block_ids(request.request_id)
            num_good = next((i for i, block_id in enumerate(table) if block_id in unwritten), len(table))
            request.num_computed_tokens = min(request.num_computed_tokens, num_good * self.kv_cache.block_size)
