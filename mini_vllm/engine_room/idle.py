"""When nobody moves any more: steps that plan nothing, though requests wait to be computed.

A scheduler that is right always gives somebody a token: who runs gets one, and when nobody runs, the first in the queue
is admitted or refused. One that forgets a request, or leaks its blocks, plans nothing, and would do so for ever. The
engine and the simulation count such steps, and give up after ``MAX_IDLE_STEPS`` of them.
"""

from __future__ import annotations

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request

#: This many steps in a row that plan nothing mean that none ever will. One or two may be a scheduler's way to settle.
MAX_IDLE_STEPS = 3


class StalledError(RuntimeError):
    """Nothing could be planned for a request, again and again."""

    @classmethod
    def about(cls, request: Request, kv_cache: KVCacheManager) -> StalledError:
        """Names what usually is the reason: the blocks that the request needs, and those that are free."""
        num_wanted = -(-request.num_tokens // kv_cache.block_size) - len(kv_cache.get_block_ids(request.request_id))
        pool = kv_cache.block_pool
        return cls(f"nothing could be planned for {MAX_IDLE_STEPS} steps: request {request.request_id!r} waits for "
                   f"{num_wanted} block{'' if num_wanted == 1 else 's'}, {pool.get_num_free_blocks()} of "
                   f"{pool.num_blocks - 1} are free")


class IdleSteps:
    """How many of the last steps, in a row, moved nobody."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, is_idle: bool) -> bool:
        """Note one more step. Whether it was one too many."""
        self.count = self.count + 1 if is_idle else 0
        return self.count >= MAX_IDLE_STEPS
