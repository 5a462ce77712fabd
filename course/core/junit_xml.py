"""Write JUnit XML: suites, their cases, the outcome of each case, and the counts."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as Xml

#: Element in a case that has not passed → attribute of the suite that counts such cases.
COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}
FAILED = ("failure", "error")


def add_properties(element: Xml.Element, properties: Iterable[tuple[str, str]]) -> None:
    """Insert ``properties`` as the first child of a suite or a case."""
    group = Xml.Element("properties")
    for name, value in properties:
        Xml.SubElement(group, "property", name=name, value=value)
    element.insert(0, group)


def add_case(suite: Xml.Element, classname: str, name: str, properties: Iterable[tuple[str, str]] = (),
             seconds: float | None = None) -> Xml.Element:
    """Add a case, which counts as passed until something else is added to it. An unknown time is written as 0."""
    time = "0" if seconds is None else f"{seconds:.3f}"
    case = Xml.SubElement(suite, "testcase", classname=classname, name=name, time=time)
    if properties := list(properties):
        add_properties(case, properties)
    return case


def add_failure(case: Xml.Element, message: str) -> None:
    Xml.SubElement(case, "failure", message=message.split("\n")[0]).text = message


def add_error(case: Xml.Element, kind: str, message: str) -> None:
    """Add an error whose cause is outside the test."""
    Xml.SubElement(case, "error", message=kind).text = message


def add_skipped(case: Xml.Element, message: str, kind: str = "") -> None:
    Xml.SubElement(case, "skipped", {**({"type": kind} if kind else {}), "message": message})


def has(case: Xml.Element, tags: Iterable[str]) -> bool:
    return any(case.find(tag) is not None for tag in tags)


def count(suite: Xml.Element) -> None:
    """Set the number of cases in the suite, and how many of them did not pass."""
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for tag, attribute in COUNTED.items():
        suite.set(attribute, str(sum(has(case, (tag,)) for case in cases)))


def to_bytes(root: Xml.Element) -> bytes:
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode").encode() + b"\n"
