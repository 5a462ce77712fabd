"""Memory as a strip of slots, one per token's K/V, and the runs of slots that are allocated to requests.

    |AAAAAA░░░▨▨▨▨▨▨▨|BBB░░░░▨▨▨▨▨▨▨▨▨|                |CCCCCC|
     A holds tokens   ░ will hold some   ▨ never will    a hole

The strip shows memory that is not divided into blocks; ``runs_in_pages`` shows blocks on the same strip.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.elements import round_up, text_width, wrapped
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool_state import AnyManager
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.strip import MARGIN, WIDTH
from mini_vllm.request import Request

LOOK_AT_MEMORY = ("Each run belongs to the request with the letter on it. Slots in a plain colour hold tokens, pale "
                  "slots will hold tokens later, and striped slots never will. A dashed frame is a hole: its slots are "
                  "free.")
ROW, GAP, GUTTER = 30.0, 7.0, 40.0
KINDS = {"used": "holds tokens", "later": "will hold tokens later", "never": "will never hold one", "hole": "free"}


@dataclass(frozen=True)
class MemoryRun:
    """Neighbouring slots that are allocated to one request.

    The first ``num_used`` slots hold a token; None means all of them. The next ``num_later`` slots will hold one before
    the request ends. The rest never will.
    """

    owner: str
    start: int
    size: int
    num_used: int | None = None
    num_later: int = 0

    def parts(self) -> dict[str, tuple[int, int]]:
        """Map each kind that has at least one slot to (start, size)."""
        used = self.size if self.num_used is None else self.num_used
        starts = {"used": (self.start, used), "later": (self.start + used, self.num_later),
                  "never": (self.start + used + self.num_later, self.size - used - self.num_later)}
        return {kind: part for kind, part in starts.items() if part[1]}


def runs_in_pages(manager: AnyManager, requests: Iterable[Request]) -> list[MemoryRun]:
    """Return the blocks of ``requests`` as runs; consecutive blocks are one run.

    Empty slots count as used later if the request fills them when it reaches its ``max_tokens``. Block 1 begins at
    slot 0: block 0 is the null block, which holds no tokens.
    """
    runs, size = [], manager.block_size
    for request in requests:
        num_now = request.num_computed_tokens
        num_later = request.num_prompt_tokens + (request.sampling_params.max_tokens or math.inf) - num_now
        for first, last in _neighbours(manager.get_block_ids(request.request_id)):
            num_slots = (last - first + 1) * size
            num_used = min(num_now, num_slots)
            runs.append(MemoryRun(request.request_id, (first - 1) * size, num_slots, num_used,
                                  int(min(num_later, num_slots - num_used))))
            num_now -= num_used
    return runs


def draw_memory(num_slots: int, runs: Iterable[MemoryRun], *, per_row: int | None = None,
                waiting: tuple[str, int] | None = None, cast: Cast | None = None,
                width: int = WIDTH, look: str = LOOK_AT_MEMORY) -> Picture:
    """Draw all slots, ``per_row`` in a row (None: all in one row).

    ``waiting`` is a request that does not fit, and the number of slots it needs; it is drawn below the strip, on the
    same scale. ``width`` is the width of the picture in pixels. Raise ValueError for runs that overlap or reach beyond
    the memory, and for a run with more tokens than slots.
    """
    runs = sorted(runs, key=lambda run: run.start)
    holes = _holes(num_slots, runs)
    cast = cast if cast is not None else Cast(run.owner for run in runs)
    label = describe(num_slots, runs, holes)
    titles = wrapped(label.split(" "), 12, 0.87 * (width - 2 * MARGIN), " ")
    sheet = _Sheet(num_slots, min(per_row or num_slots, num_slots), width, MARGIN + 6.0 + 16 * len(titles))
    canvas = sheet.canvas
    for number, title in enumerate(titles):
        canvas.text(MARGIN, MARGIN + 10 + 16 * number, title, 12, "ink", font_weight="bold", data_part="title")
    for run in runs:
        for kind, (start, size) in run.parts().items():
            sheet.fill(kind, start, size, cast.paint(run.owner), f"{run.owner}: {_slots(start, size)} {KINDS[kind]}")
        for place in sheet.pieces(run.start, run.size):
            sheet.write(place, cast.letter(run.owner), 13, ON_COLOUR)
    for start, size in holes:
        sheet.fill("hole", start, size, "line", f"free: {_slots(start, size)}")
        sheet.write(max(sheet.pieces(start, size), key=lambda place: place[2]), f"{size:,} free", 11, "faint")
    y = sheet.draw_scale()
    if waiting is not None:
        y = _draw_waiting(sheet, waiting, cast, y)
    kinds = {kind for run in runs for kind in run.parts()} | ({"hole"} if holes else set())
    y = _draw_legend(canvas, kinds, y, width)
    return Picture(canvas.to_svg(width, y + MARGIN, label), width, y + MARGIN, label, look)


def describe(num_slots: int, runs: Sequence[MemoryRun], holes: Sequence[tuple[int, int]]) -> str:
    sums = {kind: sum(run.parts().get(kind, (0, 0))[1] for run in runs) for kind in KINDS}
    parts = [f"{sums['used']:,} hold a token"]
    parts += [f"{sums['later']:,} will later"] * bool(sums["later"])
    parts += [f"{sums['never']:,} never will"] * bool(sums["never"])
    parts += [f"{sum(size for _, size in holes):,} free" + (
        f" in {len(holes)} holes, the largest {max(size for _, size in holes):,}" if len(holes) > 1 else "")]
    return f"{num_slots:,} slots: {', '.join(parts)}"


def _holes(num_slots: int, runs: Sequence[MemoryRun]) -> list[tuple[int, int]]:
    """Return the free slots between the sorted runs, as (start, size)."""
    holes, end = [], 0
    for run in runs:
        if run.start < end or run.size < 1 or run.start + run.size > num_slots:
            raise ValueError(f"{run.owner} has {_slots(run.start, run.size)}, but only slots {end} to {num_slots - 1} "
                             "are left for it")
        if min(run.num_used or 0, run.num_later) < 0 or (run.num_used or 0) + run.num_later > run.size:
            raise ValueError(f"{run.owner} has {run.size} slots, which cannot hold {run.num_used} tokens now and "
                             f"{run.num_later} later")
        holes += [(end, run.start - end)] * (run.start > end)
        end = run.start + run.size
    return holes + [(end, num_slots - end)] * (num_slots > end)


def _neighbours(block_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last block id of each group of consecutive ids."""
    first = 0
    for index, block_id in enumerate(block_ids):
        if index + 1 == len(block_ids) or block_ids[index + 1] != block_id + 1:
            yield block_ids[first], block_id
            first = index + 1


def _slots(start: int, size: int) -> str:
    return f"slot {start}" if size == 1 else f"slots {start} to {start + size - 1}"


class _Sheet:
    """The position of each slot on the canvas."""

    def __init__(self, num_slots: int, per_row: int, width: int, top: float) -> None:
        self.canvas, self.num_slots, self.per_row = Canvas(), num_slots, per_row
        self.num_rows = -(-num_slots // per_row)
        self.left, self.top = MARGIN + (GUTTER if self.num_rows > 1 else 0.0), top
        self.scale = (width - MARGIN - self.left) / per_row

    def pieces(self, start: int, size: int) -> Iterator[tuple[float, float, float]]:
        """Yield x, y and width of the slots in each row that contains some of them."""
        while size > 0:
            row, column = divmod(start, self.per_row)
            here = min(size, self.per_row - column)
            yield (round(self.left + column * self.scale, 2), self.top + row * (ROW + GAP), round(here * self.scale, 2))
            start, size = start + here, size - here

    def fill(self, kind: str, start: int, size: int, paint: str, title: str) -> None:
        for x, y, width in self.pieces(start, size):
            draw_part(self.canvas, kind, (x, y, width), paint, title)

    def write(self, place: tuple[float, float, float], text: str, font_size: float, fill: str) -> None:
        """Write a text if it fits: the letter of a run at its left end, the size of a hole in the middle."""
        x, y, width = place
        is_letter = fill == ON_COLOUR
        if text_width(text, font_size) * 0.9 <= width:
            self.canvas.text(x + min(width / 2, 12 if is_letter else width), y + ROW / 2 + 4.5, text, font_size, fill,
                             text_anchor="middle", font_weight="bold" if is_letter else None, pointer_events="none")

    def draw_scale(self) -> float:
        """Write the number of each row's first slot; for a single row, a few numbers below it.

        Return the y coordinate of the end.
        """
        bottom = self.top + self.num_rows * (ROW + GAP) - GAP
        if self.num_rows > 1:
            for row in range(self.num_rows):
                self.canvas.text(self.left - 6, self.top + row * (ROW + GAP) + ROW / 2 + 4, f"{row * self.per_row:,}",
                                 10, text_anchor="end")
            return bottom + 4
        for slot in range(0, self.num_slots, round_up(self.num_slots / 8)):
            self.canvas.text(round(self.left + slot * self.scale, 2), bottom + 12, str(slot), 9)
        return bottom + 18


def draw_part(canvas: Canvas, kind: str, place: tuple[float, float, float], paint: str, title: str = "",
              height: float = ROW) -> None:
    """Draw a piece of memory: plain, pale, striped, or as a dashed frame."""
    x, y, width = place
    gap = 1.0 if width > 3 else 0.0
    x, y, width, height = x + gap / 2, y + 0.5, max(width - gap, 0.3), height - 1
    if kind == "never":
        canvas.stripe(x, y, width, height)
    canvas.add("rect", x=x, y=y, width=width, height=height, fill=paint if kind in ("used", "later") else "none",
               fill_opacity=0.35 if kind == "later" else None, stroke="line", stroke_width=1 if gap else 0.3,
               stroke_dasharray="4 3" if kind == "hole" else None, pointer_events="all", data_part=kind, title=title)


def _draw_waiting(sheet: _Sheet, waiting: tuple[str, int], cast: Cast, y: float) -> float:
    name, size = waiting
    width = round(min(size, sheet.per_row) * sheet.scale, 2)
    canvas = sheet.canvas
    canvas.add("rect", x=sheet.left + 0.5, y=y + 4.5, width=width - 1, height=ROW - 1, fill=cast.paint(name),
               stroke="alarm", stroke_width=2, stroke_dasharray="6 3", data_part="waiting")
    canvas.text(sheet.left + 12, y + ROW / 2 + 8.5, cast.letter(name), 13, ON_COLOUR, text_anchor="middle",
                font_weight="bold")
    canvas.text(sheet.left + width + 8, y + ROW / 2 + 8, f"waits for {size:,} slots in one piece", 11, "alarm")
    return y + ROW + 12


def _draw_legend(canvas: Canvas, kinds: set[str], y: float, width: int) -> float:
    """Draw a sample of each kind that occurs. Return the y coordinate of the end."""
    x = float(MARGIN)
    for kind, text in KINDS.items():
        if kind in kinds:
            if x + 28 + text_width(text, 10) > width:
                x, y = float(MARGIN), y + 19
            draw_part(canvas, kind, (x, y + 3, 22), "used" if kind in ("used", "later") else "line", height=14)
            canvas.text(x + 28, y + 14, text, 10)
            x += math.ceil(28 + 0.87 * text_width(text, 10) + 18)
    return y + 20
