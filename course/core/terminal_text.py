"""Lines for a terminal, wrapped between words. In a pipe every line stays whole."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text


def indented(console: Console, text: str, style: str = "", indent: int = 0, each: str = "") -> list[Text]:
    """Return the lines of ``text``, each prefixed with ``each`` and, on a terminal, wrapped to its width."""
    return [Text(" " * indent) + row for line in text.splitlines()
            for row in _rows(console, Text(each + line, style=style), indent)]


def hanging(console: Console, line: Text, indent: int) -> Text:
    """Wrap a line that is too long for the terminal; every row after the first is indented."""
    if not console.is_terminal or cell_len(line.plain) <= console.width:
        return line
    return Text("\n" + " " * indent).join(_rows(console, line, indent))


def _rows(console: Console, line: Text, indent: int) -> list[Text]:
    """Wrap a styled line between words if the terminal needs it."""
    rows = list(line.wrap(console, max(console.width - indent, 20))) if console.is_terminal else [line]
    for row in rows:
        row.rstrip()
    return rows


def short_path(path: str, width: int) -> str:
    """Return ``path``, or only its last two names if it is wider than ``width``."""
    parts = path.split("/")
    return path if cell_len(path) <= width or len(parts) < 3 else "…/" + "/".join(parts[-2:])


def print_wrapped(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    for line in indented(console, text, style, indent):
        console.print(line)


def print_side_by_side(console: Console, parts: Sequence[str], gap: str = "   ", indent: str = "  ") -> None:
    """Print ``parts``, which may contain markup, on one line if the terminal is wide enough.

    Otherwise print one part per line, all but the first indented. Empty parts are left out.
    """
    given = [part for part in parts if part]
    is_too_long = cell_len(Text.from_markup(gap.join(given)).plain) > console.width
    console.print((f"\n{indent}" if console.is_terminal and is_too_long else gap).join(given))


def num_rows(lines: Sequence[Text], width: int) -> int:
    """Return the number of screen rows that ``lines`` take."""
    return sum(max(1, -(-cell_len(row) // width)) for line in lines for row in line.plain.split("\n"))


def shortened(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{text[:max(width - 1, 0)].rstrip()}…"
