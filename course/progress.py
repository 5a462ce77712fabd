"""How far the student is in each lab. Results are kept by the content of the files, so asking again costs nothing."""

from __future__ import annotations

import enum
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from course.graded import GradedTest, graded_tests
from course.labs import Lab
from course.runner import LabRunFailed, Verdict, run_lab
from course.starters import is_as_shipped


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
        """The first task with a test that does not pass; None when all do."""
        return next((test.task for test in self.tests if not self.has_passed(test)), None)

    def has_passed(self, test: GradedTest) -> bool:
        return test.name in self.verdicts and self.verdicts[test.name].passed


class Progress:
    """The student's results, run when needed and remembered in ``.course/results.json``."""

    def __init__(self, root: Path, run: Callable = run_lab) -> None:
        self._file = root / ".course" / "results.json"
        self._run = run

    def of(self, lab: Lab, anew: bool = False) -> LabProgress:
        """How far ``lab`` is; its tests run if its files have changed since the last time, or ``anew``."""
        tests = graded_tests(lab)
        if not lab.starter.is_file() or is_as_shipped(lab):
            return LabProgress(lab, tests, {})
        key = _fingerprint(lab)
        remembered = self._read().get(lab.number, {})
        if not anew and remembered.get("key") == key:
            return LabProgress(lab, tests, {name: Verdict(**v) for name, v in remembered["verdicts"].items()})
        try:
            verdicts = self._run(lab, ["starter"])["starter"]
        except LabRunFailed as failure:
            verdicts = {test.name: Verdict(False, None, f"the tests could not be run:\n{failure}") for test in tests}
        self._write(lab.number, {"key": key, "verdicts": {name: asdict(v) for name, v in verdicts.items()}})
        return LabProgress(lab, tests, verdicts)

    def _read(self) -> dict:
        try:
            return json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}

    def _write(self, number: str, entry: dict) -> None:
        results = self._read() | {number: entry}
        self._file.parent.mkdir(exist_ok=True)
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(results), encoding="utf-8")
        partial.replace(self._file)


def _fingerprint(lab: Lab) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in (lab.starter, lab.tests):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
