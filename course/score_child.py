"""The process that scores a student's policy: ``python -m course.score_child SPEC REPORT``. It can be killed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from course.failures import TimeLimitExceeded, why_failed
from course.limits import kill_when_computing, time_limit
from course.loading import load_file


def main(spec_file: str, report_file: str) -> None:
    """Score what the spec names, and write the table and the total, or why there are none."""
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
