"""``course.load`` gives a notebook the student's own module if it passes, else the engine's, and says which."""

import shutil

import pytest

import course as classroom
from course.lab.lab import Lab, LabError, discover
from course.pytest_run.run_lab import LabRunFailed
from course.student import my_labs
from course.student.progress import Progress
from mini_vllm import block_pool


@pytest.fixture
def here(elsewhere, forked, monkeypatch):
    """Create a course and make it the current folder."""
    monkeypatch.chdir(elsewhere)
    return elsewhere


def test_a_lab_that_was_not_begun_gives_the_reference_and_says_so(here, lab1, capsys):
    module = classroom.load("1.1")
    assert module.__file__ == str(lab1.solution) and module.add(1, 2) == 3
    assert capsys.readouterr().out == "lab 1.1, The adder: the reference's " \
                                      "(phase-01-sums/labs/lab-01-adder/solution.py), until yours passes\n"


def test_a_lab_that_passes_gives_the_students_file_and_says_so(here, lab1, capsys):
    shutil.copy(lab1.solution, lab1.starter)
    assert classroom.load("1.1").__file__ == str(lab1.starter)
    assert capsys.readouterr().out == "lab 1.1, The adder: yours (phase-01-sums/labs/lab-01-adder/starter.py)\n"
    lab1.starter.write_text(lab1.solution.read_text().replace("a + b", "a - b"))
    assert classroom.load("1.1").add(3, 2) == 5, "a file that does not pass any more is not used any more"
    assert "the reference's" in capsys.readouterr().out


def test_where_the_engine_has_the_piece_the_reference_is_the_engines_module(here, lab1, capsys):
    (lab1.folder / "lab.json").write_text('{"title": "The adder", "engine": "mini_vllm.block_pool"}')
    assert classroom.load("1.1") is block_pool
    assert "the reference's (mini_vllm.block_pool)" in capsys.readouterr().out


def test_what_could_not_be_tested_is_not_used(here, lab1, capsys, monkeypatch):
    lab1.starter.write_text(lab1.solution.read_text())

    def fail(self, lab):
        raise LabRunFailed("pytest is not installed")

    monkeypatch.setattr(Progress, "of", fail)
    assert classroom.load("1.1").__file__ == str(lab1.solution)
    told = capsys.readouterr().out
    assert "could not be tested (pytest is not installed)" in told and "the reference's" in told


def test_a_lab_that_does_not_exist_is_refused(here):
    with pytest.raises(LabError, match=r"There is no lab '9\.9'"):
        classroom.load("9.9")


def test_parts_are_the_students_where_labs_pass(monkeypatch, capsys):
    monkeypatch.setattr(my_labs, "_passes", lambda lab, progress: False)
    assert classroom.load_parts().block_pool is block_pool.BlockPool
    assert "all the reference’s" in capsys.readouterr().out
    monkeypatch.setattr(my_labs, "_passes", lambda lab, progress: lab.number in ("2.1", "4.3"))
    monkeypatch.setattr(Lab, "starter", property(lambda lab: lab.solution))
    parts = classroom.load_parts()
    found = {lab.number: str(lab.solution) for lab in discover()}
    code = {"2.1": parts.block_pool.touch, "4.3": parts.request_queue.peek}
    assert {number: method.__code__.co_filename for number, method in code.items()} == \
        {number: found[number] for number in code}
    assert capsys.readouterr().out == "the engine's parts: yours are request_queue (lab 4.3), block_pool (lab 2.1)\n"
