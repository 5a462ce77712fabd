"""The gradebook as data: what an instructor wrote, checked, with exact numbers and moments in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from fractions import Fraction

from course.grading.gradebook.times import Duration, after

BEST, LAST = "best", "last"
ATTEMPTS = (BEST, LAST)


@dataclass(frozen=True)
class Late:
    """What lateness costs. Without ``per`` it costs nothing until the cut-off."""

    #: "hour" or "day": each one that has started costs ``percent`` of the earned points, or ``points``.
    per: str = ""
    percent: Fraction = Fraction(0)
    points: Fraction = Fraction(0)
    #: Up to here lateness costs nothing. After it, lateness counts from the deadline.
    grace: Duration = Duration()
    #: The penalty leaves at least this share of the earned points.
    floor_percent: Fraction = Fraction(0)
    #: From here on a submission counts 0.
    cutoff: Duration | None = None

    def penalty(self, raw: Fraction, num_started: int) -> Fraction:
        """Return how many of the earned points are lost if that many hours or days have started. It is exact."""
        cost = num_started * (raw * self.percent / 100 + self.points)
        return min(cost, raw * (1 - self.floor_percent / 100))


@dataclass(frozen=True)
class LabRules:
    """What counts for one lab."""

    deadline: datetime | None = None
    late: Late = Late()
    attempts: str = LAST
    #: The points of a test, by name, where they differ from the test's own.
    worth: Mapping[str, Fraction] = field(default_factory=dict)
    #: Tests that are extra credit: they can earn points, but do not count in the maximum.
    extra: frozenset[str] = frozenset()
    is_all_extra: bool = False
    #: The most points before the penalty.
    cap: Fraction | None = None


@dataclass(frozen=True)
class StudentRules:
    """What is different for one student."""

    #: Added to the deadline of every lab that is not named in ``extensions``.
    extension: Duration | None = None
    #: Lab → a duration that is added to the deadline, or the new deadline.
    extensions: Mapping[str, Duration | datetime] = field(default_factory=dict)
    excused: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Group:
    """Students who hand in together."""

    members: tuple[str, ...]
    #: The labs that they do together; None for every lab.
    labs: frozenset[str] | None = None
    #: Whether one member's submission counts for all.
    is_shared: bool = True

    def does(self, lab: str) -> bool:
        return self.labs is None or lab in self.labs


@dataclass(frozen=True)
class Gradebook:
    zone: tzinfo = timezone.utc
    #: For labs without rules of their own.
    default: LabRules = LabRules()
    labs: Mapping[str, LabRules] = field(default_factory=dict)
    students: Mapping[str, StudentRules] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    #: The most that all labs together may give, in percent of the student's own maximum.
    cap_percent: Fraction | None = None
    #: Whether the file names ``zone``. If it does not, a time without an offset is as good as unknown.
    has_zone: bool = True

    def lab(self, lab: str) -> LabRules:
        return self.labs.get(lab, self.default)

    def deadline_of(self, student: str, lab: str) -> datetime | None:
        """Return the student's own deadline. An extension never moves it to an earlier time."""
        due, rules = self.lab(lab).deadline, self.students.get(student, StudentRules())
        extension = rules.extensions.get(lab, rules.extension)
        if due is None or extension is None:
            return due
        return max(due, extension if isinstance(extension, datetime) else after(due, extension, self.zone))

    def is_excused(self, student: str, lab: str) -> bool:
        return student in self.students and lab in self.students[student].excused

    def group_of(self, student: str, lab: str) -> Group | None:
        return next((group for group in self.groups if student in group.members and group.does(lab)), None)

    def partners(self, student: str, lab: str) -> tuple[str, ...]:
        """Return the students whose submissions count for this one, the student first."""
        group = self.group_of(student, lab)
        others = group.members if group is not None and group.is_shared else ()
        return (student, *(one for one in others if one != student))
