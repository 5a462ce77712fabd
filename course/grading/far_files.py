"""For the pytest plugin: files under test that run in a sandbox of their own each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course.failures import FileIsBroken, NotRun, why_broken

if TYPE_CHECKING:
    from course.grading.near import FarLab
    from course.impls import Impl

#: After this many sandboxes that died during a test, the rest of the lab is not run.
MAX_LOST_SANDBOXES = 3


def far_files(level: str | None) -> FarFiles | None:
    return None if level is None else FarFiles(level)


class FarFiles:
    """The sandboxes of one pytest run: one at a time, for the file that the current test is about."""

    def __init__(self, level: str) -> None:
        self._level = level
        self._impl: Impl | None = None
        self._lab: FarLab | None = None
        self._broken: FileIsBroken | None = None

    def begin(self, impl: Impl, limit_s: float, test_module: str) -> None:
        """A test of this file begins."""
        if impl != self._impl:
            self.end()
            self._impl, self._broken = impl, None
            self._lab = _far_lab(impl, self._level)
        assert self._lab is not None
        self._lab.begin(limit_s, test_module)

    def load(self, impl: Impl) -> Any:
        """The stand-in for the module. A file that failed once fails the same way for every later test."""
        lab = self._lab
        assert lab is not None
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        if lab.num_lost >= MAX_LOST_SANDBOXES:
            raise NotRun(f"not run: {lab.num_lost} tests before it ended their process")
        try:
            return lab.module()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._broken = FileIsBroken(why_broken(error, impl.path.with_name("starter.py"), "starter.py",
                                                   impl.lab.number))
            raise self._broken from None

    def printed(self) -> str:
        return self._lab.printed() if self._lab is not None else ""

    def end(self) -> None:
        if self._lab is not None:
            self._lab.end()


def _far_lab(impl: Impl, level: str) -> FarLab:
    from course.grading.near import FarLab
    from course.grading.room import FarSettings
    from course.grading.sandbox import Level
    from course.grading.settings import limits_for
    return FarLab(FarSettings(impl.lab, impl.path.read_bytes(), Level(level), limits_for(impl.lab)))
