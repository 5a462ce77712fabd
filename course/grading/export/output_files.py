"""Files that are written completely or not at all."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from course.core.atomic_files import write_whole

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,79}")


def write(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new one. A crash may lose it: every run writes all files."""
    write_whole(path, text.encode("utf-8"), is_lasting=False)


def folder_name(student: str) -> str:
    """Return the name of a student's folder: the id if it can be one, else its valid part and a hash."""
    if _PLAIN_NAME.fullmatch(student) and not student.endswith("."):
        return student
    left = re.sub(r"[^A-Za-z0-9]+", "-", student).strip("-")[:40]
    return f"{left or 'student'}-{hashlib.sha256(student.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def student_folder(out: Path, student: str) -> Path:
    return out / "students" / folder_name(student)
