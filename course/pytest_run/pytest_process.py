"""One pytest process for a lab's tests, which can be killed, and what it reports."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course.core.resource_limits import GRACE_S, wall_limit
from course.lab.lab import Lab
from course.pytest_run.json_lines import ReportLines
from course.pytest_run.verdict import OnPoll, Verdict, Verdicts

STARTUP_LIMIT_S = 60.0
MAX_FILE_BYTES = 16 << 20
#: The products of labs are small, and several labs are checked at once: more threads would only wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Child:
    """One pytest process and the lines it reports."""

    def __init__(self, lab: Lab, impls: list[str], tests: list[str], time_limit_s: float, folder: Path,
                 num_already_stuck: int = 0, only: Mapping[str, str] | None = None,
                 sandbox_level: str | None = None) -> None:
        """``sandbox_level`` is the level of the sandbox in which the files run; None if they run with the tests."""
        self.test_limit_s = lab.test_limit_s(time_limit_s)
        self._report = ReportLines(folder / "report.jsonl")
        self.output_file = folder / "output.txt"
        self.verdicts: Verdicts = {}
        #: The test that is running now, and the last that was begun.
        self.current: str | None = None
        self.latest: str | None = None
        self._is_finished = False
        self._started = time.monotonic()
        # Nobody reads these tracebacks, and pytest's own parse the whole file for every failure; Python's do not.
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=native", "-p", "no:cacheprovider",
                   "--rootdir", str(lab.root), "-c", str(lab.root / "pyproject.toml"),
                   "--time-limit", str(time_limit_s), "--report", str(self._report.path),
                   "--already-stuck", str(num_already_stuck), "--file-limit", str(MAX_FILE_BYTES)]
        for impl in impls:
            command += ["--impl", impl]
        if sandbox_level is not None:
            command += ["--sandbox-level", sandbox_level]
        for label, test in (only or {}).items():
            command += ["--only", f"{label}={test}"]
        command += [f"{lab.tests}::{name}" for name in tests]
        environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                       "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **ONE_THREAD}
        with open(self.output_file, "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=lab.root, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self, on_poll: OnPoll = lambda: None) -> str | None:
        """Wait for the end; kill a process whose test overstays, and say why. ``on_poll`` may raise to end it."""
        reason = None
        try:
            while self.process.poll() is None:
                if self._read_report():
                    self._started = time.monotonic()
                waited_s = time.monotonic() - self._started
                limit_s = wall_limit(self.test_limit_s)
                if self.current is not None and waited_s > limit_s + GRACE_S:
                    reason = (f"it did not finish within {limit_s:g} s by the clock and could not "
                              "be interrupted: does it wait for something, and catch every exception?")
                    break
                if self.current is None and waited_s > STARTUP_LIMIT_S:
                    reason = f"pytest did nothing for {STARTUP_LIMIT_S:g} s"
                    break
                if self._is_finished and waited_s > GRACE_S:  # a thread of the file under test keeps it from ending
                    break
                on_poll()
                time.sleep(0.02)
        finally:
            kill_group(self.process)
        self._read_report()
        if self.process.returncode == -signal.SIGXCPU:
            return (f"it did not finish within {self.test_limit_s:g} s of CPU time and could not be interrupted: "
                    "is there a loop that never ends and catches every exception?")
        return reason

    def output(self) -> str:
        return self.output_file.read_text(encoding="utf-8", errors="replace")[-4000:]

    def _read_report(self) -> bool:
        """Take in the lines that were completed since the last look. Whether there were any."""
        events = list(self._report.new())
        for event in filter(None, events):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # not ours: the file under test wrote there
                self._take(event)
        return bool(events)

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "finish":
            self._is_finished = True
            return
        if event["event"] == "start":
            self.current = self.latest = event["test"]
            return
        self.current = None
        verdict = Verdict(bool(event["passed"]), event["error"], str(event["message"]), str(event["printed"]))
        by_test = self.verdicts.setdefault(event["impl"], {})
        name = event["test"]
        if name not in by_test or by_test[name].passed:  # a parametrised test passes when all its cases do
            by_test[name] = verdict


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and all it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
