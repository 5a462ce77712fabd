"""How far the student is in each lab. Results are stored by the content of the files, so asking again costs nothing."""

from __future__ import annotations

import enum
import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from course.core.atomic_files import write_whole
from course.core.failure_messages import NO_PYTEST, NOT_RUN, stub_task
from course.core.result import Verdict
from course.lab.bare_starter import is_as_shipped
from course.lab.graded_tests import GradedTest, graded_tests
from course.lab.lab import Lab, discover
from course.lab.parts import bases_of
from course.pytest_run.listeners import OnPoll, OnVerdict
from course.pytest_run.run_lab import LabRunFailed, run_lab


class State(enum.Enum):
    NOT_STARTED = "not started"
    IN_PROGRESS = "in progress"
    PASSED = "passed"


@dataclass(frozen=True)
class LabProgress:
    lab: Lab
    tests: list[GradedTest]
    #: Empty for a lab that was not started.
    verdicts: dict[str, Verdict]
    #: Whether a file was changed since the tests ran.
    is_outdated: bool = False

    @property
    def num_passed(self) -> int:
        return sum(self.has_passed(test) for test in self.tests)

    @property
    def points(self) -> int:
        return sum(test.points or 0 for test in self.tests if self.has_passed(test))

    @property
    def max_points(self) -> int:
        return sum(test.points or 0 for test in self.tests)

    @property
    def state(self) -> State:
        if not self.verdicts:
            return State.NOT_STARTED
        return State.PASSED if self.num_passed == len(self.tests) else State.IN_PROGRESS

    @property
    def next_task(self) -> int | None:
        """The task to fix first: the first task with a failing test.

        If all its failing tests stop at unwritten bodies of other tasks, it is the first of those tasks instead.
        """
        failing = self._failing
        return min((self._task_to_mend(test) for test in failing if test.task == failing[0].task), default=None)

    @property
    def detour(self) -> str | None:
        """Why the next task is not that of the first failing test: ``Task 2's tests stop at Task 5: _check_hits``."""
        failing = self._failing
        if not failing or self.next_task == failing[0].task:
            return None
        stopped = next(test for test in failing if self._task_to_mend(test) == self.next_task)
        return f"Task {stopped.task}'s tests stop at {self.verdicts[stopped.name].message}"

    @property
    def broken(self) -> Verdict | None:
        """The verdict that says why no test could start, or None."""
        return next((verdict for verdict in self.verdicts.values() if verdict.concerns_the_whole_file), None)

    @property
    def _failing(self) -> list[GradedTest]:
        return [test for test in self.tests if not self.has_passed(test)]

    def _task_to_mend(self, test: GradedTest) -> int:
        verdict = self.verdicts.get(test.name)
        stub = stub_task(verdict.error, verdict.message) if verdict else None
        return stub or test.task or 0

    def has_passed(self, test: GradedTest) -> bool:
        return test.name in self.verdicts and self.verdicts[test.name].passed


class _Entry(TypedDict):
    """The stored result of a lab."""

    #: A short digest of the tested files.
    key: str
    #: Test name → the fields of its verdict.
    verdicts: dict[str, dict[str, Any]]


class Progress:
    """The student's results, computed when needed and stored in ``.course/results.json``."""

    def __init__(self, root: Path) -> None:
        self._file = root / ".course" / "results.json"
        self._run = run_lab

    def of(self, lab: Lab, anew: bool = False, on_verdict: OnVerdict = lambda name, verdict: None,
           on_poll: OnPoll = lambda: None) -> LabProgress:
        """Return the progress of ``lab``. Its tests run if its files have changed, or if the caller wants a new run.

        ``on_verdict`` and ``on_poll`` are those of ``run_lab``. If one of them raises, nothing is stored.
        """
        known = self.remembered(lab)
        if known.state is State.NOT_STARTED or (not anew and not known.is_outdated):
            return known
        key = _fingerprint(lab)
        try:
            verdicts = self._run(lab, ["starter"], on_verdict=on_verdict, on_poll=on_poll)["starter"]
        except LabRunFailed as failure:
            verdicts = {test.name: Verdict(False, NO_PYTEST, f"the tests could not be run:\n{failure}")
                        for test in known.tests}
        self._write(lab.number, {"key": key, "verdicts": {name: asdict(v) for name, v in verdicts.items()}})
        return LabProgress(lab, known.tests, verdicts)

    def remembered(self, lab: Lab) -> LabProgress:
        """Return the progress like ``of``, but without running any test.

        A lab that was changed since its last run is in progress, with no test passed.
        """
        tests = graded_tests(lab)
        if not lab.starter.is_file() or is_as_shipped(lab):
            return LabProgress(lab, tests, {})
        try:  # a damaged entry is treated as missing
            entry = self._read()[lab.number]
            if entry["key"] == _fingerprint(lab):
                return LabProgress(lab, tests, {name: Verdict(**v) for name, v in entry["verdicts"].items()})
        except (KeyError, TypeError, AttributeError):
            pass
        verdict = Verdict(False, NOT_RUN, "not run since the file was changed")
        return LabProgress(lab, tests, {test.name: verdict for test in tests}, is_outdated=True)

    def _read(self) -> dict[str, _Entry]:
        try:
            results = json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return results if isinstance(results, dict) else {}

    def _write(self, number: str, entry: _Entry) -> None:
        write_whole(self._file, json.dumps(self._read() | {number: entry}).encode())


def _fingerprint(lab: Lab) -> str:
    digest = hashlib.sha256(sys.version.encode())
    bases = [below.solution for below in bases_of(lab, discover(lab.root))] if lab.base else []
    for path in (lab.starter, lab.tests, *bases):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
