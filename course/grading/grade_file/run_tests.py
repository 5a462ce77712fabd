"""One pytest process of the grader for a lab's tests, which uses the file under test in a sandbox.

The result of each test arrives as signed lines on a pipe (``verdict_lines``). The child may not start sandboxes: it
asks for them (``broker``). No student's code runs in either process. If the child itself fails or hangs, that is no
verdict on the student.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.core.child_process import ONE_THREAD, ChildProcess
from course.core.resource_limits import WALL_FACTOR
from course.core.result import WAS_NOT_RUN, Verdict
from course.grading.limits import FILE_BYTES, MAX_REPORT_BYTES, Settings, limits_for
from course.grading.protocol.verdict_lines import FORGED, VerdictReader
from course.grading.remote_lab.broker import Broker
from course.grading.remote_lab.sandbox_files import SandboxSettings
from course.grading.sandbox import Level
from course.grading.sandbox.cpu_time import cpu_s_of
from course.lab.lab import PROJECT_ROOT, Lab

#: The time for pytest to start, or to start a sandbox. A run is ended if it reports nothing for longer than this time
#: plus twice the time of the longest test.
STARTUP_S = 120.0
#: A run is also ended when it has been idle for the startup time plus ``WALL_FACTOR`` times its CPU time, or for this
#: time: a file that only sleeps must not hold a worker.
MAX_IDLE_S = 900.0
#: Kinds of errors that an instructor should look at.
FLAGGED = {"CanaryPassed": "a wrong solution passes when this file is loaded: the file tampers with the measurement",
           "ProtocolError": "the file's process sent an unreadable message: it breaks the protocol"}


@dataclass
class Ended:
    """The findings of one run."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    #: The CPU time of the file: in total, and where that is known during all cases of each test and during the longest
    #: one.
    cpu_s: float = 0.0
    cpu_of_test_s: dict[str, float] = field(default_factory=dict)
    longest_s: dict[str, float] = field(default_factory=dict)
    #: Why there is no score; "" if there is one.
    why_again: str = ""
    #: How the tests' own process ended before all tests had run; "" if it did not.
    why_died: str = ""
    #: Whether the first test had begun by then. If not, the file did not cause it.
    has_begun: bool = False
    #: A remark that is shown with the score.
    remark: str = ""

    def verdict(self, name: str) -> Verdict:
        return self.verdicts.get(name, WAS_NOT_RUN)


class TestsRun:
    """The tests of one lab on one file."""

    __test__ = False  # otherwise pytest would collect it as a test class

    def __init__(self, lab: Lab, path: Path, level: Level, settings: Settings) -> None:
        self._lab, self._path, self._level, self._settings = lab, path, level, settings
        #: The student's file, as it was read once. It is not read again.
        self._source = path.read_bytes()

    def run(self, names: list[str]) -> Ended:
        """Run the tests with these names. Every process that was started has ended afterwards."""
        ended = Ended()
        hidden = (self._hidden.parent,) if self._hidden is not None else ()
        broker = Broker(SandboxSettings(self._lab, self._source, self._level, limits_for(self._lab), hidden))
        verdicts = VerdictReader(broker.key, names)
        reading, writing = os.pipe()
        with tempfile.TemporaryDirectory() as folder, os.fdopen(reading, "rb", buffering=0) as report:
            child = ChildProcess(self._command(names, writing, broker.theirs.fileno()), self._lab.root, _environment(),
                                 Path(folder) / "output.txt", descriptors=(writing, broker.theirs.fileno()))
            os.close(writing)
            broker.theirs.close()
            try:
                with child:
                    self._listen(report, broker, verdicts, ended, child.process.pid)
            finally:
                broker.end()
            if verdicts.num_refused:
                ended.flags.append(FORGED)
            if broker.trouble:
                ended.why_again = f"A sandbox could not be started: {broker.trouble}"
            if not (verdicts.is_finished and ended.verdicts.keys() >= set(names)) and not ended.why_again:
                ended.why_died = f"status {child.status}: {child.printed()}"
                ended.has_begun = verdicts.has_begun
        return ended

    @property
    def _hidden(self) -> Path | None:
        """The hidden tests of the lab, if there are any."""
        folder = self._settings.hidden
        path = (folder / self._lab.number / "test_hidden.py").resolve() if folder is not None else None
        return path if path is not None and path.is_file() else None

    def _command(self, names: list[str], report: int, broker: int) -> list[str]:
        lab = self._lab
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider",
                   "-p", "course.plugin", "--rootdir", str(lab.root), "-c", str(lab.root / "pyproject.toml"),
                   "--time-limit", str(self._settings.time_limit_s), "--report", f"/dev/fd/{report}",
                   "--file-limit", str(FILE_BYTES), "--sandbox-level", self._level.value, "--broker", str(broker),
                   f"--impl={self._path}"]
        if self._hidden is not None:
            command.append(f"--hidden-tests={lab.number}={self._hidden}")
        return [*command, *(f"--graded-test={name}" for name in names), str(lab.tests)]

    def _listen(self, report: Any, broker: Broker, verdicts: VerdictReader, ended: Ended, pid: int) -> None:
        """Read lines until the last, and start the sandboxes that are requested in the meantime. ``pid`` is the process
        that runs the tests."""
        silence_s = STARTUP_S + 2 * WALL_FACTOR * self._lab.test_limit_s(self._settings.time_limit_s)
        begun_s = heard_s = time.monotonic()
        cpu_s, num_bytes, unread = 0.0, 0, b""
        sources = [report, broker.connection]
        while not verdicts.is_finished:
            with contextlib.suppress(ProcessLookupError):
                cpu_s = broker.cpu_s() + cpu_s_of(pid)
            end_s = begun_s + cpu_s + min(STARTUP_S + WALL_FACTOR * cpu_s, MAX_IDLE_S)
            wait_s = min(heard_s + silence_s, end_s) - time.monotonic()
            ready = select.select(sources, [], [], wait_s)[0] if wait_s > 0 else []
            if wait_s <= 0:
                ended.why_again = "The machine was too busy, or the file waits for something that never happens."
                return
            if broker.connection in ready and not broker.answer():
                sources.remove(broker.connection)
            if report in ready:
                data = report.read(1 << 16)
                num_bytes += len(data)
                if not data or num_bytes > MAX_REPORT_BYTES:
                    return
                heard_s = time.monotonic()
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    event = verdicts.take(line)
                    if event is not None and event["event"] == "end":
                        self._take(event, ended)

    def _take(self, event: dict[str, Any], ended: Ended) -> None:
        name = event["test"]
        verdict, cpu_s = Verdict.of(event), float(event["cpu_s"])
        ended.cpu_s += cpu_s
        ended.cpu_of_test_s[name] = ended.cpu_of_test_s.get(name, 0.0) + cpu_s
        ended.longest_s[name] = max(ended.longest_s.get(name, 0.0), cpu_s)
        before = ended.verdicts.get(name)
        if before is None or before.passed:  # a parametrised test passes if all its cases pass
            ended.verdicts[name] = verdict
        if event["waited"]:
            ended.why_again = (f"{name} hit the wall-clock limit after {cpu_s:.1f} s of CPU time: the machine "
                               "was too busy, or the file waits for something that never happens.")
        if verdict.error in FLAGGED:
            ended.flags.append(FLAGGED[verdict.error])


def _environment() -> dict[str, str]:
    """Return the environment of the tests' process. Course and tests are imported from the instructor's tree,
    whatever this process's environment says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return {**kept, **ONE_THREAD, "PYTHONPATH": str(PROJECT_ROOT),
            "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "COURSE_GRADER": "1"}

