"""Grading results: of a test, of a file, of a student. All can be written as JSON and read back."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from course.core.failure_messages import BROKEN_FILE, NO_PYTEST, NOT_RUN

#: The points of tests are whole numbers, unless a gradebook gives other ones. Those of an override may be any number.
Exact = int | Fraction
Points = float | Fraction


def to_cents(points: Fraction) -> Fraction:
    """Round to two decimals; a half is rounded up."""
    return Fraction(math.floor(points * 100 + Fraction(1, 2)), 100)


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
    #: The score that the test measured and kept, in an open lab. None if it failed or keeps none.
    score: float | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Verdict:
        """Make a verdict from the fields that a process has reported. Raise KeyError if one is missing."""
        score = fields.get("score")
        is_score = isinstance(score, (int, float)) and not isinstance(score, bool) and math.isfinite(score)
        return cls(bool(fields["passed"]), fields["error"], str(fields["message"]), str(fields["printed"]),
                   score if is_score else None)

    @property
    def concerns_the_whole_file(self) -> bool:
        """Whether every test of the lab gets this verdict, for the same reason."""
        return self.error in (BROKEN_FILE, NO_PYTEST)


#: The verdict on a test that reported nothing.
WAS_NOT_RUN = Verdict(False, NOT_RUN, "it did not run")


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
    points: Exact
    task: int | None = None
    #: The student sees only the test's name and a fixed sentence.
    is_hidden: bool = False
    #: The quantity it measures is measured inside the sandbox, because it cannot be observed from outside.
    is_inside: bool = False
    #: A step of the score of an open lab: the score counts even if the test fails.
    is_step: bool = False
    #: The CPU time that the file used during all cases of the test, as the grader measured it from outside. None if it
    #: is not known: the test did not run, or an older version made the result.
    cpu_s: float | None = None

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
    def points(self) -> Exact:
        return sum(test.points for test in self.tests if test.passed)

    @property
    def max_points(self) -> Exact:
        return sum(test.points for test in self.tests)

    @property
    def kept_score(self) -> float | None:
        """The score that a test of the lab kept, whether or not the other tests pass."""
        scores = [test.score for test in self.tests if test.score is not None and test.passed and not test.is_hidden]
        return scores[0] if scores and self.outcome is Outcome.GRADED else None

    @property
    def score(self) -> float | None:
        """The score of an open lab, if it counts: all tests pass, hidden ones included, except steps of the score."""
        return self.kept_score if all(test.passed or test.is_step for test in self.tests) else None

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
class Attempt:
    """One text that a student handed in for a lab, and its result."""

    result: LabResult
    #: When it was handed in. The time has no zone (it is naive) if its source names none; ``in_zone`` adds one. None if
    #: no source has the time.
    submitted: datetime | None = None
    #: Where the time is from, for people: ``moodle.csv, line 3``.
    source: str = ""
    #: Empty if what was handed in cannot be read; all such attempts of a lab without a time are one.
    file_sha256: str = ""


class Timed(Protocol):
    """Anything that was handed in, perhaps at a known time."""

    @property
    def submitted(self) -> datetime | None: ...


AnyTimed = TypeVar("AnyTimed", bound=Timed)


def in_zone(submitted: datetime | None, zone: tzinfo) -> datetime | None:
    """Return the time with a zone: its own if it has one, else ``zone``. An hour that a clock change repeats is the
    first of the two."""
    return submitted.replace(tzinfo=zone) if submitted is not None and submitted.tzinfo is None else submitted


def in_order(attempts: Sequence[AnyTimed], zone: tzinfo) -> list[AnyTimed]:
    """Return the attempts from first to last: by their times if all are known, else in the order given."""
    timed = [(time, attempt) for attempt in attempts if (time := in_zone(attempt.submitted, zone)) is not None]
    return [attempt for _, attempt in sorted(timed, key=lambda pair: pair[0].timestamp())] \
        if len(timed) == len(attempts) else list(attempts)


@dataclass(frozen=True)
class Mark:
    """What a gradebook makes of one lab of one student, and how. All points are rounded to two decimals."""

    #: The points that count; None if the lab must be graded again.
    points: Fraction | None
    #: 0 for an excused lab, and for a lab that is extra credit as a whole.
    max_points: Fraction
    #: The most points that this student can get, extra credit included.
    most: Fraction = Fraction(0)
    #: The points before the penalty.
    raw: Fraction = Fraction(0)
    #: The points that lateness cost; ``points`` is ``raw`` minus these, unless an override replaces both.
    penalty: Fraction = Fraction(0)
    #: When the counted attempt was submitted; None if that is not known.
    submitted: datetime | None = None
    #: This student's deadline, and that of the class.
    deadline: datetime | None = None
    due: datetime | None = None
    #: How late the counted attempt was, in words; "" if it was on time.
    late: str = ""
    #: Which attempt counts: ``2 of 3``.
    attempt: str = ""
    is_excused: bool = False
    #: How the points came about, in sentences that the student may read.
    steps: tuple[str, ...] = ()


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
    #: Lab number → everything that was handed in for it, in order as far as that is known. A lab without an attempt has
    #: no entry. The result in ``labs`` is that of the current attempt, or with a gradebook that of the one that counts.
    attempts: dict[str, tuple[Attempt, ...]] = field(default_factory=dict)
    #: Lab number → when the file in ``labs`` was handed in, as in ``Attempt.submitted``; no entry if it is not known.
    submitted: dict[str, datetime] = field(default_factory=dict)
    #: An instructor's comments, for the student: on each lab, and on the submission as a whole.
    comments: dict[str, str] = field(default_factory=dict)
    comment: str = ""
    #: Lab number → what the gradebook makes of it; empty without a gradebook.
    marks: dict[str, Mark] = field(default_factory=dict)
    #: The most that all labs together may give, in percent of the student's own maximum; None if there is no limit.
    cap_percent: Fraction | None = None

    def points_of(self, lab: str) -> Points:
        """Return the points that count: those of the gradebook or the override if there are any, else the computed
        points."""
        if lab in self.marks:
            return self.marks[lab].points or 0
        if lab in self.overrides:
            return self.overrides[lab].points
        return self.labs[lab].points

    @property
    def points(self) -> Points:
        """The total."""
        total = sum(self.points_of(lab) for lab in self.labs)
        return total if self.cap_percent is None else min(
            total, to_cents(Fraction(self.max_points) * self.cap_percent / 100))

    @property
    def max_points(self) -> Exact:
        return sum(self.max_points_of(lab) for lab in self.labs)

    def is_left_out(self, lab: str) -> bool:
        """Return whether nothing was handed in for a lab from which the student is excused."""
        return lab in self.marks and self.marks[lab].is_excused and self.labs[lab].outcome is Outcome.MISSING

    @property
    def lacks_all(self) -> bool:
        """Whether the student handed in nothing, though some lab counts."""
        return not self.is_submitted and not (self.labs and all(map(self.is_left_out, self.labs)))

    def max_points_of(self, lab: str) -> Exact:
        """Return what a lab counts in this student's maximum."""
        return self.marks[lab].max_points if lab in self.marks else self.labs[lab].max_points


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
