"""JUnit XML as instructors need it: one case per test, with its points, and without any path of this machine.

pytest writes one case per parameter set of a test, and none for a test that did not run. This module rewrites that
file: the cases of one test are merged into one, which fails if any of them does, and tests that were not run appear as
skipped.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from course.core.atomic_files import write_whole
from course.core.failure_messages import NOT_RUN
from course.core.junit_xml import FAILED, add_case, add_properties, add_skipped, count, has, to_bytes
from course.core.scrub_paths import without_paths
from course.pytest_run.points import IMPL, LAB, TEST, Points, properties_of


def put_in_order(path: Path, points: Points, root: Path) -> None:
    """Rewrite the XML at ``path``. A file without any lab's test is left unchanged."""
    tree = ET.parse(path)
    for suite in tree.iter("testsuite"):
        if not points.tallies:
            return
        _fold(suite)
        _add_not_run(suite, points)
        add_properties(suite, [(name, value) for name, value in (line.split(": ", 1) for line in points.lines())])
        count(suite)
    for element in tree.iter():
        element.text = without_paths(element.text, root) if element.text else element.text
        element.attrib.update({name: without_paths(value, root) for name, value in element.attrib.items()})
    write_whole(path, to_bytes(tree.getroot()))


def _key(case: ET.Element) -> tuple[str, str, str] | None:
    """Return lab, label and test of a case, or None if it belongs to no lab."""
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
        if not has(whole, FAILED):  # keep the first failure only
            whole.extend(child for child in case if child.tag != "properties")


def _add_not_run(suite: ET.Element, points: Points) -> None:
    """Add a case for each test that did not run. A test of which only some cases ran does not pass either."""
    there = {_key(case): case for case in suite.findall("testcase")}
    for (number, label), tally in points.tallies.items():
        for test in tally.results():
            case = there.get((number, label, test.name))
            if case is None:
                case = add_case(suite, f"lab {number}", f"{test.name}[{label}]",
                                properties_of(number, label, test.name, test.task, test.points))
            if test.error == NOT_RUN and not has(case, FAILED):
                add_skipped(case, test.message, NOT_RUN)
