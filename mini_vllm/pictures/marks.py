"""The shapes of a timeline, one per kind of event. The panels and the legend draw the same shapes.

The colour identifies the request. The shape shows what happened, so that a grey print shows it as well.
"""

from __future__ import annotations

import math

from mini_vllm.pictures.elements import box, cross, disc
from mini_vllm.pictures.timeline_canvas import Sheet
from mini_vllm.trace.history import AGAIN, CACHED, DECODE, DRAFTED, FORKED, IDLE, PREEMPTED, SHARED

#: In narrower cells, decoded tokens are a band instead of pearls.
MIN_PEARL = 4.5
#: The sizes of a drafted token. Where it would be smaller, drafted tokens are bars instead.
MIN_DRAFT, MAX_DRAFT = 3.4, 8.0
ACCEPTED, REJECTED = "accepted", "rejected"


def draw_box(sheet: Sheet, left: float, right: float, middle: float, height: float, paint: str, kind: str,
             title: str = "") -> None:
    """Draw tokens of a prompt, underlined in red if they are computed again."""
    sheet.add("rect", x=left, y=middle - height / 2, width=right - left, height=height, fill=paint, stroke="line",
              stroke_width=0.75, data_kind=kind if title else None, title=title)
    if kind == AGAIN:  # in red, below a line in the paper's colour: some requests are also red
        for paint, up, thick in (("paper", 4, 1), ("alarm", 3, 3)):
            sheet.add("rect", x=left, y=middle + height / 2 - up, width=right - left, height=thick, fill=paint,
                      pointer_events="none")


def pearl_size(sheet: Sheet) -> float:
    return max(min(sheet.cell - 1.5, sheet.row - (9 if sheet.is_brief else 12), 12), 3)


def draw_pearls(sheet: Sheet, left: float, right: float, middle: float, paint: str, title: str = "", *,
                apart: float | None = None, size: float | None = None) -> None:
    """Draw decoded tokens, one per step: as pearls, or as a band where steps are too narrow for pearls."""
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


def draft_size(sheet: Sheet) -> float:
    """Return the size of a drafted token: the largest at which the tokens of every step fit into their cells."""
    number, width, height = sheet.most_drafted + 1, 0.9 * sheet.cell, sheet.row - 6
    return min(max(min(width / columns, height / math.ceil(number / columns)) for columns in range(1, number + 1)),
               MAX_DRAFT)


def draw_drafts(sheet: Sheet, left: float, right: float, middle: float, paint: str, num_accepted: int,
                num_rejected: int, title: str = "", *, apart: float | None = None, size: float | None = None,
                height: float | None = None) -> None:
    """Draw the tokens of a step in the order of the text: the accepted ones as squares, the token that the model added
    as a pearl, the rejected ones as hollow squares.

    Where these would be too small, draw a band with bars on it: upwards for accepted tokens, downwards for rejected
    ones.
    """
    cell, size, height = apart or sheet.cell, size or draft_size(sheet), height or sheet.row - 4
    sheet.add("rect", x=left, y=middle - height / 2, width=right - left, height=height, fill_opacity=0,
              data_kind=DRAFTED if title else None, title=title)
    is_bar = size < MIN_DRAFT
    if is_bar:
        paths = _draft_bars(left, right, middle, height, num_accepted / sheet.most_drafted,
                            num_rejected / sheet.most_drafted)
    else:
        paths = _draft_tokens(left, right, middle, cell, size, num_accepted, num_rejected)
    for path, num_tokens, part in zip(paths, (num_accepted, 1, num_rejected), (ACCEPTED, None, REJECTED)):
        if num_tokens:
            fill, stroke = ("paper", "faint") if part == REJECTED else (paint, None if is_bar else "line")
            sheet.add("path", d=path, fill=fill, stroke=stroke, stroke_width=stroke and 0.75,
                      data_part=part if title else None, pointer_events="none")


def _draft_bars(left: float, right: float, middle: float, height: float, accepted: float, rejected: float
                ) -> list[str]:
    """Return bars of accepted tokens, of the model's token and of rejected tokens, given as shares of the most."""
    band = max(round(0.36 * (height + 4), 1), 3)
    most, top, width = (height - band) / 2, middle - band / 2, right - left
    return [box(left, top - accepted * most, width, accepted * most), box(left, top, width, band),
            box(left, top + band, width, rejected * most)]


def _draft_tokens(left: float, right: float, middle: float, cell: float, size: float, num_accepted: int,
                  num_rejected: int) -> list[str]:
    """Return the shapes of accepted tokens, of the model's token and of rejected tokens, for each step."""
    number, half, paths = num_accepted + 1 + num_rejected, size / 2 - 0.6, ["", "", ""]
    columns = min(int(0.9 * cell / size + 1e-6), number)
    top = middle - math.ceil(number / columns) * size / 2
    for step in range(round((right - left) / cell)):
        for index in range(number):
            x = left + (step + 0.5) * cell + (index % columns + 0.5 - columns / 2) * size
            y = top + (index // columns + 0.5) * size
            if index == num_accepted:
                paths[1] += disc(x, y, half)
            else:
                paths[0 if index < num_accepted else 2] += box(x - half, y - half, 2 * half, 2 * half)
    return paths


def draw_ring(sheet: Sheet, x: float, y: float, radius: float, paint: str, title: str = "") -> None:
    """Draw the first token of a request whose prompt another request computed."""
    sheet.add("circle", cx=x, cy=y, r=radius + 0.75, fill="line")
    sheet.add("circle", cx=x, cy=y, r=radius - 0.75, fill="paper", stroke=paint, stroke_width=1.5,
              data_kind=FORKED if title else None, title=title)


def draw_line(sheet: Sheet, left: float, right: float, y: float, kind: str, title: str = "") -> None:
    """Draw a request that waits, or runs without a token."""
    sheet.add("path", d=f"M{left:g} {y:g}H{right:g}", stroke="line", stroke_width=1.5,
              stroke_dasharray="2 2" if kind == IDLE else None, data_kind=kind if title else None, title=title)


def draw_cross(sheet: Sheet, x: float, y: float, radius: float, title: str = "") -> None:
    """Draw a request that is preempted."""
    sheet.add("path", d=cross(x, y, radius), stroke="alarm", stroke_width=2.5, data_kind=PREEMPTED if title else None,
              title=title)


def draw_ear(sheet: Sheet, right: float, top: float) -> None:
    """Mark the step that produces the first token."""
    sheet.add("path", d=f"M{right - 6:g} {top:g}h6v6z", fill="ink", pointer_events="none")


def draw_end(sheet: Sheet, x: float, y: float, height: float, is_good: bool, title: str = "") -> None:
    """Draw the end of a request as a bar, with a flag if it ended early."""
    flag = "" if is_good else f"l8 {min(height / 2, 5):g}l-8 {min(height / 2, 5):g}"
    paint = "ink" if is_good else "alarm"
    sheet.add("path", d=f"M{x:g} {y + height:g}V{y:g}{flag}", stroke=paint, stroke_width=3,
              fill="none" if is_good else paint, data_end=("good" if is_good else "bad") if title else None,
              title=title)


def draw_block(sheet: Sheet, x: float, y: float, width: float, height: float, paint: str, kind: str, title: str = "", *,
               is_pale: bool = False) -> None:
    """Draw a block in one state: pale where it is not filled yet, dashed if free but cached, hatched if shared."""
    is_dashed = kind == CACHED and height >= 7
    sheet.add("rect", x=x, y=y, width=width, height=height, fill=paint, fill_opacity=0.35 if is_pale else None,
              stroke="line" if is_dashed else None, stroke_width=0.75 if is_dashed else None,
              stroke_dasharray="3 2" if is_dashed else None, data_state=kind, title=title)
    if kind == SHARED:
        sheet.hatch(x, y, width, height)


def draw_copy(sheet: Sheet, x: float, y: float, title: str = "") -> None:
    sheet.add("circle", cx=x, cy=y, r=3, fill="paper", stroke="ink", data_part="copy" if title else None, title=title)
