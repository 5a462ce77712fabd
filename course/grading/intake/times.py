"""When each submission was handed in, from your own table or from Moodle's grading worksheet.

| table                    | student                              | time                                              |
|--------------------------|--------------------------------------|---------------------------------------------------|
| your own                 | ``student``, and perhaps ``lab``     | ``submitted``: ``2026-03-01 10:00``               |
| Moodle's worksheet       | ``Identifier``: ``Participant 1234`` | ``Last modified (submission)``, in English:       |
|                          |                                      | ``Sunday, 1 March 2026, 10:00 AM``                |

The time at which a file was modified is never used: a student chooses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from course.grading.intake.roster import Roster, participant, read_table
from course.lab.lab import Lab, LabError
from mini_vllm.checks import nearest

_MOODLE = ("%A, %d %B %Y, %I:%M %p", "%A, %B %d, %Y, %I:%M %p", "%A, %d %B %Y, %H:%M")
_NONE = ("", "-")


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


def read_time(text: str) -> datetime:
    """Return a time as ISO 8601, Gradescope or Moodle write it; without a zone if the text names none.

    Raise ValueError, with the text and what is expected. ``3/1/2026`` is refused: some countries write the month first.
    """
    plain = " ".join(text.replace("UTC", "Z").split())
    iso = re.fullmatch(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:\.\d{1,9})? ?(Z|[+-]\d\d:?\d\d)?", plain)
    found = None
    try:
        if iso:
            zone = (iso[4] or "").replace("Z", "+0000").replace(":", "")
            found = datetime.strptime(f"{iso[1]} {iso[2]}{iso[3] or ':00'}{zone}",
                                      "%Y-%m-%d %H:%M:%S%z" if zone else "%Y-%m-%d %H:%M:%S")
        for form in _MOODLE if not iso else ():
            found = found or _in_form(plain, form)
    except ValueError:
        found = None
    if found is None or not 2000 <= found.year <= 2100:
        raise ValueError(f"{text[:100]!r} is not a time from 2000 to 2100; write it like 2026-03-01 10:00, or with a "
                         "zone, 2026-03-01T10:00:00+01:00")
    return found


def _in_form(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def read_times(paths: Sequence[Path], roster: Roster, labs: Sequence[Lab], is_whole_class: bool = False) -> Times:
    """Return the times in the tables; of two tables the later one counts. Raise LabError with every invalid line.

    If ``roster`` is the whole class, a student in an instructor's own table who is not on it makes the line invalid.
    """
    times, problems = Times(), []
    for path in paths:
        rows = read_table(path, "a table of times")
        is_own = {"student", "submitted"} <= rows[0][1].keys()
        names = ("student", "submitted") if is_own else ("identifier", "last modified (submission)")
        if not {*names} <= rows[0][1].keys():
            raise LabError(f"{path}: the columns are {', '.join(map(repr, rows[0][1]))}; they must include student and "
                           "submitted, or be those of Moodle's grading worksheet in English.")
        seen: set[tuple[str, str]] = set()
        for line, row in rows:
            key, lab, where = participant(row[names[0]]), row.get("lab", ""), f"{path.name}, line {line}"
            if row[names[1]] in _NONE:
                continue
            try:
                submitted = read_time(row[names[1]])
            except ValueError as error:
                problems.append(f"{path}, line {line}: {error}")
                continue
            student = roster.find(key)
            if student is None:
                near = nearest(key, roster.students)
                unknown = f"no student {key!r} is graded here." + (f" Did you mean {near}?" if near else "")
                if is_own and is_whole_class:
                    problems.append(f"{path}, line {line}: {unknown}")
                else:
                    times.unused.append(f"{where}: {unknown}")
            elif lab and lab not in (one.number for one in labs):
                times.unused.append(f"{where}: no lab is called {lab!r}.")
            elif (student, lab) in seen:
                problems.append(f"{path}, line {line}: an earlier line is for {student} {lab}, too")
            else:
                seen.add((student, lab))
                times.given[student, lab] = GivenTime(submitted, where, is_own)
    if problems:
        raise LabError("\n".join(problems))
    return times
