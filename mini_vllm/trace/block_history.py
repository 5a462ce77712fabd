"""The blocks of a trace, replayed: which requests held each block in which step, and how far it was filled."""

from __future__ import annotations

from mini_vllm.trace.files import TraceStep, draft_of
from mini_vllm.trace.runs import CACHED, KEPT, SHARED, USED, Run


class BlockHistory:
    """Takes every step from the first on; ``runs`` contains what falls into ``shown``."""

    def __init__(self, shown: range, block_size: int) -> None:
        self._shown, self._block_size = shown, block_size
        #: Block id → its runs. A free block without content has none.
        self.runs: dict[int, list[Run]] = {}
        self.tables: dict[str, list[int]] = {}
        self.num_used = 0
        self._owners: dict[int, set[str]] = {}
        self._states: dict[int, tuple[int, bool]] = {}
        self._levels: dict[int, int] = {}
        self._open: dict[int, Run] = {}

    def replay(self, index: int, step: TraceStep) -> None:
        touched = set()
        for block_id, ref_cnt, findable in step["blocks"]:
            self.num_used += (ref_cnt > 0) - (self._states.get(block_id, (0, False))[0] > 0)
            self._states[block_id] = ref_cnt, bool(findable)
            touched.add(block_id)
        for request_id, table in sorted(step["tables"].items()):
            touched |= self._change_table(request_id, table)
        for block_id in sorted(touched):
            self._touch(block_id, index)
        for request_id, (num_before, num_tokens) in step["tokens"].items():
            num_drafted, num_accepted = draft_of(step, request_id)
            end = num_before + num_tokens + num_accepted
            self._fill(index, self.tables.get(request_id, []), num_before, end, end + num_drafted - num_accepted)

    def finish(self) -> None:
        """End all runs after the last step that is shown."""
        for block_id, run in sorted(self._open.items()):
            self._close(block_id, run, self._shown.stop - 1)

    def _change_table(self, request_id: str, table: list[int]) -> set[int]:
        """Replace the table of a request. Return the blocks that were added or removed."""
        old, new = set(self.tables.pop(request_id, ())), set(table)
        if table:
            self.tables[request_id] = table
        for block_id in old - new:
            self._owners[block_id].discard(request_id)
        for block_id in new - old:
            self._owners.setdefault(block_id, set()).add(request_id)
        return old ^ new

    def _touch(self, block_id: int, index: int) -> None:
        """Begin another run if the state of the block has changed."""
        ref_cnt, findable = self._states.get(block_id, (0, False))
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
            self._open[block_id] = Run(index, index, kind, owners=owners,
                                       levels=[(index, self._levels.get(block_id, self._block_size))])

    def _fill(self, index: int, table: list[int], start: int, end: int, end_of_draft: int) -> None:
        """Fill the blocks of a table into which a request writes its tokens ``start`` to ``end``.

        Blocks up to ``end_of_draft`` were taken for drafted tokens. Those after ``end`` were rejected, so the rest of
        their blocks stays empty.
        """
        for place in range(start // self._block_size, min(-(-end_of_draft // self._block_size), len(table))):
            block_id = table[place]
            self._levels[block_id] = level = min(max(end - place * self._block_size, 0), self._block_size)
            run = self._open.get(block_id)
            if run is None:
                continue
            if run.levels[-1][0] == index:
                run.levels.pop()
            if not run.levels or run.levels[-1][1] != level:
                run.levels.append((index, level))

    def _close(self, block_id: int, run: Run, last: int) -> None:
        first = max(run.first, self._shown.start)
        if first > last:
            return
        before = [level for index, level in run.levels if index <= first]
        run.levels = [(first, before[-1]), *((index, level) for index, level in run.levels if index > first)]
        run.first, run.last = first, last
        self.runs.setdefault(block_id, []).append(run)
