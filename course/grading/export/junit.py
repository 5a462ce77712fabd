"""JUnit's XML, one file a student, one case a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

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
            text = Xml.tostring(tree, encoding="unicode", xml_declaration=False)
            output_files.write(output_files.student_folder(out, student.student) / self.name,
                         f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n')


def junit_tree(student: SeenStudent, provenance: Provenance) -> Xml.Element:
    root = Xml.Element("testsuites", name="mini_vllm course")
    for lab in student.labs:
        _suite(root, student, lab, provenance)
    return root


def _suite(root: Xml.Element, student: SeenStudent, lab: SeenLab, provenance: Provenance) -> None:
    """A lab without a score is an error of the suite, as JUnit calls what came from outside of a test."""
    cases = [test for test in lab.tests] if lab.outcome is Outcome.GRADED else []
    has_ended = lab.outcome is Outcome.GRADED
    suite = Xml.SubElement(root, "testsuite", {
        "name": f"lab {lab.number}", "tests": str(len(cases) if has_ended else 1),
        "failures": str(sum(test.passed is False for test in cases)), "errors": "0" if has_ended else "1",
        "skipped": str(sum(test.is_hidden for test in cases)), "time": f"{lab.wall_s:.3f}"})
    _properties(suite, {
        "student": student.student, "lab": lab.number, "outcome": lab.outcome.value,
        "points": "" if lab.points is None else number(lab.points), "max_points": number(lab.max_points),
        "override_reason": lab.override_reason, "commit": provenance.commit, "sandbox": provenance.sandbox,
        "python": provenance.python, "tests_sha256": provenance.tests_sha256.get(lab.number, "")})
    for test in cases:
        _case(suite, lab, test)
    if not has_ended:
        case = Xml.SubElement(suite, "testcase", classname=f"lab-{lab.number}", name="submission", time="0")
        Xml.SubElement(case, "error", message=lab.outcome.value).text = lab.reason


def _case(suite: Xml.Element, lab: SeenLab, test: SeenTest) -> None:
    """The time of one test is not known: the lab's stands at the suite."""
    case = Xml.SubElement(suite, "testcase", classname=f"lab-{lab.number}", name=test.name, time="0")
    if test.is_hidden:
        Xml.SubElement(case, "skipped", message=HIDDEN)
        return
    _properties(case, {"points": str(test.points or 0), "earned": str(test.points or 0) if test.passed else "0",
                       "task": "" if test.task is None else str(test.task), "lab": lab.number})
    if not test.passed:
        message = test.message or lab.broken
        Xml.SubElement(case, "failure", message=message.split("\n")[0]).text = message
    if test.printed.strip():
        Xml.SubElement(case, "system-out").text = test.printed


def _properties(parent: Xml.Element, properties: dict[str, str]) -> None:
    group = Xml.SubElement(parent, "properties")
    for name, value in properties.items():
        Xml.SubElement(group, "property", name=name, value=value)
