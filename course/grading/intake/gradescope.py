"""``submission_metadata.yml`` of a Gradescope export: which folder belongs to which students, and its time.

Only five kinds of lines in it matter, and they always look the same, so no YAML parser is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from course.grading.intake.read_time import read_time
from course.lab.lab import LabError

_FOLDER = re.compile(r"(\S.*?):\s*")
_CREATED = re.compile(r"  :created_at:\s*(.*?)\s*")
_FIELD = re.compile(r"\s+(- )?:(name|sid|email):\s*(.*?)\s*")


@dataclass
class Submitter:
    """A student to whom a folder belongs; a group has several."""

    fields: dict[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.fields[key] for key in ("sid", "email", "name") if self.fields.get(key))


def submitters_of(text: str) -> dict[str, list[Submitter]]:
    """Return the submitters of each folder."""
    found: dict[str, list[Submitter]] = {}
    folder, is_inside = "", False
    for line in text.splitlines():
        if line[:1].strip() and (match := _FOLDER.fullmatch(line)):
            folder, is_inside = match[1].strip("'\""), False
            found[folder] = []
        elif line.startswith("  :"):  # another field of the submission; the history lists submitters again
            is_inside = line.strip() == ":submitters:"
        elif folder and is_inside and (match := _FIELD.fullmatch(line)):
            if match[1] or not found[folder]:
                found[folder].append(Submitter())
            found[folder][-1].fields[match[2]] = _plain(match[3])
    return found


def times_of(text: str, file: str) -> dict[str, tuple[datetime, str]]:
    """Return the time of each folder, and the file and line that contain it. Raise LabError for an invalid one."""
    found = {}
    folder = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line[:1].strip() and (match := _FOLDER.fullmatch(line)):
            folder = match[1].strip("'\"")
        elif folder and (match := _CREATED.fullmatch(line)) and (value := _plain(match[1])):
            try:
                found[folder] = (read_time(value), f"{file}, line {number}")
            except ValueError as error:
                raise LabError(f"{file}, line {number}: {error}") from None
    return found


def _plain(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1].replace("''", "'")
    return "" if value in ("null", "~") else value
