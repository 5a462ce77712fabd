"""Results, submission times and rules become marks.

    raw       the points of the passed tests, at most the lab's cap
    penalty   for each started hour or day after the student's deadline
    points    raw − penalty, rounded once to two decimals, a half up

Lateness is applied to each attempt, and then the best or the last attempt counts. An override replaces the outcome. All
arithmetic is exact until that one rounding. A total adds rounded points; only a cap on the total changes the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction

from course.core.result import LabResult, Mark, Outcome, Override, to_cents
from course.grading.gradebook.rules import BEST, Gradebook, LabRules
from course.grading.gradebook.times import after, count, started, write_moment
from course.grading.gradebook.weights import Worth, total_worth, weigh

NO_TIME = "the time of submission is not known, so lateness costs nothing"
EXCUSED = "excused: the lab counts neither in the points nor in the maximum"
BY_HAND = "the instructor set the points, so neither lateness nor an excuse changes them"


@dataclass(frozen=True)
class Submission:
    """One graded attempt at a lab."""

    #: The student who handed it in.
    student: str
    result: LabResult
    #: With a time zone; None if the time is not known.
    submitted: datetime | None = None
    file_sha256: str = ""


@dataclass(frozen=True)
class _Marked:
    """An attempt with its penalty."""

    attempt: Submission
    #: 1 for the first.
    index: int
    raw: Fraction
    penalty: Fraction
    late: str
    steps: tuple[str, ...]

    @property
    def points(self) -> Fraction:
        return self.raw - self.penalty


def mark(book: Gradebook, lab: str, student: str, result: LabResult, attempts: Sequence[Submission],
         override: Override | None = None) -> tuple[Mark, LabResult]:
    """Return what counts for a student's lab, and the result of the attempt that counts, with the gradebook's points.

    ``result`` is what is shown if there is no attempt. ``attempts`` are the student's own and, in a group, those of the
    others, each student's in the order in which they were handed in.
    """
    rules = book.lab(lab)
    worth = total_worth(weigh(result, rules).tests, rules)
    deadline = book.deadline_of(student, lab)
    marked = [_mark_attempt(book, rules, attempt, index, deadline)
              for index, attempt in enumerate(_in_order(attempts), 1)]
    chosen = _choose(marked, rules)
    shown = weigh(chosen.attempt.result if chosen else result, rules)
    if chosen is not None and deadline is not None and chosen.attempt.submitted is None:
        shown = replace(shown, flags=(*shown.flags, NO_TIME))
    base = Mark(Fraction(0), to_cents(worth.max_points), to_cents(worth.most), deadline=_local(deadline, book),
                due=_local(rules.deadline, book))
    if chosen is not None:
        considered = marked if _takes_best(marked, rules) else [chosen]
        is_known = all(one.attempt.result.outcome is not Outcome.GRADE_AGAIN for one in considered)
        base = replace(base, points=to_cents(chosen.points) if is_known else None, raw=to_cents(chosen.raw),
                       penalty=to_cents(chosen.raw) - to_cents(chosen.points), late=chosen.late,
                       submitted=_local(chosen.attempt.submitted, book),
                       attempt=f"{chosen.index} of {len(marked)}" if len(marked) > 1 else "")
    elif result.outcome is Outcome.GRADE_AGAIN:
        base = replace(base, points=None)
    if override is not None:
        by_hand = to_cents(Fraction(str(override.points)))
        return replace(base, points=by_hand, penalty=Fraction(0), steps=(BY_HAND,)), shown
    if book.is_excused(student, lab):
        return replace(base, points=Fraction(0), max_points=Fraction(0), raw=base.raw, penalty=Fraction(0), late="",
                       is_excused=True, steps=(EXCUSED,)), shown
    return replace(base, steps=_steps(book, lab, student, shown, worth, marked, chosen, base.points is None)), shown


def _local(moment: datetime | None, book: Gradebook) -> datetime | None:
    return None if moment is None else moment.astimezone(book.zone)


def _in_order(attempts: Sequence[Submission]) -> list[Submission]:
    """Return attempts by time if every time is known; else as they are."""
    times = [attempt.submitted for attempt in attempts]
    if None in times:
        return list(attempts)
    return [attempt for _, _, attempt in sorted((time, index, attempt) for index, (time, attempt) in
                                                enumerate(zip(times, attempts)) if time is not None)]


def _mark_attempt(book: Gradebook, rules: LabRules, attempt: Submission, index: int, deadline: datetime | None
                  ) -> _Marked:
    earned = Fraction(weigh(attempt.result, rules).points)
    raw = earned if rules.cap is None else min(earned, rules.cap)
    steps = [f"{write(earned)} points from the tests, of which at most {write(raw)} count"] if raw < earned else []
    marked = _Marked(attempt, index, raw, Fraction(0), "", tuple(steps))
    moment, late = attempt.submitted, rules.late
    if deadline is None:
        return marked
    if moment is None:
        return replace(marked, steps=(*steps, NO_TIME))
    if moment <= deadline:
        return marked
    if moment <= after(deadline, late.grace, book.zone):
        return replace(marked, steps=(*steps, f"within the grace of {late.grace}, so lateness costs nothing"))
    unit = late.per or "day"
    num_started = started(moment, deadline, unit, book.zone)
    words = count(num_started, unit)
    if late.cutoff is not None and moment > (end := after(deadline, late.cutoff, book.zone)):
        return replace(marked, penalty=raw, late=words, steps=(
            *steps, f"handed in after {write_moment(end, book.zone)}, when the lab was closed: counts 0"))
    penalty = late.penalty(raw, num_started)
    told = f"late: {words} started after the deadline: {_cost(late.percent, late.points, num_started, raw)}"
    if not late.per:
        told = f"late: {words} started after the deadline; this costs nothing"
    elif penalty < num_started * (raw * late.percent / 100 + late.points):
        kept = f"at least {write(late.floor_percent)} % of the points are kept"
        kept = kept if late.floor_percent else "no more is left"
        told += f", but only {write(penalty)}, because {kept}"
    return replace(marked, penalty=penalty, late=words, steps=(*steps, told))


def _cost(percent: Fraction, points: Fraction, num_started: int, raw: Fraction) -> str:
    each = f"{write(percent)} % of {write(raw)} points" if percent else f"{write(points)} points"
    return f"{num_started} × {each} = {write(num_started * (raw * percent / 100 + points))} points off"


def _takes_best(marked: Sequence[_Marked], rules: LabRules) -> bool:
    """Return whether the best attempt counts. In a group, the last one is not known if a time is missing."""
    is_group = len({one.attempt.student for one in marked}) > 1
    return rules.attempts == BEST or (is_group and any(one.attempt.submitted is None for one in marked))


def _choose(marked: Sequence[_Marked], rules: LabRules) -> _Marked | None:
    """Return the attempt that counts; among equally good ones, the first."""
    if not marked:
        return None
    return max(marked, key=lambda one: one.points) if _takes_best(marked, rules) else marked[-1]


def _steps(book: Gradebook, lab: str, student: str, shown: LabResult, worth: Worth, marked: Sequence[_Marked],
           chosen: _Marked | None, is_open: bool) -> tuple[str, ...]:
    """Return how the points came about, in the order in which they did."""
    rules, steps = book.lab(lab), []
    if rules.is_all_extra:
        steps.append("extra credit: the lab does not count in the maximum")
    elif worth.most > worth.max_points:
        tasks = sorted({test.task for test in shown.tests if test.name in rules.extra and test.task is not None})
        of_tasks = f" for task {', '.join(map(str, tasks))}" if tasks else ""
        steps.append(f"extra credit{of_tasks}: up to {write(worth.most - worth.max_points)} points beyond the maximum")
    deadline = book.deadline_of(student, lab)
    if deadline is not None and rules.deadline is not None and deadline > rules.deadline:
        steps.append(f"extension: the deadline is {write_moment(deadline, book.zone)} instead of "
                     f"{write_moment(rules.deadline, book.zone)}")
    if chosen is None:
        return tuple(steps)
    if chosen.attempt.student != student:
        steps.append(f"handed in by {chosen.attempt.student} for the group")
    if len(marked) > 1:
        which = "the best, after penalties" if _takes_best(marked, rules) else "the last"
        steps.append(f"attempt {chosen.index} of {len(marked)} counts: {which}")
    if is_open:
        steps.append("an attempt must be graded again, so there are no points yet")
    return (*steps, *chosen.steps)


def write(points: Fraction) -> str:
    """Write a number with at most two decimals, a half rounded up."""
    return f"{float(to_cents(points)):.2f}".rstrip("0").rstrip(".")
