"""The chat template of a model, in its own process that can be killed.

A template is a program that came with the weights. Jinja's sandbox keeps it from reaching into Python, but it may still
loop for hours or write gigabytes; see ``limited_process``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.models.tokenizer import Tokenizer, TokenizerError, compile_template
from mini_vllm.server.access.turns import ANYONE, Holder
from mini_vllm.server.models.limited_process import (
    MAX_CPU_S,
    MAX_TEXT_CHARS,
    LimitedProcess,
    NoAnswerError,
    answer_lines,
)


class ChatTemplate(LimitedProcess):
    """Renders the chats of one model as texts, one after the other."""

    MODULE = "mini_vllm.server.models.chat_templates"

    def __init__(self, tokenizer: Tokenizer, max_cpu_s: float = MAX_CPU_S) -> None:
        super().__init__(max_cpu_s)
        self._task = {"source": tokenizer.chat_template, "bos_token": tokenizer.bos_token or "",
                      "eos_token": tokenizer.eos_token or ""}

    async def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None,
                     holder: Holder = ANYONE) -> str:
        """Return the chat as one text, with the tools that the model may call.

        Raise TokenizerError for every error in the template.
        """
        try:
            said = await self.ask({**self._task, "messages": messages, "tools": tools}, holder)
        except NoAnswerError as error:
            raise TokenizerError(f"chat template: {error}") from None
        return str(said["text"])


def render(source: str, **names: Any) -> dict[str, Any]:
    """Return the text of a chat, as the answer to one question."""
    pieces, num_chars = [], 0
    for piece in compile_template(source).generate(add_generation_prompt=True, documents=None, **names):
        pieces.append(piece)
        num_chars += len(piece)
        if num_chars > MAX_TEXT_CHARS:
            raise ValueError(f"the text has more than {MAX_TEXT_CHARS} characters")
    return {"text": "".join(pieces)}


if __name__ == "__main__":
    answer_lines(float(sys.argv[1]), render)
