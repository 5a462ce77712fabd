"""Prove that the names a lab lists for its file are harmless: call every entry in every way that a file could.

This is a pytest plugin. The lab's tests run on the solution, whose file asks this process for what it needs. The first
call of each entry in the list is recorded. After the test the entry is called again, with the same arguments and with
each of them replaced by each hostile value: paths, huge numbers, endless iterators, callbacks that raise. An entry that
the solution does not use is called on an object of its class, with as many hostile values as it takes. That object is
one that was passed to the file, or one that can be reached from there through listed names.

During these calls nothing may be opened, executed, imported or connected to, and no call may take long. Violations are
collected in ``complaints`` and written to the file that the environment variable names.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from course.core.failure_messages import TimeLimitExceeded
from course.core.resource_limits import time_limit
from course.grading.protocol.bounds import MAX_ITERATED, TooMuch
from course.grading.protocol.handles import Handles
from course.grading.protocol.message_bytes import Outgoing
from course.grading.protocol.perform import Doing
from course.grading.protocol.proxies import Remote
from course.grading.remote_lab.grader_side import SandboxedLab
from course.grading.remote_lab.permissions import GraderPermissions
from course.grading.sandbox.tests_wall import REFUSED

#: Names the file that complaints are written to.
COMPLAINTS = "COURSE_SURFACE_COMPLAINTS"
#: The CPU limit of one call with hostile arguments.
CALL_S = 2.0
#: The memory limit of all calls together.
MEMORY_BYTES = 6 << 30
#: Audit events that are forbidden in addition to those that the wall refuses.
FORBIDDEN = REFUSED | {"open", "exec", "import", "os.listdir", "os.scandir", "socket.__new__", "ctypes.dlopen"}
#: Modules that Python, NumPy or MLX import when they are first used.
_LAZY = ("encodings", "unicodedata", "_strptime", "numpy", "mlx", "linecache", "tokenize")


def endless() -> Iterator[int]:
    """Yield numbers like the protocol does for a foreign iterator: after a maximum it ends with an error."""
    yield from range(MAX_ITERATED)
    raise TooMuch("an iterator without an end")


class CallsBack:
    """A callback that misbehaves: it raises, or returns something odd."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __call__(self, *_: Any, **__: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def hostile_values() -> list[tuple[str, Callable[[], Any]]]:
    """Return the values that a file may pass in: a readable name and a function that makes a new value per call."""
    return [("a path", lambda: "/proc/self/fd/1"), ("a folder", os.getcwd), ("a file", lambda: __file__),
            ("a model's name", lambda: "tiny-tales"), ("10**15", lambda: 10**15),
            ("-(10**15)", lambda: -10**15), ("1e308", lambda: 1e308), ("nan", lambda: float("nan")), ("-1", lambda: -1),
            ("a long text", lambda: "a" * 1_000_000), ("an endless iterator", endless),
            ("many numbers", lambda: [10**6] * 100_000), ("a long range", lambda: range(200_000)),
            ("nested lists", _nested), ("a callback that raises", lambda: CallsBack(ValueError("no"))),
            ("a callback that answers with a path", lambda: CallsBack("/etc/passwd")), ("None", lambda: None),
            ("an object", object), ("a dictionary", lambda: {"path": "/etc/passwd", "model": "org/name"})]


def _nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(50):
        value = [value]
    return value


class Watch:
    """Records Python's audit events during a watched call."""

    def __init__(self) -> None:
        self.events: list[str] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.events is not None and event in FORBIDDEN and not self._is_lazy(event, arguments):
            self.events.append(f"{event} {arguments[:1]!r:.120}")

    @staticmethod
    def _is_lazy(event: str, arguments: tuple[Any, ...]) -> bool:
        """Check whether Python itself is loading one of its own modules for the first time."""
        if event == "import":
            return str(arguments[0]).split(".")[0] in _LAZY or str(arguments[0]) in sys.stdlib_module_names
        path = str(arguments[0]) if arguments else ""
        return event in ("open", "exec", "os.listdir", "os.scandir") and any(
            path.startswith(f"{folder}/") for folder in (os.path.dirname(os.__file__), *_site_folders()))


def _site_folders() -> list[str]:
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


class SurfaceCheck:
    """The entries of a lab's list that were used, and the results of calling them."""

    def __init__(self) -> None:
        self.watch = Watch()
        #: Entry → the permissions under which it was called, the function and its arguments.
        self.calls: dict[str, tuple[GraderPermissions, Any, tuple[Any, ...], dict[str, Any]]] = {}
        self.done: set[str] = set()
        #: Listed class → an object of it that was passed to the file.
        self.objects: dict[str, Any] = {}
        self.lab: SandboxedLab | None = None
        self.complaints: list[str] = []
        self.num_calls = 0

    # ---- recording

    def note_call(self, policy: GraderPermissions, function: Any, positional: tuple[Any, ...], named: dict[str, Any]
                  ) -> None:
        entry = self.entry_of(policy, function)
        if entry is not None and entry not in self.calls and entry not in self.done:
            self.calls[entry] = policy, function, positional, named

    def entry_of(self, policy: GraderPermissions, function: Any) -> str | None:
        """Return the entry that permits calling a function; None for a function that a test has passed in."""
        owner = getattr(function, "__self__", None)
        if isinstance(function, type):
            names = policy.surface.listed_names(function)
            return f"{names[0]}()" if names else None
        if owner is not None and not inspect.ismodule(owner):
            names = policy.surface.listed_names(owner if isinstance(owner, type) else type(owner))
            return f"{names[0]}.{function.__name__}" if names else None
        if policy.surface.of_function(function) is not None:
            return f"{function.__module__}.{function.__qualname__}()"
        return None

    def note_object(self, policy: GraderPermissions, value: Any) -> None:
        for name in policy.surface.listed_names(type(value)):
            self.objects.setdefault(name, value)

    # ---- calling

    def call_all(self) -> None:
        """Call the entries that were recorded since the last time."""
        for entry, (policy, function, given, given_named) in list(self.calls.items()):
            for what, positional, named in _variants(given, given_named):
                self._try(entry, what, functools.partial(_call, policy, function, positional, named))
            self.done.add(entry)
        self.calls.clear()

    def call_the_rest(self, lab: SandboxedLab) -> list[str]:
        """Read and call the entries that the solution has not used. Return those of which no object was seen."""
        self._walk(lab)
        unseen = []
        for name, offer in lab.surface.offers.items():
            itself = lab.surface.find(name) if name.split(".")[0] in ("mini_vllm", "course") else None
            if offer.can_be_called and f"{name}()" not in self.done and itself is not None:
                self._attack(f"{name}()", functools.partial(_call, lab.policy, itself), _num_arguments(itself))
            value = self.objects.get(name)
            for each in sorted(each for each in offer.reads if f"{name}.{each}" not in self.done):
                found = inspect.getattr_static(itself if value is None else type(value), each, None)
                if value is None and not isinstance(found, (classmethod, staticmethod)):
                    unseen.append(f"{name}.{each}")
                    continue
                owner = itself if value is None else value
                self._try(f"{name}.{each}", "nothing", functools.partial(self._use, owner, each))
                if callable(found) or isinstance(found, (classmethod, staticmethod)):
                    if not each.startswith("__"):
                        self._attack(f"{name}.{each}", functools.partial(_call_method, lab.policy, owner, each),
                                     _num_arguments(getattr(owner, each)))
        return unseen

    def _attack(self, entry: str, call: Callable[[list[Any], dict[str, Any]], Any], num_arguments: int) -> None:
        """Call something with zero to ``num_arguments`` hostile values, all of one kind."""
        for (what, make), count in itertools.product(hostile_values(), range(num_arguments + 1)):
            self._try(entry, f"{count} times {what}", functools.partial(call, [make() for _ in range(count)], {}))

    def _walk(self, lab: SandboxedLab) -> None:
        """Find the objects that can be reached through listed names from those passed to the file."""
        waiting = list(self.objects.values())
        while waiting:
            value = waiting.pop()
            for name in lab.surface.of(type(value)).reads:
                for found in _items(_read(value, name)):
                    num_before = len(self.objects)
                    self.note_object(lab.policy, found)
                    if len(self.objects) > num_before:
                        waiting.append(found)

    def _use(self, value: Any, name: str) -> None:
        found = getattr(value, name)
        if name in ("__len__", "__iter__", "__bool__", "__repr__"):
            found()

    def _try(self, entry: str, what: str, call: Callable[[], Any]) -> None:
        """Make a call, and complain if it opens something or does not end. Exceptions that it raises are ignored."""
        self.num_calls += 1
        self.watch.events, before_s, is_cut_off = [], _cpu_s(), False
        try:
            with time_limit(CALL_S):
                result = call()
                if isinstance(result, Iterator):  # a generator has not started yet
                    for _ in itertools.islice(result, MAX_ITERATED):
                        pass
        except TimeLimitExceeded:
            is_cut_off = True
        except Exception:
            pass
        events, self.watch.events = self.watch.events, None
        if events:
            self.complaints.append(f"{entry} with {what}: {events[0]}")
        if is_cut_off or _cpu_s() - before_s > CALL_S:
            self.complaints.append(f"{entry} with {what} did not end within {CALL_S:g} s of CPU time")


def _read(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except Exception:
        return None


def _items(value: Any) -> list[Any]:
    """Return the first elements of a container, or the value itself if it is none."""
    if isinstance(value, dict):
        return list(itertools.islice(value.values(), 10))
    return list(itertools.islice(value, 10)) if isinstance(value, (list, tuple, set)) else [value]


def _variants(positional: tuple[Any, ...], named: dict[str, Any]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield the arguments unchanged, and then with each of them replaced by each hostile value."""
    yield "the solution's arguments", list(positional), named
    for what, make in hostile_values():
        for place in range(len(positional)):
            yield f"{what} as argument {place + 1}", [*positional[:place], make(), *positional[place + 1:]], named
        for name in named:
            yield f"{what} as {name}", list(positional), {**named, name: make()}


def _call(policy: GraderPermissions, function: Any, positional: list[Any], named: dict[str, Any]) -> Any:
    policy.check_call(function, (*positional, *named.values()))
    arguments, keywords = policy.arguments_for(function, positional, named)
    return function(*arguments, **keywords)


def _call_method(policy: GraderPermissions, value: Any, name: str, positional: list[Any], named: dict[str, Any]) -> Any:
    return _call(policy, getattr(value, name), positional, named)


def _num_arguments(function: Any) -> int:
    """Return how many positional arguments ``function`` takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        return sum(each.kind in kinds for each in inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return 0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ---- the plugin

_check: SurfaceCheck | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Record every call that a file makes in this process from now on."""
    global _check
    check = _check = SurfaceCheck()
    call, handle, init = Doing._call, Handles.handle, SandboxedLab.__init__

    def noting_call(self: Doing, function: Any, positional: Any, named: Any) -> Any:
        if isinstance(self._policy, GraderPermissions):
            check.note_call(self._policy, function, tuple(positional), dict(named))
        return call(self, function, positional, named)

    def noting_handle(self: Handles, value: Any, out: Outgoing) -> Any:
        if isinstance(self._policy, GraderPermissions) and not isinstance(value, (type, Remote)):
            check.note_object(self._policy, value)
        return handle(self, value, out)

    def noting_lab(self: SandboxedLab, *arguments: Any) -> None:
        init(self, *arguments)
        check.lab = self

    for owner, name, function in ((Doing, "_call", noting_call), (Handles, "handle", noting_handle),
                                  (SandboxedLab, "__init__", noting_lab)):
        setattr(owner, name, function)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    assert _check is not None
    _check.call_all()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    assert _check is not None
    unseen = _check.call_the_rest(_check.lab) if _check.lab is not None else []
    found = {"complaints": _check.complaints, "num_calls": _check.num_calls, "unseen": unseen,
             "num_failed": session.testsfailed}
    with open(os.environ[COMPLAINTS], "w", encoding="utf-8") as file:
        json.dump(found, file)


