"""POST /v1/completions: texts, or token ids, are continued."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mini_vllm.async_engine import MAX_CHARS_IN_LOOP
from mini_vllm.models.prompts import Prompt, PromptTokens
from mini_vllm.server.answers import TextAnswers
from mini_vllm.server.protocol import CompletionRequest
from mini_vllm.server.respond import EngineResponse
from mini_vllm.server.served import ServedModel


class CompletionResponse(EngineResponse):
    PROMPT, ANSWERS = "prompt", TextAnswers
    request: CompletionRequest

    @property
    def prompts(self) -> Sequence[Prompt]:
        """One prompt, or several. Token ids are whole numbers here, so looking at the first entry is enough."""
        prompt = self.request.prompt
        return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)

    async def read_prompts(self, served: ServedModel) -> Sequence[PromptTokens]:
        """In a thread, if it takes long: the loop serves others, too."""
        prompts = self.prompts
        if sum(map(_num_chars, prompts)) > MAX_CHARS_IN_LOOP:
            return await asyncio.to_thread(_read_all, served, prompts)
        return _read_all(served, prompts)


def _num_chars(prompt: Prompt) -> int:
    return len(prompt)


def _read_all(served: ServedModel, prompts: Sequence[Prompt]) -> list[PromptTokens]:
    return [served.prompts.read(prompt) for prompt in prompts]
