"""When each submission was handed in: tables from learning platforms, or an instructor's own.

A table is recognised by its headings. These columns are read; the others are not:

| source                              | the time                             | the lab                               |
|-------------------------------------|--------------------------------------|---------------------------------------|
| your own                            | ``submitted``                        | ``lab``                               |
| Moodle, the grading worksheet       | ``Last modified (submission)``       | all labs of the call                  |
| Gradescope, an assignment's grades  | ``Submission Time``                  | all labs of the call                  |
| Gradescope, the grades of a course  | ``NAME - Submission Time``           | the one that NAME resembles           |
| Canvas, from its API or a report    | ``submitted_at``, ``submission date``| ``assignment name``, if it exists     |

Canvas's gradebook and its downloads contain no times. The time at which a file was modified is never used: a student
chooses it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from course.grading.intake.lab_names import is_called, reminds_of
from course.grading.intake.read_time import read_time
from course.grading.intake.roster import Roster, read_table
from course.lab.lab import Lab, LabError
from mini_vllm.checks import nearest

#: The headings of columns with times, in lower case; the first that exists counts. Moodle translates its own.
TIME_COLUMNS = ("submitted", "last modified (submission)", "zuletzt geändert (abgabe)",
                "dernière modification (travail remis)", "dernière modification (remise)",
                "última modificación (entrega)", "ultima modifica (consegna)", "última modificação (envio)",
                "última modificação (submissão)", "laatst gewijzigd (inzending)", "submission time", "submitted_at",
                "submitted at", "submission date")
LAB_COLUMNS = ("lab", "assignment", "assignment name", "assignment_name", "assignment title")
#: The columns that may identify a student, the most reliable first.
STUDENT_COLUMNS = (
    "student", "id", "student id", "student_id", "sid", "sis user id", "sis id", "sis_id", "student sis id",
    "sis_user_id", "user sis id", "id number", "id-nummer", "numéro d'identification", "número de id", "student number",
    "username", "user name", "anmeldename", "nom d'utilisateur", "login", "sis login id", "login_id", "identifier",
    "identifiant", "identificador", "identificativo", "user_id", "user id", "email", "e-mail", "email address",
    "e-mail-adresse", "adresse de courriel", "dirección de correo", "indirizzo email", "name", "full name",
    "student name", "vollständiger name", "nom complet", "nombre completo", "nome completo", "cognome nome")
_OF_LAB = re.compile(r"(?P<lab>.+\S) *- *submission time")
#: The number of unknown students who are compared with the known ones; any further ones are listed without a guess.
MAX_GUESSED = 100
#: What stands in a cell without a time.
_NONE = ("", "-", "–", "never", "none", "null", "n/a")


@dataclass(frozen=True)
class GivenTime:
    submitted: datetime
    #: The file and the line.
    source: str
    #: Whether an instructor's own table has it.
    is_set: bool


@dataclass(frozen=True)
class Times:
    #: By student and lab. An empty lab stands for all labs of this call.
    given: dict[tuple[str, str], GivenTime] = field(default_factory=dict)
    #: A sentence for each row that fits no student or no lab: the class may be larger than what is graded.
    unused: list[str] = field(default_factory=list)

    def of(self, student: str, lab: str) -> GivenTime | None:
        """Return the time of a file that this call has read."""
        return self.given.get((student, lab)) or self.given.get((student, ""))


def read_times(paths: Sequence[Path], roster: Roster, labs: Sequence[Lab], is_whole_class: bool = False) -> Times:
    """Return the times in the tables; of two tables the later one counts. Raise LabError with every invalid line.

    If ``roster`` is the whole class, a student in an instructor's own table who is not on it makes the line invalid.
    """
    times, problems = Times(), []
    for path in paths:
        found: dict[tuple[str, str], GivenTime] = {}
        for line, keys, lab_name, text, is_set in _cells(path):
            where = f"{path.name}, line {line}"
            try:
                submitted = read_time(text)
            except ValueError as error:
                problems.append(f"{path}, line {line}: {error}")
                continue
            student, lab = roster.find(keys), _lab(lab_name, labs) if lab_name else ""
            if student is None:
                has_guess = len(problems) + len(times.unused) < MAX_GUESSED
                unknown = _unknown(keys[0] if keys else "", roster.students if has_guess else ())
                if is_set and is_whole_class:
                    problems.append(f"{path}, line {line}: {unknown}")
                else:
                    times.unused.append(f"{where}: {unknown}")
                continue
            if lab is None:
                times.unused.append(f"{where}: no lab is called {lab_name!r}.")
                continue
            earlier = found.get((student, lab))
            if earlier is not None and is_set:
                problems.append(f"{path}, line {line}: an earlier line is for {student} {lab}, too")
            elif earlier is None or _instant(earlier.submitted) < _instant(submitted):
                found[student, lab] = GivenTime(submitted, where, is_set)
        times.given.update(found)
    if problems:
        raise LabError("\n".join(problems))
    return times


def _unknown(key: str, students: Collection[str]) -> str:
    near = nearest(key, students)
    return f"no student {key!r} is graded here." + (f" Did you mean {near}?" if near else "")


def _cells(path: Path) -> Iterator[tuple[int, list[str], str, str, bool]]:
    """Yield the times in a table: line, what identifies the student, the name of the lab or "", the text of the time,
    and whether the table is an instructor's own."""
    rows = read_table(path, "a table of times")
    headings = rows[0][1]
    column = next((name for name in TIME_COLUMNS if name in headings), None)
    lab_column = next((name for name in LAB_COLUMNS if name in headings), "")
    of_labs = {name: match["lab"] for name in headings if (match := _OF_LAB.fullmatch(name))}
    if column is None and not of_labs:
        raise LabError(f"{path}: no column contains the time of submission; the columns are "
                       f"{', '.join(map(repr, headings))}. Name one of them submitted.")
    if not any(name in headings for name in (*STUDENT_COLUMNS, "first name", "last name")):
        raise LabError(f"{path}: no column contains the student; the columns are {', '.join(map(repr, headings))}. "
                       "Name one of them student.")
    for line, row in rows:
        keys = _keys(row)
        if column is not None and row[column].casefold() not in _NONE:
            yield line, keys, row.get(lab_column, ""), row[column], lab_column == "lab"
        for name, lab in of_labs.items():
            if row[name].casefold() not in _NONE:
                yield line, keys, lab, row[name], False


def _keys(row: Mapping[str, str]) -> list[str]:
    """Return what may identify the student of a row. Moodle writes ``Participant 123456``, in any language; the number
    is the one in the names of its download."""
    has_user = "user_id" in row or "user id" in row  # then ``id`` is the number of the submission
    keys = [row[name] for name in STUDENT_COLUMNS if row.get(name) and not (has_user and name == "id")]
    keys += filter(None, [f"{row.get('first name', '')} {row.get('last name', '')}".strip()])
    numbers = [match[1] for name in ("identifier", "identifiant", "identificador", "identificativo", "id")
               if (match := re.fullmatch(r"\D+(\d+)", row.get(name, "")))]
    return keys + numbers


def _lab(name: str, labs: Sequence[Lab]) -> str | None:
    """Return the number of the only lab that has or resembles this name."""
    lab = next((lab for lab in labs if is_called(name, lab)), None) or reminds_of(f"{name}.py", labs)
    return lab.number if lab else None


def _instant(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
