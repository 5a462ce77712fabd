"""The lab that a later lab builds on: ``from course.base import lab_2_1 as base``, then ``base.BlockPool``.

In tests and in grading the base is the reference, the earlier lab's ``solution.py``, because each lab is graded on its
own. While an engine is built from a student's pieces (``using``), the base is the student's own file: the engine then
has one pool, one manager and one scheduler, each extended from lab to lab. ``pytest --base`` runs a lab's tests on such
a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

from course.lab.lab import LabError, discover, find_lab
from course.lab.load_module import load_file

_NAME = re.compile(r"lab_(\d+)_(\d+)")

#: The course whose labs are used; by default the one that contains the current folder.
root: Path | None = None
#: Lab number → the file that represents the lab, if it is not its ``solution.py``.
_files: dict[str, Path] = {}
#: Each file is run once per content and choice of bases, so that all files that build on it share its classes.
_loaded: dict[object, types.ModuleType] = {}


def __getattr__(name: str) -> types.ModuleType:
    number = _NAME.fullmatch(name)
    if number is None:
        raise AttributeError(f"course.base has no {name!r}: a base is called lab_2_1, for lab 2.1")
    return load_base(f"{number[1]}.{number[2]}")


def load_base(number: str) -> types.ModuleType:
    """Return the module that currently represents a lab.

    Raise LabError if there is no such lab. Errors that the file raises are passed on.
    """
    path = _files.get(number) or find_lab(number, discover(root)).solution
    if not path.is_file():
        raise LabError(f"lab {number}, on which this file builds, has no file {path}")
    key = (path, hashlib.sha256(path.read_bytes()).digest(), *sorted(_files.items()))
    if key not in _loaded:
        _loaded[key] = load_file(path)
    return _loaded[key]


def use(files: Mapping[str, Path]) -> None:
    """Make these files, keyed by lab number, the bases from now on."""
    global _files
    _files = dict(files)


@contextlib.contextmanager
def using(files: Mapping[str, Path]) -> Iterator[None]:
    """Make these files, keyed by lab number, the bases inside the block."""
    before = _files
    use(files)
    try:
        yield
    finally:
        use(before)
