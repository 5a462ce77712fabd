"""The part of a result that a student may see. Everything that students receive is made from this and nothing else.

For a hidden test, only its name is passed on. Text is cleaned here, once; each format does its own escaping.
"""

from __future__ import annotations

from dataclasses import dataclass

from course.core.failure_messages import BROKEN_FILE, NO_PYTEST, stub_task
from course.core.result import LabResult, Outcome, StudentResult, TestResult
from course.core.scrub_paths import without_paths
from course.grading.export.escape import clean, one_line
from course.lab.graded_tests import GradedTest

HIDDEN = "This test is hidden."
NOT_YET = "There is no score yet: this must be graded again. It is not your fault, and it is not a zero."


@dataclass(frozen=True)
class SeenTest:
    name: str
    #: The behaviour in words.
    sentence: str
    is_hidden: bool = False
    task: int | None = None
    #: For a hidden test, whether it passed and what it is worth are not revealed.
    points: int | None = None
    passed: bool | None = None
    message: str = ""
    printed: str = ""
    #: Whether the body is still as in the starter.
    is_to_do: bool = False


@dataclass(frozen=True)
class SeenLab:
    number: str
    outcome: Outcome
    #: None if there is no score.
    points: float | None
    max_points: int
    tests: tuple[SeenTest, ...]
    reason: str
    #: Why no test could run, or "". The sentence is the same for all tests.
    broken: str
    #: The points from the tests, and why they do not count; the reason is empty without an override.
    computed_points: int
    override_reason: str
    has_override: bool
    wall_s: float

    @property
    def failed(self) -> list[SeenTest]:
        return [test for test in self.tests if test.passed is False]

    @property
    def hidden(self) -> list[SeenTest]:
        return [test for test in self.tests if test.is_hidden]

    @property
    def first_task(self) -> int | None:
        """The task to fix first: the first one with a failing test."""
        return min((test.task for test in self.failed if test.task is not None), default=None)


@dataclass(frozen=True)
class SeenStudent:
    student: str
    name: str
    labs: tuple[SeenLab, ...]
    notes: tuple[str, ...]
    is_submitted: bool

    @property
    def points(self) -> float | None:
        """The total, or None while one of the labs must be graded again: a partial sum would be misleading."""
        points = [lab.points for lab in self.labs]
        return None if any(p is None for p in points) else sum(p for p in points if p is not None)

    @property
    def max_points(self) -> int:
        return sum(lab.max_points for lab in self.labs)


def seen_by(result: StudentResult) -> SeenStudent:
    labs = tuple(_lab(result, number) for number in result.labs)
    return SeenStudent(one_line(result.student), one_line(result.name), labs,
                       tuple(without_paths(one_line(note)) for note in result.notes), result.is_submitted)


def points_of(result: StudentResult, number: str) -> float | None:
    """Return the points that count for a lab; None if it must be graded again and there is no override."""
    if number in result.overrides or result.labs[number].outcome is not Outcome.GRADE_AGAIN:
        return result.points_of(number)
    return None


def _lab(result: StudentResult, number: str) -> SeenLab:
    lab = result.labs[number]
    override = result.overrides.get(number)
    broken = _broken(lab)
    tests = sorted((_test(test, is_told=not broken) for test in lab.tests), key=lambda test: test.task or 0)
    return SeenLab(number, lab.outcome, points_of(result, number), lab.max_points, tuple(tests),
                   without_paths(one_line(lab.reason)), broken, lab.points,
                   one_line(override.reason) if override else "", override is not None, lab.wall_s)


def _broken(lab: LabResult) -> str:
    shown = [test for test in lab.tests if not test.is_hidden]
    if not shown or any(test.passed or test.error not in (BROKEN_FILE, NO_PYTEST) for test in shown):
        return ""
    return without_paths(clean(shown[0].message))


def _test(test: TestResult, is_told: bool) -> SeenTest:
    name = one_line(test.name)
    sentence = GradedTest(name, None, None, True).sentence
    if test.is_hidden:
        return SeenTest(name, sentence, is_hidden=True, message=HIDDEN)
    message = without_paths(clean(test.message)) if is_told and not test.passed else ""
    printed = without_paths(clean(test.printed)) if is_told and not test.passed else ""
    return SeenTest(name, sentence, False, test.task, test.points, test.passed, message, printed,
                    not test.passed and stub_task(test.error, test.message) is not None)
