"""Where the files under test run: here, in pytest's own process. In a sandbox each: ``remote_lab.pytest_bridge``."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest

from course.core.failure_messages import FileIsBroken, last_printed, why_broken
from course.core.resource_limits import time_limit
from course.lab.load_module import import_together, load_file
from course.pytest_run.exception_guard import tamed
from course.pytest_run.json_lines import JsonLines
from course.pytest_run.targets import Impl


class Lines(Protocol):
    """Where a run reports what happens."""

    def write(self, event: dict[str, Any]) -> None: ...


class FilesHere:
    """What the plugin asks of wherever the files under test run."""

    #: What a test may compute in this process, times what the file may.
    cpu_factor = 1.0

    def __init__(self) -> None:
        self._loaded: dict[str, types.ModuleType | FileIsBroken] = {}

    def make_report(self, path: str) -> Lines:
        return JsonLines(path)

    def shut_in(self, folders: Sequence[str]) -> None:
        """Before anything of a lab is loaded: give up what this process does not need, but for reading ``folders``."""

    def put_in_order(self, items: list[pytest.Item]) -> None:
        """The tests, in the order in which they run."""

    def tell_plan(self, report: Lines, tests: Sequence[str]) -> None:
        """Which tests will be reported, before the first of them runs."""

    def begin(self, impl: Impl, seconds: float, test_module: str, is_inside: bool) -> None:
        """A test of this file begins. The file may compute for ``seconds``; an inside test measures where it runs."""

    def load(self, impl: Impl) -> Any:
        """The module under test. A file that failed once fails the same way, at once, for every later test."""
        key = " ".join(impl.modules) or str(impl.path)
        if key not in self._loaded:
            try:
                with tamed():
                    self._loaded[key] = import_together(impl.modules) if impl.modules else load_file(impl.path)
            except KeyboardInterrupt:  # from the keyboard
                raise
            except BaseException as error:
                self._loaded[key] = FileIsBroken(why_broken(error, impl.path, impl.files, impl.lab.number,
                                                            impl.path == impl.lab.starter))
        module = self._loaded[key]
        if isinstance(module, FileIsBroken):
            raise module.with_traceback(None)
        return module

    def time_limit(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        return time_limit(seconds)

    def run_inside(self, impl: Impl, test: str, run: Callable[[Any], object]) -> bool:
        """Run an inside test on the module under test, which ``run`` takes. False: pytest runs it like any other."""
        return False

    def num_stuck(self, num_before: int, num_here: int) -> int:
        """How many tests of the file did not end, given those of earlier processes and of this one."""
        return num_before + num_here

    def printed(self, report: pytest.TestReport) -> str:
        return last_printed(report)

    def usage(self, is_hidden: bool) -> dict[str, object]:
        """What else is reported of a test."""
        return {}

    def end(self) -> None:
        """The run is over."""
