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
from course.grading.intake.read_files import MAX_SHOWN
from course.lab.lab import LabError

MAX_ID_CHARACTERS = 80
#: File systems count bytes: a name has at most 255.
MAX_ID_BYTES = 240
AN_ID = ("An id begins with a letter or a digit. It contains only letters, digits, spaces and .@+',()&-, and has at "
         f"most {MAX_ID_CHARACTERS} characters.")
_ID = re.compile(r"\w(?:[\w .@+',()&-]*[\w@+'()&-])?")
#: The names that platforms give their columns; the first that exists counts.
_COLUMNS = {
    "id": ("id", "student id", "student_id", "sid", "sis user id", "id number", "student number", "username",
           "user name", "login", "sis login id", "student"),
    "name": ("name", "full name", "student name", "display name", "student"),
    "first": ("first name", "first", "given name"),
    "last": ("last name", "last", "surname", "family name"),
    "email": ("email", "e-mail", "email address", "mail"),
    "section": ("section", "sections", "group", "class"),
}


@dataclass(frozen=True)
class Student:
    id: str
    name: str = ""
    email: str = ""
    section: str = ""


def wrong_with(text: str) -> str:
    """Return why a name cannot be an id, phrased to follow the name; "" if it can."""
    student = unicodedata.normalize("NFC", text.strip())
    if any("\ud800" <= letter <= "\udfff" for letter in student):
        return "is not UTF-8"
    if len(student) > MAX_ID_CHARACTERS or len(student.encode()) > MAX_ID_BYTES:
        return (f"has {len(student)} characters; an id has at most {MAX_ID_CHARACTERS} characters and {MAX_ID_BYTES} "
                "bytes")
    if odd := sorted(set(re.findall(r"[^\w .@+',()&-]", student))):
        return f"contains {', '.join(map(ascii, odd[:5]))}; an id may contain letters, digits, spaces and .@+',()&-"
    if not student or not re.match(r"\w", student):
        return "does not begin with a letter or a digit"
    return "" if _ID.fullmatch(student) else f"ends with {student[-1]!r}"


def check_id(text: str, where: str) -> str:
    """Return the id in a form that can name a folder. Raise LabError if it cannot: a slash, a leading dot, …"""
    student = unicodedata.normalize("NFC", text.strip())
    if wrong_with(student):
        raise LabError(f"{where}: {student[:100]!r} cannot be a student's id. {AN_ID}")
    return student


class Roster:
    """The class, in the order of the file."""

    def __init__(self, students: Sequence[Student]) -> None:
        self.students = {student.id: student for student in students}

    def find(self, keys: Sequence[str]) -> str | None:
        """Return the id of the student whom one of ``keys`` identifies: by id, email address or name.

        Return None if no key identifies exactly one student.
        """
        for key in keys:
            for same in (_same_id, _same_email, _same_name):
                found = [student.id for student in self.students.values() if same(student, key.strip())]
                if len(found) == 1:
                    return found[0]
        return None


def _same_id(student: Student, key: str) -> bool:
    return student.id.casefold() == unicodedata.normalize("NFC", key).casefold()


def _same_email(student: Student, key: str) -> bool:
    email = student.email.casefold()
    return bool(email) and key.casefold() in (email, email.partition("@")[0])


def _same_name(student: Student, key: str) -> bool:
    """Return whether the key is the student's name: ``Smith, Jane`` or Canvas's ``smithjane`` for Jane Smith."""
    words, wanted = _words(student.name), _words(key)
    if not words or not wanted:
        return False
    turned = ["".join(words[turn:] + words[:turn]) for turn in range(len(words))]
    return sorted(words) == sorted(wanted) or (len(wanted) == 1 and wanted[0] in turned)


def _words(name: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFC", name).casefold())


def read_roster(path: Path) -> Roster:
    """Read the roster. Raise LabError for an invalid file: no column of ids, a row without an id, an id twice."""
    rows = read_table(path, "a roster")
    headings = rows[0][1]
    columns = {what: next((name for name in names if name in headings), None) for what, names in _COLUMNS.items()}
    if columns["id"] is None:
        raise LabError(f"{path}: no column contains the student's id; the columns are "
                       f"{', '.join(map(repr, headings))}. Name one of them id.")
    if columns["name"] == columns["id"]:
        columns["name"] = None
    students: dict[str, Student] = {}
    for line, row in rows:
        fields = {what: row.get(column or "", "") for what, column in columns.items()}
        if any("points possible" in value.casefold() for value in row.values()):  # the second row of a Canvas export
            continue
        name = fields["name"] or f"{fields['first']} {fields['last']}".strip()
        student = Student(check_id(fields["id"], f"{path}, line {line}"), name, fields["email"], fields["section"])
        if twin := next((other for other in students if other.casefold() == student.id.casefold()), None):
            raise LabError(f"{path}, line {line}: {student.id!r} appears twice"
                           + ("" if twin == student.id else f", also as {twin!r}: both would have the same folder"))
        students[student.id] = student
    return Roster(list(students.values()))


def read_table(path: Path, what: str, columns: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    """Return for each row of a CSV file its line number, and a dict that maps each heading to the row's cell.

    The headings are in lower case. Empty rows are left out.

    In some countries spreadsheets write semicolons or tabs, and a byte-order mark. Raise LabError if there are no rows,
    or if one of ``columns`` is missing.
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
