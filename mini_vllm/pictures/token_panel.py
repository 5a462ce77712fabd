"""How many tokens each step computed, as bars against its budget, and when it began."""

from __future__ import annotations

from mini_vllm.pictures.elements import COLOURS, GRID, INK, PAPER, round_up, shade, text_width
from mini_vllm.pictures.sheet import MARGIN, Sheet
from mini_vllm.trace.history import AGAIN, DECODE, PROMPT, Totals, count

HEIGHT = 56


def draw_tokens(sheet: Sheet) -> None:
    budget, bottom = sheet.header["max_num_batched_tokens"], sheet.y + HEIGHT
    top = max(1, *(each.num_tokens for each in sheet.history.totals))
    is_in_sight = budget <= 4 * top  # else the bars would be too small to see
    top = max(top, budget) if is_in_sight else top
    sheet.text(MARGIN, sheet.y + 8, "tokens in a step", 10, INK, font_weight="bold")
    for number in (0, top):
        y = bottom - number / top * (HEIGHT - 4)
        sheet.text(sheet.left - 6, y + 3.5, str(number), text_anchor="end")
        sheet.add("path", d=f"M{sheet.left:g} {y:g}H{sheet.right:g}", stroke=GRID)
    sheet.open_group(data_panel="tokens", shape_rendering="crispEdges")
    for index, totals in zip(sheet.history.shown, sheet.history.totals):
        _draw_bar(sheet, index, totals, bottom, top)
    sheet.close_group()
    if is_in_sight:
        y = bottom - budget / top * (HEIGHT - 4)
        sheet.add("path", d=f"M{sheet.left:g} {y:g}H{sheet.right:g}", stroke=INK, stroke_dasharray="4 3",
                  data_part="budget", title=f"a step computes at most {budget} tokens")
    sheet.text(MARGIN, sheet.y + 22, f"budget {budget}" if is_in_sight else f"budget {budget}, far above")
    sheet.y = bottom + 2


def _draw_bar(sheet: Sheet, index: int, totals: Totals, bottom: float, top: int) -> None:
    """One step: its tokens by kind, one upon the other, and over all the height a tooltip."""
    gap = 1 if sheet.cell >= 5 else 0
    y, x = bottom, sheet.x(index)
    for number, colour in ((totals.num_decode, COLOURS[DECODE]), (totals.num_again, shade(AGAIN, 0.6)),
                           (totals.num_prompt, shade(PROMPT, 0.6))):
        if number:
            height = round(number / top * (HEIGHT - 4), 2)
            y -= height
            sheet.add("rect", x=x, y=y, width=sheet.cell - gap, height=height, fill=colour)
    step = sheet.history.trace.steps[index]
    sheet.add("rect", x=x, y=sheet.y, width=sheet.cell, height=HEIGHT, fill=PAPER, fill_opacity=0, title=(
        f"step {index}, {step['start_s'] * 1000:.1f} to {step['end_s'] * 1000:.1f} ms: "
        f"{totals.num_prompt} prompt, {totals.num_again} recomputed, {totals.num_decode} decode tokens; "
        f"{count(totals.num_used_blocks, 'block')} in use"))


def draw_axis(sheet: Sheet) -> None:
    """Numbers of steps, and under some of them when they began."""
    sheet.draw_step_numbers(sheet.y + 12)
    starts_ms = [step["start_s"] * 1000 for step in sheet.history.steps]
    digits = 0 if starts_ms[-1] - starts_ms[0] >= 10 * len(starts_ms) else 1
    widest = text_width(f"{starts_ms[-1]:.{digits}f}", 9)
    sheet.text(MARGIN, sheet.y + 25, "begins at, ms")
    for index in sheet.ticks(sheet.tick * max(round_up((widest + 14) / (sheet.tick * sheet.cell)), 1)):
        sheet.text(sheet.x(index) + sheet.cell / 2, sheet.y + 25,
                   f"{starts_ms[index - sheet.history.shown.start]:.{digits}f}", 9, text_anchor="middle")
    sheet.y += 36
