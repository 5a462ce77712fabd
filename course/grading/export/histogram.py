"""A histogram of the scores: ten bars, and a separate one for full marks."""

from __future__ import annotations

from collections.abc import Sequence

from course.grading.export.escape import html_text
from course.grading.export.page import Picture

LABELS = tuple(f"{10 * i}–" for i in range(10)) + ("100",)
WIDTH, HEIGHT, BAR, GAP, TOP, BOTTOM = 560, 150, 42, 9, 20, 24


def histogram(percents: Sequence[float]) -> Picture:
    counts = [0] * len(LABELS)
    for percent in percents:
        counts[min(max(int(percent // 10), 0), 10)] += 1
    return Picture(_svg(counts), _plain(counts))


def _svg(counts: list[int]) -> str:
    """Draw the bars as SVG. The colours are defined in the page's style, which has a light and a dark variant."""
    room, most = HEIGHT - TOP - BOTTOM, max(max(counts), 1)
    parts = []
    for place, (label, count) in enumerate(zip(LABELS, counts)):
        x, height = place * (BAR + GAP), room * count / most
        middle, foot = x + BAR / 2, HEIGHT - BOTTOM
        if count:
            parts.append(f'<rect x="{x}" y="{foot - height:.1f}" width="{BAR}" height="{height:.1f}" rx="2" '
                         f'fill="var(--bar)"/><text x="{middle}" y="{foot - height - 5:.1f}" text-anchor="middle" '
                         f'fill="var(--ink)">{count}</text>')
        parts.append(f'<text x="{middle}" y="{HEIGHT - 7}" text-anchor="middle" fill="var(--faint)">'
                     f'{html_text(label)}</text>')
    line = f'<path d="M0 {HEIGHT - BOTTOM}.5H{WIDTH}" stroke="var(--grid)"/>'
    style = 'font-family="system-ui,sans-serif" font-size="13"'
    return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="'
            f'{html_text(_said(counts))}" {style}>{line}{"".join(parts)}</svg>'
            '<p class="small">Number of files by percentage of the points.</p>')


def _plain(counts: list[int]) -> str:
    most = max(max(counts), 1)
    return "\n".join(f"{label:>4} %  {'█' * round(30 * count / most)}{' ' if count else ''}{count}"
                     for label, count in zip(LABELS, counts))


def _said(counts: list[int]) -> str:
    return "Number of files by percentage of the points: " + ", ".join(
        f"{label} {count}" for label, count in zip(LABELS, counts) if count)
