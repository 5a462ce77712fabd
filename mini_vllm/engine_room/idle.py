"""Stalls: steps that plan nothing, although requests wait to be computed.

A correct scheduler always gives some request a token: a running request gets one, and if none is running, the first in
the queue is admitted or rejected. A scheduler that forgets a request, or leaks its blocks, plans nothing, and would do
so forever. After ``MAX_IDLE_STEPS`` such steps in a row the engine ends all requests with a StalledError. The
simulation raises an error instead; it also counts steps that only preempt, and the engine does not.
"""

from __future__ import annotations

from mini_vllm.parts import KVCacheManagerPart
from mini_vllm.request import Request

#: After this many steps in a row that plan nothing, no later step is expected to plan anything.
MAX_IDLE_STEPS = 3


class StalledError(RuntimeError):
    """Nothing could be planned for a request in several consecutive steps."""

    @classmethod
    def about(cls, request: Request, kv_cache: KVCacheManagerPart) -> StalledError:
        """Create the error for ``request``. It names the blocks that the request needs, and the free blocks: usually
        too few are free."""
        num_needed = -(-request.num_tokens // kv_cache.block_size) - len(kv_cache.get_block_ids(request.request_id))
        pool = kv_cache.block_pool
        needed = f"{num_needed} more block{'' if num_needed == 1 else 's'}"
        return cls(f"nothing could be planned for {MAX_IDLE_STEPS} steps: the scheduler gave request "
                   f"{request.request_id!r} no tokens; it needs {needed}, {pool.get_num_free_blocks()} of "
                   f"{pool.num_blocks - 1} are free")


class IdleSteps:
    """Counts consecutive steps without progress."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, is_idle: bool) -> bool:
        """Count one more step. Return whether there have been too many idle ones."""
        self.count = self.count + 1 if is_idle else 0
        return self.count >= MAX_IDLE_STEPS
