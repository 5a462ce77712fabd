"""The plugin and the runner: every misbehaving student file gets a verdict, and only its own lab is affected."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import course.pytest_run.pytest_process
import course.pytest_run.run_lab
from course.core import resource_limits
from course.core.failure_messages import TimeLimitExceeded, why_failed
from course.core.result import Verdict
from course.lab.graded_tests import GradedTest
from course.lab.lab import PROJECT_ROOT
from course.lab.load_module import load_file
from course.pytest_run.points import Points, Score
from course.pytest_run.run_lab import run_lab, run_lab_together
from course.test_forked import ForkedPopen


def write_starter(lab, add="return a + b", double="return add(a, a)", top=""):
    """Write a starter with these bodies."""
    text = lab.solution.read_text().replace("return a + b", add).replace("return add(a, a)", double)
    lab.starter.write_text(top + text)


def plain_pytest(project, *arguments, popen=ForkedPopen):
    """Run pytest in ``project``, and return the exit status and the output.

    ``subprocess.Popen`` as ``popen`` starts a whole interpreter.
    """
    with tempfile.TemporaryFile() as output:
        run = popen([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], cwd=project, stdout=output,
                    stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "200", "CI": "1",
                                                   "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
        code = run.wait()
        output.seek(0)
        return code, output.read().decode()


#: Plugins that happen to be installed cost time in every process, so only the needed plugins are loaded, by name.
ONE_WORKER, TWO_WORKERS = (("-p", "xdist.plugin", "-n", number) for number in "12")


def messages(lab, **options):
    return {name: v.message for name, v in run_lab(lab, ["starter"], **options)["starter"].items() if not v.passed}


# ---- the plugin, by the plain command


def test_a_fresh_checkout_tests_the_solutions_and_says_so(project):
    code, output = plain_pytest(project, "-q", popen=subprocess.Popen)
    assert code == 0 and "8 passed" in output
    assert "lab 1.1 tests phase-01-sums/labs/lab-01-adder/solution.py  (starter.py is untouched)" in output
    assert "lab 1.2 solution: 3 of 3 tests, 6 of 6 points" in output


def test_an_edited_starter_is_tested_by_the_same_command(project, lab1):
    write_starter(lab1, double="return 0")
    code, output = plain_pytest(project, "-q")
    assert code == 1 and "1 failed, 11 passed" in output
    assert "lab 1.1 tests phase-01-sums/labs/lab-01-adder/starter.py" in output
    assert "lab 1.1 starter: 2 of 3 tests, 3 of 6 points" in output
    assert "double(4) gave 0, expected 8" in output


def test_the_shipped_starter_fails_every_test_by_name(project):
    code, output = plain_pytest(project, "-q", "--impl", "starter")
    assert code == 1 and "8 failed" in output and "passed" not in output
    assert output.count("NotImplementedError: Task 1: add") >= 6
    assert "test_double_doubles[starter] - NotImplementedError: Task 2: double" in output


def test_any_file_can_be_tested(project, lab1):
    other = project / "ana's file.py"
    other.write_text(lab1.solution.read_text().replace("a + b", "a - b"))
    code, output = plain_pytest(project, "-q", str(lab1.folder), "--impl", "ana's file.py")
    assert code == 1 and "lab 1.1 tests ana's file.py" in output
    code, output = plain_pytest(project, "-q", "--impl", "ana's file.py")
    assert code == 4 and "is one file, but several labs are selected: 1.1 adder, 1.2 again" in output
    code, output = plain_pytest(project, "-q", "--impl", "nobody.py")
    assert code == 4
    assert "--impl nobody.py: not one of auto, starter, solution, engine, and there is no such file" in output


def test_a_lab_without_a_joint_is_left_out_of_the_engine_run_not_skipped(project):
    code, output = plain_pytest(project, "-q", "--impl", "engine")
    assert code == 5 and "skipped" not in output and "deselected" in output


def test_several_modules_of_the_engine_are_tested_as_one_and_all_are_named(project, lab1):
    (lab1.folder / "lab.json").write_text('{"title": "x", "engine": ["sums", "twice"]}')
    (project / "sums.py").write_text("def add(a, b=1):\n    return a + b\n\n\ndef double(a):\n    return 0\n")
    (project / "twice.py").write_text("def double(a):\n    return 2 * a\n")
    code, output = plain_pytest(project, "-q", "--impl", "engine", "-o", "pythonpath=.")
    assert code == 0 and "lab 1.1 tests sums.py and twice.py\n" in output
    assert "lab 1.1 engine: 3 of 3 tests, 6 of 6 points" in output


def test_a_broken_file_is_an_error_a_test_and_the_other_labs_go_on(project, lab1):
    lab1.starter.write_text("def add(a, b:\n    pass\n")
    code, output = plain_pytest(project, "-q")
    assert code == 1 and "8 passed, 4 errors" in output
    assert "lab-01-adder/starter.py does not parse, line 1: " in output


# ---- the plugin, on several cores


def test_workers_report_and_the_controller_prints(project, lab1):
    write_starter(lab1, double="return 0")
    lines = {}
    for workers in ((), TWO_WORKERS):
        code, output = plain_pytest(project, "-q", *workers, popen=subprocess.Popen if workers else ForkedPopen)
        assert code == 1 and "1 failed, 11 passed" in output
        assert "double(4) gave 0, expected 8" in output
        lines[workers] = [line for line in output.splitlines() if line.startswith("lab 1.")]
    assert lines[TWO_WORKERS] == lines[()] == [
        "lab 1.1 tests phase-01-sums/labs/lab-01-adder/solution.py",
        "lab 1.1 tests phase-01-sums/labs/lab-01-adder/starter.py",
        "lab 1.2 tests phase-01-sums/labs/lab-02-again/solution.py  (starter.py is untouched)",
        "lab 1.1 solution: 3 of 3 tests, 6 of 6 points (the course's own solution: no score)",
        "lab 1.1 starter: 2 of 3 tests, 3 of 6 points",
        "lab 1.2 solution: 3 of 3 tests, 6 of 6 points (the course's own solution: no score; starter.py is untouched "
        "and was not tested)"]


def test_cases_of_one_test_count_together_in_whatever_order_they_come():
    points, tests = Points(), [GradedTest("adds", 2, 1, True), GradedTest("doubles", 3, 2, True)]
    for lab_number, label in [("1.10", "starter"), ("1.2", "starter"), ("1.2", "solution")]:
        points.expect(lab_number, label, tests)
    for lab_number, label, case, passed in [
            ("1.10", "starter", "adds[1]", True), ("1.10", "starter", "adds[2]", True),
            ("1.2", "starter", "adds[1]", True), ("1.2", "starter", "adds[2]", False),
            ("1.2", "solution", "adds[1]", True), ("1.2", "starter", "doubles", True)]:
        test = case.split("[")[0]
        points.add(Score(lab_number, label, test, case, {"adds": 2, "doubles": 1}[test], Verdict(passed)))
    assert points.lines() == [
        "lab 1.2 solution: 0 of 2 tests, 0 of 5 points (0 of 0 that ran passed, 2 were not run)",
        "lab 1.2 starter: 1 of 2 tests, 3 of 5 points",
        "lab 1.10 starter: 1 of 2 tests, 2 of 5 points (1 of 1 that ran passed, 1 was not run)"]
    adds, _ = points.tallies["1.2", "solution"].results()
    assert adds.error == "NotRun" and adds.message == "only 1 of its 2 cases were run"


def test_stubs_broken_files_and_time_limits_speak_through_workers(project, lab1, lab2):
    write_starter(lab1, "while b == 1: pass\n    return a + b", 'raise NotImplementedError("Task 2: double")')
    lab2.starter.write_text("def add(a, b:\n    pass\n")
    code, output = plain_pytest(project, "-q", "--impl", "starter", "--time-limit", "0.2", *ONE_WORKER)
    assert code == 1 and "lab-02-again/starter.py does not parse, line 1: " in output
    assert ("the test did not finish within 0.2 s of CPU time (starter.py:7 in add): is there a loop that never ends, "
            "or is it too slow?" in output)
    assert "test_double_doubles[starter] - NotImplementedError: Task 2: double" in output


def test_one_file_for_several_labs_is_refused_on_several_cores_too(project, lab1):
    code, output = plain_pytest(project, "-q", "--impl", str(lab1.solution), *TWO_WORKERS)
    assert code == 4 and "is one file, but several labs are selected: 1.1 adder, 1.2 again" in output


@pytest.mark.parametrize("num_workers, given, expected", [(2, {}, "1"), (None, {}, None),
                                                           (2, {"OMP_NUM_THREADS": "4"}, "4")])
def test_each_of_several_processes_multiplies_with_one_thread(monkeypatch, num_workers, given, expected):
    conftest = load_file(PROJECT_ROOT / "conftest.py")
    environment = dict(given)
    monkeypatch.setattr(conftest.os, "environ", environment)
    conftest.pytest_configure(SimpleNamespace(getoption=lambda name, default: num_workers,
                                              addinivalue_line=lambda name, line: None))
    assert environment.get("OMP_NUM_THREADS") == expected
    assert environment.get("MKL_NUM_THREADS") == ("1" if num_workers else None)


# ---- the runner, in a separate process


def test_a_right_starter_passes(lab1):
    """Check that the process starts without the modules that only commands need: a third of its starting time."""
    write_starter(lab1, top="import sys\nassert not {'rich', 'numpy', 'mlx', 'mini_vllm'} & set(sys.modules)\n")
    assert messages(lab1) == {}


def test_a_wrong_result_is_told_in_the_words_of_the_test(lab1, forked):
    write_starter(lab1, add="return a if b == 0 else a + b + 1")
    failed = messages(lab1)
    assert failed["test_task_1_add_adds"] == "add(3, 2) gave 6, expected 5: it must add"
    assert set(failed) == {"test_task_1_add_adds", "test_task_1_add_counts_by_default", "test_double_doubles"}


def test_an_exception_says_where_in_the_students_file(lab1, forked):
    write_starter(lab1, double="return {}[a]")
    assert messages(lab1) == {"test_double_doubles": "KeyError: 4 (starter.py:14 in double)"}


@pytest.mark.parametrize("text, complaint", [
    ("def add(a, b:\n", "starter.py does not parse, line 1: "),
    ("x = 1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero (starter.py:1 in <module>)"),
    ("raise SystemExit(0)\n", "cannot be imported: it calls exit() (starter.py:1 in <module>)"),
    ("import pytest\npytest.skip('all is well', allow_module_level=True)\n", "cannot be imported: Skipped"),
    ("x = 'a\0b'\n", "starter.py"),
    ("while True: pass\n", "importing phase-01-sums/labs/lab-01-adder/starter.py did not finish within 0.3 s"),
    ("while True: print('x' * 1_000_000)\n",
     "cannot be imported: it printed more than 16 MB (starter.py:1 in <module>): is there a print in a loop?"),
    ("print('x' * 5_000_000)\nraise ValueError('y' * 1_000_000)\n", "more characters"),
])
def test_a_file_that_cannot_be_imported_says_why_for_every_test(lab1, forked, text, complaint):
    lab1.starter.write_text(text)
    failed = messages(lab1, time_limit_s=0.3 if text == "while True: pass\n" else 1)
    assert len(failed) == 3 and len(set(failed.values())) == 1
    (message,) = set(failed.values())
    assert complaint in message and len(message) < 2000


def test_a_missing_file_says_how_to_get_it_back(lab1, forked):
    lab1.starter.unlink()
    assert set(messages(lab1).values()) == {
        "phase-01-sums/labs/lab-01-adder/starter.py is missing. `course reset 1.1` restores the shipped one."}


def test_a_loop_that_never_ends_costs_its_own_test_only(lab1, forked):
    write_starter(lab1, double="while True: pass")
    (name, message), = messages(lab1, time_limit_s=0.2).items()
    assert name == "test_double_doubles"
    assert message == ("the test did not finish within 0.2 s of CPU time (starter.py:14 in double): "
                       "is there a loop that never ends, or is it too slow?")


def test_after_two_tests_that_never_end_the_rest_is_not_run(lab1, forked):
    write_starter(lab1, add="while True: pass")
    assert [message.partition(" (")[0] for message in messages(lab1, time_limit_s=0.2).values()] == [
        "the test did not finish within 0.2 s of CPU time", "the test did not finish within 0.2 s of CPU time",
        "not run: 2 tests before it did not finish"]


def test_plain_pytest_gives_up_too_and_on_that_file_only(project, lab1):
    write_starter(lab1, add="while True: pass")
    code, output = plain_pytest(project, "-q", str(lab1.folder), "--time-limit", "0.2")
    assert code == 1 and "2 failed, 4 passed, 2 errors" in output
    assert "test_task_1_add_adds[starter-2] - not run: another case of this test did not finish" in output
    assert "test_double_doubles[starter] - not run: 2 tests before it did not finish" in output


#: With this, the kernel ends a test that cannot be interrupted one second earlier than usual.
NO_GRACE = "from course.core import resource_limits; resource_limits.GRACE_S = 0\n"


def test_a_killed_test_counts_among_those_that_never_end(lab1, forked):
    write_starter(lab1, top=NO_GRACE, add="import signal; b == 1 and signal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
                                          "    while b < 3: pass\n    return a + b")
    failed = list(messages(lab1, time_limit_s=0.2).values())
    assert "did not finish within 0.2 s of CPU time (starter.py" in failed[0]
    assert "did not finish within 0.2 s of CPU time and could not be interrupted" in failed[1]
    assert failed[2:] == ["not run: 2 tests before it did not finish"]


def test_what_only_waits_is_ended_by_the_clock_on_the_wall(monkeypatch):
    monkeypatch.setattr(resource_limits, "MIN_WALL_S", 0.05)
    with pytest.raises(TimeLimitExceeded) as caught, resource_limits.time_limit(0.01):
        signal.pause()
    sentence = why_failed(caught.value, Path("starter.py"))
    assert sentence == "the test did not finish within 0.1 s by the clock: does it wait for something?"


def test_a_lab_may_have_a_multiple_of_the_time(lab1, forked):
    (lab1.folder / "lab.json").write_text('{"title": "x", "engine": null, "time_factor": 2}')
    write_starter(lab1, double="while True: pass")
    message, = messages(lab1, time_limit_s=0.1).values()
    assert message.startswith("the test did not finish within 0.2 s of CPU time")


def test_a_loop_that_catches_everything_is_killed(lab1, forked):
    write_starter(lab1, top=NO_GRACE, add="import signal; signal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
                                          "    while b == 2: pass\n    return a + b")
    failed = messages(lab1, time_limit_s=0.2)
    assert list(failed) == ["test_task_1_add_adds"], "the other tests must go on in a new process"
    assert "could not be interrupted" in failed["test_task_1_add_adds"]


@pytest.mark.parametrize("statement, status", [("import os; os._exit(0)", "0"), ("import os; os.abort()", "-6")])
def test_a_process_that_ends_early_is_no_pass(lab1, forked, statement, status):
    write_starter(lab1, double=statement)
    failed = messages(lab1)
    assert list(failed) == ["test_double_doubles"]
    assert f"the process ended during this test, with exit status {status}" in failed["test_double_doubles"]


def test_after_three_lost_processes_the_rest_is_not_run(lab1, forked, monkeypatch):
    monkeypatch.setattr(course.pytest_run.run_lab, "MAX_LOST_PROCESSES", 2)
    write_starter(lab1, top="import os; os._exit(0)\n")
    assert [message[:40] for message in messages(lab1).values()] == [
        "the process ended during this test, with", "the process ended during this test, with",
        "not run: 2 tests before it ended their p"]


@pytest.mark.parametrize("statement", ["import pytest; pytest.skip('fine')", "import pytest; pytest.xfail('fine')"])
def test_a_test_skipped_by_the_student_does_not_count(lab1, forked, statement):
    write_starter(lab1, double=statement)
    assert "a skipped test does not count" in messages(lab1)["test_double_doubles"]


def test_endless_output_is_stopped_and_kept_short(lab1, forked, monkeypatch):
    monkeypatch.setattr(course.pytest_run.pytest_process, "MAX_FILE_BYTES", 1 << 20)
    write_starter(lab1, double="while True: print('spam' * 1000)")
    assert messages(lab1) == {"test_double_doubles": "it printed more than 1 MB (starter.py:14 in double): "
                                                     "is there a print in a loop?"}


def test_after_two_floods_the_rest_is_not_run(lab1, forked, monkeypatch):
    monkeypatch.setattr(course.pytest_run.pytest_process, "MAX_FILE_BYTES", 1 << 20)
    write_starter(lab1, add="while True: print('spam' * 1000)")
    assert list(messages(lab1).values())[2:] == ["not run: 2 tests before it did not finish"]


def test_a_long_message_says_how_much_is_left_out_and_where_it_was(lab1, forked):
    write_starter(lab1, double="raise ValueError('x' * 3000)")
    (message,) = messages(lab1).values()
    assert message.endswith("x\n… and 1,500 more characters (starter.py:14 in double)")


def test_exit_in_a_test_is_named(lab1, forked):
    write_starter(lab1, double="import sys; sys.exit(3)")
    assert messages(lab1) == {"test_double_doubles": "it calls exit() (starter.py:14 in double)"}


def test_the_last_lines_that_a_failing_test_printed_are_kept(lab1, forked):
    write_starter(lab1, add="print('adding')\n    return a + b",
                  double="for i in range(9): print('line', i)\n    print('x' * 1000)\n    return 0")
    verdicts = run_lab(lab1, ["starter"])["starter"]
    assert verdicts["test_task_1_add_adds"].printed == ""
    assert verdicts["test_double_doubles"].printed.splitlines() == [
        "line 5", "line 6", "line 7", "line 8", "x" * 200 + "…"]


# ---- during a run


def test_each_verdict_is_told_when_the_test_is_over(lab1, forked):
    write_starter(lab1, double="while True: pass")
    told = []

    class Enough(Exception):
        pass

    def stop_at_double():
        if len(told) == 2:
            raise Enough

    with pytest.raises(Enough):
        run_lab(lab1, ["starter"], time_limit_s=600, on_verdict=lambda *told_now: told.append(told_now),
                on_poll=stop_at_double)
    assert [(name, verdict.passed) for name, verdict in told] == [
        ("test_task_1_add_adds", True), ("test_task_1_add_counts_by_default", True)], "a test with cases is told once"


def test_an_interrupted_run_leaves_no_process(lab1, forked, tmp_path):
    pid_file = tmp_path / "pid"
    write_starter(lab1, add=f"import os, pathlib; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n"
                            "    while True: pass")

    def interrupt():
        if pid_file.exists() and pid_file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_lab(lab1, ["starter"], time_limit_s=600, on_poll=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_garbage_in_the_report_file_is_passed_over(lab1, forked):
    write_starter(lab1, double="import sys\n"
                               "    open(sys.argv[sys.argv.index('--report') + 1], 'a').write('[]\\n{}\\nx\\n')")
    assert "double(4) gave" in messages(lab1)["test_double_doubles"]


def test_many_files_can_share_a_process(lab1, forked, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(lab1.solution.read_text().replace("a + b", "a - b"))
    verdicts = run_lab_together(lab1, ["solution", "starter", wrong], 5)
    assert {label: sum(v.passed for v in by_test.values()) for label, by_test in verdicts.items()} == {
        "solution": 3, "starter": 0, "wrong": 0}
