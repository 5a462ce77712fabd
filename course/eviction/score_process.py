"""``python -m course.eviction.score_process SPEC REPORT`` scores a student's policy in a process that can be killed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from course.core.failure_messages import TimeLimitExceeded, why_failed
from course.core.resource_limits import kill_when_computing, time_limit
from course.lab.load_module import load_file


def main(spec_file: str, report_file: str) -> None:
    """Score what the spec names, and write the table and the total, or the reason why there are none."""
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    path = Path(spec["path"]) if spec["path"] else None
    arena = importlib.import_module(spec["module"])
    kill_when_computing(spec["limit_s"])
    report: dict[str, object]
    try:
        with time_limit(spec["limit_s"]):
            scored = getattr(load_file(path), spec["name"]) if path else None
            lines = arena.score(scored)
            total = arena.total(lines) if path else None
        what = (getattr(scored, "__doc__", None) or "").strip().partition("\n")[0]
        report = {"table": arena.table(lines), "total": total, "what": what}
    except (Exception, TimeLimitExceeded, SystemExit) as error:
        if path is None:
            raise
        report = {"problem": why_failed(error, path).replace("the test", "it", 1)}
    Path(report_file).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
