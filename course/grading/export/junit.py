"""JUnit's XML, one file per student, one case per test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

from course.core.junit_xml import add_case, add_error, add_failure, add_properties, add_skipped, count, to_bytes
from course.core.result import Outcome, Provenance, StudentResult
from course.grading.export import output_files
from course.grading.export.escape import number
from course.grading.export.student_view import HIDDEN, SeenLab, SeenStudent, SeenTest, seen_by


class Junit:
    name = "junit.xml"

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        for student in students:
            tree = junit_tree(seen_by(student), provenance)
            Xml.indent(tree)
            output_files.write(output_files.student_folder(out, student.student) / self.name, to_bytes(tree).decode())


def junit_tree(student: SeenStudent, provenance: Provenance) -> Xml.Element:
    root = Xml.Element("testsuites", name="mini_vllm course")
    for lab in student.labs:
        _suite(root, student, lab, provenance)
    return root


def _suite(root: Xml.Element, student: SeenStudent, lab: SeenLab, provenance: Provenance) -> None:
    """Add the suite of a lab. A lab without a score is an error, JUnit's term for a problem outside a test."""
    suite = Xml.SubElement(root, "testsuite", name=f"lab {lab.number}", time=f"{lab.wall_s:.3f}")
    add_properties(suite, {
        "student": student.student, "lab": lab.number, "outcome": lab.outcome.value,
        "points": "" if lab.points is None else number(lab.points), "max_points": number(lab.max_points),
        "override_reason": lab.override_reason, "commit": provenance.commit, "sandbox": provenance.sandbox,
        "python": provenance.python, "tests_sha256": provenance.tests_sha256.get(lab.number, "")}.items())
    if lab.outcome is Outcome.GRADED:
        for test in lab.tests:
            _case(suite, lab, test)
    else:
        add_error(add_case(suite, f"lab-{lab.number}", "submission"), lab.outcome.value, lab.reason)
    count(suite)


def _case(suite: Xml.Element, lab: SeenLab, test: SeenTest) -> None:
    """Add the case of a test. Its time is CPU time; the suite has the wall-clock time of the lab. A hidden test has no
    time, because the time could show whether it passed."""
    if test.is_hidden:
        add_skipped(add_case(suite, f"lab-{lab.number}", test.name), HIDDEN)
        return
    case = add_case(suite, f"lab-{lab.number}", test.name, {
        "points": number(test.points or 0), "earned": number(test.points or 0) if test.passed else "0",
        "task": "" if test.task is None else str(test.task), "lab": lab.number}.items(), test.cpu_s)
    if not test.passed:
        add_failure(case, test.message or lab.broken)
    if test.printed.strip():
        Xml.SubElement(case, "system-out").text = test.printed
