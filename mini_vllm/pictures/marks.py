"""The shapes of a timeline, one for each thing that can happen: the panels and the legend draw the same.

A request's colour only says whose it is. What happened is told by shape, so that a grey print says it too.
"""

from __future__ import annotations

from mini_vllm.pictures.elements import cross
from mini_vllm.pictures.timeline_canvas import Sheet
from mini_vllm.trace.history import AGAIN, CACHED, DECODE, FORKED, IDLE, PREEMPTED, SHARED

#: In cells that are narrower, decoded tokens are a band instead of pearls.
MIN_PEARL = 4.5


def draw_box(sheet: Sheet, left: float, right: float, middle: float, height: float, paint: str, kind: str,
             title: str = "") -> None:
    """Tokens of a prompt; underlined in red if they are computed again."""
    sheet.add("rect", x=left, y=middle - height / 2, width=right - left, height=height, fill=paint, stroke="line",
              stroke_width=0.75, data_kind=kind if title else None, title=title)
    if kind == AGAIN:  # in red, under a line of paper: some requests are red as well
        for paint, up, thick in (("paper", 4, 1), ("alarm", 3, 3)):
            sheet.add("rect", x=left, y=middle + height / 2 - up, width=right - left, height=thick, fill=paint,
                      pointer_events="none")


def pearl_size(sheet: Sheet) -> float:
    return max(min(sheet.cell - 1.5, sheet.row - (9 if sheet.is_brief else 12), 12), 3)


def draw_pearls(sheet: Sheet, left: float, right: float, middle: float, paint: str, title: str = "", *,
                apart: float | None = None, size: float | None = None) -> None:
    """Tokens that were decoded, one a step; a band where steps are too narrow for pearls."""
    kind, size = DECODE if title else None, size or pearl_size(sheet)
    if sheet.cell < MIN_PEARL:
        height = max(round(0.36 * sheet.row, 1), 3)
        sheet.add("rect", x=left, y=middle - height / 2, width=right - left, height=height, fill=paint, stroke="line",
                  stroke_width=0.5, data_kind=kind, title=title)
        return
    apart = apart or sheet.cell
    sheet.add("rect", x=left, y=middle - 1, width=right - left, height=2, fill=paint, data_kind=kind, title=title)
    for width, stroke in ((size + 1, "line"), (size, paint)):  # a dashed line of round dots is one shape, however long
        sheet.add("path", d=f"M{left:g} {middle:g}H{right:g}", stroke=stroke, stroke_width=width,
                  stroke_linecap="round", stroke_dasharray=f"0 {apart:.7g}", stroke_dashoffset=-apart / 2,
                  pointer_events="none")


def draw_ring(sheet: Sheet, x: float, y: float, radius: float, paint: str, title: str = "") -> None:
    """A first token, of a prompt that another computed."""
    sheet.add("circle", cx=x, cy=y, r=radius + 0.75, fill="line")
    sheet.add("circle", cx=x, cy=y, r=radius - 0.75, fill="paper", stroke=paint, stroke_width=1.5,
              data_kind=FORKED if title else None, title=title)


def draw_line(sheet: Sheet, left: float, right: float, y: float, kind: str, title: str = "") -> None:
    """A request that waits, or runs without a token."""
    sheet.add("path", d=f"M{left:g} {y:g}H{right:g}", stroke="line", stroke_width=1.5,
              stroke_dasharray="2 2" if kind == IDLE else None, data_kind=kind if title else None, title=title)


def draw_cross(sheet: Sheet, x: float, y: float, radius: float, title: str = "") -> None:
    """A request that is preempted."""
    sheet.add("path", d=cross(x, y, radius), stroke="alarm", stroke_width=2.5, data_kind=PREEMPTED if title else None,
              title=title)


def draw_ear(sheet: Sheet, right: float, top: float) -> None:
    """The first token comes of this step."""
    sheet.add("path", d=f"M{right - 6:g} {top:g}h6v6z", fill="ink", pointer_events="none")


def draw_end(sheet: Sheet, x: float, y: float, height: float, is_good: bool, title: str = "") -> None:
    """A bar; with a flag if the request did not come to its own end."""
    flag = "" if is_good else f"l8 {min(height / 2, 5):g}l-8 {min(height / 2, 5):g}"
    paint = "ink" if is_good else "alarm"
    sheet.add("path", d=f"M{x:g} {y + height:g}V{y:g}{flag}", stroke=paint, stroke_width=3,
              fill="none" if is_good else paint, data_end=("good" if is_good else "bad") if title else None,
              title=title)


def draw_block(sheet: Sheet, x: float, y: float, width: float, height: float, paint: str, kind: str, title: str = "", *,
               is_pale: bool = False) -> None:
    """A block in one state: pale where it is yet to be filled, dashed if it is free but cached, hatched if shared."""
    is_dashed = kind == CACHED and height >= 7
    sheet.add("rect", x=x, y=y, width=width, height=height, fill=paint, fill_opacity=0.35 if is_pale else None,
              stroke="line" if is_dashed else None, stroke_width=0.75 if is_dashed else None,
              stroke_dasharray="3 2" if is_dashed else None, data_state=kind, title=title)
    if kind == SHARED:
        sheet.hatch(x, y, width, height)


def draw_copy(sheet: Sheet, x: float, y: float, title: str = "") -> None:
    sheet.add("circle", cx=x, cy=y, r=3, fill="paper", stroke="ink", data_part="copy" if title else None, title=title)
