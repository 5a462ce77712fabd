"""JUnit's XML, written: suites, their cases, what came of each, and the counts."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as Xml

#: What a case may hold that has not passed → the attribute of a suite that counts it.
COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}
FAILED = ("failure", "error")


def add_properties(element: Xml.Element, properties: Iterable[tuple[str, str]]) -> None:
    """Before everything else in a suite or a case."""
    group = Xml.Element("properties")
    for name, value in properties:
        Xml.SubElement(group, "property", name=name, value=value)
    element.insert(0, group)


def add_case(suite: Xml.Element, classname: str, name: str, properties: Iterable[tuple[str, str]] = ()) -> Xml.Element:
    """A case that has passed, as long as nothing else is said of it. Its time is not known."""
    case = Xml.SubElement(suite, "testcase", classname=classname, name=name, time="0")
    if properties := list(properties):
        add_properties(case, properties)
    return case


def add_failure(case: Xml.Element, message: str) -> None:
    Xml.SubElement(case, "failure", message=message.split("\n")[0]).text = message


def add_error(case: Xml.Element, kind: str, message: str) -> None:
    """What came from outside of a test."""
    Xml.SubElement(case, "error", message=kind).text = message


def add_skipped(case: Xml.Element, message: str, kind: str = "") -> None:
    Xml.SubElement(case, "skipped", {**({"type": kind} if kind else {}), "message": message})


def has(case: Xml.Element, tags: Iterable[str]) -> bool:
    return any(case.find(tag) is not None for tag in tags)


def count(suite: Xml.Element) -> None:
    """Write down how many cases the suite has, and how many of them have not passed."""
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for tag, attribute in COUNTED.items():
        suite.set(attribute, str(sum(has(case, (tag,)) for case in cases)))


def to_bytes(root: Xml.Element) -> bytes:
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode").encode() + b"\n"
