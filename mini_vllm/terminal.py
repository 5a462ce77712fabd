"""The standard streams of a command: whatever the terminal can show, and whoever stops reading.

A terminal that knows only ASCII gets stand-ins for marks and lines, ``ok`` for a tick. A reader that goes, as in
``mini-vllm generate … | head -1``, ends the command without a word. Both commands of the project begin with
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

#: What a shell calls the end of a program whose reader has gone: 128 and the number of SIGPIPE.
READER_GONE = 141
#: The name by which the encoders know ``stand_in``.
ERRORS = "mini_vllm.stand_in"
STAND_INS = {
    "✓": "ok", "✗": "x", "✕": "x", "×": "x", "…": "...", "–": "-", "—": "-", "−": "-", "·": ".", "•": "*", "●": "*",
    "→": "->", "▶": ">", "◀": "<", "▲": "^", "▼": "v", "⇄": "<->", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"',
    "█": "#", "▇": "#", "▆": "#", "▀": "#", "▌": "#", "▪": "#", "▨": "%", "▒": "%", "░": ".", "▫": ".", "␣": "_",
    "│": "|", "┃": "|", "┆": "|", "┊": "|", "╲": "\\", "Σ": "sum", "±": "+-", "∅": "{}", "≤": "<=", "≥": ">=",
}
#: Sentences are folded to at least and at most so many columns, where nobody says how many.
NARROWEST, WIDEST = 60, 80
#: 10⁶ is 10^6, not 106.
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-"))


class ReaderGone(SystemExit):
    """Nobody reads any more. Not an Exception: no ``except OSError`` on the way may take it for an error of its own."""

    def __init__(self) -> None:
        super().__init__(READER_GONE)


class GuardedStream:
    """A stream that raises ReaderGone where it would raise BrokenPipeError. In all else it is the stream it guards."""

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
        """What is written after this goes nowhere: by those who tidy up, and by Python, which flushes at its end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        return ReaderGone()


def run_command(command: Callable[[], int]) -> int:
    """What ``command`` returns, or READER_GONE; meanwhile the standard streams are guarded, and take any character."""
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
    """Where a shell has closed the stream, ``>&-``, there is none."""
    return cast(TextIO, GuardedStream(stream or open(os.devnull, "w")))


def _take_any_character(stream: TextIO) -> None:
    """Output that an encoding lacks gets stand-ins. Input in ASCII is read as UTF-8, which ASCII is a part of."""
    if not hasattr(stream, "reconfigure"):  # not a file: a test's, or a notebook's
        return
    if stream is not sys.stdin:
        stream.reconfigure(errors=ERRORS)
    elif codecs.lookup(stream.encoding).name == "ascii":
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler for encoders: ASCII for a character that cannot be encoded; ``é`` is ``e``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":  # a byte that Python could not decode, from an argument or a file's name
        return bytes([ord(character) - 0xDC00]), error.start + 1
    if character in SUPERSCRIPTS:
        follows_another = error.object[error.start - 1:error.start] in tuple(SUPERSCRIPTS)
        return ("" if follows_another else "^") + SUPERSCRIPTS[character], error.start + 1
    return _in_ascii(character), error.start + 1


def _in_ascii(character: str) -> str:
    if character in STAND_INS:
        return STAND_INS[character]
    if "─" <= character <= "╿":  # lines of boxes, of which the vertical ones stand above
        return "-" if character in "─━┄┅┈┉╌╍═╴╶╸╺" else "+"
    if "⠀" <= character <= "⣿":  # braille, of which progress spinners are made
        return "*"
    decomposed = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return decomposed or "?"


codecs.register_error(ERRORS, stand_in)


def fold(text: str, width: int | None = None) -> str:
    """Each line of ``text`` folded between words: within ``width``, or within the terminal's. A long path stays whole;
    tables of at most 60 columns stay as they are."""
    if width is None:
        width = min(max(shutil.get_terminal_size((WIDEST, 24)).columns, NARROWEST), WIDEST)
    return "\n".join(line if len(line) <= width else textwrap.fill(line, width, break_long_words=False,
                                                                   break_on_hyphens=False)
                     for line in text.split("\n"))
