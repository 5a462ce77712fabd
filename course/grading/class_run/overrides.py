"""Points that an instructor sets: ``overrides.csv``, with the columns student, lab, points, reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path

from course.core.result import Exact, Override
from course.grading.intake.roster import read_table
from course.lab.lab import LabError
from mini_vllm.checks import nearest

COLUMNS = ("student", "lab", "points", "reason")


def read_overrides(path: Path, students: Collection[str], max_points: Mapping[str, Exact]) -> dict[
        str, dict[str, Override]]:
    """Return the points that count, by student and lab. ``max_points`` has the points of the labs that are graded.

    Raise LabError with every invalid line: an unknown student, no reason, too many points.
    """
    rows = read_table(path, "overrides", COLUMNS)
    found: dict[str, dict[str, Override]] = {}
    problems = []
    for line, row in rows:
        problem = _problem(row, students, max_points) or (
            "an earlier line is for the same student and lab" if row["lab"] in found.get(row["student"], {}) else "")
        if problem:
            problems.append(f"{path}, line {line}: {problem}")
        else:
            found.setdefault(row["student"], {})[row["lab"]] = Override(float(row["points"]), row["reason"])
    if problems:
        raise LabError("\n".join(problems))
    return found


def _problem(row: dict[str, str], students: Collection[str], max_points: Mapping[str, Exact]) -> str:
    if row["student"] not in students:
        near = nearest(row["student"], students)
        return f"no student {row['student']!r} is graded here" + (f". Did you mean {near}?" if near else "")
    if row["lab"] not in max_points:
        return f"no lab {row['lab']!r} is graded here; there are {', '.join(max_points)}"
    if not row["reason"]:
        return "the reason is missing; the student reads it next to the points"
    try:
        points = float(row["points"])
    except ValueError:
        return f"points are {row['points']!r}, must be a number"
    limit = max_points[row["lab"]]
    if not math.isfinite(points) or not 0 <= points <= limit:
        return f"points are {row['points']}, must be between 0 and {limit}"
    return ""
