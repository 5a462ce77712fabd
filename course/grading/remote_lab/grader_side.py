"""The grader's side: ``lab`` is a stand-in for the student's module, which runs in a sandbox."""

from __future__ import annotations

import enum
import sys
import time
import types
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

#: What a sandbox may compute until it is up. It is nobody's fault, and counts for no test.
STARTUP_CPU_S = 30.0
#: Classes of these are known by their names on both sides.
PACKAGES = ("mini_vllm", "course")
#: What a test outside may have measured in the sandbox: whoever lies there gains nothing.
HARMLESS = frozenset(("nothing", "hash_of_none", "listed"))
INSIDE = HARMLESS | {"cheapest", "peak_bytes", "num_objects", "start_counting_bytes", "stop_counting_bytes",
                     "remembered_keys", "num_kept", "begin_mlx_peak", "end_mlx_peak", "count_mlx_operations",
                     "call_and_list"}


class SandboxedLab:
    """The student's file in its sandbox, started anew after it had to be ended."""

    def __init__(self, settings: SandboxSettings, sandboxes: Sandboxes | None = None) -> None:
        self.settings = settings
        self._sandboxes = sandboxes or OwnSandboxes(settings)
        self._sandbox: Running | None = None
        self._peer: Peer | None = None
        self._wire: Wire | None = None
        self._module: Any = None
        self._limit_s = 0.0
        self._cpu_before = self._wall_before = 0.0
        self._bytes_before = self._messages_before = 0
        self._next_look = self._ended_cpu_s = 0.0
        #: Whether the current test was ended by the clock on the wall.
        self.has_only_waited = False
        #: For how many tests it was so.
        self.num_waited = 0
        self.surface = settings.surface
        self.surface.load()
        self.policy = GraderPermissions(self.surface)
        #: How many sandboxes were ended by the file in them.
        self.num_lost = 0
        #: What the current test may have measured in the sandbox.
        self.measures: frozenset[str] = HARMLESS

    # ---- tests

    def begin(self, limit_s: float, test_module: str, is_inside: bool = False) -> None:
        """A test begins; it may use this much CPU time in the sandbox, and ten times as much by the clock."""
        self.measures = INSIDE if is_inside else HARMLESS
        self.surface.add_tests(test_module, TESTS if test_module.endswith(TESTS) else test_module.rpartition(".")[2])
        if self._peer is not None and self._wire is not None and (self._peer.is_broken or self._wire.has_unread()):
            self.num_lost += 1  # what it said too much would be taken for answers in this test
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
        """What the sandbox has computed during the current test."""
        return self._sandbox.cpu_s() - self._cpu_before if self._sandbox is not None else 0.0

    def total_cpu_s(self) -> float:
        """What all sandboxes of this file have computed."""
        return self._ended_cpu_s + (self._sandbox.cpu_s() if self._sandbox is not None else 0.0)

    def printed(self) -> str:
        return self._sandbox.printed() if self._sandbox else ""

    def module(self) -> Any:
        """The stand-in for the student's module. Raises what running the file raises."""
        if self._module is None:
            self._module = self.peer.request("load")
        return self._module

    def load(self, source: bytes) -> Any:
        """A stand-in for another file's module, which runs beside the student's."""
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
        self._peer.request("measure", "nothing")  # it is up, and nothing of the student's has run yet
        self._limit_s, self._cpu_before, self._wall_before = limit_s, self._sandbox.cpu_s(), time.monotonic()

    def end(self) -> None:
        """Whatever runs in the sandbox is gone afterwards; the next test gets a new one."""
        if self._sandbox is not None:
            self._ended_cpu_s += self._sandbox.cpu_s()
            self._sandbox.end()
        self._sandbox = self._peer = self._wire = self._module = None

    # ---- while waiting

    def _look(self) -> None:
        """Called before every wait for the sandbox. Raises when the test has used up what it may."""
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
        """What a starter imports from a module that lives here."""
        try:
            return self.surface.find(f"{module}.{name}")
        except KeyError:
            raise ImportError(f"{name} of {module} is not for this lab") from None

    def _describe_enum(self, name: str) -> tuple[bool, list[tuple[str, Any]]]:
        """Members and values of an enum that the sandbox has been sent a member of. Raises ProtocolError."""
        found = find_class(name) if name in self.peer.told_enums else None
        if found is None or not issubclass(found, enum.Enum):
            raise ProtocolError(f"not an enum that was handed in: {name!r:.80}")
        return issubclass(found, int), [(member.name, member.value) for member in found]


def find_class(name: str) -> type | None:
    """A class of the course, by its full name."""
    module_name, _, short = name.rpartition(".")
    module = sys.modules.get(module_name)
    if not isinstance(module, types.ModuleType) or module_name.split(".")[0] not in PACKAGES:
        return None
    found = vars(module).get(short)
    return found if isinstance(found, type) else None
