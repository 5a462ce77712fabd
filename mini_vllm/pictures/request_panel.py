"""A row for each request: what it computed in which step, where it waited, lost its blocks, and ended."""

from __future__ import annotations

from mini_vllm.pictures.elements import BAD_END, COLOURS, END, INK, PAPER, SHADES, cross, shade, text_width
from mini_vllm.pictures.sheet import MARGIN, Sheet
from mini_vllm.trace.history import DECODE, FORKED, IDLE, PREEMPTED, WAITING, Run, count

#: Statuses by which a request comes to its own end.
GOOD_ENDS = ("stop", "length")


def draw_requests(sheet: Sheet) -> None:
    sheet.text(MARGIN, sheet.y + 8, "request", 10, INK, font_weight="bold")
    sheet.text(sheet.left - 8, sheet.y + 8, "prompt", text_anchor="end")
    sheet.y += 14
    height = sheet.row * len(sheet.history.rows)
    sheet.draw_grid(height)
    ends: dict[str, list[tuple[int, str]]] = {request_id: [] for request_id in sheet.history.rows}
    for index, request_id, status in sheet.history.ends:
        ends[request_id].append((index, status))
    for number, (request_id, runs) in enumerate(sheet.history.rows.items()):
        sheet.open_group(data_request=request_id)
        _draw_row(sheet, sheet.y + number * sheet.row, request_id, runs, ends[request_id])
        sheet.close_group()
    if sheet.cell >= 5:  # between the cells of one shape
        lines = "".join(f"M{sheet.x(index):g} {sheet.y:g}v{height:g}" for index in sheet.history.shown)
        sheet.add("path", d=lines, stroke=PAPER, shape_rendering="crispEdges", pointer_events="none")
    sheet.y += height + 14


def _draw_row(sheet: Sheet, y: float, request_id: str, runs: list[Run], ends: list[tuple[int, str]]) -> None:
    size = min(sheet.row - 1, 11)
    middle, num_prompt = y + sheet.row / 2, sheet.history.prompts.get(request_id)
    if request_id in sheet.colours:
        sheet.add("rect", x=MARGIN, y=middle - 4, width=8, height=8, fill=sheet.colours[request_id])
    label = sheet.labels[request_id]
    sheet.text(MARGIN + 13, middle + 0.36 * size, label, size, INK, font_family="monospace",
               title="" if label == request_id else request_id)
    sheet.text(sheet.left - 8, middle + 0.36 * size, "?" if num_prompt is None else str(num_prompt), min(size, 10),
               text_anchor="end")
    for run in runs:
        _draw_run(sheet, y, request_id, run)
    for index, status in ends:
        is_there = any(run.first <= index <= run.last for run in runs)  # else it went before the step
        draw_end(sheet, sheet.x(index + is_there) + 1.5, y + 1, sheet.row - 2, status in GOOD_ENDS,
                 f"step {index}: {request_id} ends ({status})")


def _draw_run(sheet: Sheet, y: float, request_id: str, run: Run) -> None:
    left, right, title = sheet.x(run.first), sheet.x(run.last + 1), f"{run.steps}: {_describe(run, request_id)}"
    if run.kind in (WAITING, IDLE):
        draw_line(sheet, left, right, y + sheet.row / 2, run.kind, title)
    elif run.kind == PREEMPTED:
        for index in range(run.first, run.last + 1):
            radius = min(sheet.row, max(sheet.cell, 8), 14) / 2 - 1.5
            sheet.add("path", d=cross(sheet.x(index) + sheet.cell / 2, y + sheet.row / 2, radius),
                      stroke=COLOURS[PREEMPTED], stroke_width=2, data_kind=PREEMPTED, title=title)
    else:
        part = run.num_tokens / sheet.most if sheet.most > 1 else 1.0
        fill = shade(run.kind, part) if run.kind in SHADES else COLOURS[run.kind]
        sheet.add("rect", x=left, y=y + 1, width=right - left, height=sheet.row - 2, fill=fill, data_kind=run.kind,
                  title=title)
        if run.kind in SHADES:
            _draw_numbers(sheet, y, run, PAPER if part > 0.45 else INK)


def _draw_numbers(sheet: Sheet, y: float, run: Run, colour: str) -> None:
    """How many tokens, in each cell, if the number fits."""
    size = next((size for size in (10, 9, 8) if size <= sheet.row - 2
                 and text_width(str(run.num_tokens), size) + 3 <= sheet.cell), None)
    if size is not None:
        for index in range(run.first, run.last + 1):
            sheet.text(sheet.x(index) + sheet.cell / 2, y + sheet.row / 2 + 0.36 * size, str(run.num_tokens), size,
                       colour, text_anchor="middle", pointer_events="none")


def draw_line(sheet: Sheet, left: float, right: float, y: float, kind: str, title: str = "") -> None:
    """A request that waits, or runs without a token."""
    sheet.add("path", d=f"M{left:g} {y:g}H{right:g}", stroke=COLOURS[kind], stroke_width=1.5,
              stroke_dasharray="2 2" if kind == IDLE else None, data_kind=kind if title else None, title=title)


def draw_end(sheet: Sheet, x: float, y: float, height: float, is_good: bool, title: str = "") -> None:
    """A bar; with a flag if the request did not come to its own end."""
    flag = "" if is_good else f"l7 {min(height / 2, 4):g}l-7 {min(height / 2, 4):g}"
    sheet.add("path", d=f"M{x:g} {y + height:g}V{y:g}{flag}", stroke=END if is_good else BAD_END, stroke_width=3,
              fill="none" if is_good else BAD_END, data_end=("good" if is_good else "bad") if title else None,
              title=title)


def _describe(run: Run, request_id: str) -> str:
    if run.num_tokens:
        each = "" if run.first == run.last else " each"
        again = f", {run.num_again}{each} recomputed" if run.num_again else ""
        sampled = ", one more is sampled" if run.is_sampled and run.kind != DECODE else ""
        return (f"{count(run.num_tokens, 'token')}{each} of {request_id}, {run.num_before} computed before"
                f"{again}{sampled}")
    return request_id + {FORKED: " gets its first token, from a prompt computed by another", WAITING: " waits",
                         IDLE: " runs, but gets no token", PREEMPTED: " is preempted"}[run.kind]
