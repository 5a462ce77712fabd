"""JUnit's XML as instructors need it: one case a test, its points, and no path of this machine.

pytest writes a case for each parameter of a test, and nothing for a test that did not run. Here what it wrote is put in
order: the cases of one test become one, which fails if one of them does, and what was not run is there as skipped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from course.core.atomic_files import write_whole
from course.core.failure_messages import NOT_RUN
from course.core.scrub_paths import without_paths
from course.pytest_run.points import IMPL, LAB, TEST, Points, properties_of

BAD = ("failure", "error")


def put_in_order(path: Path, points: Points, root: Path) -> None:
    """Mend the XML at ``path``; one without any lab's test stays as it is."""
    tree = ET.parse(path)
    for suite in tree.iter("testsuite"):
        if not points.tallies:
            return
        _fold(suite)
        _add_not_run(suite, points)
        _add_totals(suite, points)
        _count(suite)
    for element in tree.iter():
        element.text = without_paths(element.text, root) if element.text else element.text
        element.attrib.update({name: without_paths(value, root) for name, value in element.attrib.items()})
    text = io.BytesIO()
    tree.write(text, encoding="utf-8", xml_declaration=True)
    write_whole(path, text.getvalue())


def _key(case: ET.Element) -> tuple[str, str, str] | None:
    """Lab, label and test of a case; None for a case of no lab."""
    said = {one.get("name"): one.get("value", "") for one in case.iter("property")}
    return (said[LAB], said[IMPL], said[TEST]) if {LAB, IMPL, TEST} <= set(said) else None


def _fold(suite: ET.Element) -> None:
    first: dict[tuple[str, str, str], ET.Element] = {}
    for case in suite.findall("testcase"):
        key = _key(case)
        if key is None:
            continue
        if key not in first:
            first[key] = case
            case.set("name", f"{key[2]}[{key[1]}]")
            continue
        suite.remove(case)
        whole = first[key]
        whole.set("time", f"{float(whole.get('time', 0)) + float(case.get('time', 0)):.3f}")
        if not _has(whole, BAD):  # the first that fails speaks for all
            whole.extend(child for child in case if child.tag != "properties")


def _add_not_run(suite: ET.Element, points: Points) -> None:
    """A case for each test that did not run; one of which only some cases ran is not passed either."""
    there = {_key(case): case for case in suite.findall("testcase")}
    for (number, label), tally in points.tallies.items():
        for test in tally.results():
            case = there.get((number, label, test.name))
            if case is None:
                case = ET.SubElement(suite, "testcase", classname=f"lab {number}", name=f"{test.name}[{label}]",
                                     time="0.000")
                _add_properties(case, properties_of(number, label, test.name, test.task, test.points))
            if test.error == NOT_RUN and not _has(case, BAD):
                ET.SubElement(case, "skipped", type=NOT_RUN, message=test.message)


def _add_totals(suite: ET.Element, points: Points) -> None:
    lines = (line.split(": ", 1) for line in points.lines())
    _add_properties(suite, [(name, value) for name, value in lines])


def _add_properties(element: ET.Element, pairs: Iterable[tuple[str, str]]) -> None:
    properties = ET.Element("properties")
    for name, value in pairs:
        ET.SubElement(properties, "property", name=name, value=value)
    element.insert(0, properties)


def _count(suite: ET.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(_has(case, (tag,)) for case in cases)))


def _has(case: ET.Element, tags: Iterable[str]) -> bool:
    return any(case.find(tag) is not None for tag in tags)
