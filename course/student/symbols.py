"""The notation for a test, a task and a lab: a mark, a count, a bar."""

from __future__ import annotations

from rich.text import Text

from course.core.failure_messages import NOT_RUN, is_stub
from course.core.result import Verdict
from course.lab.graded_tests import GradedTest
from course.student.progress import LabProgress, State

BAR_WIDTH = 20
TO_DO = ("·", "dim")


def is_failure(verdict: Verdict) -> bool:
    return not verdict.passed and verdict.error != NOT_RUN and not is_stub(verdict.error, verdict.message)


def mark(verdict: Verdict) -> tuple[str, str]:
    if verdict.passed:
        return "✓", "green"
    if verdict.error == NOT_RUN:
        return "–", "dim"
    return TO_DO if is_stub(verdict.error, verdict.message) else ("✗", "red")


def mark_to_do(verdict: Verdict) -> tuple[str, str]:
    """Return the mark of a test whose task was not begun: such a test never counts as failed."""
    return mark(verdict) if verdict.passed else TO_DO


def line_of(test: GradedTest, mark: str, style: str, note: str = "") -> Text:
    return Text.assemble("    ", (f"{mark} {test.sentence}", style), f"  {points(test.points or 0)}", (note, "dim"))


def number_of(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def points(number: int) -> str:
    return number_of(number, "point")


def state_text(row: LabProgress) -> str:
    return f"in progress {row.num_passed}/{len(row.tests)}" if row.state is State.IN_PROGRESS else row.state.value


def bar(points: int, max_points: int) -> str:
    filled = BAR_WIDTH * points // max(max_points, 1)
    return "█" * filled + "░" * (BAR_WIDTH - filled)
