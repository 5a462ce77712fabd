"""What came of a lab's tests, and who wants to hear of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from course.core.failure_messages import BROKEN_FILE, NO_PYTEST


@dataclass(frozen=True)
class Verdict:
    """What came of one test."""

    passed: bool
    #: What ended it: one of the kinds in ``failure_messages``, else the name of the exception (``NotImplementedError``
    #: for a stub); None if it passed, or took its process along.
    error: str | None = None
    message: str = ""
    #: The last lines it printed, if it failed.
    printed: str = ""
    #: What the file computed during it, where that is known: in the grader.
    cpu_s: float = 0.0

    @property
    def concerns_the_whole_file(self) -> bool:
        """Whether every test of the lab has this verdict, and for the same reason."""
        return self.error in (BROKEN_FILE, NO_PYTEST)


#: What was tested → test name → verdict
Verdicts = dict[str, dict[str, Verdict]]
OnVerdict = Callable[[str, Verdict], None]
OnPoll = Callable[[], None]
