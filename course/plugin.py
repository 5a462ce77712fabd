"""The pytest plugin: which file ``test_lab.py`` tests, points, time limits, and failures a student can read.

pytest phase-02-paged-attention/labs the solutions, and each starter that has been edited pytest
phase-02-paged-attention/labs --impl starter every starter pytest phase-02-paged-attention/labs/lab-01-block-allocator
--impl my_version.py pytest phase-02-paged-attention/labs --impl ~/anas-course --grade-json ana.json each lab in its own
process
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import types
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from course.core.failure_messages import (
    DEFAULT_TIME_LIMIT_S,
    STUCK,
    NotRun,
    kind_of,
    shorten,
    tell,
    untold,
)
from course.core.resource_limits import kill_when_computing, limit_files, limit_memory, time_limit
from course.core.result import Verdict
from course.grading.remote_lab.pytest_bridge import sandbox_sessions
from course.lab import base_labs
from course.lab.lab import Lab, LabError, discover, find_lab, lab_of_path
from course.own_engine.spec import CAPSTONE
from course.pytest_run.exception_guard import tamed
from course.pytest_run.files_here import FilesHere
from course.pytest_run.points import Points, Score, properties_of
from course.pytest_run.selection import Tested
from course.pytest_run.targets import Choice, Impl, engines

if TYPE_CHECKING:
    from course.grading.grade_file.grade_json import GradingRun

MAX_OUTPUT_CHARACTERS = 4_000
#: A message consists of a sentence, which was already shortened, and the place where the error happened.
MAX_MESSAGE_CHARACTERS = 2_000
#: After this many tests of a lab that never ended or flooded their output, the rest are not run.
MAX_STUCK_TESTS = 2
#: The memory limit of the grader's own process, whatever a file makes it compute.
SANDBOXED_MEMORY_BYTES = 4 << 30
#: How long reading the text of an exception may take, in CPU time.
TELLING_LIMIT_S = 2.0

_impl_key = pytest.StashKey[Impl]()
_num_cases_key = pytest.StashKey[int]()
_score_key = pytest.StashKey[float]()
_session_key = pytest.StashKey["LabSession"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("labs")
    group.addoption("--impl", action="append", metavar="auto|starter|solution|engine|PATH",
                    help="the file that the labs' tests run on: auto (default) is the starter if you have edited it, "
                         "and otherwise the solution; a folder may contain one lab or a whole course; repeatable")
    group.addoption("--base", action="append", default=[], metavar="LAB=FILE",
                    help="the file to use for an earlier lab that the tested lab builds on (default: its "
                         "solution.py); may be given several times")
    group.addoption("--time-limit", type=float, default=DEFAULT_TIME_LIMIT_S, metavar="SECONDS",
                    help="CPU time limit of one test of a lab (default: %(default)s; some labs allow a multiple). The "
                         "wall-clock limit is ten times as long, but at least half a minute")
    group.addoption("--grade-json", metavar="FILE",
                    help="grade the files of --impl: each lab runs in its own process, a test that did not run "
                         "earns nothing, and the scores are written as JSON. A file could forge its score")
    group.addoption("--report", metavar="FILE", help="write a line of JSON when a lab's test starts and when it ends")
    # A mutant must fail one given test; the others need not run on it.
    group.addoption("--only", action="append", default=[], metavar="IMPL=TEST", help=argparse.SUPPRESS)
    # After killing a process the runner continues in a new one; this passes the count of stuck tests to it.
    group.addoption("--already-stuck", type=int, default=0, help=argparse.SUPPRESS)
    # The file under test runs in a sandbox of this level; the tests run here.
    group.addoption("--sandbox-level", metavar="LEVEL", help=argparse.SUPPRESS)
    # The descriptor through which sandboxes are requested: this process gives up all other rights.
    group.addoption("--broker", type=int, metavar="FD", help=argparse.SUPPRESS)
    # Further tests of a lab, from outside its folder.
    group.addoption("--hidden-tests", metavar="LAB=FILE", help=argparse.SUPPRESS)
    # Run only the tests with these names.
    group.addoption("--graded-test", action="append", default=[], metavar="TEST", help=argparse.SUPPRESS)
    # How many bytes a student's file may write.
    group.addoption("--file-limit", type=int, help=argparse.SUPPRESS)


#: The markers of the labs' tests; course/AUTHORING.md documents them for authors.
MARKERS = ("points(n): the points that the test is worth",
           "inside(reason): the test needs a measurement that can only be made in the process of the file",
           "step: a target for the score of an open lab; the score counts even if the test fails",
           "task(n): the task that the test belongs to, if its name does not say")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    file_limit = config.getoption("--file-limit")
    if file_limit is not None:
        limit_files(file_limit)
        if config.getoption("--sandbox-level") is not None:
            limit_memory(SANDBOXED_MEMORY_BYTES)
    if config.getoption("--report") is not None:
        # Another process starts a run with --report, and Ctrl-C in a terminal does not reach this run. If the run was
        # started in the background, it would ignore SIGINT, and a file that sends SIGINT to itself would earn more
        # points there than elsewhere.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(LabSession(config), "lab-session")


class LabSession:
    """The labs' part of one pytest run; with pytest-xdist, of each of its processes.

    A worker determines the result of a test and attaches the score to the report; the printing process reads it there.
    """

    def __init__(self, config: pytest.Config) -> None:
        config.stash[_session_key] = self
        self.config = config
        self.labs = discover(config.rootpath)
        base_labs.root = config.rootpath if self.labs else None
        base_labs.use(bases_given(config.getoption("--base"), self.labs, config.invocation_params.dir))
        self.choice = Choice(config.getoption("--impl") or [], config.invocation_params.dir)
        self.only: dict[str, str] = dict(pair.split("=", 1) for pair in config.getoption("--only"))
        self.file_limit: int | None = config.getoption("--file-limit")
        self.time_limit_s: float = config.getoption("--time-limit")
        #: Tests outside their lab's folder → the number of their lab.
        self.hidden: dict[Path, str] = hidden_tests(config.getoption("--hidden-tests"))
        #: Where the files under test run.
        self.files = sandbox_sessions(config.getoption("--sandbox-level"), config.getoption("--broker"),
                                      [path.parent for path in self.hidden]) or FilesHere()
        #: What is under test → its tests that had to be stopped.
        self.stuck: dict[Impl, set[str]] = {}
        self.num_stuck_before: int = config.getoption("--already-stuck")
        self.points = Points()
        #: What the collected tests test, one entry per test.
        self.chosen: list[Impl] = []
        self.has_named_files = False
        report = config.getoption("--report")
        self.report = None if report is None else self.files.make_report(report)
        #: The index of the current test among the reported ones, and its result so far.
        self.index = -1
        self.end: dict[str, Any] | None = None
        xml = config.getoption("xmlpath", None)
        self.xml_file = Path(os.path.abspath(os.path.expanduser(os.path.expandvars(xml)))) if xml else None
        self.grading = self._start_grading(config.getoption("--grade-json"))
        self.tested = Tested(self.choice, config.rootpath)

    def _start_grading(self, path: str | None) -> GradingRun | None:
        """Start the grading that ``--grade-json`` asks for. Raise UsageError if it conflicts with the other options."""
        if path is None:
            return None
        from course.grading.grade_file.grade_json import GradingRun  # only a grading run needs it
        grading = GradingRun(self.config, self.config.invocation_params.dir / path, self.points, self.time_limit_s)
        self.config.pluginmanager.register(grading, "grading-run")
        if "auto" in self.choice.wanted:
            raise pytest.UsageError("--grade-json needs a file to grade: --impl starter or --impl PATH")
        for name, option in (("numprocesses", "-n"), ("usepdb", "--pdb")):
            if self.config.getoption(name, None):
                raise pytest.UsageError(f"--grade-json runs each lab in its own process: leave {option} out")
        return grading

    def pytest_sessionstart(self) -> None:
        """Give up, in the grader, all rights that this process does not need, before anything else is loaded."""
        self.files.shut_in([str(self.config.rootpath), *(str(path.parent) for path in self.hidden)])

    # ---- what is tested

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "pieces" in metafunc.fixturenames and metafunc.definition.path.parent.name == CAPSTONE:
            chosen = engines(self.labs, self.choice)
            metafunc.parametrize("pieces", list(chosen.values()), ids=list(chosen))
        if "lab" in metafunc.fixturenames:
            lab = self.lab_of(metafunc.definition.path)
            if lab is not None:
                name = metafunc.function.__name__
                impls = [impl for impl in self.tested.impls(lab) if self.only.get(impl.label, name) == name]
                metafunc.parametrize("lab", impls, indirect=True, ids=[impl.label for impl in impls], scope="function")

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self) -> Generator[None, object, object]:
        """Count the cases of a test while all are present: ``-k`` and ``::name[case]`` remove some later."""
        made = yield
        for items in _by_impl(made if isinstance(made, list) else []).values():
            for item in items:
                item.stash[_num_cases_key] = len(items)
        return made

    def _collect_hidden(self, session: pytest.Session) -> list[pytest.Item]:
        """Collect the hidden tests without pytest's search by path, which would list every folder above them.

        These folders must not be read.
        """
        modules = [pytest.Module.from_parent(session, path=path) for path in self.hidden]
        return [item for module in modules for item in session.genitems(module)]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the hidden tests, and deselect tests that have nothing to test.

        pytest would turn an empty parameter set into a skipped test; a lab without a counterpart is left out instead.
        """
        items += self._collect_hidden(session)
        wanted = self.config.getoption("--graded-test")
        if wanted:
            items[:] = [item for item in items if _name(item) in wanted]
        unwanted = [item for item in items if self._has_no_impl(item)]
        if unwanted:
            self.config.hook.pytest_deselected(items=unwanted)
            items[:] = [item for item in items if item not in unwanted]
        for impl, mine in _by_impl(items).items():
            graded = {test.name: test for test in self.tested.graded(impl.lab)}
            for item in mine:
                item.stash[_impl_key] = impl
                test = graded.get(_name(item))
                item.user_properties += properties_of(impl.lab.number, impl.label, _name(item),
                                                      test.task if test else None, test.points if test else None)
        self.chosen = [item.stash[_impl_key] for item in items if _impl_key in item.stash]
        self.files.put_in_order(items)
        if self.grading is not None:
            items[:] = self.grading.fold(items, _impl_key)

    def _has_no_impl(self, item: pytest.Item) -> bool:
        if "lab" not in getattr(item, "fixturenames", ()):  # true of most tests of the project, and fast to check
            return False
        lab = self.lab_of(item.path)
        return lab is not None and not self.tested.impls(lab)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin(self.chosen)
        if self.report is not None:
            self.files.tell_plan(self.report, [_name(item) for item in session.items if _impl_key in item.stash])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Begin in the controller, which collects nothing itself: every worker reports the same collected tests."""
        names: dict[Lab, list[str]] = {}
        for name in ids:
            lab = self.lab_of(self.config.rootpath / name.split("::")[0])
            if lab is not None:
                names.setdefault(lab, []).append(name)
        self._begin(impl for lab in names for impl in self.tested.impls(lab)
                    if any(f"[{_in_ids(impl)}]" in name or f"[{_in_ids(impl)}-" in name for name in names[lab]))

    def _begin(self, impls: Iterable[Impl]) -> None:
        """Record what can be earned, and print once which files are tested. Raise UsageError if a file does not fit."""
        impls = list(dict.fromkeys(impls))
        self.tested.expect(impls, self.points)
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or hasattr(self.config, "workerinput"):  # the controller prints for its workers
            return
        self.tested.refuse_what_does_not_fit(impls)
        if not self.has_named_files:
            for line in self.tested.lines(impls):
                terminal.write_line(line)
        self.has_named_files = bool(impls)

    # ---- loading

    def load(self, impl: Impl) -> types.ModuleType:
        """Load the module under test. If loading failed once, it fails the same way for every later test, at once."""
        module: types.ModuleType = self.files.load(impl)
        return module

    # ---- running

    def lab_of(self, path: Path) -> Lab | None:
        if path in self.hidden:
            return find_lab(self.hidden[path], self.labs)
        return lab_of_path(path, self.labs)

    def _seconds(self, item: pytest.Item) -> float:
        """Return how long the test may compute; 0 for a test of no lab."""
        impl = item.stash.get(_impl_key, None)
        return impl.lab.test_limit_s(self.time_limit_s) if impl is not None else 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._tell_start(item)
        self._refuse_after_stuck_tests(item)
        if _impl_key in item.stash:
            self.files.begin(item.stash[_impl_key], self._seconds(item),
                             item.module.__name__, _is_inside(item))  # type: ignore[attr-defined]
        if self.file_limit is not None and _impl_key in item.stash:  # this process is expendable
            kill_when_computing(self._seconds(item) * self.files.cpu_factor)
        with self.files.time_limit(self._seconds(item)):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if _impl_key not in item.stash:
            return (yield)
        with self.files.time_limit(self._seconds(item)), tamed():  # the limit includes reading the exception's text
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run an inside test. Because it trusts the sandbox's numbers, the grader also tries it on wrong solutions."""
        if not _is_inside(pyfuncitem):
            return None
        names = [name for name in pyfuncitem.funcargs if name in pyfuncitem._fixtureinfo.argnames]
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        has_run = self.files.run_inside(pyfuncitem.stash[_impl_key], _name(pyfuncitem),
                                        lambda lab: pyfuncitem.obj(**{**arguments, "lab": lab}))
        return has_run or None

    def keep_score(self, item: pytest.Item, score: float) -> None:
        """Keep the score that the current test measured. Fail the test if its lab has no such score."""
        impl = item.stash.get(_impl_key, None)
        settings = impl.lab.score if impl is not None else None
        if settings is None:
            pytest.fail("keep_score: the test's lab has no score in its lab.json", pytrace=False)
        if item.stash.get(_num_cases_key, 1) > 1:
            pytest.fail("keep_score: a test with several cases keeps no score", pytrace=False)
        if _score_key in item.stash:
            pytest.fail("keep_score was called before in this test: a test keeps one score", pytrace=False)
        problem = settings.problem_with(score)
        if problem:
            pytest.fail(problem, pytrace=False)
        item.stash[_score_key] = score

    def _refuse_after_stuck_tests(self, item: pytest.Item) -> None:
        """Raise NotRun if too many tests of this file got stuck before.

        An endless loop in a function that most tests use must not cost the time limit in each of them.
        """
        impl = item.stash.get(_impl_key, None)
        if impl is None:
            return
        stuck = self.stuck.get(impl, set())
        if _name(item) in stuck:
            raise NotRun("not run: another case of this test did not finish")
        num_stuck = self.files.num_stuck(self.num_stuck_before, len(stuck))
        if num_stuck >= MAX_STUCK_TESTS:
            raise NotRun(f"not run: {num_stuck} tests before it did not finish")

    # ---- reporting

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]
                                  ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        impl = item.stash.get(_impl_key, None)
        if impl is None:
            return (yield)
        error = call.excinfo.value if call.excinfo else None
        try:
            with tamed(), time_limit(TELLING_LIMIT_S if error else 0):
                report = yield
                message = tell(report, call, impl.path)
        except KeyboardInterrupt:  # the user pressed Ctrl-C
            raise
        except BaseException as trouble:
            report, message = untold(item, call, error, trouble)
        message = shorten(message, MAX_MESSAGE_CHARACTERS)
        if kind_of(error) in STUCK:
            self.stuck.setdefault(impl, set()).add(_name(item))
        if call.when == "call" or not report.passed:
            verdict = Verdict(report.passed, kind_of(error), message,
                              "" if report.passed else self.files.printed(report),
                              item.stash.get(_score_key, None) if report.passed else None)
            if call.when == "call" or report.failed:
                Score(impl.lab.number, impl.label, _name(item), item.name, item.stash.get(_num_cases_key, 1), verdict
                      ).attach(report)
            self._note_end(item, verdict)
        if call.when == "teardown":
            self._tell_end()
        report.sections = [(title, shorten(text, MAX_OUTPUT_CHARACTERS)) for title, text in report.sections]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        score = Score.of(report)
        if score is not None:
            self.points.add(score)

    def _tell_start(self, item: pytest.Item) -> None:
        if self.report is not None and _impl_key in item.stash:
            self.index, self.end = self.index + 1, None
            self.report.write({"event": "start", "index": self.index, "impl": item.stash[_impl_key].label,
                               "test": _name(item)})

    def _note_end(self, item: pytest.Item, verdict: Verdict) -> None:
        """Record the result of the test, or of one of its phases: the test passes if every phase does."""
        if self.end is None or self.end["passed"]:
            usage = self.files.usage(item.path in self.hidden)
            self.end = {"event": "end", "index": self.index, "impl": item.stash[_impl_key].label, "test": _name(item),
                        **dataclasses.asdict(verdict), **usage}

    def _tell_end(self) -> None:
        """Report the result, exactly once per test, after its last phase."""
        if self.report is not None and self.end is not None:
            self.report.write(self.end)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.grading is None:  # a grading run prints it at the very end
            for line in self.points.lines():
                terminalreporter.write_line(line)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        yield
        if self.report is not None:
            self.report.write({"event": "finish"})
        if self.xml_file is not None and self.xml_file.is_file() and not hasattr(self.config, "workerinput"):
            from course.pytest_run.junit import put_in_order  # most runs need no XML
            put_in_order(self.xml_file, self.points, self.config.rootpath)

    def pytest_unconfigure(self) -> None:
        self.files.end()


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> types.ModuleType:
    """Return the module under test: solution, starter, engine or another file, as ``--impl`` selects."""
    impl = getattr(request, "param", None)
    if not isinstance(impl, Impl):
        pytest.fail("the fixture `lab` is for the test_lab.py of a lab folder", pytrace=False)
    return request.config.stash[_session_key].load(impl)


@pytest.fixture
def keep_score(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Return a function that keeps a number as the score of the file under test; for the tests of open labs."""
    return partial(request.config.stash[_session_key].keep_score, request.node)


def _by_impl(items: Iterable[object]) -> dict[Impl, list[pytest.Item]]:
    """Group the items that test something by what they test."""
    found: dict[Impl, list[pytest.Item]] = {}
    for item in items:
        impl = getattr(getattr(item, "callspec", None), "params", {}).get("lab")
        if isinstance(item, pytest.Item) and isinstance(impl, Impl):
            found.setdefault(impl, []).append(item)
    return found


def _in_ids(impl: Impl) -> str:
    """Return the label as pytest writes it into the names of tests."""
    return impl.label.encode("unicode_escape").decode("ascii")


def _is_inside(item: pytest.Item) -> bool:
    """Check whether the test trusts numbers that are measured where the file under test runs."""
    return item.get_closest_marker("inside") is not None


def _name(item: pytest.Item) -> str:
    """Return the test's name, which is the same for all its cases."""
    return str(getattr(item, "originalname", item.name))


def bases_given(options: list[str], labs: list[Lab], invoked_from: Path) -> dict[str, Path]:
    """Parse ``2.1=folder/starter.py`` into lab number → file. Raise UsageError for anything else."""
    files = {}
    for option in options:
        name, _, path = option.partition("=")
        file = (invoked_from / path).resolve()
        if not path or not file.is_file():
            raise pytest.UsageError(f"--base {option}: must be LAB=FILE, as in 2.1=starter.py; there is no file "
                                    f"{path!r}")
        try:
            files[find_lab(name, labs).number] = file
        except LabError as error:
            raise pytest.UsageError(f"--base {option}: {error}") from None
    return files


def hidden_tests(option: str | None) -> dict[Path, str]:
    """Parse ``2.1=folder/test_hidden.py`` into file → lab number."""
    if option is None:
        return {}
    number, _, path = option.partition("=")
    return {Path(path).resolve(): number}
