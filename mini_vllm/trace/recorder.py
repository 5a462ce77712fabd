"""Recording what happened, step by step: the tokens of each request, blocks that changed owners, and preemptions.

    trace = StepTrace()
    engine = LLMEngine(config, trace=trace)      # or Simulation(scheduler, trace=trace), which needs no model
    ...
    trace.save("run.trace")                      # mini-vllm trace run.trace   draws it

A trace is a header and a list of steps, plain JSON values throughout; a saved trace has one line per entry. Tables and
blocks are recorded when they change, so that a long run stays small. Only the beginning of a prompt's text is kept, as
the name of its request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from mini_vllm.metrics import NO_DRAFTS, NoTrace
from mini_vllm.parts import SchedulerPart
from mini_vllm.request import Request
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.structured.compiler import Cursor
from mini_vllm.trace.files import FORMAT, TraceHeader, TraceStep, read_trace, write_trace

#: The longest name of a request, in characters of its prompt. The rest of the prompt is private.
MAX_NAME = 40


class StepTrace(NoTrace):
    """The steps of one engine, being recorded or loaded from a file.

    ``header`` contains the sizes of the engine (see ``TraceHeader``); ``steps``, what happened in each (``TraceStep``).
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.header: TraceHeader = {}
        self.steps: list[TraceStep] = []
        self._clock = clock
        self._first_s: float | None = None
        #: Belongs to the step that is being recorded.
        self._step: TraceStep
        self._start_s = 0.0
        self._computed_s: float | None = None
        #: What has been recorded so far; only changes are recorded.
        self._seen: set[str] = set()
        self._tables: dict[str, list[int]] = {}
        self._blocks: dict[int, tuple[int, bool]] = {}
        self._live: dict[str, Request] = {}
        self._model: str | None = None
        self._text_of: Callable[[Request], str] = lambda request: ""

    # ---- recording

    def introduce(self, model: str, text_of: Callable[[Request], str]) -> None:
        self._model, self._text_of = Path(model).name, text_of  # the path of a folder does not matter

    def start_step(self, scheduler: SchedulerPart) -> None:
        self._note_sizes(scheduler)
        self._live.update(scheduler.requests)
        self._start_s = self._now_s()

    def _note_sizes(self, scheduler: SchedulerPart) -> None:
        if not self.header:
            self.header = {"format": FORMAT, "num_blocks": scheduler.kv_cache.block_pool.num_blocks,
                           "block_size": scheduler.kv_cache.block_size, "max_num_seqs": scheduler.max_num_seqs,
                           "max_num_batched_tokens": scheduler.max_num_batched_tokens}
            if self._model is not None:
                self.header["model"] = self._model

    def record_plan(self, scheduler: SchedulerPart, plan: SchedulerOutput) -> None:
        planned_s = self._now_s()
        self._computed_s = None
        tokens = {request.request_id: [request.num_computed_tokens - plan.num_scheduled_tokens[request.request_id],
                                       plan.num_scheduled_tokens[request.request_id]] for request in plan.requests}
        new = self._newcomers()
        self._step = {"start_s": self._start_s, "planned_s": planned_s, "computed_s": planned_s, "end_s": planned_s,
                      "tokens": tokens, "sampled": [],
                      "prompts": {request_id: request.num_prompt_tokens for request_id, request in new.items()},
                      "waiting": [request.request_id for request in scheduler.waiting],
                      "preempted": [], "finished": {}, "copies": [list(pair) for pair in plan.copies],
                      "tables": self._changed_tables(scheduler), "blocks": self._changed_blocks(scheduler),
                      "names": self._names(new)}

    def _newcomers(self) -> dict[str, Request]:
        """Return live requests that were not recorded yet, and mark them as known."""
        new = {request_id: request for request_id, request in self._live.items() if request_id not in self._seen}
        self._seen.update(new)
        return new

    def _names(self, requests: dict[str, Request]) -> dict[str, str]:
        names = {request_id: beginning(self._text_of(request)) for request_id, request in requests.items()}
        return {request_id: name for request_id, name in names.items() if name}

    def record_computed(self) -> None:
        self._computed_s = self._now_s()

    def record_draw(self, request_id: str, cursor: Cursor, token_id: int) -> None:
        try:
            mask = cursor.allowed()
        except ValueError:  # the mask was there when the token was drawn, but the grammar has failed since
            return
        assert mask is not None, "a token was drawn here, so some were allowed"
        self.header["vocab_size"] = mask.size
        state = cursor.state if isinstance(cursor.state, int) else None
        self._step.setdefault("allowed", {}).setdefault(request_id, []).append([int(mask.sum()), state])

    def end_step(self, plan: SchedulerOutput, sampled: Collection[str],
                 drafts: Mapping[str, tuple[int, int]] = NO_DRAFTS) -> None:
        finished, end_s = self._ended(), self._now_s()
        if drafts:
            self._step["drafts"] = {request_id: list(numbers) for request_id, numbers in drafts.items()}
        self._step.update({"computed_s": end_s if self._computed_s is None else self._computed_s, "end_s": end_s,
                           "sampled": list(sampled), "finished": finished,
                           "preempted": [request.request_id for request in plan.preempted]})
        self.steps.append(self._step)

    def _ended(self) -> dict[str, str]:
        """Return the requests that have ended since the last call, and how each ended."""
        finished = {request_id: request.status.value for request_id, request in self._live.items()
                    if request.status.is_finished}
        for request_id in finished:
            del self._live[request_id]
            self._seen.discard(request_id)  # the next request with that id is another one
        return finished

    def _now_s(self) -> float:
        now_s = self._clock()
        if self._first_s is None:
            self._first_s = now_s
        return round(now_s - self._first_s, 6)

    def _changed_tables(self, scheduler: SchedulerPart) -> dict[str, list[int]]:
        changed = {}
        for request_id in dict.fromkeys([*self._tables, *(request.request_id for request in scheduler.running)]):
            table = scheduler.kv_cache.get_block_ids(request_id)
            if table != self._tables.get(request_id, []):
                changed[request_id] = self._tables[request_id] = table
                if not table:
                    del self._tables[request_id]
        return changed

    def _changed_blocks(self, scheduler: SchedulerPart) -> list[list[int]]:
        changed = []
        for block in scheduler.kv_cache.block_pool.blocks:
            state = block.ref_cnt, block.block_hash is not None
            if state != self._blocks.get(block.block_id, (0, False)) and not block.is_null:
                self._blocks[block.block_id] = state
                changed.append([block.block_id, *state])
        return changed

    # ---- files

    def save(self, path: str | Path) -> None:
        """Write the trace to a file. Raise ValueError if no step was recorded."""
        if not self.steps:
            raise ValueError(f"{path} was not written: no step was recorded")
        write_trace(path, self.header, self.steps)

    @classmethod
    def load(cls, path: str | Path) -> StepTrace:
        """Load a trace.

        Raise OSError if there is no such file, and TraceError, which names the line, if it is not a trace.
        """
        trace = cls()
        trace.header, trace.steps = read_trace(path)
        return trace


def beginning(text: str) -> str:
    """Return the first words of a prompt, in one line, as the name of its request."""
    words = " ".join(text.split())
    return words if len(words) <= MAX_NAME else words[:MAX_NAME - 1].rstrip() + "…"
