"""Counters over all steps: peaks, and tokens that were computed twice.

Everything is read from the plan and the pool in the engine, so no part has to count. A step costs a few operations per
request. Block tables are walked only when a request arrives with blocks that another request computed: sharing grows at
no other time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mini_vllm.parts import KVCacheManagerPart
from mini_vllm.request import Request
from mini_vllm.scheduler import SchedulerOutput


class _Last(NamedTuple):
    """The state of a request when it was last planned."""

    num_computed_tokens: int
    #: The most tokens that it ever had computed.
    furthest: int
    num_preemptions: int


class StepCounts:
    """Counters that are updated with every step when it is planned."""

    def __init__(self) -> None:
        self.max_num_sequences = 0
        self.max_num_used_blocks = 0
        self.max_num_shared_blocks = 0
        self.num_recomputed_tokens = 0
        self._last: dict[str, _Last] = {}

    def note_plan(self, plan: SchedulerOutput, running: Iterable[Request], kv_cache: KVCacheManagerPart) -> None:
        """Update the counters.

        ``running`` are all requests that hold blocks, whether the plan has tokens for them or not.
        """
        may_share = [self._note_request(request, plan.num_scheduled_tokens[request.request_id])
                     for request in plan.requests]
        self.note_peaks(len(plan.requests), kv_cache, running if any(may_share) else ())

    def note_peaks(self, num_sequences: int, kv_cache: KVCacheManagerPart, sharing: Iterable[Request]) -> None:
        """Update the peaks.

        ``sharing`` are all requests that hold blocks. It may be empty if none of them can have begun to share a block
        since the last call, because then the peak of shared blocks stays the same.

        A block that is copied for this step, because a request is about to write into it, was shared until now.
        """
        pool = kv_cache.block_pool
        self.max_num_sequences = max(self.max_num_sequences, num_sequences)
        self.max_num_used_blocks = max(self.max_num_used_blocks, pool.num_blocks - 1 - pool.get_num_free_blocks())
        block_ids = {block_id for request in sharing for block_id in kv_cache.get_block_ids(request.request_id)}
        copied_ids = {source.block_id for source, _ in pool.pending_copies}
        num_shared = sum(pool.blocks[block_id].ref_cnt > 1 or block_id in copied_ids for block_id in block_ids)
        self.max_num_shared_blocks = max(self.max_num_shared_blocks, num_shared)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Forget requests that have ended; new requests may use their ids."""
        for request_id in request_ids:
            self._last.pop(request_id, None)

    def _note_request(self, request: Request, num_new_tokens: int) -> bool:
        """Update the record of a request.

        Return whether it continues from tokens that it did not compute: it was forked, or found them in the cache.
        """
        end, num_preemptions = request.num_computed_tokens, request.num_preemptions
        start = end - num_new_tokens
        # A fork that was preempted before its first step has lost the prompt that its leader had computed.
        new = _Last(0, request.num_prompt_tokens if num_preemptions else 0, 0)
        last = self._last.get(request.request_id, new)
        self.num_recomputed_tokens += max(min(end, last.furthest) - start, 0)
        self._last[request.request_id] = _Last(end, max(end, last.furthest), num_preemptions)
        return start > 0 and (start, num_preemptions) != (last.num_computed_tokens, last.num_preemptions)
