"""POST /v1/completions: texts, or token ids, are continued."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mini_vllm.models.prompts import Prompt, PromptTokens
from mini_vllm.server.api.answers import TextAnswers
from mini_vllm.server.api.protocol import CompletionRequest
from mini_vllm.server.api.response import EngineResponse
from mini_vllm.server.models.loaded_model import ServedModel

#: Checking more token ids takes longer than asking another thread to do it.
MAX_IDS_IN_LOOP = 2000


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
        """Texts, and long lists of token ids, in a thread: the loop serves others."""
        prompts = self.prompts
        read_all = partial(_read_all, served, prompts)
        if any(isinstance(prompt, str) for prompt in prompts) or sum(map(len, prompts)) > MAX_IDS_IN_LOOP:
            return await self.readers.run(served.name, read_all)
        return read_all()


def _read_all(served: ServedModel, prompts: Sequence[Prompt]) -> list[PromptTokens]:
    return [served.prompts.read(prompt) for prompt in prompts]
