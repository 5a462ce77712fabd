"""Sandboxes for the tests' process, which may not start any itself: its parent starts them and passes their sockets on.

Each process holds one end of a socket pair. The tests' process asks in lines, ``[number, what]``. The parent answers
each with a line, and sends a descriptor along when it has started a sandbox. There is one sandbox at a time for the
file, and one for the reference that the file is compared with.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import secrets
import socket
from typing import Any, Protocol

from course.grading.protocol.verdict_lines import KEY_BYTES
from course.grading.remote_lab.sandbox_files import SandboxSettings
from course.grading.sandbox import Sandbox, SandboxError, start
from course.grading.sandbox.cpu_time import cpu_s_of

MAIN = "course/grading/remote_lab/sandbox_main.py"
#: How many sandboxes one run of a lab's tests may start. A test that ends its sandbox costs one, and so does each test
#: that is measured inside.
MAX_SANDBOXES = 400
_MAX_LINE_BYTES = 1 << 20
#: Whose sandbox: the student's file's, or the reference's.
FILE, REFERENCE = "file", "reference"


class Running(Protocol):
    """A sandbox, as the tests use it."""

    connection: socket.socket

    def cpu_s(self) -> float: ...

    def printed(self) -> str: ...

    def clear_printed(self) -> None: ...

    def end(self) -> object: ...


class Sandboxes(Protocol):
    def start(self) -> Running:
        """Start a sandbox. Raise SandboxError if that is impossible."""

    def of_reference(self) -> Sandboxes:
        """Return the same for the lab's reference instead of the student's file."""


class OwnSandboxes:
    """Starts sandboxes from the process that runs the tests. Used where no attack is expected: ``make check-far``."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings

    def start(self) -> Sandbox:
        return start(self._settings.level, self._settings.files(), MAIN, (), self._settings.limits)

    def of_reference(self) -> OwnSandboxes:
        return OwnSandboxes(self._settings.of_reference())


class Broker:
    """The parent's side. Its sandbox ends with it."""

    def __init__(self, settings: SandboxSettings) -> None:
        own = OwnSandboxes(settings)
        #: What to ask for → how it is started. The sandboxes that run are under the same names.
        self._sandboxes = {FILE: own, REFERENCE: own.of_reference()} if settings.lab.reference else {FILE: own}
        self._running: dict[str, Sandbox] = {}
        self.key = secrets.token_bytes(KEY_BYTES)
        self.connection, self.theirs = socket.socketpair()
        self._num_started = 0
        self._ended_cpu_s = 0.0
        self._unread = b""
        #: Why a sandbox could not be started; "" if none failed to start.
        self.trouble = ""
        self.connection.sendall(json.dumps({"key": self.key.hex()}).encode() + b"\n")

    def answer(self) -> bool:
        """Answer the questions that have arrived since the last call. Return whether more may arrive."""
        data = self.connection.recv(1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        if not data or len(self._unread) > _MAX_LINE_BYTES:
            return False
        with contextlib.suppress(OSError, ValueError, TypeError):  # the other side is gone, or it was not a question
            for line in lines:
                number, what = json.loads(line)
                answer, descriptors = self._do(what)
                text = json.dumps([number, answer]).encode() + b"\n"
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
                sent = self.connection.sendmsg([text], rights)
                self.connection.sendall(text[sent:])
        return True

    def _do(self, question: str) -> tuple[dict[str, Any], list[int]]:
        """Answer ``what whose``, such as ``start file``."""
        what, whose = question.split(" ")
        sandbox = self._running.get(whose)
        if what == "start":
            return self._start(whose)
        if what == "printed":
            return {"text": sandbox.printed() if sandbox else ""}, []
        if what == "clear" and sandbox:
            sandbox.clear_printed()
        if what == "end":
            self.end_sandbox(whose)
        return {"cpu_s": sandbox.cpu_s() if sandbox else 0.0}, []

    def _start(self, whose: str) -> tuple[dict[str, Any], list[int]]:
        self.end_sandbox(whose)
        self._num_started += 1
        try:
            if self._num_started > MAX_SANDBOXES:
                raise SandboxError(f"{MAX_SANDBOXES} sandboxes were already started for this file")
            if whose not in self._sandboxes:
                raise SandboxError(f"this lab has no sandbox for {whose!r:.40}")
            sandbox = self._running[whose] = self._sandboxes[whose].start()
        except SandboxError as error:
            self.trouble = str(error)
            return {"error": str(error)}, []
        return {"pid": sandbox.pid}, [sandbox.connection.fileno()]

    def end_sandbox(self, whose: str) -> None:
        sandbox = self._running.pop(whose, None)
        if sandbox is not None:
            sandbox.end()
            self._ended_cpu_s += sandbox.cpu_s()

    def cpu_s(self) -> float:
        """Return the CPU time that all sandboxes have used so far."""
        return self._ended_cpu_s + sum(sandbox.cpu_s() for sandbox in self._running.values())

    def end(self) -> None:
        for whose in list(self._running):
            self.end_sandbox(whose)
        self.connection.close()
        self.theirs.close()


class BrokeredSandboxes:
    """The side of the tests' process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._socket = socket.socket(fileno=descriptor)
        self._number = 0
        self._unread = b""
        self._descriptors: list[int] = []
        #: The key that signs verdicts. It exists only in the memory of the two processes.
        self.key = bytes.fromhex(json.loads(self._line())["key"])

    def start(self, whose: str = FILE) -> BrokeredSandbox:
        answer = self.ask(f"start {whose}")
        if "error" in answer:
            raise SandboxError(answer["error"])
        descriptor = self._descriptors.pop()
        return BrokeredSandbox(self, whose, answer["pid"], socket.socket(fileno=descriptor))

    def of_reference(self) -> BrokeredReference:
        return BrokeredReference(self)

    def ask(self, what: str) -> dict[str, Any]:
        self._number += 1
        self._socket.sendall(json.dumps([self._number, what]).encode() + b"\n")
        while True:
            number, answer = json.loads(self._line())
            if number == self._number:  # any other is not the answer to this question
                found: dict[str, Any] = answer
                for descriptor in self._descriptors[:-1]:
                    os.close(descriptor)
                del self._descriptors[:-1]
                return found

    def _line(self) -> bytes:
        while b"\n" not in self._unread:
            data, rights, _, _ = self._socket.recvmsg(1 << 16, socket.CMSG_SPACE(4 * 16))
            if not data:
                raise SandboxError("the process that starts sandboxes has ended")
            self._unread += data
            for _, _, content in rights:
                found = array.array("i")
                found.frombytes(content[:len(content) - len(content) % found.itemsize])
                self._descriptors += found
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class BrokeredReference:
    """The same for the sandbox of the reference."""

    def __init__(self, broker: BrokeredSandboxes) -> None:
        self._broker = broker

    def start(self) -> BrokeredSandbox:
        return self._broker.start(REFERENCE)

    def of_reference(self) -> BrokeredReference:
        return self


class BrokeredSandbox:
    """A sandbox that the parent has started."""

    def __init__(self, broker: BrokeredSandboxes, whose: str, pid: int, connection: socket.socket) -> None:
        self._broker, self._whose, self._pid, self.connection = broker, whose, pid, connection
        self._cpu_s = 0.0
        self._has_ended = False

    def cpu_s(self) -> float:
        if not self._has_ended:
            try:
                self._cpu_s = max(self._cpu_s, cpu_s_of(self._pid))
            except ProcessLookupError:
                self._cpu_s = max(self._cpu_s, float(self._ask("cpu_s")["cpu_s"]))
                self._has_ended = True
        return self._cpu_s

    def printed(self) -> str:
        return str(self._ask("printed")["text"])

    def clear_printed(self) -> None:
        self._ask("clear")

    def end(self) -> None:
        self._cpu_s = max(self._cpu_s, float(self._ask("end")["cpu_s"]))
        self._has_ended = True
        self.connection.close()

    def _ask(self, what: str) -> dict[str, Any]:
        return self._broker.ask(f"{what} {self._whose}")
