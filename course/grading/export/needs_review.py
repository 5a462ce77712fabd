"""The results of a class that a person should review: one list per kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course.core.result import LabResult, Outcome, Override, StudentResult
from course.grading.export.escape import number, one_line
from course.grading.export.page import Block, Heading, Items, Line, Paragraph, code
from course.grading.export.student_view import points_of
from course.grading.intake.platforms import Unclear

_LEFT_OUT, _DECIDED = "Handed in, but not graded", "Not graded, and decided"
_REMARKS = {
    "Flags": "Flags do not change a score. Look at the file before you draw a conclusion.",
    _LEFT_OUT: "A student may lose points because of them. Rename or remove each and grade again, or set the points of "
               "the student and the lab in overrides.csv.",
    _DECIDED: "You have set the points in overrides.csv."}


@dataclass(frozen=True)
class _File:
    student: StudentResult
    result: LabResult
    override: Override | None

    def about(self, text: str) -> Line:
        return (_who(self.student), f", {self.result.lab}: ", one_line(text))


def to_look_at(students: Sequence[StudentResult], unclear: Sequence[Unclear] = ()) -> list[Block]:
    """Return the blocks of the section, or nothing if there is nothing to look at."""
    blocks: list[Block] = []
    lists = {_LEFT_OUT: [_about(one) for one in unclear if one.is_open], **_lists(students),
             _DECIDED: [_about(one) for one in unclear if not one.is_open]}
    for title, lines in lists.items():
        if lines:
            remark = [Paragraph((_REMARKS[title],), "small")] if title in _REMARKS else []
            blocks += [Heading(3, (f"{title} ({len(lines)})",)), *remark, Items(tuple(lines))]
    return [Heading(2, ("To look at",)), *blocks] if blocks else []


def _lists(students: Sequence[StudentResult]) -> dict[str, list[Line]]:
    files = [_File(student, result, student.overrides.get(lab)) for student in students
             for lab, result in student.labs.items()]
    return {
        "To be graded again": [
            file.about(file.result.reason or ("no reason was given" if file.result.outcome is Outcome.GRADE_AGAIN
                                              else "another attempt must be graded again"))
            for file in files if points_of(file.student, file.result.lab) is None],
        "Flags": [file.about("; ".join(file.result.flags)) for file in files if file.result.flags],
        "Late": [file.about(f"{mark.late}, {number(mark.penalty)} points off") for file in files
                 if (mark := file.student.marks.get(file.result.lab)) is not None and mark.late
                 and file.override is None],
        "Excused": [file.about("counts neither in the points nor in the maximum") for file in files
                    if (mark := file.student.marks.get(file.result.lab)) is not None and mark.is_excused],
        "Could not be read": [
            file.about(file.result.reason) for file in files if file.result.outcome is Outcome.UNREADABLE],
        "Remarks on graded files": [
            file.about(file.result.reason) for file in files
            if file.result.outcome is Outcome.GRADED and file.result.reason],
        "Overrides": [
            file.about(f"{number(file.override.points)} points instead of {number(file.result.points)}: "
                       f"{file.override.reason}")
            for file in files if file.override is not None],
        "Handed in nothing": [(_who(student),) for student in students if student.lacks_all],
        "Notes": [(_who(student), ": ", one_line(note)) for student in students for note in student.notes],
    }


def _about(unclear: Unclear) -> Line:
    whose = " ".join(filter(None, (unclear.student, unclear.lab)))
    return code(one_line(unclear.path)), f"{whose and f', {whose}'}: {one_line(unclear.why)}"


def _who(student: StudentResult) -> str:
    return one_line(f"{student.name} ({student.student})" if student.name else student.student)
