"""The ``course`` command, as a student types it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from course.cli import COMMANDS, main, make_parser
from course.commands import Course
from course.core.result import Verdict
from course.lab.graded_tests import graded_tests
from course.lab.lab import APART, NO_COURSE, PROJECT_ROOT, LabError
from course.pytest_run.parallel import Stopped, side_by_side
from course.pytest_run.test_run_lab import write_starter
from course.student.progress import _fingerprint
from course.student.report import VerdictLines
from course.student.run_command import RunOptions
from course.student.watch_saves import Saves

pytestmark = pytest.mark.usefixtures("forked")


def half_done(lab):
    text = lab.starter.read_text().replace('raise NotImplementedError("Task 1: add")', "return a + b")
    lab.starter.write_text(text)


def test_status_shows_states_points_and_a_bar(course, lab1, lab2, terminal):
    half_done(lab1)
    write_starter(lab2)
    assert course.status() == 0
    testing, *lines = terminal.getvalue().splitlines()
    assert testing == "Testing changed labs: 1.1, 1.2 …"
    assert "1.1" in lines[1] and "in progress 2/3" in lines[1] and "3/6" in lines[1] and "█" * 10 + "░" * 10 in lines[1]
    assert "passed" in lines[2] and "6/6" in lines[2] and "░" not in lines[2]
    assert lines[-1] == "9 of 12 points. Next: task 2 of lab 1.1, The adder."


@pytest.mark.parametrize("results", ["[]", '{"1.1": 3}', '{"1.1": {"verdicts": {}}}', '{"1.1": {"key": "KEY"}}',
                                     '{"1.1": {"key": "KEY", "verdicts": {"test": {"no": "verdict"}}}}'])
def test_results_that_are_none_are_made_anew(course, lab1, project, terminal, results):
    half_done(lab1)
    (project / ".course").mkdir()
    (project / ".course" / "results.json").write_text(results.replace("KEY", _fingerprint(lab1)))
    course.status()
    assert "in progress 2/3" in terminal.getvalue()
    assert json.loads((project / ".course" / "results.json").read_text())["1.1"]["verdicts"]


@pytest.mark.parametrize("name, content, complaint", [
    ("lab.json", '{"title": 3, "engine": null}', "title is 3, must be a text"), ("lab.json", "{", "must be JSON"),
    ("test_lab.py", "def (", r"test_lab.py does not parse: .*line 1.*`course update`"),
])
def test_a_damaged_file_of_a_lab_is_named(course, lab1, name, content, complaint):
    (lab1.folder / name).write_text(content)
    with pytest.raises(LabError, match=complaint) as caught:
        course.status()
    assert f"phase-01-sums/labs/lab-01-adder/{name}" in str(caught.value) and "\n" not in str(caught.value)


def test_status_of_a_fresh_course_runs_nothing(course, terminal, monkeypatch):
    monkeypatch.setattr(course.progress, "_run", None)
    course.status()
    assert terminal.getvalue().count("not started") == 2 and "Next: lab 1.1, The adder." in terminal.getvalue()


def test_status_for_machines(course, lab1, capsys):
    half_done(lab1)
    assert course.status(as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["points"], report["max_points"]) == (3, 12)
    assert report["self_reported"] is True and "`course grade`" in report["note"]
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


def test_the_lab_one_stands_in_counts_only_while_it_does_not_pass(course, lab1, lab2, terminal, monkeypatch):
    write_starter(lab1)
    monkeypatch.chdir(lab1.folder)
    course.status()
    course.next()
    assert terminal.getvalue().count("Next: lab 1.2, The again.") == 2


def test_after_a_lab_passed_out_of_order_comes_the_one_after_it(course, lab1, lab2, project, terminal):
    lab3 = project / "phase-01-sums" / "labs" / "lab-03-more"
    shutil.copytree(lab2.folder, lab3)
    course = Course(project, course.console)
    write_starter(lab2)
    course.next()
    assert "Next: lab 1.3" in terminal.getvalue()
    assert "  Earlier labs that do not pass yet: 1.1\n" in terminal.getvalue()
    write_starter(course.labs[2])
    course.next()
    assert "Next: lab 1.1" in terminal.getvalue(), "none is left after it, so the first"


def test_next_follows_the_unwritten_body_that_stops_a_test(course, lab1, terminal):
    write_starter(lab1, add="return a + b - double(0)", double='raise NotImplementedError("Task 2: double [really]")')
    course.test(["1.1"])
    assert "Task 1's tests stop at Task 2: double [really]\n  Next: task 2. A nudge: course hint 1.1" in \
        terminal.getvalue()
    course.hint("1.1", 1, None)
    course.next()
    text = terminal.getvalue()
    assert "Hint 1 for doubles." in text
    assert "Next: task 2 of lab 1.1, The adder. Task 1's tests stop at Task 2: double [really]\n" in text


def test_what_stops_the_first_task_comes_before_what_is_to_do_in_between(course, lab1, terminal):
    lab1.solution.write_text(lab1.solution.read_text() + "\n\ndef treble(a):\n    # TASK 3: treble\n    return 3 * a\n"
                                                         "    # END TASK\n")
    write_starter(lab1, add="return treble(a)", double='raise NotImplementedError("Task 2: double")')
    stub = 'raise NotImplementedError("Task 3: treble")'
    lab1.starter.write_text(lab1.starter.read_text().replace("return 3 * a", stub))
    course.test(["1.1"])
    assert "Task 1's tests stop at Task 3: treble\n  Next: task 3." in terminal.getvalue()


def test_a_failing_test_of_its_own_comes_before_an_unwritten_body(course, lab1, terminal):
    write_starter(lab1, add="return double(a) if b == 0 else 0", double='raise NotImplementedError("Task 2: double")')
    course.test(["1.1"])
    assert "Next: task 1." in terminal.getvalue() and "tests stop at" not in terminal.getvalue()


def test_when_all_is_done_next_says_so(course, lab1, lab2, terminal):
    write_starter(lab1)
    write_starter(lab2)
    course.next()
    assert terminal.getvalue().endswith("…\nEvery lab passes. Well done. Run all of them together: "
                                        "course run --strict\n")


def test_test_shows_the_task_to_work_on_and_the_way_on(course, lab1, terminal):
    half_done(lab1)
    assert course.test(["adder"]) == 1
    text = terminal.getvalue()
    assert "  ✓ Task 1 sums  2 tests\n  Task 2 doubles\n" in text and "add adds" not in text
    assert "· double doubles  3 points\n        still to do: Task 2: double\n" in text
    assert "2 of 3 tests, 3 of 6 points" in text and "Next: task 2. A nudge: course hint 1.1\n" in text


def test_all_shows_every_test(course, lab1, terminal):
    half_done(lab1)
    assert course.test(["adder"], is_full=True) == 1
    text = terminal.getvalue()
    assert "Task 1 sums" in text and "✓ add adds  2 points\n" in text and "by default  1 point\n" in text
    assert "· double doubles  3 points\n        still to do: Task 2: double" in text


def test_only_the_first_task_that_fails_is_shown_in_full(course, lab1, terminal):
    write_starter(lab1, add="return 0")
    course.test(["1.1"])
    text = terminal.getvalue()
    assert "✗ add adds  2 points\n        add(3, 0) gave 0, expected 3" in text and "double(4)" not in text
    assert "  ✗ Task 2 doubles  0 of 1 tests\n" in text
    assert "Next: task 1. A nudge: course hint 1.1   Every test: course test 1.1 --all\n" in text


def test_what_is_to_do_does_not_hide_what_fails(course, lab1, terminal):
    write_starter(lab1, add='raise NotImplementedError("Task 1: add")', double="return 0")
    course.test(["1.1"])
    text = terminal.getvalue()
    assert "· add counts by default  1 point\n        still to do: Task 1: add\n" in text
    assert "✗ double doubles  3 points\n        double(4) gave 0, expected 8" in text


def test_of_a_task_that_was_not_begun_no_failure_is_told(course, lab1, terminal):
    """Check a test that does not fail at the unwritten body, because nothing calls that body yet."""
    lab1.tests.write_text(lab1.tests.read_text().replace("got = lab.double(4)", "got = lab.add(4)"))
    half_done(lab1)
    course.test(["1.1"])
    text = terminal.getvalue()
    assert "· double doubles  3 points\n        still to do: Task 2: double\n" in text and "expected 8" not in text
    course.test(["1.1"], is_full=True)
    assert "double(4) gave 5, expected 8" in terminal.getvalue()


def test_one_task_is_tested_by_itself_and_nothing_is_remembered(course, lab1, project, terminal):
    write_starter(lab1, double="return 0")
    assert course.test(["1.1"], task=1) == 0
    assert "2 of 2 tests of this task. The whole lab: course test 1.1" in terminal.getvalue()
    assert course.test(["1.1"], task=2) == 1
    assert "✗ double doubles  3 points\n        double(4) gave 0, expected 8" in terminal.getvalue()
    assert not (project / ".course" / "results.json").exists()
    with pytest.raises(LabError, match=r"Lab 1\.1 adder has no task 7; its tasks are 1, 2\."):
        course.test(["1.1"], task=7)
    with pytest.raises(LabError, match="--task 1 needs a single lab, but 2 labs are given"):
        course.test(["all"], task=1)


def test_the_number_of_a_lab_is_no_prompt(course):
    with pytest.raises(LabError, match="'1.2' would be used as the prompt. To run a lab: course run --lab 1.2"):
        course.run(RunOptions("1.2", "tiny-tales", [], False, None))


def test_course_alone_says_what_to_do_next(project, monkeypatch, capsys):
    monkeypatch.chdir(PROJECT_ROOT)
    assert main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Next: ") and "  edit   phase-" in said


def test_the_page_of_a_phase_comes_first_when_one_enters_it(course, lab1, terminal):
    page = lab1.folder.parent.parent / "README.md"
    page.write_text("# Sums")
    course.next()
    assert "  first  phase-01-sums/README.md   (the phase's page; it says what to leave for later)" in \
        terminal.getvalue()
    half_done(lab1)
    course.next()
    assert "Testing changed labs: 1.1 …" in terminal.getvalue() and terminal.getvalue().count("first") == 1
    write_starter(lab1)
    course.next()
    assert "  first  phase-01-sums/README.md   (the parts named for this lab)" in terminal.getvalue()


def test_test_tells_a_broken_file_once_and_nothing_else(course, lab1, terminal):
    lab1.starter.write_text("print('here')\nimport nothing_of_that_name\n")
    assert course.test(["1.1"]) == 1
    header, message, printed, empty = terminal.getvalue().split("\n", 3)
    assert "cannot be imported: ModuleNotFoundError" in message and printed.strip() == "printed: here"
    assert empty.strip() == ""
    course.next()
    course.hint("1.1", 1, None)
    text = terminal.getvalue()
    assert "Next: lab 1.1, The adder. phase-01-sums/labs/lab-01-adder/starter.py cannot be" in text
    assert "--task N shows a hint anyway" in text and "Hint 1" not in text


def test_to_choose_a_lab_nothing_runs(course, lab1, lab2, terminal, monkeypatch):
    write_starter(lab1, add="while True: pass")
    write_starter(lab2, add="while True: pass")
    monkeypatch.setattr(course.progress, "_run", None)
    course.hint(None, 1, 1)
    assert "Lab 1.2, task 1" in terminal.getvalue()


def test_a_reason_is_told_once_and_repeated_as_the_same(course, lab1, terminal):
    write_starter(lab1, add="raise ValueError('no')")
    course.test(["1.1"], is_full=True)
    lines = terminal.getvalue().splitlines()
    assert sum("ValueError: no" in line for line in lines) == 1
    assert [line.split("point")[1] for line in lines if "✗" in line] == ["s", "  (same)", "s  (same)"]


def test_a_reason_that_is_not_the_last_one_told_is_named_by_its_test(course, lab1, terminal):
    lines = VerdictLines(course.console, lab1, graded_tests(lab1), is_full=True)
    for name, message in (("test_task_1_add_adds", "no"), ("test_task_1_add_counts_by_default", "never"),
                          ("test_double_doubles", "no")):
        lines.show(name, Verdict(False, "ValueError", message))
    assert terminal.getvalue().splitlines()[-1].endswith("✗ double doubles  3 points  (as: add adds)")


def test_what_a_failing_test_printed_is_shown(course, lab1, terminal):
    write_starter(lab1, add="print('adding')\n    return a + b", double="print('[red]', a)\n    return 0")
    course.test(["1.1"])
    text = terminal.getvalue()
    assert "double(4) gave 0, expected 8\n        printed: [red] 4\n" in text and "adding" not in text


def test_tests_that_were_not_run_are_told_apart(course, lab1, terminal):
    def run(lab, impls, on_verdict, on_poll):
        verdicts = {test.name: Verdict(False, "NotRun", "not run: because") for test in graded_tests(lab)}
        for name, verdict in verdicts.items():
            on_verdict(name, verdict)
        return {"starter": verdicts}

    half_done(lab1)
    course.progress._run = run
    course.test(["1.1"])
    assert terminal.getvalue().count("    – ") == 2 and terminal.getvalue().count("because") == 1
    assert "· Task 2 doubles  0 of 1 tests" in terminal.getvalue()


def test_ctrl_c_shows_what_is_known_and_exits_130(project, lab1):
    """Check the whole path: lines arrive while a test hangs, and Ctrl-C ends the command with a sentence."""
    write_starter(lab1, double="while True: pass")
    script = ("import functools, pathlib, signal, sys, course.commands\n"
              "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if pytest runs in the background\n"
              "course = course.commands.Course(pathlib.Path.cwd())\n"
              "course.progress._run = functools.partial(course.progress._run, time_limit_s=600)\n"
              "sys.exit(course.test(['1.1']))\n")
    run = subprocess.Popen([sys.executable, "-c", script], cwd=project, stdout=subprocess.PIPE, text=True)
    seen = []
    for line in run.stdout:
        seen.append(line.strip())
        if "Task 1" in line:
            run.send_signal(signal.SIGINT)
            break
    rest = run.stdout.read()
    assert run.wait() == 130
    assert seen[1:] == ["✓ Task 1 sums  2 tests"]
    assert rest.endswith("\n  Stopped after 2 of 3 tests; 2 of these pass.\n\n")


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
    assert terminal.getvalue().endswith("  Passed. Compare with `course solution 1.1`.\n\n")


def test_a_passed_lab_that_gives_the_engine_a_piece_says_how_to_see_it_decode(course, lab1, terminal):
    (lab1.folder / "lab.json").write_text('{"title": "x", "engine": null, "parts": {"block_pool": "add"}}')
    write_starter(lab1)
    assert course.test(["1.1"]) == 0
    assert terminal.getvalue().endswith("  Passed. Compare with `course solution 1.1`. See it decode: course run\n\n")


def test_an_untouched_lab_is_not_started(course, terminal):
    assert course.test([]) == 1
    assert "Not started: starter.py is as shipped" in terminal.getvalue()


class ScriptedSaves(Saves):
    """Scripted saves: ``edits`` while the command waits for one, ``meanwhile`` while tests run."""

    def __init__(self, labs, edits, meanwhile=()):
        super().__init__(labs)
        self.edits, self.meanwhile = list(edits), list(meanwhile)

    def wait(self):
        if not self.edits:
            raise KeyboardInterrupt
        self.edits.pop(0)()
        return super().wait()

    def interrupt(self):
        if self.meanwhile:
            self.meanwhile.pop(0)()
        super().interrupt()


def test_watch_tests_what_is_saved(course, lab1, lab2, terminal):
    def saves(labs):
        assert [lab.number for lab in labs] == ["1.1", "1.2"]
        return ScriptedSaves(labs, edits=[lambda: half_done(lab1), lambda: write_starter(lab1)])

    assert course.watch(saves_of=saves) == 0
    text = terminal.getvalue()
    assert text.index("Not started") < text.index("2 of 3 tests") < text.index("3 of 3 tests")
    assert text.index("3 of 3 tests") < text.index("Next: lab 1.2")


def test_a_save_while_tests_run_starts_them_anew(course, lab1, terminal):
    write_starter(lab1, add="while True: pass")

    def saves(labs):
        return ScriptedSaves(labs, edits=[], meanwhile=[lambda: None, lambda: write_starter(lab1)])

    course.progress._run = partial(course.progress._run, time_limit_s=600)
    course.watch(saves_of=saves)
    text = terminal.getvalue()
    assert "3 of 3 tests" in text and "did not finish" not in text and text.count("Lab 1.1  The adder") == 2


def test_a_save_is_noticed_by_time_or_size(lab1, lab2, monkeypatch):
    edits = iter([lambda: None, lambda: half_done(lab2), lab1.starter.unlink, lambda: write_starter(lab1)])
    monkeypatch.setattr("course.student.watch_saves.time.sleep", lambda seconds: next(edits)())
    saves = Saves([lab1, lab2])
    assert [saves.wait().number, saves.wait().number] == ["1.2", "1.1"]


def test_a_line_of_code_in_a_hint_is_never_cut(course, lab1, terminal):
    line = "total = " + " + ".join(f"number_{i}" for i in range(20))
    text = lab1.hints.read_text().replace("### Hint 3\n", f"### Hint 3\n\n```python\n{line}\n```\n\n", 1)
    lab1.hints.write_text(text)
    course.hint("1.1", 3, 1)
    assert line in terminal.getvalue()


def test_a_long_line_of_a_list_in_a_hint_is_never_cut(course, lab1, terminal):
    line = "- First " + " ".join(f"word{i}" for i in range(40)) + ", then `the_last()`."
    lab1.hints.write_text(lab1.hints.read_text().replace("### Hint 3\n", f"### Hint 3\n\n{line}\n\n", 1))
    course.hint("1.1", 3, 1)
    assert line in terminal.getvalue()


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
    assert "Lab 1.1 adder passes; there is nothing left to do" in terminal.getvalue()


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


def test_reset_may_be_bare(course, lab1, project, terminal):
    assert course.reset("1.1", is_bare=True) == 0
    assert "starter.py is bare." in terminal.getvalue() and not (project / ".course" / "backups").exists()
    assert "The invariants:" in lab1.starter.read_text() and "After:" not in lab1.starter.read_text()
    course.reset("1.1", is_bare=True)
    assert "is bare already; nothing to reset" in terminal.getvalue()
    course.test(["1.1"])
    assert "Not started: starter.py is bare. The invariants are at its top." in terminal.getvalue()
    course.status()
    assert terminal.getvalue().count("not started") == 2
    lab1.starter.write_text("# work")
    course.reset("1.1", is_bare=True)
    assert "Your work is kept in .course/backups" in terminal.getvalue()
    course.reset("1.1")
    assert "as shipped again" in terminal.getvalue() and "After:" in lab1.starter.read_text()


def test_without_pytest_the_command_says_what_to_install(course, lab1, monkeypatch):
    half_done(lab1)
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(LabError, match="Testing needs pytest: pip install pytest"):
        course.test(["1.1"])


def test_reset_brings_a_deleted_starter_back(course, lab1):
    shipped = lab1.starter.read_text()
    lab1.starter.unlink()
    course.reset("1.1")
    assert lab1.starter.read_text() == shipped


def test_the_solution_opens_when_the_lab_passes_or_with_spoil(course, lab1, capsys):
    half_done(lab1)
    with pytest.raises(LabError, match=r"Lab 1.1 adder is in progress 2/3; its solution is shown once it passes"):
        course.solution("1.1", spoil=False)
    course.solution("1.1", spoil=True)
    write_starter(lab1)
    course.solution("1.1", spoil=False)
    text = capsys.readouterr().out
    assert text.count("return a + b") == 2 and "TASK" not in text


def test_reset_and_solution_mean_the_lab_one_stands_in(course, lab2, monkeypatch, capsys):
    write_starter(lab2)
    monkeypatch.chdir(lab2.folder)
    course.solution(None, spoil=False)
    assert "return a + b" in capsys.readouterr().out
    course.reset(None)
    assert "NotImplementedError" in lab2.starter.read_text()


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


def test_check_shows_labs_in_their_order_whoever_is_first(course, terminal, monkeypatch):
    second_is_done = threading.Event()

    def check(lab, on_poll):
        if lab.number == "1.1":
            assert second_is_done.wait(timeout=60), "the labs did not run side by side"
        second_is_done.set()
        return [], f"proved {lab.number}"

    monkeypatch.setattr("course.authoring.commands.check_lab", check)
    monkeypatch.setattr("course.authoring.commands.num_cores", lambda: 2)
    assert course.check([]) == 0
    assert [line.split("  ")[0] for line in terminal.getvalue().splitlines()[:2]] == ["✓ 1.1 adder", "✓ 1.2 again"]


def test_an_error_of_one_job_ends_the_others():
    begun, ended = [], []

    def endless(on_poll):
        begun.append(True)
        try:
            while True:
                on_poll()
        except Stopped:
            ended.append(True)
            raise

    def broken(on_poll):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(side_by_side([broken, endless, endless], num_at_once=2))
    assert ended == begun


def test_ctrl_c_ends_all_checks_and_their_processes(project, lab1, lab2):
    for lab in (lab1, lab2):
        hang = ("import os, pathlib\n    pathlib.Path(__file__).with_suffix('.pid').write_text(str(os.getpid()))\n"
                "    while True: pass")
        lab.solution.write_text(lab.solution.read_text().replace("return a + b", hang))
    script = ("import pathlib, signal, sys\n"
              "import course.authoring.commands, course.authoring.check_lab, course.cli, course.commands\n"
              "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
              "course.authoring.check_lab.TIME_LIMIT_S = 600\n"
              "course.authoring.commands.num_cores = lambda: 2\n"
              "course.cli.Course = lambda: course.commands.Course(pathlib.Path.cwd())\n"
              "sys.exit(course.cli.main(['check']))\n")
    run = subprocess.Popen([sys.executable, "-c", script], cwd=project, stdout=subprocess.PIPE, text=True)
    files = [lab.folder / "solution.pid" for lab in (lab1, lab2)]
    while run.poll() is None and not all(file.is_file() and file.read_text() for file in files):
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    assert (run.wait(), run.stdout.read()) == (130, "")
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


# ---- the wording of the command itself


def test_every_command_of_the_plan_is_there():
    text = make_parser().format_help()
    for command in COMMANDS:
        assert f"\n    {command} " in text


def test_an_unknown_lab_is_an_error_with_the_list(capsys):
    assert main(["test", "block-alocator"]) == 2
    error = capsys.readouterr().err
    assert "Did you mean 2.1 block-allocator?" in error and "1.2  fragmentation" in error


@pytest.mark.parametrize("typed, guess", [("tset", " Did you mean `course test`?"),
                                          ("Hint", " Did you mean `course hint`?"), ("zzz", "")])
def test_a_misspelt_command_gets_the_nearest(capsys, typed, guess):
    assert main([typed, "2.1"]) == 2
    assert capsys.readouterr().err == f"There is no command '{typed}'.{guess} The commands are {', '.join(COMMANDS)}.\n"


def test_a_command_that_is_told_to_end_ends_like_with_ctrl_c(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("course.cli._run", lambda arguments: signal.raise_signal(signal.SIGTERM))
    assert main(["status"]) == 130 and signal.getsignal(signal.SIGTERM) is before


def test_without_labs_the_command_says_how_to_get_them(tmp_path):
    """Check an installation from a wheel: there are no labs next to the package, and pytest may be missing."""
    ignored = shutil.ignore_patterns("test_*", "conftest.py", "__pycache__")
    shutil.copytree(PROJECT_ROOT / "course", tmp_path / "site" / "course", ignore=ignored)
    (tmp_path / "site" / "mini_vllm").symlink_to(PROJECT_ROOT / "mini_vllm")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a clone" / "phase-01-sums" / "labs").mkdir(parents=True)
    script = ("import sys; sys.modules['pytest'] = None\nimport course\nprint(course.__file__)\n"
              "from course.cli import main; sys.exit(main(['next']))")
    for folder, expected in ("empty", NO_COURSE), ("a clone/phase-01-sums", APART.format(folder=tmp_path / "a clone")):
        run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path / folder, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
        assert run.stdout.startswith(str(tmp_path / "site"))
        assert (run.returncode, run.stderr) == (2, f"{expected}\n")
    assert "`course init my-course`" in NO_COURSE and "`pip install -e .`" in APART


@pytest.mark.parametrize("no_color", [{}, {"NO_COLOR": "1"}])
def test_a_pipe_gets_no_colours(elsewhere, no_color):
    run = subprocess.run([sys.executable, "-m", "course.cli", "status"], cwd=elsewhere, capture_output=True, text=True,
                         env={**os.environ, **no_color})
    assert run.returncode == 0 and "1.1" in run.stdout and "\x1b" not in run.stdout
