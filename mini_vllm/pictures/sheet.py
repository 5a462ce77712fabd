"""The sheet that a picture is drawn on: its sizes, chosen for what is to be shown, and the shapes so far."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mini_vllm.pictures.elements import (
    FAINT,
    GRID,
    INK,
    PAPER,
    REQUEST_COLOURS,
    SHADES,
    quote,
    round_up,
    shape,
    shorten,
    text_width,
)
from mini_vllm.trace.history import History

MARGIN = 16


class Sheet:
    """Each panel is drawn under the last one; ``y`` is where the next begins.

    ``left`` to ``right`` are the steps, ``cell`` wide each; ``row`` is the height of a request, ``block`` that of a
    block.
    """

    def __init__(self, history: History) -> None:
        self.history, self.header = history, history.trace.header
        num_steps, num_rows = len(history.shown), len(history.rows)
        self.cell = min(max(math.floor(2 * 1160 / num_steps) / 2, 2), 32)
        self.row = min(max(600 // max(num_rows, 1), 10), 22)
        self.num_blocks = self.header["num_blocks"] - 1
        self.num_block_rows = max(min(self.num_blocks, 24), *history.block_runs, 0)
        self.block = min(max(480 // max(self.num_block_rows, 1), 1), 14)
        self.labels = {request_id: shorten(request_id) for request_id in history.rows}
        self.colours = dict(zip(history.rows, REQUEST_COLOURS)) if num_rows <= len(REQUEST_COLOURS) else {}
        widest = max((text_width(label, 11) for label in self.labels.values()), default=0)
        self.left = MARGIN + max(math.ceil(widest + text_width("0" * 6, 10)) + 26, 132)
        self.title = history.title()
        self.right = self.left + self.cell * num_steps
        self.width = max(self.right + 24, MARGIN + math.ceil(text_width(self.title, 13))) + MARGIN
        #: The most tokens of one cell: the darkest shade.
        self.most = max((run.num_tokens for runs in history.rows.values() for run in runs if run.kind in SHADES),
                        default=1)
        #: A step in this many has its number written.
        self.tick = round_up(34 / self.cell)
        self.y: float = MARGIN
        self._parts: list[str] = []

    def x(self, step: int) -> float:
        return self.left + (step - self.history.shown.start) * self.cell

    def ticks(self, every: int) -> Iterable[int]:
        shown = self.history.shown
        return range(-(-shown.start // every) * every, shown.stop, every)

    # ---- shapes

    def add(self, name: str, *, title: str = "", **attributes: object) -> None:
        self._parts.append(shape(name, attributes, title))

    def text(self, x: float, y: float, text: str, size: float = 10, fill: str = FAINT, *, title: str = "",
             **attributes: object) -> None:
        self._parts.append(shape("text", {"x": x, "y": y, "font_size": size, "fill": fill, **attributes}, title, text))

    def open_group(self, **attributes: object) -> None:
        self._parts.append(shape("g", attributes).removesuffix("/>") + ">")

    def close_group(self) -> None:
        self._parts.append("</g>")

    def draw_grid(self, height: float) -> None:
        every = self.tick if self.cell < 12 else 1
        lines = "".join(f"M{self.x(index):g} {self.y:g}v{height:g}" for index in self.ticks(every))
        self.add("rect", x=self.left, y=self.y, width=self.right - self.left, height=height, fill="none", stroke=GRID)
        self.add("path", d=lines, stroke=GRID, shape_rendering="crispEdges")

    def draw_step_numbers(self, y: float) -> None:
        self.text(MARGIN, y, "step", 10, INK, font_weight="bold")
        for index in self.ticks(self.tick):
            self.text(self.x(index) + self.cell / 2, y, str(index), 10, INK, text_anchor="middle")

    def to_svg(self) -> str:
        """All that was drawn, as the text of a file."""
        height = self.y + MARGIN
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" height="{height:g}" '
                f'viewBox="0 0 {self.width:g} {height:g}" font-family="Helvetica, Arial, sans-serif" role="img" '
                f'aria-label={quote(self.title)}>')
        paper = shape("rect", {"width": self.width, "height": height, "fill": PAPER})
        return "\n".join((head, paper, *self._parts, "</svg>", ""))
