"""One running sandbox as the grader sees it: a socket, its CPU time, its output, and how to end it."""

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
#: How long to wait for the exit status of a process that has closed its socket and so is about to end.
_LEAVING_S = 0.5
#: The time for the keepers to make sure that everything has ended. They need milliseconds.
_KEEPER_S = 10.0


class Printed:
    """The standard output and error of a process, in a file without a name. The process's limits bound its size."""

    def __init__(self, folder: Path) -> None:
        path = folder / "printed"
        self._reader = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Append at the current end, also after clear(). Opened separately: a duplicate would share its position.
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
    """A process that runs a student's file, created by ``start``. On Linux the thread that did so must outlive it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, pid: int, printed: Printed,
                 clean_up: Callable[[], None]) -> None:
        #: The grader's end of a socket pair. Apart from 0, 1 and 2, the other end is the process's only descriptor.
        self.connection = connection
        #: The id of the Python that runs the file. ``process`` is its ancestor, with keepers in between.
        self.pid = pid
        self._process = process
        self._printed = printed
        self._clean_up = clean_up
        self._cpu_s = 0.0
        #: The CPU time used before the Python that runs the file existed. It is not charged to the file.
        self._keepers_cpu_s = 0.0
        with contextlib.suppress(ProcessLookupError):  # a one-line file may have ended already
            self._keepers_cpu_s = cpu_s_of(process.pid) if pid != process.pid else 0.0
        self._last_printed: str | None = None
        self._has_ended = False
        self._status: int | None = None

    def cpu_s(self) -> float:
        """Return the CPU time used so far by all threads; after the end, the total."""
        if self._process.returncode is None:
            try:
                self._cpu_s = max(self._cpu_s, cpu_s_of(self.pid))
            except ProcessLookupError:  # the keepers are about to end, and then the total is known
                self._wait(_LEAVING_S)
        return self._cpu_s

    def printed(self) -> str:
        """Return the last bytes written to standard output and error. Do not trust them: they may be any text."""
        return self._printed.tail() if self._last_printed is None else self._last_printed

    def clear_printed(self) -> None:
        if self._has_ended:
            self._last_printed = ""
        else:
            self._printed.clear()

    def end(self) -> int | None:
        """Kill the process and everything that it started, and clean up. A second call changes nothing.

        Return the exit status if it had already ended, 128 + the signal's number if a signal ended it; None if it was
        running.
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
        """Kill the inner process first: its keeper then ends whatever it left behind, and exits."""
        if self.pid != self._process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            if self._wait(_KEEPER_S) is not None:
                return
        kill_all(self._process)
        self._wait(None)

    def _wait(self, timeout_s: float | None) -> int | None:
        """Return the exit status as a shell reports it; None if the process still runs after ``timeout_s``."""
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
    """Kill, without the keepers' help, all descendants that can be found and the process group."""
    if os.path.isdir("/proc/self"):
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the other end is closed and everything that it sent has been read."""
    try:
        connection.setblocking(False)  # otherwise recv() would wait for its timeout
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
