"""A step trace, replayed: the state of every request and every block in each step. A trace records only changes."""

from __future__ import annotations

import re
from collections.abc import Container

from mini_vllm.trace.block_history import BlockHistory
from mini_vllm.trace.files import TraceStep, draft_of
from mini_vllm.trace.recorder import StepTrace
from mini_vllm.trace.runs import (
    AGAIN,
    CACHED,
    DECODE,
    DRAFTED,
    FORKED,
    IDLE,
    KEPT,
    PREEMPTED,
    PROMPT,
    SHARED,
    USED,
    WAITING,
    Run,
    Totals,
    count,
)

__all__ = ["AGAIN", "CACHED", "DECODE", "DRAFTED", "FORKED", "IDLE", "KEPT", "PREEMPTED", "PROMPT", "SHARED", "USED",
           "WAITING", "History", "Run", "Totals", "count", "leader_of", "sample_of"]


class History:
    """The state in each step.

    It begins at step 0 whatever is shown, because recomputed tokens are known only from earlier steps.
    """

    def __init__(self, trace: StepTrace, shown: range) -> None:
        self.trace, self.shown = trace, shown
        self.steps = trace.steps[shown.start:shown.stop]
        #: Request id → the tokens of its prompt; how many were found in the cache; how the prompt begins.
        self.prompts: dict[str, int] = {}
        self.found: dict[str, int] = {}
        self.names: dict[str, str] = {}
        #: Request id → its runs. Only requests of these steps have an entry, in the order of appearance.
        self.rows: dict[str, list[Run]] = {}
        self.ends: list[tuple[int, str, str]] = []
        #: Request id → the step that gave its first token, and the seconds until then from the step that first saw it.
        self.first_tokens: dict[str, tuple[int, float]] = {}
        self.totals: list[Totals] = []
        self._arrivals_s: dict[str, float] = {}
        self._num_computed: dict[str, int] = {}  # the most tokens that a request ever had computed
        self._blocks = BlockHistory(shown, trace.header["block_size"])
        self.block_runs = self._blocks.runs
        for index, step in enumerate(trace.steps[:shown.stop]):
            self._replay(index, step)
        self._blocks.finish()

    def _replay(self, index: int, step: TraceStep) -> None:
        self.prompts.update(step["prompts"])
        self.names.update(step.get("names", {}))
        self._blocks.replay(index, step)
        for request_id in step["prompts"]:
            self._row(index, request_id)
            self._arrivals_s.setdefault(request_id, step["start_s"])
        totals = self._replay_tokens(index, step)
        self._replay_others(index, step)
        for request_id in step["sampled"]:
            arrival_s = self._arrivals_s.get(leader_of(request_id, self.prompts), step["start_s"])
            self.first_tokens.setdefault(request_id, (index, step["end_s"] - arrival_s))
        for request_id, status in step["finished"].items():
            self._num_computed.pop(request_id, None)  # another request may use the same id
            self._row(index, request_id)
            if index in self.shown:
                self.ends.append((index, request_id, status))
        if index in self.shown:
            self.totals.append(totals)

    def _replay_tokens(self, index: int, step: TraceStep) -> Totals:
        """Replay the requests that compute tokens: of the prompt, again after a preemption, one by one, and drafts."""
        num_prompt = num_again = num_decode = num_all_drafted = num_all_accepted = 0
        sampled = set(step["sampled"])
        for request_id, (num_before, num_tokens) in step["tokens"].items():
            end = num_before + num_tokens
            if request_id not in self._num_computed and sample_of(request_id, self.prompts) in (None, 0):
                self.found.setdefault(request_id, num_before)
            again = max(min(end, self._num_computed.get(request_id, 0)) - num_before, 0)
            prompt_end = self.prompts.get(request_id, end if num_tokens > 1 else 0)
            prompt = max(min(end, prompt_end) - num_before - again, 0)
            num_drafted, num_accepted = draft_of(step, request_id)
            self._num_computed[request_id] = max(end + num_accepted, self._num_computed.get(request_id, 0))
            num_prompt, num_again = num_prompt + prompt, num_again + again
            num_decode += num_tokens - prompt - again
            num_all_drafted, num_all_accepted = num_all_drafted + num_drafted, num_all_accepted + num_accepted
            kind = DRAFTED if num_drafted else AGAIN if again else PROMPT if prompt else DECODE
            self._add(request_id, Run(index, index, kind, num_tokens, num_before, again, request_id in sampled,
                                       num_drafted, num_accepted))
        return Totals(num_prompt, num_again, num_decode, self._blocks.num_used, num_all_drafted, num_all_accepted)

    def _replay_others(self, index: int, step: TraceStep) -> None:
        """Replay the requests that compute nothing: they are forked, wait, lose their blocks, or run without a
        token."""
        others = {request_id: FORKED for request_id in step["sampled"]}  # another request computed the prompt for it
        others |= {request_id: WAITING for request_id in step["waiting"]}
        others |= {request_id: PREEMPTED for request_id in step["preempted"]}
        for request_id, kind in others.items():
            if request_id not in step["tokens"] or kind == PREEMPTED:
                self._add(request_id, Run(index, index, kind))
        for request_id in self._blocks.tables:
            if request_id not in step["tokens"] and request_id not in others:
                self._add(request_id, Run(index, index, IDLE))

    def _row(self, index: int, request_id: str) -> list[Run]:
        return self.rows.setdefault(request_id, []) if index in self.shown else []

    def _add(self, request_id: str, cell: Run) -> None:
        runs = self._row(cell.first, request_id)
        if runs and runs[-1].is_continued_by(cell):
            runs[-1].last = cell.last
        else:
            runs.append(cell)


def sample_of(request_id: str, request_ids: Container[str]) -> int | None:
    """Return the index of this sample among several of one prompt, from 0; None if it is the only one."""
    match = re.fullmatch(r"(.*)#(\d+)", request_id, re.DOTALL)
    return int(match[2]) if match and f"{match[1]}#0" in request_ids else None


def leader_of(request_id: str, request_ids: Container[str]) -> str:
    """Return the sample that computes the prompt for its siblings; a request without siblings is its own leader."""
    return request_id if sample_of(request_id, request_ids) is None else f"{request_id.rpartition('#')[0]}#0"
