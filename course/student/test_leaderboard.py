"""``course board`` keeps the student's scores, and it survives whatever a policy does."""

import json

import pytest

from course.commands import Course
from course.lab.lab import LabError
from course.pytest_run.test_run_lab import write_starter
from course.student.leaderboard import score

pytestmark = pytest.mark.usefixtures("forked")

ARENA = '''

def score(add):
    return [add(1, 1) / 4 if add else None]


def table(lines):
    return f"sums [naive 10.0] {lines}"


def total(lines):
    return 100 * sum(lines)
'''


@pytest.fixture
def scored(lab1):
    (lab1.root / "arena.py").write_text(ARENA)
    (lab1.folder / "lab.json").write_text(
        '{"title": "The adder", "engine": null, "score": {"module": "arena", "name": "add"}}')
    return lab1


@pytest.fixture
def classroom(scored, course):
    """The commands; their output is in ``terminal``."""
    return course


def test_before_one_begins_the_board_shows_what_others_get(classroom, terminal):
    assert classroom.board() == 0
    lines = terminal.getvalue().splitlines()
    assert lines[2] == "sums [naive 10.0] [None]" and "Not started" in lines[-1]


@pytest.mark.parametrize("board", ["{", "[]", '{"1.1": 3}', '{"1.1": [1, {"total": 3}]}',
                                   '{"1.1": [{"when": "", "what": "", "key": "", "total": "x"}]}'])
def test_a_damaged_board_is_begun_anew(classroom, scored, terminal, project, board):
    (project / ".course").mkdir()
    (project / ".course" / "board.json").write_text(board)
    write_starter(scored)
    assert classroom.board() == 0 and "50.0  best" in terminal.getvalue()


def test_scores_are_kept_once_a_file_and_the_best_is_marked(classroom, scored, terminal, project):
    write_starter(scored)
    classroom.board("1.1")
    assert "Your score: 50.0" in terminal.getvalue()
    write_starter(scored, add="return a")
    classroom.board()
    classroom.board()
    last = terminal.getvalue().split("Your score:")[-1]
    assert "25.0" in last.splitlines()[0] and "on the board already" in last.splitlines()[0]
    assert [line.split(maxsplit=2)[2] for line in last.splitlines() if line.startswith("  20")] == [
        "50.0  best  The sum of ``a`` and ``b``.", "25.0        The sum of ``a`` and ``b``."]
    assert "return a + b" in (project / ".course" / "best-1.1.py").read_text() and ".course/best-1.1.py" in last
    assert len(json.loads((project / ".course" / "board.json").read_text())["1.1"]) == 2


@pytest.mark.parametrize("body, complaint", [
    ("raise ValueError('no sum')", r"could not be scored: ValueError: no sum \(starter.py:7 in add\)"),
    ("while True: pass", r"could not be scored: it did not finish within 0.2 s of CPU time \(starter.py:7 in add\)"),
    ("import os; os._exit(3)", "could not be scored: the process ended with status 3"),
    ("exit()", r"could not be scored: it calls exit\(\)"),
])
def test_a_policy_that_fails_is_told_why_and_keeps_no_score(scored, body, complaint):
    write_starter(scored, add=body)
    with pytest.raises(LabError, match=complaint):
        score(scored, scored.starter, limit_s=0.2)
    assert not (scored.root / ".course" / "board.json").exists()


def test_a_file_that_cannot_be_scored_leaves_the_table_and_the_scores(classroom, scored, terminal):
    write_starter(scored)
    classroom.board()
    write_starter(scored, add="raise ValueError('no sum')")
    assert classroom.board() == 1
    last = terminal.getvalue().split("Lab 1.1")[-1]
    assert "sums [naive 10.0] [None]" in last and "could not be scored: ValueError: no sum" in last and "50.0" in last


def test_nobody_sees_the_future(classroom, scored, terminal):
    write_starter(scored, add="return 4")
    assert classroom.board() == 1
    assert "Your score: 100.0. Only who knows the requests to come has as much: it is not kept." in terminal.getvalue()
    assert not (scored.root / ".course" / "board.json").exists()


def test_a_lab_without_a_score_is_refused(classroom, scored):
    with pytest.raises(LabError, match=r"Lab 1\.2 again has no score. Labs that have one: 1\.1 adder"):
        classroom.board("1.2")
    (scored.folder / "lab.json").write_text('{"title": "The adder", "engine": null}')
    with pytest.raises(LabError, match="no lab with a score"):
        Course(scored.root, classroom.console).board()
