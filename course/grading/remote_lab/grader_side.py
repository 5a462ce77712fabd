"""The grader's side: ``lab`` is a stand-in for the student's module, which runs in a sandbox."""

from __future__ import annotations

import contextlib
import enum
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

from course.core.failure_messages import TimeLimitExceeded
from course.core.resource_limits import WALL_FACTOR
from course.grading.protocol.bounds import MAX_BYTES_A_TEST, MAX_MESSAGES_A_TEST, check
from course.grading.protocol.connection import Peer
from course.grading.protocol.socket_messages import LOOK_S, ProtocolError, Wire
from course.grading.remote_lab.broker import OwnSandboxes, Running, Sandboxes
from course.grading.remote_lab.permissions import GraderPermissions
from course.grading.remote_lab.sandbox_files import SandboxSettings
from course.grading.remote_lab.surface import TESTS
from course.grading.sandbox import Level, SandboxError
from course.grading.sandbox.inside import seccomp

#: The CPU time that a sandbox may use until it is up. It counts for no test, because no submission is to blame.
STARTUP_CPU_S = 30.0
#: Classes of these packages are known by their names on both sides.
PACKAGES = ("mini_vllm", "course")
#: Measurements in the sandbox that any test may request: a file that lies about these gains nothing.
HARMLESS = frozenset(("nothing", "hash_of_none", "listed", "make_driver"))
INSIDE = HARMLESS | {"cheapest", "peak_bytes", "num_objects", "start_counting_bytes", "stop_counting_bytes",
                     "remembered_keys", "num_kept", "begin_mlx_peak", "end_mlx_peak", "count_mlx_operations",
                     "call_and_list"}


class SandboxedLab:
    """The student's file in its sandbox, which is started again after it had to be ended."""

    def __init__(self, settings: SandboxSettings, sandboxes: Sandboxes | None = None) -> None:
        self.settings = settings
        self._sandboxes = sandboxes or OwnSandboxes(settings)
        self._test_module = ""
        self._sandbox: Running | None = None
        self._peer: Peer | None = None
        self._wire: Wire | None = None
        self._module: Any = None
        self._limit_s = 0.0
        self._cpu_before = self._wall_before = 0.0
        self._bytes_before = self._messages_before = 0
        self._next_look = self._ended_cpu_s = 0.0
        #: Whether the wall-clock limit ended the current test.
        self.has_only_waited = False
        #: The number of tests that the wall-clock limit ended.
        self.num_waited = 0
        #: Whether the system keeps the file from starting processes.
        self.is_one_process = settings.level is Level.SEATBELT or (sys.platform == "linux" and seccomp.is_available())
        self.surface = settings.surface
        self.surface.load()
        self.policy = GraderPermissions(self.surface)
        #: The number of sandboxes that the file in them ended or left in a broken state.
        self.num_lost = 0
        #: The measurements in the sandbox that the current test may request.
        self.measures: frozenset[str] = HARMLESS

    # ---- tests

    def begin(self, limit_s: float, test_module: str, is_inside: bool = False) -> None:
        """Begin a test. It may use ``limit_s`` of CPU time in the sandbox, and ten times that much wall-clock time."""
        self.measures = INSIDE if is_inside else HARMLESS
        self._test_module = test_module
        self.surface.add_tests(test_module, TESTS if test_module.endswith(TESTS) else test_module.rpartition(".")[2])
        if self._peer is not None and self._wire is not None and (self._peer.is_broken or self._wire.has_unread()):
            self.num_lost += 1  # unread data would be mistaken for answers in this test
            self.end()
        self._limit_s = limit_s
        self.has_only_waited = False
        self._wall_before = time.monotonic()
        self._cpu_before = self._sandbox.cpu_s() if self._sandbox else 0.0
        self._bytes_before = self._wire.num_bytes if self._wire else 0
        self._messages_before = self._wire.num_messages if self._wire else 0
        if self._sandbox:
            self._sandbox.clear_printed()

    def cpu_s(self) -> float:
        """Return the CPU time that the sandbox has used during the current test."""
        return self._sandbox.cpu_s() - self._cpu_before if self._sandbox is not None else 0.0

    def total_cpu_s(self) -> float:
        """Return the CPU time that all sandboxes of this file have used."""
        return self._ended_cpu_s + (self._sandbox.cpu_s() if self._sandbox is not None else 0.0)

    def process_cpu_s(self) -> float:
        """Return the CPU time of the process in the sandbox since it started. Raise SandboxError if it has ended."""
        if self._sandbox is None:
            raise SandboxError("the sandbox has ended, and nothing more can be measured in it")
        return self._sandbox.cpu_s()

    @contextlib.contextmanager
    def reference(self, module: str) -> Iterator[SandboxedLab]:
        """Yield the reference of the lab in a second sandbox, which ends with the block."""
        if module != self.settings.lab.reference:
            raise ValueError(f"the reference of lab {self.settings.lab} is {self.settings.lab.reference!r}, not "
                             f"{module!r}: name it in lab.json")
        lab = SandboxedLab(self.settings.of_reference(), self._sandboxes.of_reference())
        try:
            lab.begin(self._limit_s, self._test_module)
            yield lab
        finally:
            lab.end()

    def printed(self) -> str:
        return self._sandbox.printed() if self._sandbox else ""

    def module(self) -> Any:
        """Return the stand-in for the student's module. Raise what running the file raises."""
        if self._module is None:
            self._module = self.peer.request("load")
        return self._module

    def load(self, source: bytes) -> Any:
        """Return a stand-in for the module of another file, which runs next to the student's."""
        return self.peer.request("load", source)

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            self._start()
        assert self._peer is not None
        return self._peer

    # ---- gauges

    def num_questions(self) -> int:
        return self._peer.num_answered if self._peer is not None else 0

    def measure(self, name: str, *args: Any) -> Any:
        if name not in self.measures:
            raise ValueError(f"{name} is measured in the sandbox: the test must be marked inside")
        return self.peer.request("measure", name, *args)

    def _start(self) -> None:
        self._sandbox = self._sandboxes.start()
        limit_s, self._limit_s = self._limit_s, STARTUP_CPU_S
        self._cpu_before, self._bytes_before, self._messages_before = 0.0, 0, 0
        self._wire = Wire(self._sandbox.connection, self._look)
        self._peer = Peer(self._wire, self.policy, first_id=2, trusts_other=False, find_class=find_class)
        self._peer.doing.services["import"] = self._import
        self._peer.doing.services["enum"] = self._describe_enum
        self._peer.request("measure", "nothing")  # the sandbox is up, and no code of the student's has run yet
        self._limit_s, self._cpu_before, self._wall_before = limit_s, self._sandbox.cpu_s(), time.monotonic()

    def end(self) -> None:
        """End the sandbox and everything that runs in it. The next test gets a new one."""
        if self._sandbox is not None:
            self._ended_cpu_s += self._sandbox.cpu_s()
            self._sandbox.end()
        self._sandbox = self._peer = self._wire = self._module = None

    # ---- while waiting

    def _look(self) -> None:
        """Check the limits. Called before every wait for the sandbox; raises when the test has exceeded one."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            self._check(now)

    def _check(self, now: float) -> None:
        sandbox, wire = self._sandbox, self._wire
        assert sandbox is not None and wire is not None
        if sandbox.cpu_s() - self._cpu_before > self._limit_s:
            raise TimeLimitExceeded(self._limit_s, "of CPU time")
        if now - self._wall_before > WALL_FACTOR * self._limit_s:
            self.num_waited += not self.has_only_waited
            self.has_only_waited = True
            raise TimeLimitExceeded(WALL_FACTOR * self._limit_s, "by the clock")
        check("{} bytes during one test", wire.num_bytes - self._bytes_before, MAX_BYTES_A_TEST)
        check("{} messages during one test", wire.num_messages - self._messages_before, MAX_MESSAGES_A_TEST)

    # ---- what the sandbox asks for

    def _import(self, module: str, name: str) -> Any:
        """Return what a starter imports from a module that is served from here."""
        try:
            return self.surface.find(f"{module}.{name}")
        except KeyError:
            raise ImportError(f"a file for this lab may not use {name} of {module}") from None

    def _describe_enum(self, name: str) -> tuple[bool, list[tuple[str, Any]]]:
        """Return the members and values of an enum that was handed in. Raise ProtocolError for any other name."""
        found = find_class(name) if name in self.peer.told_enums else None
        if found is None or not issubclass(found, enum.Enum):
            raise ProtocolError(f"not an enum that was handed in: {name!r:.80}")
        return issubclass(found, int), [(member.name, member.value) for member in found]


def find_class(name: str) -> type | None:
    """Return a class of the course by its full name; None if there is no such class."""
    module_name, _, short = name.rpartition(".")
    module = sys.modules.get(module_name)
    if not isinstance(module, types.ModuleType) or module_name.split(".")[0] not in PACKAGES:
        return None
    found = vars(module).get(short)
    return found if isinstance(found, type) else None
