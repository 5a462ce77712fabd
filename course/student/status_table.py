"""The table of ``course status``, fitted to the terminal: the bar is dropped first, then titles are shortened."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from course.core.terminal_text import shortened
from course.student.progress import LabProgress
from course.student.symbols import BAR_WIDTH, bar, state_text

GAP = 2
#: A shorter title says nothing, so it is left out.
MIN_TITLE_WIDTH = 5


def status_table(rows: Sequence[LabProgress], console: Console) -> Table:
    numbers, titles = [row.lab.number for row in rows], [row.lab.title for row in rows]
    states = [state_text(row) for row in rows]
    points = [f"{row.points}/{row.max_points}" for row in rows]
    title_width, has_bar = _fit(console, [_width(["lab", *numbers]), _width(states), _width(["points", *points])],
                                _width(titles))
    columns = [("lab", numbers), ("", [shortened(title, title_width) for title in titles] if title_width else []),
               ("state", states), ("points", points),
               ("", [bar(row.points, row.max_points) for row in rows] if has_bar else [])]
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [(heading, cells) for heading, cells in columns if cells]
    for heading, _ in shown:
        table.add_column(heading, justify="right" if heading == "points" else "left", no_wrap=True)
    for row in zip(*(cells for _, cells in shown)):
        table.add_row(*row)
    return table


def _fit(console: Console, widths: Sequence[int], title_width: int) -> tuple[int, bool]:
    """Return the width of titles (0: left out) next to columns of these widths, and whether the bar fits."""
    room = console.width - sum(widths) - GAP * len(widths)
    if title_width + GAP + BAR_WIDTH <= room:
        return title_width, True
    room -= 2 * console.options.ascii_only  # "..." replaces "…"
    return min(title_width, room if room >= MIN_TITLE_WIDTH else 0), False


def _width(cells: Sequence[str]) -> int:
    return max(map(len, cells))
