"""Text that a student may have written, made harmless: cleaned, cut, and escaped for its output format.

Cleaning is the first step and the same for all formats. It removes control characters (terminal sequences as a whole,
with their parameters), characters that change the direction of writing, and everything that XML or JSON cannot
represent.
"""

from __future__ import annotations

import csv
import html
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction

from course.core.result import Points, to_cents

MAX_CHARACTERS = 2_000
MAX_LINES = 60
#: The limit for text within a line: a name, an id, a reason.
MAX_LINE_CHARACTERS = 300
#: Text beyond this is not read, not even to count lines.
_MAX_READ = 200_000

#: Terminal commands: CSI, the strings (OSC, DCS, …) up to their end or the line's, and the short ones.
_TERMINAL = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
                       r"|(?:\x1b[PX^_\]]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
                       r"|\x1b[ -/]*[0-~]?")
_LINE_ENDS = re.compile("\r\n|[\r\n\x0b\x0c\x85\u2028\u2029]")
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: The places where a spreadsheet may see the start of a formula: the beginning of a cell, and after a semicolon,
#: because some programs separate cells by semicolons.
_FORMULA = re.compile(r"(^|;)(?=[\s\"']*[=+\-@＝＋－＠])")
#: Characters that are markup anywhere, or begin a link; and those that are markup only at the beginning of a line.
_MARKUP = re.compile(r"([\\`*_\[\]<>|~&$@]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
_LINE_MARKUP = re.compile(r"^([-+=#]|\d+(?=[.)](?:\s|$)))")


def clean(text: str, max_characters: int = MAX_CHARACTERS, max_lines: int = MAX_LINES) -> str:
    """Remove what is not text. Cut what is too long, and say how much was cut."""
    text, num_unread = _stripped(text)
    lines = text.split("\n")
    kept = "\n".join(lines[:max_lines])
    if len(kept) > max_characters or num_unread:
        kept = kept[:max_characters]
        return f"{kept}\n… and {len(text) - len(kept) + num_unread:,} more characters"
    return f"{kept}\n… and {len(lines) - max_lines:,} more lines" if len(lines) > max_lines else text


def one_line(text: str, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """Clean text that belongs in one line: a name, an id, a reason."""
    text, num_unread = _stripped(text)
    line = " ".join(text.split())
    num_more = max(len(line) - max_characters, 0) + num_unread
    return f"{line[:max_characters]}… and {num_more:,} more characters" if num_more else line


def _stripped(text: str) -> tuple[str, int]:
    """Return the text without control characters, and how many characters beyond the limit were not read."""
    head = _LINE_ENDS.sub("\n", _TERMINAL.sub("", text[:_MAX_READ]))
    letters = (letter for letter in head if letter in "\t\n" or unicodedata.category(letter) not in ("Cc", "Cf"))
    return _NOT_XML.sub("\ufffd", "".join(letters)), max(len(text) - _MAX_READ, 0)


def html_text(text: str) -> str:
    return html.escape(text, quote=True)


def markdown_text(text: str) -> str:
    """Escape text for a line of Markdown. Every character that could begin markup, a link or HTML gets a backslash."""
    return _LINE_MARKUP.sub(_escape_first, _MARKUP.sub(r"\\\1", " ".join(text.split())))


def _escape_first(found: re.Match[str]) -> str:
    """Escape a dash as ``\\-``. After a number, escape the dot, which would make a list: ``1\\.``."""
    return f"{found[1]}\\" if found[1].isdigit() else f"\\{found[1]}"


def markdown_code(text: str) -> str:
    """Return a code span. Text that could end the span is escaped as ordinary text instead."""
    text = " ".join(text.split())
    return markdown_text(text) if not text or set(text) & set("`|\\") else f"`{text}`"


def markdown_block(text: str) -> str:
    """Return a fenced block. The fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def csv_text(text: str) -> str:
    """Return a cell that no spreadsheet interprets as a formula."""
    return _FORMULA.sub(r"\1'", one_line(text, MAX_CHARACTERS))


def csv_table(rows: Iterable[Sequence[str | Points | None]]) -> str:
    """Return rows as CSV. Numbers are written as numbers, None as an empty cell."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return written.getvalue()


def _cell(value: str | Points | None) -> str:
    if value is None:
        return ""
    return csv_text(value) if isinstance(value, str) else number(value)


def number(value: Points) -> str:
    """Format a number with at most two decimals, and without trailing zeros: ``12``, not ``12.0``."""
    return f"{float(to_cents(value)) if isinstance(value, Fraction) else value:.2f}".rstrip("0").rstrip(".")
