"""hints.md: three hints per task, from a nudge to nearly the code."""

from __future__ import annotations

import re

LEVELS = (1, 2, 3)


def parse_hints(text: str) -> dict[int, dict[int, str]]:
    """Return task number → level → hint. The headings are ``## Task 2: ...`` and ``### Hint 1``."""
    hints: dict[int, dict[int, str]] = {}
    for task, section in _sections(r"## Task", text):
        for level, hint in _sections(r"### Hint", section):
            hints.setdefault(task, {})[level] = hint.partition("\n")[2].strip()
    return hints


def _sections(heading: str, text: str) -> list[tuple[int, str]]:
    """Split ``text`` at headings ``HEADING n``, and return each number with the text up to the next heading."""
    pieces = re.split(rf"^{heading} (\d+)", text, flags=re.M)
    return [(int(number), body) for number, body in zip(pieces[1::2], pieces[2::2])]


def task_titles(text: str) -> dict[int, str]:
    return {int(number): title.strip() for number, title in re.findall(r"^## Task (\d+):?(.*)$", text, flags=re.M)}
