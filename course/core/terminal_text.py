"""Lines for a terminal, which are broken between words; what goes into a pipe is left in one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text


def indented(console: Console, text: str, style: str = "", indent: int = 0, each: str = "") -> list[Text]:
    """The lines of ``text``, each after ``each``; on a terminal, as many as its width needs."""
    return [Text(" " * indent) + row for line in text.splitlines()
            for row in _rows(console, Text(each + line, style=style), indent)]


def hanging(console: Console, line: Text, indent: int) -> Text:
    """A line that is too long for a terminal, folded: what follows its first row is indented."""
    if not console.is_terminal or cell_len(line.plain) <= console.width:
        return line
    return Text("\n" + " " * indent).join(_rows(console, line, indent))


def _rows(console: Console, line: Text, indent: int) -> list[Text]:
    """A line with its styles, folded between words where a terminal needs it. (``mini_vllm.terminal.fold`` is for text
    without any.)"""
    rows = list(line.wrap(console, max(console.width - indent, 20))) if console.is_terminal else [line]
    for row in rows:
        row.rstrip()
    return rows


def short_path(path: str, width: int) -> str:
    """A path, or its end if it is wider than that: two names of it, which say enough."""
    parts = path.split("/")
    return path if cell_len(path) <= width or len(parts) < 3 else "…/" + "/".join(parts[-2:])


def print_wrapped(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    for line in indented(console, text, style, indent):
        console.print(line)


def print_side_by_side(console: Console, parts: Sequence[str], gap: str = "   ", indent: str = "  ") -> None:
    """``parts``, with markup, in one line if the terminal is wide enough; else in a line each, indented from the second
    on. An empty one is left out."""
    given = [part for part in parts if part]
    is_too_long = cell_len(Text.from_markup(gap.join(given)).plain) > console.width
    console.print((f"\n{indent}" if console.is_terminal and is_too_long else gap).join(given))


def num_rows(lines: Sequence[Text], width: int) -> int:
    """How many rows of a screen they take."""
    return sum(max(1, -(-cell_len(row) // width)) for line in lines for row in line.plain.split("\n"))


def shortened(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{text[:max(width - 1, 0)].rstrip()}…"
