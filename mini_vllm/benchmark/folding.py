"""Sentences folded at words, so that they can be read in a narrow terminal as well."""

from __future__ import annotations

import shutil
import textwrap

NARROWEST, WIDEST = 60, 80


def fold(text: str) -> str:
    """Each line of ``text`` within the terminal's width. Tables of at most 60 columns stay as they are."""
    width = min(max(shutil.get_terminal_size((WIDEST, 24)).columns, NARROWEST), WIDEST)
    return "\n".join(line if len(line) <= width else textwrap.fill(line, width, break_long_words=False,
                                                                   break_on_hyphens=False)
                     for line in text.splitlines())
