"""Counters of an engine: what has happened, peaks, tokens that were computed twice, and steps without progress.

``StepCounts`` reads only the plan and the pool. ``EngineMetrics`` adds the counters that the parts keep. ``NoTrace``
has the events of a step that an engine reports to whoever watches it.

**Stalls.** A correct scheduler always gives some request a token: a running request gets one, and if none is running,
the first in the queue is admitted or ended. A scheduler that forgets a request, or leaks its blocks, plans nothing,
and would do so forever. After ``MAX_IDLE_STEPS`` such steps in a row the engine ends all requests with a StalledError.
The simulation raises an error instead; it also counts steps that only preempt, and the engine does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mini_vllm.parts import KVCacheManagerPart, SchedulerPart
from mini_vllm.request import Request
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.structured.compiler import Cursor

#: After this many steps in a row that plan nothing, no later step is expected to plan anything.
MAX_IDLE_STEPS = 3
NO_DRAFTS: Mapping[str, tuple[int, int]] = {}


@dataclass(frozen=True)
class EngineMetrics:
    """The counters of an engine, and what sharing has saved. ``print`` shows them in a few lines, without the zeros."""

    num_requests: int
    num_prompt_tokens: int
    #: Tokens found in the cache instead of computed.
    num_saved_tokens: int
    hit_rate: float
    #: Over the most recent requests only.
    recent_hit_rate: float
    #: Blocks that more than one request uses now.
    num_shared_blocks: int
    num_forks: int
    num_copied_blocks: int
    num_evictions: int
    num_steps: int
    #: Most sequences in one step; a request with ``n`` = 3 has three.
    max_num_sequences: int
    #: Most blocks in use at once, out of ``num_blocks``; the null block does not count.
    max_num_used_blocks: int
    num_blocks: int
    #: Most blocks shared by several sequences at once.
    max_num_shared_blocks: int
    #: How often a request lost its blocks, and how many tokens were computed a second time because of that.
    num_preemptions: int
    num_recomputed_tokens: int
    #: Tokens that were guessed and checked, and those of them that were right.
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0

    def __str__(self) -> str:
        lines = {
            f"{_count(self.num_requests, 'request')} in {_count(self.num_steps, 'step')}, at most "
            f"{_count(self.max_num_sequences, 'sequence')} at once": True,
            f"{self.num_saved_tokens} of {_count(self.num_prompt_tokens, 'prompt token')} found in the cache "
            f"({self.hit_rate:.0%})": self.num_prompt_tokens,
            f"{self.recent_hit_rate:.0%} found for the most recent requests":
                round(self.recent_hit_rate - self.hit_rate, 2),
            f"{self.max_num_used_blocks} of {_count(self.num_blocks, 'block')} in use at the peak":
                self.max_num_used_blocks,
            f"{_count(self.max_num_shared_blocks, 'block')} shared at the peak": self.max_num_shared_blocks,
            f"{_count(self.num_forks, 'shared block')} forked before a write, {self.num_copied_blocks} copied":
                self.num_forks,
            f"{_count(self.num_preemptions, 'preemption')}, {_count(self.num_recomputed_tokens, 'token')} computed "
            "again": self.num_preemptions,
            f"{self.num_accepted_tokens} of {_count(self.num_drafted_tokens, 'drafted token')} accepted":
                self.num_drafted_tokens,
            f"{_count(self.num_evictions, 'cached block')} evicted to make room": self.num_evictions,
        }
        return "\n".join(line for line, has_happened in lines.items() if has_happened)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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


class NoTrace:
    """The events that an engine reports, all ignored. A subclass may handle some of them."""

    def introduce(self, model: str, text_of: Callable[[Request], str]) -> None:
        """Receive, before anything else, the model's name and a function that returns the prompt's text of a
        request."""

    def start_step(self, scheduler: SchedulerPart) -> None:
        """Handle the moment before a step is planned."""

    def record_plan(self, scheduler: SchedulerPart, plan: SchedulerOutput) -> None:
        """Handle a plan before it is computed."""

    def record_computed(self) -> None:
        """Handle the moment at which the tokens of the step are known."""

    def record_draw(self, request_id: str, cursor: Cursor, token_id: int) -> None:
        """Handle a token of a sequence whose output must match. ``cursor`` is its place before the token."""

    def end_step(self, plan: SchedulerOutput, sampled: Collection[str],
                 drafts: Mapping[str, tuple[int, int]] = NO_DRAFTS) -> None:
        """Handle the end of a step, after its tokens were processed.

        ``drafts`` has the numbers of drafted and of accepted tokens of the requests that drafted. A failed step may
        have preempted more than was planned.
        """
