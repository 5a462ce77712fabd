"""A page as Markdown."""

from __future__ import annotations

from course.grading.export.escape import markdown_block, markdown_code, markdown_text
from course.grading.export.page import (
    Block,
    Heading,
    Items,
    Line,
    Look,
    Page,
    Paragraph,
    Picture,
    Piece,
    Table,
    Verbatim,
)


def render(page: Page) -> str:
    blocks = [Heading(1, (page.title,)), *page.blocks]
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, line):
            return f"{'#' * level} {_line(line)}"
        case Paragraph(line, kind):
            return f"> {_line(line)}" if kind == "note" else _line(line)
        case Items(lines):
            return "\n".join(f"- {_line(line)}" for line in lines)
        case Verbatim(text, title):
            return (f"{markdown_text(title)}\n\n" if title else "") + markdown_block(text)
        case Table():
            return _table(block)
        case Picture(_, plain):
            return markdown_block(plain)


def _table(table: Table) -> str:
    marks = ["---:" if column in table.numeric else "---" for column in range(len(table.head))]
    rows = [[markdown_text(cell) for cell in table.head], marks, *([_line(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _line(line: Line) -> str:
    return "".join(_piece(piece) for piece in line)


def _piece(piece: Piece) -> str:
    text = piece if isinstance(piece, str) else piece.text
    before, after = " " if text[:1] == " " else "", " " if text[-1:] == " " else ""
    return f"{before}{_escaped(piece)}{after}"


def _escaped(piece: Piece) -> str:
    if isinstance(piece, str):
        return markdown_text(piece)
    if piece.look is Look.CODE:
        return markdown_code(piece.text)
    return f"**{markdown_text(piece.text)}**" if piece.look is Look.STRONG else markdown_text(piece.text)
