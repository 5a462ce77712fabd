"""Starts a sandbox: writes its files into a new folder, starts Python there, and waits until it is isolated."""

from __future__ import annotations

import dataclasses
import marshal
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from course.grading.sandbox.commands import command_of
from course.grading.sandbox.inside import seccomp
from course.grading.sandbox.inside.bootstrap import READY
from course.grading.sandbox.process import Printed, Sandbox, kill_all
from course.grading.sandbox.spec import Level, Limits, SandboxError, SandboxFiles
from course.grading.sandbox.visible_paths import View, view_of

#: The time for Python to start and isolate itself. It needs a tenth of a second, but the machine may be busy.
_READY_S = 60.0
_MESSAGE_BYTES = 4_096
_SO_PASSCRED, _SCM_CREDENTIALS = 16, 2
#: One thread per matrix product, because a grader runs one worker per core.
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
                "VECLIB_MAXIMUM_THREADS": "1", "MLX_DISABLE_COMPILE": "1"}


def start(level: Level, files: SandboxFiles, main: str, arguments: Sequence[str], limits: Limits) -> Sandbox:
    """Run ``main``, one of ``files``, at this level. Its ``sys.argv[1]`` is the descriptor of its socket.

    Return when the process is isolated and about to run the file. Raise SandboxError if it cannot be isolated at this
    level.
    """
    if main not in files.files:
        raise SandboxError(f"{main!r} is not in the sandbox; it holds {', '.join(sorted(files.files)) or 'nothing'}")
    view = view_of(files.packages)
    folder = tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True)
    try:
        path = Path(os.path.realpath(folder.name))
        view = lay_out(files, view, path)
        orders = {"main": str(path / "files" / main), "arguments": list(arguments)}
        return _start(level, view, path, limits, orders, folder.cleanup)
    except BaseException:
        folder.cleanup()
        raise


def lay_out(files: SandboxFiles, view: View, folder: Path) -> View:
    """Write the files into ``folder``, and return the view with the new folders added."""
    parts = [folder / name for name in ("files", "packages", "home", "root")]
    for part in parts:
        part.mkdir()
    _write_files(files.files, parts[0])
    for path in view.packages:  # one folder for sys.path, with links to exactly these packages
        (parts[1] / os.path.basename(path)).symlink_to(path)
    return dataclasses.replace(view, trees=(*view.trees, *(str(part) for part in parts[:3])))


def _write_files(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise SandboxError(f"{name!r} would not be in the sandbox; give names relative to it")
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def orders_for(level: Level, view: View, folder: Path, limits: Limits, child_socket: int) -> dict[str, Any]:
    """Return the orders for inside/bootstrap.py."""
    return {
        "level": level.value, "parent": os.getpid(), "socket": child_socket, "limits": dataclasses.asdict(limits),
        "home": str(folder / "home"), "root": str(folder / "root"), "has_seccomp": seccomp.is_available(),
        "trees": list(view.trees), "holes": list(view.holes), "packages": list(view.packages),
        "links": [list(link) for link in view.links],
        "paths": [str(folder / name) for name in ("files", "packages")],
    }


def _start(level: Level, view: View, folder: Path, limits: Limits, what: dict[str, Any],
           clean_up: Callable[[], None]) -> Sandbox:
    ours, theirs = socket.socketpair()
    printed = Printed(folder)
    try:
        with theirs, tempfile.TemporaryFile() as orders:
            marshal.dump({**orders_for(level, view, folder, limits, theirs.fileno()), **what}, orders)
            orders.seek(0)
            process = subprocess.Popen(
                command_of(level, view, folder / "home"), stdin=orders, stdout=printed.writer, stderr=printed.writer,
                env={**_ENVIRONMENT, "HOME": str(folder / "home")}, cwd=folder / "home",
                pass_fds=(theirs.fileno(),), start_new_session=True)
        printed.close_writer()
        return Sandbox(process, ours, _await_ready(process, ours, printed), printed, clean_up)
    except BaseException:
        printed.close()
        ours.close()
        raise


def _await_ready(process: subprocess.Popen[bytes], connection: socket.socket, printed: Printed) -> int:
    """Wait until the Python in the sandbox reports that it is ready. Return its process id as seen from here, which
    differs from the one inside a PID namespace."""
    try:
        message, pid = _receive_first(connection, process.pid)
    except BaseException:
        kill_all(process)
        process.wait()
        raise
    if message == READY:
        return pid
    said = _rest(connection) if message else ""
    kill_all(process)
    process.wait()
    last_line = printed.tail().strip().rpartition("\n")[2]
    said = said or last_line or f"it ended with status {process.returncode}"
    raise SandboxError(f"the sandbox could not be set up: {said}")


def _receive_first(connection: socket.socket, own_pid: int) -> tuple[bytes, int]:
    connection.settimeout(_READY_S)
    try:
        if sys.platform != "linux":
            return connection.recv(1), own_pid
        connection.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 1)
        message, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("3i")))
        connection.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 0)
    except TimeoutError:
        raise SandboxError(f"the sandbox did not start within {_READY_S:.0f} s; the machine may be too busy") from None
    finally:
        connection.settimeout(None)
    for _, kind, data in ancillary:
        if kind == _SCM_CREDENTIALS:
            return message, struct.unpack("3i", data)[0]
    return message, own_pid


def _rest(connection: socket.socket) -> str:
    """Return the bootstrap's error message, which it sends before it exits."""
    connection.settimeout(1.0)
    try:
        return connection.recv(_MESSAGE_BYTES).decode(errors="replace")
    except TimeoutError:
        return ""
