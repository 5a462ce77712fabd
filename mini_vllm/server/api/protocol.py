"""The fields of a request. The schema at /openapi.json is made from these classes.

Types are strict: ``"max_tokens": "5"`` is rejected. So is an unknown field, as on OpenAI's own server: otherwise a
misspelt field would silently do nothing. A field of OpenAI's that this server does not support may be present if it is
null, or if its value does not request the unsupported feature (see ``UNSERVED``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from mini_vllm.server.api.field_checks import (
    MAX_MESSAGES,
    AllowedTokenIds,
    BadWords,
    BoundedModel,
    Content,
    LogitBias,
    Messages,
    Metadata,
    PriorityName,
    Prompt,
    Stop,
    StopTokenIds,
    Text,
)
from mini_vllm.server.api.tools.fields import ResponseFormat, StructuredOutputs, ToolCalls, ToolChoice, Tools

#: Unsupported fields → their allowed values besides null.
UNSERVED: dict[str, list[Any]] = {
    "echo": [False], "suffix": [], "best_of": [1], "functions": [[]], "function_call": ["none", "auto"],
    "modalities": [["text"]], "audio": [], "prediction": [], "web_search_options": [],
    "store": [False], "reasoning_effort": ["none"], "verbosity": ["medium"], "service_tier": ["auto", "default"],
    "prompt_cache_retention": ["in_memory", "in-memory"],
    # Routers for vLLM and SGLang add these.
    "no_stop_trim": [False], "return_hidden_states": [False], "continue_final_message": [False],
    "separate_reasoning": [False, True], "stream_reasoning": [False, True], "include_reasoning": [False, True],
}
#: OpenAI's labels for a request. They are accepted and have no effect; with ``--strict-fields`` they are rejected.
NO_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")


def _unserved(name: str) -> Any:
    return Field(None, json_schema_extra={"enum": [None, *UNSERVED[name]]})


class StreamOptions(BoundedModel):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class GenerationRequest(BoundedModel):
    """The fields of both kinds of requests."""

    model: str
    n: int | None = Field(None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: LogitBias | None = None
    seed: int | None = Field(None, ge=-2**63, le=2**63 - 1)
    stop: Stop = None
    #: These fields are not OpenAI's, but vLLM's or this server's own.
    priority: PriorityName = None
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: StopTokenIds | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    bad_words: BadWords | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    #: See ``NO_EFFECT``.
    user: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: Any = _unserved("store")
    service_tier: Any = _unserved("service_tier")
    prompt_cache_retention: Any = _unserved("prompt_cache_retention")
    no_stop_trim: Any = _unserved("no_stop_trim")
    return_hidden_states: Any = _unserved("return_hidden_states")

    @field_validator(*UNSERVED, mode="before", check_fields=False)
    @classmethod
    def _refuse_unserved(cls, value: object, info: Any) -> object:
        neutral = UNSERVED[info.field_name]
        if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
            raise PydanticCustomError("unserved", "which is not supported; leave it out")
        return value


class CompletionRequest(GenerationRequest):
    """A request to continue one or several texts."""

    prompt: Prompt
    #: The log-probability of every token, and of this many of the likeliest at its position.
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: Any = _unserved("echo")
    suffix: Any = _unserved("suffix")
    best_of: Any = _unserved("best_of")


class Message(BoundedModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    #: The calls in a message of the assistant.
    tool_calls: ToolCalls | None = Field(None, validate_default=True)
    #: The call that a message with the role tool answers.
    tool_call_id: Text | None = Field(None, validate_default=True)
    #: It may be null, or missing, only next to calls.
    content: Content | None = Field(None, validate_default=True)
    name: str | None = None
    refusal: None = None
    #: The openai client adds these to an answer, and its users send the answer back. They are ignored.
    parsed: Any = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    @field_validator("tool_calls", "tool_call_id", "content")
    @classmethod
    def _check_role(cls, value: object, info: ValidationInfo) -> object:
        """Check what depends on the role, which is validated before."""
        role, is_there = info.data.get("role", ""), value is not None
        if info.field_name == "tool_calls" and is_there and role != "assistant":
            raise PydanticCustomError("tool_calls", "which only a message with the role assistant may have")
        if info.field_name == "tool_call_id" and is_there and role != "tool":
            raise PydanticCustomError("tool_call_id", "which only a message with the role tool may have")
        is_needed = role == "tool" if info.field_name == "tool_call_id" else (
            info.field_name == "content" and info.data.get("tool_calls") is None)
        if role and is_needed and not is_there:
            raise PydanticCustomError("missing", "is missing")
        return value

    @property
    def text(self) -> str:
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """A request to answer a conversation."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), Messages]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    functions: Any = _unserved("functions")
    function_call: Any = _unserved("function_call")
    modalities: Any = _unserved("modalities")
    audio: Any = _unserved("audio")
    prediction: Any = _unserved("prediction")
    web_search_options: Any = _unserved("web_search_options")
    separate_reasoning: Any = _unserved("separate_reasoning")
    stream_reasoning: Any = _unserved("stream_reasoning")
    include_reasoning: Any = _unserved("include_reasoning")
    continue_final_message: Any = _unserved("continue_final_message")
    reasoning_effort: Any = _unserved("reasoning_effort")
    verbosity: Any = _unserved("verbosity")


FIELDS = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields})
