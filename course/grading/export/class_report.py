"""The report that an instructor reads first: how the class did, what to look at, and how the numbers were obtained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import mean, median

from course.core.result import LabResult, Outcome, Provenance, StudentResult
from course.grading.export import html, markdown, output_files
from course.grading.export.escape import number, one_line
from course.grading.export.histogram import histogram
from course.grading.export.needs_review import to_look_at
from course.grading.export.page import Block, Heading, Line, Page, Paragraph, Table, code, strong
from course.grading.export.provenance import not_defended, small_print
from course.grading.export.student_view import points_of
from course.grading.export.tables import lab_numbers, max_points
from course.grading.export.titles import Titles, course_titles
from course.grading.intake.platforms import Unclear
from course.lab.graded_tests import GradedTest

NUM_MOST_FAILED = 8
#: The heading for students who are excused and handed in nothing.
EXCUSED = "excused"


class ClassReport:
    """``report.md`` and ``report.html``."""

    name = "report"

    def __init__(self, unclear: Sequence[Unclear] = ()) -> None:
        self._unclear = unclear

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        page = report_page(students, provenance, course_titles(), self._unclear)
        output_files.write(out / "report.md", markdown.render(page))
        output_files.write(out / "report.html", html.render(page))


def report_page(students: Sequence[StudentResult], provenance: Provenance, titles: Titles,
                unclear: Sequence[Unclear] = ()) -> Page:
    numbers = lab_numbers(students)
    page = Page("Class report")
    page.add(*_summary(students, numbers, titles), *to_look_at(students, unclear))
    for lab in numbers:
        page.add(*_lab(students, lab, titles))
    page.add(Heading(2, ("What the sandbox does not protect against",)), not_defended(provenance),
             *_effort(students), small_print(provenance, tuple(numbers)))
    return page


def _summary(students: Sequence[StudentResult], numbers: list[str], titles: Titles) -> list[Block]:
    num_missing = sum(student.lacks_all for student in students)
    missing = f"; {_count(num_missing, 'student')} handed in nothing" if num_missing else ""
    rows, has_excused = [], any(student.is_left_out(lab) for student in students for lab in student.labs)
    columns = [*(outcome.value for outcome in Outcome), *([EXCUSED] if has_excused else [])]
    for lab in numbers:
        outcomes = Counter(EXCUSED if student.is_left_out(lab) else student.labs[lab].outcome.value
                           for student in students if lab in student.labs)
        scores = _scores(students, lab)
        rows.append(((titles.lab(lab),), *((_blank(outcomes[what]),) for what in columns),
                     (number(median(scores)) if scores else "–",), (_to_tenths(mean(scores)) if scores else "–",),
                     (number(max_points(students, lab)),)))
    return [Paragraph((strong(_count(len(students), "student")), f", {_count(len(numbers), 'lab')}{missing}.")),
            Table(("lab", *columns, "median", "mean", "of"), tuple(rows), frozenset(range(1, 4 + len(columns)))),
            Paragraph(("Median and mean are of the points after overrides, for students who handed in a file and are "
                       "not excused.",), "small")]


def _lab(students: Sequence[StudentResult], lab: str, titles: Titles) -> list[Block]:
    worth = max_points(students, lab)
    scores = _scores(students, lab)
    blocks: list[Block] = [Heading(2, (titles.lab(lab),))]
    if scores and worth:
        blocks.append(histogram([float(100 * score / worth) for score in scores]))
    graded = [student.labs[lab] for student in students
              if lab in student.labs and student.labs[lab].outcome is Outcome.GRADED]
    return blocks + _most_failed(graded, lab, titles)


def _most_failed(graded: list[LabResult], lab: str, titles: Titles) -> list[Block]:
    """List the tests that fail most often, first those at which most students are stuck. A student who fails an early
    task also fails the later ones, so those failures say little.

    A file that does not load fails all tests. It is left out, because it says nothing about any of them.
    """
    running = [result for result in graded if any(test.passed for test in result.tests)]
    tests = {test.name: test for result in running for test in result.tests}
    failed = Counter(test.name for result in running for test in result.tests if not test.passed)
    stuck = Counter(name for result in running for name in _where_stuck(result))
    most = sorted(failed, key=lambda name: (-stuck[name], -failed[name], tests[name].task or 0))[:NUM_MOST_FAILED]
    if not most:
        return [Paragraph(("No test failed." if running else "No file passed a test.",))]
    rows: list[tuple[Line, ...]] = []
    for name in most:
        sentence = GradedTest(one_line(name), None, None, True).sentence
        rows.append(((_blank(stuck[name]),), (str(failed[name]),),
                     (f"{sentence} (hidden)" if tests[name].is_hidden else sentence,),
                     (titles.task(lab, tests[name].task),)))
    return [Paragraph((f"The tests that failed most often, among the {_count(len(running), 'file')} that passed at "
                       "least one. “Stuck” counts the students whose first failing task contains the test.",)),
            Table(("stuck", "failed", "test", "task"), tuple(rows), frozenset({0, 1}))]


def _where_stuck(result: LabResult) -> list[str]:
    """Return the failed tests of the first task that is not done."""
    failed = [test for test in result.tests if not test.passed and test.task is not None and not test.is_hidden]
    first = min((test.task for test in failed if test.task is not None), default=None)
    return [test.name for test in failed if test.task == first]


def _scores(students: Sequence[StudentResult], lab: str) -> list[Fraction]:
    """Return the scores that count, for the students who handed something in and are not excused."""
    points = [points_of(student, lab) for student in students if lab in student.labs
              and not (lab in student.marks and student.marks[lab].is_excused)
              and student.labs[lab].outcome is not Outcome.MISSING]
    return [Fraction(str(value)) for value in points if value is not None]


def _to_tenths(points: Fraction) -> str:
    """Write a number with one decimal; a half is rounded up."""
    return f"{math.floor(points * 10 + Fraction(1, 2)) / 10:.1f}"


def _effort(students: Sequence[StudentResult]) -> list[Block]:
    walls = [result.wall_s for student in students for result in student.labs.values() if result.wall_s > 0]
    if not walls:
        return []
    return [Paragraph((f"{_count(len(walls), 'file')} ran: median {median(walls):.1f} s, at most {max(walls):.1f} s. "
                       f"One worker grades about {60 / mean(walls):.0f} files per minute. Grades: ",
                       code("grades.csv"), "."), "small")]


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _blank(count: int) -> str:
    return str(count) if count else "·"
