"""One file, graded: what it earns, whatever it does."""

import json
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from course.core.result import LabResult, Outcome, Verdict
from course.grading.grade_file import grade as grading
from course.grading.grade_file.grade import grade_file
from course.grading.grade_file.run_tests import Ended, TestsRun
from course.grading.hostile.attack import TALK
from course.grading.limits import Settings, limits_for
from course.grading.remote_lab.grader_side import SandboxedLab
from course.grading.remote_lab.sandbox_files import SandboxSettings
from course.grading.sandbox import choose_level
from course.grading.sandbox.cpu_time import cpu_s_of
from course.grading.sandbox.inside.init_process import descendants
from course.grading.sandbox.test_process import is_running

MARKS = '''
    import time

    @pytest.mark.points(1)
    @pytest.mark.task(1)
    @pytest.mark.inside("memory is counted where it is used")
    def test_adding_takes_no_memory(lab):
        from course.testing.measure import peak_bytes
        assert peak_bytes(lab.add, 1, 2) < 100_000, "add(1, 2) takes more than 100,000 bytes"
'''
HUNGRY = '''
        Mutant("hungry", "Takes memory.", "return a + b", "x = bytes(10**6); return a + b",
               "test_adding_takes_no_memory", "README: Edit the"),
        Mutant("hungrier", "Takes more.", "return a + b", "x = [0] * 10**6; return a + b",
               "test_adding_takes_no_memory", "README: Edit the"),
    ]
'''


@pytest.fixture
def lab(lab1):
    """Create a lab of 7 points: 3 for adding (2 and 1), 1 for an inside test, 3 for doubling."""
    lab1.tests.write_text(lab1.tests.read_text() + textwrap.dedent(MARKS))
    lab1.mutants.write_text(lab1.mutants.read_text().replace("]\nUNOBSERVABLE", textwrap.dedent(HUNGRY).lstrip("\n")
                                                            + "UNOBSERVABLE"))
    return lab1


@pytest.fixture
def grade(lab, forked, tmp_path):
    def grade(text, **settings):
        path = tmp_path / "starter.py"
        path.write_text(textwrap.dedent(text))
        result = grade_file(lab, path, Settings(**settings))
        assert LabResult.from_json(result.to_json()) == result
        return result

    return grade


RIGHT = """
    def add(a, b=1):
        return a + b


    def double(a):
        return add(a, a)
"""


def test_right_wrong_and_half(grade, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("course.core.child_process.subprocess", subprocess)  # use a real process
        right = grade(RIGHT)
    assert (right.outcome, right.points, right.max_points) == (Outcome.GRADED, 7, 7), right
    assert right.flags == () and right.sandbox and right.file_sha256 and right.cpu_s > 0
    half = grade(RIGHT.replace("return add(a, a)", "print('half'); raise ValueError('not that')"))
    assert (half.points, half.max_points) == (4, 7)
    failed = next(test for test in half.tests if not test.passed)
    assert (failed.name, failed.error) == ("test_double_doubles", "ValueError")
    assert failed.message == "ValueError: not that (starter.py:7 in double)" and failed.printed == "half"
    broken = grade("def add(:\n")
    assert broken.points == 0 and all("does not parse, line 1" in test.message for test in broken.tests)
    assert "/" not in broken.tests[0].message


def test_who_ends_the_process_or_hangs_loses_those_tests_only(grade):
    ends = grade(RIGHT.replace("return add(a, a)", "import os; os._exit(0)"))
    assert ends.points == 4 and "os._exit" in next(test for test in ends.tests if not test.passed).message
    hangs = grade(RIGHT.replace("return add(a, a)", "\n        while True:\n            pass"), time_limit_s=0.2)
    failed = [test for test in hangs.tests if not test.passed]
    assert hangs.points == 4 and "0.2 s of CPU time" in failed[0].message and hangs.outcome is Outcome.GRADED


def test_each_test_has_the_cpu_time_that_is_seen_from_outside(grade):
    lies = "import time, resource\ntime.process_time = time.thread_time = lambda: 0.0\n" + textwrap.dedent(RIGHT)
    hangs = grade(lies.replace("return add(a, a)", "\n    while True:\n        pass"), time_limit_s=0.2)
    times = {test.name: test.cpu_s for test in hangs.tests}
    assert times["test_double_doubles"] >= 0.2 and len(times) == 4, times
    assert all(seconds < 0.2 for name, seconds in times.items() if name != "test_double_doubles"), times
    assert sum(times.values()) == pytest.approx(hangs.cpu_s, abs=0.01)
    fields = hangs.to_json()
    for test in fields["tests"]:
        del test["cpu_s"]  # as an older version stored it
    assert all(test.cpu_s is None for test in LabResult.from_json(fields).tests)


def test_who_only_waits_is_graded_again(grade):
    waits = grade(RIGHT.replace("return add(a, a)", "import time; time.sleep(1000)"), time_limit_s=0.2)
    assert waits.outcome is Outcome.GRADE_AGAIN and "hit the wall-clock limit" in waits.reason


def test_a_file_that_sleeps_a_little_in_each_test_is_graded_again(grade, monkeypatch):
    monkeypatch.setattr("course.grading.grade_file.run_tests.STARTUP_S", 1.0)
    monkeypatch.setattr("course.grading.grade_file.run_tests.MAX_IDLE_S", 4.0)
    begun_s = time.monotonic()
    sleeps = grade(RIGHT.replace("return a + b", "import time; time.sleep(15); return a + b"), time_limit_s=2)
    assert sleeps.outcome is Outcome.GRADE_AGAIN and "waits for something" in sleeps.reason
    assert time.monotonic() - begun_s < 15, "no test was over"
    monkeypatch.undo()
    assert grade(RIGHT).outcome is Outcome.GRADED


def test_what_it_takes_to_start_a_sandbox_counts_for_no_test(lab):
    far = SandboxedLab(SandboxSettings(lab, textwrap.dedent(RIGHT).encode(), choose_level("auto"), limits_for(lab)))
    far.begin(0.02, "test_lab")  # starting an interpreter alone takes longer
    try:
        assert far.module().double(2) == 4 and far.cpu_s() < 0.02
    finally:
        far.end()


def test_a_file_that_tampers_with_the_measurement_is_flagged(grade):
    meddles = grade("import tracemalloc\ntracemalloc.get_traced_memory = lambda: (0, 0)\n" + textwrap.dedent(
        RIGHT.replace("return a + b", "x = bytes(10**6)\n        return a + b")))
    assert meddles.points == 6 and "tampers" in meddles.flags[0], meddles


def test_hidden_tests_count_and_are_marked(grade, tmp_path):
    hidden = tmp_path / "hidden" / "1.1"
    hidden.mkdir(parents=True)
    (hidden / "test_hidden.py").write_text(textwrap.dedent('''
        import pytest

        @pytest.mark.points(5)
        @pytest.mark.task(1)
        def test_adds_what_nobody_tried(lab):
            assert lab.add(20, 22) == 42, "the answer"
    '''))
    right = grade(RIGHT, hidden=hidden.parent)
    assert (right.points, right.max_points) == (12, 12)
    assert [test.name for test in right.tests if test.is_hidden] == ["test_adds_what_nobody_tried"]
    wrong = grade(RIGHT.replace("return a + b", "return a + b if a < 10 else 0"), hidden=hidden.parent)
    assert (wrong.points, wrong.max_points) == (7, 12)


def test_what_passes_near_its_limit_is_run_twice(grade, monkeypatch):
    """Check that a different result is flagged, and that the first one counts."""
    runs = []

    def run(self, names):
        runs.append(names)
        is_first = len(runs) == 1
        return Ended({name: Verdict(is_first) for name in names},
                     longest_s={name: 6.0 if name == "test_double_doubles" else 0.1 for name in names})

    monkeypatch.setattr(TestsRun, "run", run)
    result = grade(RIGHT)
    assert runs[1:] == [["test_double_doubles"]] and result.points == 7
    assert result.flags == ("test_double_doubles passed close to its time limit, and failed when it ran again",)


def test_a_grader_that_fails_is_no_verdict(grade, lab, monkeypatch):
    lab.tests.write_text("raise RuntimeError('the course itself is broken')\n" + lab.tests.read_text())
    result = grade(RIGHT)
    assert result.outcome is Outcome.GRADE_AGAIN and "ended early" in result.flags[0]


def test_points_are_read_from_the_tests_text(lab):
    tests = grading.graded_tests(lab)
    assert {test.name: test.is_inside for test in tests}["test_adding_takes_no_memory"]
    assert not any(test.is_inside for test in tests if test.name != "test_adding_takes_no_memory")
    assert replace(tests[0], points=None).points is None


@pytest.mark.parametrize("listed, error", [({"test_hidden.Spy": "number"}, None), ({}, "AttributeError")])
def test_of_objects_of_hidden_tests_the_file_can_use_what_is_listed(grade, tmp_path, listed, error):
    hidden = tmp_path / "hidden" / "1.1"
    hidden.mkdir(parents=True)
    (hidden / "test_hidden.py").write_text(textwrap.dedent('''
        import pytest

        class Spy:
            number, secret = 1, 2

        @pytest.mark.points(5)
        @pytest.mark.task(1)
        def test_reads_a_spy(lab):
            assert lab.add(Spy()) == 1
    '''))
    (hidden / "surface.json").write_text(json.dumps(listed))
    reads = "def add(spy):\n    assert not hasattr(spy, 'secret')\n    return spy.number\n"
    result = grade(reads, hidden=hidden.parent)
    (test,) = [test for test in result.tests if test.is_hidden]
    assert (test.passed, test.error) == (error is None, error)


FORGES = '''
    import json as _json
    import os as _os

    @pytest.mark.points(0)
    @pytest.mark.task(1)
    def test_somebody_writes_to_every_descriptor(lab):
        forged = [{"event": "start", "index": 0}, {"event": "end", "index": 0, "test": "test_double_doubles",
                   "passed": True, "error": None, "message": "", "printed": "", "cpu_s": 0.0, "waited": False},
                  {"event": "finish"}]
        for descriptor in range(3, 64):
            for number, event in enumerate(forged, start=1):
                for line in (_json.dumps(event), f"{number} {'0' * 64} {_json.dumps(event)}", "[1, \\\\"end\\\\"]"):
                    try:
                        _os.write(descriptor, f"\\\\n{line}\\\\n".encode())
                    except OSError:
                        pass
'''


def test_bytes_on_any_descriptor_of_the_tests_make_up_no_verdict(grade, lab):
    """Write to every descriptor, as if a submission had found a way to make the tests' process write for it."""
    before = grade("def add(a, b=1):\n    return a + b\n\n\ndef double(number):\n    return number\n")
    lab.tests.write_text(lab.tests.read_text() + textwrap.dedent(FORGES).replace("\\\\", "\\"))
    after = grade("def add(a, b=1):\n    return a + b\n\n\ndef double(number):\n    return number\n")
    earned = {test.name for test in before.tests if test.passed}
    assert {test.name for test in after.tests if test.passed} <= earned | {"test_somebody_writes_to_every_descriptor"}
    assert any("lines that the tests did not write" in flag for flag in after.flags), after.flags


def test_what_the_tests_process_earned_before_it_died_twice_counts(grade, lab):
    lab.tests.write_text(lab.tests.read_text() + textwrap.dedent('''
        @pytest.mark.points(1)
        @pytest.mark.task(2)
        def test_the_grader_itself_dies(lab):
            import os
            os._exit(3)
    '''))
    result = grade(RIGHT)
    assert result.outcome is Outcome.GRADED and 0 < result.points < result.max_points
    assert "ended twice" in result.reason and "status 3" in result.flags[0]


def test_after_tests_that_do_not_end_the_others_run(grade, lab):
    result = grade("def add(a, b=1):\n    while True: pass\n\n\ndef double(number):\n    return 2 * number\n",
                   time_limit_s=0.2)
    assert {test.task for test in result.tests if test.passed} == {2}, [test.message for test in result.tests]
    assert {test.error for test in result.tests if not test.passed} == {"TimeLimitExceeded"}


@pytest.mark.parametrize("answer, bound", [
    ("range(10**15)", "a range of 1,000,000,000,000,000 numbers; at most 200,000"),
    ("'a' * 18_000_000", "a text of 18,000,000 characters; at most 1,000,000"),
    ("bytes(2_000_000)", "2,000,000 bytes; at most 1,000,000"),
    ("[0] * 300_000", "a container of 300,000 items"),
])
def test_an_answer_beyond_a_bound_fails_its_test_by_name_and_no_other(grade, answer, bound):
    result = grade(f"def add(a, b=1):\n    return {answer}\n\n\ndef double(number):\n    return 2 * number\n")
    assert result.outcome is Outcome.GRADED and result.flags == ()
    assert {test.task for test in result.tests if test.passed and not test.is_inside} == {2}
    assert any(bound in test.message and test.error == "TooMuch" for test in result.tests), [
        (test.error, test.message) for test in result.tests]


SAYS_MORE = TALK + """
import json, struct

def say_more():
    wire, more = peer()._wire, json.dumps(["!", asked() + 1, 7]).encode()
    def both(data):
        del wire._send
        wire._socket.sendall(bytes(data) + struct.pack("!II", len(more), len(more)) + more)
        return len(data)
    wire._send = both

def add(a, b=1):
    say_more()
    return a + b

def double(a):
    return 2 * a
"""


def test_an_answer_too_many_fails_no_other_test(grade):
    result = grade(SAYS_MORE)
    assert {test.task for test in result.tests if test.passed} == {1, 2}, [test.message for test in result.tests]


def read_command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def cpu_s(pid):
    try:
        return cpu_s_of(pid)
    except ProcessLookupError:
        return 0.0


GRADES = """
import sys
from pathlib import Path
from course.grading.grade_file.grade import grade_file
from course.grading.limits import Settings
from course.lab.lab import discover, find_lab
grade_file(find_lab("1.1", discover(Path(sys.argv[1]))), Path(sys.argv[2]), Settings())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_grader_that_is_killed_leaves_no_process(lab, tmp_path):
    lab.tests.write_text(lab.tests.read_text() + textwrap.dedent('''
        @pytest.mark.points(1)
        @pytest.mark.task(1)
        def test_the_tests_themselves_do_not_end(lab):
            while lab: pass  # until its own limit, half a minute
    '''))
    path = tmp_path / "starter.py"
    path.write_text("def add(a, b=1):\n    return a + b\n")
    with subprocess.Popen([sys.executable, "-c", GRADES, lab.root, path]) as grading:
        used_s, give_up_s = 0.0, time.monotonic() + 60
        while used_s < 2 and time.monotonic() < give_up_s:  # the tests' process takes half a second to start
            started = descendants(grading.pid)
            used_s = max((cpu_s(pid) for pid in started if b"--broker" in read_command(pid)), default=0.0)
        grading.kill()
    assert used_s >= 2 and len(started) >= 3, "the tests, and a sandbox with its keeper"
    give_up_s = time.monotonic() + 10
    while any(is_running(pid) for pid in started):
        assert time.monotonic() < give_up_s, f"of {started} some outlived their grader"
