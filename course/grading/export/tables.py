"""The class as tables: ``grades.csv``, and what nbgrader and Canvas read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from course.core.result import Provenance, StudentResult
from course.grading.export import output_files
from course.grading.export.escape import csv_table
from course.grading.export.student_view import points_of
from course.grading.export.titles import course_titles

Cell = str | float | None

#: The columns of each lab, after its number: ``2.1 points``.
OF_LAB = ("points", "max", "computed", "override", "override_reason", "outcome", "reason", "flags")
NBGRADER = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "raw_score",
            "late_submission_penalty", "score", "max_score")
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")


def lab_numbers(students: Sequence[StudentResult]) -> list[str]:
    """Return all labs that any student was asked for, in the order of the course."""
    numbers = {number for student in students for number in student.labs}
    return sorted(numbers, key=lambda number: [(not part.isdigit(), int(part) if part.isdigit() else 0, part)
                                               for part in number.split(".")])


def max_points(students: Sequence[StudentResult], number: str) -> int:
    """Return the maximum points of a lab. A result that broke off early may not know them, so the largest counts."""
    return max((student.labs[number].max_points for student in students if number in student.labs), default=0)


def total(student: StudentResult) -> float | None:
    """Return the total; None while a lab must be graded again, because a partial sum would look like the total."""
    points = [points_of(student, number) for number in student.labs]
    return None if None in points else sum(value for value in points if value is not None)


class Grades:
    """One row per student, with everything that led to the number."""

    name = "grades.csv"

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        numbers = lab_numbers(students)
        head = ["student", "name", "submitted", *(f"{number} {what}" for number in numbers for what in OF_LAB), "total",
                "max", "percent", "notes", "commit", "sandbox", "network"]
        worth = {number: max_points(students, number) for number in numbers}
        rows = [self._row(student, worth, provenance) for student in students]
        output_files.write(out / self.name, csv_table([head, *rows]))

    def _row(self, student: StudentResult, worth: dict[str, int], provenance: Provenance) -> list[Cell]:
        row: list[Cell] = [student.student, student.name, "yes" if student.is_submitted else "no"]
        for number in worth:
            row += self._of_lab(student, number, worth[number])
        points, most = total(student), sum(worth[number] for number in student.labs)
        percent = 100 * points / most if points is not None and most else None
        sandboxes = {lab.sandbox for lab in student.labs.values() if lab.sandbox} or {provenance.sandbox}
        networks = {lab.has_network for lab in student.labs.values() if lab.sandbox} or {provenance.has_network}
        return [*row, points, most, percent, " | ".join(student.notes), provenance.commit,
                ", ".join(sorted(sandboxes)), "in reach" if True in networks else "out of reach"]

    def _of_lab(self, student: StudentResult, number: str, worth: int) -> list[Cell]:
        lab, override = student.labs.get(number), student.overrides.get(number)
        if lab is None:
            return [None] * len(OF_LAB)
        by_hand = (override.points, override.reason) if override else (None, "")
        return [points_of(student, number), worth, lab.points if lab.tests else None, *by_hand, lab.outcome.value,
                lab.reason, " | ".join(lab.flags)]


class Nbgrader:
    """The columns of ``nbgrader export``. The last word of a name is used as the last name."""

    name = "nbgrader.csv"

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        rows: list[Sequence[Cell]] = [NBGRADER]
        for number in lab_numbers(students):
            worth = max_points(students, number)
            for student in students:
                if number in student.labs:
                    first, _, last = student.name.rpartition(" ")
                    points = points_of(student, number)
                    raw = student.labs[number].points if points is not None else None
                    rows.append([f"lab-{number}", "", "", student.student, last, first, "", raw, 0, points, worth])
        output_files.write(out / self.name, csv_table(rows))


class Canvas:
    """The format that Canvas's gradebook imports. The column ``ID`` is Canvas's own number, which is not known here:
    Canvas finds students by the SIS id or the login. An empty cell leaves the value in Canvas unchanged."""

    name = "canvas.csv"

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        numbers, titles = lab_numbers(students), course_titles()
        rows: list[Sequence[Cell]] = [(*CANVAS, *(titles.lab(number) for number in numbers)),
                                      ("Points Possible", "", "", "", "",
                                       *(max_points(students, number) for number in numbers))]
        for student in students:
            points = [points_of(student, number) if number in student.labs else None for number in numbers]
            rows.append([student.name or student.student, "", student.student, student.student, "", *points])
        output_files.write(out / self.name, csv_table(rows))
