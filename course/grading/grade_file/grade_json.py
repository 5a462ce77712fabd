"""Grading with plain pytest, ``--grade-json FILE``: each file under test runs in a separate process.

In a single process ``os._exit(0)`` would end pytest, silently and with status 0, and the labs after it would not run.
So pytest collects and reports here, and the grader runs the tests, one lab and one file at a time, in processes that
may be lost. A parametrised test is one item: it is graded as a whole.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from course.core.failure_messages import BROKEN_FILE, one_sentence
from course.core.result import WAS_NOT_RUN, LabResult, Outcome, Verdict
from course.grading.grade_file.grade import grade
from course.grading.grade_file.run_here import RunHere
from course.grading.grade_file.scores_json import NOTE, write_scores
from course.lab.graded_tests import graded_tests
from course.pytest_run.points import Points, Score
from course.pytest_run.targets import CHOICES, Impl


@dataclass
class FileRun:
    """The chosen tests of one lab on one file. They run when the first verdict is asked for."""

    impl: Impl
    time_limit_s: float
    names: list[str] = field(default_factory=list)
    #: The grader's result; None until the tests were run.
    graded: LabResult | None = None

    def verdict(self, name: str) -> Verdict:
        if self.graded is None:
            self.graded = self._grade()
        return next((test for test in self.graded.tests if test.name == name), WAS_NOT_RUN)

    def _grade(self) -> LabResult:
        impl = self.impl
        if not impl.path.exists():
            return self._ungraded(Outcome.MISSING, f"{impl.files} is missing.")
        if not impl.path.is_file():  # opening a FIFO would wait forever
            return self._ungraded(Outcome.UNREADABLE, f"{impl.files} is not a regular file.")
        run = RunHere(impl.lab, impl.label if impl.label in CHOICES else impl.path, self.time_limit_s)
        return grade(run, impl.lab, impl.path, self.time_limit_s, self.names)

    def _ungraded(self, outcome: Outcome, reason: str) -> LabResult:
        verdict = Verdict(False, BROKEN_FILE, reason)
        tests = tuple(test.result(verdict) for test in graded_tests(self.impl.lab))
        return LabResult(self.impl.lab.number, outcome, tests, reason, sandbox="none")

    def result(self, points: Points) -> LabResult:
        """Return what was reported so far, with every graded test of the lab included."""
        known = self.graded or LabResult(self.impl.lab.number, Outcome.GRADED, sandbox="none")
        return replace(known, tests=points.tallies[self.impl.lab.number, self.impl.label].results())


class GradedItem(pytest.Item):
    """One test of a lab on one file, with all its cases."""

    def __init__(self, *, test: str, run: FileRun, original: pytest.Item, **rest: Any) -> None:
        super().__init__(**rest)
        self.test, self.run, self._place = test, run, original.reportinfo()
        self.user_properties += original.user_properties

    def runtest(self) -> None:
        verdict = self.run.verdict(self.test)
        if not verdict.passed:
            if verdict.printed:
                self.add_report_section("call", "stdout", verdict.printed)
            raise Failed(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Failed):
            return one_sentence(excinfo, str(excinfo.value))
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return (*self._place[:2], self.name)


class Failed(Exception):
    """The verdict of a test that did not pass."""

    def __init__(self, verdict: Verdict) -> None:
        kind = f"{verdict.error}: " if verdict.error == "NotImplementedError" else ""
        super().__init__(kind + (verdict.message or "the test failed"))
        self.verdict = verdict


class GradingRun:
    """The additions of ``--grade-json`` to a pytest run."""

    def __init__(self, config: pytest.Config, path: Path, points: Points, time_limit_s: float) -> None:
        self._config, self._path, self._points, self._time_limit_s = config, path, points, time_limit_s
        self._runs: dict[Impl, FileRun] = {}
        self._write()  # the result of an earlier run must not be mistaken for this one's

    def fold(self, items: list[pytest.Item], impl_of: pytest.StashKey[Impl]) -> list[pytest.Item]:
        """Return the items to run, file by file. The cases of a test become one item, graded in another process."""
        folded: dict[Impl | None, list[pytest.Item]] = {}
        for item in items:
            impl = item.stash.get(impl_of, None)
            if impl is None or item.parent is None:
                folded.setdefault(None, []).append(item)
                continue
            test = str(getattr(item, "originalname", item.name))
            run = self._runs.setdefault(impl, FileRun(impl, self._time_limit_s))
            if test not in run.names:
                run.names.append(test)
                folded.setdefault(impl, []).append(GradedItem.from_parent(
                    item.parent, name=f"{test}[{impl.label}]", test=test, run=run, original=item))
        return [item for some in folded.values() for item in some]

    def pytest_collection_finish(self) -> None:
        self._write()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None
                                ) -> Generator[None, object, object]:
        result = yield
        if isinstance(item, GradedItem) and getattr(nextitem, "run", None) is not item.run:
            self._write()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]
                                  ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if isinstance(item, GradedItem) and call.when == "call":
            impl = item.run.impl
            verdict = item.run.verdict(item.test) if item.run.graded is not None else Verdict(report.passed)
            Score(impl.lab.number, impl.label, item.test, item.test, 1, verdict).attach(report)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        yield
        was_stopped = bool(session.shouldstop or session.shouldfail)
        self._write(is_finished=exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not was_stopped)
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and self._runs:
            for line in self._lines():
                terminal.write_line(line)

    def _lines(self) -> list[str]:
        """Return what an instructor looks for, printed last: the points, oddities, and what the numbers depend on."""
        graded = [(impl, run.graded) for impl, run in self._runs.items()]
        return [*self._points.lines(),
                *(f"lab {impl.lab.number} {impl.label}: {result.reason}" for impl, result in graded
                  if result is not None and result.reason),
                f"{self._path.name}: {NOTE}"]

    def _write(self, is_finished: bool = False) -> None:
        results = [(impl, run.result(self._points)) for impl, run in self._runs.items()]
        try:
            write_scores(self._path, results, self._config.rootpath, self._time_limit_s, is_finished)
        except OSError as error:
            asked = self._config.getoption("--grade-json")
            raise pytest.UsageError(f"--grade-json {asked}: {error.strerror}") from None
