"""Files that are there in whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,79}")


def write(path: Path, text: str) -> None:
    """Write beside it, then rename: who reads sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def folder_name(student: str) -> str:
    """A student's folder: the id, or, where that is no name for a folder, what is left of it and a hash."""
    if _PLAIN_NAME.fullmatch(student) and not student.endswith("."):
        return student
    left = re.sub(r"[^A-Za-z0-9]+", "-", student).strip("-")[:40]
    return f"{left or 'student'}-{hashlib.sha256(student.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def student_folder(out: Path, student: str) -> Path:
    return out / "students" / folder_name(student)
