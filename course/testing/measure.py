"""For the tests of labs: what a call costs, and what an object contains.

The file under test may run in this process or in the grader's sandbox; ``where`` knows which. Work that the file asks
of objects passed to it is visible from here and measured here. The sandbox is asked for everything else; a test that
trusts such a number is marked ``inside``, with the reason.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import secrets
import sys
import time
import tracemalloc
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
#: Name → function that measures next to the file under test.
_MEASURES: dict[str, Callable[..., Any]] = {}


def beside_the_file(function: F) -> F:
    """Register a function to run where the file under test runs.

    ``Where.measure`` calls it by its name without a leading underscore. In a sandbox, the grader
    calls the public function of that name. If this is another function, it calls ``Where.measure`` in the sandbox.
    """
    _MEASURES[function.__name__.removeprefix("_")] = function
    return function


class Where:
    """Where the file under test runs: here, in this process. ``remote_lab.sandbox_measures`` is for a sandbox."""

    #: How many lines a request to an object passed to the file counts as. In one process no requests are sent.
    lines_a_question = 0
    #: Whether the process runs nothing else, so that all of its CPU time is the file's.
    is_alone = False

    def num_questions(self) -> int:
        """Return how many requests the file has sent to objects that live here."""
        return 0

    @staticmethod
    def is_overhead(frame: types.FrameType) -> bool:
        """Check whether a line is the grader's own work, not the file's."""
        return False

    def measure(self, name: str, *args: Any) -> Any:
        """Call a measuring function of this module, or of a related one, where the file runs."""
        return _MEASURES[name](*args)

    def method(self, function: Any) -> Any:
        """Return a method of an object under test, in the form in which it is called where the file runs."""
        return function

    def cpu_s(self) -> float:
        """Return the CPU time that the process in which the file runs has used, in all its threads together."""
        return time.process_time()

    def is_one_process(self) -> bool:
        """Return whether the file cannot start processes, whose CPU time ``cpu_s`` would miss. Here it is trusted."""
        return True

    @contextlib.contextmanager
    def reference(self, module: str) -> Iterator[tuple[Where, Any]]:
        """Yield a module of the course that the file is compared with, and where it runs: here.

        In the grader it runs in a second sandbox; the lab names it under ``reference``.
        """
        yield self, importlib.import_module(module)

    def num_objects(self, thing: object, but: tuple[type, ...]) -> int:
        return _num_objects(thing, but)

    def bytes_grown(self, call: Callable[[], object]) -> int:
        start_counting_bytes()
        try:
            call()
        finally:
            grown = stop_counting_bytes()
        return grown

    def shares_memory(self, first: Any, second: Any) -> bool:
        import numpy as np
        return bool(np.shares_memory(first, second))

    def deferring(self, thing: Any, names: frozenset[str]) -> Any:
        return thing

    def flush(self, thing: Any) -> None:
        """Do nothing: no call was deferred."""

    def repeated(self, thing: Any, name: str, num_times: int) -> Iterator[Any]:
        for _ in range(num_times):
            yield getattr(thing, name)()

    def extendable(self, kind: Any, given: type) -> type:
        return kind  # type: ignore[no-any-return]


HERE = Where()
#: Replaced while the file under test runs in a sandbox.
where: Where = HERE


def salt() -> str:
    """Return an empty string, or in the grader a random one that no file can know in advance."""
    return "" if os.environ.get("COURSE_GRADER") is None else secrets.token_hex(8)


def num_lines(call: Callable[[], object]) -> int:
    """Count the lines of Python and function calls that run during ``call()``, except those in the test's own file.

    For a file in a sandbox, count what runs here on its behalf, plus five for each of its requests.
    """
    count = 0
    of_test = sys._getframe(1).f_globals

    def on_call(frame: types.FrameType, event: str, argument: object) -> Any:
        if frame.f_globals is of_test or is_overhead(frame):
            return None
        return on_line(frame, event, argument)

    def on_line(frame: types.FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return on_line

    num_questions, is_overhead = where.num_questions(), where.is_overhead
    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        call()
    finally:
        sys.settrace(before)
    return count + lines_of_questions(where.num_questions() - num_questions)


def lines_of_questions(num_questions: int) -> int:
    """Return what these requests count for in ``num_lines``: nothing without a sandbox."""
    return where.lines_a_question * num_questions


def is_protocol(frame: types.FrameType) -> bool:
    """Check whether a line is communication between grader and sandbox, or ``call_surface``, which records it."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith(("course.grading", "course.authoring.call_surface", "json", "socket", "weakref",
                              "threading", "selectors"))


def cheapest(function: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> tuple[int, int]:
    """Return the fewest lines of Python, and the fewest bytes at the peak, of the calls ``function(*argument)``.

    This measures inside: both are counted where the function runs. It must be a method of an object under test, not a
    function of the test.
    """
    num_lines, num_bytes = where.measure("cheapest", where.method(function), [tuple(each) for each in arguments])
    return int(num_lines), int(num_bytes)


@beside_the_file
def _cheapest(function: Callable[..., object], arguments: list[tuple[Any, ...]]) -> tuple[int, int]:
    works = [_work_of(function, argument) for argument in arguments]
    return min(work[0] for work in works), min(work[1] for work in works)


def _work_of(function: Callable[..., object], argument: tuple[Any, ...]) -> tuple[int, int]:
    """Return how many lines of Python ran during the call, and how many bytes it used at its peak."""
    num_lines = 0

    def on_call(frame: types.FrameType, event: str, argument: object) -> Any:
        return None if is_protocol(frame) else on_line

    def on_line(frame: types.FrameType, event: str, argument: object) -> Any:
        nonlocal num_lines
        num_lines += event == "line"
        return on_line

    before, is_tracing = sys.gettrace(), tracemalloc.is_tracing()
    if not is_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        num_bytes, _ = tracemalloc.get_traced_memory()
        sys.settrace(on_call)
        try:
            function(*argument)
        finally:
            sys.settrace(before)
        return num_lines, tracemalloc.get_traced_memory()[1] - num_bytes
    finally:
        if not is_tracing:
            tracemalloc.stop()


def peak_bytes(function: Callable[..., object], *arguments: Any) -> int:
    """Return how many bytes a call used at its peak, beyond those in use before it. Measures inside."""
    return int(where.measure("peak_bytes", where.method(function), *arguments))


@beside_the_file
def _peak_bytes(function: Callable[..., object], *arguments: Any) -> int:
    is_tracing = tracemalloc.is_tracing()
    if not is_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        function(*arguments)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not is_tracing:
            tracemalloc.stop()


def num_objects(thing: object, *, but: tuple[type, ...] = ()) -> int:
    """Count the objects reachable from ``thing``, except classes, functions and the types in ``but``.

    Measures inside.
    """
    return where.num_objects(thing, but)


def _num_objects(thing: object, but: tuple[type, ...]) -> int:
    ignored = (type, types.ModuleType, types.FunctionType, *but)
    seen: dict[int, Any] = {}
    to_do: list[Any] = [thing]
    while to_do:
        each = to_do.pop()
        if id(each) not in seen and not isinstance(each, ignored) and not is_stand_in(each):
            seen[id(each)] = each
            to_do += gc.get_referents(each)
    return len(seen)


def is_stand_in(thing: object) -> bool:
    """Check whether ``thing`` represents an object of the other side: the test's in the sandbox, the file's here."""
    return hasattr(type(thing), "_far_methods")


def bytes_grown(call: Callable[[], object]) -> int:
    """Return how many more bytes are in use after ``call()`` than before. Measures inside."""
    return where.bytes_grown(call)


def start_counting_bytes() -> None:
    tracemalloc.start()


def stop_counting_bytes() -> int:
    gc.collect()  # objects that only a reference cycle keeps alive do not count
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return grown


def shares_memory(first: Any, second: Any) -> bool:
    """Check whether two arrays of the file under test share memory, so that a write to one is visible in the other."""
    return where.shares_memory(first, second)


def listed(things: Iterable[Any]) -> list[Any]:
    """Return all elements of ``things``, in order. In a sandbox this takes one message, not one per element."""
    return list(where.measure("listed", things))


@beside_the_file
def _listed(things: Iterable[Any]) -> list[Any]:
    return list(things)


def nothing() -> None:
    """Do nothing; for a request without effect."""


def deferring(thing: Any, *names: str) -> Any:
    """Return ``thing``. In a sandbox, calls of its methods ``names`` are deferred and sent with the next call.

    Their results must not be needed. ``flush`` makes the deferred calls at once.
    """
    return where.deferring(thing, frozenset(names))


def flush(thing: Any) -> None:
    """Make the deferred calls now."""
    where.flush(thing)


def repeated(thing: Any, name: str, num_times: int) -> Iterator[Any]:
    """Return the results of ``num_times`` calls of ``thing.name()``: one after another, or in a sandbox all at once."""
    return where.repeated(thing, name, num_times)


def extendable(kind: Any, given: type) -> type:
    """Return a class that a test can derive from: the file's own if it runs here, else the engine's equivalent."""
    return where.extendable(kind, given)


def hash_of_none() -> int:
    """Return ``hash(None)`` where the file under test runs: before Python 3.12 it differs between processes."""
    return int(where.measure("hash_of_none"))


@beside_the_file
def _hash_of_none() -> int:
    return hash(None)
