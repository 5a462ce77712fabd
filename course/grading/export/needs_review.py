"""The results of a class that a person should review: one list per kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course.core.result import LabResult, Outcome, Override, StudentResult
from course.grading.export.escape import number, one_line
from course.grading.export.page import Block, Heading, Items, Line, Paragraph, code
from course.grading.intake.unclear import Unclear

_TO_DECIDE, _FURTHER = "To decide", "Further files"
_REMARKS = {
    "Flags": "Never scored. Look at the file before you draw a conclusion.",
    _TO_DECIDE: "Not graded, because of a name: a student may lose points. If the guess is right, run its command "
                "and grade again; or give the points in overrides.csv.",
    _FURTHER: "Handed in with the others. They change no score."}
#: The length of a command. A longer one can be found in unclear.json.
_MAX_ADVICE = 600


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
    lists = {_TO_DECIDE: [_about(one) for one in unclear if one.is_open], **_lists(students),
             _FURTHER: [_about(one) for one in unclear if not one.is_open]}
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
            file.about(file.result.reason or "no reason was given") for file in files
            if file.result.outcome is Outcome.GRADE_AGAIN and file.override is None],
        "Flags": [file.about("; ".join(file.result.flags)) for file in files if file.result.flags],
        "Could not be read": [
            file.about(file.result.reason) for file in files if file.result.outcome is Outcome.UNREADABLE],
        "Remarks on graded files": [
            file.about(file.result.reason) for file in files
            if file.result.outcome is Outcome.GRADED and file.result.reason],
        "Overrides": [
            file.about(f"{number(file.override.points)} in place of {file.result.points}: {file.override.reason}")
            for file in files if file.override is not None],
        "Handed in nothing": [(_who(student),) for student in students if not student.is_submitted],
        "Notes": [(_who(student), ": ", one_line(note)) for student in students for note in student.notes],
    }


def _about(unclear: Unclear) -> Line:
    likely = ", ".join(filter(None, (unclear.student, unclear.lab and f"lab {unclear.lab}")))
    about = f"{unclear.kind.value}{f' (likely {likely})' if likely else ''}: {unclear.why}"
    line: Line = (code(one_line(unclear.path)), f", {one_line(about, _MAX_ADVICE)} ")
    return (*line, code(one_line(unclear.advice, _MAX_ADVICE))) if unclear.advice else line


def _who(student: StudentResult) -> str:
    return one_line(f"{student.name} ({student.student})" if student.name else student.student)
