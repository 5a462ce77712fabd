"""Gradescope's ``results.json``, one per student."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from course.core.result import Outcome, Points, Provenance, StudentResult, to_cents
from course.grading.export import output_files
from course.grading.export.escape import number
from course.grading.export.student_view import HIDDEN, NOT_YET, SeenLab, SeenStudent, SeenTest, seen_by
from course.grading.export.titles import Titles, course_titles


class Gradescope:
    name = "results.json"

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        titles = course_titles()
        for student in students:
            results = gradescope_results(seen_by(student), provenance, titles)
            output_files.write(output_files.student_folder(out, student.student) / self.name,
                         json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def gradescope_results(student: SeenStudent, provenance: Provenance, titles: Titles) -> dict[str, Any]:
    """Return the content of ``results.json``. ``score`` is at the top level, so that an override counts and no hidden
    test reveals its own score.

    If a lab must be graded again, a case that only instructors see says so. Gradescope shows students no total while
    there is such a case.
    """
    tests = [_case(lab, test, titles) for lab in student.labs for test in lab.tests if lab.outcome is Outcome.GRADED]
    tests += [_grade_again(lab) for lab in student.labs if lab.points is None]
    return {
        "score": _json(student.points or 0),
        "execution_time": round(sum(lab.wall_s for lab in student.labs)),
        "output": "\n".join(_output(student)),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"commit": provenance.commit, "sandbox": provenance.sandbox, "python": provenance.python,
                       "has_network": provenance.has_network, "limits": provenance.limits,
                       "tests_sha256": provenance.tests_sha256},
        "tests": tests,
    }


def _case(lab: SeenLab, test: SeenTest, titles: Titles) -> dict[str, Any]:
    name = f"{lab.number} {test.sentence}"
    if test.is_hidden:
        return {"name": name, "output": HIDDEN, "visibility": "visible"}
    output = test.message + (f"\n\nOutput of this test:\n{test.printed}" if test.printed.strip() else "")
    return {"name": f"{name} ({titles.task(lab.number, test.task)})" if test.task else name,
            "score": _json(test.points or 0) if test.passed else 0, "max_score": _json(test.points or 0),
            "status": "passed" if test.passed else "failed", "output": output, "visibility": "visible",
            "tags": [f"lab {lab.number}", *([f"task {test.task}"] if test.task else [])]}


def _grade_again(lab: SeenLab) -> dict[str, Any]:
    return {"name": f"Grade again: lab {lab.number}", "status": "failed", "visibility": "hidden",
            "output": lab.reason or "The grader did not reach a result."}


def _json(points: Points) -> float:
    """Return the points as a number of JSON: a whole number if they are whole, else two decimals."""
    if not isinstance(points, Fraction):
        return points
    cents = to_cents(points)
    return cents.numerator if cents.denominator == 1 else float(cents)


def _output(student: SeenStudent) -> list[str]:
    lines = [NOT_YET] if student.points is None else []
    lines += [*student.notes, *_comment("Your instructor's comment", student.comment)]
    for lab in student.labs:
        lines += _comment(f"Lab {lab.number}: your instructor's comment", lab.comment)
        if lab.outcome is Outcome.MISSING and not lab.has_override:
            lines.append(f"Lab {lab.number} was not handed in.")
        if lab.reason and lab.outcome is not Outcome.GRADE_AGAIN:
            lines.append(f"Lab {lab.number}: {lab.reason}")
        if lab.has_override:
            lines.append(f"Lab {lab.number}: your instructor set {number(lab.points or 0)} points instead of the "
                         f"{number(lab.computed_points)} from the tests: {lab.override_reason}")
        lines += [f"Lab {lab.number}: {step}." for step in lab.steps]
        if lab.broken:
            lines.append(f"Lab {lab.number}: no test could run. {lab.broken}")
        elif lab.first_task is not None:
            lines.append(f"Lab {lab.number}: fix task {lab.first_task} first. A nudge: course hint {lab.number} "
                         f"--task {lab.first_task}")
    return lines


def _comment(title: str, text: str) -> list[str]:
    return [f"{title}: {text}"] if text else []
