"""When submissions were handed in, and what happens to several attempts."""

import json
import shutil
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from course.core.result import Attempt, LabResult, Outcome, in_order, in_zone
from course.grading.class_run.handed_in import HandedIn, with_new
from course.grading.class_run.plan import read_shard
from course.grading.class_run.store import Record, Store
from course.grading.class_run.test_class_run import Class
from course.grading.limits import Settings
from course.lab.lab import LabError

DAY = datetime(2026, 3, 1, 10)
#: As if the tests had changed: every stored result is outdated.
CHANGED = Settings("auto", 99.0)
ZONE = ZoneInfo("Europe/Berlin")


@pytest.fixture
def klass(tmp_path):
    return Class(tmp_path)


def table(klass, text, name="times.csv"):
    path = klass.submissions.parent / name
    path.write_text(text)
    return path


def attempts(klass, student="ann", lab="2.1"):
    """Return the points, or the outcome, of each attempt, and its day in March."""
    row = next(row for row in klass.exported if row.student == student)
    return [(one.result.points if one.result.outcome is Outcome.GRADED else one.result.outcome.value,
             one.submitted.day if one.submitted else None) for one in row.attempts.get(lab, ())]


def result_of(klass, student="ann", lab="2.1"):
    return next(row for row in klass.exported if row.student == student).labs[lab]


# ---- attempts, one call after the other


def test_a_second_download_adds_an_attempt_and_grades_only_that(klass):
    klass.hand_in(ann="right", bob="wrong")
    klass.grade(times=[table(klass, "student,lab,submitted\nann,2.1,2026-03-01 10:00\n")])
    klass.graded()
    klass.hand_in(ann="wrong now")
    times = table(klass, "student,lab,submitted\nann,2.1,2026-03-05T10:00:00+01:00\n")
    assert klass.grade(times=[times]) == 0 and klass.graded() == ["wrong now"]
    assert attempts(klass) == [(3, 1), (0, 5)] and attempts(klass, "bob") == [(0, None)]
    ann = klass.exported[0]
    assert result_of(klass).points == 0 and ann.submitted["2.1"].utcoffset() == timedelta(hours=1)
    assert [one.source for one in ann.attempts["2.1"]] == ["times.csv, line 2"] * 2
    assert klass.exported[1].submitted == {}
    before = klass.exported
    assert klass.grade() == 0 and klass.graded() == []  # times are stored
    assert klass.exported == before
    klass.hand_in(ann="right too")
    klass.grade()
    assert attempts(klass) == [(3, 1), (0, 5), (3, None)] and klass.exported[0].submitted == {}


def test_a_download_with_one_late_student_changes_no_other(klass):
    """Check also that the folders in that student's folder are not taken for those of others."""
    klass.hand_in(ann="right", bob="right b")
    roster = table(klass, "id\nann\nbob\nzoe\n", "roster.csv")
    klass.grade(roster=roster)
    klass.submissions = klass.submissions.with_name("late")
    klass.hand_in(**{"zoe": "right z", "zoe/ann": "wrong", "zoe/bob": "wrong"})
    assert klass.grade(roster=roster) == 1
    assert {row.student: row.points for row in klass.exported} == {"ann": 3, "bob": 3, "zoe": 0}
    assert [row.is_submitted for row in klass.exported] == [True, True, True]
    assert [(one.student, one.path) for one in klass.unclear] == [("zoe", "zoe/starter.py")]
    assert result_of(klass, "zoe").outcome is Outcome.GRADE_AGAIN


def test_an_earlier_text_handed_in_again_is_not_graded_again(klass):
    for text in ("right", "wrong", "right"):
        klass.hand_in(ann=text)
        klass.grade()
    assert klass.graded() == ["right", "wrong"]
    assert attempts(klass) == [(3, None), (0, None), (3, None)] and result_of(klass).points == 3
    assert (klass.out / "submitted/ann/2.1.py").read_text() == "right"


def test_an_old_download_without_its_table_adds_no_attempt(klass):
    klass.hand_in(ann="right")
    klass.grade(times=[table(klass, "student,lab,submitted\nann,2.1,2026-03-01 10:00\n")])
    old = klass.submissions.rename(klass.submissions.with_name("old"))
    klass.hand_in(ann="wrong")
    klass.grade(times=[table(klass, "student,lab,submitted\nann,2.1,2026-03-05 10:00\n")])
    before = klass.exported
    newer, klass.submissions = klass.submissions, old
    klass.graded()
    for _ in range(2):
        assert klass.grade() == 0 and klass.graded() == []
        assert attempts(klass) == [(3, 1), (0, 5)] and result_of(klass).points == 0
        assert (klass.out / "submitted/ann/2.1.py").read_text() == "wrong"
    assert klass.exported == before
    klass.grade(times=[table(klass, "student,lab,submitted\nann,2.1,2026-03-07 10:00\n")])  # … handed in again
    assert attempts(klass) == [(0, 5), (3, 7)] and result_of(klass).points == 3
    klass.submissions = newer
    klass.grade()
    assert attempts(klass) == [(0, 5), (3, 7)] and result_of(klass).points == 3 and klass.graded() == []


def test_a_download_that_is_older_than_the_last_one_read_is_graded_as_an_earlier_attempt(klass):
    late = "student,lab,submitted\nann,2.1,2026-03-05 10:00\n"
    early = late.replace("05 10", "01 10")
    klass.hand_in(ann="right")
    klass.grade(times=[table(klass, late)])
    klass.hand_in(ann="wrong before")
    assert klass.grade(times=[table(klass, early)]) == 0 and klass.graded() == ["right", "wrong before"]
    assert attempts(klass) == [(0, 1), (3, 5)] and result_of(klass).points == 3
    klass.hand_in(ann="")
    klass.grade(times=[table(klass, early.replace("01 10", "02 10"))])
    assert attempts(klass) == [(0, 1), ("unreadable", 2), (3, 5)] and result_of(klass).points == 3
    klass.grade(times=[table(klass, late.replace("05 10", "06 10"))])
    assert attempts(klass) == [(0, 1), (3, 5), ("unreadable", 6)] and result_of(klass).outcome is Outcome.UNREADABLE
    klass.hand_in(ann="right")
    klass.grade()
    assert result_of(klass).outcome is Outcome.UNREADABLE and result_of(klass).reason == "starter.py is empty."


def gradescope(klass, text, time):
    """Lay down a download from Gradescope, with the time of Ann's submission."""
    klass.hand_in(submission_1=text)
    lines = ["submission_1:", "  :submitters:", "  - :name: Ann", "    :sid: ann", f"  :created_at: {time}"]
    (klass.submissions / "submission_metadata.yml").write_text("\n".join(lines))


def test_a_table_counts_more_than_the_download_in_either_order(klass):
    pytest.importorskip("yaml")
    moodles = table(klass, 'Identifier,Last modified (submission)\nParticipant 7,"Tuesday, 3 March 2026, 10:00 AM"\n',
                    "platform.csv")
    roster = table(klass, "id,moodle\nann,7\n", "roster.csv")
    own = table(klass, "student,lab,submitted\nann,2.1,2026-03-04 10:00\n")
    for calls in ([[], [moodles]], [[moodles], []]):
        shutil.rmtree(klass.out, ignore_errors=True)
        gradescope(klass, "right", "2026-03-02 09:00")
        for times in [*calls, *calls]:
            klass.grade(times=times, platform="gradescope", roster=roster)
        assert attempts(klass) == [(3, 3)]
        gradescope(klass, "right", "2026-03-09 09:00")  # the same text, a second time
        klass.grade(platform="gradescope", roster=roster)
        assert attempts(klass) == [(3, 3), (3, 9)]
        gradescope(klass, "right", "2026-03-02 09:00")
    for times in ([own], [], [moodles]):
        klass.grade(times=times, platform="gradescope", roster=roster)
        assert attempts(klass) == [(3, 4)]
    assert klass.exported[0].attempts["2.1"][0].source == "times.csv, line 2"


def test_gradescope_has_the_time_of_each_submission(klass):
    pytest.importorskip("yaml")
    for text, time in (("right", "2026-03-07 08:00:00.5 Z"), ("wrong", "2026-03-03 08:00:00 -0800")):
        gradescope(klass, text, time)
        assert klass.grade(platform="gradescope") == 0
    assert attempts(klass) == [(0, 3), (3, 7)] and result_of(klass).points == 3
    assert klass.exported[0].attempts["2.1"][1].source == "submission_metadata.yml"


def test_a_submission_that_cannot_be_read_and_one_that_is_gone(klass):
    klass.hand_in(ann="right", bob="right b")
    klass.grade()
    klass.hand_in(ann="")
    klass.grade()
    assert attempts(klass) == [(3, None), ("unreadable", None)] and result_of(klass).points == 0
    (klass.submissions / "ann/starter.py").unlink()
    klass.grade()
    assert attempts(klass) == [(3, None), ("unreadable", None)]  # nothing new was handed in
    assert result_of(klass).outcome is Outcome.UNREADABLE and not (klass.out / "submitted/ann/2.1.py").exists()
    klass.grade(settings=CHANGED)
    assert attempts(klass) == [(3, None), ("unreadable", None)]  # it has no text that could be graded again
    klass.grade()
    klass.graded()
    klass.hand_in(ann="right")
    klass.grade()
    assert klass.graded() == [] and result_of(klass).points == 3


def test_all_attempts_are_graded_again_when_the_tests_changed(klass):
    for text in ("wrong", "right"):
        klass.hand_in(ann=text)
        klass.grade()
    klass.graded()
    assert klass.grade(settings=CHANGED) == 0
    assert klass.graded() == ["right", "wrong"] and attempts(klass) == [(0, None), (3, None)]
    assert klass.grade(settings=CHANGED) == 0 and klass.graded() == []


def test_an_attempt_that_is_not_graded_yet_says_so(klass):
    klass.hand_in(ann="right", bob="right b")
    klass.grade()
    klass.hand_in(ann="wrong now")
    klass.grade(only=["bob"], times=[table(klass, "student,lab,submitted\nann,2.1,2026-03-05 10:00\n")])
    assert attempts(klass) == [(3, None)]  # the time is that of a file that was not read
    mine, others = sorted(("1/2", "2/2"), key=lambda shard: not read_shard(shard).has("ann", "2.1"))
    klass.grade(shard=mine)
    assert attempts(klass) == [(3, None), (0, None)]
    klass.grade(shard=others, settings=CHANGED)
    assert attempts(klass) == [("grade again", None)] * 2
    klass.grade(shard=mine, settings=CHANGED)
    assert attempts(klass) == [(3, None), (0, None)]


def test_an_earlier_attempt_without_a_score_is_not_tried_in_every_call(klass):
    klass.hand_in(ann="busy")
    assert klass.grade() == 1
    klass.hand_in(ann="right")
    assert klass.grade() == 0 and klass.graded() == ["right"]
    assert attempts(klass) == [("grade again", None), (3, None)]
    assert klass.grade() == 0 and "(none new)" in klass.said
    assert klass.grade(regrade=["ann"]) == 0 and klass.graded() == ["right"] and "(2 now" in klass.said


# ---- times from tables


def test_the_files_own_dates_are_never_used(klass):
    klass.hand_in(ann="right")
    assert (klass.submissions / "ann/starter.py").stat().st_mtime
    klass.grade()
    assert attempts(klass) == [(3, None)]


def test_a_time_for_a_lab_of_an_earlier_call_reaches_it(klass):
    klass.hand_in(ann="right")
    klass.grade()
    klass.grade(labs=["2.2"], times=[table(klass, "student,lab,submitted\nann,2.1,2026-03-04 10:00\n")])
    assert attempts(klass) == [(3, 4)] and attempts(klass, lab="2.2") == [(3, None)]


def test_your_own_table_corrects_a_platforms(klass):
    klass.hand_in(ann="right")
    moodle = table(klass, 'Identifier,Last modified (submission)\nParticipant 7,"Sunday, 1 March 2026, 10:00 AM"\n',
                   "moodle.csv")
    roster = table(klass, "id,moodle\nann,7\n", "roster.csv")
    own = table(klass, "student,lab,submitted\nann,2.1,2026-03-04 10:00\n")
    for times, day in ((moodle, 1), (own, 4), (moodle, 4)):
        klass.grade(times=[times], roster=roster)
        assert attempts(klass) == [(3, day)]


def test_a_misspelt_student_in_your_own_table_is_an_error_if_the_roster_is_known(klass):
    klass.hand_in(ann="right")
    roster = table(klass, "id\nann\nbob\n", "roster.csv")
    times = table(klass, "student,lab,submitted\nanne,2.1,2026-03-04 10:00\nbobb,2.1,2026-03-04 10:00\n")
    with pytest.raises(LabError) as error:
        klass.grade(times=[times], roster=roster)
    assert str(error.value).splitlines() == [
        f"{times}, line 2: no student 'anne' is graded here. Did you mean ann?",
        f"{times}, line 3: no student 'bobb' is graded here. Did you mean bob?"]
    assert not klass.out.exists()
    assert klass.grade(times=[times]) == 0  # without a roster the others may hand in later
    assert "times.csv, line 2: no student 'anne' is graded here. Did you mean ann?" in klass.said
    moodle = table(klass, "Identifier,Last modified (submission)\nanne,2026-03-03 10:00\n", "moodle.csv")
    assert klass.grade(times=[moodle], roster=roster) == 0 and "Did you mean ann?" in klass.said


def test_times_of_others_are_listed_and_a_malformed_one_ends_the_call(klass):
    klass.hand_in(ann="right")
    klass.grade()
    before = json.loads((klass.out / "results/ann/2.1.json").read_text())
    klass.grade(times=[table(klass, "student,lab,submitted\nzoe,2.1,2026-03-04 10:00\nann,9.9,2026-03-04 10:00\n")])
    assert "Times that were not used, because they fit no student or lab: 2" in klass.said
    assert "times.csv, line 2: no student 'zoe' is graded here." in klass.said
    assert "times.csv, line 3: no lab is called '9.9'." in klass.said
    klass.hand_in(ann="right now")
    bad = table(klass, "student,lab,submitted\nann,2.1,2026-03-04 10:00\nann,2.2,3/4/2026 10:00\n")
    with pytest.raises(LabError, match=r"times.csv, line 3: '3/4/2026 10:00' is not a time .* write it like 2026"):
        klass.grade(times=[bad])
    assert json.loads((klass.out / "results/ann/2.1.json").read_text()) == before and attempts(klass) == [(3, None)]


# ---- small parts


A, B = HandedIn("a"), HandedIn("b")


def at(one, day, is_set=False):
    return replace(one, submitted=DAY.replace(day=day), source="s", is_set=is_set)


def loaded(one, day, day_in_table=None):
    """Return an attempt of a download with times, perhaps with another time from a platform's table."""
    return replace(at(one, day_in_table or day), in_download=DAY.replace(day=day))


@pytest.mark.parametrize(("known", "new", "expected"), [
    ([], [A, B], [A, B]),
    ([A, B], [A, B], [A, B]),
    ([A], [B], [A, B]),
    ([A, B], [A], [A, B, A]),
    ([B], [A, B], [A, B]),
    ([A], [at(A, 1)], [at(A, 1)]),
    ([at(A, 1)], [A], [at(A, 1)]),
    ([at(A, 1)], [at(A, 1)], [at(A, 1)]),
    ([at(A, 1)], [at(A, 3)], [at(A, 1), at(A, 3)]),
    ([at(A, 1), at(A, 3)], [at(A, 2, True)], [at(A, 2, True)]),
    ([at(A, 2, True)], [at(A, 3)], [at(A, 2, True)]),
    ([A, B, A], [at(A, 3)], [A, B, at(A, 3)]),
    ([at(A, 1), at(B, 3)], [A], [at(A, 1), at(B, 3)]),
    ([A, at(B, 3)], [A], [A, at(B, 3)]),
    ([at(B, 3)], [at(A, 1)], [at(A, 1), at(B, 3)]),
    ([at(A, 1)], [loaded(A, 3)], [at(A, 1)]),
    ([loaded(A, 3)], [at(A, 1)], [at(A, 1)]),
    ([loaded(A, 3)], [loaded(A, 3, 4)], [loaded(A, 3, 4)]),
    ([loaded(A, 3, 4)], [loaded(A, 3)], [loaded(A, 3, 4)]),
    ([loaded(A, 3, 4)], [loaded(A, 5)], [loaded(A, 3, 4), loaded(A, 5)]),
    ([loaded(A, 1), loaded(A, 3)], [loaded(A, 3, 4)], [loaded(A, 1), loaded(A, 3, 4)]),
    ([at(A, 2, True)], [loaded(A, 3)], [at(A, 2, True)]),
    ([A], [loaded(A, 3)], [loaded(A, 3)]),
])
def test_new_information_changes_the_list_once(known, new, expected):
    assert with_new(known, new) == expected
    assert with_new(expected, new) == expected
    assert [HandedIn.from_json(json.loads(json.dumps(one.to_json()))) for one in expected] == expected


def test_attempts_are_ordered_by_their_times_if_all_are_known():
    def attempt(submitted):
        return Attempt(LabResult("2.1", Outcome.GRADED), submitted)

    at_noon_utc = attempt(datetime(2026, 3, 1, 12, tzinfo=timezone.utc))
    naive = attempt(datetime(2026, 3, 1, 12, 30))  # half past eleven UTC in Berlin
    assert in_order([at_noon_utc, naive], ZONE) == [naive, at_noon_utc]
    assert in_order([at_noon_utc, naive], timezone.utc) == [at_noon_utc, naive]
    unknown = attempt(None)
    assert in_order([at_noon_utc, unknown, naive], ZONE) == [at_noon_utc, unknown, naive]
    assert in_zone(None, ZONE) is None and in_zone(naive.submitted, ZONE).utcoffset() == timedelta(hours=1)
    assert in_zone(at_noon_utc.submitted, ZONE) == at_noon_utc.submitted


def test_results_of_a_version_without_attempts_are_read(tmp_path):
    store = Store(tmp_path)
    fields = json.loads(Record("ann", LabResult("2.1", Outcome.GRADED, file_sha256="ab" * 32)).to_json())
    del fields["file_sha256"]
    path = tmp_path / "results/ann/2.1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(fields))
    assert store.handed_in("ann", "2.1") == [HandedIn("ab" * 32)]
    assert store.get_attempt("ann", "2.1", "ab" * 32).result.outcome is Outcome.GRADED
    assert store.handed_in("ann", "2.2") == []
