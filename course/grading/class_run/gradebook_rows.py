"""The class as rows: what is known of every student, and of every lab that has a result, whichever call made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from course.core.result import LabResult, Outcome, Override, StudentResult
from course.grading.class_run.result_key import unearned
from course.grading.class_run.store import Record, Store
from course.grading.intake.roster import Student
from course.lab.lab import Lab

NOT_YET = "Not graded yet."
NOTHING = "Nothing was handed in."


class Rows:
    """The students and labs that are shown, and their results.

    An LMS exports one assignment at a time. So a second call, for another lab, adds to the rows of the first, and
    students who handed in nothing this time are kept.
    """

    def __init__(self, store: Store, students: Mapping[str, Student], has_roster: bool, course: Sequence[Lab],
                 asked: Sequence[Lab], hidden: Path | None) -> None:
        self._store, self._asked, self._known = store, asked, students
        earlier = [] if has_roster else store.students()
        #: The students, in the order of the roster, or of their ids.
        self.students = list(students) if has_roster else sorted({*students, *earlier})
        stored = {lab for student in self.students for lab in store.labs_of(student)}
        self.labs = [lab for lab in course if lab.number in stored or lab in asked]
        #: Lab → its tests, all of them failed.
        self.unearned = {lab.number: unearned(lab, hidden) for lab in self.labs}
        #: The key that a result must have, for the files that this call has read.
        self.keys: dict[tuple[str, str], str] = {}
        self.overrides: dict[str, dict[str, Override]] = {}

    @property
    def max_points(self) -> dict[str, int]:
        return {number: sum(test.points for test in tests) for number, tests in self.unearned.items()}

    def whole(self, result: LabResult) -> LabResult:
        """Add the lab's tests, as failed, to a result without any, so that the maximum points are known."""
        return result if result.tests else replace(result, tests=self.unearned[result.lab])

    def make(self) -> list[StudentResult]:
        return [self._row(student) for student in self.students]

    def _row(self, student: str) -> StudentResult:
        records = {lab.number: self._record(student, lab.number) for lab in self.labs}
        known = self._known.get(student, Student(student))
        notes = dict.fromkeys(note for record in records.values() for note in record.notes)
        return StudentResult(
            student, known.name or next((record.name for record in records.values() if record.name), ""),
            {number: record.result for number, record in records.items()}, self.overrides.get(student, {}),
            tuple(notes), any(record.is_submitted for record in records.values()))

    def _record(self, student: str, lab: str) -> Record:
        """Return what is known of a file. If it is still to be graded, or was in no call, the record says that."""
        known = self._store.get(student, lab)
        if known is not None and known.key == self.keys.get((student, lab), known.key):
            return known
        is_asked = student in self._known and any(one.number == lab for one in self._asked)
        outcome, reason = (Outcome.GRADE_AGAIN, NOT_YET) if is_asked else (Outcome.MISSING, NOTHING)
        return Record(student, LabResult(lab, outcome, self.unearned[lab], reason), is_submitted=is_asked)
