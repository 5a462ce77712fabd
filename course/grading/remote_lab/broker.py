"""Sandboxes for the tests' process, which may not start any itself: its parent starts them and passes their sockets on.

Each process holds one end of a socket pair. The tests' process asks in lines, ``[number, what]``. The parent answers
each with a line, and sends a descriptor along when it has started a sandbox. There is one sandbox at a time.
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


class OwnSandboxes:
    """Starts sandboxes from the process that runs the tests. Used where no attack is expected: ``make check-far``."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings

    def start(self) -> Sandbox:
        return start(self._settings.level, self._settings.files(), MAIN, (), self._settings.limits)


class Broker:
    """The parent's side. Its sandbox ends with it."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._sandboxes = OwnSandboxes(settings)
        self.key = secrets.token_bytes(KEY_BYTES)
        self.connection, self.theirs = socket.socketpair()
        self._sandbox: Sandbox | None = None
        self._num_started = 0
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

    def _do(self, what: str) -> tuple[dict[str, Any], list[int]]:
        sandbox = self._sandbox
        if what == "start":
            return self._start()
        if what == "printed":
            return {"text": sandbox.printed() if sandbox else ""}, []
        if what == "clear" and sandbox:
            sandbox.clear_printed()
        if what == "end":
            self.end_sandbox()
        return {"cpu_s": sandbox.cpu_s() if sandbox else 0.0}, []

    def _start(self) -> tuple[dict[str, Any], list[int]]:
        self.end_sandbox()
        self._num_started += 1
        try:
            if self._num_started > MAX_SANDBOXES:
                raise SandboxError(f"{MAX_SANDBOXES} sandboxes were started for this file already")
            self._sandbox = self._sandboxes.start()
        except SandboxError as error:
            self.trouble = str(error)
            return {"error": str(error)}, []
        return {"pid": self._sandbox.pid}, [self._sandbox.connection.fileno()]

    def end_sandbox(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.end()

    def end(self) -> None:
        self.end_sandbox()
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

    def start(self) -> BrokeredSandbox:
        answer = self.ask("start")
        if "error" in answer:
            raise SandboxError(answer["error"])
        descriptor = self._descriptors.pop()
        return BrokeredSandbox(self, answer["pid"], socket.socket(fileno=descriptor))

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
                raise SandboxError("the process that starts sandboxes is gone")
            self._unread += data
            for _, _, content in rights:
                found = array.array("i")
                found.frombytes(content[:len(content) - len(content) % found.itemsize])
                self._descriptors += found
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class BrokeredSandbox:
    """A sandbox that the parent has started."""

    def __init__(self, broker: BrokeredSandboxes, pid: int, connection: socket.socket) -> None:
        self._broker, self._pid, self.connection = broker, pid, connection
        self._cpu_s = 0.0
        self._has_ended = False

    def cpu_s(self) -> float:
        if not self._has_ended:
            try:
                self._cpu_s = max(self._cpu_s, cpu_s_of(self._pid))
            except ProcessLookupError:
                self._cpu_s = max(self._cpu_s, float(self._broker.ask("cpu_s")["cpu_s"]))
                self._has_ended = True
        return self._cpu_s

    def printed(self) -> str:
        return str(self._broker.ask("printed")["text"])

    def clear_printed(self) -> None:
        self._broker.ask("clear")

    def end(self) -> None:
        self._cpu_s = max(self._cpu_s, float(self._broker.ask("end")["cpu_s"]))
        self._has_ended = True
        self.connection.close()
