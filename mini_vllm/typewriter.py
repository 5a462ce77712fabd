"""Printing a growing text on a screen of limited width: lines are broken between words."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Protocol, TextIO


class Writer(Protocol):
    """Takes a text piece by piece."""

    def write(self, text: str) -> None: ...

    def end(self) -> None:
        """Write what was held back, and a new line."""


class Typewriter:
    """Writes what is new of a text.

    A word is held back until it is complete, so that it can move to the next line as a whole.
    """

    def __init__(self, put: Callable[[str], object], width: int, indent: int = 0) -> None:
        self._put, self._width, self._indent = put, width, indent
        self._column = 0
        #: What is not written yet: the space after the last word, and the unfinished word.
        self._space = self._word = ""

    def write(self, text: str) -> None:
        *parts, self._word = re.split(r"(\s+)", self._word + text)
        for part in parts:
            self._take(part)

    def end(self) -> None:
        self._take(self._word)
        self._put("\n")
        self._space = self._word = ""
        self._column = 0

    def _take(self, part: str) -> None:
        """Take a word, or the space between two words. A space is dropped where a line ends."""
        if part.isspace():
            self._space = part
        elif part:
            if self._column and self._column + len(self._space) + len(part) > self._width and "\n" not in self._space:
                self._space = "\n"
            self._print(self._space + part if self._column else " " * self._indent + self._space + part)
            self._space = ""

    def _print(self, text: str) -> None:
        text = text.replace("\n", "\n" + " " * self._indent)
        self._put(text)
        line = text.rpartition("\n")[2]
        self._column = len(line) if "\n" in text else self._column + len(line)


class Plain:
    """Writes a text unchanged, for a pipe or a file."""

    def __init__(self, put: Callable[[str], object]) -> None:
        self._put = put

    def write(self, text: str) -> None:
        self._put(text)

    def end(self) -> None:
        self._put("\n")


def writer_for(stream: TextIO) -> Writer:
    """Return a writer for ``stream``: on a terminal it breaks lines between words; elsewhere it changes nothing."""
    if not stream.isatty():
        return Plain(stream.write)
    return Typewriter(stream.write, shutil.get_terminal_size().columns)
