"""The points that a pytest run earns. With pytest-xdist, workers run the tests and the controller counts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Score:
    """What one case of a test earns, and for what. A worker sends it along with the test's report."""

    lab_number: str
    label: str
    test: str
    points: int
    passed: bool

    def attach(self, report: pytest.TestReport) -> None:
        """Numbers and strings only: these are what a report may carry from one process to another."""
        vars(report)["lab_score"] = [self.lab_number, self.label, self.test, self.points, self.passed]

    @classmethod
    def of(cls, report: pytest.TestReport) -> Score | None:
        fields = vars(report).get("lab_score")
        return cls(*fields) if fields else None


class Points:
    """What each thing under test has earned so far."""

    def __init__(self) -> None:
        #: Lab number and label → test → its points, and whether all its cases passed.
        self._tests: dict[tuple[str, str], dict[str, tuple[int, bool]]] = {}

    def add(self, score: Score) -> None:
        tests = self._tests.setdefault((score.lab_number, score.label), {})
        _, passed_so_far = tests.get(score.test, (0, True))
        tests[score.test] = (score.points, passed_so_far and score.passed)

    def lines(self) -> list[str]:
        """One line for each thing under test, in the order of the course, whoever finished first."""
        lines = []
        for number, label in sorted(self._tests, key=lambda key: ([int(part) for part in key[0].split(".")], key[1])):
            tests = self._tests[number, label].values()
            earned = sum(points for points, passed in tests if passed)
            lines.append(f"lab {number} {label}: {sum(passed for _, passed in tests)} of {len(tests)} tests, "
                         f"{earned} of {sum(points for points, _ in tests)} points")
        return lines
