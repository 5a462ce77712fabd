"""Reads ``gradebook.toml``. Everything in it is checked, and all problems are reported together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone, tzinfo
from fractions import Fraction
from pathlib import Path

from course.core.result import TestResult
from course.grading.gradebook.fields import (
    MAX_PROBLEMS,
    Problems,
    Table,
    TooManyProblems,
    guess,
    read_toml,
    shown,
)
from course.grading.gradebook.rules import ATTEMPTS, LAST, Gradebook, Group, LabRules, Late, StudentRules
from course.grading.gradebook.times import Duration, read_duration, read_moment, read_zone, to_duration, to_moment
from course.grading.gradebook.weights import MAX_POINTS, read_extra, read_worth
from course.lab.lab import LabError

#: Returns every graded test of a lab, hidden tests included.
TestsOf = Callable[[str], Sequence[TestResult]]


def read_gradebook(path: Path, labs: Collection[str], tests_of: TestsOf, students: Collection[str],
                   has_roster: bool) -> tuple[Gradebook, list[str]]:
    """Return the gradebook, and a sentence for each thing in it that has no effect yet.

    ``labs`` are those of the course. ``students`` are those who get a row: with a roster, every other id in the file is
    a mistake; without one, a student may not have handed in anything yet.

    Raise LabError with every problem in the file.
    """
    reader = _Reader(Table(read_toml(path), "", Problems()), labs, tests_of, students, has_roster)
    problems, more = reader.top.problems, list[str]()
    try:
        book = reader.read()
    except TooManyProblems:
        more = ["… and more"]
    if problems:
        number = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise LabError("\n  ".join([f"{path} has {number}; nothing was changed:", *problems, *more]))
    return book, reader.notes


class _Reader:
    """One reading of a file."""

    def __init__(self, top: Table, labs: Collection[str], tests_of: TestsOf, students: Collection[str],
                 has_roster: bool) -> None:
        self.top, self.notes = top, list[str]()
        self._labs, self._tests_of, self._students, self._has_roster = labs, tests_of, students, has_roster
        self._zone: tzinfo | None = None
        #: The labs that have a deadline, right or wrong.
        self._due: set[str] = set()
        #: Whether a table under ``labs`` is for no lab of the course.
        self._has_unknown_lab = False

    def read(self) -> Gradebook:
        top = self.top
        top.only("timezone", "attempts", "total_cap_percent", "late", "labs", "students", "groups")
        zone = self._zone = read_zone(top, "timezone")
        attempts = top.word("attempts", ATTEMPTS, LAST)
        late = _read_late(top.table("late")) if top.has("late") else Late()
        default = LabRules(attempts=attempts, late=late)
        of_labs = top.table("labs")
        labs = {lab: self._lab(lab, table, default) for lab, table in of_labs.tables()
                if self._is_lab(table.place, lab)}
        self._has_unknown_lab = len(labs) < len(of_labs.fields)
        book = Gradebook(zone or timezone.utc, default, labs)
        students = {student: self._student(table, book) for student, table in top.table("students").tables()
                    if self._is_student(table.place, student)}
        groups = self._groups()
        cap = top.number("total_cap_percent", 1000, 1)
        return Gradebook(zone or timezone.utc, default, labs, students, groups, cap, zone is not None)

    # ---- names

    def _is_lab(self, place: str, lab: str) -> bool:
        if lab in self._labs:
            return True
        whole = [known for known in self._labs if known.partition(".")[0] == lab]
        quotes = f' Write the number in quotes: "{whole[0]}".' if whole else guess(lab, self._labs)
        self.top.problems.append(f"{place}: there is no lab {shown(lab)} in the course.{quotes}")
        return False

    def _is_student(self, place: str, student: str) -> bool:
        """Return whether the student exists. Without a roster, say in a note that none has handed in under this id."""
        if student not in self._students:
            near = guess(student, self._students) if len(self.notes) < MAX_PROBLEMS else ""
            if self._has_roster:
                self.top.problems.append(f"{place}: no student {shown(student)} is on the roster.{near}")
                return False
            self.notes.append(f"{place}: no submission of {shown(student)} so far.{near}")
        return True

    # ---- labs

    def _lab(self, lab: str, table: Table, default: LabRules) -> LabRules:
        table.only("deadline", "late", "attempts", "points", "tasks", "tests", "extra_credit", "cap")
        deadline = read_moment(table, "deadline", self._zone)
        if table.has("deadline"):
            self._due.add(lab)
        late = _read_late(table.table("late")) if table.has("late") else default.late
        attempts = table.word("attempts", ATTEMPTS, default.attempts)
        tests = self._tests_of(lab)
        num_problems = len(table.problems)
        extra, is_all_extra = read_extra(table, tests)
        worth = read_worth(table, tests, extra)
        points = [worth.get(test.name, Fraction(test.points)) for test in tests if test.name not in extra]
        max_points = Fraction(0) if is_all_extra else sum(points, Fraction(0))
        cap = table.number("cap", MAX_POINTS)
        if cap is not None and cap < max_points and len(table.problems) == num_problems:  # else it is not known
            table.complain("cap", f"is {shown(table.fields['cap'])}, must be at least {float(max_points):g}, the lab's "
                                  "maximum without extra credit.")
        return LabRules(deadline, late, attempts, worth, frozenset(extra), is_all_extra, cap)

    # ---- students

    def _student(self, table: Table, book: Gradebook) -> StudentRules:
        table.only("extensions", "excused")
        own = table.table("extensions")
        everywhere = to_duration(own, "all", own.fields["all"]) if own.has("all") else None
        read = {lab: self._extension(own, lab, value, book) for lab, value in own.fields.items()
                if lab != "all" and self._is_lab(own.where(lab), lab)}
        extensions = {lab: extension for lab, extension in read.items() if extension is not None}
        excused = [lab for lab in table.words("excused") if self._is_lab(table.where("excused"), lab)]
        for lab in own.fields.keys() & set(excused):
            own.complain(lab, "is an extension for a lab from which the student is excused; leave one of them out.")
        return StudentRules(everywhere, extensions, frozenset(excused))

    def _extension(self, table: Table, lab: str, value: object, book: Gradebook) -> Duration | datetime | None:
        due = book.lab(lab).deadline
        if lab not in self._due and not self._has_unknown_lab:  # the unknown one may be this
            table.complain(lab, f"is an extension, but lab {lab} has no deadline.")
        if isinstance(value, str):
            return to_duration(table, lab, value)
        moment = to_moment(table, lab, value, self._zone)
        if moment is not None and due is not None and moment <= due:
            table.complain(lab, f"is {shown(value)}, must be after the lab's deadline, "
                                f"{due.astimezone(book.zone).isoformat()}.")
        return moment

    def _groups(self) -> tuple[Group, ...]:
        groups: list[Group] = []
        memberships: dict[str, list[tuple[int, frozenset[str] | None]]] = {}
        for table in self.top.list_of_tables("groups"):
            table.only("members", "labs", "shared")
            place, num_problems = table.where("members"), len(table.problems)
            named = table.words("members")
            members = [one for one in named if self._is_student(place, one)]
            if len(named) < 2 and len(table.problems) == num_problems:
                table.complain("members", "must be a list of at least two students.")
            labs = [lab for lab in table.words("labs") if self._is_lab(table.where("labs"), lab)]
            if table.fields.get("labs") == []:
                table.complain("labs", "is empty; without this key the group does every lab.")
            group = Group(tuple(members), frozenset(labs) if table.has("labs") else None, table.flag("shared", True))
            for student in members:
                for number, labs_there in memberships.get(student, ()):
                    if group.labs is None or labs_there is None or group.labs & labs_there:
                        table.complain("members", f"contains {shown(student)}, who is also in groups[{number}] for the "
                                                  "same lab.")
                memberships.setdefault(student, []).append((len(groups) + 1, group.labs))
            groups.append(group)
        return tuple(groups)


def _read_late(table: Table) -> Late:
    table.only("per", "percent", "points", "grace", "floor_percent", "cutoff")
    per = table.word("per", ("hour", "day"), "") if table.has("per") else ""
    percent, points = table.number("percent", 100), table.number("points", MAX_POINTS)
    grace = read_duration(table, "grace", is_positive=False) or Duration()
    floor = table.number("floor_percent", 100)
    cutoff = read_duration(table, "cutoff")
    costs = [key for key in ("percent", "points") if table.has(key)]
    if len(costs) == 2:
        table.complain("points", "is a second penalty next to percent; leave one of them out.")
    if table.has("per") and not costs:
        table.complain("per", "needs percent or points: what each started hour or day costs.")
    for key in (*costs, *(["floor_percent"] if table.has("floor_percent") else [])):
        if not table.has("per"):
            table.complain(key, 'needs per = "hour" or per = "day".')
    if cutoff is not None and cutoff.about_minutes < grace.about_minutes:
        table.complain("cutoff", f"is {shown(table.fields['cutoff'])}, must not be before the end of grace, {grace}.")
    return Late(per, percent or Fraction(0), points or Fraction(0), grace, floor or Fraction(0), cutoff)
