"""A process for work that may never end: it has limits on CPU time and memory, and can be killed.

The work is that of a program which came from outside: a chat template, a schema. A thread that runs it could not be
stopped. Here one question may take a second of CPU time and half a gigabyte of memory. If it needs more, the process
ends: that question has no answer, and the next one starts a new process.

    python -m MODULE CPU_S     a JSON object per line in, and one out
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mini_vllm.server.access.turns import ANYONE, Holder, Turns

MAX_CPU_S = 1.0
#: Wall-clock time: on a busy machine, a second of CPU time takes longer.
MAX_WALL_S = 20.0
MAX_MEMORY_BYTES = 512 * 2**20
#: The longest text in an answer, and the longest line: in JSON, a character may take twelve bytes.
MAX_TEXT_CHARS = 4 * 2**20
MAX_LINE_BYTES = 12 * MAX_TEXT_CHARS + 1000


class NoAnswerError(ValueError):
    """The process took too long or needed too much memory, or it refused the question."""


class LimitedProcess:
    """Asks processes of ``MODULE``: one for each turn, but of one key only one question after the other."""

    MODULE: str

    def __init__(self, max_cpu_s: float = MAX_CPU_S) -> None:
        self._max_cpu_s = max_cpu_s
        self._turns = Turns()
        self._processes: list[asyncio.subprocess.Process] = []
        #: Those of the processes that are not asked anything.
        self._idle: list[asyncio.subprocess.Process] = []

    async def ask(self, question: Mapping[str, Any], holder: Holder = ANYONE) -> dict[str, Any]:
        """Return the answer. Raise NoAnswerError if there is none."""
        line = json.dumps(question).encode() + b"\n"
        async with self._turns.turn(holder):
            process, answer = await self._free_process(), b""
            try:
                answer = await asyncio.wait_for(_ask(process, line), MAX_WALL_S)
            except asyncio.TimeoutError:
                raise NoAnswerError(f"it did not finish within {MAX_WALL_S:g} s") from None
            finally:
                if answer:
                    self._idle.append(process)
                else:  # the caller may have been cancelled, and nothing reads the answer
                    await self._end(process)
        if not answer:
            raise NoAnswerError(f"it took more than {self._max_cpu_s:g} s of CPU time or "
                                f"{MAX_MEMORY_BYTES // 2**20} MiB of memory")
        said: dict[str, Any] = json.loads(answer)
        if "error" in said:
            raise NoAnswerError(said["error"])
        return said

    async def _free_process(self) -> asyncio.subprocess.Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
            self._processes.remove(process)
        self._processes.append(await asyncio.create_subprocess_exec(
            sys.executable, "-m", self.MODULE, str(self._max_cpu_s), limit=MAX_LINE_BYTES,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}))  # each of its threads would take much memory
        return self._processes[-1]

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if process in self._processes:
            self._processes.remove(process)

    async def close(self) -> None:
        """End the processes. A later question starts a new one."""
        self._idle.clear()
        await asyncio.gather(*map(self._end, [*self._processes]))


async def _ask(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    """Return the line of the answer; it is empty if the process has ended."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(line)
        await process.stdin.drain()
    return await process.stdout.readline()


def answer_lines(max_cpu_s: float, answer: Callable[..., dict[str, Any]]) -> None:
    """Answer one question per line until there are no more. The fields of a question are the arguments of ``answer``.

    An exception becomes the field ``error``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C: it closes the pipe to end this process
    with contextlib.suppress(ImportError, ValueError, OSError):  # some systems do not support this limit
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # SIGPROF ends a process that does not handle it
        try:
            said = answer(**json.loads(line))
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"[:1000]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
