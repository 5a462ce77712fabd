"""Where submissions and results may lie: not in each other, and not in the tree that decides about them."""

from __future__ import annotations

from pathlib import Path

from course.labs import LabError


def check_places(submissions: Path, out: Path, root: Path) -> None:
    """Raises LabError for places of which one would spoil another. ``root`` is the course whose tests count."""
    submissions, out, root = submissions.resolve(), out.resolve(), root.resolve()
    if not submissions.exists():
        raise LabError(f"{submissions} is not there; give the folder in which the submissions lie.")
    if root.is_relative_to(submissions):
        raise LabError(f"The course whose tests would be used, {root}, lies in the submissions. Stand in your own "
                       "course: a student's tests must not count.")
    if out.is_relative_to(submissions) or submissions.is_relative_to(out):
        raise LabError(f"--out {out} and the submissions lie in each other: the next run would take the one for the "
                       "other. Choose a folder beside them.")
    if root.is_relative_to(out):
        raise LabError(f"--out {out} holds the course itself. Choose an empty folder.")
    for what, path in (("--out", out), ("The folder of submissions,", submissions)):
        inner = path.relative_to(root).parts[0] if path.is_relative_to(root) and path != root else ""
        if inner in ("course", "mini_vllm", "tools", "docs", "notebooks") or inner.startswith((".", "phase-")):
            raise LabError(f"{what} {path} lies among the files of the course, in {inner}/. Choose a folder beside "
                           "them.")
    if out.exists() and not out.is_dir():
        raise LabError(f"--out {out} is a file; give a folder.")
    has_others = out.is_dir() and any(
        path.name != "overrides.csv" and not path.name.startswith(".") for path in out.iterdir())
    if has_others and not (out / "results").is_dir():
        raise LabError(f"--out {out} is not empty, and holds no results of an earlier run. Choose an empty folder.")
