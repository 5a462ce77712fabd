"""One running sandbox, as the grader holds it: a socket, a clock, what it printed, and an end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from course.grading.sandbox.cpu_time import cpu_s_of
from course.grading.sandbox.inside.init_process import descendants

_PRINTED_BYTES = 8_000
#: It has closed its socket, so it is about to end: how long its exit status is waited for.
_LEAVING_S = 0.5
#: For the keepers to see that all has ended. They need milliseconds.
_KEEPER_S = 10.0


class Printed:
    """What a process writes to standard output and error: a file without a name, whose size its limits bound."""

    def __init__(self, folder: Path) -> None:
        path = folder / "printed"
        self._reader = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # At its end, wherever that is after a clear. Opened anew, since the place would be shared otherwise.
        self.writer = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        path.unlink()

    def tail(self) -> str:
        size = os.fstat(self._reader).st_size
        start = max(size - _PRINTED_BYTES, 0)
        return os.pread(self._reader, _PRINTED_BYTES, start).decode(errors="replace")

    def clear(self) -> None:
        os.ftruncate(self._reader, 0)

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        os.close(self._reader)


class Sandbox:
    """A process that runs a student's file. Made by ``start``; the thread that did so must outlive it, on Linux."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, pid: int, printed: Printed,
                 clean_up: Callable[[], None]) -> None:
        #: The grader's end of a socket pair; the other end is all that the process has beside 0, 1 and 2.
        self.connection = connection
        #: Of the Python that runs the file; keepers stand between it and ``process``.
        self.pid = pid
        self._process = process
        self._printed = printed
        self._clean_up = clean_up
        self._cpu_s = 0.0
        #: What was used before the Python that runs the file was there; it is not the file's.
        self._keepers_cpu_s = 0.0
        with contextlib.suppress(ProcessLookupError):  # a file of one line may have ended already
            self._keepers_cpu_s = cpu_s_of(process.pid) if pid != process.pid else 0.0
        self._last_printed: str | None = None
        self._has_ended = False
        self._status: int | None = None

    def cpu_s(self) -> float:
        """CPU time used so far, all threads; after the end, what it was."""
        if self._process.returncode is None:
            try:
                self._cpu_s = max(self._cpu_s, cpu_s_of(self.pid))
            except ProcessLookupError:  # its keepers are about to end, too, and to say how much it was
                self._wait(_LEAVING_S)
        return self._cpu_s

    def printed(self) -> str:
        """The last bytes that it wrote to standard output and error. Not trusted: any text may stand there."""
        return self._printed.tail() if self._last_printed is None else self._last_printed

    def clear_printed(self) -> None:
        if self._has_ended:
            self._last_printed = ""
        else:
            self._printed.clear()

    def end(self) -> int | None:
        """Kill it and all that it started, and clean up; a second call changes nothing.

        Returns the exit status that it had already, 128 + the number where a signal ended it; None if it was running.
        """
        if self._has_ended:
            return self._status
        self.cpu_s()
        self._status = self._wait(_LEAVING_S if _is_closed(self.connection) else 0.0)
        self._has_ended = True
        if self._status is None:
            self._kill()
        self._last_printed = self._printed.tail()
        self._printed.close()
        self.connection.close()
        self._clean_up()
        return self._status

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()

    def _kill(self) -> None:
        """The inner process first: its keeper then ends whatever it left behind, and itself."""
        if self.pid != self._process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            if self._wait(_KEEPER_S) is not None:
                return
        kill_all(self._process)
        self._wait(None)

    def _wait(self, timeout_s: float | None) -> int | None:
        """The exit status, as a shell would say it; None if it still runs after this time."""
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._process.returncode is None:
            ended_pid, status, usage = os.wait4(self._process.pid, 0 if give_up_s is None else os.WNOHANG)
            if ended_pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._cpu_s = max(self._cpu_s, usage.ru_utime + usage.ru_stime - self._keepers_cpu_s)
            elif give_up_s is not None and time.monotonic() >= give_up_s:
                return None
            else:
                time.sleep(0.0005)
        code = self._process.returncode
        return code if code >= 0 else 128 - code


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Without the keepers' help: descendants that can be found, and the process group."""
    if os.path.isdir("/proc/self"):
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other end is gone, and nothing that it sent is left to read."""
    try:
        connection.setblocking(False)  # else recv() would wait as long as its timeout says
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
