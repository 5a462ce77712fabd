"""The points that a pytest run earns. With pytest-xdist, workers run the tests and the controller counts.

The maximum is the sum over all graded tests of a lab, whichever were collected, selected or reached. A test that did
not run earns nothing, nor does a test of which only some cases ran.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from course.core.failure_messages import NOT_RUN
from course.core.result import WAS_NOT_RUN, Exact, TestResult, Verdict
from course.lab.graded_tests import GradedTest

#: Properties of a case of a lab's test in the JUnit XML.
LAB, IMPL, TEST, TASK, POINTS = "lab", "impl", "test", "task", "points"


def properties_of(lab_number: str, label: str, test: str, task: int | None, points: Exact | None
                  ) -> list[tuple[str, str]]:
    """Return the JUnit properties that a case has for its test."""
    return [(LAB, lab_number), (IMPL, label), (TEST, test), (TASK, str(task or "")), (POINTS, str(points or 0))]


@dataclass(frozen=True)
class Score:
    """The verdict on one case of a test. A worker sends it with the test's report."""

    lab_number: str
    label: str
    test: str
    case: str
    num_cases: int
    verdict: Verdict

    def attach(self, report: pytest.TestReport) -> None:
        """Attach the score to ``report`` as plain data, the only form a report can carry between processes."""
        vars(report)["lab_score"] = dataclasses.asdict(self)

    @classmethod
    def of(cls, report: pytest.TestReport) -> Score | None:
        fields = vars(report).get("lab_score")
        return cls(**{**fields, "verdict": Verdict.of(fields["verdict"])}) if fields else None


@dataclass
class Tally:
    """The tests of one lab that one thing under test has passed and failed so far."""

    tests: Sequence[GradedTest]
    #: A remark to print after the numbers.
    note: str = ""
    #: Test → the cases that passed, and the first verdict that did not.
    passed: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, Verdict] = field(default_factory=dict)
    num_cases: dict[str, int] = field(default_factory=dict)
    #: Test → the score that it kept.
    scores: dict[str, float | None] = field(default_factory=dict)

    def add(self, score: Score) -> None:
        self.num_cases[score.test] = score.num_cases
        if score.verdict.passed:
            self.passed.setdefault(score.test, set()).add(score.case)
            self.scores[score.test] = score.verdict.score
        else:
            self.failed.setdefault(score.test, score.verdict)

    def results(self) -> tuple[TestResult, ...]:
        """Return a result for every graded test of the lab, in the order of its tasks."""
        return tuple(test.result(self._verdict(test.name)) for test in self.tests)

    def _verdict(self, test: str) -> Verdict:
        num_passed, num_cases = len(self.passed.get(test, ())), self.num_cases.get(test, 0)
        if test in self.failed:
            return self.failed[test]
        if not num_passed:
            return WAS_NOT_RUN
        if num_passed < num_cases:
            return Verdict(False, NOT_RUN, f"only {num_passed} of its {num_cases} cases were run")
        return Verdict(True, score=self.scores.get(test))

    def sentence(self) -> str:
        """Return ``3 of 53 tests, 5 of 86 points (3 of 4 that ran passed, 49 were not run)``."""
        results = self.results()
        num_passed, num_not_run = sum(test.passed for test in results), num_not_run_of(results)
        remarks = [self.note] if self.note else []
        if num_not_run:
            remarks.append(f"{num_passed} of {len(results) - num_not_run} that ran passed, {num_not_run} "
                           f"{'was' if num_not_run == 1 else 'were'} not run")
        remark = "".join(f", score {test.score:.2f}" for test in results if test.score is not None)
        if remarks:
            remark += f" ({'; '.join(remarks)})"
        return (f"{num_passed} of {len(results)} tests, {sum(test.points for test in results if test.passed)} of "
                f"{sum(test.points for test in results)} points{remark}")


class Points:
    """The tallies of everything under test."""

    def __init__(self) -> None:
        #: Lab number and label → its tally.
        self.tallies: dict[tuple[str, str], Tally] = {}

    def expect(self, lab_number: str, label: str, tests: Sequence[GradedTest], note: str = "") -> None:
        """Register all graded tests of the lab, some of which will run. Called before the student's code runs."""
        self.tallies.setdefault((lab_number, label), Tally(tests, note))

    def add(self, score: Score) -> None:
        self.tallies[score.lab_number, score.label].add(score)

    def lines(self) -> list[str]:
        """Return one line per thing under test, in the order of the course, not in the order in which they finished."""
        keys = sorted(self.tallies, key=lambda key: ([int(part) for part in key[0].split(".")], key[1]))
        return [f"lab {number} {label}: {self.tallies[number, label].sentence()}" for number, label in keys]


def num_not_run_of(results: Sequence[TestResult]) -> int:
    return sum(test.error == NOT_RUN for test in results)
