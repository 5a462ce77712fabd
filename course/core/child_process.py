"""A supervised process: it runs in its own session and is killed together with all the processes it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

#: The matrix products in the labs are small, and several labs are checked at once: more threads would only contend.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: How long ``watch`` sleeps between two checks.
LOOK_S = 0.02


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Treat SIGTERM, and SIGHUP of a closed terminal, like Ctrl-C, so that each ``ChildProcess`` ends with this one.

    A signal that is ignored, as with nohup, stays ignored.
    """
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    changed = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, previous[number])


class ChildProcess:
    """A process and its output.

    Always leave it through ``end`` or as a context manager: both kill the process and everything that it started.
    """

    def __init__(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], printed: Path, *,
                 has_pipes: bool = False, descriptors: Sequence[int] = ()) -> None:
        """Start ``command`` with exactly this ``environment``; its output goes to the file ``printed``.

        With ``has_pipes``, standard input and output are pipes instead, and only standard error goes to the file. The
        process inherits ``descriptors``.
        """
        self._printed = printed
        with open(printed, "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=dict(environment), bufsize=0, pass_fds=descriptors, start_new_session=True,
                stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_pipes else output, stderr=output)

    def watch(self, look: Callable[[], str | None] = lambda: None) -> str | None:
        """Wait for the process to end, and return why it was killed, or None if it was not.

        ``look`` is called many times per second; as soon as it returns a reason, the process is killed. If ``look``
        raises, the process is killed as well.
        """
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
        """Kill the process and everything that it started. A second call changes nothing."""
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
        """The exit status, or the negated signal number if a signal ended the process. Only valid after the end."""
        assert self.process.returncode is not None
        return self.process.returncode

    def printed(self, num_characters: int = 2_000) -> str:
        """Return the last ``num_characters`` of the output."""
        return self._printed.read_text(encoding="utf-8", errors="replace")[-num_characters:]

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()
