"""The students of the class: ``roster.csv``, and the ids that may become folder names."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course.core.terminal_text import shortened
from course.lab.lab import LabError

MAX_ID_CHARACTERS, MAX_SHOWN = 80, 100
AN_ID = ("An id begins with a letter or a digit. It contains only letters, digits, spaces and .@+',()&-, and has at "
         f"most {MAX_ID_CHARACTERS} characters.")
_ID = re.compile(rf"(?=.{{1,{MAX_ID_CHARACTERS}}}$)\w(?:[\w .@+',()&-]*[\w@+'()&-])?")
#: The headings that count, the first one first. ``identifier`` is that of Moodle's grading worksheet, and ``student``
#: that of Canvas's gradebook.
_COLUMNS = {"id": ("id", "student id", "sid", "username", "identifier"), "name": ("name", "full name", "student"),
            "first": ("first name",), "last": ("last name",), "email": ("email", "email address"),
            "moodle": ("moodle",), "canvas": ("canvas",)}


@dataclass(frozen=True)
class Student:
    id: str
    name: str = ""


class Roster:
    """The class, in the order of the file, and the keys by which a platform may name a student."""

    def __init__(self, students: Sequence[Student]) -> None:
        self.students = {student.id: student for student in students}
        self._ids = {folded(student.id): student.id for student in students}

    def add_key(self, key: str, student: str) -> bool:
        """Let ``key`` identify the student. Return whether it did not identify another one before."""
        return not key or self._ids.setdefault(folded(key), student) == student

    def find(self, key: str) -> str | None:
        return self._ids.get(folded(key))


def folded(text: str) -> str:
    """Return the same text for two ids that are one folder on some disks."""
    return unicodedata.normalize("NFC", text.strip()).casefold()


def participant(text: str) -> str:
    """Return the number in Moodle's ``Participant 123456``, which Moodle translates. Other texts stay as they are."""
    match = re.fullmatch(r"\D+ ([0-9]+)", text)
    return match[1] if match else text


def is_id(text: str) -> bool:
    """Return whether the text can name a folder: no slash, no leading dot, …"""
    return _ID.fullmatch(text) is not None and len(text.encode("utf-8", "surrogatepass")) <= 240 \
        and unicodedata.is_normalized("NFC", text)


def read_roster(path: Path) -> Roster:
    """Read the roster. Raise LabError for an invalid file: no column of ids, an invalid id, an id twice."""
    rows = read_table(path, "a roster")
    headings = rows[0][1]
    columns = {what: next((name for name in names if name in headings), "") for what, names in _COLUMNS.items()}
    if not columns["id"]:
        raise LabError(f"{path}: no column contains the student's id; the columns are "
                       f"{', '.join(map(repr, headings))}. Name one of them id.")
    roster = Roster([])
    for line, row in rows:
        fields = {what: row.get(column, "") for what, column in columns.items()}
        if any("points possible" in value.casefold() for value in row.values()):  # the second row of Canvas's gradebook
            continue
        student = unicodedata.normalize("NFC", participant(fields["id"]))
        if not is_id(student):
            raise LabError(f"{path}, line {line}: {student[:100]!r} cannot be a student's id. {AN_ID}")
        for key in (student, fields["email"], fields["moodle"], fields["canvas"]):
            if not roster.add_key(key, student) or (key == student and student in roster.students):
                raise LabError(f"{path}, line {line}: {key!r} appears twice, also for {roster.find(key)}")
        name = fields["name"] or f"{fields['first']} {fields['last']}".strip()
        roster.students[student] = Student(student, name)
    return roster


def read_table(path: Path, what: str, columns: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    """Return for each row of a CSV file its line number, and a dict that maps each heading to the row's cell.

    The headings are in lower case. Empty rows are left out. In some countries spreadsheets write semicolons or tabs,
    and a byte-order mark. Raise LabError if there are no rows, or if one of ``columns`` is missing.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LabError(f"{path} is not UTF-8; save {what} as CSV UTF-8.") from None
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        headings = [heading.strip().casefold() for heading in next(reader, [])]
        rows = [(reader.line_num, dict(zip(headings, [cell.strip() for cell in [*cells, *[""] * len(headings)]])))
                for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise LabError(f"{path}, line {reader.line_num}: {error}") from None
    if not set(columns) <= set(headings):
        first = shortened(text.partition("\n")[0].strip(), MAX_SHOWN)
        raise LabError(f"{path}: line 1 must be `{','.join(columns)}`, but is `{first}`.")
    if not rows:
        raise LabError(f"{path} has no rows; {what} needs a line of headings and one line per student.")
    return rows
