"""POST /v1/chat/completions: answer a conversation, through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mini_vllm.models.prompts import PromptReader, PromptTokens
from mini_vllm.server.api.answers import ChatAnswers
from mini_vllm.server.api.protocol import ChatRequest
from mini_vllm.server.api.response import EngineResponse
from mini_vllm.server.errors import ApiError
from mini_vllm.server.models.loaded_model import ServedModel

#: Roles that OpenAI renamed for some of its models → the old names, which templates know.
ROLES = {"developer": "system"}


class ChatResponse(EngineResponse):
    PROMPT, ANSWERS = "messages", ChatAnswers
    request: ChatRequest
    num_prompts = 1

    async def read_prompts(self, served: ServedModel) -> Sequence[PromptTokens]:
        """Read the chat. Raise ApiError if the model has no template, and ValueError if the template rejects it."""
        if served.chat_template is None:
            raise ApiError(400, f"the model {served.name!r} has no chat template: it continues texts, at "
                           "/v1/completions", param="model", code="no_chat_template")
        messages = [{"role": ROLES.get(message.role, message.role), "content": message.text}
                    for message in self.request.messages]
        text = await served.chat_template.render(messages)
        return [await self.readers.run(served.name, partial(read_chat, served.prompts, text))]


def read_chat(prompts: PromptReader, text: str) -> PromptTokens:
    """Return the tokens of a chat. The template writes the special tokens, so none are added.

    A chat that is certainly too long is rejected before it is tokenized.
    """
    if prompts.tokenizer.min_num_tokens(text) >= prompts.max_model_len:
        return prompts.read(text)  # which raises the error
    return PromptTokens(text, prompts.read(prompts.tokenizer.encode(text, add_special_tokens=False)).token_ids)
