"""Run the files under test in pytest's own process. ``remote_lab.pytest_bridge`` runs each in a sandbox instead."""

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
    """The interface through which a run reports events."""

    def write(self, event: dict[str, Any]) -> None: ...


class FilesHere:
    """The hooks that the plugin calls, whether files run in this process or in a sandbox."""

    #: The CPU limit of a test in this process, as a multiple of the file's limit.
    cpu_factor = 1.0

    def __init__(self) -> None:
        self._loaded: dict[str, types.ModuleType | FileIsBroken] = {}

    def make_report(self, path: str) -> Lines:
        return JsonLines(path)

    def shut_in(self, folders: Sequence[str]) -> None:
        """Give up all rights that are not needed, except reading ``folders``. Called before any lab is loaded."""

    def put_in_order(self, items: list[pytest.Item]) -> None:
        """Sort ``items`` into the order in which they run."""

    def tell_plan(self, report: Lines, tests: Sequence[str]) -> None:
        """Report which tests will run, before the first of them starts."""

    def begin(self, impl: Impl, seconds: float, test_module: str, is_inside: bool) -> None:
        """Begin a test of this file, which may compute for ``seconds``. An inside test measures where the file runs."""

    def load(self, impl: Impl) -> Any:
        """Load the module under test. If loading failed once, it fails the same way for every later test, at once."""
        key = " ".join(impl.modules) or str(impl.path)
        if key not in self._loaded:
            try:
                with tamed():
                    self._loaded[key] = import_together(impl.modules) if impl.modules else load_file(impl.path)
            except KeyboardInterrupt:  # the user pressed Ctrl-C
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
        """Run an inside test by calling ``run`` with the module under test.

        Return False if pytest should run the test like any other.
        """
        return False

    def num_stuck(self, num_before: int, num_here: int) -> int:
        """Return how many tests of the file got stuck, from the counts of earlier processes and of this process."""
        return num_before + num_here

    def printed(self, report: pytest.TestReport) -> str:
        return last_printed(report)

    def usage(self, is_hidden: bool) -> dict[str, object]:
        """Return additional measurements to report with a test."""
        return {}

    def end(self) -> None:
        """End the run."""
