"""What a command says on standard error, besides its output, its exit status, and its streams.

The line after an answer has the time to the first token, the cached tokens, the speed of the rest, and why it ended:

    one text       first token 0.4 s (79 of 105 tokens cached), then 17 tokens/s
    several texts  3 prompts, 212 tokens (96 cached); first tokens after 0.1 to 0.4 s; 120 tokens in 1.3 s, 92 tokens/s
                   in total

If the reader closes the pipe, as in ``mini-vllm generate … | head -1``, the command ends silently. Both commands of the
project start with ``run_command``.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from mini_vllm.request import CompletionOutput, RequestOutput

#: Some prompts were rejected or failed; the others were served.
FAILED = 1
#: Nothing was done, because an argument is invalid or a file is missing.
BAD_ARGUMENTS = 2
#: Ctrl-C: the number that shells use.
INTERRUPTED = 130
#: The exit status that a shell reports for a program whose reader has gone: 128 plus the number of SIGPIPE.
READER_GONE = 141


def tell(text: str, dim: bool = False) -> None:
    """Print ``text``. At a terminal, wrap it between words, but never break a long path."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(line if len(line) <= width else textwrap.fill(line, width, break_long_words=False,
                                                                       break_on_hyphens=False)
                         for line in text.split("\n"))
        if dim and os.environ.get("TERM") != "dumb":
            text = f"\x1b[2m{text}\x1b[0m"
    print(text, file=sys.stderr, flush=True)


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Show ``Loading smollm2 …`` until the block ends, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"Loading {short_name(model)} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def short_name(model: str) -> str:
    """Return a model's name; for a folder or file, the last part of its path."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def print_usage(outputs: Sequence[RequestOutput], elapsed_s: float, max_tokens: int | None) -> None:
    """Print the line after an answer, dim at a terminal. Print nothing if every prompt was rejected."""
    if outputs:
        tell(usage_line(outputs, elapsed_s, max_tokens), dim=True)


def usage_line(outputs: Sequence[RequestOutput], elapsed_s: float, max_tokens: int | None) -> str:
    """Return the line for one or more outputs.

    ``elapsed_s`` is the time that they took together, and ``max_tokens`` the limit for each text.
    """
    is_one_text = sum(len(output.outputs) for output in outputs) == 1
    parts = [_one_text(outputs[0])] if is_one_text else _several_texts(outputs, elapsed_s)
    return "; ".join([*parts, *_endings(outputs, max_tokens)])


def _one_text(output: RequestOutput) -> str:
    usage, waited_s, rest_s = output.usage, _first_token_s(output), output.timings.rest_s
    if waited_s is None:
        return "no token was generated"
    line = f"first token {in_seconds(waited_s)} s ({output.num_cached_tokens} of {usage.prompt_tokens} tokens cached)"
    return f"{line}, then {_rate(usage.completion_tokens - 1, rest_s)} tokens/s" if rest_s else line


def _several_texts(outputs: Sequence[RequestOutput], elapsed_s: float) -> list[str]:
    num_prompt_tokens = sum(output.usage.prompt_tokens for output in outputs)
    num_cached = sum(output.num_cached_tokens for output in outputs)
    num_tokens = sum(output.usage.completion_tokens for output in outputs)
    num_texts = sum(len(output.outputs) for output in outputs)
    parts = [f"{_counted(len(outputs), 'prompt')}, {num_prompt_tokens} tokens ({num_cached} cached)"]
    if num_texts > len(outputs):
        parts[0] += f", {num_texts} continuations"
    waits_s = [wait_s for output in outputs if (wait_s := _first_token_s(output)) is not None]
    if waits_s:
        # If the shortest and the longest time are the same after rounding, it is printed once.
        ends = dict.fromkeys((in_seconds(min(waits_s)), in_seconds(max(waits_s))))
        parts.append(f"first token{'s' * (len(waits_s) > 1)} after {' to '.join(ends)} s")
    rate = _rate(num_tokens, elapsed_s)
    return [*parts, f"{_counted(num_tokens, 'token')} in {in_seconds(elapsed_s)} s, {rate} tokens/s in total"]


def _first_token_s(output: RequestOutput) -> float | None:
    """Return the time to the first token, from when the engine accepted the request; None if there was no token."""
    timings = output.timings
    return None if timings.first_token_s is None else (timings.queue_s or 0.0) + timings.first_token_s


def _endings(outputs: Sequence[RequestOutput], max_tokens: int | None) -> list[str]:
    """Say why texts ended, if the model did not end them itself; with a count if there are several texts."""
    endings = [_ending(output, text, max_tokens) for output in outputs for text in output.outputs]
    counted = Counter(ending for ending in endings if ending is not None)
    return [ending if len(endings) == 1 else f"{count} of {len(endings)} {ending}" for ending, count in counted.items()]


def _ending(output: RequestOutput, text: CompletionOutput, max_tokens: int | None) -> str | None:
    num_tokens = len(text.token_ids)
    if text.finish_reason == "length":
        if num_tokens == max_tokens:
            return f"stopped at {_counted(num_tokens, 'token')} (raise it with --max-tokens)"
        return f"stopped: the context of {output.usage.prompt_tokens + num_tokens} tokens is full"
    return {"abort": "stopped", "error": "failed",
            "kv_cache_full": f"stopped at {_counted(num_tokens, 'token')}: the KV cache is full (see --kv-memory)",
            }.get(text.finish_reason or "")


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def in_seconds(seconds: float) -> str:
    """Format seconds with as many digits as matter: 0.04, 0.4, 1.3, 12."""
    if seconds < 0.095:
        return f"{seconds:.1g}"
    return f"{seconds:.1f}" if seconds < 9.95 else f"{seconds:.0f}"


def _rate(num_tokens: int, seconds: float) -> str:
    rate = num_tokens / max(seconds, 1e-9)
    return f"{rate:.1f}" if rate < 9.95 else f"{rate:.0f}"


# ---- standard streams


class ReaderGone(SystemExit):
    """The reader has closed the stream. Not an Exception, so that no ``except OSError`` on the way can catch it."""

    def __init__(self) -> None:
        super().__init__(READER_GONE)


class GuardedStream:
    """A stream that raises ReaderGone where it would raise BrokenPipeError. Otherwise it is the stream it guards."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._guarded(self._stream.write, text))

    def flush(self) -> None:
        self._guarded(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _guarded(self, call: Callable[..., Any], *arguments: str) -> Any:
        try:
            return call(*arguments)
        except BrokenPipeError:
            # Discard everything written from now on, by cleanup code and by Python, which flushes on exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            raise ReaderGone() from None


def run_command(command: Callable[[], int]) -> int:
    """Run ``command`` and return its result, or READER_GONE. Meanwhile the standard streams are guarded."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = guarded = _guard(sys.stdout), _guard(sys.stderr)
    try:
        try:
            return command()
        finally:  # also before SystemExit: argparse ends the process after it has printed its help
            for stream in guarded:
                stream.flush()
    except ReaderGone:
        return READER_GONE
    finally:
        sys.stdout, sys.stderr = before


def _guard(stream: TextIO | None) -> TextIO:
    """Guard a stream, or a substitute if the shell has closed it (``>&-``). Characters it lacks become ``?``."""
    if stream is None:
        stream = open(os.devnull, "w")
    elif hasattr(stream, "reconfigure"):  # not so for a stream of a notebook
        stream.reconfigure(errors="replace")
    return cast(TextIO, GuardedStream(stream))
