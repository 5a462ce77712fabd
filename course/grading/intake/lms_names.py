"""Finds the student in a name: learning platforms label their downloads, or a pattern says which part is the student.

| platform   | a name in the download                                                                  |
|------------|-----------------------------------------------------------------------------------------|
| Moodle     | ``Jane Smith_123456_assignsubmission_file_/``, or a file's name after it                |
| Canvas     | ``smithjane_12345_67890_starter.py``, ``smithjane_LATE_12345_67890_starter-1.py``       |
| Blackboard | ``Lab 2_jsmith_attempt_2026-03-01-10-00-00_starter.py``                                 |
| none       | a folder or an archive per student, ``jsmith.py``, ``jsmith_2.1.py``                    |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from course.grading.intake.archives import stem_of
from course.lab.lab import LabError

_MOODLE = re.compile(r"(?P<name>[^_]+)_(?P<student>\d+)_assignsubmission_(?P<kind>file|onlinetext)_?(?P<file>.*)")
_CANVAS = re.compile(r"(?P<slug>[^\W_]+)_(?P<late>LATE_)?(?P<student>\d+)_(?P<upload>\d+)_(?P<file>.+)")
_BLACKBOARD = re.compile(r".+?_(?P<student>[^_]+)_attempt_(?P<attempt>\d+(?:-\d+){5})(?:_(?P<file>.+)|\.\w+)?")
_WITH_LAB = re.compile(r"(?P<student>.+?)[_-](?P<file>(?:lab-?)?\d+\.\d+\.\w+)")
#: What Canvas adds to the name of a file that was handed in again.
_AGAIN = re.compile(r"(?P<stem>.+?)-(?P<attempt>\d{1,2})(?P<end>\.\w+)")


@dataclass(frozen=True)
class Label:
    """The information in a name."""

    #: Keys that may identify the student on the roster, the most reliable first; without a roster, the first is the id.
    keys: tuple[str, ...]
    #: The name of the file without the label; empty for a folder or an archive that is the submission.
    file: str = ""
    #: The number of the attempt, if the name contains it. Two attempts can be compared.
    attempt: tuple[int, ...] = ()
    #: Whether there may be more files of the same student.
    is_part: bool = False
    is_late: bool = False
    #: When it was handed in, if the platform says so, and what says so. The time may have no zone.
    submitted: datetime | None = None
    time_source: str = ""


def read_pattern(text: str) -> re.Pattern[str]:
    """Compile the regular expression of ``--pattern``. Raise LabError if it is invalid or has no group ``student``."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise LabError(f"--pattern {text!r} is not a regular expression: {error}") from None
    if "student" not in pattern.groupindex:
        raise LabError(f"--pattern {text!r} has no group named student: write (?P<student>…) around the part of a "
                       "name that says whose it is")
    return pattern


def label_of(name: str, is_folder: bool, pattern: re.Pattern[str] | None = None) -> Label | None:
    """Return the label in the name of a folder or file; None if it does not fit ``pattern`` or is no submission."""
    if pattern is not None:
        match = pattern.fullmatch(name)
        return _from_pattern(match, name, is_folder) if match else None
    return _moodle(name) if _MOODLE.fullmatch(name) else (
        _canvas(name) or _blackboard(name, is_folder) or _plain(name, is_folder))


def _from_pattern(match: re.Match[str], name: str, is_folder: bool) -> Label:
    groups = match.groupdict()
    file = groups.get("file") or ("" if is_folder or stem_of(name) != name else _starter(name))
    attempt = tuple(map(int, re.findall(r"\d+", groups.get("attempt") or "")))
    return Label((groups["student"] or "",), file, attempt, is_part=bool(groups.get("file")))


def _moodle(name: str) -> Label | None:
    match = _MOODLE.fullmatch(name)
    if match is None or match["kind"] == "onlinetext":  # text typed into Moodle's box is not a file
        return None
    return Label((match["student"], match["name"]), match["file"], is_part=bool(match["file"]))


def _canvas(name: str) -> Label | None:
    match = _CANVAS.fullmatch(name)
    if match is None:
        return None
    file, attempt = match["file"], (0,)
    if again := _AGAIN.fullmatch(file):
        file, attempt = again["stem"] + again["end"], (int(again["attempt"]),)
    return Label((match["student"], match["slug"]), file, attempt, is_part=True, is_late=bool(match["late"]))


def _blackboard(name: str, is_folder: bool) -> Label | None:
    match = _BLACKBOARD.fullmatch(name)
    if match is None:
        return None
    attempt = tuple(map(int, match["attempt"].split("-")))
    try:
        submitted = datetime(*attempt)  # type: ignore[arg-type]  # six numbers, as the pattern says
    except ValueError:
        submitted = None
    return Label((match["student"],), match["file"] or ("" if is_folder else "notes.txt"), attempt, is_part=True,
                 submitted=submitted, time_source="the name of the download" if submitted else "")


def _plain(name: str, is_folder: bool) -> Label | None:
    if is_folder:
        return Label((name,))
    if stem_of(name) != name:
        return Label((stem_of(name),))
    if match := _WITH_LAB.fullmatch(name):
        return Label((match["student"],), match["file"], is_part=True)
    stem, dot, _ = name.rpartition(".")
    return Label((stem,), _starter(name)) if dot else None


def _starter(name: str) -> str:
    """Return ``starter`` with the file's suffix: a single file counts as the lab's file, whatever its name is."""
    return "starter." + name.rpartition(".")[2]
