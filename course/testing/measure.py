"""For the tests of labs: what a call costs, and what an object holds.

The file under test may run in this process, or in the grader's sandbox (``far`` is set then). What can be seen from
here is measured here: work that the file asks of objects that were handed in. What only the sandbox can see, it is
asked for; a test that believes such a number is marked ``inside``, with the reason.
"""

from __future__ import annotations

import gc
import os
import secrets
import sys
import tracemalloc
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

#: What one question to an object that was handed in counts for, in lines.
LINES_A_QUESTION = 5


class SandboxMeasures(Protocol):
    """What the grader knows of the sandbox."""

    def num_questions(self) -> int:
        """How often the sandbox has asked something of objects that live here."""

    def measure(self, name: str, *args: Any) -> Any:
        """Have a function of this module measure in the sandbox."""


#: Set while the file under test runs in a sandbox.
far: SandboxMeasures | None = None


def salt() -> str:
    """Nothing; in the grader what nobody can know beforehand."""
    return "" if os.environ.get("COURSE_GRADER") is None else secrets.token_hex(8)


def num_lines(call: Callable[[], object]) -> int:
    """How many lines of Python, and calls of functions, run during ``call()``, outside of the test's own file.

    Of a file in a sandbox: what runs here on its behalf, and five for each time that it asks.
    """
    count = 0
    of_test = sys._getframe(1).f_globals

    def trace(frame: types.FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if frame.f_globals is of_test or far is not None and _is_protocol(frame):
            return None
        count += 1
        return trace

    num_questions = far.num_questions() if far is not None else 0
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count + (LINES_A_QUESTION * (far.num_questions() - num_questions) if far is not None else 0)


def lines_of_questions(num_questions: int) -> int:
    """What this many questions to objects that were handed in count for in ``num_lines``: nothing without a sandbox."""
    return LINES_A_QUESTION * num_questions if far is not None else 0


def _is_protocol(frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith(("course.grading", "json", "socket", "weakref", "threading", "selectors"))


def cheapest(function: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> tuple[int, int]:
    """The fewest lines of Python, and the fewest bytes at the peak, of the calls ``function(*argument)``.

    Inside: both are counted where the function runs. It must be a method of an object under test, not a function of the
    test's own.
    """
    arguments = [tuple(argument) for argument in arguments]
    if far is not None:
        num_lines, num_bytes = far.measure("cheapest", _over_there(function), arguments)
        return int(num_lines), int(num_bytes)
    works = [_work_of(function, argument) for argument in arguments]
    return min(work[0] for work in works), min(work[1] for work in works)


def _work_of(function: Callable[..., object], argument: tuple[Any, ...]) -> tuple[int, int]:
    """How many lines of Python ran during the call, and how many bytes it had taken at its peak."""
    num_lines = 0

    def trace(frame: types.FrameType, event: str, argument: object) -> Any:
        nonlocal num_lines
        if _is_protocol(frame):
            return None
        num_lines += event == "line"
        return trace

    before, is_tracing = sys.gettrace(), tracemalloc.is_tracing()
    if not is_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        num_bytes, _ = tracemalloc.get_traced_memory()
        sys.settrace(trace)
        try:
            function(*argument)
        finally:
            sys.settrace(before)
        return num_lines, tracemalloc.get_traced_memory()[1] - num_bytes
    finally:
        if not is_tracing:
            tracemalloc.stop()


def _over_there(function: Any) -> Any:
    """An operator of something in the sandbox, ``queue.__len__``, as its method there."""
    owner: Any = getattr(function, "__self__", None)
    if not is_stand_in(owner):
        return function
    from course.grading.protocol.proxies import RemoteMethod
    return RemoteMethod(owner, function.__name__)


def peak_bytes(function: Callable[..., object], *arguments: Any) -> int:
    """How many bytes a call had in use at its peak, beyond those before it. Inside."""
    if far is not None:
        return int(far.measure("peak_bytes", _over_there(function), *arguments))
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
    """How many objects hang on ``thing``, not counting classes, functions and what ``but`` names. Inside."""
    if far is not None:
        return int(far.measure("num_objects", thing))
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
    """Whether it stands for an object of the other side: of the test's, in the sandbox, and of the file's here."""
    return hasattr(type(thing), "_far_methods")


def bytes_grown(call: Callable[[], object]) -> int:
    """How many bytes more are in use after ``call()`` than before. Inside."""
    if far is not None:
        far.measure("start_counting_bytes")
        call()
        return int(far.measure("stop_counting_bytes"))
    start_counting_bytes()
    try:
        call()
    finally:
        grown = stop_counting_bytes()
    return grown


def start_counting_bytes() -> None:
    tracemalloc.start()


def stop_counting_bytes() -> int:
    gc.collect()  # what only a circle holds is not kept
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return grown


def shares_memory(first: Any, second: Any) -> bool:
    """Whether two arrays of the file under test lie in one memory: what is written into one is read in the other."""
    import numpy as np
    if far is None or not first.flags.writeable:
        return bool(np.shares_memory(first, second))
    before = first.flat[0]
    first.flat[0] = before + 1
    far.measure("nothing")  # now both sides know
    is_shared = bool(second.flat[0] == before + 1)
    first.flat[0] = before
    far.measure("nothing")
    return is_shared


def listed(things: Iterable[Any]) -> list[Any]:
    """All that ``things`` has, in its order. In a sandbox one message, and not one a thing."""
    return list(far.measure("listed", things) if far is not None else things)


def nothing() -> None:
    """A question without a point."""


def deferring(thing: Any, *names: str) -> Any:
    """``thing``; in a sandbox its methods ``names``, whose results nobody wants, are called together with the next one.

    ``flush`` has them called now.
    """
    if far is None or not is_stand_in(thing):
        return thing
    return _remote().Deferring(thing, frozenset(names))


def flush(thing: Any) -> None:
    """What was deferred is called."""
    if far is not None and isinstance(thing, _remote().Deferring):
        thing.far_flush()


def repeated(thing: Any, name: str, num_times: int) -> Iterator[Any]:
    """The results of ``thing.name()``, called this many times: one after the other, or in a sandbox all at once."""
    if far is not None and isinstance(thing, _remote().Deferring):
        yield from thing.far_repeat(name, num_times)
    else:
        for _ in range(num_times):
            yield getattr(thing, name)()


def _remote() -> Any:
    """Only the grader needs it."""
    from course.grading.protocol import proxies
    return proxies


def extendable(kind: Any, given: type) -> type:
    """A class that a test can derive from: the file's own, where it runs here, else the engine's of that contract."""
    return given if far is not None else kind


def hash_of_none() -> int:
    """``hash(None)``, where the file under test runs: before Python 3.12 it differs from process to process."""
    return int(far.measure("hash_of_none")) if far is not None else hash(None)
