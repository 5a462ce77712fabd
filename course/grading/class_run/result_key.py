"""What is known about a result before the file runs.

``key_of`` returns the key that shows whether a stored result is still valid. ``unearned`` returns the tests of a lab,
all failed, for a file that cannot run. ``check_hidden`` checks the folder of hidden tests.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import mini_vllm
from course.core.result import Provenance, TestResult, Verdict
from course.grading.limits import Settings
from course.lab.graded_tests import graded_tests, hidden_graded_tests
from course.lab.lab import Lab, LabError


def key_of(lab: str, file_sha256: str, provenance: Provenance, settings: Settings) -> str:
    """Return a digest of everything that a score depends on. It is the same on every machine that grades the same
    course at the same sandbox level, whichever word asked for that level. It includes only the major and minor version
    of Python."""
    parts = [lab, file_sha256, provenance.tests_sha256[lab], provenance.commit, mini_vllm.__version__,
             provenance.sandbox, settings.time_limit_s, sys.version_info[:2]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def unearned(lab: Lab, hidden: Path | None) -> tuple[TestResult, ...]:
    """Return every graded test of a lab as failed, for a file that could not be run."""
    failed = Verdict(False)
    return (*(test.result(failed) for test in graded_tests(lab)),
            *(test.result(failed, is_hidden=True) for test in hidden_graded_tests(lab, hidden)))


def check_hidden(hidden: Path, labs: Sequence[Lab]) -> None:
    """Raise LabError for a folder of hidden tests that does not exist, is empty, or names unknown labs."""
    if not hidden.is_dir():
        raise LabError(f"--hidden {hidden} is not a folder; give one that contains 2.1/test_hidden.py for lab 2.1.")
    numbers = [lab.number for lab in labs]
    folders = sorted(path.parent.name for path in hidden.glob("*/test_hidden.py"))
    if not folders:
        raise LabError(f"--hidden {hidden} contains no hidden tests; for lab 2.1 the file is 2.1/test_hidden.py.")
    unknown = [folder for folder in folders if folder not in numbers]
    if unknown:
        raise LabError(f"--hidden {hidden}: there is no lab {', '.join(unknown)}.")
