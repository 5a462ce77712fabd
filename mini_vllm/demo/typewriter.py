"""A text that grows, on a screen that has an edge: lines are broken between words."""

from __future__ import annotations

import re

from rich.console import Console
from rich.text import Text


class Typewriter:
    """Writes what is new of a text. A word waits until it is whole, so that it goes to the next line as a whole."""

    def __init__(self, console: Console, style: str = "", indent: int = 0) -> None:
        self._console, self._style, self._indent = console, style, indent
        self._column = 0
        #: What is not written yet: the space after the last word, and the word that grows.
        self._space = self._word = ""

    def write(self, text: str) -> None:
        *parts, self._word = re.split(r"(\s+)", self._word + text)
        for part in parts:
            self._put(part)

    def end(self) -> None:
        """The last word, and a new line."""
        self._put(self._word)
        self._console.print()
        self._space = self._word = ""
        self._column = 0

    def _put(self, part: str) -> None:
        """A word, or the space between two: that is left out where a line ends."""
        if part.isspace():
            self._space = part
        elif part:
            if self._column + len(self._space) + len(part) > self._console.width:
                self._space = "\n"
            self._print(self._space + part if self._column else " " * self._indent + part)
            self._space = ""

    def _print(self, text: str) -> None:
        text = text.replace("\n", "\n" + " " * self._indent)
        self._console.print(Text(text, style=self._style), end="", soft_wrap=True)
        line = text.rpartition("\n")[2]
        self._column = len(line) if "\n" in text else self._column + len(line)
