"""The class as rows: what is known of every student, and of every lab that has a result, whichever call made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from course.core.result import Attempt, Exact, LabResult, Outcome, Override, StudentResult
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
        #: The same for each attempt, by student, lab and hash of the text.
        self.attempt_keys: dict[tuple[str, str, str], str] = {}
        self.overrides: dict[str, dict[str, Override]] = {}

    @property
    def max_points(self) -> dict[str, Exact]:
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
        attempts = {lab.number: found for lab in self.labs if (found := self._attempts(student, lab.number))}
        times = {lab: one.submitted for lab, found in attempts.items() for one in found
                 if one.submitted is not None and one.file_sha256 == records[lab].attempt}
        return StudentResult(
            student, known.name or next((record.name for record in records.values() if record.name), ""),
            {number: record.result for number, record in records.items()}, self.overrides.get(student, {}),
            tuple(notes), any(record.is_submitted for record in records.values()), attempts, times)

    def _attempts(self, student: str, lab: str) -> tuple[Attempt, ...]:
        """Return the attempts. One that has no valid result yet must be graded again."""
        found = []
        for one in self._store.handed_in(student, lab):
            record = self._store.get_attempt(student, lab, one.file_sha256)
            is_valid = record is not None and record.key == self.attempt_keys.get(
                (student, lab, one.file_sha256), record.key)
            result = record.result if record is not None and is_valid else self.not_yet(lab)
            found.append(Attempt(result, one.submitted, one.source, one.file_sha256))
        return tuple(found)

    def not_yet(self, lab: str) -> LabResult:
        """Return the result of a file that has not been graded."""
        return LabResult(lab, Outcome.GRADE_AGAIN, self.unearned[lab], NOT_YET)

    def _record(self, student: str, lab: str) -> Record:
        """Return what is known of a file. If it was not graded yet, or no call included it, the record says so."""
        known = self._store.get(student, lab)
        if known is not None and known.key == self.keys.get((student, lab), known.key):
            return known
        is_asked = student in self._known and any(one.number == lab for one in self._asked)
        result = self.not_yet(lab) if is_asked else LabResult(lab, Outcome.MISSING, self.unearned[lab], NOTHING)
        return Record(student, result, is_submitted=is_asked)
