"""A row for each block of the pool: who held it in which step, and where it was copied."""

from __future__ import annotations

from mini_vllm.pictures.elements import COLOURS, INK, PAPER, round_up
from mini_vllm.pictures.sheet import MARGIN, Sheet
from mini_vllm.trace.history import CACHED, KEPT, USED, Run

#: If there are more shapes than this, they are drawn without tooltips.
MAX_TITLES = 8000


def draw_blocks(sheet: Sheet) -> None:
    sheet.text(MARGIN, sheet.y + 8, "block", 10, INK, font_weight="bold")
    sheet.y += 14
    height, every = sheet.num_block_rows * sheet.block, round_up(12 / sheet.block)
    sheet.draw_grid(height)
    for block_id in range(1, sheet.num_block_rows + 1):
        if block_id % every == 0 or every == 1:
            sheet.text(sheet.left - 8, sheet.y + (block_id - 0.5) * sheet.block + 3.5, str(block_id),
                       text_anchor="end")
    has_titles = sum(map(len, sheet.history.block_runs.values())) <= MAX_TITLES
    sheet.open_group(data_panel="blocks", shape_rendering="crispEdges")
    for block_id, runs in sorted(sheet.history.block_runs.items()):
        sheet.open_group(data_block=block_id)
        for run in runs:
            _draw_run(sheet, block_id, run, has_titles)
        sheet.close_group()
    sheet.close_group()
    if sheet.block >= 5:
        _draw_copies(sheet)
    sheet.y += height + 12
    sheet.draw_step_numbers(sheet.y)
    if sheet.num_block_rows < sheet.num_blocks:
        sheet.y += 15
        sheet.text(MARGIN, sheet.y, f"Blocks {sheet.num_block_rows + 1} to {sheet.num_blocks} are free and empty all "
                   "the time, and not drawn.")


def _draw_run(sheet: Sheet, block_id: int, run: Run, has_title: bool) -> None:
    colour = COLOURS[run.kind]
    if run.kind == USED:
        colour = sheet.colours.get(run.owners[0], colour)
    sheet.add("rect", x=sheet.x(run.first), y=sheet.y + (block_id - 1) * sheet.block,
              width=(run.last + 1 - run.first) * sheet.cell, height=sheet.block - (sheet.block >= 4), fill=colour,
              title=f"block {block_id}, {run.steps}: {_describe(run)}" if has_title else "")


def _draw_copies(sheet: Sheet) -> None:
    for index, step in zip(sheet.history.shown, sheet.history.steps):
        for source, copy in step["copies"]:
            sheet.add("circle", cx=sheet.x(index) + sheet.cell / 2, r=2.5, fill=PAPER, stroke=INK,
                      cy=sheet.y + (copy - 0.5) * sheet.block - 0.5, data_part="copy",
                      title=f"step {index}: block {source} is copied into block {copy}")


def _describe(run: Run) -> str:
    if run.kind in (CACHED, KEPT):
        return "free, still cached" if run.kind == CACHED else "kept for a copy"
    names = ", ".join(run.owners[:6]) + (f" and {len(run.owners) - 6} more" if len(run.owners) > 6 else "")
    if run.kind == USED:
        return names
    return f"shared by {names}" if len(run.owners) > 1 else f"{names}, and kept for a copy"
