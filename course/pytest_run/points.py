"""The points that a pytest run earns. With pytest-xdist, workers run the tests and the controller counts.

What can be earned is the sum of all graded tests of a lab, whatever was collected, selected or reached: a test that did
not run earns nothing, and neither does one of which only some cases ran.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from course.core.failure_messages import NOT_RUN
from course.core.result import WAS_NOT_RUN, TestResult, Verdict
from course.lab.graded_tests import GradedTest

#: What a case of a lab's test says of itself in JUnit's XML.
LAB, IMPL, TEST, TASK, POINTS = "lab", "impl", "test", "task", "points"


def properties_of(lab_number: str, label: str, test: str, task: int | None, points: int | None
                  ) -> list[tuple[str, str]]:
    """What a case says of its test."""
    return [(LAB, lab_number), (IMPL, label), (TEST, test), (TASK, str(task or "")), (POINTS, str(points or 0))]


@dataclass(frozen=True)
class Score:
    """The verdict on one case of a test. A worker sends it along with the test's report."""

    lab_number: str
    label: str
    test: str
    case: str
    num_cases: int
    verdict: Verdict

    def attach(self, report: pytest.TestReport) -> None:
        """As plain data: that is what a report may carry from one process to another."""
        vars(report)["lab_score"] = dataclasses.asdict(self)

    @classmethod
    def of(cls, report: pytest.TestReport) -> Score | None:
        fields = vars(report).get("lab_score")
        return cls(**{**fields, "verdict": Verdict.of(fields["verdict"])}) if fields else None


@dataclass
class Tally:
    """What one thing under test has earned so far of one lab."""

    tests: Sequence[GradedTest]
    #: What is to be said of it beside the numbers.
    note: str = ""
    #: Test → the cases that passed; and the first that did not.
    passed: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, Verdict] = field(default_factory=dict)
    num_cases: dict[str, int] = field(default_factory=dict)

    def add(self, score: Score) -> None:
        self.num_cases[score.test] = score.num_cases
        if score.verdict.passed:
            self.passed.setdefault(score.test, set()).add(score.case)
        else:
            self.failed.setdefault(score.test, score.verdict)

    def results(self) -> tuple[TestResult, ...]:
        """Every graded test of the lab, in the order of its tasks."""
        return tuple(test.result(self._verdict(test.name)) for test in self.tests)

    def _verdict(self, test: str) -> Verdict:
        num_passed, num_cases = len(self.passed.get(test, ())), self.num_cases.get(test, 0)
        if test in self.failed:
            return self.failed[test]
        if not num_passed:
            return WAS_NOT_RUN
        if num_passed < num_cases:
            return Verdict(False, NOT_RUN, f"only {num_passed} of its {num_cases} cases were run")
        return Verdict(True)

    def sentence(self) -> str:
        """``3 of 53 tests, 5 of 86 points (3 of 4 that ran passed, 49 were not run)``"""
        results = self.results()
        num_passed, num_not_run = sum(test.passed for test in results), num_not_run_of(results)
        remarks = [self.note] if self.note else []
        if num_not_run:
            remarks.append(f"{num_passed} of {len(results) - num_not_run} that ran passed, {num_not_run} "
                           f"{'was' if num_not_run == 1 else 'were'} not run")
        return (f"{num_passed} of {len(results)} tests, {sum(test.points for test in results if test.passed)} of "
                f"{sum(test.points for test in results)} points" + (f" ({'; '.join(remarks)})" if remarks else ""))


class Points:
    """What each thing under test has earned so far."""

    def __init__(self) -> None:
        #: Lab number and label → what it earned.
        self.tallies: dict[tuple[str, str], Tally] = {}

    def expect(self, lab_number: str, label: str, tests: Sequence[GradedTest], note: str = "") -> None:
        """These are the tests of the lab, of which some will run. Said before anything of the student's runs."""
        self.tallies.setdefault((lab_number, label), Tally(tests, note))

    def add(self, score: Score) -> None:
        self.tallies[score.lab_number, score.label].add(score)

    def lines(self) -> list[str]:
        """One line for each thing under test, in the order of the course, whoever finished first."""
        keys = sorted(self.tallies, key=lambda key: ([int(part) for part in key[0].split(".")], key[1]))
        return [f"lab {number} {label}: {self.tallies[number, label].sentence()}" for number, label in keys]


def num_not_run_of(results: Sequence[TestResult]) -> int:
    return sum(test.error == NOT_RUN for test in results)
