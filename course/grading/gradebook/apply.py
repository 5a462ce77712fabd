"""The gradebook applied to a class: every row gets its marks, and shows the attempt that counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from course.core.result import Attempt, Exact, LabResult, Outcome, StudentResult, TestResult, in_zone
from course.grading.gradebook.marks import Submission, mark
from course.grading.gradebook.rules import Gradebook
from course.grading.gradebook.weights import total_worth, weigh


def apply_gradebook(book: Gradebook, rows: Sequence[StudentResult]) -> list[StudentResult]:
    """Return the rows with their marks. The result of each lab becomes that of the attempt that counts."""
    by_student = {row.student: row for row in rows}
    return [_apply(book, row, by_student) for row in rows]


def _apply(book: Gradebook, row: StudentResult, rows: Mapping[str, StudentResult]) -> StudentResult:
    marks, labs = {}, {}
    for lab, result in row.labs.items():
        partners = [rows[student] for student in book.partners(row.student, lab) if student in rows]
        found = [one for partner in partners for one in _submissions(book, partner, lab)
                 if partner is row or not _is_own(book, row, lab, one)]
        marks[lab], labs[lab] = mark(book, lab, row.student, result, found, row.overrides.get(lab))
    # If all labs so far are extra credit, for everyone, there is no maximum of which the cap could be a share.
    has_maximum = any(total_worth(weigh(result, book.lab(lab)).tests, book.lab(lab)).max_points
                      for lab, result in row.labs.items())
    is_submitted = row.is_submitted or any(result.outcome is not Outcome.MISSING for result in labs.values())
    return replace(row, labs=labs, marks=marks, is_submitted=is_submitted,
                   cap_percent=book.cap_percent if has_maximum else None)


def _submissions(book: Gradebook, row: StudentResult, lab: str) -> list[Submission]:
    """Return what a student handed in for a lab. The current result is the last, if it is not among the attempts: its
    owner must still decide which of two files counts."""
    if lab not in row.labs:
        return []
    found = [Submission(row.student, one.result, _in_utc(book, one), one.file_sha256)
             for one in row.attempts.get(lab, ())]
    current = row.labs[lab]
    if current.outcome is not Outcome.MISSING and all(one.result != current for one in found):
        found.append(Submission(row.student, current))
    return found


def _is_own(book: Gradebook, row: StudentResult, lab: str, other: Submission) -> bool:
    """Return whether another member's submission is the student's, too: Gradescope gives a group's file to each."""
    return any(one.file_sha256 and one.file_sha256 == other.file_sha256 and _in_utc(book, one) == other.submitted
               for one in row.attempts.get(lab, ()))


def _in_utc(book: Gradebook, attempt: Attempt) -> datetime | None:
    """Return when an attempt was handed in; None if that is not known, perhaps because no time zone is."""
    given = attempt.submitted
    if given is None or (given.tzinfo is None and not book.has_zone):
        return None
    moment = in_zone(given, book.zone)
    return None if moment is None else moment.astimezone(timezone.utc)


def most_points(book: Gradebook, tests: Mapping[str, Sequence[TestResult]]) -> dict[str, Exact]:
    """Return the most points that each lab can give, extra credit included: the bound of an override."""
    return {lab: total_worth(weigh(LabResult(lab, Outcome.MISSING, tuple(of_lab)), book.lab(lab)).tests,
                             book.lab(lab)).most for lab, of_lab in tests.items()}
