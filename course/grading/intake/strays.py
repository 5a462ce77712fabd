"""Files that are not graded under any lab, or under one that they do not fit, and what they probably are.

Only the names of files decide what is graded. Here a bounded number of texts is examined, so that an instructor learns
of work that would be lost because of a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from course.grading.intake.archives import stem_of
from course.grading.intake.assign_owners import Submission, stem_of_name
from course.grading.intake.find_submissions import Found
from course.grading.intake.lab_names import BESIDE, is_called, lab_of, reminds_of, stem_of_file
from course.grading.intake.likely import Guess, Starters, likely_student, readable
from course.grading.intake.match_labs import LabFile, Placed, TakenIn
from course.grading.intake.not_python import problem_of
from course.grading.intake.read_files import Budget, Refused, is_archive, is_notebook, may_be_python, shown_name
from course.grading.intake.roster import Student
from course.grading.intake.unclear import Kind, Unclear, move
from course.lab.lab import Lab

#: How many texts of one submission are examined, and how many bytes in total.
MAX_LOOKED_AT, MAX_LOOKED_AT_BYTES = 20, 400_000
#: How many files that change nothing are listed per student.
MAX_FURTHER = 5
#: How many items that belong to no student are read.
MAX_NOBODYS = 200
#: Suffixes of files that are never a lab's work.
_TABLES = (".csv", ".tsv", ".xlsx", ".md", ".pdf", ".yml", ".yaml", ".json", ".html", ".toml", ".cfg")


@dataclass(frozen=True)
class _Look:
    """A text that was examined."""

    placed: Placed
    guess: Guess
    #: The lab under which it is graded, and the one that its path names.
    graded_as: Lab | None = None
    place: Lab | None = None

    @property
    def shown(self) -> str:
        return self.placed.member.shown

    @property
    def text(self) -> str:
        return readable(self.placed.member.content)


class Strays:
    """Finds stray files, in one submission after the other."""

    def __init__(self, labs: Sequence[Lab], asked: Sequence[Lab], root: Path) -> None:
        self._labs, self._asked, self._root = labs, asked, root
        self._starters = Starters(labs)

    # ---- in a student's submission

    def of(self, submission: Submission, taken: TakenIn) -> list[Unclear]:
        """Return what is unclear in one student's submission."""
        student = submission.student.id
        several = [self._several(student, file) for file in taken.files.values() if len(_contents(file)) > 1]
        wrong = self._in_wrong_places(taken)
        lacking = self._lacking(taken, wrong)
        looks = [*wrong, *self._look_at(self._others(taken, lacking))]
        found = [unclear for look in looks if (unclear := self._judge(student, look, lacking)) is not None]
        further = [one for one in found if not one.is_open]
        notebooks = self._notebooks(student, taken)
        return several + [one for one in found if one.is_open] + notebooks + further[:MAX_FURTHER]

    def _in_wrong_places(self, taken: TakenIn) -> list[_Look]:
        """Find texts that are graded as one lab's, contain none of its names, and fit another lab."""
        looks = []
        for file in taken.files.values():
            if file.content and not self._starters.fits(file.content, file.lab):
                guess = self._starters.guess(file.content)
                if guess.lab is not None and guess.lab != file.lab:
                    looks.append(_Look(file.proper[0], guess, file.lab, file.lab))
        return looks

    def _lacking(self, taken: TakenIn, wrong: Sequence[_Look]) -> set[str]:
        """Return the labs for which no work of the student's own is graded."""
        misplaced = [id(look.placed) for look in wrong]
        return {number for number, file in taken.files.items() if not file.content
                or any(id(one) in misplaced for one in file.proper)
                or self._starters.of(file.lab).is_as_given_out(readable(file.content))}

    def _others(self, taken: TakenIn, lacking: set[str]) -> list[Placed]:
        """Return the files that may be Python and whose names belong to no requested lab, the likeliest first."""
        graded = {(one.part.name, one.member.name) for file in taken.files.values() for one in file.proper}
        contents = {one.member.content for file in taken.files.values() if file.content for one in file.proper}
        others = [one for one in taken.members if one.member.content and one.member.content not in contents
                  and (one.part.name, one.member.name) not in graded and _may_be_text(one.member.name)
                  and not self._is_the_courses(one, lacking)]
        return sorted(others, key=lambda one: (not _is_python(one.member.name), self._place(one) is not None,
                                               stem_of_file(one.member.name) in BESIDE))

    def _place(self, placed: Placed) -> Lab | None:
        return lab_of(placed.member.name, self._labs, None)

    def _is_the_courses(self, placed: Placed, lacking: set[str]) -> bool:
        """Return whether the course has a file at this path, as in a copy of the whole course. If a lab has no file,
        its ``solution.py`` may be the student's work, and so may another lab's starter."""
        parts = PurePosixPath(placed.member.name).parts
        if len(parts) == 1:
            return stem_of_file(placed.member.name) in ("conftest", "setup")
        if self._place(placed) is not None:
            return not lacking
        above = next((lab for part in parts[:-1] for lab in self._labs if is_called(part, lab)), None)
        if above is not None and stem_of_file(placed.member.name) in BESIDE:
            return above.number not in lacking or parts[-1] != "solution.py"
        return any((self._root / "/".join(parts[start:])).is_file() for start in range(len(parts) - 1))

    def _look_at(self, files: Sequence[Placed]) -> list[_Look]:
        looks = []
        num_bytes = 0
        for placed in files[:MAX_LOOKED_AT]:
            content = placed.member.content
            num_bytes += len(content)
            if num_bytes <= MAX_LOOKED_AT_BYTES and not problem_of(content):
                guess = self._starters.guess(content)
                by_name = reminds_of(placed.member.name, self._labs)
                if not guess.labs and by_name and _is_python(placed.member.name):
                    guess = Guess((by_name,), f"Its name resembles lab {by_name.number}, but its content does not.")
                looks.append(_Look(placed, guess, place=self._place(placed)))
        return looks

    def _judge(self, student: str, look: _Look, lacking: set[str]) -> Unclear | None:
        """Return what to say about a text; None if there is nothing to say."""
        path = _path_of(look.placed)
        kind = Kind.MISNAMED if look.place is None else Kind.WRONG_LAB
        graded = f"is graded as lab {look.graded_as.number}" if look.graded_as else "is not graded"
        why = f"{look.shown} {graded}. {self._why(look)}"
        wanted = [lab for lab in look.guess.labs if lab.number in lacking and lab != look.place
                  and not self._is_shipped(look, lab)]
        if len(wanted) == 1:
            return Unclear(path, kind, why, self._advice(student, look.placed, wanted[0]), student, wanted[0].number)
        if wanted:
            names = " or ".join(f"{lab.number}.py" for lab in wanted)
            return Unclear(path, kind, why, f"Rename it to {names}.", student)
        if look.place is not None:
            return self._graded_elsewhere(path, why, student, look.graded_as, look.guess.lab) \
                if look.graded_as and look.guess.lab else None
        return self._further(student, look, path) if _is_python(look.placed.member.name) else None

    def _graded_elsewhere(self, path: str, why: str, student: str, graded_as: Lab, likely: Lab) -> Unclear:
        """Return an entry that is open only if the file turns out to earn nothing as ``graded_as``."""
        other = f"ask for the file of lab {graded_as.number}" if likely in self._asked else \
            f"if the assignment was lab {likely.number}, grade with --lab {likely.number} and a new --out"
        advice = f"{other[0].upper()}{other[1:]}, or set the points of lab {graded_as.number} in overrides.csv."
        return Unclear(path, Kind.WRONG_LAB, why, advice, student, likely.number, False, graded_as.number)

    def _further(self, student: str, look: _Look, path: str) -> Unclear | None:
        lab = look.guess.lab
        if lab is not None and self._is_shipped(look, lab):
            return None
        return Unclear(path, Kind.FURTHER, f"{look.shown} is not graded. {self._why(look)}", student=student,
                       lab=lab.number if lab else "", is_open=False)

    def _why(self, look: _Look) -> str:
        lab = look.guess.lab
        is_solution = lab is not None and self._starters.of(lab).is_the_solution(look.text)
        return f"It is an exact copy of the course's own solution of lab {lab.number}." if lab and is_solution \
            else look.guess.why

    def _is_shipped(self, look: _Look, lab: Lab) -> bool:
        """Return whether the text is the course's own: the starter under any name, or the solution under its own."""
        starter = self._starters.of(lab)
        is_solution = stem_of_file(look.placed.member.name) == "solution" and starter.is_the_solution(look.text)
        return is_solution or starter.is_as_given_out(look.text)

    def _several(self, student: str, file: LabFile) -> Unclear:
        first, last = file.proper[0], file.proper[-1]
        where = _real_path(last)
        advice = f"To keep {first.member.shown}: {move(where, where.with_name(where.name + '.left-out'))}" if where \
            else "Keep one of them."
        return Unclear(_path_of(last), Kind.SEVERAL, file.problem, advice, student, file.lab.number)

    def _notebooks(self, student: str, taken: TakenIn) -> list[Unclear]:
        """List the notebooks if several labs are graded.

        If only one lab is graded, the reason for its missing score already says that the file is a notebook.
        """
        if len(taken.files) == 1 or any(file.content for file in taken.files.values()):
            return []
        found = []
        for one in [one for one in taken.members if is_notebook(one.member.name)][:MAX_FURTHER]:
            lab = reminds_of(one.member.name, self._labs)
            found.append(Unclear(_path_of(one), Kind.MISNAMED, f"{one.member.shown} is a Jupyter notebook, "
                                 "which cannot be graded. None of the student's other files can be graded.",
                                 "Ask for the Python file.", student, lab.number if lab else ""))
        return found

    def _advice(self, student: str, placed: Placed, lab: Lab) -> str:
        where = _real_path(placed)
        new = f"{lab.number}.py"
        if where is None or placed.part.path is None:
            return f"Unpack the archive into a folder {student}, and rename the file to {new}."
        if placed.part.path.is_dir():
            return move(where, placed.part.path / new)
        prefix = where.name.removesuffix(placed.part.label.file)
        if placed.part.label.is_part and prefix != where.name:
            return move(where, where.with_name(prefix + new))
        return move(where, where.with_name(student) / new)

    # ---- among the submissions

    def of_nobody(self, found: Sequence[Found], students: Mapping[str, Student],
                  without: Sequence[str]) -> list[Unclear]:
        """Return the items among the submissions that belong to no student by their names. ``without`` contains the
        students who handed in nothing."""
        known = list(students.values())
        return [self._nobodys(one, known, without) if i < MAX_NOBODYS else _unread(one) for i, one in enumerate(found)]

    def _nobodys(self, one: Found, students: Sequence[Student], without: Sequence[str]) -> Unclear:
        student = likely_student(stem_of_name(one), students, without)
        if one.name.lower().endswith(_TABLES):
            return _unread(one)
        try:
            placed = [Placed(one, member) for member in one.read(Budget())]
        except (Refused, OSError):
            placed = []
        looks = self._look_at([each for each in placed if each.member.content and _may_be_text(each.member.name)])
        fitting = [look for look in looks if look.guess.lab in self._asked]
        if not fitting or fitting[0].guess.lab is None:
            return replace(_unread(one), student=student)
        lab = fitting[0].guess.lab
        return Unclear(one.name, Kind.NOBODY, f"{_unread(one).why} {fitting[0].guess.why}",
                       self._advice_on_nobodys(one, student, lab), student, lab.number)

    def _advice_on_nobodys(self, one: Found, student: str, lab: Lab) -> str:
        if one.path is None:
            return f"Unpack the archive, and move {one.shown} into its student's folder."
        folder = one.path.parent / (student or "ID")
        asks = "" if student else "Replace ID by the student's id: "
        return asks + move(one.path, folder if one.path.is_dir() else folder / f"{lab.number}.py")


def _unread(one: Found) -> Unclear:
    return Unclear(one.name, Kind.NOBODY, f"{one.shown} does not name a student.", is_open=False)


def with_notes(taken: TakenIn, found: Sequence[Unclear]) -> TakenIn:
    """Add the notes that tell a student about files that were not graded because of their names."""
    notes = [f"{shown_name(one.path)} was not graded as lab {one.lab} because of its name. Your instructor decides "
             f"whether it counts; the right name would have been {one.lab}.py."
             for one in found if one.is_open and one.lab and one.kind in (Kind.MISNAMED, Kind.WRONG_LAB)]
    return replace(taken, notes=(*taken.notes, *notes))


def _contents(file: LabFile) -> set[bytes]:
    return {one.member.content for one in file.proper}


def _is_python(name: str) -> bool:
    return name.lower().endswith(".py")


def _may_be_text(name: str) -> bool:
    return _is_python(name) or may_be_python(name)


def _path_of(placed: Placed) -> str:
    """Return the path of a file in the submissions; an archive counts as a folder."""
    part, name = placed.part, placed.member.name
    inner = name.removeprefix(f"{stem_of(part.name)}/") if is_archive(part.name) else name
    return part.name if part.is_single else f"{part.name}/{inner}"


def _real_path(placed: Placed) -> Path | None:
    """Return the path of a file on the disk; None if it is in an archive."""
    path = placed.part.path
    if path is None or placed.part.is_single:
        return path
    inner = path / placed.member.name
    return inner if inner.is_file() else None
