"""A pytest process for a lab's tests, which can be killed, and its report."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course.core.child_process import ONE_THREAD, ChildProcess
from course.core.resource_limits import GRACE_S, wall_limit
from course.core.result import Verdict
from course.lab.lab import Lab
from course.pytest_run.json_lines import ReportLines
from course.pytest_run.listeners import OnPoll, Verdicts

STARTUP_LIMIT_S = 60.0
MAX_FILE_BYTES = 16 << 20


class Child:
    """One pytest process and the lines it reports."""

    def __init__(self, lab: Lab, impls: list[str], tests: list[str], time_limit_s: float, folder: Path,
                 num_already_stuck: int = 0, only: Mapping[str, str] | None = None,
                 sandbox_level: str | None = None, bases: Mapping[str, Path] | None = None) -> None:
        """Start pytest for these tests.

        ``sandbox_level`` is the level of the sandbox in which the files run; None if they run together with the tests.
        ``bases`` are files that replace the solutions of earlier labs, keyed by lab number.
        """
        self.test_limit_s = lab.test_limit_s(time_limit_s)
        self._report = ReportLines(folder / "report.jsonl")
        self.verdicts: Verdicts = {}
        #: The test that is running now, and the last one that started.
        self.current: str | None = None
        self.latest: str | None = None
        self._is_finished = False
        self._heard = time.monotonic()
        # These tracebacks are not shown. pytest's own style parses the whole file for every failure; Python's does not.
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=native", "-p", "no:cacheprovider",
                   "--rootdir", str(lab.root), "-c", str(lab.root / "pyproject.toml"),
                   "--time-limit", str(time_limit_s), "--report", str(self._report.path),
                   "--already-stuck", str(num_already_stuck), "--file-limit", str(MAX_FILE_BYTES)]
        for impl in impls:
            command += ["--impl", impl]
        if sandbox_level is not None:
            command += ["--sandbox-level", sandbox_level]
        for number, path in (bases or {}).items():
            command += ["--base", f"{number}={path}"]
        for label, test in (only or {}).items():
            command += ["--only", f"{label}={test}"]
        command += [f"{lab.tests}::{name}" for name in tests]
        environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                       "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **ONE_THREAD}
        self._process = ChildProcess(command, lab.root, environment, folder / "output.txt")

    def wait(self, on_poll: OnPoll = lambda: None) -> str | None:
        """Wait for the end, and kill the process if a test exceeds its limit; return why. ``on_poll`` may raise."""
        def look() -> str | None:
            reason = self._why_kill()
            if reason is None:
                on_poll()
            return reason

        reason = self._process.watch(look)
        self._read_report()
        if self.status == -signal.SIGXCPU:
            return (f"it did not finish within {self.test_limit_s:g} s of CPU time and could not be interrupted: "
                    "is there a loop that never ends and catches every exception, or is it too slow?")
        return reason or None

    def _why_kill(self) -> str | None:
        """Return why the process must end now, "" if it has already reported everything, or None if it may go on."""
        if self._read_report():
            self._heard = time.monotonic()
        waited_s, limit_s = time.monotonic() - self._heard, wall_limit(self.test_limit_s)
        if self.current is not None and waited_s > limit_s + GRACE_S:
            return (f"it did not finish within {limit_s:g} s by the clock and could not be interrupted: does it wait "
                    "for something, and catch every exception?")
        if self.current is None and waited_s > STARTUP_LIMIT_S:
            return f"pytest did nothing for {STARTUP_LIMIT_S:g} s"
        return "" if self._is_finished and waited_s > GRACE_S else None  # a thread of the file keeps it from ending

    @property
    def status(self) -> int:
        """The exit status, after the end."""
        return self._process.status

    def output(self) -> str:
        return self._process.printed(4_000)

    def _read_report(self) -> bool:
        """Read the lines that were completed since the last call, and return whether there were any."""
        events = list(self._report.new())
        for event in filter(None, events):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the file under test wrote this line
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
        verdict = Verdict.of(event)
        by_test = self.verdicts.setdefault(event["impl"], {})
        name = event["test"]
        if name not in by_test or by_test[name].passed:  # a parametrised test passes when all its cases do
            by_test[name] = verdict
