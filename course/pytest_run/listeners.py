"""Types of the callbacks that follow a run, and of its verdicts."""

from __future__ import annotations

from collections.abc import Callable

from course.core.result import Verdict

#: What was tested → test name → verdict.
Verdicts = dict[str, dict[str, Verdict]]
OnVerdict = Callable[[str, Verdict], None]
OnPoll = Callable[[], None]
