"""One pytest process of the grader's for a lab's tests, with the file under test in a sandbox behind it.

What came of each test arrives as lines on a pipe that only this process and its child hold; nothing of a student's runs
in either. Should the child itself fail or hang, that is no verdict on the student: "grade again".
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import course
from course.child import ONE_THREAD
from course.failures import NOT_RUN
from course.grading.sandbox import Level
from course.grading.settings import FILE_BYTES, MAX_REPORT_BYTES, WALL_FACTOR, Settings, limits_for
from course.labs import Lab

#: Pytest has this long to start, or to start a sandbox; between two of its lines the longest test's time comes to it,
#: twice.
STARTUP_S = 120.0
#: An error of these kinds is something for an instructor to look at.
FLAGGED = {"CanaryPassed": "a wrong solution passes beside this file: it meddles with how it is measured",
           "ProtocolError": "what the file's process sent cannot be read: it does not play by the rules"}


@dataclass(frozen=True)
class FarVerdict:
    passed: bool
    error: str | None = None
    message: str = ""
    printed: str = ""
    cpu_s: float = 0.0


@dataclass
class Ended:
    """What one run found out."""

    verdicts: dict[str, FarVerdict] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    #: Why there is no score; "" if there is one.
    why_again: str = ""

    def verdict(self, name: str) -> FarVerdict:
        return self.verdicts.get(name, FarVerdict(False, NOT_RUN, "it was not run"))


class TestsRun:
    """The tests of one lab on one file."""

    __test__ = False  # pytest would take it for a class of tests

    def __init__(self, lab: Lab, path: Path, level: Level, settings: Settings) -> None:
        self._lab, self._path, self._level, self._settings = lab, path, level, settings

    def run(self, names: list[str]) -> Ended:
        """Run the tests of these names. Everything that was started is gone afterwards."""
        ended = Ended()
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as output, os.fdopen(reading, "rb", buffering=0) as report:
            process = subprocess.Popen(self._command(names, writing), stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, cwd=self._lab.root, env=_environment(),
                                       pass_fds=(writing,), start_new_session=True)
            os.close(writing)
            try:
                is_finished = self._listen(report, ended)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if not (is_finished and ended.verdicts.keys() >= set(names)) and not ended.why_again:
                output.seek(max(output.tell() - 2000, 0))
                ended.why_again = "The grader's own process ended early."
                text = output.read()[-2000:].decode(errors="replace")
                ended.flags.append(f"the grader's process ended early: {text}")
        return ended

    def _command(self, names: list[str], report: int) -> list[str]:
        lab, hidden = self._lab, self._settings.hidden
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider",
                   "-p", "course.plugin", "--rootdir", str(lab.root), "-c", str(lab.root / "pyproject.toml"),
                   "--time-limit", str(self._settings.time_limit_s), "--report", f"/dev/fd/{report}",
                   "--file-limit", str(FILE_BYTES), "--far", self._level.value, f"--impl={self._path}"]
        files = [lab.tests]
        if hidden is not None and (hidden / lab.number / "test_hidden.py").is_file():
            files.append((hidden / lab.number / "test_hidden.py").resolve())
            command.append(f"--hidden-tests={lab.number}={files[-1]}")
        all_names = {path: path.read_text(encoding="utf-8") for path in files}
        return command + [f"{path}::{name}" for path in files for name in names if f"def {name}(" in all_names[path]]

    def _listen(self, report: Any, ended: Ended) -> bool:
        """Take in lines until the last. Whether there was a last."""
        limits = limits_for(self._lab)
        test_s = WALL_FACTOR * self._settings.time_limit_s * self._lab.time_factor
        deadline = time.monotonic() + WALL_FACTOR * limits.cpu_s
        for event in _events(report, STARTUP_S + 2 * test_s, deadline):
            if event is None:
                ended.why_again = "The machine was too busy, or the file waits for something that never comes."
                return False
            if event.get("event") == "finish":
                return True
            if event.get("event") == "end":
                self._take(event, ended)
        return False

    def _take(self, event: dict[str, Any], ended: Ended) -> None:
        name = event["test"]
        verdict = FarVerdict(event["passed"], event["error"], event["message"], event["printed"], event["cpu_s"])
        ended.cpu_s += verdict.cpu_s
        before = ended.verdicts.get(name)
        if before is None or before.passed:  # a parametrised test passes when all its cases do
            ended.verdicts[name] = verdict
        if event["waited"]:
            ended.why_again = (f"{name} was ended by the clock, having computed for {verdict.cpu_s:.1f} s: the machine "
                               "was too busy, or the file waits for something that never comes.")
        if verdict.error in FLAGGED:
            ended.flags.append(FLAGGED[verdict.error])


def _environment() -> dict[str, str]:
    """Course and tests come from the instructor's tree, whatever the environment says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return {**kept, **ONE_THREAD, "PYTHONPATH": str(Path(course.__file__).resolve().parent.parent),
            "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "COURSE_GRADER": "1"}


def _events(report: Any, silence_s: float, deadline: float) -> Iterator[dict[str, Any] | None]:
    """The lines of a pipe, until it is closed; None if nothing came for too long."""
    text, num_bytes = b"", 0
    while True:
        wait_s = min(silence_s, deadline - time.monotonic())
        if wait_s <= 0 or not select.select([report], [], [], wait_s)[0]:
            yield None
            return
        data = report.read(1 << 16)
        num_bytes += len(data)
        if not data or num_bytes > MAX_REPORT_BYTES:
            return
        *lines, text = (text + data).split(b"\n")
        yield from map(json.loads, lines)
