"""Grading results: of a test, of a file, of a student. All can be written as JSON and read back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from course.core.failure_messages import BROKEN_FILE, NO_PYTEST, NOT_RUN


@dataclass(frozen=True)
class Verdict:
    """The outcome of one test. Subclasses add whatever else a run or a result knows about the test."""

    passed: bool
    #: What ended the test: one of the kinds in ``failure_messages``, else the name of the exception
    #: (``NotImplementedError`` for a stub). None if the test passed or ended its process.
    error: str | None = None
    #: For the student. It may contain text from the student's file, so it is not trusted.
    message: str = ""
    #: The last lines that were printed during the test, if it failed; not trusted either.
    printed: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Verdict:
        """Make a verdict from the fields that a process has reported. Raise KeyError if one is missing."""
        return cls(bool(fields["passed"]), fields["error"], str(fields["message"]), str(fields["printed"]))

    @property
    def concerns_the_whole_file(self) -> bool:
        """Whether every test of the lab gets this verdict, for the same reason."""
        return self.error in (BROKEN_FILE, NO_PYTEST)


#: The verdict on a test that reported nothing.
WAS_NOT_RUN = Verdict(False, NOT_RUN, "it was not run")


class Outcome(str, enum.Enum):
    """The outcome for one file."""

    GRADED = "graded"
    #: Nothing was handed in.
    MISSING = "missing"
    #: Something was handed in that cannot be run: a notebook, a link, a file of 6 MB. ``reason`` says what it is.
    UNREADABLE = "unreadable"
    #: The machine was too busy, or the grader failed: no score, and none may be inferred.
    GRADE_AGAIN = "grade again"


@dataclass(frozen=True, kw_only=True)
class TestResult(Verdict):
    """The verdict on a graded test, over all its cases, and the points it is worth. Made by ``GradedTest.result``."""

    name: str
    points: int
    task: int | None = None
    #: The student sees only the test's name and a fixed sentence.
    is_hidden: bool = False
    #: The quantity it measures is measured inside the sandbox, because it cannot be observed from outside.
    is_inside: bool = False

    __test__ = False  # pytest would collect it as a test class


@dataclass(frozen=True)
class LabResult:
    """The result of one lab of one student."""

    lab: str
    outcome: Outcome
    #: Every graded test of the lab, even if nothing was run: the sum of their points is the maximum score.
    tests: tuple[TestResult, ...] = ()
    #: Why there is no score, or what is unusual about the file, in a sentence.
    reason: str = ""
    #: What an instructor should look at; never scored.
    flags: tuple[str, ...] = ()
    file_sha256: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    #: How the file was confined: the name of the sandbox level, and whether the network was reachable.
    sandbox: str = ""
    has_network: bool = True

    @property
    def points(self) -> int:
        return sum(test.points for test in self.tests if test.passed)

    @property
    def max_points(self) -> int:
        return sum(test.points for test in self.tests)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "outcome": self.outcome.value}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> LabResult:
        tests = tuple(TestResult(**test) for test in fields["tests"])
        return cls(**{**fields, "outcome": Outcome(fields["outcome"]), "tests": tests,
                      "flags": tuple(fields["flags"])})


@dataclass(frozen=True)
class Override:
    """Points set by an instructor, which replace the computed ones."""

    points: float
    reason: str


@dataclass(frozen=True)
class StudentResult:
    """The results of all requested labs of one student."""

    student: str
    name: str = ""
    #: Lab number → its result, in the order of the course.
    labs: dict[str, LabResult] = field(default_factory=dict)
    overrides: dict[str, Override] = field(default_factory=dict)
    #: Remarks on the submission as a whole, for example files that were ignored.
    notes: tuple[str, ...] = ()
    #: Whether this student handed in anything at all.
    is_submitted: bool = True

    def points_of(self, lab: str) -> float:
        """Return the points that count: the override if there is one, else the computed points."""
        if lab in self.overrides:
            return self.overrides[lab].points
        return self.labs[lab].points

    @property
    def points(self) -> float:
        return sum(self.points_of(lab) for lab in self.labs)

    @property
    def max_points(self) -> int:
        return sum(result.max_points for result in self.labs.values())


@dataclass(frozen=True)
class Provenance:
    """Which code, tests and machine produced the numbers. It is part of every result."""

    commit: str
    #: Lab → SHA-256 of its tests, hidden tests included.
    tests_sha256: dict[str, str]
    python: str
    platform: str
    limits: dict[str, float]
    sandbox: str
    has_network: bool
    #: The attacks that this sandbox level does not prevent, in sentences.
    not_defended: tuple[str, ...]
