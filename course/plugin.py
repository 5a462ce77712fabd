"""The pytest plugin: which file ``test_lab.py`` tests, points, time limits, and failures a student can read.

    pytest phase-02-paged-attention/labs                      the solutions, and each starter that has been edited
    pytest phase-02-paged-attention/labs --impl starter       every starter
    pytest phase-02-paged-attention/labs/lab-01-block-allocator --impl my_version.py
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import signal
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from course.failures import (
    STUCK,
    FileIsBroken,
    NotRun,
    TimeLimitExceeded,
    is_stub,
    kind_of,
    last_printed,
    one_sentence,
    shorten,
    why_broken,
    why_failed,
)
from course.labs import Lab, LabError, discover, lab_of_path
from course.loading import load_file
from course.starters import is_as_shipped

CHOICES = ("auto", "starter", "solution", "engine")
DEFAULT_TIME_LIMIT_S = 10.0
MAX_OUTPUT_CHARACTERS = 4_000
#: After so many tests that never ended or flooded their output, the rest of that lab's tests are not run.
MAX_STUCK_TESTS = 2

_impl_key = pytest.StashKey["Impl"]()
_session_key = pytest.StashKey["LabSession"]()


@dataclass(frozen=True)
class Impl:
    """One thing under test: a file, or a module of the engine."""

    lab: Lab
    label: str
    path: Path
    module_name: str | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("labs")
    group.addoption("--impl", action="append", metavar="auto|starter|solution|engine|PATH",
                    help="what the labs' tests test: auto (default) is the solution, and the starter once it has been "
                         "edited; may be given several times")
    group.addoption("--time-limit", type=float, default=DEFAULT_TIME_LIMIT_S, metavar="SECONDS",
                    help="how long one test of a lab may run (default: %(default)s)")
    group.addoption("--report", metavar="FILE", help="write a line of JSON when a lab's test starts and when it ends")
    # A mutant has one test to die by; the others need not run on it.
    group.addoption("--only", action="append", default=[], metavar="IMPL=TEST", help=argparse.SUPPRESS)
    # The runner goes on in a new process after one that it had to kill; this tells the new one of the old.
    group.addoption("--already-stuck", type=int, default=0, help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "points(n): what the test is worth")
    config.addinivalue_line("markers", "task(n): the task it belongs to, where the name does not say")
    config.pluginmanager.register(LabSession(config), "lab-session")


class LabSession:
    def __init__(self, config: pytest.Config) -> None:
        config.stash[_session_key] = self
        self.config = config
        self.labs = discover(config.rootpath)
        self.choices: list[str] = config.getoption("--impl") or ["auto"]
        self.only: dict[str, str] = dict(pair.split("=", 1) for pair in config.getoption("--only"))
        self.time_limit_s: float = config.getoption("--time-limit")
        self.loaded: dict[str, types.ModuleType | FileIsBroken] = {}
        self.notes: dict[str, str] = {}
        #: What is under test → its tests that had to be stopped.
        self.stuck: dict[Impl, set[str]] = {}
        self.num_stuck_before: int = config.getoption("--already-stuck")
        self.scores: dict[Impl, dict[str, tuple[int, bool]]] = {}
        report = config.getoption("--report")
        self.report_file = open(report, "a", encoding="utf-8") if report else None
        for choice in self.choices:
            if choice not in CHOICES and not (config.invocation_params.dir / choice).exists():
                raise pytest.UsageError(f"--impl {choice}: not one of {', '.join(CHOICES)}, and there is no such file")

    # ---- what is tested

    def impls(self, lab: Lab) -> list[Impl]:
        try:
            found = [impl for choice in self.choices for impl in self._impls_of_choice(lab, choice)]
        except LabError as error:
            raise pytest.UsageError(str(error)) from None
        return list(dict.fromkeys(found))

    def _impls_of_choice(self, lab: Lab, choice: str) -> list[Impl]:
        solution, starter = Impl(lab, "solution", lab.solution), Impl(lab, "starter", lab.starter)
        if choice == "auto":
            if not lab.solution.is_file():
                return [starter]
            if not lab.starter.is_file() or is_as_shipped(lab):
                self.notes[lab.number] = "starter.py is untouched"
                return [solution]
            return [solution, starter]
        if choice == "solution":
            return [solution]
        if choice == "starter":
            return [starter]
        if choice == "engine":
            if lab.engine is None:
                self.notes[lab.number] = "this lab has no counterpart in the engine"
                return []
            return [Impl(lab, "engine", lab.root / (lab.engine.replace(".", "/") + ".py"), lab.engine)]
        path = (self.config.invocation_params.dir / choice).resolve()
        if path.is_dir():
            path = path / "starter.py"
        return [Impl(lab, path.stem, path)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "lab" in metafunc.fixturenames:
            lab = lab_of_path(metafunc.definition.path, self.labs)
            if lab is not None:
                name = metafunc.function.__name__
                impls = [impl for impl in self.impls(lab) if self.only.get(impl.label, name) == name]
                metafunc.parametrize("lab", impls, indirect=True, ids=[impl.label for impl in impls], scope="function")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """An empty parameter set becomes a skipped test; a lab without a joint is left out instead."""
        unwanted = [item for item in items if self._has_no_impl(item)]
        if unwanted:
            self.config.hook.pytest_deselected(items=unwanted)
            items[:] = [item for item in items if item not in unwanted]
        for item in items:
            impl = getattr(getattr(item, "callspec", None), "params", {}).get("lab")
            if isinstance(impl, Impl):
                item.stash[_impl_key] = impl
        file_paths = [choice for choice in self.choices if choice not in CHOICES]
        tested = {item.stash[_impl_key].lab for item in items if _impl_key in item.stash}
        if file_paths and len(tested) > 1:
            names = ", ".join(str(lab) for lab in sorted(tested, key=str))
            raise pytest.UsageError(f"--impl {file_paths[0]} is one file, but several labs are selected: {names}")

    def _has_no_impl(self, item: pytest.Item) -> bool:
        lab = lab_of_path(item.path, self.labs)
        return lab is not None and "lab" in getattr(item, "fixturenames", ()) and not self.impls(lab)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        impls = dict.fromkeys(item.stash[_impl_key] for item in session.items if _impl_key in item.stash)
        if terminal is None or not impls:
            return
        for impl in impls:
            note = self.notes.get(impl.lab.number)
            terminal.write_line(f"lab {impl.lab.number} tests {impl.lab.relative(impl.path)}"
                                + (f"  ({note})" if note else ""))

    # ---- loading

    def load(self, impl: Impl) -> types.ModuleType:
        """The module under test. A file that failed once fails the same way, at once, for every later test."""
        key = impl.module_name or str(impl.path)
        if key not in self.loaded:
            try:
                self.loaded[key] = importlib.import_module(key) if impl.module_name else load_file(impl.path)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self.loaded[key] = FileIsBroken(why_broken(error, impl.path, impl.lab.relative(impl.path),
                                                           impl.lab.number, self.time_limit_s))
        module = self.loaded[key]
        if isinstance(module, FileIsBroken):
            raise module.with_traceback(None)
        return module

    # ---- running

    @contextlib.contextmanager
    def _alarm(self, item: pytest.Item) -> Iterator[None]:
        if _impl_key not in item.stash or self.time_limit_s <= 0 or not hasattr(signal, "SIGALRM"):
            yield
            return

        def on_alarm(*_: object) -> None:
            raise TimeLimitExceeded

        previous = signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, self.time_limit_s, 1.0)  # again each second, for loops that catch all
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._log(item, event="start")
        self._refuse_after_stuck_tests(item)
        with self._alarm(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with self._alarm(item):
            return (yield)

    def _refuse_after_stuck_tests(self, item: pytest.Item) -> None:
        """A loop that never ends, in a function that most tests use, must not cost the time limit for each of them."""
        stuck = self.stuck.get(item.stash.get(_impl_key, None), set())
        if _name(item) in stuck:
            raise NotRun("not run: another case of this test did not finish")
        num_stuck = self.num_stuck_before + len(stuck)
        if _impl_key in item.stash and num_stuck >= MAX_STUCK_TESTS:
            raise NotRun(f"not run: {num_stuck} tests before it did not finish")

    # ---- reporting

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        report = yield
        impl = item.stash.get(_impl_key, None)
        if impl is None:
            return report
        error = call.excinfo.value if call.excinfo else None
        kind = kind_of(error)
        message = why_failed(error, impl.path, self.time_limit_s, call.when) if error else ""
        if report.skipped or hasattr(report, "wasxfail"):
            message = f"the test was skipped from inside ({shorten(str(error))}); a skipped test does not count"
            report.outcome, report.longrepr = "failed", message
            vars(report).pop("wasxfail", None)
        elif isinstance(error, (FileIsBroken, NotRun)):
            report.longrepr = one_sentence(call.excinfo, message)
        elif is_stub(kind, message):
            report.longrepr = one_sentence(call.excinfo, f"NotImplementedError: {message}")
        elif kind in STUCK:
            report.longrepr = message
            self.stuck.setdefault(impl, set()).add(_name(item))
        if call.when == "call" or report.failed:
            self._score(item, impl, report.passed)
            self._log(item, event="end", passed=report.passed, error=kind, message=shorten(message),
                      printed="" if report.passed else last_printed(report))
        report.sections = [(title, shorten(text, MAX_OUTPUT_CHARACTERS)) for title, text in report.sections]
        return report

    def _score(self, item: pytest.Item, impl: Impl, passed: bool) -> None:
        mark = item.get_closest_marker("points")
        scores = self.scores.setdefault(impl, {})
        name = _name(item)
        all_passed = scores.get(name, (0, True))[1] and passed  # a parametrised test counts when all its cases pass
        scores[name] = (mark.args[0] if mark else 0, all_passed)

    def _log(self, item: pytest.Item, **fields: object) -> None:
        impl = item.stash.get(_impl_key, None)
        if self.report_file is not None and impl is not None:
            fields = {"impl": impl.label, "test": _name(item), **fields}
            self.report_file.write(json.dumps(fields) + "\n")
            self.report_file.flush()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for impl, scores in self.scores.items():
            earned = sum(points for points, passed in scores.values() if passed)
            num_passed = sum(passed for _, passed in scores.values())
            terminalreporter.write_line(f"lab {impl.lab.number} {impl.label}: {num_passed} of {len(scores)} tests, "
                                        f"{earned} of {sum(points for points, _ in scores.values())} points")

    def pytest_unconfigure(self) -> None:
        if self.report_file is not None:
            self.report_file.close()


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> types.ModuleType:
    """The module under test: solution, starter, engine or another file; ``--impl`` chooses."""
    impl = getattr(request, "param", None)
    if not isinstance(impl, Impl):
        pytest.fail("the fixture `lab` is for the test_lab.py of a lab folder", pytrace=False)
    return request.config.stash[_session_key].load(impl)


def _name(item: pytest.Item) -> str:
    """The test's name, the same for all its cases."""
    return getattr(item, "originalname", item.name)
