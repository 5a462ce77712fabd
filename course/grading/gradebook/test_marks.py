"""From results, times and rules to marks. Every number here was computed by hand."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from fractions import Fraction as F

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.core.result import LabResult, Outcome, Override, TestResult, to_cents
from course.grading.gradebook.marks import EXCUSED, NO_TIME, Submission, mark
from course.grading.gradebook.rules import Gradebook, Group, LabRules, Late, StudentRules
from course.grading.gradebook.times import Duration

DUE = datetime(2026, 10, 12, 22, tzinfo=timezone.utc)
DAILY = Late("day", percent=F(10))


def result(*passed, outcome=Outcome.GRADED):
    """Make a result of four tests with 10, 20, 30 and 40 points."""
    return LabResult("2.1", outcome, tuple(
        TestResult(number in passed, name=f"test_task_{number}", points=10 * number, task=number)
        for number in (1, 2, 3, 4)))


def attempt(*passed, days=0.0, student="ann", time=True, outcome=Outcome.GRADED):
    return Submission(student, result(*passed, outcome=outcome), DUE + timedelta(days=days) if time else None)


def marked(rules, *attempts, student="ann", override=None, **more):
    book = Gradebook(labs={"2.1": rules}, **more)
    return mark(book, "2.1", student, result(outcome=Outcome.MISSING), attempts, override)[0]


def points(rules, *attempts, **more):
    return marked(rules, *attempts, **more).points


@pytest.mark.parametrize("days, late, expected", [
    (-1, DAILY, 60), (0, DAILY, 60), (0.5, DAILY, 54), (1, DAILY, 54), (1.5, DAILY, 48), (20, DAILY, 0),
    (0.5, replace(DAILY, grace=Duration(0, 12 * 60)), 60),
    (0.51, replace(DAILY, grace=Duration(0, 12 * 60)), 54),  # after the grace period, lateness counts from the deadline
    (8, replace(DAILY, floor_percent=F(50)), 30),
    (3, replace(DAILY, floor_percent=F(50), cutoff=Duration(3)), 42),
    (3.01, replace(DAILY, floor_percent=F(50), cutoff=Duration(3)), 0),
    (0.1, Late("hour", points=F(2)), 54),  # 2.4 hours: 3 started
    (9, Late("hour", points=F(2)), 0), (9, Late("hour", points=F(2), floor_percent=F(25)), 15),
    (9, Late(), 60), (9, Late(cutoff=Duration(8)), 0), (7, Late(cutoff=Duration(8)), 60),
    (0.5, Late("day", percent=F("33.3333")), F("40")),  # 60 − 19.99998 = 40.00002
    (0.5, Late("day", points=F("0.005")), 60),  # 59.995: a half is rounded up
])
def test_a_late_attempt_loses_what_the_rules_say(days, late, expected):
    assert points(LabRules(DUE, late), attempt(1, 2, 3, days=days)) == expected


def test_points_before_and_after_the_penalty_add_up():
    got = marked(LabRules(DUE, Late("day", percent=F("3.33"))), attempt(1, days=0.5))
    assert (got.raw, got.penalty, got.points, got.late) == (10, F("0.33"), F("9.67"), "1 day")
    assert got.steps[-1:] == ("late: 1 day started after the deadline: 1 × 3.33 % of 10 points = 0.33 points off",)


def test_an_unknown_time_costs_nothing_and_is_said():
    got = marked(LabRules(DUE, DAILY), attempt(4, time=False))
    assert (got.points, got.steps, got.submitted) == (40, (NO_TIME,), None)
    assert marked(LabRules(), attempt(4, time=False)).steps == ()


def test_an_extension_moves_the_deadline_and_the_cutoff():
    rules = LabRules(DUE, replace(DAILY, cutoff=Duration(2)))
    late = attempt(4, days=2.5)
    assert points(rules, late) == 0
    for extension, expected in ((Duration(3), 40), (Duration(2), 36), (DUE + timedelta(days=1.5), 36),
                                (Duration(1), 32)):
        got = marked(rules, late, students={"ann": StudentRules(extensions={"2.1": extension})})
        assert got.points == expected and "extension: the deadline is 2026-10-1" in got.steps[0]
    assert points(rules, late, students={"ann": StudentRules(Duration(3))}) == 40
    assert points(rules, late, students={"ann": StudentRules(Duration(3), {"2.1": Duration(2)})}) == 36
    assert points(rules, late, students={"bob": StudentRules(Duration(3))}) == 0


def test_the_last_attempt_counts_or_the_best_after_its_penalty():
    early, late, worse = attempt(4, days=-1), attempt(4, 1, days=1.5), attempt(3, days=1.6)
    last, best = LabRules(DUE, DAILY), LabRules(DUE, DAILY, "best")
    assert points(last, early, late) == 40 == points(best, early, late)  # 50 − 20 % = 40: equal, so the first counts
    assert marked(best, early, late).attempt == "1 of 2" and marked(last, early, late).attempt == "2 of 2"
    assert marked(best, early).attempt == ""
    assert (points(last, early, late, worse), points(best, early, late, worse)) == (24, 40)
    assert "attempt 1 of 3 counts: the best, after penalties" in marked(best, early, late, worse).steps


def test_extra_credit_counts_in_the_points_only():
    rules = LabRules(extra=frozenset({"test_task_4"}))
    got = marked(rules, attempt(1, 2, 3, 4))
    assert (got.points, got.max_points, got.most) == (100, 60, 100)
    assert got.steps == ("extra credit for task 4: up to 40 points beyond the maximum",)
    capped = marked(replace(rules, cap=F(75)), attempt(1, 2, 3, 4))
    assert (capped.points, capped.max_points, capped.most) == (75, 60, 75)
    assert capped.steps[-1] == "100 points from the tests, of which at most 75 count"
    whole = marked(LabRules(is_all_extra=True), attempt(1))
    assert (whole.points, whole.max_points) == (10, 0)
    late = marked(LabRules(DUE, DAILY, cap=F(75)), attempt(1, 2, 3, 4, days=0.5))
    assert late.points == F("67.5")  # the cap comes before the penalty


def test_points_of_the_gradebook_replace_those_of_the_tests():
    rules = LabRules(worth={"test_task_1": F(10, 3), "test_task_4": F(0)})
    got, shown = mark(Gradebook(labs={"2.1": rules}), "2.1", "ann", result(), [attempt(1, 2, 4)])
    assert (got.points, got.max_points) == (F("23.33"), F("53.33"))
    assert [test.points for test in shown.tests] == [F(10, 3), 20, 30, 0]


def test_an_excused_lab_counts_nowhere():
    excused = {"ann": StudentRules(excused=frozenset({"2.1"}))}
    for attempts in ((), (attempt(1, days=3),)):
        got = marked(LabRules(DUE, DAILY), *attempts, students=excused)
        assert (got.points, got.max_points, got.is_excused, got.steps) == (0, 0, True, (EXCUSED,))


def test_an_override_wins_over_lateness_and_excuse():
    got = marked(LabRules(DUE, DAILY), attempt(4, days=3), override=Override(12.345, "oral exam"),
                 students={"ann": StudentRules(excused=frozenset({"2.1"}))})
    assert (got.points, got.max_points, got.penalty, got.is_excused) == (F("12.35"), 100, 0, False)
    assert marked(LabRules(DUE, DAILY), attempt(outcome=Outcome.GRADE_AGAIN), override=Override(3, "x")).points == 3


def test_what_must_be_graded_again_has_no_points():
    again = attempt(outcome=Outcome.GRADE_AGAIN)
    assert points(LabRules(DUE, DAILY), again) is None
    assert points(LabRules(DUE, DAILY), again, attempt(4)) == 40  # only the last one counts
    assert points(LabRules(DUE, DAILY, "best"), again, attempt(4)) is None  # the first may be better
    assert mark(Gradebook(), "2.1", "ann", result(outcome=Outcome.GRADE_AGAIN), [])[0].points is None
    assert points(LabRules(DUE, DAILY)) == 0


def test_one_submission_counts_for_the_group():
    group = {"groups": (Group(("ann", "bob")),)}
    of_bob = attempt(4, days=0.5, student="bob")
    got = marked(LabRules(DUE, DAILY), of_bob, **group)
    assert got.points == 36 and got.steps[0] == "handed in by bob for the group"
    # Each member has their own deadline.
    assert points(LabRules(DUE, DAILY), of_bob, students={"ann": StudentRules(Duration(1))}, **group) == 40
    # The last one by time counts, whoever handed it in.
    for both in ((attempt(1, days=-1), of_bob), (of_bob, attempt(1, days=-1))):
        assert points(LabRules(DUE, DAILY), *both, **group) == 36
    # If a time is missing, the order is not known, so the best one counts.
    assert points(LabRules(DUE, DAILY), of_bob, attempt(1, time=False), **group) == 36


# ---- properties of the arithmetic


NUMBERS = st.fractions(0, 100, max_denominator=40)
LATES = st.builds(Late, st.sampled_from(["hour", "day"]), NUMBERS, NUMBERS,
                  st.builds(Duration, st.just(0), st.integers(0, 90)), NUMBERS,
                  st.none() | st.builds(Duration, st.integers(1, 9), st.integers(90, 99)))
DELAYS = st.floats(-2, 12)
PASSED = st.sets(st.sampled_from([1, 2, 3, 4]))
ATTEMPTS = st.lists(st.builds(lambda passed, days: attempt(*passed, days=days), PASSED, DELAYS), min_size=1, max_size=4)


@given(LATES, PASSED, DELAYS, DELAYS)
def test_a_later_attempt_never_gets_more(late, passed, one, other):
    first, second = (points(LabRules(DUE, late), attempt(*passed, days=days)) for days in sorted((one, other)))
    assert first >= second


@given(LATES, PASSED, DELAYS)
def test_points_stay_between_the_floor_and_the_raw_points(late, passed, days):
    raw = sum(10 * number for number in passed)
    got = marked(LabRules(DUE, late), attempt(*passed, days=days))
    assert 0 <= got.points <= raw and got.points == got.raw - got.penalty
    is_closed = late.cutoff is not None and timedelta(days=days) > timedelta(minutes=late.cutoff.about_minutes)
    assert is_closed or got.points >= to_cents(raw * late.floor_percent / 100)


@given(LATES, ATTEMPTS, st.integers(0, 9), st.integers(1, 3000), st.sampled_from(["best", "last"]))
def test_an_extension_never_hurts(late, attempts, days, minutes, which):
    extended = {"ann": StudentRules(extensions={"2.1": Duration(days, minutes)})}
    rules = LabRules(DUE, late, which)
    assert points(rules, *attempts, students=extended) >= points(rules, *attempts)


@given(LATES, ATTEMPTS)
def test_the_best_is_never_worse_than_the_last(late, attempts):
    assert points(LabRules(DUE, late, "best"), *attempts) >= points(LabRules(DUE, late, "last"), *attempts)


@given(LATES, ATTEMPTS)
def test_an_unknown_time_never_hurts(late, attempts):
    attempts.sort(key=lambda one: one.submitted)
    unknown = [replace(one, submitted=None) for one in attempts]
    assert points(LabRules(DUE, late), *unknown) >= points(LabRules(DUE, late), *attempts)


@given(st.fractions(0, 10_000, max_denominator=10_000))
def test_rounding_is_to_the_nearest_cent_and_a_half_goes_up(value):
    cents = to_cents(value)
    assert (cents * 100).denominator == 1 and -F(1, 200) < cents - value <= F(1, 200)
