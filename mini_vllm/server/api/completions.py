"""POST /v1/completions: continue texts or token ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mini_vllm.models.prompts import Prompt, PromptTokens
from mini_vllm.server.api.answers import TextAnswers
from mini_vllm.server.api.protocol import CompletionRequest
from mini_vllm.server.api.response import EngineResponse
from mini_vllm.server.models.loaded_model import ServedModel

#: For more token ids than this, checking them takes longer than passing them to another thread.
MAX_IDS_IN_LOOP = 2000


class CompletionResponse(EngineResponse):
    PROMPT, ANSWERS = "prompt", TextAnswers
    request: CompletionRequest

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The prompts, one or several. Token ids are integers at this point, so the first entry shows the kind."""
        prompt = self.request.prompt
        return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)

    async def read_prompts(self, served: ServedModel) -> Sequence[PromptTokens]:
        """Read the prompts. Texts and long lists of token ids are read in a thread, to keep the event loop free."""
        prompts = self.prompts
        read_all = partial(_read_all, served, prompts)
        if any(isinstance(prompt, str) for prompt in prompts) or sum(map(len, prompts)) > MAX_IDS_IN_LOOP:
            return await self.readers.run(served.name, read_all, self.holder)
        return read_all()


def _read_all(served: ServedModel, prompts: Sequence[Prompt]) -> list[PromptTokens]:
    return [served.prompts.read(prompt) for prompt in prompts]
