"""``course board --merge``: one board per open lab for a class, from the results that ``course grade`` has stored.

The scores come from graded submissions only. A student's own ``.course/board.json`` is never read: the student can
change it. Nothing is graded here.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course.core.atomic_files import write_whole
from course.grading.class_run.check_folders import is_ours
from course.grading.class_run.store import Record, Store
from course.grading.export.class_board import FORMATS, ClassBoard, as_text, make_board
from course.grading.export.escape import one_line
from course.grading.export.student_view import alias_of
from course.lab.lab import Lab, LabError
from course.lab.score_process import score_file
from course.pytest_run.provenance import digest_of_tests


@dataclass(frozen=True)
class MergeOptions:
    """The arguments of the command."""

    #: Folders that ``course grade --out`` has written.
    folders: Sequence[Path]
    #: The file for the table; None for standard output.
    out: Path | None = None
    #: Whether the table shows names instead of aliases.
    has_names: bool = False
    #: The folder of hidden tests with which the class was graded.
    hidden: Path | None = None


def merge_boards(wish: MergeOptions, labs: Sequence[Lab]) -> int:
    """Write or print the boards of these open labs. Return 1 if a result had to be left out as outdated, else 0.

    Raise LabError for a folder without results, a file of another kind, or labs of which nothing was graded.
    """
    if wish.out is not None and wish.out.suffix not in FORMATS:
        raise LabError(f"--output {wish.out} must end in {', '.join(FORMATS)}: the ending selects the format.")
    if wish.out is not None and not wish.out.absolute().parent.is_dir():
        raise LabError(f"--output {wish.out}: there is no folder {wish.out.parent}.")
    folders = list(dict.fromkeys(folder.resolve() for folder in wish.folders))
    for folder in folders:
        if not folder.is_dir() or not is_ours(folder):
            raise LabError(f"--merge {folder} is not a folder of results: give what `course grade --out` wrote.")
    merged = [_Merge(lab, folders, wish) for lab in labs]
    graded = [one for one in merged if one.students]
    if not graded:
        raise LabError(f"These folders contain no results of lab {', '.join(lab.number for lab in labs)}: "
                       f"{', '.join(map(str, folders))}.")
    boards = [one.board() for one in graded]
    if wish.out is None:
        print(as_text(boards), end="")
    else:
        write_whole(wish.out, FORMATS[wish.out.suffix](boards).encode())
        print(f"{wish.out}: " + "; ".join(f"{board.heading}, {board.remark}" for board in boards))
    for note in (note for one in graded for note in one.notes):
        print(note, file=sys.stderr)
    return 1 if any(one.has_outdated for one in graded) else 0


class _Merge:
    """The results of one open lab in all folders."""

    def __init__(self, lab: Lab, folders: Sequence[Path], wish: MergeOptions) -> None:
        self._lab, self._has_names = lab, wish.has_names
        self._tests = digest_of_tests(lab, wish.hidden)
        #: Remarks for the instructor; they name students, so they are not part of the table.
        self.notes: list[str] = []
        self.has_outdated = False
        #: Everyone who was asked for this lab, with the results whose scores count, the best first.
        self.students: dict[str, list[Record]] = {}
        for folder in folders:
            store = Store(folder)
            for student in store.students():
                if lab.number in store.labs_of(student):
                    found = self.students.setdefault(student, [])
                    found += self._counted(store, student)
        for found in self.students.values():
            found.sort(key=lambda record: -_score(record))
        self._note_choices()

    def _counted(self, store: Store, student: str) -> list[Record]:
        """Return the student's result in one folder if its score counts."""
        number = self._lab.number
        record = store.get(student, number)
        settings = self._lab.score
        if record is None or record.result.score is None or settings is None:
            return []
        path = store.texts / student / f"{number}.py"
        problem = settings.problem_with(record.result.score)
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != record.result.file_sha256:
            problem = "A newer file is not graded yet."
        elif record.tests_sha256 != self._tests:
            problem = ("It was graded with other tests than those of this course. Grade it again; if there are hidden "
                       "tests, give the same --hidden here.")
        if not problem:
            return [record]
        self.has_outdated = True
        self.notes.append(f"{one_line(student)} {number} is left out. {problem}")
        return []

    def _note_choices(self) -> None:
        """Note what an instructor may want to know before publishing."""
        number = self._lab.number
        listed = {student: found[0] for student, found in self.students.items() if found}
        for student, found in self.students.items():
            if len({record.result.file_sha256 for record in found}) > 1:
                self.notes.append(f"{one_line(student)} {number}: several folders have a score; the best one counts.")
            if found and found[0].result.flags:
                self.notes.append(f"{one_line(student)} {number} is flagged; look at the file before you publish: "
                                  f"{one_line(' | '.join(found[0].result.flags))}")
        commits = Counter(record.commit for record in listed.values())
        if len(commits) > 1:
            self.notes.append(f"Lab {number}: the scores come from {len(commits)} versions of the course "
                              f"({', '.join(sorted(commits))}). Grade all with one version to compare them.")

    def board(self) -> ClassBoard:
        """Return the board. The scores of the known solutions are computed here and now."""
        lab = self._lab
        if lab.score is None:
            raise LabError(f"Lab {lab} has no score.")
        listed = {student: found[0] for student, found in self.students.items() if found}
        names = self._names(listed) if self._has_names else {
            student: alias_of(record.result.file_sha256) for student, record in listed.items()}
        scores = [(names[student], _score(record)) for student, record in listed.items()]
        return make_board(lab.number, lab.title, lab.score, scores, score_file(lab, None).landmarks,
                          len(self.students) - len(listed))

    def _names(self, listed: dict[str, Record]) -> dict[str, str]:
        """Return the name of each student, with the id if the name is not unique; without a name, the id."""
        counts = Counter(record.name for record in listed.values())
        return {student: student if not record.name else
                record.name if counts[record.name] == 1 else f"{record.name} ({student})"
                for student, record in listed.items()}


def _score(record: Record) -> float:
    return record.result.score or 0.0
