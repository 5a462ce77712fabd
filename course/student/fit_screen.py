"""Fit the tests of a task onto a screen that may be too small for all of them: the first failure is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from course.core.terminal_text import num_rows


@dataclass(frozen=True)
class ShownTest:
    """A test's line, and the details below it."""

    line: Text
    told: list[Text]
    passed: bool


def all_lines(tests: Sequence[ShownTest]) -> list[Text]:
    return [line for test in tests for line in (test.line, *test.told)]


def cut(tests: Sequence[ShownTest], height: int, width: int, rest: str) -> list[Text]:
    """Return the lines of ``tests`` in at most ``height`` rows, but always enough to show the first failure.

    These are left out, in this order, until the rest fits: the details of all tests except the first failing one; tests
    that pass; the other tests; the end of the details. As soon as anything is left out, ``rest`` says where to see all
    of it.
    """
    first = next((test for test in tests if not test.passed), tests[0])
    where = Text(f"    {rest}", style="dim")
    briefly = [ShownTest(test.line, test.told if test is first else [], test.passed) for test in tests]
    failing = [test for test in briefly if not test.passed]
    for lines in (all_lines(tests), [*all_lines(briefly), where], [*all_lines(failing), where],
                  [*all_lines([first]), where]):
        if num_rows(lines, width) <= height:
            return lines
    room = max(height - num_rows([first.line, where], width), 3)
    return [first.line, *first.told[:room], where]
