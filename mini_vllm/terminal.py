"""The standard streams of a command: a reader that stops reading, and text folded to the width of a terminal.

If the reader closes the pipe, as in ``mini-vllm generate … | head -1``, the command ends silently. Both commands of the
project start with ``run_command``.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TextIO, cast

#: The exit status that a shell reports for a program whose reader has gone: 128 plus the number of SIGPIPE.
READER_GONE = 141
#: Minimum and maximum width to which sentences are folded if the caller gives none.
NARROWEST, WIDEST = 60, 80


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


def fold(text: str, width: int | None = None) -> str:
    """Fold each line of ``text`` between words, within ``width`` or the terminal's width.

    A long path stays whole; tables of at most 60 columns stay as they are.
    """
    if width is None:
        width = min(max(shutil.get_terminal_size((WIDEST, 24)).columns, NARROWEST), WIDEST)
    return "\n".join(line if len(line) <= width else textwrap.fill(line, width, break_long_words=False,
                                                                   break_on_hyphens=False)
                     for line in text.split("\n"))
