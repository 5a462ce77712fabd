"""The messages that a command prints on standard error, next to its output."""

from __future__ import annotations

import sys

from mini_vllm.terminal import fold


def tell(text: str, style: str = "") -> None:
    """Print ``text`` in this style. At a terminal, wrap it between words, but never break a long path."""
    from rich.console import Console
    console = Console(stderr=True, soft_wrap=True)
    if sys.stderr.isatty():
        text = fold(text, console.width)
    console.print(text, style=style, markup=False, highlight=False)

