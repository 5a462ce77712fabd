"""The tokens of each step: pieces of prompts upwards, compared with the budget; decoded tokens downwards.

Both have the colours of their requests. Each direction has its own scale, so that five decoded tokens are visible next
to a piece of 200 tokens. Accepted drafts are decoded tokens; the rejected drafts of a step are a hollow bar below them.
"""

from __future__ import annotations

from mini_vllm.pictures.palette import PAINTS
from mini_vllm.pictures.timeline_canvas import MARGIN, Sheet
from mini_vllm.trace.history import AGAIN, DECODE, DRAFTED, PROMPT, count

UP, DOWN = 46, 28
#: The paint of rejected drafts, whose bars also have an outline.
REJECTED = "paper"


def draw_tokens(sheet: Sheet) -> None:
    pieces, decodes, rejected = _shares(sheet)
    budget, base = sheet.header["max_num_batched_tokens"], sheet.y + UP + 4
    top = max(1, *(sum(num_tokens for _, num_tokens, _ in piece) for piece in pieces.values()))
    is_in_sight = budget <= 4 * top  # otherwise the bars would be too small to see
    top = max(top, budget) if is_in_sight else top
    most = max(len(decodes[index]) + rejected[index] for index in decodes)
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
        if rejected[index]:
            bars.add(index, REJECTED, base + 2 + len(decodes[index]) * unit, rejected[index] * unit)
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


def _shares(sheet: Sheet) -> tuple[dict[int, list[tuple[str, int, bool]]], dict[int, list[str]], dict[int, int]]:
    """Map each step to (request, tokens, whether they are computed again), to the requests that decode, once for each
    token, and to the number of rejected drafts.
    """
    pieces: dict[int, list[tuple[str, int, bool]]] = {index: [] for index in sheet.history.shown}
    decodes: dict[int, list[str]] = {index: [] for index in sheet.history.shown}
    rejected = dict.fromkeys(sheet.history.shown, 0)
    for request_id in sheet.rows:
        for run in sheet.history.rows[request_id]:
            for index in range(run.first, run.last + 1):
                if run.kind in (PROMPT, AGAIN):
                    pieces[index].append((request_id, run.num_tokens, run.kind == AGAIN))
                elif run.kind in (DECODE, DRAFTED):
                    decodes[index] += [request_id] * (1 + run.num_accepted)
                    rejected[index] += run.num_drafted - run.num_accepted
    return pieces, decodes, rejected


class _Bars:
    """Rectangles, each as wide as a step.

    All rectangles of one paint are one shape. Where there are no gaps between steps, equal neighbours are one
    rectangle. So a long run stays a small file.
    """

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
            self._sheet.add("path", d="".join(paths[paint]), fill=paint, stroke="faint" if paint == REJECTED else None,
                            stroke_width=0.75 if paint == REJECTED else None, data_bars=paint)


def _draw_tooltips(sheet: Sheet, height: float) -> None:
    """Add a tooltip over the whole height of each step."""
    sheet.open_group(data_panel="tokens", fill_opacity=0)
    for index, totals in zip(sheet.history.shown, sheet.history.totals):
        step = sheet.history.trace.steps[index]
        sheet.add("rect", x=sheet.x(index), y=sheet.y, width=sheet.cell, height=height, title=(
            f"step {index}, {step['start_s'] * 1000:.1f} to {step['end_s'] * 1000:.1f} ms: "
            f"{totals.num_prompt} prompt, {totals.num_again} recomputed, {totals.num_decode} decode tokens"
            + f", {totals.num_drafted} drafted, {totals.num_accepted} accepted" * bool(totals.num_drafted) +
            f"; {count(totals.num_used_blocks, 'block')} in use"))
    sheet.close_group()
