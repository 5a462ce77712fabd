"""``course board`` keeps the student's scores, and it survives whatever a policy does."""

import json

import pytest
from rich.console import Console

from course.commands import Course
from course.lab.lab import LabError
from course.lab.score_process import score_file
from course.pytest_run.test_run_lab import write_starter
from course.student.leaderboard import show_board

pytestmark = pytest.mark.usefixtures("forked")

ARENA = '''

def score(add):
    return [add(1, 1) / 4 if add else None]


def table(lines):
    return f"sums [naive 10.0] {lines}"


def total(lines):
    return 100 * sum(lines)


def landmarks(lines):
    return {"naive": 10.0}
'''
SCORE = {"module": "arena", "name": "add", "meaning": "naive scores 10", "below": 99.95,
         "why_below": "Only a policy that knows future requests can score this much."}


def set_score(lab, **more):
    (lab.folder / "lab.json").write_text(json.dumps({"title": lab.name, "engine": None, "score": {**SCORE, **more}}))


@pytest.fixture
def scored(lab1):
    (lab1.root / "arena.py").write_text(ARENA)
    set_score(lab1)
    return lab1


@pytest.fixture
def classroom(scored, course):
    """Return the commands. Their output is in ``terminal``."""
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


def test_a_terminal_is_told_how_long_it_may_take(scored, terminal):
    write_starter(scored)
    show_board(scored, scored.root, Console(file=terminal, force_terminal=True, width=120))
    assert "Scoring starter.py (up to 60 s) …" in terminal.getvalue()


def test_scores_are_kept_once_a_file_and_the_best_is_marked(classroom, scored, terminal, project):
    write_starter(scored)
    classroom.board("1.1")
    assert "Your score: 50.0" in terminal.getvalue()
    write_starter(scored, add="return a")
    classroom.board()
    classroom.board()
    last = terminal.getvalue().split("Your score:")[-1]
    assert "25.0" in last.splitlines()[0] and "already on the board" in last.splitlines()[0]
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
        score_file(scored, scored.starter, limit_s=0.2)
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
    assert ("The score is 100.0, must be less than 99.95. Only a policy that knows future requests can score this "
            "much. It is not kept." in terminal.getvalue())
    assert not (scored.root / ".course" / "board.json").exists()


@pytest.mark.parametrize("body, complaint", [
    ("return float('nan')", "The score is nan, must be from -1,000,000 to 1,000,000. It is not kept."),
    ("return float('inf')", "The score is inf, must be from"), ("return 1e9", "must be from")])
def test_what_is_no_number_is_not_kept(classroom, scored, terminal, body, complaint):
    write_starter(scored, add=body)
    assert classroom.board() == 1 and complaint in terminal.getvalue()
    assert not (scored.root / ".course" / "board.json").exists()


def test_a_score_is_written_as_its_lab_says(classroom, scored, terminal):
    set_score(scored, decimals=2, unit="times")
    write_starter(scored)
    classroom.board()
    assert "Your score: 50.00 times  (naive scores 10)" in terminal.getvalue()
    assert "50.00 times  best" in terminal.getvalue()


def test_of_several_open_labs_the_best_scores_are_listed_and_nothing_is_scored(scored, lab2, terminal, monkeypatch):
    set_score(lab2, unit="times")
    write_starter(scored)
    monkeypatch.chdir(scored.root)
    course = Course(scored.root, Console(file=terminal, width=120, highlight=False, soft_wrap=True))
    assert course.board("1.1") == 0
    (scored.root / "arena.py").unlink()
    terminal.truncate(0)
    assert course.board() == 0
    assert [" ".join(line.split()) for line in terminal.getvalue().strip("\0").splitlines()] == [
        "Lab 1.1 adder best: 50.0", "Lab 1.2 again no score yet", "", "To score your file: course board 1.1"]


def test_in_the_folder_of_an_open_lab_it_is_that_lab(scored, lab2, terminal, monkeypatch):
    set_score(lab2)
    monkeypatch.chdir(lab2.folder)
    course = Course(scored.root, Console(file=terminal, width=120, highlight=False, soft_wrap=True))
    assert course.board() == 0 and "Lab 1.2  again" in terminal.getvalue()


def test_a_lab_without_a_score_is_refused(classroom, scored):
    with pytest.raises(LabError, match=r"Lab 1\.2 again has no score. Labs that have one: 1\.1 adder"):
        classroom.board("1.2")
    (scored.folder / "lab.json").write_text('{"title": "The adder", "engine": null}')
    with pytest.raises(LabError, match="no lab with a score"):
        Course(scored.root, classroom.console).board()
