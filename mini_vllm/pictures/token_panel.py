"""What each step computed: pieces of prompts upwards, against the budget; decoded tokens downwards, one by one.

Both in the colours of their requests. Each has its own scale: beside a piece of 200 tokens, five decoded ones are seen.
"""

from __future__ import annotations

from mini_vllm.pictures.palette import PAINTS
from mini_vllm.pictures.timeline_canvas import MARGIN, Sheet
from mini_vllm.trace.history import AGAIN, DECODE, PROMPT, count

UP, DOWN = 46, 28


def draw_tokens(sheet: Sheet) -> None:
    pieces, decodes = _shares(sheet)
    budget, base = sheet.header["max_num_batched_tokens"], sheet.y + UP + 4
    top = max(1, *(sum(num_tokens for _, num_tokens, _ in piece) for piece in pieces.values()))
    is_in_sight = budget <= 4 * top  # else the bars would be too small to see
    top = max(top, budget) if is_in_sight else top
    most = max(map(len, decodes.values()))
    unit = min(6.0, DOWN / max(most, 1))
    sheet.heading("tokens in a step", f"prompts (budget {budget})")
    sheet.number(base - UP + 3.5, str(top))
    bars = _Bars(sheet)
    for index in sheet.history.shown:
        y = base
        for request_id, num_tokens, is_again in pieces[index]:
            height = num_tokens / top * UP
            y -= height
            bars.add(index, sheet.cast.paint(request_id), y, height)
            if is_again:
                bars.add(index, "alarm", y + max(height - 2.5, 0), min(height, 2.5))
        for number, request_id in enumerate(decodes[index]):
            bars.add(index, sheet.cast.paint(request_id), base + 2 + number * unit, unit)
    bars.draw()
    sheet.rule(base + 0.5)
    if is_in_sight:
        sheet.add("path", d=f"M{sheet.left:g} {base - budget / top * UP:g}H{sheet.end:g}", stroke="ink",
                  stroke_dasharray="4 3", data_part="budget", title=f"a step computes at most {budget} tokens")
    if most:
        sheet.text(MARGIN, base + 11, "decodes", 10)
        sheet.number(base + most * unit + 2, str(most))
    _draw_tooltips(sheet, base + 2 + most * unit - sheet.y)
    sheet.y = base + most * unit + 14


def _shares(sheet: Sheet) -> tuple[dict[int, list[tuple[str, int, bool]]], dict[int, list[str]]]:
    """Step → (request, tokens, whether they were computed again); step → requests that decode."""
    pieces: dict[int, list[tuple[str, int, bool]]] = {index: [] for index in sheet.history.shown}
    decodes: dict[int, list[str]] = {index: [] for index in sheet.history.shown}
    for request_id in sheet.rows:
        for run in sheet.history.rows[request_id]:
            for index in range(run.first, run.last + 1):
                if run.kind in (PROMPT, AGAIN):
                    pieces[index].append((request_id, run.num_tokens, run.kind == AGAIN))
                elif run.kind == DECODE:
                    decodes[index].append(request_id)
    return pieces, decodes


class _Bars:
    """Rectangles, a step wide each. All of one paint are one shape, and equal neighbours one rectangle where nothing
    is left free between steps: a long run stays a small file."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet, self._gap = sheet, 1.0 if sheet.cell >= 5 else 0.0
        #: (paint, y, height) → [[first step, last step]].
        self._bars: dict[tuple[str, float, float], list[list[int]]] = {}

    def add(self, index: int, paint: str, y: float, height: float) -> None:
        height = round(max(height - (0.75 if height > 3 else 0), 0.25), 2)
        stretches = self._bars.setdefault((paint, round(y, 2), height), [])
        if stretches and stretches[-1][1] == index - 1 and not self._gap:
            stretches[-1][1] = index
        else:
            stretches.append([index, index])

    def draw(self) -> None:
        paths: dict[str, list[str]] = {}
        for (paint, y, height), stretches in self._bars.items():
            for first, last in stretches:
                width = f"{(last + 1 - first) * self._sheet.cell - self._gap:g}"
                paths.setdefault(paint, []).append(
                    f"M{self._sheet.x(first) + self._gap / 2:g} {y:g}h{width}v{height:g}h-{width}z")
        for paint in sorted(paths, key=list(PAINTS).index):
            self._sheet.add("path", d="".join(paths[paint]), fill=paint, data_bars=paint)


def _draw_tooltips(sheet: Sheet, height: float) -> None:
    """Over all the height of each step."""
    sheet.open_group(data_panel="tokens", fill_opacity=0)
    for index, totals in zip(sheet.history.shown, sheet.history.totals):
        step = sheet.history.trace.steps[index]
        sheet.add("rect", x=sheet.x(index), y=sheet.y, width=sheet.cell, height=height, title=(
            f"step {index}, {step['start_s'] * 1000:.1f} to {step['end_s'] * 1000:.1f} ms: "
            f"{totals.num_prompt} prompt, {totals.num_again} recomputed, {totals.num_decode} decode tokens; "
            f"{count(totals.num_used_blocks, 'block')} in use"))
    sheet.close_group()
