"""The names of a lab's files and folders, and the names that they are given by mistake."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from course.lab.lab import Lab

#: ``starter``, also with the number that a browser or a platform adds to a second download.
_STARTER = re.compile(r"starter(?:-\d{1,2}| ?\(\d{1,2}\)|_\d)?")
#: Files next to a starter that are not the starter.
BESIDE = ("solution", "test_lab", "mutants", "conftest", "readme", "hints", "answers", "lab")
_NUMBER = re.compile(r"(?<!\d)(\d{1,2})[-_. ]?(\d{1,2})(?!\d)")


def stem_of_file(name: str) -> str:
    """Return the stem of a file in lower case: ``starter`` for ``2.1/Starter.py.txt``."""
    last = PurePosixPath(name).name.lower()
    return last.partition(".py")[0] if ".py" in last else PurePosixPath(last).stem


def lab_of(name: str, labs: Sequence[Lab], only: Lab | None) -> Lab | None:
    """Return the lab whose file this may be: by a folder above it, by its own name, or as the only requested lab."""
    stem = stem_of_file(name)
    folders = PurePosixPath(name).parts[:-1]
    above = next((lab for part in reversed(folders) for lab in labs if is_called(part, lab)), None)
    if above is not None:
        return above if _STARTER.fullmatch(stem) or is_called(stem, above) else None
    by_name = next((lab for lab in labs if is_called(stem, lab)), None)
    if by_name is not None or stem in BESIDE:
        return by_name
    return only if _STARTER.fullmatch(stem) else None


def is_called(text: str, lab: Lab) -> bool:
    """Return whether the text names the lab: ``2.1``, ``lab-2.1``, ``starter_2.1``, ``block_allocator`` and
    ``lab-01-block-allocator`` all mean lab 2.1."""
    plain = re.sub(r"[ _]", "-", text.lower())
    plain = re.sub(r"^starter-|-starter$", "", plain)
    return plain in (lab.number, f"lab-{lab.number}", f"lab{lab.number}", lab.name, lab.folder.name,
                     f"{lab.number}-{lab.name}")


def reminds_of(name: str, labs: Sequence[Lab]) -> Lab | None:
    """Return the only lab that a name resembles: ``lab21``, ``2-1 final``, ``my_block_allocator``."""
    stem = stem_of_file(name)
    plain = re.sub(r"[ _]", "-", stem)
    numbers = {f"{int(phase)}.{int(lab)}" for phase, lab in _NUMBER.findall(stem)}
    found = [lab for lab in labs if lab.name in plain or lab.number in numbers]
    return found[0] if len(found) == 1 else None


def is_labs_file(name: str, labs: Sequence[Lab]) -> bool:
    """Return whether a name identifies a lab or a part of one, and so does not identify a student."""
    stem = stem_of_file(name)
    is_numbered = re.fullmatch(r"(?:lab|starter)?[-_. ]?\d{1,2}[-_. ]?\d{1,2}", stem) and reminds_of(name, labs)
    return bool(_STARTER.fullmatch(stem) or stem in BESIDE or is_numbered or any(is_called(stem, lab) for lab in labs))
