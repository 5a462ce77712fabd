"""A page as blocks, written once and rendered twice: as Markdown and as HTML.

Everything in a block is treated as text. The two renderers escape it, so the authors of pages need not.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Look(enum.Enum):
    STRONG = "strong"
    CODE = "code"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Span:
    """A piece of a line that looks different."""

    text: str
    look: Look


Piece = str | Span
Line = tuple[Piece, ...]


@dataclass(frozen=True)
class Heading:
    level: int
    line: Line


@dataclass(frozen=True)
class Paragraph:
    line: Line
    #: "", "note" (in a box) or "small" (small print).
    kind: str = ""


@dataclass(frozen=True)
class Items:
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Verbatim:
    """Text as it was written, line by line."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[Line, ...], ...]
    #: Columns of numbers, which are aligned to the right.
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """An SVG image of the course's own in HTML; the same picture in characters in Markdown."""

    svg: str
    plain: str


Block = Heading | Paragraph | Items | Verbatim | Table | Picture


@dataclass
class Page:
    title: str
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> None:
        self.blocks += blocks


def strong(text: str) -> Span:
    return Span(text, Look.STRONG)


def code(text: str) -> Span:
    return Span(text, Look.CODE)


def good(text: str) -> Span:
    return Span(text, Look.GOOD)


def bad(text: str) -> Span:
    return Span(text, Look.BAD)
