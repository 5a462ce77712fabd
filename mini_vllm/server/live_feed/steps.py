"""The events that the page receives: a recorded step, and what the page needs to draw the current state.

An event is a step of a trace (see ``TraceStep``) with more fields (``LiveFields``). If requests arrive or are aborted
between two steps, the event has the same fields but nothing is computed, and ``step`` is None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypedDict

from mini_vllm.block_pool import BlockHash
from mini_vllm.metrics import NO_DRAFTS
from mini_vllm.parts import SchedulerPart
from mini_vllm.pictures.elements import shorten
from mini_vllm.pictures.tree import MAX_TEXT
from mini_vllm.request import Request
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.server.live_feed.structures import Structure, describe, state_after
from mini_vllm.structured.compiler import Cursor
from mini_vllm.trace.recorder import StepTrace

#: A step, or the changes between two steps, in plain JSON values.
Event = dict[str, Any]
TokenText = Callable[[int], str]


class LiveFields(TypedDict):
    """The fields of an event in addition to those of a TraceStep."""

    #: The number of the step, counted from the engine's first; None between two steps.
    step: int | None
    now_s: float
    #: Request id → [priority, seconds of waiting], for requests seen for the first time.
    arrived: dict[str, list[float]]
    #: [block id, its key, its parent's key, the text of its tokens], for blocks whose content changed; a missing key is
    #: None.
    keys: list[list[int | str | None]]
    #: The counters of the prefix cache, the pool, the scheduler and the drafts.
    totals: dict[str, int]


class BoundFields(TypedDict, total=False):
    """The fields of an event in which an output that must match got a token; missing in other events."""

    #: Request id → what its output must match, for requests seen here for the first time.
    structures: dict[str, Structure]
    #: Request id → [its text, the state after it] of each token that the request got. An unknown state is None.
    drawn: dict[str, list[list[str | int | None]]]


class LiveTrace(StepTrace):
    """Makes an event of each step, and keeps none."""

    def __init__(self, text_of_token: TokenText, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._text_of_token = text_of_token
        self._texts: dict[int, str] = {}
        #: Reference count and key of every block, as last sent.
        self._known: list[tuple[int, object]] = []
        self._keys: list[list[int | str | None]] = []
        self._new: dict[str, Request] = {}
        self._fields: LiveFields
        self._waiting: list[str] = []
        self._bound = BoundFields()
        #: Request id → the state of its automaton; None if there is none, or the first tokens were not watched.
        self._states: dict[str, int | None] = {}
        #: The tokens that were drafted and accepted since the engine started.
        self.draft_counts = {"num_drafted_tokens": 0, "num_accepted_tokens": 0}

    def record_plan(self, scheduler: SchedulerPart, plan: SchedulerOutput) -> None:
        super().record_plan(scheduler, plan)
        self._waiting = self._step["waiting"]
        self._fields = self._more(scheduler)
        self._bound = {}

    def record_draw(self, request_id: str, cursor: Cursor, token_id: int) -> None:
        super().record_draw(request_id, cursor, token_id)
        first = f"{request_id.rpartition('#')[0]}#0"  # the sample from which this one may just have been forked
        request = self._live.get(request_id) or self._live.get(first)
        params = None if request is None else request.sampling_params.structured_outputs
        state = None
        if params is not None:
            if request_id not in self._states:
                self._bound.setdefault("structures", {})[request_id] = describe(params)
            before = 0 if cursor.is_first else self._states.get(request_id)
            token = cursor.compiled.vocabulary.token_bytes[token_id]
            state = self._states[request_id] = state_after(params, before, token)
        self._bound.setdefault("drawn", {}).setdefault(request_id, []).append(
            [self._text_of_token(token_id).replace(" ", "␣"), state])

    def _ended(self) -> dict[str, str]:
        finished = super()._ended()
        for request_id in finished:
            self._states.pop(request_id, None)
        return finished

    def finish_step(self, plan: SchedulerOutput, sampled: Collection[str], number: int,
                    drafts: Mapping[str, tuple[int, int]] = NO_DRAFTS) -> Event:
        """Return the event of this step. Call it instead of ``end_step``."""
        super().end_step(plan, sampled, drafts)
        step = self.steps.pop()
        for num_drafted, num_accepted in step.get("drafts", {}).values():
            self.draft_counts["num_drafted_tokens"] += num_drafted
            self.draft_counts["num_accepted_tokens"] += num_accepted
        self._fields["totals"] |= self.draft_counts
        return {**step, **self._fields, **self._bound, "step": number, "now_s": step["end_s"]}

    def look(self, scheduler: SchedulerPart) -> Event | None:
        """Return the changes since the last event, or None if there are none."""
        self._note_sizes(scheduler)
        self._live.update(scheduler.requests)
        new, waiting = self._newcomers(), [request.request_id for request in scheduler.waiting]
        prompts = {request_id: request.num_prompt_tokens for request_id, request in new.items()}
        event: Event = {"tokens": {}, "sampled": [], "prompts": prompts, "names": self._names(new), "preempted": [],
                        "finished": self._ended(), "copies": [], "tables": self._changed_tables(scheduler),
                        "blocks": self._changed_blocks(scheduler)}
        has_changed = waiting != self._waiting or any(event.values()) or bool(self._keys)
        self._waiting = waiting
        return {**event, **self._more(scheduler), "waiting": waiting} if has_changed else None

    def _newcomers(self) -> dict[str, Request]:
        self._new = super()._newcomers()
        return self._new

    def _more(self, scheduler: SchedulerPart) -> LiveFields:
        now_s = scheduler.waiting.clock()
        arrived = {request_id: [request.priority, round(max(now_s - (request.arrival_time or now_s), 0.0), 3)]
                   for request_id, request in self._new.items()}
        return {"step": None, "now_s": self._now_s(), "arrived": arrived, "keys": self._keys,
                "totals": {**_totals(scheduler), **self.draft_counts}}

    def _changed_blocks(self, scheduler: SchedulerPart) -> list[list[int]]:
        """Return the changed blocks as a trace does, and put those whose content changed into ``_keys``.

        Both are found in one pass over the blocks.
        """
        blocks = scheduler.kv_cache.block_pool.blocks
        if not self._known:
            self._known = [(0, None)] * len(blocks)
        changed, self._keys = [], []
        for place, (block, (ref_cnt, key)) in enumerate(zip(blocks, self._known)):
            new_key = block.block_hash
            if block.ref_cnt == ref_cnt and new_key is key or block.is_null:
                continue
            self._known[place] = block.ref_cnt, new_key
            if (block.ref_cnt, new_key is None) != (ref_cnt, key is None):
                changed.append([block.block_id, block.ref_cnt, new_key is not None])
            if new_key is not key:
                self._keys.append([block.block_id, *self._tell_key(new_key)])
        return changed

    def _tell_key(self, key: object) -> tuple[str | None, str | None, str]:
        """Return the key's number, its parent's number, and the text of its tokens, as far as the key knows them."""
        if not isinstance(key, BlockHash):
            return None if key is None else str(key), None, ""
        text = " ".join(self._text(token_id) for token_id in key.token_ids)
        return _number(key), None if key.parent is None else _number(key.parent), shorten(text, MAX_TEXT)

    def _text(self, token_id: int) -> str:
        if token_id not in self._texts:
            self._texts[token_id] = self._text_of_token(token_id).strip() or "␣"
        return self._texts[token_id]


def _number(key: BlockHash) -> str:
    """Format a key as text: a JavaScript number does not have 64 bits."""
    return f"{int(key) & (1 << 64) - 1:x}"


def _totals(scheduler: SchedulerPart) -> dict[str, int]:
    stats, pool = scheduler.kv_cache.stats, scheduler.kv_cache.block_pool
    return {"num_query_tokens": stats.num_query_tokens, "num_hit_tokens": stats.num_hit_tokens,
            "num_evictions": pool.num_evictions, "num_forks": pool.num_forks,
            "num_preemptions": scheduler.num_preemptions}
