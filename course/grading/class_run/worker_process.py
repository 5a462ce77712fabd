"""One process that grades, as its parent sees it: it receives a file, and answers with a result or dies."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.core.child_process import ONE_THREAD, ChildProcess


@dataclass(frozen=True)
class Job:
    """One file to be graded."""

    student: str
    lab: str
    content: bytes
    #: The factor by which the lab's limits exceed the usual ones.
    time_factor: float = 1.0
    #: Whether this is the second attempt, because the first gave no score.
    is_second: bool = False


class WorkerLost(Exception):
    """A worker that ended, or had to be ended."""


class Worker:
    """One process, and its current job."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        empty = folder / "empty"
        empty.mkdir()
        self._child = ChildProcess(command, empty, {**os.environ, **ONE_THREAD, "PYTHONDONTWRITEBYTECODE": "1"},
                                   folder / "said.txt", has_pipes=True)
        self.process = self._child.process
        self.job: Job | None = None
        self.is_ready = False
        self._since = time.monotonic()
        self._line = b""

    def give(self, job: Job, request: dict[str, Any]) -> None:
        """Hand over a job. Its text is in a fresh folder of the worker."""
        folder = Path(tempfile.mkdtemp(dir=self._folder, prefix="job-"))
        path = folder / "starter.py"
        path.write_bytes(job.content)
        self.job, self._since = job, time.monotonic()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({**request, "lab": job.lab, "path": str(path)}).encode() + b"\n")
        except BrokenPipeError:
            pass  # the worker is dead: the end of its output will show it

    def read(self) -> dict[str, Any] | None:
        """Return the next line if it is complete, otherwise None. Raise WorkerLost at the end of the output."""
        assert self.process.stdout is not None
        chunk = os.read(self.process.stdout.fileno(), 1 << 20)
        if not chunk:
            raise WorkerLost(f"its process ended with exit status {self.process.wait()}")
        self._line += chunk
        if not self._line.endswith(b"\n"):
            return None
        line, self._line = self._line, b""
        for folder in self._folder.glob("job-*"):
            shutil.rmtree(folder, ignore_errors=True)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def waited_s(self) -> float:
        return time.monotonic() - self._since

    def said(self) -> str:
        """Return the last lines that it wrote."""
        return self._child.printed().strip()

    def end(self) -> None:
        self._child.end()
        shutil.rmtree(self._folder, ignore_errors=True)
