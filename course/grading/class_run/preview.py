"""``course grade --preview``: what a change would do to whose marks.

Before is ``grades.csv``, as the last call wrote it. After is the same table, made again and not written.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from course.core.result import Provenance, StudentResult
from course.grading.gradebook.marks import EXCUSED
from course.lab.lab import LabError

Cells = Mapping[str, str]
_TOTAL = "total"
#: What holds for this many students of a lab, and for all of them, is printed once.
MIN_SHARED = 3


@dataclass(frozen=True)
class Change:
    student: str
    #: A number, or "total".
    lab: str
    before: str
    after: str
    reasons: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        return "; ".join(self.reasons)


def tell_changes(console: Console, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
    """Print the changes as a table, and a summary."""
    before = _written(out)
    after = _rows(importlib.import_module("course.grading.export.tables").Grades().text(students, provenance))
    changes = [change for student in students if student.student in after
               for change in changes_of(student.student, before.get(student.student, {}), after[student.student],
                                        list(student.labs))]
    changes, of_all = _shared(changes)
    if changes:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("student", "lab", "before", "after", "why"):
            table.add_column(heading, overflow="fold", justify="right" if heading in ("before", "after") else "left")
        for change in changes:
            cells = (change.student, change.lab, change.before, change.after, change.why)
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
    for lab, number, reasons in of_all:
        console.print(Text(f"Lab {lab}, for all {number} students above: {'; '.join(reasons)}."))
    for lab, old, new in _maxima(before, after, labs_of(students)):
        console.print(f"Lab {lab}: the maximum changes from {old} to {new}.")
    console.print(summary(changes, len(students)))


def labs_of(students: Sequence[StudentResult]) -> list[str]:
    return list(dict.fromkeys(lab for student in students for lab in student.labs))


def _maxima(before: Mapping[str, Cells], after: Mapping[str, Cells], labs: Sequence[str]
            ) -> Iterator[tuple[str, str, str]]:
    """Yield each lab whose maximum changes for the class, with both. What most students have is that of the class."""
    for lab in labs:
        counts = [Counter(cells.get(f"{lab} max", "") for cells in rows.values()) for rows in (before, after)]
        old, new = (count.most_common(1)[0][0] if count else "" for count in counts)
        if old != new and old:
            yield lab, old, new


def _written(out: Path) -> dict[str, Cells]:
    path = out / "grades.csv"
    try:
        return _rows(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabError(f"--preview compares with {path}, which does not exist yet. Run the command without --preview "
                       "first.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise LabError(f"--preview cannot read {path}: {error}") from None


def _rows(text: str) -> dict[str, Cells]:
    return {row.get("student") or "": {name: cell or "" for name, cell in row.items() if isinstance(name, str)}
            for row in csv.DictReader(io.StringIO(text, newline=""))}


def changes_of(student: str, before: Cells, after: Cells, labs: Sequence[str]) -> Iterator[Change]:
    """Yield what changes for a student: labs first, then the total."""
    for lab in labs:
        old, new = _points(before, f"{lab} points", f"{lab} max"), _points(after, f"{lab} points", f"{lab} max")
        is_new_comment = before.get(f"{lab} comment", "") != after.get(f"{lab} comment", "")
        if old != new or is_new_comment:
            yield Change(student, lab, old, new, tuple(_why(before, after, lab)))
    old, new = _points(before, _TOTAL, "max"), _points(after, _TOTAL, "max")
    if old != new:
        yield Change(student, _TOTAL, old, new)
    if before.get("comment", "") != after.get("comment", ""):
        yield Change(student, "", "", "", (_of_comment(before.get("comment", ""), after.get("comment", "")),))


def _shared(changes: Sequence[Change]) -> tuple[list[Change], list[tuple[str, int, list[str]]]]:
    """Take the reasons that are the same for all students of a lab out of the changes, if there are several. Return the
    changes, and for each such lab the number of students and the reasons."""
    of_all = []
    for lab in dict.fromkeys(change.lab for change in changes if change.lab not in ("", _TOTAL)):
        of_lab = [change for change in changes if change.lab == lab]
        same = [reason for reason in of_lab[0].reasons if all(reason in change.reasons for change in of_lab)]
        if same and len(of_lab) >= MIN_SHARED:
            of_all.append((lab, len(of_lab), same))
            changes = [replace(change, reasons=tuple(one for one in change.reasons if one not in same))
                       if change.lab == lab else change for change in changes]
    return list(changes), of_all


def _of_comment(before: str, after: str) -> str:
    return "comment changed" if before and after else "comment removed" if before else "comment added"


def _points(cells: Cells, points: str, most: str) -> str:
    return f"{cells.get(points) or '–'} of {cells[most]}" if cells.get(most) else "–"


def _why(before: Cells, after: Cells, lab: str) -> list[str]:
    """Return what is new in the explanation of the points, or what is no longer in it."""
    reasons = []
    old, new = before.get(f"{lab} override", ""), after.get(f"{lab} override", "")
    if old != new:
        reason = after.get(f"{lab} override_reason", "")
        reasons.append(f"override: {reason}" if new else "the override was removed")
    if before.get(f"{lab} deadline", "") != after.get(f"{lab} deadline", ""):
        reasons.append(f"deadline {after.get(f'{lab} deadline') or 'removed'}")
    how = [[step for step in cells.get(f"{lab} how", "").split(" | ") if step] for cells in (before, after)]
    reasons += [step for step in how[1] if step not in how[0]]
    is_unexplained = not reasons
    reasons += [f"no longer: {step}" for step in how[0] if step not in how[1] and (is_unexplained or step == EXCUSED)]
    if before.get(f"{lab} comment", "") != after.get(f"{lab} comment", ""):
        reasons.append(_of_comment(before.get(f"{lab} comment", ""), after.get(f"{lab} comment", "")))
    if before.get(f"{lab} outcome", "") != after.get(f"{lab} outcome", ""):
        reasons.append(f"{before.get(f'{lab} outcome') or 'not in the table'} → {after.get(f'{lab} outcome', '')}")
    if before.get(f"{lab} computed", "") != after.get(f"{lab} computed", "") or not reasons:
        reasons.append("the tests have other points")
    return reasons


def summary(changes: Sequence[Change], num_students: int) -> str:
    """Return how many students are affected, and how."""
    if not changes:
        return f"Nothing changes for the {num_students} students. Nothing was written."
    totals = [(_share(change.before), _share(change.after)) for change in changes if change.lab == _TOTAL]
    gains = sum(before is not None and after is not None and after > before for before, after in totals)
    losses = sum(before is not None and after is not None and after < before for before, after in totals)
    affected = len({change.student for change in changes})
    return (f"{affected} of {num_students} students are affected: {gains} get a larger share of the maximum, {losses} "
            "a smaller one. Nothing was written; the command without --preview writes it.")


def _share(text: str) -> Fraction | None:
    """Return the share of the maximum in ``12.5 of 15``; None if there are no points, or no maximum."""
    points, _, most = text.partition(" of ")
    try:
        return Fraction(points) / Fraction(most)
    except (ValueError, ZeroDivisionError):
        return None
