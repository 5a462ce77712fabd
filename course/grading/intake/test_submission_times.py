"""Times of submission: as platforms write them, in their tables, and in a table of the instructor's own."""

from datetime import datetime, timedelta, timezone

import pytest

from course.grading.intake.lms_names import label_of
from course.grading.intake.read_time import MONTHS, read_time
from course.grading.intake.roster import Roster, Student
from course.grading.intake.submission_times import read_times
from course.lab.lab import LabError, discover

LABS = discover()
ROSTER = Roster([Student("ann", "Ann Lee", "ann@x.edu"), Student("bob", "Bob Ray", "ray@x.edu"), Student("4711")])
TEN = datetime(2026, 3, 1, 10)


def times_in(tmp_path, *texts, roster=ROSTER):
    paths = []
    for number, text in enumerate(texts, start=1):
        paths.append(tmp_path / f"{number}.csv")
        paths[-1].write_text(text, encoding="utf-8")
    return read_times(paths, roster, LABS)


def read(tmp_path, *texts):
    """Return what the tables give for each student and lab."""
    return {key: one.submitted for key, one in times_in(tmp_path, *texts).given.items()}


# ---- a time


@pytest.mark.parametrize("text", [
    "2026-03-01 10:00", "2026-03-01T10:00:00", "  2026-03-01  10:00:00.123 ", "Sunday, 1 March 2026, 10:00 AM",
    "Sunday, March 1, 2026, 10:00 AM", "Sunday, 1 March 2026, 10:00\u202fam", "1 Mar 2026, 10:00",
    "Sonntag, 1. März 2026, 10:00", "dimanche 1 mars 2026, 10:00", "domingo, 1 de marzo de 2026, 10:00",
    "domenica, 1 marzo 2026, 10:00", "domingo, 1 de março de 2026 às 10:00", "zondag 1 maart 2026, 10:00"])
def test_a_time_without_a_zone_is_naive(text):
    assert read_time(text) == TEN


@pytest.mark.parametrize(("text", "hours"), [
    ("2026-03-01T10:00:00Z", 0), ("2026-03-01 10:00:00 UTC", 0), ("2026-03-01 10:00:00 -0800", -8),
    ("2026-03-01 10:00:00.451842000 Z", 0), ("2026-03-01T10:00+05:30", 5.5)])
def test_a_zone_in_the_text_counts(text, hours):
    assert read_time(text) == TEN.replace(tzinfo=timezone(timedelta(hours=hours)))
    assert read_time(text).utcoffset() == timedelta(hours=hours)


@pytest.mark.parametrize(("text", "hour"), [("12:05 AM", 0), ("12:05 PM", 12), ("1:05 p.m.", 13), ("11:05 pm", 23)])
def test_a_clock_of_twelve_hours(text, hour):
    assert read_time(f"1 March 2026, {text}") == datetime(2026, 3, 1, hour, 5)


@pytest.mark.parametrize("text", [
    "", "yesterday", "3/1/2026 10:00", "2026-03-01", "2026-13-01 10:00", "2026-02-30 10:00", "2026-03-01 24:00",
    "1999-12-31 10:00", "2101-01-01 10:00", "2026-03-01 10:00 +99:00", "2026-03-01 10:00 +01:75",
    "2026-03-01 10:00 PST",
    "1 March 2026, 13:00 PM", "1 March 2026, 0:30 AM", "1 Marchember 2026, 10:00", "9" * 1000, "٢٠٢٦-03-01 10:00x"])
def test_what_is_no_time_is_refused_by_name(text):
    with pytest.raises(ValueError, match="is not a time from 2000 to 2100; write it like 2026-03-01 10:00") as error:
        read_time(text)
    assert text[:20] in str(error.value) and len(str(error.value)) < 300


def test_every_month_is_known_in_every_language():
    assert {number: sum(other == number for other in MONTHS.values()) for number in range(1, 13)}.keys() == set(
        MONTHS.values()) and all(MONTHS[name] == 5 for name in ("may", "mai", "mayo", "maggio", "maio", "mei"))


# ---- tables


MOODLE = ('Identifier,"Full name","Email address",Status,Grade,"Maximum grade","Grade can be changed",'
          '"Last modified (submission)","Last modified (grade)","Feedback comments"\n'
          'Participant 812,"Ann Lee",ann@x.edu,"Submitted for grading",,10.00,Yes,"Sunday, 1 March 2026, 10:00 AM",-,\n'
          'Participant 4711,"Cy",,"No submission",,10.00,Yes,"Monday, 2 March 2026, 10:00 AM",'
          '"Monday, 9 March 2026, 1:00 PM",\n'
          'Participant 813,"Bob Ray",ray@x.edu,"No submission",,10.00,Yes,-,-,\n')


def test_moodles_worksheet(tmp_path):
    assert read(tmp_path, MOODLE) == {("ann", ""): TEN, ("4711", ""): TEN.replace(day=2)}
    german = ("ID;Vollständiger Name;E-Mail-Adresse;Status;Zuletzt geändert (Abgabe);Zuletzt geändert (Bewertung)\n"
              "Teilnehmer/in4711;Cy;;x;Sonntag, 1. März 2026, 10:00;-\n;Ann Lee;;x;-;Sonntag, 1. März 2026, 10:00\n")
    assert read(tmp_path, german) == {("4711", ""): TEN}


def test_gradescopes_tables(tmp_path):
    of_one = ("First Name,Last Name,SID,Email,Sections,Total Score,Max Points,Status,Submission ID,Submission Time,"
              "Lateness (H:M:S),View Count,Submission Count\n"
              "Ann,Lee,,ann@x.edu,,1,2,Graded,5,2026-03-01 10:00:00 -0800,00:00:00,0,1\n"
              "Bob,Ray,,,,,2,Missing,,,,,\n")
    pacific = TEN.replace(tzinfo=timezone(timedelta(hours=-8)))
    assert read(tmp_path, of_one) == {("ann", ""): pacific}
    of_all = ("First Name,Last Name,SID,Email,Lab 2.1: Blocks,Lab 2.1: Blocks - Max Points,"
              "Lab 2.1: Blocks - Submission Time,Lab 2.1: Blocks - Lateness (H:M:S),Quiz - Submission Time,"
              "2-2 kv - Submission Time\n"
              "Bob,Ray,,,3,4,2026-03-01 10:00:00 -0800,0,2026-01-01 10:00:00 -0800,2026-03-01 10:00\n")
    found = times_in(tmp_path, of_all)
    assert {key: one.submitted for key, one in found.given.items()} == {("bob", "2.1"): pacific, ("bob", "2.2"): TEN}
    assert found.unused == ["1.csv, line 2: no lab is called 'quiz'."]


def test_canvas_tables(tmp_path):
    text = ("id,user_id,sis_user_id,assignment_name,submitted_at,attempt\n"
            "1,4711,,Lab 2.1 (blocks),2026-03-01T10:00:00Z,1\n2,4711,,Lab 2.1 (blocks),2026-03-02T10:00:00Z,2\n"
            "3,4711,,Lab 2.1 (blocks),2026-03-01T11:00:00Z,1\n4,9,ann,Essay,2026-03-01T10:00:00Z,1\n"
            "4711,8,,Lab 2.2,2026-03-01T10:00:00Z,1\n")
    found = times_in(tmp_path, text)
    assert {key: one.submitted for key, one in found.given.items()} == {
        ("4711", "2.1"): TEN.replace(day=2, tzinfo=timezone.utc)}
    assert found.unused == ["1.csv, line 5: no lab is called 'Essay'.",
                            "1.csv, line 6: no student '8' is graded here."]


def test_your_own_table(tmp_path):
    text = "student,lab,submitted\nann,2.1,2026-03-01 10:00\nBOB,block-allocator,2026-03-01 10:00\nann,2.2,\n"
    found = times_in(tmp_path, text)
    assert {key: (one.submitted, one.source, one.is_set) for key, one in found.given.items()} == {
        ("ann", "2.1"): (TEN, "1.csv, line 2", True), ("bob", "2.1"): (TEN, "1.csv, line 3", True)}
    assert found.of("ann", "2.1").submitted == TEN and found.of("ann", "2.2") is None
    later = times_in(tmp_path, text, MOODLE, text.replace("01 10", "07 10"))
    assert later.of("ann", "2.1").submitted == TEN.replace(day=7) and later.of("ann", "2.2").submitted == TEN


@pytest.mark.parametrize(("text", "words"), [
    ("student,lab,submitted\nann,2.1,soon\nbob,2.1,2026-03-01\n",
     r"1.csv, line 2: 'soon' is not a time(.|\n)*1.csv, line 3: '2026-03-01' is not a time"),
    ("student,lab,submitted\nann,2.1,2026-03-01 10:00\nAnn Lee,2.1,2026-03-02 10:00\n",
     "1.csv, line 3: an earlier line is for ann 2.1"),
    ("student,lab,time\nann,2.1,2026-03-01 10:00\n", "no column contains the time of submission; the columns are 's"),
    ("who,lab,submitted\nann,2.1,2026-03-01 10:00\n", "no column contains the student; the columns are 'who'"),
    ("student,lab,submitted\n", "has no rows"),
    ("Identifier,Last modified (submission)\nParticipant 999,later\n", "1.csv, line 2: 'later' is not a time")])
def test_a_table_that_cannot_be_meant_is_refused(tmp_path, text, words):
    with pytest.raises(LabError, match=words):
        times_in(tmp_path, text)


def test_names_have_a_time_only_where_the_platform_writes_it():
    assert label_of("Lab_ann_attempt_2026-03-01-10-00-00_starter.py", False).submitted == TEN
    assert label_of("Lab_ann_attempt_2026-13-01-10-00-00_starter.py", False).submitted is None
    tricky = label_of("Lab_ann_attempt_2026-03-01-10-00-00_x_bob_attempt_2020-01-01-00-00-00_starter.py", False)
    assert (tricky.keys, tricky.submitted) == (("ann",), TEN)
    for name in ("leeann_LATE_7_1_starter.py", "Ann Lee_7_assignsubmission_file_starter.py", "ann.py"):
        assert label_of(name, False).submitted is None
