"""The points of each test: those that the gradebook gives it, else its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from course.core.result import LabResult, TestResult
from course.grading.gradebook.fields import Table, guess, shown
from course.grading.gradebook.rules import LabRules

#: More points than this, for a test, a lab or a cap, are a slip.
MAX_POINTS = 10_000


def read_worth(table: Table, tests: Sequence[TestResult], extra: Collection[str]) -> dict[str, Fraction]:
    """Return the points of the tests that a lab's ``points``, ``tasks`` and ``tests`` set."""
    by_test, by_task = table.table("tests"), table.table("tasks")
    of_lab = table.number("points", MAX_POINTS)
    for key in ("tasks", "tests"):
        if of_lab is not None and table.has(key):
            table.complain(key, "sets points that the lab's points set already; leave one of them out.")
    if of_lab is not None:
        return _shares([test for test in tests if test.name not in extra], of_lab) | _scaled(tests, extra, of_lab)
    worth = {}
    for name in by_test.fields:
        points = by_test.number(name, MAX_POINTS)
        if _is_test(by_test.where(name), by_test, name, tests) and points is not None:
            worth[name] = points
    for name in by_task.fields:
        points = by_task.number(name, MAX_POINTS)
        of_task = _tests_of_task(by_task.where(name), by_task, name, tests)
        for test in of_task:
            if test.name in by_test.fields:
                by_test.complain(test.name, f"is a test of task {name}, whose points are set too; leave one of "
                                            "them out.")
        if points is not None:
            worth |= _shares(of_task, points)
    return worth


def read_extra(table: Table, tests: Sequence[TestResult]) -> tuple[set[str], bool]:
    """Return the names of the tests that are extra credit, and whether the whole lab is."""
    if isinstance(table.fields.get("extra_credit", False), bool):
        return set(), table.flag("extra_credit", False)
    own = table.table("extra_credit")
    own.only("tasks", "tests")
    names = {name for name in own.words("tests") if _is_test(own.where("tests"), own, name, tests)}
    for task in own.whole_numbers("tasks"):
        names |= {test.name for test in _tests_of_task(own.where("tasks"), own, str(task), tests)}
    return names, False


def _is_test(where: str, table: Table, name: str, tests: Sequence[TestResult]) -> bool:
    names = [test.name for test in tests]
    if name not in names:
        table.problems.append(f"{where}: the lab has no test {shown(name)}.{guess(name, names)} If it is a hidden "
                              "test, give --hidden.")
    return name in names


def _tests_of_task(where: str, table: Table, name: str, tests: Sequence[TestResult]) -> list[TestResult]:
    of_task = [test for test in tests if test.task is not None and str(test.task) == name]
    if not of_task:
        tasks = ", ".join(map(str, sorted({test.task for test in tests if test.task is not None})))
        table.problems.append(f"{where}: the lab has no task {shown(name)}; its tasks are {tasks}.")
    return of_task


def _shares(tests: Sequence[TestResult], points: Fraction) -> dict[str, Fraction]:
    """Divide points among tests, in proportion to the tests' own points. If these are all 0, the shares are equal."""
    own = sum((Fraction(test.points) for test in tests), Fraction(0))
    return {test.name: points * Fraction(test.points) / own if own else points / len(tests) for test in tests}


def _scaled(tests: Sequence[TestResult], extra: Collection[str], points: Fraction) -> dict[str, Fraction]:
    """Scale the tests that are extra credit like the others, which together get ``points``."""
    own = sum((Fraction(test.points) for test in tests if test.name not in extra), Fraction(0))
    return {test.name: points * Fraction(test.points) / (own or 1) for test in tests if test.name in extra}


@dataclass(frozen=True)
class Worth:
    """What a lab is worth."""

    #: Without extra credit.
    max_points: Fraction
    #: With extra credit, up to the cap.
    most: Fraction


def weigh(result: LabResult, rules: LabRules) -> LabResult:
    """Return the result with the points that its tests have in the gradebook."""
    tests = tuple(replace(test, points=_plain(rules.worth.get(test.name, Fraction(test.points))))
                  for test in result.tests)
    return replace(result, tests=tests)


def _plain(points: Fraction) -> int | Fraction:
    return points.numerator if points.denominator == 1 else points


def total_worth(weighed: Sequence[TestResult], rules: LabRules) -> Worth:
    """Return what tests with the gradebook's points are worth together."""
    in_all = sum((Fraction(test.points) for test in weighed), Fraction(0))
    extra = in_all if rules.is_all_extra else sum(
        (Fraction(test.points) for test in weighed if test.name in rules.extra), Fraction(0))
    return Worth(in_all - extra, in_all if rules.cap is None else min(in_all, rules.cap))
