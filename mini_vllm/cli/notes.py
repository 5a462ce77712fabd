"""What a command says beside its output, on standard error."""

from __future__ import annotations

import sys
import textwrap


def tell(text: str, style: str = "") -> None:
    """At a terminal wrapped between words, and a long path not at all, in this style; elsewhere as it stands."""
    from rich.console import Console
    console = Console(stderr=True, soft_wrap=True)
    if sys.stderr.isatty():
        text = "\n".join(_wrapped(line, console.width) for line in text.split("\n"))
    console.print(text, style=style, markup=False, highlight=False)


def _wrapped(line: str, num_columns: int) -> str:
    if len(line) <= num_columns:
        return line
    return textwrap.fill(line, num_columns, break_long_words=False, break_on_hyphens=False)
