"""The output after a class was graded: tables and pages, and a comparison of the submissions."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from course.core.result import Provenance, StudentResult
from course.grading.class_run.store import Store
from course.grading.intake.unclear import Unclear
from course.lab.lab import Lab


def hand_out(out: Path, students: Sequence[StudentResult], provenance: Provenance, labs: Sequence[Lab],
             unclear: Sequence[Unclear] = (), groups: Mapping[str, Mapping[str, str]] | None = None) -> list[str]:
    """Write all exports. Return a sentence for each that could not be written; a failure does not stop the others.

    ``groups`` maps a lab's number to its groups: student → group.
    """
    problems = list(importlib.import_module("course.grading.export").write_all(out, students, provenance, unclear))
    try:
        _compare(out, [student.student for student in students], labs, groups or {})
    except Exception as error:  # it reads students' texts; a failure here must not cost the other exports
        problems.append(f"The submissions were not compared: {type(error).__name__}: {error}")
    return problems


def _compare(out: Path, students: Sequence[str], labs: Sequence[Lab],
             groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write a side-by-side comparison of similar texts for each lab. It affects no score."""
    similarity = importlib.import_module("course.grading.similarity.compare")
    pages = importlib.import_module("course.grading.export.similarity_pages")
    texts_of = {lab: Store(out).get_texts(lab.number, students) for lab in labs}
    found = [similarity.compare(lab, texts, groups.get(lab.number))
             for lab, texts in texts_of.items() if len(texts) > 1]
    pages.write_similarity(out, found)
