"""The engine's listener: while there are watchers, each step becomes an event that is sent to all of them.

    feed = LiveFeed()
    engine = AsyncLLMEngine(make_engine=lambda: engine_of(config, trace=feed))
    watcher = Watcher()
    await engine.call(lambda inner: feed.open(watcher, inner))      # the whole picture, then a message per step
    messages = await watcher.next(timeout_s=0.5)

Everything runs in the engine's thread, between or within steps, and never waits for a watcher. Without watchers, the
feed costs one comparison per step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from mini_vllm.metrics import NO_DRAFTS, NoTrace
from mini_vllm.parts import SchedulerPart
from mini_vllm.request import Request
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.server.live_feed.steps import LiveTrace
from mini_vllm.server.live_feed.watcher import Watcher
from mini_vllm.server.live_feed.window import Window
from mini_vllm.structured.compiler import Cursor

if TYPE_CHECKING:
    from mini_vllm.engine_frame import EngineFrame


class LiveFeed(NoTrace):
    """A trace that sends each step to the watchers. Pass it to an engine as ``trace``; it serves one at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._model = ""
        self._text_of: Callable[[Request], str] = lambda request: ""
        self._watchers: list[Watcher] = []
        self._trace: LiveTrace | None = None
        self._window = Window()
        self._num_steps = 0
        #: Whether the current step is sent to watchers.
        self._is_told = False
        self._scheduler: SchedulerPart | None = None

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    @property
    def is_watched(self) -> bool:
        """Whether a watcher is connected; any thread may ask."""
        return any(not watcher.is_gone for watcher in self._watchers)

    def introduce(self, model: str, text_of: Callable[[Request], str]) -> None:
        """Start again for a new engine: it has another pool, so nothing about the last engine is valid."""
        self._model, self._text_of, self._trace, self._window, self._num_steps = model, text_of, None, Window(), 0

    # ---- watching; call these between two steps

    def open(self, watcher: Watcher, engine: EngineFrame) -> None:
        """Send ``watcher`` the whole picture, then every event. Call it again for a watcher that fell behind."""
        if self._trace is None:
            decode = engine.tokenizer.decode  # not the engine: a reference cycle would keep it alive
            self._trace = LiveTrace(lambda token_id: decode([token_id]), self._clock)
            self._trace.introduce(self._model, self._text_of)
        self._trace.draft_counts |= engine.draft_counts()  # without a watcher, nothing was counted here
        self.look(engine.scheduler)
        header = {**self._trace.header, "aging_rate": engine.config.aging_rate,
                  "num_speculative_tokens": engine.config.num_speculative_tokens,
                  "vocab_size": engine.loaded.config.vocab_size}
        watcher.tell_anew({"type": "snapshot", "header": header, **self._window.to_json()})
        if watcher not in self._watchers:
            self._watchers.append(watcher)

    def look(self, scheduler: SchedulerPart) -> None:
        """Send what changed since the last event: requests also arrive and are aborted between steps.

        A watcher calls this when no events arrive.
        """
        event = self._trace.look(scheduler) if self._trace is not None else None
        if event is not None:
            self._tell(event)

    def _tell(self, event: dict[str, Any]) -> None:
        self._window.add(event)
        for watcher in self._watchers:
            watcher.tell({"type": "event", **event})

    # ---- listening

    def start_step(self, scheduler: SchedulerPart) -> None:
        self._num_steps += 1
        self._is_told = bool(self._watchers) and self._has_watchers() and self._trace is not None
        if self._is_told and self._trace is not None:
            self._scheduler = scheduler
            self._trace.start_step(scheduler)

    def _has_watchers(self) -> bool:
        self._watchers = [watcher for watcher in self._watchers if not watcher.is_gone]
        return bool(self._watchers)

    def record_plan(self, scheduler: SchedulerPart, plan: SchedulerOutput) -> None:
        if self._is_told and self._trace is not None:
            self._trace.record_plan(scheduler, plan)

    def record_computed(self) -> None:
        if self._is_told and self._trace is not None:
            self._trace.record_computed()

    def record_draw(self, request_id: str, cursor: Cursor, token_id: int) -> None:
        if self._is_told and self._trace is not None:
            self._trace.record_draw(request_id, cursor, token_id)

    def end_step(self, plan: SchedulerOutput, sampled: Collection[str],
                 drafts: Mapping[str, tuple[int, int]] = NO_DRAFTS) -> None:
        """Send the event of this step. If no request is left, also send that the blocks were freed."""
        scheduler, self._scheduler = self._scheduler, None
        if self._is_told and self._trace is not None and scheduler is not None:
            self._tell(self._trace.finish_step(plan, sampled, self._num_steps - 1, drafts))
            if not scheduler.has_unfinished_requests():
                self.look(scheduler)
