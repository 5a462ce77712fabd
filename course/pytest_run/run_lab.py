"""Run a lab's tests in a process that can be killed, and collect a verdict on each.

The student's code runs only in the child process. The list of tests and their points is read from ``test_lab.py`` here,
and a test without a verdict counts as failed. So a file that exits, hangs or floods its output affects only its own
lab.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.core.failure_messages import DEFAULT_TIME_LIMIT_S, NOT_RUN, STUCK, TIME_LIMIT
from course.core.result import WAS_NOT_RUN, Verdict
from course.lab.graded_tests import graded_tests
from course.lab.lab import Lab, LabError
from course.pytest_run.listeners import OnPoll, OnVerdict, Verdicts
from course.pytest_run.pytest_process import Child
from course.pytest_run.targets import labels_of

#: After this many processes have died or had to be killed, the rest of the lab is not run.
MAX_LOST_PROCESSES = 3


class LabRunFailed(Exception):
    """pytest itself failed before running any test; the message contains its output."""


def run_lab(lab: Lab, impls: Sequence[str | Path], time_limit_s: float = DEFAULT_TIME_LIMIT_S,
            on_verdict: OnVerdict = lambda name, verdict: None, on_poll: OnPoll = lambda: None,
            names: Sequence[str] | None = None, bases: Mapping[str, Path] | None = None) -> Verdicts:
    """Return the verdicts of the lab's tests, or of those in ``names``, on each of ``impls`` (as for ``--impl``).

    Every test gets a verdict. ``bases`` are files that replace the solutions of earlier labs.

    ``on_verdict`` is called with each test as soon as it is over; ``on_poll`` is called many times per second. If one
    of them raises, the run ends and the running tests are killed.
    """
    if not has_pytest():
        raise LabError("Testing needs pytest: pip install pytest (it comes with the extra `course` of this package)")
    names = list(names) if names is not None else [test.name for test in graded_tests(lab)]
    labels = [labels_of([str(impl)], lab.root)[0] for impl in impls]  # each gets its own process and label
    verdicts: Verdicts = {label: {} for label in labels}
    for label, impl in zip(labels, impls):
        _Run(lab, label, str(impl), time_limit_s, verdicts[label], on_verdict, on_poll, bases or {}).run(names)
    return verdicts


def run_lab_together(lab: Lab, impls: Sequence[str | Path], time_limit_s: float,
                     only: Mapping[str, str] | None = None, on_poll: OnPoll = lambda: None) -> Verdicts:
    """Run the tests like ``run_lab``, but in one process for all files, which must be trusted to end, like our mutants.

    ``only`` maps some of the labels to the one test to run on each.
    """
    names = [test.name for test in graded_tests(lab)]
    with tempfile.TemporaryDirectory() as folder:
        child = Child(lab, [str(impl) for impl in impls], names, time_limit_s, Path(folder), only=only or {})
        child.wait(on_poll)
        verdicts: Verdicts = {label: {} for label in labels_of([str(impl) for impl in impls], lab.root)}
        for label, by_test in child.verdicts.items():
            verdicts[label] = by_test
        if not child.verdicts:
            raise LabRunFailed(child.output())
    for by_test in verdicts.values():
        for name in names:
            by_test.setdefault(name, WAS_NOT_RUN)
    return verdicts


def has_pytest() -> bool:
    try:
        return importlib.util.find_spec("pytest") is not None
    except ValueError:  # made unreachable on purpose
        return False


@dataclass
class _Run:
    """All tests on one file, in as many processes as needed."""

    lab: Lab
    label: str
    impl: str
    time_limit_s: float
    verdicts: dict[str, Verdict]
    on_verdict: OnVerdict
    on_poll: OnPoll
    bases: Mapping[str, Path]

    def run(self, names: list[str]) -> None:
        """Run the tests that have no verdict yet. If one ends its process, record that and continue with the rest."""
        num_lost = 0
        while remaining := [name for name in names if name not in self.verdicts]:
            if num_lost == MAX_LOST_PROCESSES:
                for name in remaining:
                    self._settle(name, Verdict(False, NOT_RUN, f"not run: {num_lost} tests before it ended "
                                                               "their process"))
                return
            num_lost += self._run_in_one_process(remaining)

    def _run_in_one_process(self, names: list[str]) -> bool:
        """Run ``names`` until the process ends, and return whether a test ended it."""
        num_stuck = sum(verdict.error in STUCK for verdict in self.verdicts.values())
        with tempfile.TemporaryDirectory() as folder:
            child = Child(self.lab, [self.impl], names, self.time_limit_s, Path(folder), num_stuck,
                          bases=self.bases)

            def poll() -> None:
                for name, verdict in list(child.verdicts.get(self.label, {}).items()):
                    if name != child.latest:  # a parametrised test may have further cases
                        self._settle(name, verdict)
                self.on_poll()

            why_killed = child.wait(poll)
            by_test = child.verdicts.setdefault(self.label, {})
            lost = child.current
            if lost is not None:
                by_test[lost] = Verdict(False, TIME_LIMIT, why_killed) if why_killed else Verdict(
                    False, None, f"the process ended during this test, with exit status {child.status}: "
                                 "does the file under test call os._exit(), or crash the interpreter?")
            elif not by_test:
                raise LabRunFailed(child.output())
            for name, verdict in by_test.items():
                self._settle(name, verdict)
        return lost is not None

    def _settle(self, name: str, verdict: Verdict) -> None:
        if name not in self.verdicts:
            self.verdicts[name] = verdict
            self.on_verdict(name, verdict)
