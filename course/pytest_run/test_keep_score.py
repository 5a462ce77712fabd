"""The fixture ``keep_score``: the score that a test keeps is the same whichever command runs the test."""

import json
import subprocess
import textwrap

import pytest

from course.core.result import LabResult, Verdict
from course.grading.grade_file.grade import grade_file
from course.grading.limits import Settings
from course.pytest_run.run_lab import run_lab
from course.pytest_run.test_run_lab import TWO_WORKERS, plain_pytest, write_starter

pytestmark = pytest.mark.usefixtures("forked")

KEEPS = '''
@pytest.mark.points(1)
@pytest.mark.task(2)
def {name}(lab, keep_score):
    import numpy as np
    {body}
'''
SCORE = {"module": "arena", "name": "add", "meaning": "more is better", "below": 99.95, "why_below": "No one can."}


def keep(lab, body, name="test_the_score", score=SCORE):
    """Make ``lab`` an open lab with a further test."""
    entry = {} if score is None else {"score": score}
    (lab.folder / "lab.json").write_text(json.dumps({"title": "Sums", "engine": None, **entry}))
    lab.tests.write_text(lab.tests.read_text() + KEEPS.format(name=name, body=body))


def test_every_command_finds_the_same_score(lab1, project, tmp_path):
    keep(lab1, "keep_score(lab.double(4) + lab.add(3) / 8)")
    write_starter(lab1)
    verdicts = run_lab(lab1, ["starter"])["starter"]
    assert {name: verdict.score for name, verdict in verdicts.items() if verdict.score} == {"test_the_score": 8.5}
    result = grade_file(lab1, lab1.starter, Settings(sandbox="none"))
    assert (result.score, result.points, result.flags) == (8.5, 7, ())
    assert LabResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    code, output = plain_pytest(project, "-q", str(lab1.folder), "--impl", "starter", "--grade-json", "out.json")
    assert code == 0 and "lab 1.1 starter: 4 of 4 tests, 7 of 7 points, score 8.50\n" in output
    report = json.loads((project / "out.json").read_text())
    assert report["scores"][0]["score"] == 8.5 == LabResult.from_json(report["labs"][0]).score
    code, output = plain_pytest(project, "-q", str(lab1.folder), "--impl", "starter")
    assert code == 0 and "7 of 7 points, score 8.50\n" in output


def test_a_score_survives_the_way_from_a_worker(lab1, project):
    keep(lab1, "keep_score(lab.double(4))")
    code, output = plain_pytest(project, "-q", str(lab1.folder), "--impl", "solution", *TWO_WORKERS,
                                popen=subprocess.Popen)
    assert code == 0 and "7 of 7 points, score 8.00" in output


def test_course_test_shows_the_score_and_where_to_keep_it(lab1, course, terminal):
    keep(lab1, "keep_score(lab.double(4))")
    write_starter(lab1)
    course = type(course)(lab1.root, course.console)
    assert course.test(["1.1"]) == 0 and "Your score: 8.0. Keep it: course board 1.1" in terminal.getvalue()


def test_a_file_that_fails_another_test_has_a_score_that_does_not_count(lab1, project):
    keep(lab1, "keep_score(lab.add(3, 4))")
    write_starter(lab1, double="return 0")
    result = grade_file(lab1, lab1.starter, Settings(sandbox="none"))
    assert (result.kept_score, result.score, result.points) == (7, None, 4)
    _, _ = plain_pytest(project, "-q", str(lab1.folder), "--impl", "starter", "--grade-json", "out.json")
    assert json.loads((project / "out.json").read_text())["scores"][0]["score"] is None


#: The body of the test, and what its failure says.
REFUSED = {
    "nan": ("keep_score(float('nan'))", "The score is nan, must be from -1,000,000 to 1,000,000."),
    "inf": ("keep_score(float('-inf'))", "The score is -inf, must be from"),
    "large": ("keep_score(-2e6)", "The score is -2000000.0, must be from"),
    "huge": ("keep_score(10**5000)", "The score is a whole number of 16610 bits, must be from"),
    "truth": ("keep_score(True)", "The score is of type bool, must be an int or a float."),
    "text": ("keep_score('9')", "The score is of type str, must be"),
    "numpy": ("keep_score(np.float64(9))", "The score is of type float64, must be"),
    "of_the_file": ("keep_score(lab.add)", "must be an int or a float."),
    "beyond": ("keep_score(99.95)", "The score is 100.0, must be less than 99.95. No one can."),
    "twice": ("keep_score(1); keep_score(2)", "keep_score was called before in this test"),
    "then_fails": ("keep_score(1); assert lab.add(3) == 5, 'it fails'", "it fails"),
}


def test_what_is_no_score_fails_the_test_and_is_not_kept(lab1):
    for name, (body, _) in REFUSED.items():
        keep(lab1, body, f"test_{name}")
    write_starter(lab1)
    verdicts = run_lab(lab1, ["starter"], names=[f"test_{name}" for name in REFUSED])["starter"]
    far = grade_file(lab1, lab1.starter, Settings(sandbox="none"))
    for name, (_, message) in REFUSED.items():
        assert message in verdicts[f"test_{name}"].message, name
        (graded,) = [test for test in far.tests if test.name == f"test_{name}"]
        assert message in graded.message and not graded.passed, name
    assert all(verdict.score is None for verdict in (*verdicts.values(), *far.tests)) and far.points == 6


def test_the_test_of_a_lab_without_a_score_may_not_keep_one(lab1):
    keep(lab1, "keep_score(1)", score=None)
    write_starter(lab1)
    verdict = run_lab(lab1, ["starter"], names=["test_the_score"])["starter"]["test_the_score"]
    assert not verdict.passed and "has no score in its lab.json" in verdict.message


def test_a_test_with_several_cases_keeps_no_score(lab1):
    keep(lab1, "keep_score(1)")
    text = lab1.tests.read_text().replace("\ndef test_the_score(lab,", "\n@pytest.mark.parametrize('n', [1, 2])\n"
                                          "def test_the_score(lab, n,")
    lab1.tests.write_text(text)
    write_starter(lab1)
    verdict = run_lab(lab1, ["starter"], names=["test_the_score"])["starter"]["test_the_score"]
    assert "a test with several cases keeps no score" in verdict.message


def test_objects_of_the_file_are_no_score(lab1, tmp_path):
    """Return numbers of its own classes from the sandbox: they come as numbers, or they fail."""
    keep(lab1, "keep_score(lab.double(4))")
    for code in ("class X(float):\n    def __eq__(self, other): return True\n    __ge__ = __le__ = __lt__ = __eq__",
                 "class X:\n    def __float__(self): return 99.0\n    __index__ = __int__ = __float__\n"
                 "    def __init__(self, *_): pass\n    def __eq__(self, other): return True"):
        path = tmp_path / "starter.py"
        text = lab1.solution.read_text().replace("return add(a, a)", "return X(float('nan'))")
        path.write_text(f"{text}\n{textwrap.dedent(code)}\n")
        result = grade_file(lab1, path, Settings(sandbox="none"))
        assert result.kept_score is None, code


@pytest.mark.parametrize("score", [None, "9", True, float("nan"), float("inf"), [1], {}])
def test_a_reported_score_that_is_none_is_dropped(score):
    fields = {"passed": True, "error": None, "message": "", "printed": ""}
    assert Verdict.of({**fields, "score": score}).score is None and Verdict.of(fields).score is None
    assert Verdict.of({**fields, "score": -3}).score == -3
