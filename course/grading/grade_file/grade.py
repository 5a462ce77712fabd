"""Grades one file: its lab's tests run in a process of the grader, the file runs in a sandbox.

    course grade ─▶ worker ─▶ grade_file ─▶ pytest, the lab's tests ─▶ sandbox, the student's file
                                    ◀── lines on a pipe ──    ◀── one socket ──

The list of tests and their points is read from the tests' source. A test without a verdict is a failed test.

``pytest --grade-json`` does the same without a sandbox: it calls ``grade`` with a run in which the file shares the
process of its tests.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from course.core.result import LabResult, Outcome, TestResult
from course.grading.grade_file.run_here import RunHere
from course.grading.grade_file.run_tests import Ended, TestsRun
from course.grading.limits import Settings
from course.grading.remote_lab.bytecode import compile_packages
from course.grading.sandbox import Level, choose_level, describe
from course.lab.graded_tests import GradedTest, graded_tests, hidden_graded_tests
from course.lab.lab import Lab

#: A test that passes with more than this share of its CPU time is run twice.
NEAR_LIMIT = 0.5
#: The length of a message that a student may read.
MAX_MESSAGE_CHARACTERS = 2_000


@functools.cache
def _level(wanted: str) -> Level:
    return choose_level(wanted)


def grade_file(lab: Lab, path: Path, settings: Settings) -> LabResult:
    """Return the result of the file at ``path`` for ``lab``. Raise SandboxError if the sandbox is not available."""
    compile_packages()
    level = _level(settings.sandbox)
    has_network, _ = describe(level)
    hidden = hidden_graded_tests(lab, settings.hidden)
    names = [test.name for test in (*graded_tests(lab), *hidden)]
    result = grade(TestsRun(lab, path, level, settings), lab, path, settings.time_limit_s, names, hidden)
    return replace(result, sandbox=level.value, has_network=has_network)


def grade(run: TestsRun | RunHere, lab: Lab, path: Path, time_limit_s: float, names: Sequence[str],
          hidden: Sequence[GradedTest] = ()) -> LabResult:
    """Run the tests with these names. Return a result that contains every graded test of the lab."""
    started = time.monotonic()
    ended = _run(run, list(names))
    ended.flags += _run_again(run, ended, lab.test_limit_s(time_limit_s))
    outcome = Outcome.GRADE_AGAIN if ended.why_again else Outcome.GRADED
    return LabResult(
        lab.number, outcome, (*(_result(test, ended) for test in graded_tests(lab)),
                              *(_result(test, ended, is_hidden=True) for test in hidden)),
        reason=ended.why_again or ended.remark, flags=tuple(dict.fromkeys(ended.flags)),
        file_sha256=hashlib.sha256(path.read_bytes()).hexdigest(), cpu_s=round(ended.cpu_s, 3),
        wall_s=round(time.monotonic() - started, 3), sandbox="none", has_network=True)


def _run(run: TestsRun | RunHere, names: list[str]) -> Ended:
    """Run the tests. Run them once more if their own process ended before all of them had run."""
    ended = run.run(names)
    if ended.why_died:
        first, ended = ended, run.run(names)
        if ended.why_died:
            ended.flags.append(f"the tests' own process ended early, twice: {first.why_died}; {ended.why_died}")
            if ended.has_begun:
                ended.remark = ("The tests' process ended twice before all tests had run, each time during a test of "
                                "this file. Points earned until then count.")
            else:
                ended.why_again = "The grader's own process ended early."
    return ended


def _run_again(run: TestsRun | RunHere, ended: Ended, limit_s: float) -> list[str]:
    """Run the tests that passed near their time limit once more. Return flags for those that end differently."""
    near = [name for name, cpu_s in ended.longest_s.items()
            if cpu_s > NEAR_LIMIT * limit_s and ended.verdict(name).passed]
    if not near or ended.why_again:
        return []
    again = run.run(near)
    return [f"{name} passed close to its time limit, and failed when it ran again"
            for name in near if not again.verdict(name).passed]


def _result(test: GradedTest, ended: Ended, is_hidden: bool = False) -> TestResult:
    verdict = ended.verdict(test.name)
    return test.result(replace(verdict, message=verdict.message[:MAX_MESSAGE_CHARACTERS],
                               printed=verdict.printed[:MAX_MESSAGE_CHARACTERS]), is_hidden,
                       round(ended.cpu_of_test_s[test.name], 3) if test.name in ended.cpu_of_test_s else None)
