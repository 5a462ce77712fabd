"""A step trace, replayed: what every request and every block did in each step. A trace tells only what changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mini_vllm.trace.files import TraceStep
from mini_vllm.trace.recorder import StepTrace

PROMPT, AGAIN, DECODE, FORKED = "prompt", "recomputed", "decode", "forked"
WAITING, IDLE, PREEMPTED = "waiting", "idle", "preempted"
USED, SHARED, CACHED, KEPT = "used", "shared", "cached", "kept"


@dataclass
class Run:
    """Equal cells side by side in one row, from step ``first`` to step ``last``."""

    first: int
    last: int
    kind: str
    num_tokens: int = 0
    #: Tokens of the request that were computed before ``first``.
    num_before: int = 0
    #: How many of ``num_tokens`` the request had had already, computed or found in the cache, and lost.
    num_again: int = 0
    is_sampled: bool = False
    #: Of a block: the requests whose tables name it.
    owners: tuple[str, ...] = ()

    @property
    def steps(self) -> str:
        return f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"

    def is_continued_by(self, cell: Run) -> bool:
        """Whether the next step does the same, and with the tokens that follow."""
        num_before = self.num_before + self.num_tokens * (self.last + 1 - self.first)
        return cell == replace(self, first=self.last + 1, last=self.last + 1, num_before=num_before)


@dataclass(frozen=True)
class Totals:
    """What one step computed, by kind of token, and how many blocks were in use."""

    num_prompt: int = 0
    num_again: int = 0
    num_decode: int = 0
    num_used_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_again + self.num_decode


class History:
    """What was so in each step. It begins at step 0 whatever is shown: who computes again has computed before."""

    def __init__(self, trace: StepTrace, shown: range) -> None:
        self.trace, self.shown = trace, shown
        self.steps = trace.steps[shown.start:shown.stop]
        self.prompts: dict[str, int] = {}
        #: Request id → its runs; a request of these steps has an entry, in the order of appearance.
        self.rows: dict[str, list[Run]] = {}
        self.ends: list[tuple[int, str, str]] = []
        self.block_runs: dict[int, list[Run]] = {}
        self.totals: list[Totals] = []
        self._tables: dict[str, list[int]] = {}
        self._owners: dict[int, set[str]] = {}
        self._blocks: dict[int, tuple[int, bool]] = {}
        self._num_used_blocks = 0
        self._open: dict[int, Run] = {}
        self._num_computed: dict[str, int] = {}  # the most tokens that a request ever had computed
        for index, step in enumerate(trace.steps[:shown.stop]):
            self._replay(index, step)
        for block_id, run in sorted(self._open.items()):
            self._close(block_id, run, shown.stop - 1)

    def _replay(self, index: int, step: TraceStep) -> None:
        self.prompts.update(step["prompts"])
        self._replay_blocks(index, step)
        for request_id in step["prompts"]:
            self._row(index, request_id)
        totals = self._replay_tokens(index, step)
        self._replay_others(index, step)
        for request_id, status in step["finished"].items():
            self._num_computed.pop(request_id, None)  # another may come under the same id
            self._row(index, request_id)
            if index in self.shown:
                self.ends.append((index, request_id, status))
        if index in self.shown:
            self.totals.append(totals)

    def _replay_tokens(self, index: int, step: TraceStep) -> Totals:
        """Those that compute: of the prompt, again what they had computed before, or one by one."""
        num_prompt = num_again = num_decode = 0
        sampled = set(step["sampled"])
        for request_id, (num_before, num_tokens) in step["tokens"].items():
            end = num_before + num_tokens
            again = max(min(end, self._num_computed.get(request_id, 0)) - num_before, 0)
            prompt_end = self.prompts.get(request_id, end if num_tokens > 1 else 0)
            prompt = max(min(end, prompt_end) - num_before - again, 0)
            self._num_computed[request_id] = max(end, self._num_computed.get(request_id, 0))
            num_prompt, num_again = num_prompt + prompt, num_again + again
            num_decode += num_tokens - prompt - again
            self._add(request_id, Run(index, index, AGAIN if again else PROMPT if prompt else DECODE, num_tokens,
                                       num_before, again, request_id in sampled))
        return Totals(num_prompt, num_again, num_decode, self._num_used_blocks)

    def _replay_others(self, index: int, step: TraceStep) -> None:
        """Those that do not: they begin from another's prompt, wait, lose their blocks, or run without a token."""
        others = {request_id: FORKED for request_id in step["sampled"]}  # from a prompt that another computed for it
        others |= {request_id: WAITING for request_id in step["waiting"]}
        others |= {request_id: PREEMPTED for request_id in step["preempted"]}
        for request_id, kind in others.items():
            if request_id not in step["tokens"] or kind == PREEMPTED:
                self._add(request_id, Run(index, index, kind))
        for request_id in self._tables:
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

    def _replay_blocks(self, index: int, step: TraceStep) -> None:
        touched = set()
        for block_id, ref_cnt, findable in step["blocks"]:
            self._num_used_blocks += (ref_cnt > 0) - (self._blocks.get(block_id, (0, False))[0] > 0)
            self._blocks[block_id] = ref_cnt, bool(findable)
            touched.add(block_id)
        for request_id, table in sorted(step["tables"].items()):
            old, new = set(self._tables.pop(request_id, ())), set(table)
            if table:
                self._tables[request_id] = table
            for block_id in old - new:
                self._owners[block_id].discard(request_id)
            for block_id in new - old:
                self._owners.setdefault(block_id, set()).add(request_id)
            touched |= old ^ new
        for block_id in sorted(touched):
            self._touch(block_id, index)

    def _touch(self, block_id: int, index: int) -> None:
        """Begin another run if the block is not what it was. A free block that holds nothing has none."""
        ref_cnt, findable = self._blocks.get(block_id, (0, False))
        owners = tuple(sorted(self._owners.get(block_id, ())))
        if ref_cnt == 0:
            kind = CACHED if findable else None
        else:
            kind = SHARED if max(ref_cnt, len(owners)) > 1 else USED if owners else KEPT
        run = self._open.get(block_id)
        if run is not None and (run.kind, run.owners) == (kind, owners):
            return
        if run is not None:
            self._close(block_id, self._open.pop(block_id), index - 1)
        if kind is not None:
            self._open[block_id] = Run(index, index, kind, owners=owners)

    def _close(self, block_id: int, run: Run, last: int) -> None:
        run.first, run.last = max(run.first, self.shown.start), last
        if run.first <= run.last:
            self.block_runs.setdefault(block_id, []).append(run)

    def title(self) -> str:
        num_preemptions = sum(len(step["preempted"]) for step in self.steps)
        num_all = len(self.trace.steps)
        return " · ".join((
            count(num_all, "step") if len(self.steps) == num_all else
            f"steps {self.shown.start} to {self.shown.stop - 1} of {num_all}",
            count(len(self.rows), "request"), count(num_preemptions, "preemption"),
            count(sum(each.num_tokens for each in self.totals), "token") + " computed",
            count(sum(each.num_again for each in self.totals), "token") + " recomputed",
            f"peak {max(each.num_used_blocks for each in self.totals)} of "
            f"{count(self.trace.header['num_blocks'] - 1, 'block')} in use",
            count(sum(len(step["copies"]) for step in self.steps), "block") + " copied"))


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
