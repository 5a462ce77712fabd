"""The settings for grading a file: the limits, and how tightly the file is isolated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from course.core.failure_messages import DEFAULT_TIME_LIMIT_S
from course.grading.sandbox import Limits
from course.lab.lab import Lab

#: For all tests of a lab together, in the sandbox: far more than the slowest correct solution needs.
SUBMISSION_CPU_S = 120.0
MEMORY_BYTES = 2 << 30
FILE_BYTES = 16 << 20
OPEN_FILES = 64
#: The most that the grader's own process may report about one file.
MAX_REPORT_BYTES = 64 << 20


@dataclass(frozen=True)
class Settings:
    """The settings that the instructor chose."""

    sandbox: str = "auto"
    #: The CPU time that one test may use.
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    #: A folder with further tests: ``2.1/test_hidden.py``.
    hidden: Path | None = None


def limits_for(lab: Lab) -> Limits:
    return Limits(SUBMISSION_CPU_S * lab.time_factor, MEMORY_BYTES, FILE_BYTES, OPEN_FILES)
