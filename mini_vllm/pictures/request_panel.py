"""A row for each request: what it computed in each step, when it waited, was preempted and ended."""

from __future__ import annotations

from mini_vllm.pictures import marks
from mini_vllm.pictures.elements import text_width
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.timeline_canvas import COLUMN, MARGIN, SIZE, Sheet
from mini_vllm.trace.history import AGAIN, DECODE, DRAFTED, FORKED, IDLE, PREEMPTED, WAITING, Run, count, leader_of
from mini_vllm.trace.summary import GOOD_ENDS, tell_time

#: In narrower cells, a first token has no mark.
MIN_EAR = 6


def draw_requests(sheet: Sheet) -> None:
    sheet.heading("request")
    if not sheet.is_brief:
        sheet.text(sheet.left - 8 - COLUMN * sheet.has_found, sheet.y + 8, "prompt", text_anchor="end", size=9)
    if sheet.has_found:
        sheet.text(sheet.left - 8, sheet.y + 8, "cached", text_anchor="end", size=9)
    if sheet.has_times:
        sheet.text(sheet.width - MARGIN, sheet.y + 8, "first token", text_anchor="end", size=9)
    sheet.y += 14
    height = sheet.row * len(sheet.rows)
    sheet.draw_grid(height)
    tops = {request_id: sheet.y + number * sheet.row for number, request_id in enumerate(sheet.rows)}
    _draw_forks(sheet, tops)
    ends: dict[str, list[tuple[int, str]]] = {}
    for index, request_id, status in sheet.history.ends:
        ends.setdefault(request_id, []).append((index, status))
    for request_id, y in tops.items():
        sheet.open_group(data_request=request_id)
        _draw_names(sheet, y, request_id)
        for run in sheet.history.rows[request_id]:
            _draw_run(sheet, y, request_id, run)
        _draw_first_token(sheet, y, request_id)
        _draw_ends(sheet, y, request_id, ends.get(request_id, []))
        sheet.close_group()
    sheet.y += height + (10 if sheet.is_brief else 16)


def _draw_names(sheet: Sheet, y: float, request_id: str) -> None:
    """Write to the left of each row: its letter, its first words, and the lengths of its prompt and its cache hit."""
    size, middle = min(sheet.row - 2, SIZE), y + sheet.row / 2
    sheet.chip(request_id, MARGIN, middle, min(sheet.row - 3, 16))
    name = sheet.history.names.get(request_id, "")
    if sheet.labels[request_id]:
        sheet.text(MARGIN + 22, middle + 0.36 * size, sheet.labels[request_id], size, "ink",
                   title=f"{request_id}: {name}" if name else request_id)
    if sheet.is_brief:
        return
    num_prompt, num_found = sheet.history.prompts.get(request_id), sheet.history.found.get(request_id)
    sheet.text(sheet.left - 8 - COLUMN * sheet.has_found, middle + 0.36 * size, "?" if num_prompt is None else
               str(num_prompt), min(size, 10), text_anchor="end", data_part="prompt")
    if num_found:
        sheet.text(sheet.left - 8, middle + 0.36 * size, str(num_found), min(size, 10), text_anchor="end",
                   data_part="found")


def _draw_forks(sheet: Sheet, tops: dict[str, float]) -> None:
    """Draw lines from the request that computed a prompt to the samples that start from it."""
    for request_id, y in tops.items():
        leader = leader_of(request_id, tops)
        forked = [run for run in sheet.history.rows[request_id] if run.kind == FORKED]
        if forked and leader != request_id:
            x = sheet.x(forked[0].first) + sheet.cell / 2
            sheet.add("path", d=f"M{x:g} {tops[leader] + sheet.row / 2:g}V{y + sheet.row / 2:g}", stroke="line",
                      stroke_width=1.5, data_part="fork")


def _draw_run(sheet: Sheet, y: float, request_id: str, run: Run) -> None:
    left, right, middle = sheet.x(run.first), sheet.x(run.last + 1), y + sheet.row / 2
    title, paint = f"{run.steps}: {_describe(run, request_id)}", sheet.cast.paint(request_id)
    if run.kind in (WAITING, IDLE):
        marks.draw_line(sheet, left, right, middle, run.kind, title)
    elif run.kind == PREEMPTED:
        for index in range(run.first, run.last + 1):
            radius = min(sheet.row, max(sheet.cell, 9), 14) / 2 - 1.5
            marks.draw_cross(sheet, sheet.x(index) + sheet.cell / 2, middle, radius, title)
    elif run.kind == FORKED:
        for index in range(run.first, run.last + 1):
            marks.draw_ring(sheet, sheet.x(index) + sheet.cell / 2, middle, marks.pearl_size(sheet) / 2, paint, title)
    elif run.kind == DECODE:
        marks.draw_pearls(sheet, left, right, middle, paint, title)
    elif run.kind == DRAFTED:
        num_rejected = run.num_drafted - run.num_accepted
        marks.draw_drafts(sheet, left, right, middle, paint, run.num_accepted, num_rejected, title)
    else:
        height = round((sheet.row - 4) * (0.5 + 0.5 * min(run.num_tokens / sheet.most, 1)), 2)
        marks.draw_box(sheet, left, right, middle, height, paint, run.kind, title)
        if not sheet.is_brief:
            _draw_numbers(sheet, middle, run, height)


def _draw_numbers(sheet: Sheet, middle: float, run: Run, height: float) -> None:
    """Write the number of tokens into each cell if it fits, and draw lines between the cells of one shape."""
    lines = "".join(f"M{sheet.x(index):g} {middle - height / 2:g}v{height:g}" for index in range(run.first + 1,
                                                                                               run.last + 1))
    if lines and sheet.cell >= 4:
        sheet.add("path", d=lines, stroke="line", stroke_width=0.75, pointer_events="none")
    lift = 1 if run.kind == AGAIN else 0
    size = next((size for size in (12, 11, 10, 9, 8) if size <= height + 1
                 and 0.95 * text_width(str(run.num_tokens), size) + 1 <= sheet.cell), None)
    if size is not None:
        for index in range(run.first, run.last + 1):
            sheet.text(sheet.x(index) + sheet.cell / 2, middle - lift + 0.36 * size, str(run.num_tokens), size,
                       ON_COLOUR, text_anchor="middle", pointer_events="none")


def _draw_first_token(sheet: Sheet, y: float, request_id: str) -> None:
    first, after_s = sheet.history.first_tokens.get(request_id, (-1, 0.0))
    if first not in sheet.history.shown:
        return
    if sheet.has_times:
        sheet.text(sheet.width - MARGIN, y + sheet.row / 2 + 3.6, tell_time(after_s), min(sheet.row - 2, 10),
                   text_anchor="end", data_part="first-token", title=f"step {first}: the first token of {request_id}, "
                   f"{tell_time(after_s)} after the beginning of its first step")
    is_forked = any(run.kind == FORKED and run.first <= first <= run.last for run in sheet.history.rows[request_id])
    if sheet.cell >= MIN_EAR and not sheet.is_brief and not is_forked:  # a ring already marks it
        marks.draw_ear(sheet, sheet.x(first + 1), y + 2)


def _draw_ends(sheet: Sheet, y: float, request_id: str, ends: list[tuple[int, str]]) -> None:
    for index, status in ends:
        # False if it ended before this step computed anything for it
        is_there = any(run.first <= index <= run.last for run in sheet.history.rows[request_id])
        marks.draw_end(sheet, sheet.x(index + is_there) + 1.5, y + 2, sheet.row - 4, status in GOOD_ENDS,
                 f"step {index}: {request_id} ends ({status})")


def _describe(run: Run, request_id: str) -> str:
    if run.num_tokens:
        each = "" if run.first == run.last else " each"
        again = f", {run.num_again}{each} recomputed" if run.num_again else ""
        sampled = ", one more is sampled" if run.is_sampled and run.kind not in (DECODE, DRAFTED) else ""
        drafted = f", {run.num_drafted}{each} drafted, {run.num_accepted}{each} accepted" if run.num_drafted else ""
        return (f"{count(run.num_tokens, 'token')}{each} of {request_id}, {run.num_before} computed before"
                f"{again}{sampled}{drafted}")
    return request_id + {FORKED: " gets its first token from a prompt that another request computed", WAITING: " waits",
                         IDLE: " runs, but gets no token", PREEMPTED: " is preempted"}[run.kind]
