"""Which file of a submission is which lab's: by its name, and by nothing else."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from course.grading.intake.members import Budget, Member, Refused, is_archive
from course.grading.intake.oddities import problem_of, problem_of_name, without_mark
from course.grading.intake.settling import Submission
from course.labs import Lab

MAX_NAMED = 4
#: ``starter``, also as a browser or a platform calls the second download of it.
_STARTER = re.compile(r"starter(?:-\d{1,2}| ?\(\d{1,2}\)|_\d)?")
#: What lies beside a starter and is not it.
_BESIDE = ("solution", "test_lab", "mutants", "conftest", "readme", "hints", "answers", "lab")


@dataclass(frozen=True)
class LabFile:
    """What a student handed in for one lab: a text to be graded, or the reason why there is none."""

    lab: Lab
    content: bytes = b""
    #: Empty if there is a text.
    problem: str = ""
    is_missing: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest() if self.content else ""


@dataclass(frozen=True)
class TakenIn:
    """A submission that was read: one file for each lab that is asked, and what is to be said of the whole."""

    files: dict[str, LabFile]
    notes: tuple[str, ...] = ()
    is_submitted: bool = True


@dataclass
class _Candidates:
    """What could be one lab's file."""

    proper: list[Member] = field(default_factory=list)
    #: Rightly named but for the end: a notebook, say.
    near: list[Member] = field(default_factory=list)


def take_in(submission: Submission, labs: Sequence[Lab], asked: Sequence[Lab]) -> TakenIn:
    """Read a submission, and find the file of each lab in ``asked``. ``labs`` are all of the course."""
    if not submission.parts:
        return TakenIn({lab.number: LabFile(lab, problem="Nothing was handed in.", is_missing=True) for lab in asked},
                       is_submitted=False)
    budget = Budget()
    try:
        members = [member for part in submission.parts for member in part.read(budget)]
    except Refused as refused:
        return TakenIn({lab.number: LabFile(lab, problem=str(refused)) for lab in asked})
    except OSError as error:
        return TakenIn({lab.number: LabFile(lab, problem=f"It cannot be read: {error.strerror}.") for lab in asked})
    candidates: dict[str, _Candidates] = {lab.number: _Candidates() for lab in labs}
    only = asked[0] if len(asked) == 1 else None
    for member in members:
        lab = lab_of(member.name, labs, only)
        if lab is not None:
            of_lab = candidates[lab.number]
            (of_lab.proper if member.name.lower().endswith(".py") else of_lab.near).append(member)
    return TakenIn({lab.number: _choose(lab, candidates[lab.number], members, only is not None) for lab in asked},
                   tuple(_notes(submission, members)))


def lab_of(name: str, labs: Sequence[Lab], only: Lab | None) -> Lab | None:
    """The lab whose file this may be: by a folder above it, by its own name, or since one lab alone is asked."""
    path = PurePosixPath(name)
    stem = path.name.lower().partition(".py")[0] if ".py" in path.name.lower() else path.stem.lower()
    above = next((lab for part in reversed(path.parts[:-1]) for lab in labs if _is_called(part, lab)), None)
    if above is not None:
        is_its = _STARTER.fullmatch(stem) or _is_called(stem, above)
        return above if is_its else None
    by_name = next((lab for lab in labs if _is_called(stem, lab)), None)
    if by_name is not None or stem in _BESIDE:
        return by_name
    return only if _STARTER.fullmatch(stem) else None


def _is_called(text: str, lab: Lab) -> bool:
    """``2.1``, ``lab-2.1``, ``starter_2.1``, ``block_allocator`` and ``lab-01-block-allocator`` all mean lab 2.1."""
    plain = re.sub(r"[ _]", "-", text.lower())
    plain = re.sub(r"^starter-|-starter$", "", plain)
    return plain in (lab.number, f"lab-{lab.number}", f"lab{lab.number}", lab.name, lab.folder.name,
                     f"{lab.number}-{lab.name}")


def _choose(lab: Lab, candidates: _Candidates, members: Sequence[Member], is_only: bool) -> LabFile:
    """The one file that is the lab's, or what is wrong. Two files with the same content are no riddle."""
    proper = candidates.proper
    if len({(member.content, member.problem) for member in proper}) > 1:
        names = ", ".join(sorted(member.shown for member in proper)[:MAX_NAMED])
        return LabFile(lab, problem=f"{len(proper)} files could be lab {lab.number}'s: {names}. Hand in one.")
    if proper:
        problem = proper[0].problem or problem_of(proper[0].content)
        if problem:
            return LabFile(lab, problem=f"{proper[0].shown} {problem}.")
        return LabFile(lab, without_mark(proper[0].content))
    if candidates.near:
        near = candidates.near[0]
        return LabFile(lab, problem=f"{near.shown} {near.problem or problem_of_name(near.name)}.")
    if len(members) == 1 and members[0].problem:
        return LabFile(lab, problem=f"{members[0].shown} {members[0].problem}.")
    notebooks = [member for member in members if member.name.lower().endswith(".ipynb")]
    if is_only and notebooks:
        return LabFile(lab, problem=f"{notebooks[0].shown} {problem_of_name(notebooks[0].name)}.")
    return LabFile(lab, problem=_missing(lab, members, is_only), is_missing=True)


def _missing(lab: Lab, members: Sequence[Member], is_only: bool) -> str:
    if not members:
        return "The submission is empty."
    expected = "starter.py" if is_only else f"{lab.folder.name}/starter.py or {lab.number}.py"
    texts = sorted(member.shown for member in members if member.name.lower().endswith(".py"))
    others = [name for name in texts if PurePosixPath(name).stem.lower() not in _BESIDE] or texts
    there = f"; there is {', '.join(others[:MAX_NAMED])}" if is_only and others else ""
    return f"There is no {expected} in the submission{there}."


def _notes(submission: Submission, members: Sequence[Member]) -> list[str]:
    """What an instructor may want to know of the whole."""
    odd = [f"{member.shown} {member.problem}; it was left out." for member in members
           if member.problem and not is_archive(member.name)]
    if len(odd) > MAX_NAMED:
        odd = [*odd[:MAX_NAMED], f"{len(odd) - MAX_NAMED} more files were left out."]
    late = ["Late, by its name."] if any(part.label.is_late for part in submission.parts) else []
    return late + odd
