"""The part of the pytest plugin that runs each file under test in its own sandbox."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from course.core.failure_messages import FileIsBroken, NotRun, TimeLimitExceeded, last_lines, why_broken
from course.core.resource_limits import WALL_FACTOR, time_limit
from course.grading.protocol.socket_messages import ProtocolError
from course.lab.lab import Lab
from course.lab.mutants import mutants_of
from course.pytest_run.files_here import FilesHere, Lines
from course.testing import measure

if TYPE_CHECKING:
    from course.grading.remote_lab.broker import BrokeredSandboxes
    from course.grading.remote_lab.grader_side import SandboxedLab
    from course.pytest_run.targets import Impl

#: The number of wrong solutions that run next to the file in a test that runs inside.
NUM_CANARIES = 2
#: The factor by which a test may use more CPU time here than the file under test may use in its sandbox; and the
#: wall-clock time that it gets on top of the sandbox's limit, because starting a sandbox takes long on a busy machine.
GRADERS_CPU_FACTOR, START_S = 3.0, 60.0

#: The name of the student's file in its sandbox.
SHOWN = Path("starter.py")
#: After this many sandboxes were lost during tests, the rest of the lab is not run.
MAX_LOST_SANDBOXES = 100


def sandbox_sessions(level: str | None, broker: int | None, hidden: Sequence[Path]) -> SandboxSessions | None:
    """Return the sandboxes for a run, or None without a level. ``broker`` is the descriptor for requesting
    sandboxes; without it they are started here. ``hidden`` contains the folders of hidden tests."""
    if level is None:
        return None
    if broker is None:
        return SandboxSessions(level, hidden)
    from course.grading.remote_lab.broker import BrokeredSandboxes
    return SandboxSessions(level, hidden, BrokeredSandboxes(broker))


class CanaryPassed(Exception):
    """Something in the sandbox makes wrong solutions pass. The test earns nothing, and an instructor should look."""


def canaries(lab: Lab, test: str) -> list[bytes]:
    """Return wrong solutions that the test is known to catch."""
    solution = lab.solution.read_text(encoding="utf-8")
    return [mutant.apply(solution).encode() for mutant in mutants_of(lab) if mutant.killed_by == test][:NUM_CANARIES]


class SandboxSessions(FilesHere):
    """The sandboxes of one pytest run: one at a time, for the file that the current test is about."""

    cpu_factor = GRADERS_CPU_FACTOR

    def __init__(self, level: str, hidden: Sequence[Path] = (), sandboxes: BrokeredSandboxes | None = None) -> None:
        super().__init__()
        self._level, self._hidden = level, tuple(hidden)
        self.sandboxes = sandboxes
        self._impl: Impl | None = None
        self._lab: SandboxedLab | None = None
        self._broken: FileIsBroken | None = None
        self._was_inside = False
        #: The CPU time that this process had used when the tests of the current file began.
        self._cpu_before = 0.0

    def make_report(self, path: str) -> Lines:
        """Return the report. It is signed if another process holds the sandboxes and the key."""
        if self.sandboxes is None:
            return super().make_report(path)
        from course.grading.protocol.verdict_lines import SignedLines
        return SignedLines(os.open(path, os.O_WRONLY), self.sandboxes.key)

    def shut_in(self, folders: Sequence[str]) -> None:
        if self.sandboxes is not None:
            from course.grading.sandbox.tests_wall import end_with_parent, raise_wall
            end_with_parent(self.sandboxes.descriptor)
            raise_wall(list(folders))

    def put_in_order(self, items: list[pytest.Item]) -> None:
        """Sort tests that run inside to the end. Each of them gets its own sandbox, and so does the test after it."""
        items.sort(key=lambda item: item.get_closest_marker("inside") is not None)

    def tell_plan(self, report: Lines, tests: Sequence[str]) -> None:
        if self.sandboxes is not None:
            report.write({"event": "plan", "tests": list(tests)})

    def begin(self, impl: Impl, seconds: float, test_module: str, is_inside: bool) -> None:
        """Begin a test of this file. An inside test gets its own sandbox, because other files run next to this one."""
        if impl != self._impl:
            self.end()
            self._impl, self._broken, self._cpu_before = impl, None, time.process_time()
            self._lab = _far_lab(impl, self._level, self._hidden, self.sandboxes)
        assert self._lab is not None
        if is_inside or self._was_inside:
            self._lab.end()
        self._was_inside = is_inside
        self._lab.begin(seconds, test_module, is_inside)
        from course.grading.remote_lab.sandbox_measures import SandboxMeasures  # imported late, like the others below
        measure.where = SandboxMeasures(self._lab)

    def run_inside(self, impl: Impl, test: str, run: Callable[[Any], object]) -> bool:
        """Run an inside test on the student's module and on canaries, in random order.

        Raise what the test raises on the student's module, and CanaryPassed if a wrong solution passes.
        """
        assert self._lab is not None
        entries: list[bytes | None] = [None, *canaries(impl.lab, test)]
        random.SystemRandom().shuffle(entries)
        raised: BaseException | None = None
        for source in entries:
            try:
                run(self.load(impl) if source is None else self._lab.load(source))
            except (KeyboardInterrupt, ProtocolError, TimeLimitExceeded):
                raise
            except BaseException as error:
                if source is None:
                    raised = error
                continue
            if source is not None:
                raise CanaryPassed("a wrong solution passes this test when this file is loaded: the file tampers with "
                                   "the measurement")
        if raised is not None:
            raise raised
        return True

    def time_limit(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        """Limit the time used here, which goes into talking to the sandbox. The sandbox counts its own time."""
        return time_limit(GRADERS_CPU_FACTOR * seconds, WALL_FACTOR * seconds + START_S)

    def load(self, impl: Impl) -> Any:
        """Return the stand-in for the module. A file that failed once fails the same way for every later test."""
        lab = self._lab
        assert lab is not None
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        if lab.total_cpu_s() + time.process_time() - self._cpu_before > lab.settings.limits.cpu_s:
            raise NotRun(f"not run: the file has used up the {lab.settings.limits.cpu_s:g} s of CPU time that all "
                         "tests together may take")
        if lab.num_lost >= MAX_LOST_SANDBOXES:
            raise NotRun(f"not run: {lab.num_lost} tests before it ended their process")
        try:
            return lab.module()
        except (KeyboardInterrupt, ProtocolError):
            raise
        except BaseException as error:
            self._broken = FileIsBroken(why_broken(error, SHOWN, SHOWN.name, impl.lab.number, is_own=False))
            raise self._broken from None

    def usage(self, is_hidden: bool) -> dict[str, object]:
        """Return the CPU time of the sandbox during the current test, and whether the wall-clock limit ended it."""
        used = {"cpu_s": self._lab.cpu_s(), "waited": self._lab.has_only_waited} if self._lab is not None else {}
        return {**used, "is_hidden": is_hidden}

    def num_stuck(self, num_before: int, num_here: int) -> int:
        """Return the number of tests that the wall-clock limit ended. Any other stuck test uses up the CPU time that
        all tests share, and the next test gets a new sandbox."""
        return self._lab.num_waited if self._lab is not None else 0

    def printed(self, report: pytest.TestReport) -> str:
        return last_lines(self._lab.printed() if self._lab is not None else "")

    def end(self) -> None:
        measure.where = measure.HERE
        if self._lab is not None:
            self._lab.end()


def _far_lab(impl: Impl, level: str, hidden: tuple[Path, ...], sandboxes: BrokeredSandboxes | None) -> SandboxedLab:
    from course.grading.limits import limits_for
    from course.grading.remote_lab.grader_side import SandboxedLab
    from course.grading.remote_lab.sandbox_files import SandboxSettings
    from course.grading.sandbox import Level
    source = impl.path.read_bytes() if sandboxes is None else b""  # the process that starts the sandboxes has it
    return SandboxedLab(SandboxSettings(impl.lab, source, Level(level), limits_for(impl.lab), hidden), sandboxes)
