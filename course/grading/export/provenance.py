"""The small print: which course, tests and sandbox produced the numbers."""

from __future__ import annotations

from course.core.result import Provenance
from course.grading.export.escape import number, one_line
from course.grading.export.page import Block, Items, Paragraph


def small_print(provenance: Provenance, labs: tuple[str, ...]) -> Paragraph:
    """Return one paragraph: commit, tests, Python, limits, sandbox."""
    tests = ", ".join(f"{lab} {provenance.tests_sha256[lab][:12]}" for lab in labs if lab in provenance.tests_sha256)
    limits = ", ".join(f"{name} {number(value)}" for name, value in provenance.limits.items())
    network = "network in reach" if provenance.has_network else "no network"
    parts = (f"course {provenance.commit}", f"tests {tests}" if tests else "", f"Python {provenance.python}",
             provenance.platform, f"limits: {limits}" if limits else "", f"sandbox: {provenance.sandbox}, {network}")
    return Paragraph((f"Graded with: {one_line('; '.join(part for part in parts if part), 1_500)}.",), "small")


def not_defended(provenance: Provenance) -> Block:
    if not provenance.not_defended:
        return Paragraph((f"The sandbox ({provenance.sandbox}) reports no gaps.",))
    return Items(tuple((one_line(sentence),) for sentence in provenance.not_defended))
