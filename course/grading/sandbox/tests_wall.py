"""The second wall: what the process that runs the tests gives up before a submission is loaded.

A submission runs in a sandbox. If it finds a way to make the tests' process act for it, that process can write no file,
reach no network and start no process, and it reads only Python, the packages and the project. On Linux the kernel
enforces this (Landlock for paths, seccomp for system calls). On every platform an audit hook in Python does, too.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterable
from typing import Any

from course.grading.sandbox.inside import landlock, seccomp
from course.grading.sandbox.inside.init_process import die_with_parent
from course.grading.sandbox.inside.system import PR_SET_NO_NEW_PRIVS, prctl
from course.grading.sandbox.visible_paths import view_of

#: Audit events of actions that are forbidden behind this wall.
REFUSED = frozenset(
    """os.chflags os.chmod os.chown os.exec os.fork os.forkpty os.kill os.killpg os.link os.lockf os.mkdir
    os.posix_spawn os.remove os.removexattr os.rename os.rmdir os.setxattr os.spawn os.startfile os.symlink os.system
    os.truncate os.utime pty.spawn signal.pthread_kill socket.bind socket.connect socket.getaddrinfo
    socket.gethostbyaddr socket.gethostbyname socket.getnameinfo socket.getservbyname socket.sendmsg socket.sendto
    subprocess.Popen tempfile.mkdtemp tempfile.mkstemp shutil.chown shutil.copyfile shutil.copymode shutil.copystat
    shutil.copytree shutil.make_archive shutil.move shutil.rmtree shutil.unpack_archive webbrowser.open urllib.Request
    ftplib.connect http.client.connect imaplib.open nntplib.connect poplib.connect smtplib.connect sqlite3.connect
    telnetlib.Telnet.open fcntl.flock fcntl.lockf""".split())
#: Audit events that name a path to be read.
READING = frozenset(("open", "os.listdir", "os.scandir", "os.walk", "glob.glob"))
_EVENTS = REFUSED | READING
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def end_with_parent(broker: int) -> None:
    """End this process when the process with the other end of ``broker`` is gone, however that one ended."""
    if sys.platform == "linux":
        die_with_parent(os.getppid())
        return
    poll = select.poll()
    poll.register(broker, 0)  # report only that it was closed
    threading.Thread(target=lambda: (poll.poll(), os._exit(1)), daemon=True).start()


def raise_wall(readable: Iterable[str]) -> None:
    """Restrict this process: it can only compute, read ``readable``, Python and its packages, and use what is open.

    This cannot be undone. The kernel's part does not bind threads that already run, so call it before starting any.
    """
    trees = _trees(readable)
    if sys.platform == "linux":
        prctl("no_new_privs", PR_SET_NO_NEW_PRIVS, 1)
        if landlock.abi():
            landlock.restrict(trees, (), ())
        if seccomp.is_available():
            seccomp.restrict()
    sys.addaudithook(_Hook(trees))


def _trees(readable: Iterable[str]) -> tuple[str, ...]:
    own = (*readable, *sys.path, sys.prefix, sys.base_prefix)
    paths = [os.path.realpath(path) for path in own if path]
    return tuple(dict.fromkeys((*view_of(()).trees, *(path for path in paths if os.path.exists(path)))))


class _Hook:
    """Raises PermissionError for what the wall forbids. Python calls it for every audit event."""

    def __init__(self, trees: tuple[str, ...]) -> None:
        self._trees = tuple(f"{tree}/" for tree in trees)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        if event in REFUSED:
            raise PermissionError(f"the process that runs the tests may not use {event}")
        path = arguments[0]
        if isinstance(path, int):  # a descriptor that is already open
            return
        flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
        if flags & _WRITING:
            raise PermissionError(f"the process that runs the tests may not write {path!r:.200}")
        if not self._is_readable(path):
            raise PermissionError(f"the process that runs the tests may not read {path!r:.200}")

    def _is_readable(self, path: Any) -> bool:
        try:
            name = os.path.realpath(os.fsdecode("." if path is None else path))
        except (TypeError, ValueError):
            return False
        return f"{name}/".startswith(self._trees)
