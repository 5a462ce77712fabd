"""The chat template of a model, in its own process that can be killed.

A template is a program that came with the weights. Jinja's sandbox keeps it from reaching into Python, but it may still
loop for hours or write gigabytes, and a thread that does so cannot be stopped. Here a chat may take one second of CPU
time and half a gigabyte of memory. If a template needs more, its process ends: that chat is rejected, and the next one
starts a new process.

    python -m mini_vllm.server.models.chat_templates CPU_S     a JSON object per line in, and one out
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.models.chat_template import compile_template
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError

MAX_CPU_S = 1.0
#: Wall-clock time: on a busy machine, a second of CPU time takes longer.
MAX_WALL_S = 20.0
MAX_MEMORY_BYTES = 512 * 2**20
MAX_TEXT_CHARS = 4 * 2**20
#: A line contains a text, in which a character may take twelve bytes.
MAX_LINE_BYTES = 12 * MAX_TEXT_CHARS + 1000


class ChatTemplate:
    """Renders the chats of one model as texts, one after the other."""

    def __init__(self, tokenizer: Tokenizer, max_cpu_s: float = MAX_CPU_S) -> None:
        self._task = {"source": tokenizer.chat_template, "bos_token": tokenizer.bos_token or "",
                      "eos_token": tokenizer.eos_token or ""}
        self._max_cpu_s = max_cpu_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the chat as one text. Raise TokenizerError for every error in the template."""
        line = json.dumps({**self._task, "messages": messages}).encode() + b"\n"
        async with self._lock:
            try:
                answer = await asyncio.wait_for(self._ask(line), MAX_WALL_S)
            except asyncio.TimeoutError:
                await self.close()
                raise TokenizerError(f"chat template: it did not finish within {MAX_WALL_S:g} s") from None
            except BaseException:  # the caller was cancelled, and nothing reads the answer
                await self.close()
                raise
        if not answer:
            await self.close()
            raise TokenizerError(f"chat template: it took more than {self._max_cpu_s:g} s of CPU time or "
                                 f"{MAX_MEMORY_BYTES // 2**20} MiB of memory")
        said = json.loads(answer)
        if "error" in said:
            raise TokenizerError(f"chat template: {said['error']}")
        return str(said["text"])

    async def _ask(self, line: bytes) -> bytes:
        """Return the answer; it is empty if the process has ended."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "mini_vllm.server.models.chat_templates", str(self._max_cpu_s),
                limit=MAX_LINE_BYTES, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL)
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line)
            await self._process.stdin.drain()
        return await self._process.stdout.readline()

    async def close(self) -> None:
        """End the process. A later chat starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def main(arguments: Sequence[str]) -> None:
    """Answer one chat per line until there are no more."""
    max_cpu_s = float(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes the pipe at its end
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has these limits
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # SIGPROF ends a process that does not handle it
        try:
            answer = {"text": _render(**json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _render(source: str, **names: Any) -> str:
    pieces, num_chars = [], 0
    for piece in compile_template(source).generate(add_generation_prompt=True, tools=None, documents=None, **names):
        pieces.append(piece)
        num_chars += len(piece)
        if num_chars > MAX_TEXT_CHARS:
            raise ValueError(f"the text has more than {MAX_TEXT_CHARS} characters")
    return "".join(pieces)


if __name__ == "__main__":
    main(sys.argv[1:])
