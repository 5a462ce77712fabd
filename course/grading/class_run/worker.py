"""A process that grades one file after another, as ordered on its standard input.

It does not run students' code: ``grade_file`` does that in a sandbox. It is still a separate process, so that whatever
goes wrong in it costs one file and not the class. When its parent is gone, for whatever reason, the worker ends.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from course.core.result import LabResult, Outcome
from course.grading.grade_file.remarks import remark_on
from course.grading.limits import Settings
from course.lab.lab import Lab, discover, find_lab

Grade = Callable[[Lab, Path, Settings], LabResult]


def main() -> None:
    """Serve with the real grader, which is loaded only here."""
    serve(importlib.import_module("course.grading.grade_file.grade").grade_file)


def serve(grade: Grade) -> None:
    """Answer each line of standard input, a job, with a line on the original standard output, until the input ends.

    Anything printed in the meantime goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    answers.write(b'{"ready": true}\n')
    while True:
        job = jobs.get()
        answers.write(json.dumps(_answer(job, grade).to_json()).encode() + b"\n")


def _listen(jobs: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(json.loads(line))
    if os.getpgrp() == os.getpid():  # the parent has closed the pipe or is dead: end all processes started here
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def _answer(job: dict[str, Any], grade: Grade) -> LabResult:
    """Return the result of one file. An error of the grader is no verdict on the student."""
    hidden = job["settings"]["hidden"]
    settings = Settings(**{**job["settings"], "hidden": Path(hidden) if hidden else None})
    try:
        lab = find_lab(job["lab"], discover(Path(job["root"])))
        path = Path(job["path"])
        remark = remark_on(lab, path.read_bytes())
        result = grade(lab, path, settings)
        return replace(result, reason=" ".join(filter(None, (remark, result.reason))))
    except Exception as error:
        return LabResult(job["lab"], Outcome.GRADE_AGAIN, reason="The grader failed.",
                         flags=(f"the grader failed: {type(error).__name__}: {error}",))
