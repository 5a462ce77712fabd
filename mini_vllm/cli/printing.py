"""The output of ``generate``: texts as they grow, or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol, TextIO

from mini_vllm.request import RequestOutput, TokenLogprob, Usage
from mini_vllm.typewriter import writer_for


class Printer(Protocol):
    """Shows outputs as they arrive."""

    def expect(self, request_id: str) -> None:
        """Register the next request whose outputs will arrive."""

    def show(self, output: RequestOutput) -> None:
        """Show an output, finished or not, of a registered request."""

    def refuse(self, request_id: str, prompt: str, error: str) -> None:
        """Report a prompt that was rejected and has no output."""


class TextPrinter:
    """Streams texts in the order of their prompts: one as it grows, the next when the previous one is done."""

    def __init__(self, stream: TextIO, num_texts: int) -> None:
        self.stream = stream
        self._writer = writer_for(stream)
        self.num_texts = num_texts
        self._order: list[str] = []
        self._latest: dict[str, RequestOutput] = {}
        self._num_shown = 0  # the number of characters of the current text that are printed
        self._at = (0, 0)  # the indices of the current prompt and of its current continuation
        self._begun = False

    def expect(self, request_id: str) -> None:
        self._order.append(request_id)

    def show(self, output: RequestOutput) -> None:
        self._latest[output.request_id] = output
        while self._show_current():
            pass
        self.stream.flush()

    def refuse(self, request_id: str, prompt: str, error: str) -> None:
        pass  # it has no text

    def _show_current(self) -> bool:
        """Show the new part of the current text. Return whether the text ended, so that the next one may be shown."""
        prompt_index, index = self._at
        if prompt_index >= len(self._order) or self._order[prompt_index] not in self._latest:
            return False
        output = self._latest[self._order[prompt_index]]
        if index >= len(output.outputs):
            self._at = (prompt_index + 1, 0)
            return True
        completion = output.outputs[index]
        if not self._begun:
            self._begun = True
            if self.num_texts > 1:
                number = f" #{index + 1}" if len(output.outputs) > 1 else ""
                self.stream.write(f"--- {title(output.prompt or '', 60)}{number}\n")
            self._writer.write(output.prompt or "")
        self._writer.write(completion.text[self._num_shown:])
        self._num_shown = len(completion.text)
        if completion.finish_reason is None:
            return False
        self._writer.end()
        self._at, self._num_shown, self._begun = (prompt_index, index + 1), 0, False
        return True


class JsonPrinter:
    """Prints one JSON object per prompt when the prompt finishes. A rejected prompt finishes at once."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def expect(self, request_id: str) -> None:
        pass

    def show(self, output: RequestOutput) -> None:
        if output.finished:
            texts = [{"index": c.index, "text": c.text, "token_ids": c.token_ids, "finish_reason": c.finish_reason,
                      **_logprobs("logprobs", c.logprobs)} for c in output.outputs]
            self.write(output.request_id, output.prompt, texts, output.usage, output.error,
                       _logprobs("prompt_logprobs", output.prompt_logprobs))

    def refuse(self, request_id: str, prompt: str, error: str) -> None:
        self.write(request_id, prompt, [], Usage(0, 0), error)

    def write(self, request_id: str, prompt: str | None, outputs: Sequence[Mapping[str, object]], usage: Usage,
              error: str | None = None, of_prompt: Mapping[str, object] | None = None) -> None:
        """Write the object of one prompt as a line."""
        self.stream.write(json.dumps({"id": request_id, "prompt": prompt, **(of_prompt or {}), "outputs": outputs,
                                      "usage": usage.to_dict(), "error": error}) + "\n")
        self.stream.flush()


def _logprobs(name: str, entries: Sequence[TokenLogprob | None] | None) -> dict[str, object]:
    """Return the log-probabilities under this name, if requested: one object per token, null for a prompt's first."""
    return {} if entries is None else {name: [entry and asdict(entry) for entry in entries]}


def title(prompt: str, width: int) -> str:
    """Return the beginning of a prompt as one line."""
    line = prompt.strip().replace("\n", " ")
    return line[:width] + ("…" if len(line) > width else "")
