"""Matches the files of a submission with labs, by their names only. What a file looks like is only reported, by
``course.grading.intake.strays``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import PurePosixPath

from course.grading.intake.assign_owners import Submission
from course.grading.intake.find_submissions import Found
from course.grading.intake.lab_names import BESIDE, lab_of
from course.grading.intake.not_python import problem_of, problem_of_name, without_mark
from course.grading.intake.read_files import Budget, Member, Refused, is_archive, is_notebook
from course.lab.lab import Lab

MAX_NAMED = 4
#: The number of earlier attempts of one download that are graded; of more, the oldest are left out.
MAX_EARLIER = 20


@dataclass(frozen=True)
class Placed:
    """A file, and the submission part that it was in."""

    part: Found
    member: Member


@dataclass(frozen=True)
class LabFile:
    """A student's submission for one lab: a text to grade, or the reason why there is none."""

    lab: Lab
    content: bytes = b""
    #: Empty if there is a text.
    problem: str = ""
    is_missing: bool = False
    #: It is not clear which of two submissions counts: there is no score, not even 0.
    is_undecided: bool = False
    #: The files whose names are right for the lab; exactly one if all is well.
    proper: tuple[Placed, ...] = ()
    #: When it was handed in, if the platform's names or tables say so, and what says so.
    submitted: datetime | None = None
    time_source: str = ""

    @property
    def is_attempt(self) -> bool:
        """Whether something was handed in, even if it cannot be graded."""
        return not (self.is_missing or self.is_undecided)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest() if self.content else ""


@dataclass(frozen=True)
class TakenIn:
    """A submission that was read: one file per requested lab, and notes on the whole."""

    files: dict[str, LabFile]
    notes: tuple[str, ...] = ()
    is_submitted: bool = True
    #: All files.
    members: tuple[Placed, ...] = ()
    #: Lab → the files of earlier attempts, the oldest first.
    earlier: dict[str, tuple[LabFile, ...]] = field(default_factory=dict)


@dataclass
class _Candidates:
    """The files that could be one lab's."""

    proper: list[Placed] = field(default_factory=list)
    #: Files with the right name but the wrong suffix: a notebook, for example.
    near: list[Placed] = field(default_factory=list)


def take_in(submission: Submission, labs: Sequence[Lab], asked: Sequence[Lab]) -> TakenIn:
    """Read a submission and its earlier attempts, and find the file of each lab in ``asked``.

    ``labs`` contains all labs of the course.
    """
    taken = _take_in(submission, labs, asked)
    attempts = [_take_in(replace(submission, parts=(part,)), labs, asked)
                for part in submission.earlier[-MAX_EARLIER:]]
    num_left_out = max(len(submission.earlier) - MAX_EARLIER, 0)
    notes = [f"{num_left_out} more of the earlier attempts were left out."] if num_left_out else []
    return replace(taken, notes=(*taken.notes, *notes), earlier={
        lab.number: tuple(file for one in attempts if (file := one.files[lab.number]).is_attempt) for lab in asked})


def _take_in(submission: Submission, labs: Sequence[Lab], asked: Sequence[Lab]) -> TakenIn:
    def all_of_them(problem: str, is_missing: bool = False, is_undecided: bool = False) -> dict[str, LabFile]:
        return {lab.number: LabFile(lab, b"", problem, is_missing, is_undecided) for lab in asked}

    if submission.problem:
        return TakenIn(all_of_them(submission.problem, is_undecided=True))
    if not submission.parts:
        return TakenIn(all_of_them("Nothing was handed in.", is_missing=True), is_submitted=False)
    budget = Budget()
    try:
        placed = [Placed(part, member) for part in submission.parts for member in part.read(budget)]
    except Refused as refused:
        return TakenIn(all_of_them(str(refused)))
    except OSError as error:
        return TakenIn(all_of_them(f"It cannot be read: {error.strerror}."))
    candidates: dict[str, _Candidates] = {lab.number: _Candidates() for lab in labs}
    only = asked[0] if len(asked) == 1 else None
    for one in placed:
        lab = lab_of(one.member.name, labs, only)
        if lab is not None:
            of_lab = candidates[lab.number]
            (of_lab.proper if one.member.name.lower().endswith(".py") else of_lab.near).append(one)
    members = [one.member for one in placed]
    files = {lab.number: _timed(replace(_choose(lab, candidates[lab.number], members, only is not None),
                                        proper=tuple(candidates[lab.number].proper)), submission) for lab in asked}
    return TakenIn(files, tuple(_notes(submission, members)), members=tuple(placed))


def _timed(file: LabFile, submission: Submission) -> LabFile:
    """Add the time of the parts with the lab's files; if there are no such files, the time of all parts."""
    parts = [placed.part for placed in file.proper] or list(submission.parts)
    if len({part.label.submitted for part in parts}) != 1:
        return file
    return replace(file, submitted=parts[0].label.submitted, time_source=parts[0].label.time_source)


def _choose(lab: Lab, candidates: _Candidates, members: Sequence[Member], is_only: bool) -> LabFile:
    """Return the one file that is the lab's, or what is wrong. Two files with the same content are not a problem."""
    proper = [one.member for one in candidates.proper]
    if len({(member.content, member.problem) for member in proper}) > 1:
        names = ", ".join(sorted(member.shown for member in proper)[:MAX_NAMED])
        return LabFile(lab, problem=f"{len(proper)} files could be for lab {lab.number}: {names}. Hand in only one.")
    if proper:
        problem = proper[0].problem or problem_of(proper[0].content)
        if problem:
            return LabFile(lab, problem=f"{proper[0].shown} {problem}.")
        return LabFile(lab, without_mark(proper[0].content))
    if candidates.near:
        near = candidates.near[0].member
        return LabFile(lab, problem=f"{near.shown} {near.problem or problem_of_name(near.name)}.")
    if len(members) == 1 and members[0].problem:
        return LabFile(lab, problem=f"{members[0].shown} {members[0].problem}.")
    notebooks = [member for member in members if is_notebook(member.name)]
    if is_only and notebooks:
        return LabFile(lab, problem=f"{notebooks[0].shown} {problem_of_name(notebooks[0].name)}.")
    return LabFile(lab, problem=_missing(lab, members, is_only), is_missing=True)


def _missing(lab: Lab, members: Sequence[Member], is_only: bool) -> str:
    if not members:
        return "The submission is empty."
    expected = "starter.py" if is_only else f"{lab.folder.name}/starter.py or {lab.number}.py"
    texts = sorted(member.shown for member in members if member.name.lower().endswith(".py"))
    others = [name for name in texts if PurePosixPath(name).stem.lower() not in BESIDE] or texts
    there = f"; it contains {', '.join(others[:MAX_NAMED])}" if is_only and others else ""
    return f"There is no {expected} in the submission{there}."


def _notes(submission: Submission, members: Sequence[Member]) -> list[str]:
    """Return what an instructor may want to know about the whole submission."""
    odd = [f"{member.shown} {member.problem}; it was left out." for member in members
           if member.problem and not is_archive(member.name)]
    if len(odd) > MAX_NAMED:
        odd = [*odd[:MAX_NAMED], f"{len(odd) - MAX_NAMED} more files were left out."]
    late = ["Its name says that it is late."] if any(part.label.is_late for part in submission.parts) else []
    return late + odd
