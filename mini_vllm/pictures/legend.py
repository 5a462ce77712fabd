"""Above the panels: the headline, and what each colour and sign stands for."""

from __future__ import annotations

import math

from mini_vllm.pictures.elements import COLOURS, INK, PAPER, SHADES, cross, shade, text_width
from mini_vllm.pictures.request_panel import GOOD_ENDS, draw_end, draw_line
from mini_vllm.pictures.sheet import MARGIN, Sheet
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
    count,
)


def draw_title(sheet: Sheet) -> None:
    header = sheet.header
    sheet.text(MARGIN, sheet.y + 12, sheet.title, 13, INK, font_weight="bold", data_part="title")
    sheet.text(MARGIN, sheet.y + 29, f"{sheet.num_blocks} blocks of {count(header['block_size'], 'token')}; a step "
               f"computes at most {header['max_num_batched_tokens']} tokens of at most "
               f"{count(header['max_num_seqs'], 'sequence')}", 11)
    sheet.y += 40


def draw_legend(sheet: Sheet) -> None:
    """As many entries in a line as fit; a heading begins another."""
    x, y = float(MARGIN), sheet.y
    for text, kind in _entries(sheet):
        if kind is None and x > MARGIN or x + 40 + text_width(text, 10) > sheet.width - MARGIN:
            x, y = MARGIN, y + 16
        if kind is None:
            sheet.text(x, y + 9, text, 10, INK, font_weight="bold")
            x += 62
            continue
        x += _draw_swatch(sheet, x, y, kind) + 4
        sheet.text(x, y + 9, text)
        x += math.ceil(text_width(text, 9)) + 14
    sheet.y = y + 26


def _entries(sheet: Sheet) -> list[tuple[str, str | None]]:
    """Texts, and the kinds they explain; None for a heading. What is rare is explained only where it occurs."""
    history = sheet.history
    kinds = {run.kind for runs in (*history.rows.values(), *history.block_runs.values()) for run in runs}
    statuses = {status for _, _, status in history.ends}
    entries: list[tuple[str, str | None]] = [
        ("requests:", None), (f"prompt, up to {count(sheet.most, 'token')}", PROMPT), ("recomputed", AGAIN),
        ("decode", DECODE), ("waits", WAITING), ("preempted", PREEMPTED), ("finished", "end")]
    entries += [("first token, of a prompt computed by another", FORKED)] * (FORKED in kinds)
    entries += [("runs, but gets no token", IDLE)] * (IDLE in kinds)
    entries += [("ended early", "bad end")] * bool(statuses.difference(GOOD_ENDS))
    entries += [("blocks:", None), ("used by one, in its colour" if sheet.colours else "used by one", USED),
                ("shared", SHARED), ("free, still cached", CACHED), ("free", "free")]
    entries += [("kept for a copy", KEPT)] * (KEPT in kinds)
    entries += [("copied into", "copy")] * any(step["copies"] for step in history.steps)
    return entries


def _draw_swatch(sheet: Sheet, x: float, y: float, kind: str) -> float:
    """A sample of what a kind looks like; returns its width."""
    if kind in SHADES:
        for i in range(3):
            sheet.add("rect", x=x + 9 * i, y=y, width=9, height=10, fill=shade(kind, i / 2))
        return 27
    if kind == PREEMPTED:
        sheet.add("path", d=cross(x + 5, y + 5, 4), stroke=COLOURS[kind], stroke_width=2)
    elif kind in (WAITING, IDLE):
        draw_line(sheet, x, x + 14, y + 5, kind)
        return 14
    elif kind in ("end", "bad end"):
        draw_end(sheet, x + 2, y, 10, kind == "end")
    elif kind == "copy":
        sheet.add("rect", x=x, y=y, width=10, height=10, fill=COLOURS[USED])
        sheet.add("circle", cx=x + 5, cy=y + 5, r=2.5, fill=PAPER, stroke=INK)
    elif kind == USED and sheet.colours:
        colours = list(sheet.colours.values())[:3]
        for i, colour in enumerate(colours):
            sheet.add("rect", x=x + 7 * i, y=y, width=7, height=10, fill=colour)
        return 7 * len(colours)
    else:
        sheet.add("rect", x=x + 0.5, y=y + 0.5, width=9, height=9, fill=COLOURS.get(kind, PAPER), stroke="#999999",
                  stroke_width=1 if kind in ("free", CACHED) else 0)
    return 10
