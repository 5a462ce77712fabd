"""Comments for students: ``comments.csv``, with the columns student, lab, comment. Without a lab, a comment is on the
whole submission."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from course.grading.intake.roster import read_table
from course.lab.lab import LabError
from mini_vllm.checks import nearest

COLUMNS = ("student", "lab", "comment")
#: The feedback pages show at most this.
MAX_CHARACTERS = 2_000

#: Student → lab, or "" → text.
Comments = Mapping[str, Mapping[str, str]]


def read_comments(path: Path, students: Collection[str], labs: Collection[str]) -> Comments:
    """Return the comments by student and lab. Raise LabError with every invalid line."""
    rows = read_table(path, "comments", COLUMNS)
    found: dict[str, dict[str, str]] = {}
    problems = []
    for line, row in rows:
        problem = _problem(row, students, labs) or (
            "an earlier line is for the same student and lab" if row["lab"] in found.get(row["student"], {}) else "")
        if problem:
            problems.append(f"{path}, line {line}: {problem}")
        else:
            found.setdefault(row["student"], {})[row["lab"]] = row["comment"]
    if problems:
        raise LabError("\n".join(problems))
    return found


def _problem(row: Mapping[str, str], students: Collection[str], labs: Collection[str]) -> str:
    if row["student"] not in students:
        near = nearest(row["student"], students)
        return f"no student {row['student']!r} is graded here" + (f". Did you mean {near}?" if near else "")
    if row["lab"] and row["lab"] not in labs:
        return f"no lab {row['lab']!r} is graded here; there are {', '.join(labs)}"
    if not row["comment"]:
        return "the comment is empty"
    if len(row["comment"]) > MAX_CHARACTERS:
        return f"the comment has {len(row['comment']):,} characters; at most {MAX_CHARACTERS:,} are shown"
    return ""
