"""The part above the panels: a description of the run, and the meaning of each shape."""

from __future__ import annotations

import math

from mini_vllm.pictures import marks
from mini_vllm.pictures.elements import sans_width, wrapped
from mini_vllm.pictures.marks import ACCEPTED, REJECTED
from mini_vllm.pictures.palette import request_paint
from mini_vllm.pictures.request_panel import MIN_EAR
from mini_vllm.pictures.time_panel import PAINTS
from mini_vllm.pictures.timeline_canvas import MARGIN, Sheet
from mini_vllm.trace.history import (
    AGAIN,
    CACHED,
    DECODE,
    DRAFTED,
    FORKED,
    IDLE,
    KEPT,
    PREEMPTED,
    PROMPT,
    SHARED,
    USED,
    WAITING,
)
from mini_vllm.trace.summary import GOOD_ENDS, drafted_tokens, facts, headline, sizes, time_shares

EAR, END, BAD_END, COPY = "ear", "end", "bad end", "copy"


#: The texts of a brief legend.
SHORT = {PROMPT: "prompt", AGAIN: "computed again", DECODE: "decoded", ACCEPTED: "drafted, accepted",
         REJECTED: "drafted, rejected", FORKED: "forked", WAITING: "waits", PREEMPTED: "preempted",
         END: "finished", SHARED: "shared", CACHED: "free, still cached", COPY: "copied"}
#: Fonts differ: without Helvetica, letters are up to this many times as wide.
WIDER = 1.16


def draw_title(sheet: Sheet) -> None:
    room, size = (sheet.width - 2 * MARGIN) * 0.94, 13.5 if sheet.is_brief else 15
    for line in wrapped(headline(sheet.history).split(" "), size, room * 0.95, " "):
        sheet.text(MARGIN, sheet.y + 14, line, size, "ink", font_weight="bold", data_part="title")
        sheet.y += 20
    lines = wrapped(facts(sheet.history), 11, room)
    lines = lines[:1] if sheet.is_brief else [*lines, *wrapped(sizes(sheet.history).split(" "), 11, room, " ")]
    for line in lines:
        sheet.text(MARGIN, sheet.y + 11, line, 11, data_part="facts")
        sheet.y += 15
    sheet.y += 8


def draw_legend(sheet: Sheet) -> None:
    """Draw the legend, with as many entries per line as fit. Each heading starts a new line."""
    groups = {"requests": _of_requests(sheet), "blocks": _of_blocks(sheet), "time": _of_times(sheet)}
    if sheet.is_brief:
        groups = {"": [(kind, SHORT[kind]) for entries in groups.values() for kind, _ in entries if kind in SHORT]}
    for heading, entries in groups.items():
        if not entries:
            continue
        sheet.text(MARGIN, sheet.y + 9, heading, 10, "ink", font_weight="bold")
        x = left = MARGIN + (0.0 if sheet.is_brief else 62.0)
        for kind, text in entries:
            wide = 24 + math.ceil(WIDER * sans_width(text, 10))
            if x + wide > sheet.width - MARGIN and x > left:
                x, sheet.y = left, sheet.y + 16
            _draw_swatch(sheet, x, sheet.y, kind)
            sheet.text(x + 24, sheet.y + 9, text, 10)
            x += wide + 9
        sheet.y += 16
    sheet.y += 5 if sheet.is_brief else 10


def _of_requests(sheet: Sheet) -> list[tuple[str, str]]:
    """Return the kinds that occur, each with its meaning."""
    history = sheet.history
    kinds = {run.kind for runs in history.rows.values() for run in runs}
    if DRAFTED in kinds:
        num_drafted, num_accepted = drafted_tokens(history)
        kinds |= {DECODE, *[ACCEPTED] * bool(num_accepted), *[REJECTED] * (num_accepted < num_drafted)}
    ends = {END if status in GOOD_ENDS else BAD_END for _, _, status in history.ends}
    told = {PROMPT: "tokens of a prompt", AGAIN: "computed again",
            DECODE: "one token decoded" if sheet.cell >= marks.MIN_PEARL else "one token decoded in each step",
            ACCEPTED: "drafted tokens, accepted", REJECTED: "drafted tokens, rejected",
            FORKED: "forked", EAR: "first token", WAITING: "waits",
            IDLE: "runs, but gets no token", PREEMPTED: "preempted", END: "finished",
            BAD_END: "ended early"}
    if sheet.cell >= MIN_EAR and any(index in history.shown for index, _ in history.first_tokens.values()):
        kinds.add(EAR)
    return [(kind, text) for kind, text in told.items() if kind in kinds | ends]


def _of_blocks(sheet: Sheet) -> list[tuple[str, str]]:
    if not sheet.has_blocks:
        return []
    kinds = {run.kind for runs in sheet.history.block_runs.values() for run in runs}
    kinds |= {COPY} if any(step["copies"] for step in sheet.history.steps) else set()
    told = {USED: "held by one request, filled so far", SHARED: "shared", CACHED: "free, still cached",
            KEPT: "held for a copy", COPY: "copied"}
    return [(kind, text) for kind, text in told.items() if kind in kinds]


def _of_times(sheet: Sheet) -> list[tuple[str, str]]:
    if not sheet.has_times:
        return []
    return [(name, f"{name} {share:.0%}" if share >= 0.005 else f"{name} under 1%")
            for name, share in time_shares(sheet.history).items()]


def _draw_swatch(sheet: Sheet, x: float, y: float, kind: str) -> None:
    """Draw a sample of a kind, 20 pixels wide and 10 high."""
    middle, paint = y + 5, request_paint(0)
    if kind in (PROMPT, AGAIN):
        marks.draw_box(sheet, x + 3, x + 17, middle, 11, paint, kind)
    elif kind == DECODE:
        marks.draw_pearls(sheet, x + 1, x + 19, middle, paint, apart=9, size=6)
    elif kind in (ACCEPTED, REJECTED):
        size = min(marks.draft_size(sheet), 5.4)  # three side by side
        is_bar = size < marks.MIN_DRAFT
        number = sheet.most_drafted if is_bar else 2
        if is_bar:
            marks.draw_drafts(sheet, x + 1, x + 19, middle, paint, 0, 0, size=size, height=14)
        left, right = (x + 7, x + 13) if is_bar else (x + 1, x + 19)
        marks.draw_drafts(sheet, left, right, middle, paint, *((number, 0) if kind == ACCEPTED else (0, number)),
                          apart=18, size=size, height=14)
    elif kind == FORKED:
        marks.draw_ring(sheet, x + 10, middle, 4, paint)
    elif kind == EAR:
        marks.draw_box(sheet, x + 4, x + 16, middle, 10, paint, kind)
        marks.draw_ear(sheet, x + 16, y)
    elif kind in (WAITING, IDLE):
        marks.draw_line(sheet, x + 1, x + 19, middle, kind)
    elif kind == PREEMPTED:
        marks.draw_cross(sheet, x + 10, middle, 4)
    elif kind in (END, BAD_END):
        marks.draw_end(sheet, x + 8, y, 10, kind == END)
    elif kind in PAINTS:
        sheet.add("rect", x=x + 5, y=y, width=10, height=10, fill=PAINTS[kind])
    else:
        marks.draw_block(sheet, x + 1, y, 18, 10, {CACHED: "cached", KEPT: "kept"}.get(kind, paint), kind,
                         is_pale=kind == USED)
    if kind == USED:
        sheet.add("path", d=f"M{x + 1:g} {y + 10:g}v-3h4v-3h4v-3h4v-1h6v10z", fill=paint)
    elif kind == COPY:
        marks.draw_copy(sheet, x + 10, middle)
