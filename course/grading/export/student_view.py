"""What a student may see of a result. Whatever is handed to students is made from this, and from nothing else.

Hidden tests end here: of them only the name goes on. Text is cleaned here, once; each format escapes it for itself.
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
    #: Of a hidden test, whether it passed and what it is worth are not said.
    points: int | None = None
    passed: bool | None = None
    message: str = ""
    printed: str = ""
    #: The body is still as the starter has it.
    is_to_do: bool = False


@dataclass(frozen=True)
class SeenLab:
    number: str
    outcome: Outcome
    #: None where there is no score.
    points: float | None
    max_points: int
    tests: tuple[SeenTest, ...]
    reason: str
    #: Why no test could run, if that is so: the same sentence for all of them.
    broken: str
    #: What the tests gave, and why it does not count; empty without an override.
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
        """The task to mend first: the first of which something fails."""
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
        """None while one of the labs must be graded again: a part of the sum is no sum."""
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
    """What counts for a lab. None where it must be graded again and nobody has set a number."""
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
