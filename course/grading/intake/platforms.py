"""Whose the items of a download are, by the names that its platform gives them. Only names are examined.

| platform     | a name in the download                                                            | the student    |
|--------------|-----------------------------------------------------------------------------------|----------------|
| `folder`     | ``ann/``, ``ann.zip``                                                             | ``ann``        |
| `moodle`     | ``Jane Smith_123456_assignsubmission_file_/``, also with a file's name at the end | ``123456``     |
| `canvas`     | ``smithjane_12345_67890_starter.py``, ``smithjane_LATE_12345_67890_starter-1.py`` | ``12345``      |
| `gradescope` | ``submission_1234/``, and ``submission_metadata.yml`` next to it                  | its ``:sid:``  |

Parts of these names are chosen by students: the display name, and the name of a file. So a name counts only if it can
be read in one way.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from course.grading.intake.reader import IGNORED
from course.grading.intake.roster import AN_ID, Roster, Student, folded, is_id
from course.grading.intake.times import read_time
from course.lab.lab import LabError

METADATA = "submission_metadata.yml"
_MOODLE = re.compile(r".*_(?P<student>[0-9]+)_assignsubmission_(?P<kind>[a-z]+)_?(?P<file>.*)", re.DOTALL)
#: Overlapping matches, so that ``a_1_2_3_starter.py`` has two: the name may be ``a`` or ``a_1``.
_CANVAS = re.compile(r"(?=_(?P<student>[0-9]+)_[0-9]+_(?P<file>.*))", re.DOTALL)
#: What Canvas adds to the name of a file that was handed in again.
_AGAIN = re.compile(r"-[0-9]{1,2}(?=\.\w+$)")


@dataclass(frozen=True)
class Unclear:
    """Something that was handed in and is not graded."""

    #: Its path in the submissions.
    path: str
    #: The reason, as a sentence.
    why: str
    #: The student and the lab, if they are known.
    student: str = ""
    lab: str = ""
    #: Whether the exit status is 1 because of it: until an instructor sets the points.
    is_open: bool = True


@dataclass(frozen=True)
class Label:
    """The information in a name."""

    #: What may identify the student; without a roster, the first is the id.
    keys: tuple[str, ...]
    #: The name that the student gave the file; empty for a folder or an archive that is the whole submission.
    file: str = ""
    is_late: bool = False
    submitted: datetime | None = None


@dataclass(frozen=True)
class Part:
    path: Path
    label: Label


@dataclass(frozen=True)
class Submission:
    """A student, and what the download has of the student: nothing, one folder or archive, or several files."""

    student: Student
    parts: tuple[Part, ...] = ()
    #: Why nothing counts: there are two submissions. Empty otherwise.
    problem: str = ""


@dataclass
class Found:
    #: In the order of the roster; without a roster, in the order of ids.
    submissions: list[Submission] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)


def _of_folder(name: str, is_folder: bool) -> list[Label] | str:
    stem = name if is_folder else re.sub(r"(?i)(\.tar\.gz|\.tgz|\.tar|\.zip)$", "", name)
    return [Label((stem,))] if is_folder or stem != name else "is neither a folder nor an archive"


def _of_moodle(name: str, is_folder: bool) -> list[Label] | str:
    match = _MOODLE.fullmatch(name)
    if match is None or name.count("_assignsubmission_") > 1:
        return "does not have one of Moodle's names"
    if match["kind"] != "file" or bool(match["file"]) == is_folder:
        return "is not a file that was handed in"
    return [Label((match["student"],), match["file"])]


def _of_canvas(name: str, is_folder: bool) -> list[Label] | str:
    matches = list(_CANVAS.finditer(name))
    if is_folder or len(matches) != 1 or not matches[0]["file"]:
        return "is a folder" if is_folder else "has a name that can be read in two ways" if matches else \
            "does not have one of Canvas's names"
    before, match = name[:matches[0].start()], matches[0]
    return [Label((match["student"],), _AGAIN.sub("", match["file"]), is_late=before.endswith("_LATE"))]


def _of_gradescope(folder: Path) -> Callable[[str, bool], list[Label] | str]:
    """Return the rule for a download with Gradescope's table, which lists the submitters of each folder."""
    try:
        import yaml
    except ImportError:
        raise LabError("Gradescope's table needs a library: pip install pyyaml") from None
    path = folder / METADATA
    try:
        table = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # texts, lists and dicts only
    except FileNotFoundError:
        raise LabError(f"{folder} does not contain {METADATA}; give the folder that does.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LabError(f"{path} cannot be read: {error}") from None

    def labels(name: str, is_folder: bool) -> list[Label] | str:
        entry = table.get(name) if isinstance(table, Mapping) else None
        if not isinstance(entry, Mapping) or not is_folder:
            return f"is not in {METADATA}"
        return [Label(keys, submitted=_created(entry, f"{path}, {name}")) for keys in _submitters(entry)] \
            or f"has no :sid: and no :email: in {METADATA}"

    return labels


def _submitters(entry: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found = [one for one in entry.get(":submitters") or () if isinstance(one, Mapping)]
    return [keys for one in found if (keys := tuple(
        str(one[what]) for what in (":sid", ":email") if one.get(what) not in (None, "", "null", "~")))]


def _created(entry: Mapping[str, Any], where: str) -> datetime | None:
    text = entry.get(":created_at") or ""
    text = text.get("utc", "") if isinstance(text, Mapping) else text
    try:
        return read_time(str(text)) if text else None
    except ValueError as error:
        raise LabError(f"{where}: {error}") from None


def find(folder: Path, platform: str, roster: Roster | None) -> Found:
    """Assign each item of a download to its student.

    Raise LabError if the folder is none of this platform, or if nothing is left to grade.
    """
    if not folder.is_dir():
        raise LabError(f"{folder} is not a folder; unpack the download, and give the folder.")
    with os.scandir(folder) as entries:
        items = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries
                       if entry.name not in IGNORED and not entry.name.startswith("._"))
    if platform == "folder":
        _check_is_plain(folder, [name for name, _ in items])
    rule = _of_gradescope(folder) if platform == "gradescope" else {
        "folder": _of_folder, "moodle": _of_moodle, "canvas": _of_canvas}[platform]
    found, parts = Found(), dict[str, list[Part]]()
    for name, is_folder in items:
        labels = rule(name, is_folder) if (platform, name) != ("gradescope", METADATA) else []
        if isinstance(labels, str):
            found.unclear.append(Unclear(name, f"{shown(name)} {labels}."))
            continue
        for label in labels:
            student = next(filter(None, map(roster.find if roster else _as_id, label.keys)), None)
            if student is None:
                why = "is not on the roster." if roster else f"cannot be a student's id. {AN_ID}"
                found.unclear.append(Unclear(name, f"{shown(name)}: {shown(label.keys[0])!r} {why}"))
            else:
                parts.setdefault(student, []).append(Part(folder / name, label))
    _settle(found, parts, roster)
    if not parts:
        raise LabError("\n".join([f"{folder} contains nothing that can be graded.",
                                  *(f"  {one.why}" for one in found.unclear)]))
    return found


def _as_id(text: str) -> str | None:
    """Return the id, in one of the ways to write its letters; None if it cannot be one."""
    student = unicodedata.normalize("NFC", text)
    return student if is_id(student) else None


def _settle(found: Found, parts: Mapping[str, Sequence[Part]], roster: Roster | None) -> None:
    """Make a submission for each student. Nobody has two, and no two students share a folder on any disk."""
    twins = {student for student in parts for other in parts if student != other and folded(student) == folded(other)}
    for student in list(roster.students) if roster else sorted(parts):
        items = tuple(parts.get(student, ()))
        is_twice = len(items) > 1 and not all(part.label.file for part in items)
        names = " and ".join(ascii(part.path.name) for part in items)
        if student in twins:
            found.unclear += [Unclear(part.path.name, f"{names} differs from another id only in capital letters.")
                              for part in items]
        else:
            problem = f"There are two submissions: {names}. Keep one of them." if is_twice else ""
            known = roster.students[student] if roster else Student(student)
            found.submissions.append(Submission(known, () if is_twice else items, problem))
            found.unclear += [Unclear(items[-1].path.name, problem, student)] if is_twice else []


def _check_is_plain(folder: Path, names: Sequence[str]) -> None:
    """Raise LabError for a download of a platform, and for a course: neither is a folder per student."""
    for platform, is_one in (("gradescope", lambda name: name == METADATA), ("moodle", _MOODLE.fullmatch),
                             ("canvas", lambda name: re.search(r"_[0-9]+_[0-9]+_.+\.\w+$", name))):
        name = next(filter(is_one, names), None)
        if name is not None:
            raise LabError(f"{folder} contains {shown(name)}, like a download from {platform.title()}: add --platform "
                           f"{platform}.")
    if any(re.match(r"phase-\d+-", name) for name in names):
        raise LabError(f"{folder} looks like one student's course. Give the folder that contains a folder or an "
                       "archive per student.")


def shown(name: str) -> str:
    """Return a name that someone else chose, safe for a sentence: no control characters, at most a line long."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) <= 100 else f"…{plain[-100:]}"
