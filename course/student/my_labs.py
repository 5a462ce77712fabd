"""A lab's module for a script: ``from course.mine import lab_2_1``, then ``lab_2_1.BlockPool``.

It is the student's own file if its lab passes, on the student's own bases where these pass; else the reference's. A
line on standard error says which. A file that was changed since its last test is tested first.

``load`` does the same for a notebook, with two differences: it prints whose module it is on standard output, and if the
student's does not pass it returns the engine's own module, so that the notebook shows the engine. ``load_parts`` does
this for a whole engine.
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

from course.install.course_files import PACKED
from course.lab import base_labs
from course.lab.lab import PROJECT_ROOT, Lab, LabError, discover, find_lab, find_root
from course.lab.load_module import import_together
from course.lab.parts import Pieces, bases_of, choose
from course.pytest_run.run_lab import LabRunFailed
from course.student.progress import Progress, State

if TYPE_CHECKING:
    from mini_vllm.engine_config import EngineParts

_NAME = re.compile(r"lab_(\d+)_(\d+)")


def __getattr__(name: str) -> types.ModuleType:
    number = _NAME.fullmatch(name)
    if number is None:
        raise AttributeError(f"course.mine has no {name!r}: a lab's module is called lab_2_1, for lab 2.1")
    root = find_root()
    labs = discover(root)
    lab = find_lab(f"{number[1]}.{number[2]}", labs)
    files = _files_of(lab, labs, Progress(root))
    whose = "your own" if files[lab.number] == lab.starter else "the reference's, until yours passes"
    print(f"lab {lab.number}: {whose} ({lab.relative(files[lab.number])})", file=sys.stderr)
    with base_labs.using(files):
        return base_labs.load_base(lab.number)


def load(number: str) -> types.ModuleType:
    """Load the module of a lab. Raise LabError if there is no such lab."""
    root = _root_or_package()
    labs = discover(root)
    lab = find_lab(number, labs)
    try:
        files = _files_of(lab, labs, Progress(root))
    except LabRunFailed as error:
        print(f"lab {lab.number}: your starter.py could not be tested ({error})")
        files = {lab.number: lab.solution}
    if files[lab.number] == lab.starter:
        print(f"lab {lab.number}, {lab.title}: yours ({lab.relative(lab.starter)})")
        with base_labs.using(files):
            return base_labs.load_base(lab.number)
    names = " and ".join(lab.engine) or lab.relative(lab.solution)
    print(f"lab {lab.number}, {lab.title}: the reference's ({names}), until yours passes")
    if lab.engine:
        return import_together(lab.engine)
    with base_labs.using(files):
        return base_labs.load_base(lab.number)


def load_parts() -> EngineParts:
    """Load the parts of an engine, chosen as in ``course run``."""
    from course.own_engine.build_parts import build
    root = _root_or_package()
    labs, progress = discover(root), Progress(root)
    try:
        pieces = choose(labs, lambda lab: _passes(lab, progress), lambda lab: lab.starter)
    except LabRunFailed as error:
        print(f"your work could not be tested ({error})")
        pieces = Pieces([])
    own = [f"{seat.slot} (lab {seat.lab.number})" for seat in pieces.seats if seat.lab is not None]
    print(f"the engine's parts: {'yours are ' + ', '.join(own) if own else 'all the reference’s, until a lab passes'}")
    return build(pieces.files, pieces.labs)


def _root_or_package() -> Path:
    """Return the root of the current folder's course, or of the course inside the package."""
    try:
        return find_root()
    except LabError:
        return PACKED if PACKED.is_dir() else PROJECT_ROOT


def _files_of(lab: Lab, labs: list[Lab], progress: Progress) -> dict[str, Path]:
    """Return the files of a lab and of its bases: the student's own where it passes, else the reference's."""
    return {each.number: each.starter if _passes(each, progress) else each.solution
            for each in (lab, *bases_of(lab, labs))}


def _passes(lab: Lab, progress: Progress) -> bool:
    return progress.of(lab).state is State.PASSED
