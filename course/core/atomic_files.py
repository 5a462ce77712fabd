"""Files that are still being written: each has a temporary name next to the final one, and is renamed at the end.

    .grades.csv.lab-pc.4711.partial     the host and the process of the writer

A run that is killed leaves such files behind. No reader opens them, and the next run removes them. It must not remove
the files of another run that is working in the same folder (``--shard``), so the name shows whether the writer can
still be alive.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
#: No file takes that long to write. Only the age counts for files of other machines, whose processes cannot be checked.
MAX_AGE_S = 3600.0
_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "host"
_NAME = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>\d+)" + re.escape(PARTIAL))


def write_whole(path: Path, content: bytes, is_lasting: bool = True) -> None:
    """Write a file so that a reader sees either the old content or the new one.

    With ``is_lasting`` this holds even after a power failure, at a cost of some milliseconds per file.
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
    """Remove the partial files of dead writers anywhere in ``out``."""
    for path in partials_in(out):
        try:
            is_left = _is_left(path)
        except FileNotFoundError:  # the writer has just renamed it
            continue
        if is_left:
            path.unlink(missing_ok=True)


def partials_in(out: Path) -> Iterator[Path]:
    """Yield the partial files in ``out`` and its subfolders.

    Other processes may remove folders meanwhile, and ``Path.rglob`` then raises an error in some versions of Python.
    Folders in which workers are active (``.work…``) are skipped.
    """
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
