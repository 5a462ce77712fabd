"""What a command says beside its output, on standard error."""

from __future__ import annotations

import sys

from mini_vllm.terminal import fold


def tell(text: str, style: str = "") -> None:
    """At a terminal wrapped between words, and a long path not at all, in this style; elsewhere as it stands."""
    from rich.console import Console
    console = Console(stderr=True, soft_wrap=True)
    if sys.stderr.isatty():
        text = fold(text, console.width)
    console.print(text, style=style, markup=False, highlight=False)

