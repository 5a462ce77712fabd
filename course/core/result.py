"""What grading finds out: of a test, of one file, of a student. All of it can be written as JSON and read back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from course.core.failure_messages import BROKEN_FILE, NO_PYTEST, NOT_RUN


@dataclass(frozen=True)
class Verdict:
    """What came of one test. Whatever else is known of it, in a run or in a result, is added to this."""

    passed: bool
    #: What ended it: one of the kinds in ``failure_messages``, else the name of the exception (``NotImplementedError``
    #: for a stub); None if it passed, or took its process along.
    error: str | None = None
    #: For the student; text of theirs may stand in it, so it is not trusted.
    message: str = ""
    #: The last lines that were printed during the test, if it failed; not trusted either.
    printed: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Verdict:
        """From fields that a process has reported. Raises KeyError."""
        return cls(bool(fields["passed"]), fields["error"], str(fields["message"]), str(fields["printed"]))

    @property
    def concerns_the_whole_file(self) -> bool:
        """Whether every test of the lab has this verdict, and for the same reason."""
        return self.error in (BROKEN_FILE, NO_PYTEST)


#: Of a test that nothing was heard of.
WAS_NOT_RUN = Verdict(False, NOT_RUN, "it was not run")


class Outcome(str, enum.Enum):
    """What became of one file."""

    GRADED = "graded"
    #: Nothing was handed in.
    MISSING = "missing"
    #: Something was handed in that cannot be run: a notebook, a link, a file of 6 MB; ``reason`` says what it is.
    UNREADABLE = "unreadable"
    #: The machine was too busy, or the grader failed: no score, and none may be inferred.
    GRADE_AGAIN = "grade again"


@dataclass(frozen=True, kw_only=True)
class TestResult(Verdict):
    """The verdict on a graded test, all its cases together, and what the test is worth. ``GradedTest.result`` makes it.
    """

    name: str
    points: int
    task: int | None = None
    #: The student sees its name and a fixed sentence, and nothing else.
    is_hidden: bool = False
    #: What it measures is measured in the sandbox, because it cannot be seen from outside.
    is_inside: bool = False

    __test__ = False  # pytest would take it for a class of tests


@dataclass(frozen=True)
class LabResult:
    """One lab of one student."""

    lab: str
    outcome: Outcome
    #: Every graded test of the lab, also where nothing was run: the sum of their points is what could be earned.
    tests: tuple[TestResult, ...] = ()
    #: Why there is no score, or what is odd about the file, in a sentence.
    reason: str = ""
    #: What an instructor should look at; never scored.
    flags: tuple[str, ...] = ()
    file_sha256: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    #: How the file was kept in: the level's name, and whether the network was out of reach.
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
    """An instructor's own number in place of the computed one."""

    points: float
    reason: str


@dataclass(frozen=True)
class StudentResult:
    """All labs that were asked of one student."""

    student: str
    name: str = ""
    #: Number of a lab → its result, in the order of the course.
    labs: dict[str, LabResult] = field(default_factory=dict)
    overrides: dict[str, Override] = field(default_factory=dict)
    #: What is to be said about the submission as a whole: files that were left out, say.
    notes: tuple[str, ...] = ()
    #: Whether there was anything at all from this student.
    is_submitted: bool = True

    def points_of(self, lab: str) -> float:
        """What counts: the override, where there is one."""
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
    """What the numbers were made by and with. It stands in every result."""

    commit: str
    #: Lab → SHA-256 of its tests, hidden ones included.
    tests_sha256: dict[str, str]
    python: str
    platform: str
    limits: dict[str, float]
    sandbox: str
    has_network: bool
    #: What this level does not defend, in sentences.
    not_defended: tuple[str, ...]
