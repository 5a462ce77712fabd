"""A process that is watched: it has a session of its own, and ends with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

#: The products of labs are small, and several labs are checked at once: more threads would only wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: How long ``watch`` sleeps between two looks.
LOOK_S = 0.02


class ChildProcess:
    """A process, and what it prints.

    Leave it by ``end`` or as a context, whatever happens in between: it is killed with all that it started.
    """

    def __init__(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], printed: Path, *,
                 has_pipes: bool = False, descriptors: Sequence[int] = ()) -> None:
        """``environment`` is all that it has; ``printed`` is the file that takes its output.

        With ``has_pipes`` its standard input and output are pipes instead, and only its standard error is kept. It
        inherits ``descriptors``.
        """
        self._printed = printed
        with open(printed, "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=dict(environment), bufsize=0, pass_fds=descriptors, start_new_session=True,
                stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_pipes else output, stderr=output)

    def watch(self, look: Callable[[], str | None] = lambda: None) -> str | None:
        """Wait for its end. ``look`` is called many times a second; as soon as it gives a reason, the process is
        killed. Returns the reason. Whatever ``look`` raises ends the process, too."""
        reason = None
        try:
            while reason is None and self.process.poll() is None:
                reason = look()
                if reason is None:
                    time.sleep(LOOK_S)
        finally:
            self.end()
        return reason

    def end(self) -> None:
        """Kill it and all that it started; a second call changes nothing."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def status(self) -> int:
        """Its exit status, minus the signal's number if a signal ended it. Only after the end."""
        assert self.process.returncode is not None
        return self.process.returncode

    def printed(self, num_characters: int = 2_000) -> str:
        """The last that it printed."""
        return self._printed.read_text(encoding="utf-8", errors="replace")[-num_characters:]

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()
