"""The output of grading: tables for gradebooks, a page and files for each student, a report on the class.

An exporter is a small object with a ``name`` and ``write(out, students, provenance)``. Those of the course are listed
here. Your own package can add more through the entry point group ``mini_vllm.grading.exporters``, each a class without
arguments. If one fails, the failure is reported and the others still write.

    escape         student text made harmless, for each format
    student_view   what a student may see of a result; of a hidden test, only the name
    page           a page as blocks; markdown and html render it
    tables, gradescope, junit, feedback, class_report, unclear    the exporters
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from course.core.result import Provenance, StudentResult
from course.grading.export.class_report import ClassReport
from course.grading.export.escape import one_line
from course.grading.export.feedback import Feedback
from course.grading.export.gradescope import Gradescope
from course.grading.export.junit import Junit
from course.grading.export.tables import Canvas, Grades, Nbgrader
from course.grading.export.unclear import UnclearFiles
from course.grading.intake.platforms import Unclear

GROUP = "mini_vllm.grading.exporters"


class Exporter(Protocol):
    name: str

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None: ...


def write_all(out: Path, students: Sequence[StudentResult], provenance: Provenance,
              unclear: Sequence[Unclear] = ()) -> list[str]:
    """Write every export into ``out``. Return a sentence for each that could not be written."""
    exporters, problems = _exporters(unclear)
    ordered = sorted(students, key=lambda student: student.student)
    return problems + write_each(exporters, out, ordered, provenance)


def write_each(exporters: Iterable[Exporter], out: Path, students: Sequence[StudentResult],
               provenance: Provenance) -> list[str]:
    problems = []
    for exporter in exporters:
        try:
            exporter.write(out, students, provenance)
        except Exception as error:  # a bug in a plug-in, a full disk: the other files are still wanted
            problems.append(f"{exporter.name} was not written: {type(error).__name__}: {one_line(str(error))}")
    return problems


def _exporters(unclear: Sequence[Unclear]) -> tuple[list[Exporter], list[str]]:
    exporters: list[Exporter] = [Grades(), Nbgrader(), Canvas(), Gradescope(), Junit(), Feedback(),
                                 ClassReport(unclear), UnclearFiles(unclear)]
    problems = []
    for entry in entry_points(group=GROUP):
        try:
            exporters.append(entry.load()())
        except Exception as error:
            problems.append(f"the exporter {entry.name} could not be loaded: {type(error).__name__}: "
                            f"{one_line(str(error))}")
    return exporters, problems
