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
    """Asks the process of ``MODULE`` one question after the other."""

    MODULE: str

    def __init__(self, max_cpu_s: float = MAX_CPU_S) -> None:
        self._max_cpu_s = max_cpu_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer. Raise NoAnswerError if there is none."""
        line = json.dumps(question).encode() + b"\n"
        async with self._lock:
            try:
                answer = await asyncio.wait_for(self._ask(line), MAX_WALL_S)
            except asyncio.TimeoutError:
                await self.close()
                raise NoAnswerError(f"it did not finish within {MAX_WALL_S:g} s") from None
            except BaseException:  # the caller was cancelled, and nothing reads the answer
                await self.close()
                raise
        if not answer:
            await self.close()
            raise NoAnswerError(f"it took more than {self._max_cpu_s:g} s of CPU time or "
                                f"{MAX_MEMORY_BYTES // 2**20} MiB of memory")
        said: dict[str, Any] = json.loads(answer)
        if "error" in said:
            raise NoAnswerError(said["error"])
        return said

    async def _ask(self, line: bytes) -> bytes:
        """Return the line of the answer; it is empty if the process has ended."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self.MODULE, str(self._max_cpu_s), limit=MAX_LINE_BYTES,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})  # each of its threads would take much memory
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line)
            await self._process.stdin.drain()
        return await self._process.stdout.readline()

    async def close(self) -> None:
        """End the process. A later question starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


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
