"""What was handed in and is not graded as it is called: each with its likely lab and student, and what to do about it.

Nothing is graded on a guess. The guess stands in a list, with a command that makes it so; an instructor decides.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import shlex
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SAFE = re.compile(rb"[\w@%+=:,./ ()'&~#!-]")


class Kind(str, enum.Enum):
    """Why something is on the list."""

    #: Its name cannot be a student's id.
    NAME = "odd name"
    UNKNOWN = "not on the roster"
    TWICE = "handed in twice"
    #: Two ids that are one on some disks.
    TWINS = "differ only in capitals"
    #: It lies among the submissions, and its name is no student's.
    NOBODY = "no student's"
    #: A single file among folders, which was taken for a student's.
    LOOSE = "loose file"
    #: It fits a lab for which this student handed in nothing that can be graded.
    MISNAMED = "misnamed"
    #: It is where one lab's file belongs, and fits another lab.
    WRONG_LAB = "another lab's"
    #: Several files have a name that is right for one lab.
    SEVERAL = "several for one lab"
    #: A further Python file or notebook of a student.
    FURTHER = "further file"


@dataclass(frozen=True)
class Unclear:
    #: Where it lies in the submissions.
    path: str
    kind: Kind
    #: Why it is here, in a sentence.
    why: str
    #: A command, or an instruction where no command can do it; empty if there is nothing to do.
    advice: str = ""
    #: Whose it is likely to be, and which lab's; empty if nothing says so.
    student: str = ""
    lab: str = ""
    #: A student may lose points by it, so somebody should decide. The exit status says so until then.
    is_open: bool = True

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "kind": self.kind.value}


def move(source: Path, target: Path) -> str:
    """A command for the shell, which overwrites nothing."""
    folder = f"mkdir -p -- {quoted(target.parent)} && " if not target.parent.is_dir() else ""
    return f"{folder}mv -n -- {quoted(source)} {quoted(target)}"


def quoted(path: Path) -> str:
    """A path as a shell takes it, whatever bytes it has: all of it can be printed, and copied from a terminal."""
    raw, text = os.fsencode(path), str(path)
    if text.isprintable() and unicodedata.is_normalized("NFC", text):
        return shlex.quote(text)
    letters = "".join(chr(byte) if _SAFE.fullmatch(bytes([byte])) and byte != ord("'") else f"\\x{byte:02x}"
                      for byte in raw)
    return f"$'{letters}'"
