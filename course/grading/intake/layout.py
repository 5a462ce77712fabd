"""Which file of a submission is which lab's, by its path only.

    2.1.py                                                   in any folder of the submission
    …/lab-01-block-allocator/starter.py                      in any folder
    starter.py                                               if one lab is graded, and no folder names a lab

Files of the course itself, as in a whole course that is handed in, are passed over. Everything else is left out and
listed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from course.grading.intake import reader
from course.grading.intake.platforms import METADATA, Submission, Unclear, shown
from course.grading.intake.reader import Refused
from course.lab.lab import Lab

#: A reader that only waits is ended by the clock.
WALL_S = 120.0
MAX_NAMED = 4
_NO_LABS = "is not named like a lab's file"
#: The number of files of one submission that are listed by name.
MAX_LISTED = 50
_NAMES_A_LAB = re.compile(r"(?i)(?:lab|phase)[-_ ]?\d.*|\d+[-._]\d+.*")


@dataclass(frozen=True)
class Member:
    """One file of a submission."""

    #: Its path in the submission; an archive counts as a folder.
    name: str
    #: Why it cannot be read, phrased to follow the name: ``is a symbolic link``.
    problem: str = ""
    content: bytes = b""


@dataclass(frozen=True)
class LabFile:
    """A student's submission for one lab: a text to grade, or the reason why there is none."""

    lab: Lab
    content: bytes = b""
    #: Empty if there is a text.
    problem: str = ""
    is_missing: bool = False
    #: It is not clear which of two files counts: there is no score, not even 0.
    is_undecided: bool = False
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
    """A submission that was read: one file per requested lab, notes for the student, and what is not graded."""

    files: dict[str, LabFile]
    notes: tuple[str, ...] = ()
    is_submitted: bool = True
    unclear: tuple[Unclear, ...] = ()


def take_in(submission: Submission, labs: Sequence[Lab], asked: Sequence[Lab], root: Path) -> TakenIn:
    """Read a submission, and find the file of each lab in ``asked``. ``labs`` contains all labs of the course."""
    student = submission.student.id
    if submission.problem:
        return TakenIn({lab.number: LabFile(lab, b"", submission.problem, is_undecided=True) for lab in asked})
    if not submission.parts:
        return TakenIn({lab.number: LabFile(lab, b"", "Nothing was handed in.", is_missing=True) for lab in asked},
                       is_submitted=False)
    path_of = {part.label.file or "": part.path.name for part in submission.parts}
    try:
        members = read(submission)
    except Refused as refused:
        return TakenIn({lab.number: _timed(LabFile(lab, b"", str(refused)), submission) for lab in asked},
                       unclear=(Unclear(submission.parts[0].path.name, str(refused), student),))
    only = asked[0] if len(asked) == 1 else None
    of_lab: dict[str, list[Member]] = {lab.number: [] for lab in labs}
    others: list[Member] = []
    copies: dict[str, set[Path]] = {}
    for member in members:
        lab = lab_of(member.name, labs, only)
        if lab is None:
            others.append(member)
        else:
            of_lab[lab.number].append(member)
            for prefix, folder in _copies(member.name, lab, root):
                copies.setdefault(prefix, set()).add(folder)
    unclear = [Unclear(_path(path_of, one.name), f"{shown(one.name)} {one.problem or _NO_LABS}.", student)
               for one in others if not _is_the_courses(one.name, copies)]
    if len(unclear) > MAX_LISTED:
        more = f"{len(unclear) - MAX_LISTED} more files are not named like a lab's file."
        unclear[MAX_LISTED:] = [Unclear(submission.parts[0].path.name, more, student)]
    files = {}
    for lab in asked:
        files[lab.number] = file = _timed(_choose(lab, of_lab[lab.number], only is not None), submission)
        if file.problem and not file.is_missing:
            unclear += [Unclear(_path(path_of, one.name), file.problem, student, lab.number)
                        for one in of_lab[lab.number][-1:]]
    late = ["Its name says that it is late."] if any(part.label.is_late for part in submission.parts) else []
    notes = [f"{one.why} It is not graded." for one in unclear if not one.lab]
    if len(notes) > MAX_NAMED:
        notes = [*notes[:MAX_NAMED], f"{len(notes) - MAX_NAMED} more files are not graded."]
    return TakenIn(files, (*late, *notes), unclear=tuple(unclear))


def read(submission: Submission, cpu_s: int = reader.CPU_S, num_bytes: int = reader.MEMORY_BYTES) -> list[Member]:
    """Return all files. Raise Refused, with a sentence, if the submission exceeds a limit."""
    parts = [[str(part.path.absolute()), part.label.file] for part in submission.parts]
    try:
        run = subprocess.run([sys.executable, "-I", "-S", reader.__file__, str(cpu_s), str(num_bytes)],
                             capture_output=True, input=json.dumps(parts).encode(), timeout=WALL_S)
    except subprocess.TimeoutExpired:
        raise Refused("It takes too long to read.") from None
    if run.returncode:
        raise Refused("It takes too long to read, or too much memory.")
    found = json.loads(run.stdout)
    if isinstance(found, str):
        raise Refused(found)
    return [Member(name, problem, base64.b64decode(content or "")) for name, problem, content in found]


def lab_of(name: str, labs: Sequence[Lab], only: Lab | None) -> Lab | None:
    """Return the lab whose file this is. ``only`` is the lab of a call with one lab."""
    *folders, last = name.split("/")
    for lab in labs:
        if last == f"{lab.number}{lab.starter.suffix}" or f"/{name}".endswith(f"/{lab.folder.name}/{lab.starter.name}"):
            return lab
    is_bare = only is not None and last == only.starter.name and not any(map(_NAMES_A_LAB.fullmatch, folders))
    return only if is_bare else None


def _timed(file: LabFile, submission: Submission) -> LabFile:
    submitted = submission.parts[0].label.submitted
    return replace(file, submitted=submitted, time_source=METADATA if submitted else "")


def _choose(lab: Lab, members: Sequence[Member], is_only: bool) -> LabFile:
    """Return the lab's one file, or what is wrong. Two files with the same content are not a problem."""
    if len({(one.content, one.problem) for one in members}) > 1:
        names = ", ".join(sorted(shown(one.name) for one in members)[:MAX_NAMED])
        return LabFile(lab, b"", f"{len(members)} files are lab {lab.number}: {names}. Keep one of them.",
                       is_undecided=True)
    if not members:
        name = lab.starter.name if is_only else f"{lab.folder.name}/{lab.starter.name}"
        return LabFile(lab, b"", f"There is no {name} or {lab.number}{lab.starter.suffix} in the submission.",
                       is_missing=True)
    problem = members[0].problem or _problem_of(members[0].content)
    content = b"" if problem else members[0].content.removeprefix(b"\xef\xbb\xbf")
    return LabFile(lab, content, f"{shown(members[0].name)} {problem}." if problem else "")


def _problem_of(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    return "is not a UTF-8 text" if "\0" in text else "" if text.strip() else "is empty"


def _copies(name: str, lab: Lab, root: Path) -> set[tuple[str, Path]]:
    """Return the folders around a starter that are copies of the lab's folder and of the course: each with the
    original."""
    return {(name.removesuffix(inner), folder) for inner, folder in (
        (lab.starter.name, lab.folder), (lab.relative(lab.starter), root)) if name.endswith(inner)}


def _is_the_courses(name: str, copies: dict[str, set[Path]]) -> bool:
    prefixes = [name[:end] for end in (0, *(place.end() for place in re.finditer("/", name)))]
    return any((folder / name[len(prefix):]).is_file() for prefix in prefixes for folder in copies.get(prefix, ()))


def _path(path_of: dict[str, str], name: str) -> str:
    """Return the path of a file in the submissions."""
    first = name.partition("/")[0]
    return path_of[first] + name[len(first):] if first in path_of else f"{path_of['']}/{name}"
