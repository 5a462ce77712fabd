"""Text that a student may have written, made harmless: cleaned, cut, and escaped for the format it goes into.

Cleaning comes first and is the same for all: no control character is left (terminal sequences go as a whole, with their
parameters), none that turns the direction of writing, and nothing that XML or JSON cannot hold.
"""

from __future__ import annotations

import csv
import html
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence

MAX_CHARACTERS = 2_000
MAX_LINES = 60
#: A name, an id, a reason: whatever stands in a line.
MAX_LINE_CHARACTERS = 300
#: Further than this nobody reads, not even to count lines.
_MAX_READ = 200_000

#: What a terminal takes for commands: CSI, the strings (OSC, DCS, …) up to their end or the line's, and the short ones.
_TERMINAL = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
                       r"|(?:\x1b[PX^_\]]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
                       r"|\x1b[ -/]*[0-~]?")
_LINE_ENDS = re.compile("\r\n|[\r\n\x0b\x0c\x85\u2028\u2029]")
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Where a cell, or what another program's separator makes a cell, would begin as a formula.
_FORMULA = re.compile(r"(^|;)(?=[\s\"']*[=+\-@＝＋－＠])")
#: What is markup wherever it stands, or begins a link; and what is so only at the beginning of a line.
_MARKUP = re.compile(r"([\\`*_\[\]<>|~&$@]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
_LINE_MARKUP = re.compile(r"^([-+=#]|\d+(?=[.)](?:\s|$)))")


def clean(text: str, max_characters: int = MAX_CHARACTERS, max_lines: int = MAX_LINES) -> str:
    """Without what is not text; what is too long is cut, and how much is said."""
    text, num_unread = _stripped(text)
    lines = text.split("\n")
    kept = "\n".join(lines[:max_lines])
    if len(kept) > max_characters or num_unread:
        kept = kept[:max_characters]
        return f"{kept}\n… and {len(text) - len(kept) + num_unread:,} more characters"
    return f"{kept}\n… and {len(lines) - max_lines:,} more lines" if len(lines) > max_lines else text


def one_line(text: str, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """The same for what stands in a line: a name, an id, a reason."""
    text, num_unread = _stripped(text)
    line = " ".join(text.split())
    num_more = max(len(line) - max_characters, 0) + num_unread
    return f"{line[:max_characters]}… and {num_more:,} more characters" if num_more else line


def _stripped(text: str) -> tuple[str, int]:
    """What is text, and how many characters further on were not looked at."""
    head = _LINE_ENDS.sub("\n", _TERMINAL.sub("", text[:_MAX_READ]))
    letters = (letter for letter in head if letter in "\t\n" or unicodedata.category(letter) not in ("Cc", "Cf"))
    return _NOT_XML.sub("\ufffd", "".join(letters)), max(len(text) - _MAX_READ, 0)


def html_text(text: str) -> str:
    return html.escape(text, quote=True)


def markdown_text(text: str) -> str:
    """In a line of Markdown, as it reads: every sign that could begin markup, a link or HTML has a backslash."""
    return _LINE_MARKUP.sub(_escape_first, _MARKUP.sub(r"\\\1", " ".join(text.split())))


def _escape_first(found: re.Match[str]) -> str:
    """``\\-`` for a dash; of a number, the dot after it is what makes a list: ``1\\.``."""
    return f"{found[1]}\\" if found[1].isdigit() else f"\\{found[1]}"


def markdown_code(text: str) -> str:
    """A code span; text that could end it is escaped instead."""
    text = " ".join(text.split())
    return markdown_text(text) if not text or set(text) & set("`|\\") else f"`{text}`"


def markdown_block(text: str) -> str:
    """A fenced block: the fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def csv_text(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return _FORMULA.sub(r"\1'", one_line(text))


def csv_table(rows: Iterable[Sequence[str | float | None]]) -> str:
    """Rows as CSV. Numbers are written as numbers, None as an empty cell."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return written.getvalue()


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return csv_text(value) if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """``12``, not ``12.0``; at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
