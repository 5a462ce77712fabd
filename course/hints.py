"""hints.md: for every task three hints, from a nudge to nearly the code."""

from __future__ import annotations

import re

LEVELS = (1, 2, 3)


def parse_hints(text: str) -> dict[int, dict[int, str]]:
    """Task number → level → hint. Headings are ``## Task 2: ...`` and ``### Hint 1``."""
    hints: dict[int, dict[int, str]] = {}
    for section in re.split(r"^## (?=Task \d+)", text, flags=re.M)[1:]:
        task = int(re.match(r"Task (\d+)", section)[1])
        for part in re.split(r"^### (?=Hint \d+)", section, flags=re.M)[1:]:
            heading, _, body = part.partition("\n")
            hints.setdefault(task, {})[int(re.match(r"Hint (\d+)", heading)[1])] = body.strip()
    return hints


def task_titles(text: str) -> dict[int, str]:
    return {int(number): title.strip() for number, title in re.findall(r"^## Task (\d+):?(.*)$", text, flags=re.M)}
