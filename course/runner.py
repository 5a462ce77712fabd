"""Run a lab's tests in a process that can be killed, and learn what came of each.

The student's code runs in the child only. The list of tests and their points is read from ``test_lab.py`` here, and a
test without a verdict is a failed test: a file that exits, hangs or floods its output costs its own lab, nothing else.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.failures import BROKEN_FILE, NO_PYTEST, NOT_RUN, STUCK, TIME_LIMIT
from course.graded import graded_tests
from course.labs import Lab
from course.plugin import DEFAULT_TIME_LIMIT_S

#: How long past its time limit a test may go on before its process is killed: it catches the alarm, or sits in C code.
GRACE_S = 3.0
STARTUP_LIMIT_S = 60.0
MAX_FILE_BYTES = 16 << 20
#: After so many processes that had to be killed, or died, the rest of the lab is not run.
MAX_LOST_PROCESSES = 3


@dataclass(frozen=True)
class Verdict:
    """What came of one test."""

    passed: bool
    #: What ended it: one of the kinds in ``course.failures``, else the name of the exception (``NotImplementedError``
    #: for a stub); None if it passed, or took its process along.
    error: str | None
    message: str
    #: The last lines it printed, if it failed.
    printed: str = ""

    @property
    def concerns_the_whole_file(self) -> bool:
        """Whether every test of the lab has this verdict, and for the same reason."""
        return self.error in (BROKEN_FILE, NO_PYTEST)


#: impl label → test name → verdict
Verdicts = dict[str, dict[str, Verdict]]
OnVerdict = Callable[[str, Verdict], None]
OnPoll = Callable[[], None]


class LabRunFailed(Exception):
    """pytest itself did not get as far as running tests; the message holds what it printed."""


def run_lab(lab: Lab, impls: Sequence[str | Path], time_limit_s: float = DEFAULT_TIME_LIMIT_S,
            on_verdict: OnVerdict = lambda name, verdict: None, on_poll: OnPoll = lambda: None) -> Verdicts:
    """Verdicts of all tests of ``lab`` on each of ``impls`` (as for ``--impl``), every one accounted for.

    ``on_verdict`` hears of each test as soon as it is over; ``on_poll`` is called many times a second. Whatever they
    raise ends the run, and the tests that were under way are killed.
    """
    names = [test.name for test in graded_tests(lab)]
    labels = [impl.stem if isinstance(impl, Path) else impl for impl in impls]
    verdicts: Verdicts = {label: {} for label in labels}
    for label, impl in zip(labels, impls):
        _Run(lab, label, str(impl), time_limit_s, verdicts[label], on_verdict, on_poll).run(names)
    return verdicts


def run_lab_together(lab: Lab, impls: Sequence[str | Path], time_limit_s: float,
                     only: Mapping[str, str] | None = None) -> Verdicts:
    """As ``run_lab``, in one process for all: for files that are trusted to end, such as our own mutants.

    ``only`` names, for some of the labels, the one test to run on it.
    """
    names = [test.name for test in graded_tests(lab)]
    with tempfile.TemporaryDirectory() as folder:
        child = _Child(lab, [str(impl) for impl in impls], names, time_limit_s, Path(folder), only=only or {})
        child.wait()
        verdicts: Verdicts = {impl.stem if isinstance(impl, Path) else impl: {} for impl in impls}
        for label, by_test in child.verdicts.items():
            verdicts[label] = by_test
        if not child.verdicts:
            raise LabRunFailed(child.output())
    for by_test in verdicts.values():
        for name in names:
            by_test.setdefault(name, Verdict(False, NOT_RUN, "it was not run"))
    return verdicts


@dataclass
class _Run:
    """All tests on one file, in as many processes as that takes."""

    lab: Lab
    label: str
    impl: str
    time_limit_s: float
    verdicts: dict[str, Verdict]
    on_verdict: OnVerdict
    on_poll: OnPoll

    def run(self, names: list[str]) -> None:
        """Run what has no verdict yet; when a test takes its process along, note that and go on with the rest."""
        num_lost = 0
        while remaining := [name for name in names if name not in self.verdicts]:
            if num_lost == MAX_LOST_PROCESSES:
                for name in remaining:
                    self._settle(name, Verdict(False, NOT_RUN, f"not run: {num_lost} tests before it ended "
                                                               "their process"))
                return
            num_lost += self._run_in_one_process(remaining)

    def _run_in_one_process(self, names: list[str]) -> bool:
        """Run ``names`` as far as one process gets. Whether a test took it along."""
        num_stuck = sum(verdict.error in STUCK for verdict in self.verdicts.values())
        with tempfile.TemporaryDirectory() as folder:
            child = _Child(self.lab, [self.impl], names, self.time_limit_s, Path(folder), num_stuck)

            def poll() -> None:
                for name, verdict in list(child.verdicts.get(self.label, {}).items()):
                    if name != child.latest:  # a parametrised test may have more cases to come
                        self._settle(name, verdict)
                self.on_poll()

            why_killed = child.wait(poll)
            by_test = child.verdicts.setdefault(self.label, {})
            lost = child.current
            if lost is not None:
                by_test[lost] = Verdict(False, TIME_LIMIT, why_killed) if why_killed else Verdict(
                    False, None, f"the process ended during this test, with exit status {child.process.returncode}: "
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


class _Child:
    """One pytest process and the lines it reports."""

    def __init__(self, lab: Lab, impls: list[str], tests: list[str], time_limit_s: float, folder: Path,
                 num_already_stuck: int = 0, only: Mapping[str, str] | None = None) -> None:
        self.time_limit_s = time_limit_s
        self.report = folder / "report.jsonl"
        self.report.touch()
        self.output_file = folder / "output.txt"
        self.verdicts: dict[str, dict[str, Verdict]] = {}
        #: The test that is running now, and the last that was begun.
        self.current: str | None = None
        self.latest: str | None = None
        self._started = time.monotonic()
        self._num_bytes_read = 0
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider",
                   "--rootdir", str(lab.root), "-c", str(lab.root / "pyproject.toml"),
                   "--time-limit", str(time_limit_s), "--report", str(self.report),
                   "--already-stuck", str(num_already_stuck)]
        for impl in impls:
            command += ["--impl", impl]
        for label, test in (only or {}).items():
            command += ["--only", f"{label}={test}"]
        command += [f"{lab.tests}::{name}" for name in tests]
        environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                       "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        with open(self.output_file, "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=lab.root, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_limit_files)

    def wait(self, on_poll: OnPoll = lambda: None) -> str | None:
        """Wait for the end; kill a process whose test overstays, and say why. ``on_poll`` may raise to end it."""
        reason = None
        try:
            while self.process.poll() is None:
                if self._read_report():
                    self._started = time.monotonic()
                waited_s = time.monotonic() - self._started
                if self.current is not None and waited_s > self.time_limit_s + GRACE_S:
                    reason = (f"it did not finish within {self.time_limit_s:g} s and could not be interrupted: "
                              "is there a loop that never ends and catches every exception?")
                    break
                if self.current is None and waited_s > STARTUP_LIMIT_S:
                    reason = f"pytest did nothing for {STARTUP_LIMIT_S:g} s"
                    break
                on_poll()
                time.sleep(0.02)
        finally:
            _kill_group(self.process)
        self._read_report()
        return reason

    def output(self) -> str:
        return self.output_file.read_text(encoding="utf-8", errors="replace")[-4000:]

    def _read_report(self) -> bool:
        """Take in the lines that were completed since the last look. Whether there were any."""
        with open(self.report, "rb") as file:
            file.seek(self._num_bytes_read)
            lines = file.read().split(b"\n")
        self._num_bytes_read += sum(len(line) + 1 for line in lines[:-1])
        for line in lines[:-1]:
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue  # not ours: the file under test wrote there
        return len(lines) > 1

    def _take(self, event: dict) -> None:
        if event["event"] == "start":
            self.current = self.latest = event["test"]
            return
        self.current = None
        verdict = Verdict(bool(event["passed"]), event["error"], str(event["message"]), str(event["printed"]))
        by_test = self.verdicts.setdefault(event["impl"], {})
        name = event["test"]
        if name not in by_test or by_test[name].passed:  # a parametrised test passes when all its cases do
            by_test[name] = verdict


def _limit_files() -> None:
    """In the child: no file may grow past the limit, so that endless output ends in an error and not in a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))


def _kill_group(process: subprocess.Popen) -> None:
    """End the process and all it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
