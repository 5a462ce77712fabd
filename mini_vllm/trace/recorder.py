"""What happened, step by step: who got how many tokens, which blocks changed hands, who was preempted.

    trace = StepTrace()
    engine = LLMEngine(config, trace=trace)      # or Simulation(scheduler, trace=trace), which needs no model
    ...
    trace.save("run.trace")                      # mini-vllm trace run.trace   draws it

A trace is a header and a list of steps, plain JSON values throughout; a saved one has a line for each. Tables and
blocks are told when they change, so that a long run stays small.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path

from mini_vllm.scheduler import Scheduler, SchedulerOutput

FORMAT = 1


class TraceError(ValueError):
    """A file that is not a trace."""


class StepTrace:
    """The steps of one engine, as they are recorded or as they were saved.

    ``header``   ``format``, ``num_blocks`` (the null block included), ``block_size``, ``max_num_seqs``,
                 ``max_num_batched_tokens``

    A step:

    ``start_s``, ``planned_s``, ``computed_s``, ``end_s``   by the clock, from the first step on: planning, the model
                 and the sampler, and what is done with the tokens
    ``tokens``   request id → [tokens computed before, tokens of this step]
    ``prompts``  request id → prompt tokens, of requests seen for the first time
    ``sampled``  ids that got a new token
    ``waiting``  ids that wait after planning, in the order of the queue
    ``preempted``, ``finished``   ids; what is finished has its status: ``{"r1": "length"}``
    ``copies``   [source, destination] blocks
    ``tables``   request id → block ids as planned, if they changed; an empty list when its blocks have gone home
    ``blocks``   [block id, reference count, whether its content can be found], of blocks that changed
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.header: dict = {}
        self.steps: list[dict] = []
        self._clock = clock
        self._first_s: float | None = None
        self._seen: set[str] = set()
        self._tables: dict[str, list[int]] = {}
        self._blocks: dict[int, tuple[int, bool]] = {}
        self._live: dict[str, object] = {}

    # ---- recording

    def start_step(self, scheduler: Scheduler) -> None:
        """Before a step is planned."""
        if not self.header:
            self.header = {"format": FORMAT, "num_blocks": scheduler.kv_cache.block_pool.num_blocks,
                           "block_size": scheduler.kv_cache.block_size, "max_num_seqs": scheduler.max_num_seqs,
                           "max_num_batched_tokens": scheduler.max_num_batched_tokens}
        self._live.update(scheduler.requests)
        self._start_s = self._now_s()

    def record_plan(self, scheduler: Scheduler, plan: SchedulerOutput) -> None:
        """After it is planned, before it is computed."""
        planned_s = self._now_s()
        tokens = {request.request_id: [request.num_computed_tokens - plan.num_scheduled_tokens[request.request_id],
                                       plan.num_scheduled_tokens[request.request_id]] for request in plan.requests}
        prompts = {request_id: request.num_prompt_tokens for request_id, request in self._live.items()
                   if request_id not in self._seen}
        self._seen.update(prompts)
        self._step = {"start_s": self._start_s, "planned_s": planned_s, "tokens": tokens, "prompts": prompts,
                      "waiting": [request.request_id for request in scheduler.waiting],
                      "copies": [list(pair) for pair in plan.copies],
                      "tables": self._changed_tables(scheduler), "blocks": self._changed_blocks(scheduler)}

    def record_computed(self) -> None:
        """When its tokens are known."""
        self._step["computed_s"] = self._now_s()

    def end_step(self, plan: SchedulerOutput, sampled: Collection[str]) -> None:
        """When its tokens have been dealt with. A step that failed may have preempted more than was planned."""
        finished = {request_id: request.status.value for request_id, request in self._live.items()
                    if request.status.is_finished}
        for request_id in finished:
            del self._live[request_id]
            self._seen.discard(request_id)  # the next of that id is another
        self._step.setdefault("computed_s", self._now_s())
        self._step.update(sampled=list(sampled), preempted=[request.request_id for request in plan.preempted],
                          finished=finished, end_s=self._now_s())
        self.steps.append(self._step)

    def _now_s(self) -> float:
        now_s = self._clock()
        if self._first_s is None:
            self._first_s = now_s
        return round(now_s - self._first_s, 6)

    def _changed_tables(self, scheduler: Scheduler) -> dict[str, list[int]]:
        changed = {}
        for request_id in dict.fromkeys([*self._tables, *(request.request_id for request in scheduler.running)]):
            table = scheduler.kv_cache.get_block_ids(request_id)
            if table != self._tables.get(request_id, []):
                changed[request_id] = self._tables[request_id] = table
                if not table:
                    del self._tables[request_id]
        return changed

    def _changed_blocks(self, scheduler: Scheduler) -> list[list]:
        changed = []
        for block in scheduler.kv_cache.block_pool.blocks:
            state = block.ref_cnt, block.block_hash is not None
            if state != self._blocks.get(block.block_id, (0, False)) and not block.is_null:
                self._blocks[block.block_id] = state
                changed.append([block.block_id, *state])
        return changed

    # ---- files

    def save(self, path: str | Path) -> None:
        """Raises ValueError if no step was recorded."""
        if not self.steps:
            raise ValueError(f"{path} was not written: no step was recorded")
        steps = ({name: step[name] for name in STEP_FIELDS} for step in self.steps)
        lines = [json.dumps(entry) for entry in (self.header, *steps)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> StepTrace:
        """Raises OSError if there is no such file, TraceError, which names the line, if it is no trace."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise TraceError(f"{path} is no trace of mini_vllm: it is not text") from None
        if not lines:
            raise TraceError(f"{path} is empty, a trace begins with a header")
        trace, number = cls(), 0
        try:
            for number, line in enumerate(lines, 1):
                entry = json.loads(line)
                if number == 1 and entry["format"] != FORMAT:
                    raise TraceError(f"{path}: format {entry['format']!r}, this version reads format {FORMAT}")
                kinds = HEADER_FIELDS if number == 1 else STEP_FIELDS
                for name, kind in kinds.items():
                    if not isinstance(entry[name], kind):
                        raise TypeError(f"{name} is {entry[name]!r}")
                if number == 1:
                    trace.header = entry
                else:
                    trace.steps.append({name: entry[name] for name in STEP_FIELDS})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise TraceError(f"{path}, line {number}: this is no trace of mini_vllm ({type(error).__name__}: {error})"
                             ) from None
        return trace


#: What must be there, and of which type.
HEADER_FIELDS = dict.fromkeys(("format", "num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"), int)
STEP_FIELDS = {**dict.fromkeys(("start_s", "planned_s", "computed_s", "end_s"), (int, float)),
               **dict.fromkeys(("tokens", "prompts"), dict), **dict.fromkeys(("sampled", "waiting", "preempted"), list),
               "finished": dict, "copies": list, "tables": dict, "blocks": list}
