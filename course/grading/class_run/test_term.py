"""A made-up class of 30, from downloads to marks. Every total was computed by hand, next to it."""

import contextlib
import csv
import functools
import io
import json
import re
import sys
import textwrap

import jsonschema
import pytest

from course.cli import main
from course.grading.class_run import command
from course.grading.class_run.command import ClassGrader
from course.lab.lab import PROJECT_ROOT
from course.lab.starters import make_starter
from course.pytest_run.provenance import SandboxInfo

LABS = {"1.1": "phase-01-one/labs/lab-01-first", "1.2": "phase-01-one/labs/lab-02-second",
        "2.1": "phase-02-two/labs/lab-01-third", "2.2": "phase-02-two/labs/lab-02-fourth"}
#: Each lab has four functions, a to d. Their tests are worth 2, 3, 5 and 10 points; a and b are task 1, c is task 2,
#: and d is task 3. Lab 2.1 has a hidden test of a fifth function h, for 4 points.
TESTS = (("a", 1, 2), ("b", 1, 3), ("c", 2, 5), ("d", 3, 10))
GRADEBOOK = """
timezone = "Europe/Berlin"
total_cap_percent = 105

[late]
per = "day"
percent = 15
grace = "15 minutes"
floor_percent = 50
cutoff = "5 days"

[labs."1.1"]            # a 4, b 6, c 5, d 10 as extra credit: 15 points, with extra credit at most 20
deadline = 2026-10-24T23:59:00
tasks = { 1 = 10 }
extra_credit = { tasks = [3] }
cap = 20

[labs."1.2"]            # a 10, b 15, c 25, d 50
deadline = 2026-11-09T23:59:00+01:00
points = 100
attempts = "best"
late = { per = "hour", points = 2.5, floor_percent = 20 }

[labs."2.1"]            # a 2, b 3, c 5, d 10, h 4, and all of it is extra credit
extra_credit = true

[labs."2.2"]            # a 2, b 3, c 5, d 10
deadline = 2026-12-01T12:00:00

[students.hana]
extensions = { "1.1" = "2 days" }
[students.ida]
extensions = { all = "1 day" }
[students.jan]
extensions = { "1.1" = 2026-10-31T12:00:00 }
[students.kim]
excused = ["1.2"]
[students.lea]
excused = ["1.1"]
[students.bea]
excused = ["1.1"]
[students.yan]
extensions = { "2.2" = "1 day" }

[[groups]]
members = ["will", "xena"]
labs = ["2.2"]
[[groups]]
members = ["yan", "zoe"]
labs = ["2.2"]
"""
OVERRIDES = "student,lab,points,reason\nabe,1.2,80,oral exam\nbea,1.1,12,shown in class\n"
COMMENTS = "student,lab,comment\nann,1.1,A clear solution.\nrosa,,Please come to see me.\n"

#: What a student handed in for each lab, and when, in Berlin. Most do the following.
USUAL = {"1.1": [("abc", "2026-10-24 20:00")], "1.2": [("abcd", "2026-11-09 12:00")], "2.1": [],
         "2.2": [("abcd", "2026-11-30 12:00")]}
#: The others differ in some labs.
OTHERS = {
    "bob": {"1.1": [("abc", "2026-10-25 00:14")]},
    "cora": {"1.1": [("abc", "2026-10-25 00:15")]},
    "dan": {"1.1": [("abc", "2026-10-25 23:59")]},
    "eve": {"1.1": [("abc", "2026-10-25 23:59:01")]},
    "finn": {"1.1": [("abc", "2026-10-29 23:00")]},
    "gus": {"1.1": [("abc", "2026-10-30 00:00")]},
    "hana": {"1.1": [("abc", "2026-10-26 23:00")]},
    "ida": {"1.1": [("abc", "2026-10-26 10:00")], "2.2": [("abcd", "2026-12-02 11:00")]},
    "jan": {"1.1": [("abc", "2026-10-31 11:00")]},
    "kim": {"1.2": []},
    "lea": {"1.1": [("a", "2026-10-24 20:00")]},
    "max": {"1.1": [("abcd", "2026-10-24 20:00")]},
    "nina": {"1.1": [("abcd", "2026-10-24 20:00")], "2.1": [("abcd", "")]},
    "omar": {"1.1": [("abcd", "2026-10-25 10:00")]},
    "pia": {"2.1": [("ah", "")]},
    "quin": {"1.1": []},
    "rosa": {"1.1": [], "1.2": [], "2.2": []},
    "sam": {"1.2": [("ab", "2026-11-09 12:00"), ("abcd", "2026-11-10 10:29")]},
    "tess": {"1.2": [("abc", "2026-11-09 12:00"), ("abcd", "2026-11-11 08:59")]},
    "uma": {"1.1": [("abc", "2026-10-24 20:00"), ("ab", "2026-10-25 10:00")]},
    "vic": {"1.1": [("abc", "")]},
    "will": {}, "xena": {"2.2": []},
    "yan": {"2.2": []}, "zoe": {"2.2": [("abcd", "2026-12-02 11:00")]},
    "abe": {"1.2": [("ab", "2026-11-12 12:00")]},
    "bea": {"1.1": []},
    "cal": {"1.2": [("busy", "2026-11-09 12:00")]},
    "dia": {"1.1": [("", "2026-10-24 20:00")]},
}
CLASS = {student: {**USUAL, **OTHERS.get(student, {})} for student in ("ann", *OTHERS)}
#: Points of 1.1, 1.2, 2.1 and 2.2, the total, and the student's maximum. The maximum is 15 + 100 + 0 + 20 = 135.
BY_HAND = {
    "ann": ("15", "100", "0", "20", "135", "135"),        # 4 + 6 + 5 in 1.1
    "bob": ("15", "100", "0", "20", "135", "135"),        # 15 minutes late: the grace period
    "cora": ("12.75", "100", "0", "20", "132.75", "135"),  # 16 minutes late: 1 day, 15 − 15 % = 15 − 2.25
    "dan": ("12.75", "100", "0", "20", "132.75", "135"),  # 25 hours late, but the same time on the next day: 1 day
    "eve": ("10.5", "100", "0", "20", "130.5", "135"),    # a second more: 2 days, 15 − 4.50
    "finn": ("7.5", "100", "0", "20", "127.5", "135"),    # 5 days would cost 75 %; half of 15 is kept
    "gus": ("0", "100", "0", "20", "120", "135"),         # a minute after the cut-off of 5 days
    "hana": ("15", "100", "0", "20", "135", "135"),       # an extension of 2 days, until 26 October, 23:59
    "ida": ("12.75", "100", "0", "20", "132.75", "135"),  # 1 day for all labs: 1.1 still 1 day late, 2.2 on time
    "jan": ("15", "100", "0", "20", "135", "135"),        # a deadline of her own
    "kim": ("15", "", "0", "20", "35", "35"),             # excused: 1.2 counts nowhere, 135 − 100
    "lea": ("", "100", "0", "20", "120", "120"),          # excused, though something was handed in: 135 − 15
    "max": ("20", "100", "0", "20", "140", "135"),        # 25 points with extra credit, the cap is 20
    "nina": ("20", "100", "20", "20", "141.75", "135"),   # 160, but at most 105 % of 135 = 141.75
    "omar": ("17", "100", "0", "20", "137", "135"),       # the cap first: 20 − 15 % of 20
    "pia": ("15", "100", "6", "20", "141", "135"),        # extra credit: 2 + 4 for the hidden test
    "quin": ("0", "100", "0", "20", "120", "135"),        # not handed in
    "rosa": ("0", "0", "0", "0", "0", "135"),             # nothing at all
    "sam": ("15", "72.5", "0", "20", "107.5", "135"),     # best of 25 and 100 − 11 · 2.50 (10 h 30 min late)
    "tess": ("15", "50", "0", "20", "85", "135"),         # best of 50 and 100 − 33 · 2.50, but 20 % kept, so 20
    "uma": ("8.5", "100", "0", "20", "128.5", "135"),     # the last counts: 10 − 1.50, not 15
    "vic": ("15", "100", "0", "20", "135", "135"),        # the time is not known
    "will": ("15", "100", "0", "20", "135", "135"),
    "xena": ("15", "100", "0", "20", "135", "135"),       # Will's file counts for both
    "yan": ("15", "100", "0", "20", "135", "135"),        # Zoe's file counts for both; he has an extension
    "zoe": ("15", "100", "0", "17", "132", "135"),        # 23 hours late: 20 − 3
    "abe": ("15", "80", "0", "20", "115", "135"),         # an override, to which no penalty applies
    "bea": ("12", "100", "0", "20", "132", "135"),        # an override wins over an excuse
    "cal": ("15", "", "0", "20", "", "135"),              # 1.2 must be graded again: no total
    "dia": ("0", "100", "0", "20", "120", "135"),         # an empty file
}
#: Grades by reading the file instead of running it.
STAND_IN = """
    import re, sys
    sys.path.insert(0, {root!r})
    from course.grading.class_run import worker
    from course.core.result import LabResult, Outcome, Verdict
    from course.lab.graded_tests import graded_tests, hidden_graded_tests

    def grade(lab, path, settings):
        text = path.read_text()
        with open({log!r}, "a") as log:
            log.write(lab.number + "\\n")
        if "busy" in text:
            return LabResult(lab.number, Outcome.GRADE_AGAIN, reason="busy")
        right = set(re.findall(r"def (\\w)_\\w+[(]", text))
        tests = [test.result(Verdict(test.name[-1] in right), is_hidden) for is_hidden, tests in
                 ((False, graded_tests(lab)), (True, hidden_graded_tests(lab, settings.hidden))) for test in tests]
        return LabResult(lab.number, Outcome.GRADED, tuple(tests), sandbox="none")

    worker.remark_on = lambda lab, content: ""
    worker.serve(grade)
"""
LEVEL = SandboxInfo("none", True, ("Anything.",))


def function(letter, lab):
    return f"{letter}_{lab.replace('.', '_')}"


def text_of(letters, lab):
    """Return a file with these functions right. Each lab has its own names for them."""
    if letters == "busy":
        return "# busy\n"
    return "".join(f"def {function(letter, lab)}():\n    return {letter!r}\n\n\n" for letter in letters)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def a_test(letter, lab, task, points):
    name = f"test_task_{task}_{letter}" if task else f"test_{letter}"
    call = f"lab.{function(letter, lab)}()"
    return f"@pytest.mark.points({points})\ndef {name}(lab):\n    assert {call} == {letter!r}\n\n\n"


def lay_down_course(root):
    (root / ".course").mkdir(parents=True)
    (root / ".course/course.json").write_text("{}")
    for lab, place in LABS.items():
        folder = root / place
        folder.mkdir(parents=True)
        (folder / "lab.json").write_text(json.dumps({"title": f"Lab {lab}", "engine": []}))
        solution = "".join(f"def {function(letter, lab)}():\n    # TASK {task}: {letter}\n    return {letter!r}\n"
                           f"    # END TASK\n\n\n" for letter, task, _ in TESTS)
        (folder / "solution.py").write_text(solution)
        (folder / "starter.py").write_text(make_starter(solution)[0])
        (folder / "test_lab.py").write_text("import pytest\n\n\n" + "".join(
            a_test(letter, lab, task, points) for letter, task, points in TESTS))
    hidden = root.parent / "hidden/2.1"
    hidden.mkdir(parents=True)
    (hidden / "test_hidden.py").write_text("import pytest\n\n\n" + a_test("h", "2.1", None, 4))


class Term:
    """The downloads of a class, and calls of the real command with a stand-in for the worker."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.out, self.log = folder, folder / "grades", folder / "log.txt"
        lay_down_course(folder / "course")
        monkeypatch.chdir(folder / "course")
        stand_in = folder / "stand_in.py"
        stand_in.write_text(textwrap.dedent(STAND_IN).format(root=str(PROJECT_ROOT), log=str(self.log)))
        monkeypatch.setattr(command, "ClassGrader", functools.partial(
            ClassGrader, command=[sys.executable, str(stand_in)], level_of=lambda _: LEVEL))
        self.roster = folder / "class.csv"
        self.roster.write_text("id,name,moodle,canvas\n" + "".join(
            f"{student},{student.title()} Example,{1000 + i},{200 + i}\n" for i, student in enumerate(CLASS)))
        self.out.mkdir()

    def write(self, name, text):
        (self.out / name).write_text(text)

    def grade(self, submissions, lab, *more):
        return main(["grade", str(submissions), "--out", str(self.out), "--lab", lab, "--roster", str(self.roster),
                     "--hidden", str(self.folder / "hidden"), "--jobs", "1", *map(str, more)])

    def preview(self, gradebook=None, *more):
        """Return what --preview prints, with the gradebook in the folder or another one."""
        if gradebook is not None:
            (self.folder / "other.toml").write_text(gradebook)
            more = [*more, "--gradebook", self.folder / "other.toml"]
        with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "250")
            assert self.grade(self.folder / "collected", "2.2", "--preview", *more) == 0
        return shown.getvalue()

    def num_graded(self):
        """Return the number of files that were graded since the last call."""
        number = len(self.log.read_text().split()) if self.log.exists() else 0
        self.log.unlink(missing_ok=True)
        return number

    def rows(self):
        with open(self.out / "grades.csv", newline="", encoding="utf-8") as file:
            return {row["student"]: row for row in csv.DictReader(file)}

    def totals(self):
        return {student: (*(row[f"{lab} points"] for lab in LABS), row["total"], row["max"])
                for student, row in self.rows().items()}

    def files(self):
        return {path.relative_to(self.out): path.read_bytes() for path in self.out.rglob("*") if path.is_file()}

    def download_moodle(self, number):
        """Write Moodle's download of lab 1.1, with the latest of the first attempts, and its table of times."""
        path, table = self.folder / f"moodle{number}", self.folder / f"moodle{number}.csv"
        rows = ["Identifier,Full name,Status,Last modified (submission)"]
        for i, (student, labs) in enumerate(CLASS.items()):
            for letters, time in labs["1.1"][:number][-1:]:
                name = f"{student.title()} Example"
                write(path / f"{name}_{1000 + i}_assignsubmission_file_/starter.py", text_of(letters, "1.1"))
                rows.append(f"Participant {1000 + i},{name},Submitted for grading,{time or '-'}")
        table.write_text("\n".join(rows))
        return path, "1.1", "--platform", "moodle", "--times", table

    def download_gradescope(self, number):
        """Write Gradescope's download of lab 1.2, with the latest of the first attempts."""
        folder, lines = self.folder / f"gradescope{number}", []
        for i, (student, labs) in enumerate(CLASS.items()):
            for letters, time in labs["1.2"][:number][-1:]:
                write(folder / f"submission_{i}/starter.py", text_of(letters, "1.2"))
                lines += [f"submission_{i}:", "  :submitters:", f"  - :name: {student.title()} Example",
                          f"    :sid: {student}", f"  :created_at: {time}:00 +0100"]
        (folder / "submission_metadata.yml").write_text("\n".join(lines))
        return folder, "1.2", "--platform", "gradescope"

    def download_canvas(self):
        folder = self.folder / "canvas"
        folder.mkdir()
        for i, (student, labs) in enumerate(CLASS.items()):
            for letters, _ in labs["2.1"]:
                (folder / f"example{student}_{200 + i}_{900 + i}_starter.py").write_text(text_of(letters, "2.1"))
        return folder, "2.1", "--platform", "canvas"

    def collect(self):
        folder, rows = self.folder / "collected", ["student,lab,submitted"]
        for student, labs in CLASS.items():
            for letters, time in labs["2.2"]:
                (folder / student).mkdir(parents=True)
                (folder / student / "2.2.py").write_text(text_of(letters, "2.2"))
                rows.append(f"{student},2.2,{time}")
        (self.folder / "times.csv").write_text("\n".join(rows))
        return folder, "2.2", "--times", self.folder / "times.csv"


@pytest.fixture(scope="module")
def term(tmp_path_factory):
    """Grade the whole term once: first without a gradebook, then with one, which is added afterwards."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        term = Term(tmp_path_factory.mktemp("term"), monkeypatch)
        downloads = [term.download_moodle(1), term.download_moodle(2), term.download_gradescope(1),
                     term.download_gradescope(2), term.download_canvas(), term.collect()]
        term.statuses = [term.grade(*download) for download in downloads]
        term.plain, term.num_at_first = term.rows(), term.num_graded()
        for name, text in (("gradebook.toml", GRADEBOOK), ("overrides.csv", OVERRIDES), ("comments.csv", COMMENTS)):
            term.write(name, text)
        term.before = term.files()
        term.first_preview = term.preview()
        term.after_preview = term.files()
        term.status = term.grade(term.folder / "collected", "2.2")
        term.num_again = term.num_graded()
        yield term


def of_student(term, student, name):
    return (term.out / "students" / student / name).read_text(encoding="utf-8")


def test_every_total_of_a_class_of_30_is_as_computed_by_hand(term):
    assert len(CLASS) == 30 == len(BY_HAND)
    wrong = {student: (row, BY_HAND[student]) for student, row in term.totals().items() if row != BY_HAND[student]}
    assert not wrong
    assert list(term.totals()) == sorted(BY_HAND)


def test_a_gradebook_grades_no_file_again(term):
    assert term.statuses == [1, 1, 1, 1, 0, 0]  # Dia's file of lab 1.1 is empty, Cal's of 1.2 must be graded again
    # 26 files of 1.1 (Dia's is empty), and Uma's second; 28 of 1.2, the second ones of Sam and Tess, and Cal's three
    # more times, once with each download and once after it; 2 of 2.1; 27 of 2.2.
    assert term.num_at_first == 26 + 1 + 28 + 2 + 3 + 2 + 27
    assert (term.status, term.num_again) == (0, 0)


def test_without_a_gradebook_nothing_is_new(term):
    assert not [name for name in term.plain["ann"] if name.endswith((" late", " penalty", " how", " comment"))]
    ann = term.plain["ann"]
    assert (ann["1.1 points"], ann["1.1 max"], ann["total"], ann["max"]) == ("10", "20", "50", "84")
    assert term.plain["uma"]["1.1 points"] == "5"  # the newest download


def test_the_preview_shows_every_change_and_writes_nothing(term):
    assert term.before == term.after_preview
    lines = term.first_preview.splitlines()
    assert "30 of 30 students are affected" in lines[-1] and "Nothing was written" in lines[-1]
    (ann,) = [line for line in lines if line.startswith("ann ") and " total " in line]
    assert re.search(r"50 of 84 +135 of 135", ann)


def test_a_second_preview_shows_only_what_changed(term):
    changed = GRADEBOOK.replace("deadline = 2026-10-24T23:59:00", "deadline = 2026-10-25T00:01:00")
    shown = term.preview(changed)
    rows = [line.split() for line in shown.splitlines()[1:-1]]
    # The grace period ends at 0:16, so Cora is on time. The lab closes at 0:01 on 30 October, so Gus is not too late.
    assert {(row[0], row[1]) for row in rows if row[0] in CLASS} == {
        (student, what) for student in ("cora", "eve", "gus") for what in ("1.1", "total")}
    (cora,) = [line for line in shown.splitlines() if line.startswith("cora ") and " 1.1 " in line]
    # The deadline is the same for all three, and is printed once.
    assert re.search(r"12\.75 of 15 +15 of 15 +within the grace of 15 minutes, so lateness costs nothing *$", cora)
    assert "Lab 1.1, for all 3 students above: deadline 2026-10-25 00:01:00+02:00." in shown
    (eve,) = [line for line in shown.splitlines() if line.startswith("eve ") and " 1.1 " in line]
    assert eve.strip().endswith("late: 1 day started after the deadline: 1 × 15 % of 15 points = 2.25 points off")
    assert "3 of 30 students are affected: 3 get a larger share of the maximum, 0 a smaller one." in shown
    assert "Nothing changes for the 30 students." in term.preview(GRADEBOOK + "\n# a comment\n")


def test_a_preview_of_another_maximum_says_so(term):
    changed = GRADEBOOK.replace("points = 100", "points = 90").replace('excused = ["1.2"]', 'excused = ["2.2"]')
    shown = term.preview(changed)
    assert "Lab 1.2: the maximum changes from 100 to 90." in shown and "Lab 2.2: the maximum" not in shown
    (kim,) = [line for line in shown.splitlines() if line.startswith("kim ") and " 1.2 " in line]
    assert re.search(r"– of 0 +0 of 90 +no longer: excused", kim)
    assert re.search(r"kim +2\.2 +20 of 20 +– of 0 +excused", shown)


def test_a_preview_shows_changed_comments_and_overrides(term, tmp_path):
    (tmp_path / "comments.csv").write_text(COMMENTS.replace("clear", "very clear"))
    (tmp_path / "overrides.csv").write_text("student,lab,points,reason\nabe,1.2,90,another oral exam\n")
    lines = term.preview(None, "--comments", tmp_path / "comments.csv", "--overrides", tmp_path / "overrides.csv")
    assert re.search(r"ann +1\.1 +15 of 15 +15 of 15 +comment changed", lines)
    assert re.search(r"abe +1\.2 +80 of 100 +90 of 100 +override: another oral exam", lines)
    assert re.search(r"bea +1\.1 +12 of 15 +– of 0 +the override was removed; excused", lines)
    assert "3 of 30 students are affected" in lines


def test_a_preview_says_why_something_was_removed(term, tmp_path):
    changed = GRADEBOOK.replace('[students.lea]\nexcused = ["1.1"]', '[students.lea]\nextensions = { "1.1" = "1 day" }')
    (tmp_path / "comments.csv").write_text("student,lab,comment\nann,2.2,New.\n")
    shown = term.preview(changed, "--comments", tmp_path / "comments.csv")
    assert re.search(r"lea 1\.1 – of 0 4 of 15 .*extension.*; no longer: excused: the lab", " ".join(shown.split()))
    assert re.search(r"ann +1\.1 .*comment removed", shown) and re.search(r"ann +2\.2 .*comment added", shown)
    assert re.search(r"rosa .*comment removed", shown)


def test_a_preview_cuts_no_reason_and_says_what_it_ignores(term, tmp_path):
    changed = GRADEBOOK.replace('"1.1" = "2 days"', '"1.1" = "1 minute"').replace("percent = 15", "percent = 40.1234")
    (tmp_path / "times.csv").write_text("student,lab,submitted\nann,2.2,2027-01-01 12:00\n")
    reason = "medical certificate " * 40
    (tmp_path / "overrides.csv").write_text(f"student,lab,points,reason\nann,1.1,3,{reason}\n")
    shown = term.preview(changed, "--times", tmp_path / "times.csv", "--overrides", tmp_path / "overrides.csv")
    assert "more characters" not in shown and shown.count("certificate") == 40
    assert "it ignores --times and new files of the download." in shown
    assert "the tests have other points" in term.preview(GRADEBOOK.replace("tasks = { 1 = 10 }", "tasks = { 1 = 8 }"))


def test_grades_csv_says_how_a_mark_came_about(term):
    rows = term.rows()
    eve, sam, vic = rows["eve"], rows["sam"], rows["vic"]
    assert [eve[f"1.1 {name}"] for name in ("submitted", "deadline", "late", "penalty", "attempt", "how")] == [
        "2026-10-25 23:59:01+01:00", "2026-10-24 23:59:00+02:00", "2 days", "4.5", "",
        "extra credit for task 3: up to 5 points beyond the maximum | "
        "late: 2 days started after the deadline: 2 × 15 % of 15 points = 4.5 points off"]
    assert (sam["1.2 attempt"], sam["1.2 late"], sam["1.2 penalty"]) == ("2 of 2", "11 hours", "27.5")
    assert vic["1.1 flags"] == "the time of submission is not known, so lateness costs nothing"
    assert rows["kim"]["1.2 how"].startswith("excused") and rows["kim"]["1.2 max"] == "0"
    assert "handed in by will for the group" in rows["xena"]["2.2 how"] and rows["xena"]["submitted"] == "yes"
    assert rows["ann"]["1.1 comment"] == "A clear solution." and rows["rosa"]["comment"] == "Please come to see me."


def documented(title):
    text = (PROJECT_ROOT / "docs/grading-formats.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", text.partition(f"\n## {title}\n")[2].partition("\n## ")[0], re.M)


def test_grades_csv_has_its_documented_columns(term):
    head = [name.replace("1.1", "LAB") for name in term.rows()["ann"] if not name.startswith(("1.2", "2."))]
    columns = [name for name in documented("`grades.csv`") if name != "LAB score"]  # these labs have none
    place = columns.index("total")
    columns[place:place] = [*documented("`grades.csv`, with a gradebook"), "LAB comment"]
    assert head == [*columns, "comment"]


def test_the_files_for_gradescope_validate_with_a_gradebook(term):
    text = (PROJECT_ROOT / "docs/grading-formats.md").read_text(encoding="utf-8")
    schema = json.loads(text.partition("\n## `results.json`\n")[2].partition("```json\n")[2].partition("```")[0])
    for student in CLASS:
        jsonschema.validate(json.loads(of_student(term, student, "results.json")), schema)


def test_the_tables_for_platforms_contain_times_and_penalties(term):
    with open(term.out / "nbgrader.csv", newline="") as file:
        rows = {(row["student_id"], row["assignment"]): row for row in csv.DictReader(file)}
    eve, kim, jan = rows["eve", "lab-1.1"], rows["kim", "lab-1.2"], rows["jan", "lab-1.1"]
    assert (eve["duedate"], eve["timestamp"]) == ("2026-10-24 21:59:00", "2026-10-25 22:59:01")  # in UTC
    assert [eve[name] for name in ("raw_score", "late_submission_penalty", "score", "max_score")] == [
        "15", "4.5", "10.5", "15"]
    assert (kim["raw_score"], kim["score"]) == ("", "") and jan["duedate"] == eve["duedate"]
    with open(term.out / "canvas.csv", newline="") as file:
        canvas = {row["SIS Login ID"]: list(row.values())[5:] for row in csv.DictReader(file)}
    assert canvas[""] == ["15", "100", "0", "20"] and canvas["kim"] == ["15", "EX", "0", "20"]
    assert canvas["cal"] == ["15", "", "0", "20"] and canvas["tess"] == ["15", "50", "0", "20"]


def test_students_see_how_their_marks_came_about(term):
    eve, kim, bea = (of_student(term, student, "feedback.md") for student in ("eve", "kim", "bea"))
    assert "130.5 of 135 points" in eve and "10.5 of 15 points" in eve
    assert "Submitted 2026-10-25 23:59:01 CET, deadline 2026-10-24 23:59:00 CEST." in eve
    assert "Late: 2 days started after the deadline: 2 × 15 % of 15 points = 4.5 points off." in eve
    assert "Within the grace of 15 minutes, so lateness costs nothing." in of_student(term, "bob", "feedback.md")
    assert "grace" not in of_student(term, "ann", "feedback.md") + eve
    assert "Task 1: all 2 tests, 10 points." in eve  # the points of the gradebook
    assert "(excused)" in kim and "35 of 35 points" in kim
    assert "Your instructor set 12 points" in bea
    assert "Please come to see me." in of_student(term, "rosa", "feedback.md")
    assert "Extension: the deadline is 2026-10-26 23:59:00 CET" in of_student(term, "hana", "feedback.md")
    results = json.loads(of_student(term, "eve", "results.json"))
    assert results["score"] == 130.5 and "2 × 15 % of 15 points" in results["output"]
    assert {test.get("max_score") for test in results["tests"] if test["name"].startswith("1.1 ")} == {4, 6, 5, 10}
    assert json.loads(of_student(term, "nina", "results.json"))["score"] == 141.75


def test_the_report_lists_who_was_late_or_excused(term):
    text = (term.out / "report.md").read_text(encoding="utf-8")
    for part in ("Late (", "Eve Example (eve), 1.1: 2 days, 4.5 points off", "Excused (2)", "Kim Example (kim), 1.2",
                 "80 points instead of"):
        assert part in text, part
    assert "Abe Example (abe), 1.2: 61" not in text  # the penalty does not apply to an override


@pytest.mark.parametrize("name, text, words", [
    ("gradebook.toml", "[students.anna]\nexcused = ['1.1']\n[late]\nper = 'week'\n", ["students.anna", "late.per"]),
    ("comments.csv", "student,lab,comment\nanna,1.1,x\nann,9.9,x\nann,1.1,\n", [
        "no student 'anna' is graded here. Did you mean ann?", "no lab '9.9'", "line 4: the comment is empty"]),
    ("overrides.csv", "student,lab,points,reason\nann,1.1,21,x\n", ["points are 21, must be between 0 and 20"]),
])
def test_a_wrong_file_changes_nothing(term, capsys, name, text, words):
    before, path = term.files(), term.folder / name
    path.write_text(text)
    option = f"--{name.partition('.')[0]}"
    assert term.grade(term.folder / "collected", "2.2", option, path) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words) and "Traceback" not in error
    assert "between 0 and" not in error or name == "overrides.csv"
    assert term.files() == before


def test_all_wrong_files_are_reported_together(term, capsys):
    for name in ("a.toml", "b.csv", "c.csv"):
        (term.folder / name).write_text("x = 1\n")
    assert term.grade(term.folder / "collected", "2.2", "--gradebook", term.folder / "a.toml", "--overrides",
                      term.folder / "b.csv", "--comments", term.folder / "c.csv") == 2
    error = capsys.readouterr().err
    assert all(name in error for name in (
        "a.toml has 1 problem", "b.csv: line 1 must be `student,lab,points,reason`, but is `x = 1`", "c.csv: line 1"))


def test_a_preview_needs_marks_to_compare_with(term, capsys, tmp_path):
    assert main(["grade", str(term.folder / "collected"), "--out", str(tmp_path / "new"), "--lab", "2.2",
                 "--preview"]) == 2
    assert "does not exist yet. Run the command without --preview first." in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_the_real_grader_from_download_to_marks(tmp_path, monkeypatch):
    """Grade three students with the real worker, in the sandbox of this machine."""
    lay_down_course(tmp_path / "course")
    monkeypatch.chdir(tmp_path / "course")
    for number, letters in enumerate(("abcd", "ab", "abc")):
        name = f"Student {number}_{number}_assignsubmission_file_"
        write(tmp_path / "moodle" / name / "starter.py", text_of(letters, "1.1"))
    (tmp_path / "times.csv").write_text("student,lab,submitted\n0,1.1,2026-10-24 12:00\n1,1.1,2026-10-26 12:00\n")
    (tmp_path / "book.toml").write_text(GRADEBOOK.partition("[students")[0])
    assert main(["grade", str(tmp_path / "moodle"), "--out", str(tmp_path / "out"), "--lab", "1.1", "--jobs", "1",
                 "--platform", "moodle", "--times", str(tmp_path / "times.csv"),
                 "--gradebook", str(tmp_path / "book.toml")]) == 0
    with open(tmp_path / "out/grades.csv", newline="") as file:
        rows = [(row["student"], row["total"], row["max"], row["1.1 late"]) for row in csv.DictReader(file)]
    # 4 + 6 + 5 + 10 = 25, at most 20, and at most 105 % of 15 in total; 10 − 2 · 1.50; 15, the time is not known
    assert rows == [("0", "15.75", "15", ""), ("1", "7", "15", "2 days"), ("2", "15", "15", "")]
