"""The process before the student's one: it waits for it, and sees that nothing it started stays behind."""

from __future__ import annotations

import os
import signal
import time
from typing import NoReturn

from .system import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl

_SWEEP_S = 5.0


def die_with_parent(parent_pid: int | None = None) -> None:
    """Be killed when the parent ends, or now if that has happened already."""
    prctl("parent-death signal", PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes this process's child, however it tried to get away."""
    prctl("child subreaper", PR_SET_CHILD_SUBREAPER, 1)


def fork_and_keep(*, has_pid_namespace: bool) -> None:
    """Return in a new child. The process that called stays behind as its keeper, and never returns."""
    own_pid = os.getpid()
    pid = os.fork()
    if pid:
        _keep(pid, has_pid_namespace=has_pid_namespace)
    # The first of a PID namespace cannot see its parent: that reads as 0.
    die_with_parent(None if os.getpid() == 1 else own_pid)


def _keep(pid: int, *, has_pid_namespace: bool) -> NoReturn:
    """Wait for the child, end what it left behind, and end as it did; by a signal: 128 + its number."""
    prctl("not dumpable", PR_SET_DUMPABLE, 0)
    os.closerange(0, 256)  # the child's end of the socket among them: it is to close when the child ends
    status = _wait_for(pid)
    if not has_pid_namespace:  # else the kernel ends them all with the first of them
        sweep()
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _wait_for(pid: int) -> int:
    while True:
        ended_pid, status = os.waitpid(-1, 0)
        if ended_pid == pid:
            return status


def sweep() -> None:
    """Kill all descendants, the orphans among them, until none is left."""
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
    """All that came from ``pid``, by what /proc says of parents."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it has ended meanwhile
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(pid, ()))
    for parent in found:  # grows while it is walked
        found += children.get(parent, ())
    return found
