"""The scores of a pytest run as JSON: ``--grade-json FILE``.

    trusted       true: tests and the file under test shared a process, so a malicious file can forge this
    note          the same, in a sentence
    is_finished   whether the run reached its end; false while it runs, and after one that was stopped
    scores        for each thing under test: lab, impl (its label), file, points, max_points, num_tests, num_passed,
                  num_not_run, score (of an open lab, if it counts; else null)
    labs          for each of these, in the same order, all that is known: ``LabResult`` of ``course.core.result``
    provenance    what produced it: ``Provenance`` of the same module

The file is written before the first test runs, with every test "not run", and again after each lab. So what is on the
disk is right at any time, even after a run that was killed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.core.atomic_files import write_whole
from course.core.result import LabResult
from course.core.scrub_paths import without_paths
from course.pytest_run.points import num_not_run_of
from course.pytest_run.provenance import SandboxInfo, make_provenance
from course.pytest_run.pytest_process import MAX_FILE_BYTES
from course.pytest_run.targets import Impl

NOTE = "in-process: a malicious file can forge this score; `course grade` does not accept it"
NOT_DEFENDED = ("The file runs in the process that judges it, and can forge its verdicts.",
                "It can read and write what the user can, and use the network.")


def write_scores(path: Path, results: Sequence[tuple[Impl, LabResult]], root: Path, time_limit_s: float,
                 is_finished: bool) -> None:
    """Write the scores so far to ``path``, all or nothing. Raise OSError if that fails."""
    report = {"trusted": True, "note": NOTE, "is_finished": is_finished,
              "scores": [_score(impl, result) for impl, result in results],
              "labs": [_scrubbed(result, root).to_json() for _, result in results],
              "provenance": dataclasses.asdict(make_provenance(
                  root, [impl.lab for impl, _ in results],
                  {"cpu_s_a_test": time_limit_s, "printed_bytes": MAX_FILE_BYTES},
                  SandboxInfo("none", True, NOT_DEFENDED)))}
    path.parent.stat()  # a missing folder is probably a mistake, so it is not created
    write_whole(path, (json.dumps(report, indent=2) + "\n").encode())


def _score(impl: Impl, result: LabResult) -> dict[str, Any]:
    return {"lab": result.lab, "impl": impl.label, "file": impl.files, "points": result.points,
            "max_points": result.max_points, "num_tests": len(result.tests),
            "num_passed": sum(test.passed for test in result.tests), "num_not_run": num_not_run_of(result.tests),
            "score": result.score}


def _scrubbed(result: LabResult, root: Path) -> LabResult:
    tests = tuple(dataclasses.replace(test, message=without_paths(test.message, root),
                                      printed=without_paths(test.printed, root)) for test in result.tests)
    return dataclasses.replace(result, tests=tests, reason=without_paths(result.reason, root))
