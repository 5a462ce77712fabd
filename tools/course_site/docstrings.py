"""Docstrings for Sphinx: as in Markdown, indented text after an empty line is a drawing or code."""

from __future__ import annotations

import inspect
import re

_LIST = re.compile(r"( {1,3})(\d+\.|[-*]) ")


def dedented(doc: str) -> list[str]:
    """Return the lines of a docstring, indented relative to the closing quotes.

    Sphinx uses the smallest indentation of any line, which is wrong if all lines but the first are a drawing.
    """
    first, *others = doc.split("\n")
    if not others or others[-1].strip():  # the closing quotes are on a line with text
        return [*inspect.cleandoc(doc).splitlines(), ""]
    margin = len(others[-1])
    return [first.strip(), *(line[margin:].rstrip() for line in others)]


def with_drawings(lines: list[str]) -> list[str]:
    """Insert ``::`` before every drawing, so that it is shown verbatim."""
    kept: list[str] = []
    in_drawing = False
    for line in _with_lists_at_the_margin(lines):
        is_inside = line.startswith("    ")
        if line.strip() and not is_inside:
            in_drawing = False
        elif line.strip() and not in_drawing and not (kept and kept[-1].strip()):
            kept += ["::", ""]
            in_drawing = True
        kept.append(line)
    return kept


def _with_lists_at_the_margin(lines: list[str]) -> list[str]:
    """Move a list that is indented by a few spaces to the margin: Sphinx would take it for a quotation."""
    moved: list[str] = []
    margin = ""
    for line in lines:
        if not (moved and moved[-1].strip()):
            found = _LIST.match(line)
            margin = found[1] if found else ""
        moved.append(line.removeprefix(margin))
    return moved
