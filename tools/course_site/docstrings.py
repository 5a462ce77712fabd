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
    """Insert ``::`` before every drawing, and move lists to the margin, where Sphinx takes them for lists."""
    kept: list[str] = []
    in_drawing, margin = False, ""
    for line in lines:
        follows_text = bool(kept and kept[-1].strip())
        if not follows_text:
            found = _LIST.match(line)
            margin = found[1] if found else ""
        line = line.removeprefix(margin)
        is_inside = line.startswith("    ")
        if line.strip() and not is_inside:
            in_drawing = False
        elif line.strip() and not in_drawing and not follows_text:
            kept += ["::", ""]
            in_drawing = True
        kept.append(line)
    return kept
