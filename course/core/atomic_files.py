"""Files that are still being written: each has a name of its own beside the final one, and is renamed when it is whole.

    .grades.csv.lab-pc.4711.partial     the host and the process of the writer

A run that is killed leaves such files behind. No reader looks at them, and the next run removes them. It must not
remove those of another run that is at work in the same folder (``--shard``): the name says whether the writer can be
alive.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
#: No file takes that long to write. The processes of another machine cannot be seen from here.
MAX_AGE_S = 3600.0
_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "host"
_NAME = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>\d+)" + re.escape(PARTIAL))


def write_whole(path: Path, content: bytes, is_lasting: bool = True) -> None:
    """Write a file so that a reader sees the old one or the new one.

    With ``is_lasting`` that is so even if the machine loses its power. It costs milliseconds for each file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}{PARTIAL}")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            if is_lasting:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_partials(out: Path) -> None:
    """Remove what writers that are gone left anywhere in ``out``."""
    for path in partials_in(out):
        try:
            is_left = _is_left(path)
        except FileNotFoundError:  # its writer has just renamed it
            continue
        if is_left:
            path.unlink(missing_ok=True)


def partials_in(out: Path) -> Iterator[Path]:
    """The half-written files in a folder and below. Meanwhile other processes may remove folders there (``Path.rglob``
    raises an error then in some versions of Python); those in which workers are at work are left out."""
    for folder, inner, names in os.walk(out):
        inner[:] = [name for name in inner if not name.startswith(".work")]
        yield from (Path(folder) / name for name in names if name.startswith(".") and name.endswith(PARTIAL))


def _is_left(path: Path) -> bool:
    if time.time() - path.lstat().st_mtime > MAX_AGE_S:
        return True
    match = _NAME.fullmatch(path.name)
    return match is not None and match["host"] == _HOST and not _is_alive(int(match["pid"]))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
