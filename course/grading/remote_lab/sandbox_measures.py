"""Measurements by the labs' tests of a file that runs in a sandbox: some are made here, the rest in the sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from course.grading.protocol.proxies import Deferring, RemoteMethod
from course.grading.remote_lab.grader_side import SandboxedLab
from course.testing.measure import Where, is_protocol, is_stand_in


class SandboxMeasures(Where):
    """The file under test runs in the sandbox of ``lab``."""

    lines_a_question = 5
    is_alone = True

    def __init__(self, lab: SandboxedLab) -> None:
        self._lab = lab

    def num_questions(self) -> int:
        return self._lab.num_questions()

    is_overhead = staticmethod(is_protocol)

    def measure(self, name: str, *args: Any) -> Any:
        return self._lab.measure(name, *args)

    def method(self, function: Any) -> Any:
        """Return an operator of an object in the sandbox, such as ``queue.__len__``, as the object's method there."""
        owner: Any = getattr(function, "__self__", None)
        return RemoteMethod(owner, function.__name__) if is_stand_in(owner) else function

    def cpu_s(self) -> float:
        return self._lab.process_cpu_s()

    def is_one_process(self) -> bool:
        return self._lab.is_one_process

    @contextlib.contextmanager
    def reference(self, module: str) -> Iterator[tuple[Where, Any]]:
        with self._lab.reference(module) as lab:
            yield SandboxMeasures(lab), lab.module()

    def num_objects(self, thing: object, but: tuple[type, ...]) -> int:
        return int(self.measure("num_objects", thing))

    def bytes_grown(self, call: Callable[[], object]) -> int:
        self.measure("start_counting_bytes")
        call()
        return int(self.measure("stop_counting_bytes"))

    def shares_memory(self, first: Any, second: Any) -> bool:
        """Return whether writing into one array changes the other: each side has a copy, and messages bring changes."""
        if not first.flags.writeable:
            return super().shares_memory(first, second)
        before = first.flat[0]
        first.flat[0] = before + 1
        self.measure("nothing")
        is_shared = bool(second.flat[0] == before + 1)
        first.flat[0] = before
        self.measure("nothing")
        return is_shared

    def deferring(self, thing: Any, names: frozenset[str]) -> Any:
        return Deferring(thing, names) if is_stand_in(thing) else thing

    def flush(self, thing: Any) -> None:
        if isinstance(thing, Deferring):
            thing.far_flush()

    def repeated(self, thing: Any, name: str, num_times: int) -> Iterator[Any]:
        yield from (thing.far_repeat(name, num_times) if isinstance(thing, Deferring)
                    else super().repeated(thing, name, num_times))

    def extendable(self, kind: Any, given: type) -> type:
        return given
