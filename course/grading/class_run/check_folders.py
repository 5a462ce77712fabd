"""Checks of the folders for submissions and results: neither inside each other, nor in the tree that grades them.

The first thing that a run writes into ``--out`` is a marker. From then on the marker shows that the folder belongs to
the grader, even if the run is killed. Before that the folder is empty, and anyone may use it.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from course.lab.lab import LabError

#: Files that an instructor may write into the folder before the first run.
DECISIONS = ("overrides.csv", "comments.csv", "gradebook.toml")
MARKER = ".course-grade.json"
MARKED = {"made by": "course grade", "what": "The results of a class. Repeat the command to resume a killed run."}
#: How many results are opened to verify that they are results.
_MAX_OPENED = 20


def check_places(submissions: Path, out: Path, root: Path) -> None:
    """Raise LabError if one of these folders would spoil another. ``root`` is the course whose tests count."""
    submissions, out, root = submissions.resolve(), out.resolve(), root.resolve()
    if not submissions.exists():
        raise LabError(f"{submissions} does not exist; give the folder that contains the submissions.")
    if root.is_relative_to(submissions):
        raise LabError(f"The course whose tests would be used, {root}, is inside the submissions. Run the command "
                       "in your own course: a student's tests must not count.")
    if out.is_relative_to(submissions) or submissions.is_relative_to(out):
        raise LabError(f"--out {out} and the submissions must not contain each other: the next run would mistake "
                       "one for the other. Choose a separate folder.")
    if root.is_relative_to(out):
        raise LabError(f"--out {out} contains the course itself. Choose an empty folder.")
    for what, path in (("--out", out), ("The folder of submissions,", submissions)):
        inner = path.relative_to(root).parts[0] if path.is_relative_to(root) and path != root else ""
        if inner in ("course", "mini_vllm", "tools", "docs", "notebooks") or inner.startswith((".", "phase-")):
            raise LabError(f"{what} {path} is among the files of the course, in {inner}/. Choose a folder outside "
                           "the course.")
    if out.exists() and not out.is_dir():
        raise LabError(f"--out {out} is a file; give a folder.")
    has_others = out.is_dir() and any(
        path.name not in DECISIONS and not path.name.startswith(".") for path in out.iterdir())
    if has_others and not is_ours(out):
        raise LabError(f"--out {out} is not empty, and no earlier `course grade` made it. Choose an empty folder.")


def is_ours(out: Path) -> bool:
    """Return whether an earlier run made the folder. Versions without a marker left a lock or results."""
    return (out / MARKER).is_file() or any(out.glob(".work*.lock")) or any(
        _is_result(path) for path in islice(out.glob("results/*/*.json"), _MAX_OPENED))


def _is_result(path: Path) -> bool:
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and {"student", "result"} <= fields.keys()
