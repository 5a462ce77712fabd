"""The ``course`` command, as a student types it."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from course.cli import Course, main, make_parser, saved_labs
from course.labs import LabError
from course.test_running import write_starter


@pytest.fixture
def terminal():
    return io.StringIO()


@pytest.fixture
def course(project, terminal, monkeypatch):
    monkeypatch.chdir(project)
    return Course(project, Console(file=terminal, width=120, highlight=False, soft_wrap=True))


def half_done(lab):
    text = lab.starter.read_text().replace('raise NotImplementedError("Task 1: add")', "return a + b")
    lab.starter.write_text(text)


def test_status_shows_states_points_and_a_bar(course, lab1, lab2, terminal):
    half_done(lab1)
    write_starter(lab2)
    assert course.status() == 0
    lines = terminal.getvalue().splitlines()
    assert "1.1" in lines[1] and "in progress 2/3" in lines[1] and "3/6" in lines[1] and "█" * 10 + "░" * 10 in lines[1]
    assert "passed" in lines[2] and "6/6" in lines[2] and "░" not in lines[2]
    assert lines[-1] == "9 of 12 points. Next: task 2 of lab 1.1, The adder."


def test_status_of_a_fresh_course_runs_nothing(course, terminal, monkeypatch):
    monkeypatch.setattr(course.progress, "_run", None)
    course.status()
    assert terminal.getvalue().count("not started") == 2 and "Next: lab 1.1, The adder." in terminal.getvalue()


def test_status_for_machines(course, lab1, capsys):
    half_done(lab1)
    assert course.status(as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["points"], report["max_points"]) == (3, 12)
    assert report["labs"][0] == {
        "lab": "1.1", "name": "adder", "title": "The adder", "folder": "phase-01-sums/labs/lab-01-adder",
        "state": "in progress", "tests_passed": 2, "tests": 3, "points": 3, "max_points": 6}


def test_results_are_remembered_until_a_file_changes(course, lab1, terminal, monkeypatch):
    half_done(lab1)
    course.status()
    monkeypatch.setattr(course.progress, "_run", None)
    course.status()
    assert terminal.getvalue().count("in progress 2/3") == 2
    lab1.starter.write_text(lab1.starter.read_text() + "\n")
    with pytest.raises(TypeError):
        course.status()


def test_a_damaged_results_file_is_made_anew(course, lab1, project, terminal):
    half_done(lab1)
    (project / ".course").mkdir()
    (project / ".course" / "results.json").write_text("{broken")
    course.status()
    assert "in progress 2/3" in terminal.getvalue()


def test_next_says_what_to_read_edit_and_run(course, terminal):
    course.next()
    text = terminal.getvalue()
    for part in ("phase-01-sums/labs/lab-01-adder/README.md", "course test 1.1", "course hint 1.1"):
        assert part in text


def test_next_prefers_the_lab_one_stands_in_then_the_one_saved_last(course, lab1, lab2, terminal, monkeypatch):
    half_done(lab1)
    half_done(lab2)
    os.utime(lab1.starter, (1, 1))
    course.next()
    assert "of lab 1.2" in terminal.getvalue()
    monkeypatch.chdir(lab1.folder)
    course.next()
    assert "of lab 1.1" in terminal.getvalue()


def test_when_all_is_done_next_says_so(course, lab1, lab2, terminal):
    write_starter(lab1)
    write_starter(lab2)
    course.next()
    assert terminal.getvalue() == "Every lab passes. Well done.\n"


def test_test_shows_each_test_and_the_way_on(course, lab1, terminal):
    half_done(lab1)
    assert course.test(["adder"]) == 1
    text = terminal.getvalue()
    assert "Task 1 sums" in text and "✓ add adds  2" in text
    assert "· double doubles  3\n        still to do: Task 2: double" in text
    assert "2 of 3 tests, 3 of 6 points" in text and "Next: task 2. A nudge: course hint 1.1" in text


def test_test_tells_one_broken_file_once(course, lab1, terminal):
    lab1.starter.write_text("def add(:\n")
    assert course.test(["1.1"]) == 1
    assert terminal.getvalue().count("does not parse, line 1") == 1 and terminal.getvalue().count("✗") == 3


def test_brackets_in_messages_are_not_taken_for_markup(course, lab1, terminal):
    write_starter(lab1, double="raise ValueError('[/red] [1]')")
    course.test(["1.1"])
    assert "ValueError: [/red] [1]" in terminal.getvalue()


def test_test_of_all_labs_goes_on_after_a_broken_one(course, lab1, lab2, terminal):
    lab1.starter.write_text("import os; os._exit(0)\n")
    write_starter(lab2)
    assert course.test(["all"]) == 1
    assert "the process ended during this test" in terminal.getvalue() and "Passed." in terminal.getvalue()


def test_a_passed_lab_is_a_success(course, lab1, terminal):
    write_starter(lab1)
    assert course.test(["1.1"]) == 0
    assert "Passed. Compare with `course solution 1.1`." in terminal.getvalue()


def test_an_untouched_lab_is_not_started(course, terminal):
    assert course.test([]) == 1
    assert "Not started: starter.py is as shipped" in terminal.getvalue()


def test_watch_tests_what_is_saved(course, lab1, lab2, terminal):
    def saves(labs):
        assert [lab.number for lab in labs] == ["1.1", "1.2"]
        half_done(lab1)
        yield lab1
        write_starter(lab1)
        yield lab1
        raise KeyboardInterrupt

    assert course.watch(changes=saves) == 0
    text = terminal.getvalue()
    assert text.index("Not started") < text.index("2 of 3 tests") < text.index("3 of 3 tests")
    assert text.index("3 of 3 tests") < text.index("Next: lab 1.2")


def test_a_save_is_noticed_by_time_or_size(lab1, lab2, monkeypatch):
    edits = iter([lambda: None, lambda: half_done(lab2), lab1.starter.unlink, lambda: write_starter(lab1)])
    monkeypatch.setattr("course.cli.time.sleep", lambda seconds: next(edits)())
    seen = saved_labs([lab1, lab2])
    assert [next(seen).number, next(seen).number] == ["1.2", "1.1"]


def test_hints_follow_the_task_at_hand(course, lab1, terminal):
    half_done(lab1)
    course.hint(None, 1, None)
    text = terminal.getvalue()
    assert "Lab 1.1, task 2" in text and "Hint 1 for doubles." in text
    assert "More: course hint 1.1 --task 2 --level 2" in text
    course.hint("1.1", 3, 1)
    assert "Hint 3 for sums." in terminal.getvalue()
    with pytest.raises(LabError, match="has no task 7; its tasks are 1, 2"):
        course.hint("1.1", 1, 7)


def test_a_passed_lab_has_nothing_to_hint_at(course, lab1, terminal):
    write_starter(lab1)
    course.hint("1.1", 1, None)
    assert "Lab 1.1 adder passes; there is nothing left to hint at" in terminal.getvalue()


def test_reset_keeps_what_was_there(course, lab1, project, terminal):
    course.reset("1.1")
    assert "nothing to reset" in terminal.getvalue() and not (project / ".course" / "backups").exists()
    shipped = lab1.starter.read_text()
    for mine in ("mine\n", "mine again\n"):
        lab1.starter.write_text(mine)
        course.reset("1.1")
        assert lab1.starter.read_text() == shipped
    backups = {path.read_text() for path in (project / ".course" / "backups").iterdir()}
    assert backups == {"mine\n", "mine again\n"}
    assert "Your work is kept in .course/backups/1.1-" in terminal.getvalue()


def test_reset_brings_a_deleted_starter_back(course, lab1):
    shipped = lab1.starter.read_text()
    lab1.starter.unlink()
    course.reset("1.1")
    assert lab1.starter.read_text() == shipped


def test_the_solution_opens_when_the_lab_passes_or_with_spoil(course, lab1, capsys):
    half_done(lab1)
    with pytest.raises(LabError, match=r"Lab 1.1 adder is in progress 2/3; its solution opens when it passes"):
        course.solution("1.1", spoil=False)
    course.solution("1.1", spoil=True)
    write_starter(lab1)
    course.solution("1.1", spoil=False)
    text = capsys.readouterr().out
    assert text.count("return a + b") == 2 and "TASK" not in text


def test_sync_writes_only_what_changed(course, lab1, terminal):
    lab1.starter.write_text("old\n")
    course.sync([])
    assert terminal.getvalue().splitlines() == ["phase-01-sums/labs/lab-01-adder/starter.py: written",
                                                "phase-01-sums/labs/lab-02-again/starter.py: up to date"]


def test_check_names_problems_and_fails(course, lab1, project, terminal):
    (project / "README.md").write_text("[x](gone.md)")
    lab1.hints.write_text("")
    assert course.check([]) == 1
    text = terminal.getvalue()
    assert "✗ 1.1 adder" in text and "hints.md: task 1 has no hint 1" in text and "✓ 1.2 again" in text
    assert "README.md: the link to gone.md leads nowhere" in text and "2 labs checked, 7 problems" in text


def test_every_command_of_the_plan_is_there():
    text = make_parser().format_help()
    for command in ("status", "next", "test", "watch", "hint", "reset", "solution", "check"):
        assert f"\n    {command} " in text


def test_an_unknown_lab_is_an_error_with_the_list(capsys):
    assert main(["test", "block-alocator"]) == 2
    error = capsys.readouterr().err
    assert "Did you mean 2.1 block-allocator?" in error and "1.2  fragmentation" in error


@pytest.mark.parametrize("no_color", [{}, {"NO_COLOR": "1"}])
def test_a_pipe_gets_no_colours(no_color):
    run = subprocess.run([sys.executable, "-m", "course.cli", "next"], capture_output=True, text=True,
                         env={**os.environ, **no_color})
    assert run.returncode == 0 and "\x1b" not in run.stdout
