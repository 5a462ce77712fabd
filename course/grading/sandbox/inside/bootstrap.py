"""From a fresh Python to the student's process: namespaces, limits, Landlock, seccomp, and then the file itself.

The orders arrive on standard input, as one marshalled dictionary written by course.grading.sandbox.launch.
"""

from __future__ import annotations

import marshal
import math
import os
import resource
import sys
from typing import Any

from . import init_process, landlock, namespaces, seccomp
from .system import PR_SET_NO_NEW_PRIVS, drop_capabilities, prctl

READY, FAILED = b".", b"!"
EXIT_NOT_SET_UP = 70
#: The kernel counts ticks for this limit. On a busy machine it counted 1.0 s when 0.71 s had been used.
_SAMPLING_MARGIN = 1.5


def main() -> None:
    """Set up the process as ordered, report over the socket that it is ready, and run the sandbox's main file."""
    orders: dict[str, Any] = marshal.loads(sys.stdin.buffer.read())
    _close_standard_input()
    try:
        if sys.platform == "linux":
            _become_the_inner_process(orders)
        os.chdir(orders["home"])
        _limit(**orders["limits"])
        if sys.platform == "linux":
            _shut_the_door(orders)
        code = _prepare_python(orders)
    except Exception as error:
        os.write(orders["socket"], FAILED + f"{type(error).__name__}: {error}".encode(errors="replace"))
        os._exit(EXIT_NOT_SET_UP)
    os.write(orders["socket"], READY)
    exec(code, sys.modules["__main__"].__dict__)


def _close_standard_input() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _become_the_inner_process(orders: dict[str, Any]) -> None:
    """Fork one or two keepers. Return in the process that will run the student's file."""
    level = orders["level"]
    if level == "bubblewrap":  # bubblewrap created the namespaces, and this process is the first one in them
        init_process.die_with_parent()
        drop_capabilities()
    elif level == "namespaces":
        namespaces.leave_the_others()
        init_process.die_with_parent(orders["parent"])
        init_process.fork_and_keep(has_pid_namespace=True)
        namespaces.change_root(orders["root"], orders["trees"], orders["holes"], orders["links"], orders["packages"])
        drop_capabilities()
    else:
        init_process.die_with_parent(orders["parent"])
        init_process.adopt_orphans()
    init_process.fork_and_keep(has_pid_namespace=level in ("bubblewrap", "namespaces"))
    os.setsid()


def _limit(cpu_s: float, memory_bytes: int, file_bytes: int, open_files: int) -> None:
    """Set the rlimits. Linux counts the processes and threads of the whole user: their number is limited elsewhere."""
    whole_s = math.ceil(cpu_s * _SAMPLING_MARGIN)
    _set_limit(resource.RLIMIT_CPU, whole_s, whole_s + 1)  # first a signal, one second later the kill
    _set_limit(resource.RLIMIT_FSIZE, file_bytes)
    _set_limit(resource.RLIMIT_NOFILE, open_files)
    _set_limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "darwin":
        _set_limit(resource.RLIMIT_NPROC, 0)  # macOS does not count threads here: this only forbids new processes
    else:
        _set_limit(resource.RLIMIT_AS, memory_bytes)


def _set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, but never above what this process has been given."""
    allowed = resource.getrlimit(kind)[1]
    wanted = soft if hard is None else hard
    if allowed != resource.RLIM_INFINITY:
        wanted = min(wanted, allowed)
    resource.setrlimit(kind, (min(soft, wanted), wanted))


def _shut_the_door(orders: dict[str, Any]) -> None:
    drop_capabilities()
    prctl("no_new_privs", PR_SET_NO_NEW_PRIVS, 1)
    if orders["level"] == "landlock":
        landlock.restrict(orders["trees"], orders["holes"], orders["packages"])
    if orders["has_seccomp"]:
        seccomp.restrict()


def _prepare_python(orders: dict[str, Any]) -> Any:
    """Compile the sandbox's main file, and set up ``sys`` as if Python had been started with it."""
    path, here = orders["main"], __name__.partition(".")[0]
    sys.path[:] = [*sys.path[1:], *orders["paths"]]  # the first entry is where this package was found
    sys.argv[:] = [path, str(orders["socket"]), *orders["arguments"]]
    for name in [name for name in sys.modules if name.partition(".")[0] == here]:
        del sys.modules[name]
    module = sys.modules["__main__"] = type(sys)("__main__")
    module.__dict__["__file__"] = path
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec")
