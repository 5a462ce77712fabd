"""The canvas of a timeline: its sizes, which depend on the run, and drawing functions that all panels use."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.elements import cut, round_up, sans_width, shorten
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.trace.history import AGAIN, PROMPT, History, leader_of, sample_of
from mini_vllm.trace.summary import duration_s

MARGIN = 16
#: The default width of a picture, if its cells can be stretched or shrunk to it.
WIDTH = 960
MIN_WIDTH, MAX_WIDTH = 480, 10_000
MIN_CELL, MAX_CELL = 2.0, 56.0
#: The font size of a row's label, and the width of each column next to it.
SIZE, COLUMN = 11, 38
#: The maximum height of a row in a brief picture.
BRIEF_ROW = 17


class Sheet(Canvas):
    """The sheet that panels are drawn on, each below the last one; the next panel begins at ``y``.

    The steps reach from ``left`` to ``end``, each ``cell`` wide; ``row`` is the height of a request.
    """

    def __init__(self, history: History, width: int | None = None, is_brief: bool = False,
                 has_blocks: bool = True) -> None:
        """Choose the sizes. ``width`` is that of the whole picture, in pixels (None: by the number of steps).

        If ``is_brief``, leave out times and the numbers of tokens next to the rows, and make the rows low, so that the
        picture can be read on a narrow screen.
        """
        super().__init__()
        self.is_brief, self.has_blocks = is_brief, has_blocks
        self.history, self.header = history, history.trace.header
        self.cast = Cast.of_trace(history.trace)
        #: The requests in the order of their rows; samples of one prompt are next to each other.
        self.rows = sorted(history.rows, key=self._place)
        self.has_times = not is_brief and duration_s(history) > 0
        self.has_found = not is_brief and any(history.found.get(request_id) for request_id in self.rows)
        self.labels = self._labels(0.18 * (width or WIDTH))
        widest = max((sans_width(label, SIZE) for label in self.labels.values()), default=0)
        columns = 0 if is_brief else COLUMN * (1 + self.has_found)
        self.left = MARGIN + max(22 + math.ceil(1.04 * widest) + columns, 0 if is_brief else 124) + 6
        beside = (66 if self.has_times else 10) + MARGIN
        num_steps = len(history.shown)
        cell = ((width or WIDTH) - self.left - beside) / num_steps
        self.cell = cell if width else min(max(math.floor(4 * cell) / 4, MIN_CELL), MAX_CELL)
        self.end = self.left + self.cell * num_steps
        self.width = width or max(math.ceil(self.end + beside), 560)
        self.row = min(max(600 // max(len(self.rows), 1), 11), BRIEF_ROW if is_brief else 24)
        #: The largest number of tokens in a cell.
        self.most = max((run.num_tokens for runs in history.rows.values() for run in runs
                         if run.kind in (PROMPT, AGAIN)), default=1)
        #: The largest number of tokens that a step drafted for a request.
        self.most_drafted = max((run.num_drafted for runs in history.rows.values() for run in runs), default=0)
        #: Every ``tick``-th step has its number written.
        self.tick = round_up(34 / self.cell)
        self.y: float = MARGIN / 2 if is_brief else MARGIN

    def _place(self, request_id: str) -> tuple[int, int]:
        """Return the place of the request's first sample, and the number of this sample."""
        order = list(self.history.rows)
        leader = leader_of(request_id, self.history.rows)
        return order.index(leader), sample_of(request_id, self.history.rows) or 0

    def _labels(self, room: float) -> dict[str, str]:
        """Return the first words of each prompt, or the id; nothing if the id is the letter."""
        labels = {}
        for request_id in self.rows:
            names, sample = self.history.names, sample_of(request_id, self.history.rows)
            name = names.get(request_id) or names.get(leader_of(request_id, self.history.rows))
            number = "" if name is None or sample is None else f" #{sample + 1}"
            text = shorten(request_id) if name is None else name
            labels[request_id] = "" if text == self.cast.letter(request_id) else \
                cut(text, SIZE, room - sans_width(number, SIZE)) + number
        return labels

    def x(self, step: int) -> float:
        return self.left + (step - self.history.shown.start) * self.cell

    def ticks(self, every: int) -> Iterable[int]:
        shown = self.history.shown
        return range(-(-shown.start // every) * every, shown.stop, every)

    # ---- what panels share

    def heading(self, text: str, *under: str) -> None:
        """Write the name of a panel and explanations to the left of it."""
        self.text(MARGIN, self.y + 8, text, 10, "ink", font_weight="bold")
        for number, line in enumerate(under, 1):
            self.text(MARGIN, self.y + 8 + 13 * number, line, 10)

    def number(self, y: float, text: str) -> None:
        """Write a number on the axis to the left of a panel."""
        self.text(self.left - 6, y, text, 9, text_anchor="end")

    def rule(self, y: float, paint: str = "line") -> None:
        self.add("path", d=f"M{self.left:g} {y:g}H{self.end:g}", stroke=paint)

    def chip(self, request_id: str, x: float, middle: float, size: float) -> None:
        """Draw the letter of a request on its colour."""
        letter = self.cast.letter(request_id)
        self.add("rect", x=x, y=middle - size / 2, width=size, height=size, rx=2.5, fill=self.cast.paint(request_id),
                 stroke="line", stroke_width=0.75)
        fits = min(size * 0.72, size * 0.9 / max(sans_width(letter, 1), 0.1))
        self.text(x + size / 2, middle + 0.36 * fits, letter, round(fits, 1), ON_COLOUR, text_anchor="middle",
                  font_weight="bold", pointer_events="none")

    def draw_grid(self, height: float) -> None:
        every = self.tick if self.cell < 12 else 1
        lines = "".join(f"M{self.x(index):g} {self.y:g}v{height:g}" for index in self.ticks(every))
        self.add("rect", x=self.left, y=self.y, width=self.end - self.left, height=height, fill="none", stroke="grid")
        self.add("path", d=lines, stroke="grid", shape_rendering="crispEdges")

    def draw_step_numbers(self, y: float) -> None:
        self.text(MARGIN, y, "step", 10, "ink", font_weight="bold")
        for index in self.ticks(self.tick):
            self.text(self.x(index) + self.cell / 2, y, str(index), 10, "ink", text_anchor="middle")

    def to_picture(self, label: str, look: str) -> Picture:
        height = math.ceil(self.y + (MARGIN / 2 if self.is_brief else MARGIN))
        return Picture(self.to_svg(self.width, height, label), self.width, height, label, look)
