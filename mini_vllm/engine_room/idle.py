"""When nobody moves any more: steps that plan nothing, though requests wait to be computed.

A scheduler that is right always gives somebody a token: who runs gets one, and when nobody runs, the first in the queue
is admitted or refused. One that forgets a request, or leaks its blocks, plans nothing, and would do so for ever. After
``MAX_IDLE_STEPS`` such steps in a row the engine ends all requests with a StalledError. The simulation raises then; a
step that only preempts is one of them there, but not in the engine.
"""

from __future__ import annotations

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request

#: This many steps in a row that plan nothing are taken to mean that none ever will plan anything.
MAX_IDLE_STEPS = 3


class StalledError(RuntimeError):
    """Nothing could be planned for a request, again and again."""

    @classmethod
    def about(cls, request: Request, kv_cache: KVCacheManager) -> StalledError:
        """Says how many blocks the request needs and how many are free: too few free ones are the usual reason."""
        num_needed = -(-request.num_tokens // kv_cache.block_size) - len(kv_cache.get_block_ids(request.request_id))
        pool = kv_cache.block_pool
        needed = f"{num_needed} more block{'' if num_needed == 1 else 's'}"
        return cls(f"nothing could be planned for {MAX_IDLE_STEPS} steps: the scheduler gave request "
                   f"{request.request_id!r} no tokens; it needs {needed}, {pool.get_num_free_blocks()} of "
                   f"{pool.num_blocks - 1} are free")


class IdleSteps:
    """How many of the last steps, in a row, moved nobody."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, is_idle: bool) -> bool:
        """Note one more step. Returns whether it was one too many."""
        self.count = self.count + 1 if is_idle else 0
        return self.count >= MAX_IDLE_STEPS
