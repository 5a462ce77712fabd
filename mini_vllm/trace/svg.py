"""A step trace as a picture: requests over steps, and under them the blocks of the pool on the same axis.

    svg = draw_trace(StepTrace.load("run.trace"))
    Path("run.svg").write_text(svg, encoding="utf-8")

    tokens     ▃ ▇ ▇ ▂ ▂ ▂          bars against the budget of a step
    step       0 1 2 3 4 5
    r0  12     █ █ ● ● ● ●▌         a row for each request
    r1  40     – █ █ ✕ – –
    block 1    ▒ ▒ ▒ ▒ ▒ ▒          a row for each block

The trace is replayed first (``History``), because it tells only what changes. Then it is painted (``_Picture``).
Equal neighbours in a row become one shape, so that a long run stays a small file. Colours stand in attributes, not in a
style sheet: a picture inside a notebook must not restyle the page around it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from mini_vllm.trace.history import (
    AGAIN,
    CACHED,
    DECODE,
    FORKED,
    IDLE,
    KEPT,
    PREEMPTED,
    PROMPT,
    SHARED,
    USED,
    WAITING,
    History,
    Run,
    count,
)
from mini_vllm.trace.recorder import StepTrace

#: Pale for few tokens, dark for many.
SHADES = {PROMPT: ("#d3e5f8", "#0b4a94"), AGAIN: ("#e9d8f5", "#65189a")}
COLOURS = {DECODE: "#3f9d5a", FORKED: "#b7dfc1", WAITING: "#a3a3a3", IDLE: "#5d86b3", PREEMPTED: "#d0021b",
           USED: "#86a3bd", SHARED: "#22303c", CACHED: "#efe6c4", KEPT: "#c4c4c4"}
#: For the blocks of a request, if there are no more requests than colours.
REQUEST_COLOURS = ("#4e79a7", "#f28e2b", "#2fa39a", "#d37295", "#edc948", "#9c755f", "#8d7cc3", "#a3b83c", "#e8776b",
                   "#63b7dc", "#6b7a2f", "#d9a6c2")
INK, FAINT, GRID, PAPER, END, BAD_END = "#1c1c1c", "#666666", "#e4e4e4", "#ffffff", "#1c1c1c", "#e06c00"
GOOD_ENDS = ("stop", "length")

MARGIN, STRIP_HEIGHT = 16, 56
#: Beyond so many shapes in the block panel they are drawn without tooltips.
MAX_BLOCK_TITLES = 8000
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def draw_trace(trace: StepTrace, *, first_step: int = 0, num_steps: int | None = None) -> str:
    """The picture of ``num_steps`` steps from ``first_step`` on, as the text of an SVG file. None: to the last step.

    The numbers in its title are those of the steps shown. Raises ValueError for a trace without steps, and for steps
    that it does not have.
    """
    if not trace.steps:
        raise ValueError("the trace has no steps")
    last = len(trace.steps) - 1
    if not 0 <= first_step <= last:
        raise ValueError(f"first_step is {first_step}, must be from 0 to {last}")
    if num_steps is None:
        num_steps = len(trace.steps) - first_step
    if not 1 <= num_steps <= len(trace.steps) - first_step:
        raise ValueError(f"num_steps is {num_steps}, must be from 1 to {len(trace.steps) - first_step}: the trace has "
                         f"{len(trace.steps)} steps, and the first one shown is {first_step}")
    return _Picture(History(trace, range(first_step, first_step + num_steps))).draw()


# ---- the picture


class _Picture:
    """Sizes first, then one method for each panel, from top to bottom; ``y`` is where the next one begins."""

    def __init__(self, history: History) -> None:
        self.history, self.header = history, history.trace.header
        num_steps, num_rows = len(history.shown), len(history.rows)
        self.cell = min(max(math.floor(2 * 1160 / num_steps) / 2, 2), 32)
        self.row = min(max(600 // max(num_rows, 1), 10), 22)
        self.num_blocks = self.header["num_blocks"] - 1
        self.num_block_rows = max(min(self.num_blocks, 24), *history.block_runs, 0)
        self.block = min(max(480 // max(self.num_block_rows, 1), 1), 14)
        self.labels = {request_id: _shorten(request_id) for request_id in history.rows}
        self.colours = dict(zip(history.rows, REQUEST_COLOURS)) if num_rows <= len(REQUEST_COLOURS) else {}
        widest = max((_width(label, 11) for label in self.labels.values()), default=0)
        self.left = MARGIN + max(math.ceil(widest + _width("0" * 6, 10)) + 26, 132)
        self.title = history.title()
        self.right = self.left + self.cell * num_steps
        self.width = max(self.right + 24, MARGIN + math.ceil(_width(self.title, 13))) + MARGIN
        self.most = max((run.num_tokens for runs in history.rows.values() for run in runs if run.kind in SHADES),
                        default=1)
        self.tick = _nice(34 / self.cell)
        self.parts: list[str] = []
        self.y = MARGIN

    def draw(self) -> str:
        self._draw_title()
        self._draw_legend()
        self._draw_strip()
        self._draw_axis()
        self._draw_requests()
        self._draw_blocks()
        height = self.y + MARGIN
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" height="{height:g}" '
                f'viewBox="0 0 {self.width:g} {height:g}" font-family="Helvetica, Arial, sans-serif" role="img" '
                f'aria-label={_quote(self.title)}>')
        paper = _shape("rect", width=self.width, height=height, fill=PAPER)
        return "\n".join((head, paper, *self.parts, "</svg>", ""))

    def _x(self, step: int) -> float:
        return self.left + (step - self.history.shown.start) * self.cell

    def _add(self, name: str, **attributes: object) -> None:
        self.parts.append(_shape(name, **attributes))

    def _text(self, x: float, y: float, text: str, size: float = 10, fill: str = FAINT, **attributes: object) -> None:
        self.parts.append(_shape("text", x=x, y=y, font_size=size, fill=fill, text=text, **attributes))

    def _open(self, **attributes: object) -> None:
        self.parts.append(_shape("g", **attributes).removesuffix("/>") + ">")

    def _close(self) -> None:
        self.parts.append("</g>")

    # ---- above the panels

    def _draw_title(self) -> None:
        header = self.header
        self._text(MARGIN, self.y + 12, self.title, 13, INK, font_weight="bold", data_part="title")
        self._text(MARGIN, self.y + 29, f"{self.num_blocks} blocks of {count(header['block_size'], 'token')}; a step "
                   f"computes at most {header['max_num_batched_tokens']} tokens of at most "
                   f"{count(header['max_num_seqs'], 'sequence')}", 11)
        self.y += 40

    def _draw_legend(self) -> None:
        kinds = {run.kind for runs in (*self.history.rows.values(), *self.history.block_runs.values()) for run in runs}
        statuses = {status for _, _, status in self.history.ends}
        entries = [("requests:", None), (f"prompt, up to {count(self.most, 'token')}", PROMPT), ("recomputed", AGAIN),
                   ("decode", DECODE), ("waits", WAITING), ("preempted", PREEMPTED), ("finished", "end")]
        entries += [("first token, of a prompt computed by another", FORKED)] * (FORKED in kinds)
        entries += [("runs, but gets no token", IDLE)] * (IDLE in kinds)
        entries += [("ended early", "bad end")] * bool(statuses.difference(GOOD_ENDS))
        entries += [("blocks:", None), ("used by one, in its colour" if self.colours else "used by one", USED),
                    ("shared", SHARED), ("free, still cached", CACHED), ("free", "free")]
        entries += [("kept for a copy", KEPT)] * (KEPT in kinds)
        entries += [("copied into", "copy")] * any(step["copies"] for step in self.history.steps)
        x, y = MARGIN, self.y
        for text, kind in entries:
            if kind is None and x > MARGIN or x + 40 + _width(text, 10) > self.width - MARGIN:
                x, y = MARGIN, y + 16
            if kind is None:
                self._text(x, y + 9, text, 10, INK, font_weight="bold")
                x += 62
                continue
            x += self._draw_swatch(x, y, kind) + 4
            self._text(x, y + 9, text)
            x += math.ceil(_width(text, 9)) + 14
        self.y = y + 26

    def _draw_swatch(self, x: float, y: float, kind: str) -> float:
        """A sample of what a kind looks like; returns its width."""
        if kind in SHADES:
            for i in range(3):
                self._add("rect", x=x + 9 * i, y=y, width=9, height=10, fill=_shade(kind, i / 2))
            return 27
        if kind == PREEMPTED:
            self._add("path", d=_cross(x + 5, y + 5, 4), stroke=COLOURS[kind], stroke_width=2)
        elif kind in (WAITING, IDLE):
            self._draw_line(x, x + 14, y + 5, kind)
            return 14
        elif kind in ("end", "bad end"):
            self._draw_end(x + 2, y, 10, kind == "end")
        elif kind == "copy":
            self._add("rect", x=x, y=y, width=10, height=10, fill=COLOURS[USED])
            self._add("circle", cx=x + 5, cy=y + 5, r=2.5, fill=PAPER, stroke=INK)
        elif kind == USED and self.colours:
            colours = list(self.colours.values())[:3]
            for i, colour in enumerate(colours):
                self._add("rect", x=x + 7 * i, y=y, width=7, height=10, fill=colour)
            return 7 * len(colours)
        else:
            self._add("rect", x=x + 0.5, y=y + 0.5, width=9, height=9, fill=COLOURS.get(kind, PAPER), stroke="#999999",
                      stroke_width=1 if kind in ("free", CACHED) else 0)
        return 10

    def _draw_strip(self) -> None:
        budget, bottom = self.header["max_num_batched_tokens"], self.y + STRIP_HEIGHT
        top = max(1, *(each.num_tokens for each in self.history.totals))
        is_in_sight = budget <= 4 * top  # else the bars would be too small to see
        top = max(top, budget) if is_in_sight else top
        self._text(MARGIN, self.y + 8, "tokens in a step", 10, INK, font_weight="bold")
        for number in (0, top):
            y = bottom - number / top * (STRIP_HEIGHT - 4)
            self._text(self.left - 6, y + 3.5, str(number), text_anchor="end")
            self._add("path", d=f"M{self.left:g} {y:g}H{self.right:g}", stroke=GRID)
        gap = 1 if self.cell >= 5 else 0
        self._open(data_panel="tokens", shape_rendering="crispEdges")
        for index, totals in zip(self.history.shown, self.history.totals):
            y, x = bottom, self._x(index)
            for number, colour in ((totals.num_decode, COLOURS[DECODE]), (totals.num_again, _shade(AGAIN, 0.6)),
                                   (totals.num_prompt, _shade(PROMPT, 0.6))):
                if number:
                    height = round(number / top * (STRIP_HEIGHT - 4), 2)
                    y -= height
                    self._add("rect", x=x, y=y, width=self.cell - gap, height=height, fill=colour)
            step = self.history.trace.steps[index]
            self._add("rect", x=x, y=self.y, width=self.cell, height=STRIP_HEIGHT, fill=PAPER, fill_opacity=0, title=(
                f"step {index}, {step['start_s'] * 1000:.1f} to {step['end_s'] * 1000:.1f} ms: "
                f"{totals.num_prompt} prompt, {totals.num_again} recomputed, {totals.num_decode} decode tokens; "
                f"{count(totals.num_used_blocks, 'block')} in use"))
        self._close()
        if is_in_sight:
            y = bottom - budget / top * (STRIP_HEIGHT - 4)
            self._add("path", d=f"M{self.left:g} {y:g}H{self.right:g}", stroke=INK, stroke_dasharray="4 3",
                      data_part="budget", title=f"a step computes at most {budget} tokens")
        self._text(MARGIN, self.y + 22, f"budget {budget}" if is_in_sight else f"budget {budget}, far above")
        self.y = bottom + 2

    def _ticks(self, every: int) -> Iterable[int]:
        shown = self.history.shown
        return range(-(-shown.start // every) * every, shown.stop, every)

    def _draw_step_numbers(self, y: float) -> None:
        self._text(MARGIN, y, "step", 10, INK, font_weight="bold")
        for index in self._ticks(self.tick):
            self._text(self._x(index) + self.cell / 2, y, str(index), 10, INK, text_anchor="middle")

    def _draw_axis(self) -> None:
        self._draw_step_numbers(self.y + 12)
        starts_ms = [step["start_s"] * 1000 for step in self.history.steps]
        digits = 0 if starts_ms[-1] - starts_ms[0] >= 10 * len(starts_ms) else 1
        widest = _width(f"{starts_ms[-1]:.{digits}f}", 9)
        self._text(MARGIN, self.y + 25, "begins at, ms")
        for index in self._ticks(self.tick * max(_nice((widest + 14) / (self.tick * self.cell)), 1)):
            self._text(self._x(index) + self.cell / 2, self.y + 25,
                       f"{starts_ms[index - self.history.shown.start]:.{digits}f}", 9, text_anchor="middle")
        self.y += 36

    def _draw_grid(self, height: float) -> None:
        every = self.tick if self.cell < 12 else 1
        lines = "".join(f"M{self._x(index):g} {self.y:g}v{height:g}" for index in self._ticks(every))
        self._add("rect", x=self.left, y=self.y, width=self.right - self.left, height=height, fill="none", stroke=GRID)
        self._add("path", d=lines, stroke=GRID, shape_rendering="crispEdges")

    # ---- requests

    def _draw_requests(self) -> None:
        self._text(MARGIN, self.y + 8, "request", 10, INK, font_weight="bold")
        self._text(self.left - 8, self.y + 8, "prompt", text_anchor="end")
        self.y += 14
        height = self.row * len(self.history.rows)
        self._draw_grid(height)
        ends: dict[str, list[tuple[int, str]]] = {request_id: [] for request_id in self.history.rows}
        for index, request_id, status in self.history.ends:
            ends[request_id].append((index, status))
        for number, (request_id, runs) in enumerate(self.history.rows.items()):
            self._open(data_request=request_id)
            self._draw_row(self.y + number * self.row, request_id, runs, ends[request_id])
            self._close()
        if self.cell >= 5:  # between the cells of one shape
            lines = "".join(f"M{self._x(index):g} {self.y:g}v{height:g}" for index in self.history.shown)
            self._add("path", d=lines, stroke=PAPER, shape_rendering="crispEdges", pointer_events="none")
        self.y += height + 14

    def _draw_row(self, y: float, request_id: str, runs: list[Run], ends: list[tuple[int, str]]) -> None:
        size = min(self.row - 1, 11)
        middle, num_prompt = y + self.row / 2, self.history.prompts.get(request_id)
        if request_id in self.colours:
            self._add("rect", x=MARGIN, y=middle - 4, width=8, height=8, fill=self.colours[request_id])
        self._text(MARGIN + 13, middle + 0.36 * size, self.labels[request_id], size, INK, font_family="monospace",
                   title="" if self.labels[request_id] == request_id else request_id)
        self._text(self.left - 8, middle + 0.36 * size, "?" if num_prompt is None else str(num_prompt),
                   min(size, 10), text_anchor="end")
        for run in runs:
            self._draw_run(y, request_id, run)
        for index, status in ends:
            is_there = any(run.first <= index <= run.last for run in runs)  # else it went before the step
            self._draw_end(self._x(index + is_there) + 1.5, y + 1, self.row - 2, status in GOOD_ENDS,
                           f"step {index}: {request_id} ends ({status})")

    def _draw_run(self, y: float, request_id: str, run: Run) -> None:
        left, right, title = self._x(run.first), self._x(run.last + 1), f"{run.steps}: {_describe(run, request_id)}"
        if run.kind in (WAITING, IDLE):
            self._draw_line(left, right, y + self.row / 2, run.kind, title)
        elif run.kind == PREEMPTED:
            for index in range(run.first, run.last + 1):
                radius = min(self.row, max(self.cell, 8), 14) / 2 - 1.5
                self._add("path", d=_cross(self._x(index) + self.cell / 2, y + self.row / 2, radius),
                          stroke=COLOURS[PREEMPTED], stroke_width=2, data_kind=PREEMPTED, title=title)
        else:
            part = run.num_tokens / self.most if self.most > 1 else 1.0
            fill = _shade(run.kind, part) if run.kind in SHADES else COLOURS[run.kind]
            self._add("rect", x=left, y=y + 1, width=right - left, height=self.row - 2, fill=fill, data_kind=run.kind,
                      title=title)
            size = next((size for size in (10, 9, 8) if run.kind in SHADES and size <= self.row - 2
                         and _width(str(run.num_tokens), size) + 3 <= self.cell), None)
            if size is not None:
                for index in range(run.first, run.last + 1):
                    self._text(self._x(index) + self.cell / 2, y + self.row / 2 + 0.36 * size, str(run.num_tokens),
                               size, PAPER if part > 0.45 else INK, text_anchor="middle", pointer_events="none")

    def _draw_line(self, left: float, right: float, y: float, kind: str, title: str = "") -> None:
        self._add("path", d=f"M{left:g} {y:g}H{right:g}", stroke=COLOURS[kind], stroke_width=1.5,
                  stroke_dasharray="2 2" if kind == IDLE else None, data_kind=kind if title else None, title=title)

    def _draw_end(self, x: float, y: float, height: float, is_good: bool, title: str = "") -> None:
        """A bar; with a flag if the request did not come to its own end."""
        flag = "" if is_good else f"l7 {min(height / 2, 4):g}l-7 {min(height / 2, 4):g}"
        self._add("path", d=f"M{x:g} {y + height:g}V{y:g}{flag}", stroke=END if is_good else BAD_END, stroke_width=3,
                  fill="none" if is_good else BAD_END, data_end=("good" if is_good else "bad") if title else None,
                  title=title)

    # ---- blocks

    def _draw_blocks(self) -> None:
        self._text(MARGIN, self.y + 8, "block", 10, INK, font_weight="bold")
        self.y += 14
        height, every = self.num_block_rows * self.block, _nice(12 / self.block)
        self._draw_grid(height)
        for block_id in range(1, self.num_block_rows + 1):
            if block_id % every == 0 or every == 1:
                self._text(self.left - 8, self.y + (block_id - 0.5) * self.block + 3.5, str(block_id),
                           text_anchor="end")
        has_titles = sum(map(len, self.history.block_runs.values())) <= MAX_BLOCK_TITLES
        self._open(data_panel="blocks", shape_rendering="crispEdges")
        for block_id, runs in sorted(self.history.block_runs.items()):
            self._open(data_block=block_id)
            for run in runs:
                colour = COLOURS[run.kind]
                if run.kind == USED:
                    colour = self.colours.get(run.owners[0], colour)
                self._add("rect", x=self._x(run.first), y=self.y + (block_id - 1) * self.block,
                          width=(run.last + 1 - run.first) * self.cell, height=self.block - (self.block >= 4),
                          fill=colour,
                          title=f"block {block_id}, {run.steps}: {_describe_block(run)}" if has_titles else "")
            self._close()
        self._close()
        if self.block >= 5:
            for index, step in zip(self.history.shown, self.history.steps):
                for source, copy in step["copies"]:
                    self._add("circle", cx=self._x(index) + self.cell / 2, r=2.5, fill=PAPER, stroke=INK,
                              cy=self.y + (copy - 0.5) * self.block - 0.5, data_part="copy",
                              title=f"step {index}: block {source} is copied into block {copy}")
        self.y += height + 12
        self._draw_step_numbers(self.y)
        if self.num_block_rows < self.num_blocks:
            self.y += 15
            self._text(MARGIN, self.y, f"Blocks {self.num_block_rows + 1} to {self.num_blocks} are free and empty all "
                       "the time, and not drawn.")


def _describe(run: Run, request_id: str) -> str:
    if run.num_tokens:
        each = "" if run.first == run.last else " each"
        again = f", {run.num_again}{each} recomputed" if run.num_again else ""
        sampled = ", one more is sampled" if run.is_sampled and run.kind != DECODE else ""
        return (f"{count(run.num_tokens, 'token')}{each} of {request_id}, {run.num_before} computed before"
                f"{again}{sampled}")
    return request_id + {FORKED: " gets its first token, from a prompt computed by another", WAITING: " waits",
                         IDLE: " runs, but gets no token", PREEMPTED: " is preempted"}[run.kind]


def _describe_block(run: Run) -> str:
    if run.kind in (CACHED, KEPT):
        return "free, still cached" if run.kind == CACHED else "kept for a copy"
    names = ", ".join(run.owners[:6]) + (f" and {len(run.owners) - 6} more" if len(run.owners) > 6 else "")
    if run.kind == USED:
        return names
    return f"shared by {names}" if len(run.owners) > 1 else f"{names}, and kept for a copy"


# ---- small things of SVG


def _clean(text: str) -> str:
    """XML has no way to write control characters."""
    return _NOT_XML.sub("\ufffd", text)


def _quote(value: object) -> str:
    return quoteattr(f"{value:.7g}" if isinstance(value, float) else _clean(str(value)))


def _shape(name: str, title: str = "", text: str = "", **attributes: object) -> str:
    """One element; an attribute that is None is left out. ``title`` is what a viewer shows under the pointer."""
    head = f"<{name}" + "".join(f" {key.replace('_', '-')}={_quote(value)}" for key, value in attributes.items()
                                if value is not None)
    inside = (f"<title>{escape(_clean(title))}</title>" if title else "") + escape(_clean(text))
    return f"{head}>{inside}</{name}>" if inside else f"{head}/>"


def _shade(kind: str, part: float) -> str:
    pale, dark = ([int(colour[i:i + 2], 16) for i in (1, 3, 5)] for colour in SHADES[kind])
    return "#" + "".join(f"{round(p + (d - p) * min(part, 1.0)):02x}" for p, d in zip(pale, dark))


def _cross(x: float, y: float, radius: float) -> str:
    return (f"M{x - radius:g} {y - radius:g}l{2 * radius:g} {2 * radius:g}"
            f"M{x - radius:g} {y + radius:g}l{2 * radius:g} {-2 * radius:g}")


def _width(text: str, size: float) -> float:
    """About how wide a text will be; fonts differ, so rather more."""
    return 0.61 * size * sum(1.7 if unicodedata.east_asian_width(letter) in "WF" else 1.0 for letter in text)


def _shorten(text: str, most: int = 24) -> str:
    """The beginning and the end of an id: those of one batch often differ only there."""
    return text if len(text) <= most else f"{text[:most - 10]}…{text[-9:]}"


def _nice(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that is at least ``least``."""
    power = 10 ** max(math.floor(math.log10(max(least, 1))), 0)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
