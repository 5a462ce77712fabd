"""The gradebook applied to rows: whose attempts count, when they were handed in, and what is shown."""

from datetime import datetime, timedelta, timezone
from fractions import Fraction
from zoneinfo import ZoneInfo

from course.core.result import Attempt, LabResult, Outcome, Override, StudentResult, TestResult
from course.grading.gradebook.apply import apply_gradebook, most_points
from course.grading.gradebook.marks import NO_TIME
from course.grading.gradebook.rules import Gradebook, Group, LabRules, Late, StudentRules
from course.grading.gradebook.times import Duration

DUE = datetime(2026, 10, 12, 22, tzinfo=timezone.utc)
RULES = LabRules(DUE, Late("day", percent=Fraction(10)))


def result(passed=True, outcome=Outcome.GRADED, reason=""):
    return LabResult("2.1", outcome, (TestResult(passed, name="test_task_1_a", points=10, task=1),), reason)


def a_row(student, *attempts, current=None, **more):
    current = current or (attempts[-1].result if attempts else result(False, Outcome.MISSING))
    return StudentResult(student, labs={"2.1": current}, attempts={"2.1": attempts} if attempts else {},
                         is_submitted=bool(attempts), **more)


def applied(*rows, rules=RULES, **more):
    return {row.student: row for row in apply_gradebook(Gradebook(labs={"2.1": rules}, **more), rows)}


def test_a_file_that_the_platform_gives_to_both_members_is_one_attempt():
    own, others = Attempt(result(), DUE, "", "ab"), Attempt(result(), DUE, "", "ab")
    rows = applied(a_row("ann", own), a_row("bob", others), groups=(Group(("ann", "bob")),))
    assert rows["bob"].marks["2.1"].attempt == "" and rows["bob"].marks["2.1"].steps == ()
    later = Attempt(result(), DUE + timedelta(hours=1), "", "ab")  # the same text, handed in a second time
    rows = applied(a_row("ann", own), a_row("bob", later), groups=(Group(("ann", "bob")),))
    assert rows["ann"].marks["2.1"].attempt == "2 of 2" and rows["ann"].marks["2.1"].points == 9


def test_a_member_without_a_file_is_shown_the_file_of_the_group():
    rows = applied(a_row("ann", Attempt(result(reason="odd"), DUE)), a_row("bob"), groups=(Group(("ann", "bob")),))
    assert rows["bob"].labs["2.1"].reason == "odd" and rows["bob"].is_submitted
    rows = applied(a_row("ann", Attempt(result(), DUE)), a_row("bob"), groups=(Group(("ann", "bob"), is_shared=False),))
    assert rows["bob"].labs["2.1"].outcome is Outcome.MISSING and rows["bob"].marks["2.1"].points == 0


def test_a_time_without_a_zone_is_in_that_of_the_gradebook():
    berlin = ZoneInfo("Europe/Berlin")  # the deadline is at midnight there
    for moment, points in ((datetime(2026, 10, 13), 10), (datetime(2026, 10, 13, 0, 0, 1), 9)):
        row = applied(a_row("ann", Attempt(result(), moment)), zone=berlin)["ann"]
        assert row.marks["2.1"].points == points
        assert row.marks["2.1"].submitted.isoformat() == f"{moment.isoformat()}+02:00"


def test_a_time_without_a_zone_is_unknown_if_the_gradebook_names_none():
    late = DUE + timedelta(hours=2)
    for moment, points in ((late, 9), (late.replace(tzinfo=None), 10)):
        row = applied(a_row("ann", Attempt(result(), moment)), has_zone=False)["ann"]
        assert row.marks["2.1"].points == points
        assert (NO_TIME in row.labs["2.1"].flags) == (points == 10)


def test_what_the_student_must_still_decide_is_no_zero():
    # Two files were handed in, and it is not known which one counts. The earlier attempt must not count instead.
    undecided = result(False, Outcome.GRADE_AGAIN, "ann handed in twice")
    row = applied(a_row("ann", Attempt(result(), DUE), current=undecided))["ann"]
    assert row.marks["2.1"].points is None and row.labs["2.1"].reason == "ann handed in twice"
    row = applied(a_row("ann", current=undecided, overrides={"2.1": Override(4, "x")}))["ann"]
    assert row.marks["2.1"].points == 4


def test_an_extension_never_makes_a_deadline_earlier():
    students = {"ann": StudentRules(extensions={"2.1": DUE - timedelta(days=1)})}
    assert Gradebook(labs={"2.1": RULES}, students=students).deadline_of("ann", "2.1") == DUE


def test_an_extension_over_the_change_of_the_clocks_ends_at_the_same_time_of_day():
    berlin = ZoneInfo("Europe/Berlin")
    due = datetime(2026, 10, 24, 21, 59, tzinfo=timezone.utc)
    book = Gradebook(berlin, labs={"2.1": LabRules(due)}, students={"ann": StudentRules(Duration(2))})
    assert book.deadline_of("ann", "2.1").astimezone(berlin).isoformat() == "2026-10-26T23:59:00+01:00"


def test_a_cap_is_a_share_of_the_students_own_maximum():
    extra = LabResult("2.2", Outcome.GRADED, (TestResult(True, name="test_task_1_a", points=88, task=1),))
    rows = [StudentResult(student, labs={"2.1": result(), "2.2": extra},
                          attempts={"2.1": (Attempt(result()),), "2.2": (Attempt(extra),)})
            for student in ("ann", "bob")]
    labs = {"2.1": LabRules(), "2.2": LabRules(is_all_extra=True)}
    excused = {"bob": StudentRules(excused=frozenset({"2.1"}))}
    ann, bob = apply_gradebook(Gradebook(labs=labs, students=excused, cap_percent=Fraction(105)), rows)
    assert (ann.points, ann.max_points) == (Fraction("10.5"), 10)  # 98 points, of which 105 % of 10 count
    assert (bob.points, bob.max_points) == (0, 0)  # extra credit is a share of nothing
    only = [StudentResult("ann", labs={"2.2": extra}, attempts={"2.2": (Attempt(extra),)})]
    (ann,) = apply_gradebook(Gradebook(labs=labs, cap_percent=Fraction(105)), only)
    assert (ann.points, ann.max_points) == (88, 0)  # no lab counts in the maximum yet, for anyone


def test_an_override_may_be_as_high_as_the_points_with_extra_credit():
    book = Gradebook(labs={"2.1": LabRules(is_all_extra=True), "2.2": LabRules(is_all_extra=True, cap=Fraction(4))})
    assert most_points(book, {"2.1": result().tests, "2.2": result().tests, "3.1": result().tests}) == {
        "2.1": 10, "2.2": 4, "3.1": 10}
