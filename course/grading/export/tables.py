"""The class as tables: ``grades.csv``, and what nbgrader and Canvas read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path

from course.core.result import Exact, Mark, Points, Provenance, StudentResult
from course.grading.export import output_files
from course.grading.export.escape import csv_table
from course.grading.export.student_view import points_of, total_of
from course.grading.export.titles import course_titles

Cell = str | Points | None

#: The columns of each lab, after its number: ``2.1 points``.
OF_LAB = ("points", "max", "computed", "override", "override_reason", "outcome", "reason", "flags")
#: More columns of each lab if there is a gradebook.
OF_BOOK = ("submitted", "deadline", "late", "penalty", "attempt", "how")
#: The last column of a lab that has a score.
SCORE = "score"
NBGRADER = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "raw_score",
            "late_submission_penalty", "score", "max_score")
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")


def lab_numbers(students: Sequence[StudentResult]) -> list[str]:
    """Return all labs that any student was asked for, in the order of the course."""
    numbers = {number for student in students for number in student.labs}
    return sorted(numbers, key=lambda number: [(not part.isdigit(), int(part) if part.isdigit() else 0, part)
                                               for part in number.split(".")])


def max_points(students: Sequence[StudentResult], number: str) -> Exact:
    """Return the maximum points of a lab. A result that broke off early may not know them, so the largest counts."""
    return max((student.max_points_of(number) for student in students if number in student.labs), default=0)


class Grades:
    """One row per student, with everything that led to the number."""

    name = "grades.csv"

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        output_files.write(out / self.name, self.text(students, provenance))

    def text(self, students: Sequence[StudentResult], provenance: Provenance) -> str:
        numbers, scored = lab_numbers(students), course_titles().scores.keys()
        comment = ["comment"] if any(student.comment or student.comments for student in students) else []
        of_lab = [*OF_LAB, *(OF_BOOK if any(student.marks for student in students) else ()), *comment]
        columns = [(number, what) for number in numbers for what in (*of_lab, *([SCORE] * (number in scored)))]
        head = ["student", "name", "submitted", *(f"{number} {what}" for number, what in columns), "total", "max",
                "percent", "notes", "commit", "sandbox", "network", *comment]
        worth = {number: max_points(students, number) for number in numbers}
        rows = [[*self._row(student, worth, provenance, columns), *([student.comment] if comment else [])]
                for student in students]
        return csv_table([head, *rows])

    def _row(self, student: StudentResult, worth: dict[str, Exact], provenance: Provenance,
             columns: Sequence[tuple[str, str]]) -> list[Cell]:
        cells = {number: self._of_lab(student, number, worth[number]) for number in worth}
        row: list[Cell] = [student.student, student.name, "yes" if student.is_submitted else "no"]
        row += [cells[number].get(what) for number, what in columns]
        most = sum(student.marks[number].max_points if number in student.marks else worth[number]
                   for number in student.labs)
        points = total_of(student)
        percent = 100 * points / most if points is not None and most else None
        sandboxes = {lab.sandbox for lab in student.labs.values() if lab.sandbox} or {provenance.sandbox}
        networks = {lab.has_network for lab in student.labs.values() if lab.sandbox} or {provenance.has_network}
        return [*row, points, most, percent, " | ".join(student.notes), provenance.commit,
                ", ".join(sorted(sandboxes)), "in reach" if True in networks else "out of reach"]

    def _of_lab(self, student: StudentResult, number: str, worth: Exact) -> dict[str, Cell]:
        """Return the cells by the names of their columns."""
        lab, override = student.labs.get(number), student.overrides.get(number)
        if lab is None:
            return {}
        by_hand = (override.points, override.reason) if override else (None, "")
        cells: dict[str, Cell] = dict(zip(OF_LAB, (
            points_of(student, number), worth, lab.points if lab.tests else None, *by_hand, lab.outcome.value,
            lab.reason, " | ".join(lab.flags))))
        cells["comment"] = student.comments.get(number, "")
        cells[SCORE] = lab.score
        mark = student.marks.get(number)
        if mark is None:
            return cells
        return {**cells, **dict(zip(OF_BOOK, (
            _moment(mark.submitted), _moment(mark.deadline), mark.late, mark.penalty, mark.attempt,
            " | ".join(mark.steps)))), "points": None if mark.is_excused else mark.points, "max": mark.max_points}


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
                    mark = student.marks.get(number, Mark(None, Fraction(0)))
                    points = None if mark.is_excused else points_of(student, number)
                    raw = mark.raw if number in student.marks else student.labs[number].points
                    rows.append([f"lab-{number}", _in_utc(mark.due), _in_utc(mark.submitted), student.student, last,
                                 first, "", raw if points is not None else None, mark.penalty, points, worth])
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
            cells = [self._of_lab(student, number) if number in student.labs else None for number in numbers]
            rows.append([student.name or student.student, "", student.student, student.student, "", *cells])
        output_files.write(out / self.name, csv_table(rows))

    def _of_lab(self, student: StudentResult, number: str) -> Cell:
        """Return the points, or ``EX``, which Canvas reads as excused."""
        is_excused = number in student.marks and student.marks[number].is_excused
        return "EX" if is_excused else points_of(student, number)


def _moment(moment: datetime | None) -> str:
    """Write a time with its offset: ``2026-10-12 23:59:00+02:00``."""
    return "" if moment is None else moment.isoformat(" ", "seconds")


def _in_utc(moment: datetime | None) -> str:
    """Write a time as nbgrader does: in UTC, without an offset."""
    return "" if moment is None else f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"
