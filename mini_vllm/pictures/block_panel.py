"""A row for each block that was used: which requests held it in each step, how full it was, and its copies."""

from __future__ import annotations

from mini_vllm.pictures import marks
from mini_vllm.pictures.elements import round_up, sans_width, wrapped
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.timeline_canvas import MARGIN, Sheet
from mini_vllm.trace.history import CACHED, KEPT, USED, Run
from mini_vllm.trace.summary import tell_ranges

#: If there are more shapes than this, they are drawn without tooltips and letters.
MAX_TITLES = 8000
#: Runs of at least MIN_LEFT_OUT unused blocks are left out; a gap of height GAP replaces each of them.
MIN_LEFT_OUT, GAP = 4, 15
#: The maximum height of a row in a brief picture.
BRIEF_ROW = 12


class _Rows:
    """The blocks that have a row, and the position of each row."""

    def __init__(self, sheet: Sheet) -> None:
        used, num_blocks = set(sheet.history.block_runs), sheet.header["num_blocks"] - 1
        self.unused = tell_ranges(set(range(1, num_blocks + 1)) - used)
        left_out = [each for each in self.unused if len(each) >= MIN_LEFT_OUT or 1 in each or num_blocks in each]
        missing = {block_id for stretch in left_out for block_id in stretch}
        drawn = [block_id for block_id in range(1, num_blocks + 1) if block_id not in missing]
        self.height = min(max(420 // max(len(drawn), 1), 1), BRIEF_ROW if sheet.is_brief else 17)
        self.tops: dict[int, float] = {}
        self.gaps: list[tuple[float, range]] = []
        y = sheet.y
        for block_id in drawn:
            before = next((each for each in left_out if each.stop == block_id and self.tops), None)
            if before is not None:
                self.gaps.append((y, before))
                y += GAP
            self.tops[block_id] = y
            y += self.height
        self.bottom = y
        #: Step → the ranges of blocks that the line of a copy crosses, ends included.
        self.copies = {index: [range(min(pair), max(pair) + 1) for pair in step["copies"]]
                       for index, step in zip(sheet.history.shown, sheet.history.steps) if step["copies"]}

    def is_crossed(self, step: int, block_id: int) -> bool:
        """Check whether the line of a copy crosses the block in that step."""
        return any(block_id in between for between in self.copies.get(step, ()))


def draw_blocks(sheet: Sheet) -> None:
    sheet.heading("block")
    sheet.y += 0 if sheet.is_brief else 14
    rows = _Rows(sheet)
    sheet.draw_grid(rows.bottom - sheet.y)
    every = round_up(12 / rows.height)
    for block_id, top in rows.tops.items():
        if block_id % every == 0 or every == 1:
            sheet.number(top + rows.height / 2 + 3.2, str(block_id))
    for y, stretch in rows.gaps:
        sheet.add("rect", x=sheet.left - 4, y=y + 1, width=sheet.end - sheet.left + 8, height=GAP - 2, fill="paper")
        sheet.text(sheet.left + 4, y + 11, _tell_unused([stretch]), 9, data_part="left-out")
    num_runs = sum(map(len, sheet.history.block_runs.values()))
    sheet.open_group(data_panel="blocks")
    for block_id, runs in sorted(sheet.history.block_runs.items()):
        sheet.open_group(data_block=block_id)
        for run in runs:
            _draw_run(sheet, rows, block_id, run, num_runs <= MAX_TITLES)
        sheet.close_group()
    sheet.close_group()
    if rows.height >= 5:
        _draw_copies(sheet, rows)
    sheet.y = rows.bottom + 13
    sheet.draw_step_numbers(sheet.y)
    told = [stretch for _, stretch in rows.gaps]
    untold = [stretch for stretch in rows.unused if stretch not in told]
    for line in wrapped(_tell_unused(untold).split(" ") if untold else [], 10, 0.94 * (sheet.width - 2 * MARGIN), " "):
        sheet.y += 16
        sheet.text(MARGIN, sheet.y, line, 10, data_part="left-out")


def _tell_unused(stretches: list[range]) -> str:
    told = [str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in stretches]
    is_one = len(told) == 1 and len(stretches[0]) == 1
    which = " and ".join(part for part in (", ".join(told[:-1]), told[-1]) if part)
    return f"{'Block' if is_one else 'Blocks'} {which} {'was' if is_one else 'were'} never used."


def _draw_run(sheet: Sheet, rows: _Rows, block_id: int, run: Run, has_title: bool) -> None:
    x, y = sheet.x(run.first), rows.tops[block_id]
    width, height = (run.last + 1 - run.first) * sheet.cell, rows.height - (1 if rows.height >= 4 else 0)
    paint = sheet.cast.paint(run.owners[0]) if run.owners else "cached" if run.kind == CACHED else "kept"
    is_filling = run.kind == USED and height >= 5 and run.levels[0][1] < sheet.header["block_size"]
    marks.draw_block(sheet, x, y, width, height, paint, run.kind,
                     f"block {block_id}, {run.steps}: {_describe(run)}" if has_title else "", is_pale=is_filling)
    if is_filling:
        _draw_filling(sheet, run, paint, y, height)
    if has_title and run.owners and height >= 9:
        _draw_letters(sheet, rows, block_id, run, (x, y, width, height), paint, is_filling)


def _draw_filling(sheet: Sheet, run: Run, paint: str, y: float, height: float) -> None:
    """Draw how much of the block holds tokens, which grows step by step."""
    size, bottom, path = sheet.header["block_size"], y + height, ""
    for (step, level), after in zip(run.levels, [*(step for step, _ in run.levels[1:]), run.last + 1]):
        path += f"{'L' if path else ''}{sheet.x(step):g} {bottom - level / size * height:.2f}H{sheet.x(after):g}"
    sheet.add("path", d=f"M{sheet.x(run.first):g} {bottom:g}L{path}V{bottom:g}z", fill=paint, pointer_events="none")


def _draw_letters(sheet: Sheet, rows: _Rows, block_id: int, run: Run, box: tuple[float, float, float, float],
                  paint: str, is_filling: bool) -> None:
    """Write the letters of the block's owners, to the right of the lines of copies.

    Where the block is not full, they are on a label in the owner's colour, so that they can be read.
    """
    x, y, width, height = box
    letters, size = [sheet.cast.letter(owner) for owner in run.owners], min(height - 2, 10)
    texts = [" ".join(letters)] + [f"{letters[0]} +{len(letters) - 1}"] * (len(letters) > 1)
    places = ((text, _free_place(sheet, rows, block_id, run, sans_width(text, size) + 6)) for text in texts)
    text, x = next(((text, place) for text, place in places if place is not None), ("", x))
    if not text:
        return
    if is_filling:
        sheet.add("rect", x=x + 1, y=y + 1, width=round(sans_width(text, size) + 4, 2), height=height - 2, rx=2,
                  fill=paint, stroke="line", stroke_width=0.5, pointer_events="none")
    sheet.text(x + 3, y + height / 2 + 0.36 * size, text, size, ON_COLOUR, font_weight="bold", pointer_events="none")


def _free_place(sheet: Sheet, rows: _Rows, block_id: int, run: Run, wide: float) -> float | None:
    """Return the left end of the first ``wide`` pixels of a run that no copy's line crosses; None if there are none."""
    x = sheet.x(run.first)
    for step in range(run.first, run.last + 1):
        line = sheet.x(step) + sheet.cell / 2
        if line - 3 > x + wide:
            break
        if rows.is_crossed(step, block_id):
            x = line + 3
    return x if x + wide <= sheet.x(run.last + 1) else None


def _draw_copies(sheet: Sheet, rows: _Rows) -> None:
    """Draw a line from each copied block to its copy."""
    for index, step in zip(sheet.history.shown, sheet.history.steps):
        for source, copy in step["copies"]:
            if source in rows.tops and copy in rows.tops:
                x, half = sheet.x(index) + sheet.cell / 2, rows.height / 2 - 0.5
                sheet.add("path", d=f"M{x:g} {rows.tops[source] + half:g}V{rows.tops[copy] + half:g}", stroke="ink",
                          stroke_width=1.25)
                marks.draw_copy(sheet, x, rows.tops[copy] + half,
                                f"step {index}: block {source} is copied into block {copy}")


def _describe(run: Run) -> str:
    if run.kind in (CACHED, KEPT):
        return "free, still cached" if run.kind == CACHED else "held for a copy"
    names = ", ".join(run.owners[:6]) + (f" and {len(run.owners) - 6} more" if len(run.owners) > 6 else "")
    if run.kind == USED:
        return names
    return f"shared by {names}" if len(run.owners) > 1 else f"{names}, and held for a copy"
