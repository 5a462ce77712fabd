"""The process above the student's: it waits for the student's process, and ends whatever that process started."""

from __future__ import annotations

import os
import signal
import time
from typing import NoReturn

from .system import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl

_SWEEP_S = 5.0


def die_with_parent(parent_pid: int | None = None) -> None:
    """Arrange to be killed when the parent ends. Exit now if it has already ended."""
    prctl("parent-death signal", PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of every orphaned descendant, however the descendant tried to get away."""
    prctl("child subreaper", PR_SET_CHILD_SUBREAPER, 1)


def fork_and_keep(*, has_pid_namespace: bool) -> None:
    """Fork, and return in the new child. The calling process stays behind as its keeper and never returns."""
    own_pid = os.getpid()
    pid = os.fork()
    if pid:
        _keep(pid, has_pid_namespace=has_pid_namespace)
    # The first process of a PID namespace cannot see its parent: getppid() returns 0.
    die_with_parent(None if os.getpid() == 1 else own_pid)


def _keep(pid: int, *, has_pid_namespace: bool) -> NoReturn:
    """Wait for the child, end what it left behind, and exit with its status; after a signal, 128 + its number."""
    prctl("not dumpable", PR_SET_DUMPABLE, 0)
    os.closerange(0, 256)  # including the child's end of the socket, which has to close when the child ends
    status = _wait_for(pid)
    if not has_pid_namespace:  # otherwise the kernel ends all processes of the namespace with the first
        sweep()
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _wait_for(pid: int) -> int:
    while True:
        ended_pid, status = os.waitpid(-1, 0)
        if ended_pid == pid:
            return status


def sweep() -> None:
    """Kill all descendants, including orphans, until none is left or the time limit is reached."""
    give_up_s = time.monotonic() + _SWEEP_S
    while time.monotonic() < give_up_s:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def descendants(pid: int) -> list[int]:
    """Return all descendants of ``pid``, found from the parents that /proc lists."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # the process has ended in the meantime
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(pid, ()))
    for parent in found:  # the list grows during the loop
        found += children.get(parent, ())
    return found
