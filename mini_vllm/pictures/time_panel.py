"""The duration of each step as a bar, and an axis with the time since the beginning."""

from __future__ import annotations

import bisect
import math
import statistics

from mini_vllm.pictures.timeline_canvas import MARGIN, Sheet
from mini_vllm.trace.summary import PARTS, tell_time

HEIGHT = 36
#: The paint of each part of a step, from the bottom up.
PAINTS = {"planning": "ink", "model and sampling": "used", "text and the rest": "line"}
#: The bar of a step that took more than this many times the median is cut off, and its time is written next to it.
FAR_OUT = 8


def draw_times(sheet: Sheet) -> None:
    steps = sheet.history.steps
    took_s = [step["end_s"] - step["start_s"] for step in steps]
    far_s = FAR_OUT * statistics.median(took_s)
    top_s = max((each for each in took_s if each <= far_s), default=0.0) or max(took_s)
    base = sheet.y + HEIGHT + 4
    sheet.heading("time of a step")
    sheet.number(base - HEIGHT + 3.5, tell_time(top_s))
    gap = 1.0 if sheet.cell >= 5 else 0.0
    sheet.open_group(data_panel="times")
    below = [0.0] * len(steps)
    for name, start, end in PARTS:
        bars = []
        for place, (index, step) in enumerate(zip(sheet.history.shown, steps)):
            height = (step[end] - step[start]) / top_s * HEIGHT  # type: ignore[literal-required]
            height = min(height, HEIGHT - below[place])
            if height > 0.005:
                bars.append(f"M{sheet.x(index) + gap / 2:g} {base - below[place]:.2f}v-{height:.2f}"
                            f"h{sheet.cell - gap:g}v{height:.2f}z")
                below[place] += height
        if bars:
            sheet.add("path", d="".join(bars), fill=PAINTS[name], data_part=name)
    sheet.close_group()
    sheet.rule(base + 0.5)
    _draw_far_out(sheet, took_s, top_s)
    sheet.y = base + 4


def _draw_far_out(sheet: Sheet, took_s: list[float], top_s: float) -> None:
    """Draw a cut through each bar that is too long, and write how long its step took if there is room."""
    free = -math.inf
    for index, seconds in zip(sheet.history.shown, took_s):
        if seconds > top_s * 1.001:
            x = sheet.x(index)
            sheet.add("path", d=f"M{x - 1:g} {sheet.y + 12:g}l{sheet.cell + 2:g} -4", stroke="paper", stroke_width=2)
            if x > free and sheet.end - x > 60:
                text = f"step {index}: {tell_time(seconds)}"
                sheet.text(x + sheet.cell + 3, sheet.y + 8, text, 9, "ink", data_part="far-out")
                free = x + sheet.cell + 6 * len(text)


def draw_axis(sheet: Sheet) -> None:
    """Write the numbers of steps, and the time below them. The marks of the time are close where steps took long."""
    sheet.draw_step_numbers(sheet.y + 12)
    sheet.y += 20
    if sheet.has_times:
        sheet.text(MARGIN, sheet.y + 11, "time", 10, "ink", font_weight="bold")
        _draw_clock(sheet)
        sheet.y += 18
    sheet.y += 8


def _draw_clock(sheet: Sheet) -> None:
    steps = sheet.history.steps
    moments = [*(step["start_s"] for step in steps), steps[-1]["end_s"]]
    every_ms = _round_ms((moments[-1] - moments[0]) * 1000 * 56 / (sheet.end - sheet.left))
    free = -math.inf
    for number in range(math.ceil(moments[0] * 1000 / every_ms), math.floor(moments[-1] * 1000 / every_ms) + 1):
        now_s = number * every_ms / 1000
        place = min(max(bisect.bisect_right(moments, now_s) - 1, 0), len(steps) - 1)
        took_s = moments[place + 1] - moments[place]
        x = sheet.x(sheet.history.shown.start + place) + (now_s - moments[place]) / (took_s or 1) * sheet.cell
        sheet.add("path", d=f"M{x:.2f} {sheet.y - 2:g}v4", stroke="line", data_part="clock")
        text = f"{now_s:g} s" if every_ms >= 1000 or moments[-1] >= 1 else f"{now_s * 1000:g} ms"
        if x - 3.2 * len(text) > free:
            sheet.text(x, sheet.y + 11, text, 9, text_anchor="middle")
            free = x + 3.2 * len(text)


def _round_ms(least: float) -> float:
    """Return the smallest of 0.1, 0.2, 0.5, 1, 2, 5, … that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(max(least, 0.1)))
    return next(round(factor * power, 6) for factor in (1, 2, 5, 10) if factor * power >= least * 0.999999)
