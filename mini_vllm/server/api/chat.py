"""POST /v1/chat/completions: answer a conversation, through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mini_vllm.models.prompts import PromptReader, PromptTokens
from mini_vllm.request import SamplingParams
from mini_vllm.server.api.answers import Answers, ChatAnswers
from mini_vllm.server.api.protocol import ChatRequest
from mini_vllm.server.api.response import EngineResponse
from mini_vllm.server.api.tools.answers import ToolAnswers
from mini_vllm.server.api.tools.tool_use import template_message, tool_use
from mini_vllm.server.errors import ApiError
from mini_vllm.server.models.loaded_model import ServedModel

#: Roles that OpenAI renamed for some of its models → the old names, which templates know.
ROLES = {"developer": "system"}


class ChatResponse(EngineResponse):
    PROMPT, ANSWERS = "messages", ChatAnswers
    request: ChatRequest
    num_prompts = 1

    def __init__(self, body: ChatRequest, *others: Any) -> None:
        self.tools = tool_use(body)
        super().__init__(body, *others)

    @property
    def structure_field(self) -> str:
        if self.tools is not None and self.tools.must_call:
            return "tools"
        return "structured_outputs" if self.request.structured_outputs is not None else "response_format"

    def make_answers(self, include_usage: bool) -> Answers:
        if self.tools is None:
            return super().make_answers(include_usage)
        return ToolAnswers(self.request.model, self.request.n or 1, self.tools.names, self.tools.must_call,
                           include_usage=include_usage)

    def sampling_params(self, served: ServedModel, answers: Answers) -> SamplingParams:
        params = super().sampling_params(served, answers)
        if self.tools is None or served.chat_template is None:
            return params
        assert isinstance(answers, ToolAnswers)
        answers.form = self.tools.format_for(served)
        return self.tools.constrain(params, answers.form, served)

    async def read_prompts(self, served: ServedModel) -> Sequence[PromptTokens]:
        """Read the chat. Raise ApiError if the model has no template, and ValueError if the template rejects it."""
        if served.chat_template is None:
            raise ApiError(400, f"the model {served.name!r} has no chat template: it continues texts, at "
                           "/v1/completions", param="model", code="no_chat_template")
        messages = [template_message(message, ROLES) for message in self.request.messages]
        text = await served.chat_template.render(messages, None if self.tools is None else self.tools.definitions,
                                                 self.holder)
        return [await self.readers.run(served.name, partial(read_chat, served.prompts, text), self.holder)]


def read_chat(prompts: PromptReader, text: str) -> PromptTokens:
    """Return the tokens of a chat. The template writes the special tokens, so none are added.

    A chat that is certainly too long is rejected before it is tokenized.
    """
    if prompts.tokenizer.min_num_tokens(text) >= prompts.max_model_len:
        return prompts.read(text)  # which raises the error
    return PromptTokens(text, prompts.read(prompts.tokenizer.encode(text, add_special_tokens=False)).token_ids)
