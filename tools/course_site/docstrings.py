"""Docstrings for Sphinx: what stands indented after an empty line is a drawing or code, as it is in Markdown."""

from __future__ import annotations

import inspect
import re

_LIST = re.compile(r"( {1,3})(\d+\.|[-*]) ")


def dedented(doc: str) -> list[str]:
    """The lines of a docstring, each as far in as it stands to the closing quotes.

    Sphinx takes the line that is least far in, which is wrong if all but the first are a drawing.
    """
    first, *others = doc.split("\n")
    if not others or others[-1].strip():  # the quotes close on a line with text
        return [*inspect.cleandoc(doc).splitlines(), ""]
    margin = len(others[-1])
    return [first.strip(), *(line[margin:].rstrip() for line in others)]


def with_drawings(lines: list[str]) -> list[str]:
    """The lines with ``::`` before every drawing, so that it is shown as it stands."""
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
    """A list that stands a space or two in, which Sphinx would take for a quotation, is moved to the margin."""
    moved: list[str] = []
    margin = ""
    for line in lines:
        if not (moved and moved[-1].strip()):
            found = _LIST.match(line)
            margin = found[1] if found else ""
        moved.append(line.removeprefix(margin))
    return moved
