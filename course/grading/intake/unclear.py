"""Files that were handed in but are not graded under their names: each with its likely lab and student, and advice.

Nothing is graded on a guess. The guess is in a list, with a command that confirms it, and an instructor decides.
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
    """The reason why an item is on the list."""

    #: Its name cannot be a student's id.
    NAME = "odd name"
    UNKNOWN = "not on the roster"
    TWICE = "handed in twice"
    #: Two ids that are the same on some disks.
    TWINS = "differ only in capitals"
    #: It is among the submissions, but its name identifies no student.
    NOBODY = "no student's"
    #: A single file among folders, which was assigned to a student.
    LOOSE = "loose file"
    #: It fits a lab for which this student handed in nothing that can be graded.
    MISNAMED = "misnamed"
    #: It is where one lab's file belongs, but fits another lab.
    WRONG_LAB = "another lab's"
    #: Several files have a name that is right for one lab.
    SEVERAL = "several for one lab"
    #: Another Python file or notebook of a student.
    FURTHER = "further file"


@dataclass(frozen=True)
class Unclear:
    #: Its path in the submissions.
    path: str
    kind: Kind
    #: The reason why it is on the list, as a sentence.
    why: str
    #: A command, or an instruction where no command can do it; empty if there is nothing to do.
    advice: str = ""
    #: The likely student, and the likely lab; empty if there is no indication.
    student: str = ""
    lab: str = ""
    #: A student may lose points because of it, so an instructor should decide. Until then the exit status is 1.
    is_open: bool = True
    #: The lab as which a file was graded that looks like another lab's. If it earns nothing there, the entry is open.
    graded_as: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "kind": self.kind.value}


def move(source: Path, target: Path) -> str:
    """Return a shell command that moves the file and overwrites nothing."""
    folder = f"mkdir -p -- {quoted(target.parent)} && " if not target.parent.is_dir() else ""
    return f"{folder}mv -n -- {quoted(source)} {quoted(target)}"


def quoted(path: Path) -> str:
    """Quote a path for a shell, whatever bytes it contains. The result can be printed, and copied from a terminal."""
    raw, text = os.fsencode(path), str(path)
    if text.isprintable() and unicodedata.is_normalized("NFC", text):
        return shlex.quote(text)
    letters = "".join(chr(byte) if _SAFE.fullmatch(bytes([byte])) and byte != ord("'") else f"\\x{byte:02x}"
                      for byte in raw)
    return f"$'{letters}'"
