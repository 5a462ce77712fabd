"""``gradebook.toml`` is read, and every problem in it is reported with its place, its value and the bound."""

import re
import subprocess
import sys
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.core.result import TestResult, Verdict
from course.grading.gradebook import times
from course.grading.gradebook.fields import MAX_BYTES, MAX_PROBLEMS, Problems, Table, tomllib
from course.grading.gradebook.read import _Reader, read_gradebook
from course.grading.gradebook.times import Duration, after, started
from course.lab.graded_tests import graded_tests
from course.lab.lab import PROJECT_ROOT, LabError, discover, find_lab

LABS = ("2.1", "2.2", "3.1")
TESTS = tuple(TestResult(False, name=name, points=points, task=task) for name, points, task in (
    ("test_task_1_a", 2, 1), ("test_task_1_b", 1, 1), ("test_task_2_c", 3, 2), ("test_stress", 4, None)))
STUDENTS = ("ann", "bob", "cora")
BERLIN = ZoneInfo("Europe/Berlin")


def read(tmp_path, text, has_roster=True):
    path = tmp_path / "gradebook.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_gradebook(path, LABS, lambda lab: TESTS, STUDENTS, has_roster)


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def problems_of(tmp_path, text):
    with pytest.raises(LabError) as error:
        read(tmp_path, text)
    first, *rest = str(error.value).split("\n")
    assert str(tmp_path / "gradebook.toml") in first
    return [line.strip() for line in rest]


def test_an_empty_file_changes_nothing(tmp_path):
    book, notes = read(tmp_path, "")
    lab = book.lab("2.1")
    assert (lab.deadline, lab.worth, lab.attempts, book.has_zone, notes) == (None, {}, "last", False, [])


def test_all_of_it_is_read(tmp_path):
    book, notes = read(tmp_path, '''
        timezone = "Europe/Berlin"
        attempts = "best"
        total_cap_percent = 105
        [late]
        per = "day"
        percent = 12.5
        grace = "15 minutes"
        floor_percent = 50
        cutoff = "7 days"
        [labs."2.1"]
        deadline = 2026-10-12T23:59:00
        attempts = "last"
        tasks = { 1 = 10 }
        tests = { test_stress = 0.5 }
        extra_credit = { tasks = [2], tests = ["test_stress"] }
        cap = 12
        [labs."2.2"]
        deadline = 2026-10-12T23:59:00-05:00
        late = { per = "hour", points = 1 }
        points = 20
        [labs."3.1"]
        extra_credit = true
        [students.ann]
        extensions = { all = "1 day 12 hours", "2.1" = 2026-10-20T12:00:00 }
        excused = ["3.1"]
        [[groups]]
        members = ["ann", "bob"]
        labs = ["2.2"]
        [[groups]]
        members = ["ann", "cora"]
        labs = ["2.1"]
        shared = false
    ''')
    assert notes == [] and book.cap_percent == 105 and book.has_zone
    lab = book.lab("2.1")
    assert lab.deadline == utc("2026-10-12T21:59:00") and lab.attempts == "last" and lab.cap == 12
    assert lab.worth == {"test_task_1_a": Fraction(20, 3), "test_task_1_b": Fraction(10, 3),
                         "test_stress": Fraction(1, 2)}
    assert lab.extra == {"test_task_2_c", "test_stress"} and lab.late.percent == Fraction(25, 2)
    assert lab.late.grace == Duration(0, 15) and lab.late.cutoff == Duration(7)
    second = book.lab("2.2")
    assert second.deadline == utc("2026-10-13T04:59:00") and second.attempts == "best"
    assert second.late.per == "hour" and second.late.percent == 0 and second.late.cutoff is None
    assert second.worth == {"test_task_1_a": 4, "test_task_1_b": 2, "test_task_2_c": 6, "test_stress": 8}
    assert book.lab("3.1").is_all_extra and book.is_excused("ann", "3.1") and not book.is_excused("bob", "3.1")
    assert book.deadline_of("ann", "2.1") == utc("2026-10-20T10:00:00")
    assert book.deadline_of("ann", "2.2") == utc("2026-10-14T16:59:00")
    assert book.deadline_of("bob", "2.1") == lab.deadline and book.deadline_of("ann", "3.1") is None
    assert book.partners("bob", "2.2") == ("bob", "ann") and book.partners("bob", "2.1") == ("bob",)
    assert book.partners("ann", "2.1") == ("ann",) and book.group_of("cora", "2.1").members == ("ann", "cora")


ZONED = 'timezone = "Europe/Berlin"\n'
DUE = ZONED + '[labs."2.1"]\ndeadline = 2026-10-12T23:59:00\n'


@pytest.mark.parametrize("text, problem", [
    ("colour = 1", "colour means nothing here; the keys are timezone, attempts"),
    ('labs = 3', "labs is 3, must be a table."),
    ('attempts = "beste"', 'attempts is "beste", must be "best" or "last". Did you mean best?'),
    ('timezone = "Europe/Berln"', 'timezone is "Europe/Berln", must be an IANA name such as "Europe/Berlin"'),
    ('timezone = "Europe"', 'timezone is "Europe", must be an IANA name'),
    ('timezone = "../../etc/passwd"', 'timezone is "../../etc/passwd", must be'),
    ('timezone = "+15:00"', 'timezone is "+15:00", must be'),
    ('timezone = "localtime"', 'timezone is "localtime", must be'),
    ("timezone = 2", 'timezone is 2, must be a text such as "Europe/Berlin" or "+02:00".'),
    ("[labs.2.1]", 'labs.2: there is no lab "2" in the course. Write the number in quotes: "2.1".'),
    ('[labs."2.9"]', 'labs."2.9": there is no lab "2.9" in the course.'),
    ('[labs."2.1"]\ndeadlin = 1', 'labs."2.1".deadlin means nothing here; the keys are deadline'),
    (ZONED + '[labs."2.1"]\ndeadline = "2026-10-12T23:59"', 'labs."2.1".deadline is "2026-10-12T23:59"; write it'),
    (ZONED + '[labs."2.1"]\ndeadline = 2026-10-12', 'labs."2.1".deadline is 2026-10-12, a date without a time'),
    (ZONED + '[labs."2.1"]\ndeadline = 1999-10-12T00:00:00', "must be in the years 2000 to 2199."),
    (ZONED + '[labs."2.1"]\ndeadline = 2026-03-29T02:30:00', "the clocks of Europe/Berlin skip this hour."),
    ('[labs."2.1"]\ndeadline = 2026-10-12T23:59:00', 'labs."2.1".deadline is 2026-10-12T23:59:00, but no time zone is'),
    ('late.per = "week"', 'late.per is "week", must be "hour" or "day".'),
    ('late.per = "day"', "late.per needs percent or points"),
    ("late.percent = 10", 'late.percent needs per = "hour" or per = "day".'),
    ("late.floor_percent = 10", "late.floor_percent needs per"),
    ('late = { per = "day", percent = 10, points = 1 }', "late.points is a second penalty next to percent"),
    ('late = { per = "day", percent = nan }', "late.percent is NaN, must be a number from 0 to 100"),
    ('late = { per = "day", percent = inf }', "late.percent is Infinity, must be a number from 0 to 100"),
    ('late = { per = "day", percent = 101 }', "late.percent is 101, must be a number from 0 to 100"),
    ('late = { per = "day", percent = -1 }', "late.percent is -1, must be a number from 0 to 100"),
    ('late = { per = "day", points = 1e999999999 }', "late.points is 1E+999999999, must be a number from 0 to 10000"),
    ('late = { per = "day", points = 1e-999999999 }', "late.points is 1E-999999999, must be a number from 0 to 10000"),
    (f'late = {{ per = "day", points = {"9" * 400} }}', "late.points is a number of more than 60 digits, must be"),
    ('late = { per = "day", points = 1.23456 }', "with at most 4 decimals"),
    ('late = { per = "day", points = true }', "late.points is true, must be a number"),
    ('late.grace = "5 parsecs"', 'late.grace is "5 parsecs", must be a duration such as "15 minutes"'),
    ('late.grace = "-5 minutes"', 'late.grace is "-5 minutes", must be'),
    ('late.grace = 5', "late.grace is 5, must be a duration"),
    ('late.cutoff = "0 days"', 'late.cutoff is "0 days", must be'),
    ('late.cutoff = "401 days"', 'late.cutoff is "401 days", must be'),
    ('late.cutoff = "1 day 1 day"', 'late.cutoff is "1 day 1 day", must be'),
    ('late = { grace = "2 hours", cutoff = "1 hour" }', 'late.cutoff is "1 hour", must not be before the end of grace'),
    ('[labs."2.1".tasks]\n3 = 10', 'labs."2.1".tasks.3: the lab has no task "3"; its tasks are 1, 2.'),
    ('[labs."2.1".tasks]\n1 = -1', 'labs."2.1".tasks.1 is -1, must be a number from 0 to 10000'),
    ('[labs."2.1".tests]\ntest_task_1_aa = 1', 'the lab has no test "test_task_1_aa". Did you mean test_task_1_a?'),
    ('[labs."2.1"]\ntasks = { 1 = 1 }\ntests = { test_task_1_a = 1 }', "is a test of task 1, whose points are set too"),
    ('[labs."2.1"]\npoints = 10\ntasks = { 1 = 1 }', 'labs."2.1".tasks sets points that the lab\'s points set already'),
    ('[labs."2.1"]\ncap = 9', 'labs."2.1".cap is 9, must be at least 10, the lab\'s maximum without extra credit.'),
    ('[labs."2.1"]\nextra_credit = "yes"', 'labs."2.1".extra_credit is "yes", must be a table.'),
    ('[labs."2.1"]\nextra_credit = { tasks = ["2"] }', "extra_credit.tasks is a list, must be a list of whole numbers"),
    ('[labs."2.1"]\nextra_credit = { tasks = [2, 2] }', "extra_credit.tasks contains 2 more than once."),
    ('[labs."2.1"]\nextra_credit = { tests = ["x"] }', 'the lab has no test "x".'),
    ("[students.anne]", 'students.anne: no student "anne" is on the roster. Did you mean ann?'),
    ("[students.ann]\nextension = 1", "students.ann.extension means nothing here"),
    ('[students.ann]\nexcused = "2.1"', 'students.ann.excused is "2.1", must be a list of texts'),
    ('[students.ann]\nexcused = ["2.1", "2.1"]', 'students.ann.excused contains "2.1" more than once.'),
    ('[students.ann]\nexcused = ["9.9"]', 'students.ann.excused: there is no lab "9.9"'),
    ('[students.ann.extensions]\n"2.1" = "1 day"', 'students.ann.extensions."2.1" is an extension, but lab 2.1 has no'),
    (DUE + '[students.ann.extensions]\n"2.1" = 2026-10-12T23:59:00', "must be after the lab's deadline, 2026-10-12"),
    (DUE + '[students.ann.extensions]\nall = 2026-10-13T23:59:00', "extensions.all is 2026-10-13T23:59:00, must"),
    (DUE + '[students.ann]\nexcused = ["2.1"]\nextensions = { "2.1" = "1 day" }', "from which the student is excused"),
    ('[[groups]]\nmembers = ["ann"]', "groups[1].members must be a list of at least two students."),
    ('[[groups]]\nmembers = ["ann", "ann"]', 'groups[1].members contains "ann" more than once.'),
    ('[[groups]]\nmembers = ["ann", "zoe"]', 'groups[1].members: no student "zoe" is on the roster.'),
    ('[[groups]]\nmembers = ["ann", "bob"]\n[[groups]]\nmembers = ["cora", "bob"]\nlabs = ["2.1"]',
     'groups[2].members contains "bob", who is also in groups[1] for the same lab.'),
    ('[[groups]]\nmembers = ["ann", "bob"]\nlabs = []', "groups[1].labs is empty; without this key"),
    ("[groups]\na = 1", "groups is a table, must be tables, each under its own [[groups]]."),
    ("total_cap_percent = 0", "total_cap_percent is 0, must be a number from 1 to 1000"),
])
def test_a_problem_is_reported_with_place_value_and_bound(tmp_path, text, problem):
    found = problems_of(tmp_path, text)
    assert any(problem in one for one in found), found


def test_all_problems_are_reported_together(tmp_path):
    found = problems_of(tmp_path, 'attempts = "x"\ntotal_cap_percent = 2000\n[late]\nper = "week"\npercent = nan\n'
                                  '[labs."7.7"]\n[students.zoe]\n')
    assert len(found) == 6, found


@pytest.mark.parametrize("text", [
    '[labs."2.1"]\npoints = nan\ntasks = { 1 = 1 }\ntests = { test_stress = 1 }\ncap = 1',
    "[[groups]]\nmembers = 3", '[[groups]]\nmembers = ["ann", "ann"]', '[[groups]]\nmembers = ["ann", "zoe"]',
    ZONED + '[labs."2.9"]\ndeadline = 2026-10-12T23:59:00\n[students.ann.extensions]\n"2.1" = "1 day"',
    'labs = 3', 'timezone = "CEST"\n[labs."2.1"]\ndeadline = 2026-10-12T23:59:00'])
def test_one_mistake_is_one_problem(tmp_path, text):
    found = problems_of(tmp_path, text)
    assert len(found) == 1, found


@pytest.mark.parametrize("name, words", [
    ("CEST", "CEST is an abbreviation; write the name of a city"), ("berlin", "Did you mean Europe/Berlin?"),
    ("Europe/Berln", "Did you mean Europe/Berlin?")])
def test_no_abbreviation_is_suggested_for_a_time_zone(tmp_path, name, words):
    (found,) = problems_of(tmp_path, f'timezone = "{name}"')
    assert words in found and "mean EST" not in found


@pytest.mark.parametrize("text, words", [
    ('a = 1\n[labs."2.1"]\ndeadline = 2026-02-30T23:59:00  # late', "2026-02-30T23:59:00 does not exist: day is out"),
    ("deadline = 2026-10-12T25:00:00", "2026-10-12T25:00:00 does not exist: hour must be in 0..23"),
    ("deadline = 2026-10-12T23:59", "2026-10-12T23:59 is not written as TOML demands"),
    ("deadline = 2026-1-12", "2026-1-12 is not written as TOML demands"),
    ('a = 1\npoints = 3\npoints = 4', ": points = 4 – points is in the file twice."),
    ("[late]\n[late]", r": \[late\] – \[late\] is in the file twice."),
    ("late = { per = 1, per = 2 }", ": late = { per = 1, per = 2 }"), ("percent = 5 %", ": percent = 5 %"),
])
def test_a_line_that_is_no_toml_is_shown(tmp_path, text, words):
    with pytest.raises(LabError, match=words) as error:
        read(tmp_path, text)
    assert "is not TOML: " in str(error.value) and "\n" not in str(error.value)


def test_a_very_wrong_file_is_not_printed_whole(tmp_path):
    found = problems_of(tmp_path, "\n".join(f"key{number} = 1" for number in range(300)))
    assert len(found) == MAX_PROBLEMS + 1 and found[-1] == "… and more"


@pytest.mark.parametrize("text, words", [
    (b"\xff", "is not UTF-8"), ("a = ", "is not TOML: "), ("a = 1\na = 2", "is not TOML: "),
    (f"a = {'9' * 6000}", "the limit is 500"), ("a = " + "[\n" * 90_000, "nested too deeply"),
    ("#" * (MAX_BYTES + 1), "has more than 200,000 bytes"),
    ("x = 1\n" + "a" + ".a" * 90_000 + " = 1", "line 2: the line has 180,005 characters, the limit is 500"),
    ("a = 2026-13-01", "is not TOML: ")])
def test_what_is_no_gradebook_is_one_sentence(tmp_path, text, words):
    with pytest.raises(LabError, match=words) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_without_a_roster_an_unknown_student_is_a_note(tmp_path):
    book, notes = read(tmp_path, '[students.anna]\nexcused = ["2.1"]', has_roster=False)
    assert notes == ['students.anna: no submission of "anna" so far. Did you mean ann?']
    assert book.is_excused("anna", "2.1")


def test_a_machine_without_time_zones_says_what_to_install(tmp_path, monkeypatch):
    def nothing(name):
        raise KeyError(name)

    monkeypatch.setattr(times, "ZoneInfo", nothing)
    monkeypatch.setattr(times, "available_timezones", set)
    (found,) = problems_of(tmp_path, 'timezone = "Europe/Berlin"')
    assert "pip install tzdata" in found and '"+02:00"' in found
    assert read(tmp_path, 'timezone = "+02:00"')[0].zone.utcoffset(None).seconds == 7200


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.recursive(
    st.one_of(st.integers(), st.booleans(), st.sampled_from(["ann", "2.1", "1 day", "nan", "", "x" * 99, "\x1b[2J"]),
              st.datetimes()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(
        st.sampled_from(["timezone", "attempts", "late", "labs", "students", "groups", "2.1", "ann", "deadline",
                         "tasks", "tests", "1", "per", "percent", "members", "extensions", "excused", "all",
                         "extra_credit"]),
        inner, max_size=5)), max_leaves=25))
def test_no_table_ends_in_a_traceback(value):
    reader = _Reader(Table(value if isinstance(value, dict) else {"labs": {"2.1": value}}, "", Problems()), LABS,
                     lambda lab: TESTS, STUDENTS, True)
    reader.read()
    assert all(one.isprintable() and len(one) < 700 for one in reader.top.problems)


# ---- times


def test_a_day_is_a_day_of_the_calendar():
    # In Berlin the day until 25 October 2026, 23:59, has 25 hours; the one until 29 March has 23.
    due = datetime(2026, 10, 24, 23, 59, tzinfo=BERLIN).astimezone(timezone.utc)
    assert due == utc("2026-10-24T21:59:00") and after(due, Duration(1), BERLIN) == utc("2026-10-25T22:59:00")
    assert after(due, Duration(1, 60), BERLIN) == utc("2026-10-25T23:59:00")
    assert after(due, Duration(0, 24 * 60), BERLIN) == utc("2026-10-25T21:59:00")
    spring = utc("2026-03-28T22:59:00")
    assert after(spring, Duration(1), BERLIN) == utc("2026-03-29T21:59:00")
    for moment, days, hours in (("2026-10-24T21:59:00", 0, 0), ("2026-10-24T21:59:00.000001", 1, 1),
                                ("2026-10-25T22:59:00", 1, 25), ("2026-10-25T22:59:01", 2, 26),
                                ("2026-10-26T22:59:00", 2, 49)):
        assert [started(utc(moment), due, unit, BERLIN) for unit in ("day", "hour")] == [days, hours], moment


def test_a_deadline_in_the_hour_that_comes_twice_is_the_later_one(tmp_path):
    book, _ = read(tmp_path, ZONED + '[labs."2.1"]\ndeadline = 2026-10-25T02:30:00')
    assert book.lab("2.1").deadline == utc("2026-10-25T01:30:00")


@given(st.integers(0, 400), st.integers(0, 400 * 24 * 60), st.sampled_from(["Europe/Berlin", "America/New_York", "UTC",
                                                                            "Australia/Lord_Howe", "Pacific/Apia"]))
def test_started_days_agree_with_adding_days(days, minutes, name):
    zone, due = ZoneInfo(name), utc("2026-03-01T10:30:00")
    moment = after(due, Duration(0, minutes), zone)
    number = started(moment, due, "day", zone)
    assert moment <= after(due, Duration(number), zone)
    assert number == 0 or after(due, Duration(number - 1), zone) < moment
    assert after(due, Duration(days), zone).astimezone(zone).minute == 30


def test_reading_needs_no_grader():
    script = "import course.grading.gradebook.marks, course.grading.gradebook.read, sys; " \
             "assert not any('sandbox' in name for name in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_the_example_of_the_manual_is_valid():
    """Read the example in docs/grading.md, with the labs and tests of the course."""
    text = (PROJECT_ROOT / "docs/grading.md").read_text(encoding="utf-8")
    example = text.partition("\n## The gradebook\n")[2].partition("\n```toml\n")[2].partition("\n```\n")[0]
    labs = discover(PROJECT_ROOT)
    reader = _Reader(Table(tomllib.loads(example, parse_float=Decimal), "", Problems()), [lab.number for lab in labs],
                     lambda lab: tuple(test.result(Verdict(False)) for test in graded_tests(find_lab(lab, labs))),
                     ("ann", "bob", "cora", "dan"), True)
    book = reader.read()
    assert reader.top.problems == [] == reader.notes
    assert set(book.labs) == {"2.1", "2.2", "3.5", "4.3"} and len(book.groups) == 2
    # Every key that exists is in the example.
    source = (PROJECT_ROOT / "course/grading/gradebook/read.py").read_text()
    keys = {key for call in re.findall(r"\.only\((.*?)\)", source, re.S) for key in re.findall(r'"(\w+)"', call)}
    assert len(keys) > 20 and not [key for key in keys if key not in example]
