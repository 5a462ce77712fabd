"""The tests of one lab on one file that runs in the same process. The file is trusted not to forge its verdicts."""

from __future__ import annotations

import resource
from pathlib import Path

from course.core.failure_messages import NO_PYTEST, NOT_RUN
from course.core.result import Verdict
from course.grading.grade_file.run_tests import Ended
from course.lab.lab import Lab
from course.pytest_run.run_lab import LabRunFailed, run_lab


class RunHere:
    """The same as ``TestsRun``, but without a sandbox."""

    def __init__(self, lab: Lab, chosen: str | Path, time_limit_s: float) -> None:
        """Prepare a run. ``chosen`` is a value for the option ``--impl``."""
        self._lab, self._chosen, self._time_limit_s = lab, chosen, time_limit_s

    def run(self, names: list[str]) -> Ended:
        """Run the tests with these names. Every process that was started has ended afterwards."""
        cpu_before_s = _cpu_of_children_s()
        try:
            (verdicts,) = run_lab(self._lab, [self._chosen], self._time_limit_s, names=names).values()
        except LabRunFailed as failure:
            verdict = Verdict(False, NO_PYTEST, f"the tests could not be run:\n{failure}")
            ended = Ended(dict.fromkeys(names, verdict), why_again="the tests could not be run")
        else:
            ended = Ended(verdicts, remark=_remark(list(verdicts.values())))
        ended.cpu_s = _cpu_of_children_s() - cpu_before_s
        return ended


def _remark(verdicts: list[Verdict]) -> str:
    """Return what concerns the whole file, or why some of its tests were not run."""
    for verdict in verdicts:
        if verdict.concerns_the_whole_file:
            return verdict.message.splitlines()[0]
    not_run = [verdict.message for verdict in verdicts if verdict.error == NOT_RUN]
    return f"{len(not_run)} tests were {not_run[-1].replace('before it', 'before them')}" if not_run else ""


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
