"""The part of a result that a student may see. Everything that students receive is made from this and nothing else.

For a hidden test, only its name is passed on. Text is cleaned here, once; each format does its own escaping.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from course.core.failure_messages import BROKEN_FILE, NO_PYTEST, stub_task
from course.core.result import Exact, LabResult, Mark, Outcome, Points, StudentResult, TestResult
from course.core.scrub_paths import without_paths
from course.grading.export.escape import clean, one_line
from course.lab.graded_tests import GradedTest

HIDDEN = "This test is hidden."
NOT_YET = "There is no score yet: this lab must be graded again. That is not your fault, and it does not mean zero."


@dataclass(frozen=True)
class SeenTest:
    name: str
    #: The behaviour in words.
    sentence: str
    is_hidden: bool = False
    task: int | None = None
    #: For a hidden test, whether it passed and what it is worth are not revealed.
    points: Exact | None = None
    passed: bool | None = None
    message: str = ""
    printed: str = ""
    #: Whether the body is still as in the starter.
    is_to_do: bool = False
    cpu_s: float | None = None


@dataclass(frozen=True)
class SeenLab:
    number: str
    outcome: Outcome
    #: None if there is no score.
    points: Points | None
    max_points: Exact
    tests: tuple[SeenTest, ...]
    reason: str
    #: Why no test could run, or "". The sentence is the same for all tests.
    broken: str
    #: The points from the tests, and why they do not count; the reason is empty without an override.
    computed_points: Exact
    override_reason: str
    has_override: bool
    wall_s: float
    #: The score of an open lab that a test has kept, whether it counts, and the alias under which the class's board
    #: lists the file.
    score: float | None
    score_counts: bool
    alias: str
    #: The instructor's comment; may have several lines.
    comment: str = ""
    #: How the points came about, by the gradebook.
    steps: tuple[str, ...] = ()
    is_excused: bool = False

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
    #: The total, and what it may be at most.
    points: Points | None
    max_points: Exact
    comment: str = ""


def seen_by(result: StudentResult) -> SeenStudent:
    labs = tuple(_lab(result, number) for number in result.labs)
    return SeenStudent(one_line(result.student), one_line(result.name), labs,
                       tuple(without_paths(one_line(note)) for note in result.notes), result.is_submitted,
                       total_of(result), result.max_points,
                       clean(result.comment).strip())


def points_of(result: StudentResult, number: str) -> Points | None:
    """Return the points that count for a lab; None if it must be graded again and there is no override."""
    if number in result.marks:
        return result.marks[number].points
    if number in result.overrides or result.labs[number].outcome is not Outcome.GRADE_AGAIN:
        return result.points_of(number)
    return None


def total_of(result: StudentResult) -> Points | None:
    """Return the total; None while a lab must be graded again, because a partial sum would look like the total."""
    return None if any(points_of(result, number) is None for number in result.labs) else result.points


def _lab(result: StudentResult, number: str) -> SeenLab:
    lab = result.labs[number]
    override = result.overrides.get(number)
    mark = result.marks.get(number)
    broken = _broken(lab)
    tests = sorted((_test(test, is_told=not broken) for test in lab.tests), key=lambda test: test.task or 0)
    return SeenLab(number, lab.outcome, points_of(result, number), result.max_points_of(number), tuple(tests),
                   without_paths(one_line(lab.reason)), broken, lab.points,
                   one_line(override.reason) if override else "", override is not None, lab.wall_s,
                   lab.kept_score, lab.score is not None, alias_of(lab.file_sha256),
                   clean(result.comments.get(number, "")).strip(), _steps(mark) if mark else (),
                   mark is not None and mark.is_excused)


def alias_of(file_sha256: str) -> str:
    """Return the name of a file on a board without names: ``3f9a-c21b``.

    It follows from the content of the file alone. So whoever has the file can find its row, and no one can find the
    row of a student whose file they do not have.
    """
    digits = hashlib.sha256(f"a row of the class's board: {file_sha256}".encode()).hexdigest()
    return f"{digits[:4]}-{digits[4:8]}"


def _steps(mark: Mark) -> tuple[str, ...]:
    """Return how the points came about, first of all when the file was submitted."""
    times = [f"{what} {moment:%Y-%m-%d %H:%M:%S %Z}" for what, moment in
             (("submitted", mark.submitted), ("deadline", mark.deadline)) if moment is not None]
    return (*([", ".join(times)] if times else []), *(one_line(step) for step in mark.steps))


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
                    not test.passed and stub_task(test.error, test.message) is not None, test.cpu_s)
