"""Grading with plain pytest: what a file earns, what is recorded, and that no file ends more than its own lab."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from course.core.failure_messages import EndsPytest, Untellable, safe_str
from course.core.result import LabResult, Outcome
from course.core.scrub_paths import without_paths
from course.grading.grade_file.grade_json import FileRun
from course.pytest_run.exception_guard import tamed
from course.pytest_run.targets import Choice, Impl, labels_of
from course.pytest_run.test_run_lab import TWO_WORKERS, plain_pytest, write_starter

NAMES = ["test_task_1_add_adds", "test_task_1_add_counts_by_default", "test_double_doubles"]
BOOM = "class Boom(Exception):\n        {}\n        __repr__ = __str__\n    raise Boom('ha')"
NO_TEXT = BOOM.format("def __str__(self): raise {}")
LYING = "class Boom(Exception):\n        __class__ = {}\n    raise Boom('ha')"
ENDED = "the process ended during this test, with exit status {}: does the file under test call os._exit(), or crash"

#: What is inserted before the file, or into ``double``, which is worth 3 of 6 points; the points that the file earns;
#: and the message. The files of this first table can be tested in one process with others.
HOSTILE = {
    "interrupts_import": ("raise KeyboardInterrupt", "", 0, "it raises KeyboardInterrupt (interrupts_import.py:1 in"),
    "exits_import": ("raise SystemExit(0)", "", 0, "cannot be imported: it calls exit()"),
    "skips_import": ("import pytest; pytest.exit('fine', 0)", "", 0, "it calls pytest.exit() (skips_import.py:1"),
    "lies_import": (LYING.format("SystemExit").replace("\n    raise", "\nraise"), "", 0, "that hides its class"),
    "interrupts": ("", "raise KeyboardInterrupt", 3, "it raises KeyboardInterrupt (interrupts.py:14 in double)"),
    "exits": ("", "raise SystemExit(0)", 3, "it calls exit() (exits.py:14 in double)"),
    "ends_pytest": ("", "import pytest; pytest.exit('fine', 0)", 3, "it calls pytest.exit() (ends_pytest.py:14"),
    "no_text": ("", NO_TEXT.format("ValueError"), 3, "Boom: <its __str__ raised ValueError> (no_text.py:17"),
    "no_text_exit": ("", NO_TEXT.format("SystemExit(0)"), 3, "Boom: <its __str__ raised SystemExit>"),
    "no_text_interrupt": ("", NO_TEXT.format("KeyboardInterrupt"), 3, "Boom: <its __str__ raised KeyboardInterrupt>"),
    "endless_text": ("", BOOM.format("def __str__(self):\n            while True: pass"), 3,
                     "the test did not finish within 1 s of CPU time (endless_text.py:16 in __str__)"),
    "long_text": ("", BOOM.format("def __str__(self): return 'x' * 10_000_000"), 3, "more characters (long_text.py:17"),
    "lies": ("", LYING.format("KeyboardInterrupt"), 3, "it raises Boom, an exception that hides its class (lies.py:16"),
    "class_raises": ("", LYING.format("property(lambda self: 1 / 0)"), 3, "it raises Boom, an exception that hides"),
    "no_name": ("", "Meta = type('Meta', (type,), {'__name__': property(lambda self: 1 / 0)})\n"
                    "    raise Meta('Boom', (Exception,), {})('ha')", 3, "Boom: ha (no_name.py:15 in double)"),
    "recursion": ("", "return double(a)", 3, "RecursionError: maximum recursion depth exceeded"),
    "warns": ("", "import warnings; warnings.simplefilter('error'); warnings.warn('ha')\n    return 8", 3,
              "UserWarning: ha (warns.py:14 in double)"),
    "elsewhere": ("import os; os.chdir('/')", "", 6, ""),
    "no_output": ("import sys; sys.stdout = sys.stderr = None", "print(1)\n    return 2 * a", 6, ""),
}
#: The files of this second table end their process, spoil it, or keep it from ending.
DEADLY = {
    "ends_import": ("import os; os._exit(0)", "", 0, ENDED.format(0)),
    "ends": ("", "import os; os._exit(0)", 3, ENDED.format(0)),
    "crashes": ("", "import ctypes; ctypes.string_at(0)", 3, ENDED.format(-11)),
    "signals": ("", "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n    return 8", 3, ENDED.format(2)),
    "floods": ("", "while True: print('spam' * 1000)", 3, "it printed more than 1 MB (floods.py:14 in double)"),
    "no_pytest": ("import sys; sys.modules['pytest'] = sys.modules['_pytest'] = None", "", 6, ""),
    "thread": ("import threading; threading.Thread(target=threading.Event().wait).start()", "", 6, ""),
}


@pytest.fixture
def heeds_ctrl_c():
    """Restore the default handling of SIGINT, which a process started in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def hostile_file(lab, folder, name, top, double):
    write_starter(lab, double=double or "return add(a, a)", top=top and f"{top}\n")
    return lab.starter.rename(folder / f"{name}.py")


@pytest.mark.parametrize("name", DEADLY)
def test_a_file_that_takes_its_process_along_keeps_what_it_earned(lab1, forked, tmp_path, monkeypatch, name):
    monkeypatch.setattr("course.pytest_run.pytest_process.MAX_FILE_BYTES", 1 << 20)
    top, double, points, said = DEADLY[name]
    (impl,) = Choice([str(hostile_file(lab1, tmp_path, name, top, double))], tmp_path).impls(lab1)
    run, began_s = FileRun(impl, 5.0, names=list(NAMES)), time.monotonic()
    verdicts = [run.verdict(test) for test in NAMES]
    assert sum(worth for worth, verdict in zip((2, 1, 3), verdicts) if verdict.passed) == points
    assert said in "".join(verdict.message for verdict in verdicts)
    assert run.graded.outcome is Outcome.GRADED and time.monotonic() - began_s < 30, "a thread is not waited for"


def test_what_a_file_raises_ends_its_own_test_and_it_is_said_why(project, lab1, tmp_path):
    """Test all of them in one process, where they could affect each other. Separate processes run the same code."""
    files = [hostile_file(lab1, tmp_path, name, top, double) for name, (top, double, _, _) in HOSTILE.items()]
    code, output = plain_pytest(project, "-q", "--tb=short", str(lab1.folder), "--time-limit", "1", "--report",
                                "report", *(f"--impl={file}" for file in files))
    assert code == 1 and "INTERNALERROR" not in output and len(output) < 100_000
    events = list(map(json.loads, (project / "report").read_text().splitlines()))
    for name, (_, _, points, said) in HOSTILE.items():
        assert f"lab 1.1 {name}: {points // 2} of 3 tests, {points} of 6 points\n".replace(": 1 ", ": 2 ") in output
        assert said in "".join(event.get("message", "") for event in events if event.get("impl") == name), name


# ---- what is recorded


def grade(project, *arguments):
    """Return the exit status, the output, the JSON and the XML tree."""
    code, output = plain_pytest(project, "-q", "--grade-json", "out.json", "--junitxml", "out.xml", *arguments)
    xml = project / "out.xml"
    return code, output, json.loads((project / "out.json").read_text()), ET.parse(xml) if xml.exists() else None


def earned(report):
    return {(score["lab"], score["impl"]): score["points"] for score in report["scores"]}


def properties(element):
    return {one.get("name"): one.get("value") for one in element.findall("properties/property")}


def test_two_files_of_one_name(project, lab1):
    for name, double in (("ana", "return add(a, a)"), ("ben", "print('spam')\n    raise ValueError(__file__)")):
        write_starter(lab1, double=double)
        (project / name).mkdir()
        lab1.starter.rename(project / name / "starter.py")
    code, output, report, xml = grade(project, str(lab1.folder), "--impl", "ana/starter.py", "--impl", "ben/starter.py")
    assert code == 1 and "lab 1.1 ben/starter: 2 of 3 tests, 3 of 6 points\n" in output
    assert "out.json: in-process: a malicious file can forge this score; `course grade` does not accept it" in output
    assert report["trusted"] is True and report["is_finished"] is True and "forge" in report["note"]
    assert earned(report) == {("1.1", "ana/starter"): 6, ("1.1", "ben/starter"): 3}
    assert [score["file"] for score in report["scores"]] == ["ana/starter.py", "ben/starter.py"]
    ana, ben = map(LabResult.from_json, report["labs"])
    assert (ana.points, ana.max_points, ben.points) == (6, 6, 3)
    assert [test.name for test in ana.tests] == NAMES and [test.task for test in ana.tests] == [1, 1, 2]
    assert ben.tests[2].message == "ValueError: ben/starter.py (starter.py:15 in double)"
    assert (ben.tests[2].error, ben.tests[2].printed) == ("ValueError", "spam")
    assert ana.file_sha256 != ben.file_sha256 and ana.cpu_s > 0
    assert list(report["provenance"]["tests_sha256"]) == ["1.1"] and report["provenance"]["sandbox"] == "none"
    suite = xml.find("testsuite")
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["6", "1", "0", "0"]
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert properties(cases["test_task_1_add_adds[ana/starter]"]) == {
        "lab": "1.1", "impl": "ana/starter", "test": "test_task_1_add_adds", "task": "1", "points": "2"}
    assert cases["test_double_doubles[ben/starter]"].find("failure") is not None
    assert properties(suite)["lab 1.1 ben/starter"] == "2 of 3 tests, 3 of 6 points"
    for name in ("out.json", "out.xml"):
        assert str(project) not in (project / name).read_text()


def test_a_whole_course_in_a_folder(project, lab1, lab2, tmp_path):
    """Check that each lab finds its file, that a file that ends its process costs only its own lab, and that a
    missing file earns nothing."""
    lab3 = project / "phase-01-sums" / "labs" / "lab-03-more"
    shutil.copytree(lab2.folder, lab3)
    write_starter(lab1, double="import os; os._exit(0)")
    write_starter(lab2)
    shutil.copytree(project / "phase-01-sums", tmp_path / "ana" / "phase-01-sums")
    (tmp_path / "ana" / "phase-01-sums" / "labs" / "lab-03-more" / "starter.py").unlink()
    (tmp_path / "ana" / "conftest.py").write_text("1 / 0  # what lies beside a file under test is not run\n")
    code, output, report, _ = grade(project, "phase-01-sums/labs", "--impl", str(tmp_path / "ana"))
    assert code == 1 and earned(report) == {("1.1", "ana"): 3, ("1.2", "ana"): 6, ("1.3", "ana"): 0}
    assert [result["outcome"] for result in report["labs"]] == ["graded", "graded", "missing"]
    missing = "ana/phase-01-sums/labs/lab-03-more/starter.py is missing."
    assert report["labs"][2]["reason"] == missing and f"lab 1.3 ana: {missing}" in output


def test_what_was_not_run_earns_nothing_and_is_counted(project, lab1):
    write_starter(lab1)
    _, output, report, xml = grade(project, f"{lab1.tests}::test_task_1_add_adds", "--impl", "starter")
    line = "lab 1.1 starter: 1 of 3 tests, 2 of 6 points (1 of 1 that ran passed, 2 were not run)\n"
    assert line in output and report["scores"][0]["num_not_run"] == 2 and earned(report) == {("1.1", "starter"): 2}
    assert [test["error"] for test in report["labs"][0]["tests"]] == [None, "NotRun", "NotRun"]
    suite = xml.find("testsuite")
    assert [case.find("skipped") is None for case in suite.findall("testcase")] == [True, False, False]
    assert sum(int(properties(case)["points"]) for case in suite.findall("testcase")) == 6


def test_without_grading_too_the_cases_of_a_test_are_one_case_of_the_xml(project, lab1):
    write_starter(lab1, add="return a if b == 2 else a + b")
    plain_pytest(project, "-q", str(lab1.folder), "--impl", "starter", "--junitxml", "out.xml", *TWO_WORKERS)
    suite = ET.parse(project / "out.xml").find("testsuite")
    cases = {case.get("name"): case.find("failure") is None for case in suite.findall("testcase")}
    assert cases == {"test_task_1_add_adds[starter]": False, "test_task_1_add_counts_by_default[starter]": True,
                     "test_double_doubles[starter]": True}
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    _, output = plain_pytest(project, "-q", f"{lab1.tests}::test_task_1_add_adds[starter-0]", "--impl", "starter",
                             "--junitxml", "out.xml")
    assert "lab 1.1 starter: 0 of 3 tests, 0 of 6 points (0 of 0 that ran passed, 3 were not run)" in output
    case = ET.parse(project / "out.xml").find("testsuite/testcase")
    assert case.find("skipped").get("message") == "only 1 of its 2 cases were run"


def test_after_the_first_failure_the_rest_is_not_run_and_the_run_not_finished(project, lab1):
    code, output, report, _ = grade(project, str(lab1.folder), "--impl", "starter", "-x")
    assert code == 1 and report["is_finished"] is False and report["scores"][0]["num_not_run"] == 2


@pytest.mark.parametrize("arguments, complaint", [
    ((), "--grade-json needs a file to grade: --impl starter or --impl PATH"),
    (("--impl", "starter", "--pdb"), "--grade-json runs each lab in its own process: leave --pdb out"),
    (("--impl", "nobody.py"), "--impl nobody.py: not one of auto, starter, solution, engine, and there is no such"),
    (("--impl", "notes"), "--impl notes: this folder contains no starter.py, and it is not a copy of the course: it "
                          "does not contain phase-01-sums/labs/lab-01-adder/starter.py"),
])
def test_what_cannot_be_graded_is_refused_and_leaves_no_old_score(project, arguments, complaint):
    (project / "notes").mkdir()
    (project / "out.json").write_text('{"scores": [{"points": 100}]}')
    code, output, report, _ = grade(project, *arguments)
    assert code == 4 and complaint in output and "INTERNALERROR" not in output
    assert report["is_finished"] is False and earned(report) in ({}, {("1.1", "notes"): 0, ("1.2", "notes"): 0})


def test_a_folder_that_pytest_took_for_the_project_is_refused(project, lab1, tmp_path):
    shutil.copytree(project, tmp_path / "ana")
    code, output = plain_pytest(project, "-q", "--impl", "../ana", str(lab1.folder))
    assert code == 4 and "name the labs before --impl, or write --impl=../ana, in one word" in output


def test_a_file_that_cannot_be_written_is_refused_at_once(project):
    code, output = plain_pytest(project, "-q", "--impl", "starter", "--grade-json", "nowhere/out.json")
    assert code == 4 and "--grade-json nowhere/out.json: No such file or directory" in output


def test_a_fifo_is_no_file(lab1, tmp_path):
    os.mkfifo(tmp_path / "ana.py")
    run = FileRun(Impl(lab1, "ana", tmp_path / "ana.py"), 1.0, names=NAMES[:1])
    assert "is not a regular file" in run.verdict(NAMES[0]).message and run.graded.outcome is Outcome.UNREADABLE


# ---- parts


@pytest.mark.parametrize("paths, labels", [
    (["ana.py"], ["ana"]), (["a/starter.py"], ["a/starter"]), (["starter", "solution"], ["starter", "solution"]),
    (["a/starter.py", "b/starter.py"], ["a/starter", "b/starter"]), (["x/a/s.py", "y/a/s.py"], ["x/a/s", "y/a/s"]),
    (["a/x.py", "b/x.py", "c/y.py"], ["a/x", "b/x", "y"]), (["subs/ana", "subs/ben/"], ["ana", "ben"]),
    (["ana.py", "ana.py"], ["ana", "ana"]), (["lab.v2.py"], ["lab.v2"]),
])
def test_labels_are_short_and_keep_apart(tmp_path, paths, labels):
    assert labels_of(paths, tmp_path) == labels


@pytest.mark.parametrize("inside", ["", "phase-01-sums", "phase-01-sums/labs", "phase-01-sums/labs/lab-01-adder"])
def test_a_folder_may_be_a_course_or_any_part_of_it(project, lab1, lab2, inside):
    choice = Choice([str(project / inside)], project)
    (first,), (second,) = choice.impls(lab1), choice.impls(lab2)
    assert first.path == lab1.starter
    assert second.path.is_file() == (not inside.endswith("adder")), "the folder of one lab is not another's"


def test_ctrl_c_is_no_failure_of_the_file(heeds_ctrl_c):
    with pytest.raises(KeyboardInterrupt), tamed():
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(EndsPytest), tamed():
        raise KeyboardInterrupt
    with pytest.raises(Untellable, match="hides its class"), tamed():
        raise type("Odd", (Exception,), {"__class__": OSError})
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_text_is_a_plain_one_and_not_too_long():
    class Text(str):
        def __len__(self):
            raise ValueError

    assert type(safe_str(type("Odd", (), {"__str__": lambda self: Text("ha")})())) is str
    assert len(safe_str("x" * 3_000_000)) == 1_000_000


@pytest.mark.parametrize("text, expected", [
    ("/home/ana/course/a/b.py:3: no", "a/b.py:3: no"), ("in '/usr/lib/python3/x.py'", "in '…/x.py'"),
    ("1/2/3, a/b.py and http://x.org/a/b", "1/2/3, a/b.py and http://x.org/a/b"), ("/tmp", "/tmp"),
])
def test_paths_are_told_from_the_root_on(text, expected):
    assert without_paths(text, Path("/home/ana/course")) == expected
