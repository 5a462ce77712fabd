"""For the pytest plugin: files under test that run in a sandbox of their own each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.core.failure_messages import FileIsBroken, NotRun, TimeLimitExceeded, why_broken
from course.grading.protocol.socket_messages import ProtocolError
from course.lab.lab import Lab
from course.lab.mutants import mutants_of
from course.testing import measure

if TYPE_CHECKING:
    from course.grading.remote_lab.broker import BrokeredSandboxes
    from course.grading.remote_lab.grader_side import SandboxedLab
    from course.pytest_run.targets import Impl

#: Wrong solutions beside the file, in a test that runs inside.
NUM_CANARIES = 2

#: What the student's file is called in its sandbox.
SHOWN = Path("starter.py")
#: After this many sandboxes that died during a test, the rest of the lab is not run.
MAX_LOST_SANDBOXES = 100


def sandbox_sessions(level: str | None, broker: int | None, hidden: Sequence[Path]) -> SandboxSessions | None:
    """``broker`` is the descriptor by which sandboxes are asked for; without it they are started here. ``hidden`` are
    the folders of hidden tests."""
    if level is None:
        return None
    if broker is None:
        return SandboxSessions(level, hidden)
    from course.grading.remote_lab.broker import BrokeredSandboxes
    return SandboxSessions(level, hidden, BrokeredSandboxes(broker))


class CanaryPassed(Exception):
    """Something in the sandbox makes wrong solutions pass. The test counts nothing, and somebody should look."""


def canaries(lab: Lab, test: str) -> list[bytes]:
    """Wrong solutions that the test is known to catch."""
    solution = lab.solution.read_text(encoding="utf-8")
    return [mutant.apply(solution).encode() for mutant in mutants_of(lab) if mutant.killed_by == test][:NUM_CANARIES]


class SandboxSessions:
    """The sandboxes of one pytest run: one at a time, for the file that the current test is about."""

    def __init__(self, level: str, hidden: Sequence[Path] = (), sandboxes: BrokeredSandboxes | None = None) -> None:
        self._level, self._hidden = level, tuple(hidden)
        self.sandboxes = sandboxes
        self._impl: Impl | None = None
        self._lab: SandboxedLab | None = None
        self._broken: FileIsBroken | None = None
        self._was_inside = False
        #: What this process had computed when the tests of the current file began.
        self._cpu_before = 0.0

    def begin(self, impl: Impl, limit_s: float, test_module: str, is_inside: bool) -> None:
        """A test of this file begins. One that runs inside gets its own sandbox: others will run beside the file."""
        if impl != self._impl:
            self.end()
            self._impl, self._broken, self._cpu_before = impl, None, time.process_time()
            self._lab = _far_lab(impl, self._level, self._hidden, self.sandboxes)
        assert self._lab is not None
        if is_inside or self._was_inside:
            self._lab.end()
        self._was_inside = is_inside
        self._lab.begin(limit_s, test_module, is_inside)
        measure.far = self._lab

    def run_inside(self, impl: Impl, test: str, run: Callable[[Any], object]) -> None:
        """Run an inside test on the student's module and on canaries, in random order.

        Raises what it raises on the student's, and CanaryPassed if a wrong solution passes here.
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
                raise CanaryPassed("a wrong solution passes this test beside this file: the file meddles with how it "
                                   "is measured")
        if raised is not None:
            raise raised

    def load(self, impl: Impl) -> Any:
        """The stand-in for the module. A file that failed once fails the same way for every later test."""
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

    def usage(self) -> dict[str, object]:
        """What the sandbox has used up during the current test, and whether the clock on the wall ended it."""
        return {"cpu_s": self._lab.cpu_s(), "waited": self._lab.has_only_waited} if self._lab is not None else {}

    @property
    def num_waited(self) -> int:
        """How many tests of the current file the clock on the wall has ended."""
        return self._lab.num_waited if self._lab is not None else 0

    def printed(self) -> str:
        return self._lab.printed() if self._lab is not None else ""

    def end(self) -> None:
        measure.far = None
        if self._lab is not None:
            self._lab.end()


def _far_lab(impl: Impl, level: str, hidden: tuple[Path, ...], sandboxes: BrokeredSandboxes | None) -> SandboxedLab:
    from course.grading.limits import limits_for
    from course.grading.remote_lab.grader_side import SandboxedLab
    from course.grading.remote_lab.sandbox_files import SandboxSettings
    from course.grading.sandbox import Level
    source = impl.path.read_bytes() if sandboxes is None else b""  # who starts the sandboxes has it
    return SandboxedLab(SandboxSettings(impl.lab, source, Level(level), limits_for(impl.lab), hidden), sandboxes)
