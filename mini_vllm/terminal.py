"""The standard streams of a command: terminals that lack characters, and readers that stop reading.

A terminal that knows only ASCII gets substitutes for marks and lines, such as ``ok`` for a tick. If the reader closes
the pipe, as in ``mini-vllm generate … | head -1``, the command ends silently. Both commands of the project start with
``run_command``.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable
from typing import Any, TextIO, cast

#: The exit status that a shell reports for a program whose reader has gone: 128 plus the number of SIGPIPE.
READER_GONE = 141
#: The name under which ``stand_in`` is registered as an error handler.
ERRORS = "mini_vllm.stand_in"
STAND_INS = {
    "✓": "ok", "✗": "x", "✕": "x", "×": "x", "…": "...", "–": "-", "—": "-", "−": "-", "·": ".", "•": "*", "●": "*",
    "→": "->", "▶": ">", "◀": "<", "▲": "^", "▼": "v", "⇄": "<->", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"',
    "█": "#", "▇": "#", "▆": "#", "▀": "#", "▌": "#", "▪": "#", "▨": "%", "▒": "%", "░": ".", "▫": ".", "␣": "_",
    "│": "|", "┃": "|", "┆": "|", "┊": "|", "╲": "\\", "Σ": "sum", "±": "+-", "∅": "{}", "≤": "<=", "≥": ">=",
}
#: Minimum and maximum width to which sentences are folded if the caller gives none.
NARROWEST, WIDEST = 60, 80
#: Superscripts: 10⁶ becomes 10^6, not 106.
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-"))


class ReaderGone(SystemExit):
    """The reader has closed the stream. Not an Exception, so that no ``except OSError`` on the way can catch it."""

    def __init__(self) -> None:
        super().__init__(READER_GONE)


class GuardedStream:
    """A stream that raises ReaderGone where it would raise BrokenPipeError.

    Otherwise it behaves like the stream it guards.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            raise self._gone() from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _gone(self) -> ReaderGone:
        """Discard everything written from now on, by cleanup code and by Python, which flushes on exit.

        Return the error.
        """
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        return ReaderGone()


def run_command(command: Callable[[], int]) -> int:
    """Run ``command`` and return its result, or READER_GONE.

    Meanwhile the standard streams are guarded and accept any character.
    """
    before = sys.stdout, sys.stderr
    for stream in (sys.stdin, *before):
        _take_any_character(stream)
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
    """Guard a stream, or return a substitute if the shell has closed it (``>&-``)."""
    return cast(TextIO, GuardedStream(stream or open(os.devnull, "w")))


def _take_any_character(stream: TextIO) -> None:
    """Make ``stream`` accept any character.

    Characters that its encoding lacks are substituted on output. ASCII input is read as UTF-8.
    """
    if not hasattr(stream, "reconfigure"):  # not a file: a test's stream, or a notebook's
        return
    if stream is not sys.stdin:
        stream.reconfigure(errors=ERRORS)
    elif codecs.lookup(stream.encoding).name == "ascii":
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return an ASCII substitute for a character that cannot be encoded: ``é`` becomes ``e``.

    This is an error handler for encoders.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":  # a byte that Python could not decode, from an argument or a file name
        return bytes([ord(character) - 0xDC00]), error.start + 1
    if character in SUPERSCRIPTS:
        follows_another = error.object[error.start - 1:error.start] in tuple(SUPERSCRIPTS)
        return ("" if follows_another else "^") + SUPERSCRIPTS[character], error.start + 1
    return _in_ascii(character), error.start + 1


def _in_ascii(character: str) -> str:
    if character in STAND_INS:
        return STAND_INS[character]
    if "─" <= character <= "╿":  # box-drawing lines; the vertical ones are above
        return "-" if character in "─━┄┅┈┉╌╍═╴╶╸╺" else "+"
    if "⠀" <= character <= "⣿":  # braille, used by progress spinners
        return "*"
    decomposed = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return decomposed or "?"


codecs.register_error(ERRORS, stand_in)


def fold(text: str, width: int | None = None) -> str:
    """Fold each line of ``text`` between words, within ``width`` or the terminal's width.

    A long path stays whole; tables of at most 60 columns stay as they are.
    """
    if width is None:
        width = min(max(shutil.get_terminal_size((WIDEST, 24)).columns, NARROWEST), WIDEST)
    return "\n".join(line if len(line) <= width else textwrap.fill(line, width, break_long_words=False,
                                                                   break_on_hyphens=False)
                     for line in text.split("\n"))
