"""Streaming an answer without the blank lines that models put around it."""

from __future__ import annotations

import re
from typing import TextIO

from mini_vllm.typewriter import writer_for


class AnswerPrinter:
    """Writes a text as it grows. White space at its end is held back until other text follows it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._writer = writer_for(stream)
        self._num_shown = 0

    def show(self, text: str) -> None:
        """Write the new part of ``text``, which is the whole answer so far."""
        visible = trimmed(text)
        self._writer.write(visible[self._num_shown:])
        self.stream.flush()
        self._num_shown = len(visible)

    def end(self) -> None:
        self._writer.end()
        self.stream.flush()


def trimmed(text: str) -> str:
    """Remove blank lines around ``text``, and a single space before it; deeper indentation is kept."""
    return re.sub(r"\A(\s*\n)?( (?! ))?", "", text.rstrip())
