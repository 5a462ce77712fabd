"""Recovery from a failed step: which request caused it, and which blocks can still be trusted.

A step writes the K/V of all its requests at once, and full blocks are findable from the moment it is planned. So when a
step fails, none of the K/V that it was to write is known to be there:

    a step of A, B, C and D fails; D shares a block that B was to write

    A alone: works   its token counts
    B alone: fails   it ends with the error; those of its blocks that no other request holds are removed from the
                     index and cleared
    C alone: works   its token counts
    D                is not tried: it is preempted, and computes what it needs again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from mini_vllm.attention import PagedKVCache, slot_mapping, token_positions
from mini_vllm.engine_frame import discard_blocks
from mini_vllm.executor import StepResult
from mini_vllm.lookahead import LookAhead
from mini_vllm.parts import KVCacheManagerPart, SchedulerPart
from mini_vllm.request import Request
from mini_vllm.scheduler import SchedulerOutput

Compute = Callable[[SchedulerOutput], StepResult]


class Recovery:
    """Computes steps, and cleans up after those that fail."""

    def __init__(self, scheduler: SchedulerPart, kv_cache: KVCacheManagerPart, cache: PagedKVCache,
                 lookahead: LookAhead) -> None:
        self.scheduler, self.kv_cache, self.cache, self.lookahead = scheduler, kv_cache, cache, lookahead

    def compute(self, plan: SchedulerOutput, compute: Compute) -> StepResult:
        """Run ``compute(plan)``. If it fails, compute each request alone.

        Requests that also fail alone are in ``errors``; the others continue.
        """
        try:
            return compute(plan)
        except Exception as error:
            result = self.compute_apart(plan, error, compute)
            self.lookahead.drop()
            return result

    def compute_apart(self, plan: SchedulerOutput, error: Exception, compute: Compute) -> StepResult:
        """Compute the requests of a step that raised ``error`` one by one, in the order of admission.

        In that order, a request that shares a block follows the request that was to write it in this step. Drafts are
        not computed again: a wrong guess may be what failed.
        """
        result = StepResult()
        misled: list[Request] = []
        unwritten: set[int] = set()
        self.cache.copy_blocks(plan.copies)
        self._clear_drafts(plan)
        for request in sorted(plan.requests, key=self.scheduler.running.index):
            num_new = plan.num_scheduled_tokens[request.request_id]
            if unwritten.intersection(self.kv_cache.get_block_ids(request.request_id)):
                misled.append(request)
            elif len(plan.requests) == 1 and not plan.drafts:
                result.errors[request.request_id] = error
            else:
                try:
                    result.update(compute(SchedulerOutput({request.request_id: num_new}, [request])))
                    continue
                except Exception as own_error:
                    result.errors[request.request_id] = own_error
            request.num_computed_tokens = max(request.num_computed_tokens - num_new, 0)
            unwritten.update(self.kv_cache.forget_unwritten(request))
        self.kv_cache.finish_step()
        for request in plan.requests:  # no token in an unwritten block, or after one, counts as computed
            table = self.kv_cache.get_block_ids(request.request_id)
            num_good = next((i for i, block_id in enumerate(table) if block_id in unwritten), len(table))
            request.num_computed_tokens = min(request.num_computed_tokens, num_good * self.kv_cache.block_size)
        for request in reversed(misled):
            self.scheduler.preempt(request)
        self.discard(unwritten)
        plan.preempted.extend(misled)
        return result

    def _clear_drafts(self, plan: SchedulerOutput) -> None:
        """Clear the slots after the contexts, in which a failed step may have left NaN for a guess."""
        drafting = [request for request in plan.requests if request.request_id in plan.drafts]
        if drafting:
            lengths = [len(plan.drafts[request.request_id]) for request in drafting]
            context_lens = [request.num_computed_tokens + length for request, length in zip(drafting, lengths)]
            starts = [0, *np.cumsum(lengths).tolist()]
            tables = [self.kv_cache.get_block_ids(request.request_id) for request in drafting]
            self.cache.clear_slots(slot_mapping(tables, token_positions(context_lens, starts), starts,
                                                self.kv_cache.block_size))

    def discard(self, block_ids: Iterable[int]) -> None:
        """Discard the content of these blocks, which is not trusted; see ``discard_blocks``."""
        discard_blocks(block_ids, self.kv_cache, self.cache)
