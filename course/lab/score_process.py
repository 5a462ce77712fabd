"""Computes the score of an open lab in a process that can be killed, whatever the student's file does.

``score_file`` starts ``python -m course.lab.score_process SPEC REPORT``, waits for it, and returns its report.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from course.core.child_process import ONE_THREAD, ChildProcess
from course.core.failure_messages import TimeLimitExceeded, why_failed
from course.core.resource_limits import GRACE_S, kill_when_computing, time_limit, wall_limit
from course.lab import base_labs
from course.lab.lab import Lab, LabError
from course.lab.load_module import load_file
from course.lab.score import ScoreModule


@dataclass(frozen=True)
class Scored:
    """What a process has measured."""

    table: str
    #: The scores of the known solutions.
    landmarks: dict[str, float]
    #: None if there was no file.
    total: float | None
    #: The first line of the docstring of what was scored, to tell attempts apart.
    what: str


def score_file(lab: Lab, path: Path | None, limit_s: float | None = None) -> Scored:
    """Score the file at ``path``. Without a file, measure only the known solutions.

    ``limit_s`` is the CPU time that this may take, by default that of the lab. Raise LabError with the reason if the
    file cannot be scored.
    """
    settings = lab.score
    if settings is None:
        raise LabError(f"Lab {lab} has no score.")
    limit_s = settings.limit_s if limit_s is None else limit_s
    whose = f"{lab.relative(path or lab.folder)} could not be scored"
    with tempfile.TemporaryDirectory() as folder:
        spec, report = Path(folder) / "spec.json", Path(folder) / "report.json"
        spec.write_text(json.dumps({"root": str(lab.root), "module": settings.module, "name": settings.name,
                                    "path": str(path) if path else None, "limit_s": limit_s}), "utf-8")
        child = ChildProcess([sys.executable, "-m", "course.lab.score_process", str(spec), str(report)], lab.root,
                             os.environ | ONE_THREAD, Path(folder) / "output.txt")
        give_up_s = time.monotonic() + wall_limit(limit_s) + GRACE_S
        child.watch(lambda: "it takes too long" if time.monotonic() > give_up_s else None)
        try:
            found = json.loads(report.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            last = child.printed().strip().splitlines()[-1:]
            raise LabError(f"{whose}: the process ended with status {child.status}. {''.join(last)}".rstrip()) from None
    if "problem" in found:
        raise LabError(f"{whose}: {found['problem']}")
    return Scored(**found)


def main(spec_file: str, report_file: str) -> None:
    """Score what the spec names. Write the table and the total to the report, or why there are none."""
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    path = Path(spec["path"]) if spec["path"] else None
    base_labs.root = Path(spec["root"])
    arena = cast(ScoreModule, importlib.import_module(spec["module"]))
    kill_when_computing(spec["limit_s"])
    report: dict[str, object]
    try:
        with time_limit(spec["limit_s"]):
            scored = getattr(load_file(path), spec["name"]) if path else None
            measured = arena.score(scored)
            total = arena.total(measured) if path else None
        what = (getattr(scored, "__doc__", None) or "").strip().partition("\n")[0]
        report = {"table": arena.table(measured), "landmarks": arena.landmarks(measured), "total": total, "what": what}
    except (Exception, TimeLimitExceeded, SystemExit) as error:
        if path is None:
            raise
        report = {"problem": why_failed(error, path).replace("the test", "it", 1)}
    Path(report_file).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
