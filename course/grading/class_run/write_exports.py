"""The output after a class was graded: tables and pages, and on request a comparison of the submissions."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from course.core.result import Provenance, StudentResult
from course.grading import similarity
from course.grading.class_run.store import Store
from course.grading.export import output_files
from course.grading.intake.platforms import Unclear
from course.lab.lab import Lab


def hand_out(out: Path, students: Sequence[StudentResult], provenance: Provenance, labs: Sequence[Lab],
             unclear: Sequence[Unclear] = (), groups: Mapping[str, Mapping[str, str]] | None = None) -> list[str]:
    """Write all exports. Return a sentence for each that could not be written; a failure does not stop the others.

    ``groups`` maps a lab's number to its groups: student → group. Without it, the submissions are not compared.
    """
    problems = list(importlib.import_module("course.grading.export").write_all(out, students, provenance, unclear))
    if groups is not None:
        try:
            _compare(out, [student.student for student in students], labs, groups)
        except Exception as error:  # it reads students' texts; a failure here must not cost the other exports
            problems.append(f"The submissions were not compared: {type(error).__name__}: {error}")
    return problems


def _compare(out: Path, students: Sequence[str], labs: Sequence[Lab],
             groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write ``similarity.csv``: a row for each pair of similar files, and one for each file that was not compared."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["lab", "percent", "student", "other", "remark"])
    for lab in labs:
        found = similarity.compare(lab, Store(out).get_texts(lab.number, students), groups.get(lab.number))
        table.writerows([lab.number, round(100 * share), one, other, ""] for share, one, other in found.pairs)
        table.writerows([lab.number, "", student, "", f"not compared: {why}"]
                        for student, why in found.left_out.items())
    output_files.write(out / "similarity.csv", text.getvalue())
