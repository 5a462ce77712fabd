"""``course board --merge``: the class's board is made from graded submissions, and names no one by default."""

import csv
import hashlib
import io
import json

import pytest

from course.cli import main
from course.core.result import LabResult, Outcome, TestResult
from course.grading.class_run.last_call import claim
from course.grading.class_run.store import Record, Store
from course.grading.export.student_view import alias_of
from course.lab.lab import discover
from course.pytest_run.provenance import digest_of_tests

ARENA = '''
def score(add):
    return add


def table(measured):
    return ""


def total(measured):
    return measured(1, 1)


def landmarks(measured):
    return {"naive": 0.0, "reference": 36.93, "optimum": 100}
'''
SCORE = {"module": "arena", "name": "add", "meaning": "naive is 0, the optimum 100", "below": 99.95, "why_below": "No."}


class Class:
    """Folders of results for the labs of a small course, of which the first two are open."""

    def __init__(self, root, folder):
        self.folder, self.labs = folder, discover(root)
        (root / "arena.py").write_text(ARENA)
        for lab, unit in zip(self.labs, ("", "times")):
            (lab.folder / "lab.json").write_text(json.dumps(
                {"title": f"The {lab.name}", "engine": None, "score": {**SCORE, "unit": unit}}))

    def out(self, name="grades"):
        claim(self.folder / name)
        return self.folder / name

    def graded(self, student, score, out="grades", lab=0, name="", passes=True, text=None, **more):
        """Store a result as ``course grade`` does. ``score`` None: nothing was handed in."""
        lab, store = self.labs[lab], Store(self.out(out))
        text = f"# {student}".encode() if text is None else text
        tests = (TestResult(True, score=score, name="test_a", points=1), TestResult(passes, name="test_b", points=1))
        result = LabResult(lab.number, Outcome.MISSING if score is None else Outcome.GRADED, tests,
                           file_sha256=hashlib.sha256(text).hexdigest())
        fields = {"tests_sha256": digest_of_tests(lab, None), "commit": "abc"}
        flags = more.pop("flags", ())
        store.put_text(student, lab.number, text)
        store.put(Record(student, LabResult(**{**vars(result), "flags": flags}), name=name, **{**fields, **more}))


@pytest.fixture
def klass(elsewhere, tmp_path, monkeypatch, forked):
    monkeypatch.chdir(elsewhere)
    return Class(elsewhere, tmp_path)


@pytest.fixture
def merge(klass, capsys):
    def merge(*arguments, folders=("grades",)):
        """Return the exit status, the output and the errors."""
        status = main(["board", *arguments, "--merge", *(str(klass.folder / name) for name in folders)])
        return status, *capsys.readouterr()
    return merge


def alias(student):
    return alias_of(hashlib.sha256(f"# {student}".encode()).hexdigest())


def test_the_class_is_ranked_among_the_known_solutions_and_no_one_is_named(klass, merge):
    for student, score in (("ann", 64.93), ("bob", 12.5), ("cem", 64.94), ("dan", None)):
        klass.graded(student, score, name=f"{student.title()} Lee")
    klass.graded("eve", 99.0, passes=False)
    status, text, errors = merge("1.1")
    assert (status, errors) == (0, "")
    first, second = sorted((alias("ann"), alias("cem")))
    assert text == ("Lab 1.1: The adder\n\nrank  score\n      100.0  (optimum)\n"
                    f"   1   64.9  {first}\n   1   64.9  {second}\n       36.9  (reference)\n"
                    f"   3   12.5  {alias('bob')}\n        0.0  (naive)\n\n"
                    "3 students with a score, 2 without. Scale: naive is 0, the optimum 100.\n")
    status, text, _ = merge("1.1", "--names")
    assert "   1   64.9  Ann Lee\n   1   64.9  Cem Lee\n" in text and "Eve" not in text and "Dan" not in text


def test_an_alias_depends_on_the_file_alone(klass, merge):
    """Check that the alias depends on the file alone: not on the student, the folder or the score."""
    klass.graded("ann", 50.0, out="one", text=b"the same")
    klass.graded("bob", 60.0, out="two", text=b"the same")
    _, text, _ = merge("1.1", folders=["one", "two"])
    name = alias_of(hashlib.sha256(b"the same").hexdigest())
    assert text.count(name) == 2 and "ann" not in text and "bob" not in text
    assert name.replace("-", "") not in hashlib.sha256(b"the same").hexdigest()


def test_a_students_own_board_and_overrides_of_points_change_nothing(klass, merge, elsewhere):
    klass.graded("ann", 50.0)
    before = merge("1.1")
    entry = {"when": "", "total": 90.0, "what": "", "key": ""}
    for folder in (elsewhere / ".course", klass.out() / "submitted/ann/.course"):
        folder.mkdir(exist_ok=True)
        (folder / "board.json").write_text(json.dumps({"1.1": [entry]}))
    (klass.out() / "overrides.csv").write_text("student,lab,points,reason\nann,1.1,2,oral exam\n")
    assert merge("1.1") == before


def test_folders_are_put_together_and_the_better_score_counts(klass, merge):
    klass.graded("ann", 50.0, out="one")
    klass.graded("ann", 60.0, out="two", text=b"# better")
    klass.graded("bob", 40.0, out="two")
    klass.graded("cem", None, out="one")
    klass.graded("bob", None, out="one")
    status, text, errors = merge("1.1", "--names", folders=["one", "two", "two"])
    assert status == 0 and "   1   60.0  ann\n" in text and "   2   40.0  bob\n" in text and "50.0" not in text
    assert "2 students with a score, 1 without" in text
    assert errors == "ann 1.1: several folders have a score; the best one counts.\n"


def test_what_is_outdated_is_left_out_and_said(klass, merge):
    klass.graded("ann", 50.0)
    klass.graded("bob", 51.0)
    (klass.out() / "submitted/bob/1.1.py").write_text("# a newer file")
    klass.graded("cem", 52.0, tests_sha256="of other tests")
    klass.graded("dan", 99.99)
    klass.graded("eve", float("nan"))
    status, text, errors = merge("1.1", "--names")
    assert status == 1 and "1 student with a score, 4 without" in text
    assert "bob 1.1 is left out. A newer file is not graded yet." in errors
    assert "cem 1.1 is left out. It was graded with other tests than those of this course." in errors
    assert "dan 1.1 is left out. The score is 100.0, must be less than 99.95. No." in errors
    assert "eve 1.1 is left out. The score is nan" in errors and "ann" not in errors


def test_the_hidden_tests_must_be_those_of_the_grading(klass, merge, tmp_path):
    (tmp_path / "hidden/1.1").mkdir(parents=True)
    (tmp_path / "hidden/1.1/test_hidden.py").write_text("")
    klass.graded("ann", 50.0, tests_sha256=digest_of_tests(klass.labs[0], tmp_path / "hidden"))
    assert "1.1 is left out" in merge("1.1")[2]
    assert merge("1.1", "--hidden", str(tmp_path / "hidden"))[::2] == (0, "")


def test_an_instructor_is_told_of_flags_and_of_several_versions(klass, merge):
    klass.graded("ann", 50.0, flags=("a wrong solution\x1b[2J passes",))
    klass.graded("bob", 40.0, commit="def")
    status, text, errors = merge("1.1")
    assert status == 0 and "wrong solution" not in text and "\x1b" not in errors
    assert "ann 1.1 is flagged; look at the file before you publish: a wrong solution passes" in errors
    assert "the scores come from 2 versions of the course (abc, def)" in errors


def test_every_open_lab_that_was_graded_has_a_board(klass, merge):
    klass.graded("ann", 50.0)
    assert "Lab 1.2" not in merge()[1]
    klass.graded("ann", 1.25, lab=1)
    _, text, _ = merge()
    assert text.count("rank  ") == 2 and f"   1    1.2 times  {alias('ann')}\n" in text


NASTY = "=1+1|<script>alert(1)</script>\x1b[2J`*x*"


def test_a_table_is_written_as_its_ending_says_and_is_harmless(klass, merge, tmp_path):
    klass.graded("ann", 50.0, name=NASTY)
    for ending in ("csv", "md", "txt"):
        status, said, _ = merge("1.1", "--names", "--output", str(tmp_path / f"board.{ending}"))
        assert status == 0 and "1 student with a score" in said
    rows = list(csv.DictReader(io.StringIO((tmp_path / "board.csv").read_text())))
    assert [row["who"] for row in rows] == ["(optimum)", "'=1+1|<script>alert(1)</script>`*x*", "(reference)",
                                            "(naive)"]
    assert rows[1] | {"who": ""} == {"lab": "1.1", "rank": "1", "who": "", "score": "50"}
    page = (tmp_path / "board.md").read_text()
    assert "# The scores of the class" in page and "<script>" not in page and "\x1b" not in page
    assert "| 1 | \\=1+1\\|\\<script\\>alert(1)\\</script\\>\\`\\*x\\* | 50.0 |" in page
    assert "50.0" in (tmp_path / "board.txt").read_text()


def test_two_students_of_one_name_can_be_told_apart(klass, merge):
    for student in ("ann", "bob"):
        klass.graded(student, 50.0, name="Kim Lee")
    assert "Kim Lee (ann)" in merge("--names")[1]


@pytest.mark.parametrize("arguments, complaint", [
    (("1.1", "--output", "board.pdf"), "--output board.pdf must end in .txt, .md, .csv"),
    (("--output", "nowhere/board.md"), "--output nowhere/board.md: there is no folder nowhere"),
    (("1.3",), "There is no lab '1.3'"),
])
def test_what_cannot_be_written_is_refused_before_anything_is_read(klass, merge, arguments, complaint):
    klass.graded("ann", 50.0)
    status, text, errors = merge(*arguments)
    assert status == 2 and complaint in errors and text == ""


def test_a_folder_that_is_no_result_of_grading_is_refused(klass, merge, tmp_path):
    klass.graded("ann", 50.0)
    (tmp_path / "holiday").mkdir()
    for name in ("holiday", "nowhere"):
        status, text, errors = merge(folders=["grades", name])
        assert (status, text) == (2, "") and f"{name} is not a folder of results" in errors
    assert "contain no results of lab 1.2" in merge("1.2")[2]


@pytest.mark.parametrize("option", [("--output", "x.md"), ("--names",), ("--hidden", "x")])
def test_options_for_a_class_need_one(klass, option, capsys):
    assert main(["board", *option]) == 2 and f"{option[0]} needs --merge DIR" in capsys.readouterr().err
