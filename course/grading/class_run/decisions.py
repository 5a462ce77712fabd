"""What an instructor decides: ``overrides.csv``, ``comments.csv`` and ``gradebook.toml``.

None of them grades a file again. Each is given on the command line, or found in ``--out`` under this name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timezone, tzinfo
from pathlib import Path
from typing import TypeVar

from course.core.result import Override, StudentResult
from course.grading.class_run.comments import Comments, read_comments
from course.grading.class_run.gradebook_rows import Rows
from course.grading.class_run.last_call import NONE
from course.grading.class_run.overrides import read_overrides
from course.grading.class_run.result_key import unearned
from course.grading.gradebook.apply import apply_gradebook, most_points
from course.grading.gradebook.read import read_gradebook
from course.grading.gradebook.rules import BEST, Gradebook
from course.grading.gradebook.weights import MAX_POINTS
from course.lab.lab import Lab, LabError, find_lab

Read = TypeVar("Read")


@dataclass(frozen=True)
class Decisions:
    overrides: dict[str, dict[str, Override]] = field(default_factory=dict)
    comments: Comments = field(default_factory=dict)
    gradebook: Gradebook | None = None
    #: The file of the gradebook, and what in it has no effect yet.
    gradebook_path: Path | None = None
    notes: Sequence[str] = ()

    def apply(self, rows: Sequence[StudentResult]) -> list[StudentResult]:
        """Return the rows with comments and marks; they already contain the overrides."""
        rows = [replace(row, comments={lab: text for lab, text in given.items() if lab}, comment=given.get("", ""))
                for row in rows for given in [self.comments.get(row.student, {})]]
        return rows if self.gradebook is None else apply_gradebook(self.gradebook, rows)

    @property
    def zone(self) -> tzinfo:
        """The time zone of times without one."""
        return self.gradebook.zone if self.gradebook is not None and self.gradebook.has_zone else timezone.utc

    def takes_best(self, lab: str) -> bool:
        """Return whether every attempt at a lab may count, so that each needs a score."""
        return self.gradebook is not None and self.gradebook.lab(lab).attempts == BEST

    def groups(self, labs: Sequence[Lab]) -> dict[str, dict[str, str]]:
        """Return the groups of each lab: lab → student → the members of the group."""
        book = self.gradebook or Gradebook()
        return {lab.number: {student: ", ".join(group.members) for group in book.groups if group.does(lab.number)
                             for student in group.members} for lab in labs}


@dataclass(frozen=True)
class DecisionFiles:
    """The files that the command line names; None for the default, and ``NONE`` for no file at all."""

    out: Path
    overrides: Path | None = None
    comments: Path | None = None
    gradebook: Path | None = None

    def used(self) -> dict[str, Path | None]:
        """Return the file for each option, or None. Raise LabError for something in ``out`` that is no file."""
        return {option: self._path(given, f"{option}.{suffix}") for option, given, suffix in (
            ("overrides", self.overrides, "csv"), ("comments", self.comments, "csv"),
            ("gradebook", self.gradebook, "toml"))}

    def read(self, rows: Rows, course: Sequence[Lab], hidden: Path | None, has_roster: bool) -> Decisions:
        """Read all of them. Raise LabError with the problems of all of them."""
        problems: list[str] = []
        used = self.used()
        books, path, path_of_comments = used["gradebook"], used["overrides"], used["comments"]
        book, notes = None, list[str]()
        if books is not None:
            read = _or_problem(problems, lambda: read_gradebook(
                books, [lab.number for lab in course], lambda lab: unearned(find_lab(lab, list(course)), hidden),
                rows.students, has_roster))
            book, notes = read or (None, [])
        most = rows.max_points if book is None else most_points(book, rows.unearned)
        if problems:  # the bounds of the overrides are not known
            most = dict.fromkeys(most, MAX_POINTS)
        overrides = _or_problem(problems, lambda: read_overrides(path, rows.students, most)) if path else None
        comments = _or_problem(problems, lambda: read_comments(path_of_comments, rows.students, list(most))) \
            if path_of_comments else None
        if problems:
            raise LabError("\n".join(problems))
        return Decisions(overrides or {}, comments or {}, book, books, notes)

    def _path(self, given: Path | None, name: str) -> Path | None:
        """Return the file to read. Anything of this name in ``out`` is meant, also what cannot be read."""
        if given == NONE:
            return None
        path = given or self.out / name
        if given is None and os.path.lexists(path) and not path.is_file():
            raise LabError(f"{path} cannot be read: it is a folder, a link to nothing, or no file.")
        return path if given is not None or os.path.lexists(path) else None


def _or_problem(problems: list[str], read: Callable[[], Read]) -> Read | None:
    try:
        return read()
    except LabError as error:
        problems.append(str(error))
        return None
