"""Convert the fields of a request to the engine's SamplingParams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mini_vllm.logit_rules import NO_TOKEN_LEFT
from mini_vllm.request import Priority, SamplingParams
from mini_vllm.server.access.caller import Caller
from mini_vllm.server.access.keys import TIERS
from mini_vllm.server.api.protocol import FIELDS, ChatRequest, CompletionRequest, GenerationRequest
from mini_vllm.server.api.tools.grammar import tool_error
from mini_vllm.server.errors import ApiError
from mini_vllm.structured.params import StructuredOutputsParams

#: Fields with the same name and meaning in both.
SAME = ("n", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "top_k", "min_p",
        "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "allowed_token_ids", "bad_words",
        "include_stop_str_in_output", "skip_special_tokens")


def sampling_params(body: GenerationRequest, of_model: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters of a request.

    Omitted fields take the model's recommended values, or else the defaults of OpenAI's API. Raise ValueError if a
    value is invalid; the message names the field.
    """
    said = {name: value for name in SAME if (value := getattr(body, name)) is not None}
    if body.logit_bias is not None:
        said["logit_bias"] = {int(token_id): bias for token_id, bias in body.logit_bias.items()}
    if body.seed is not None:
        said["seed"] = body.seed % 2**64  # a negative seed is allowed
    if (structure := structure_of(body)) is not None:
        said["structured_outputs"] = structure
    return SamplingParams(**{**of_model, **said, **_of_its_kind(body)})


def _of_its_kind(body: GenerationRequest) -> dict[str, Any]:
    """Return the parameters whose fields differ between chats and completions."""
    if isinstance(body, CompletionRequest):
        return {} if body.logprobs is None else {"logprobs": body.logprobs}
    assert isinstance(body, ChatRequest)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, f"top_logprobs is {body.top_logprobs}, which needs \"logprobs\": true",
                       param="top_logprobs", code="invalid_value")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(400, "max_tokens and max_completion_tokens mean the same; send only one of them",
                       param="max_tokens", code="invalid_value")
    max_tokens = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    return {"max_tokens": max_tokens, "logprobs": (body.top_logprobs or 0) if body.logprobs else None}


def structure_of(body: GenerationRequest) -> StructuredOutputsParams | None:
    """Return what the output must match. Raise ValueError if that is not allowed, and ApiError if it is said twice."""
    asked, form = body.structured_outputs, body.response_format if isinstance(body, ChatRequest) else None
    if asked is not None and form is not None and form.type != "text":
        raise ApiError(400, "response_format and structured_outputs both say what the output must match; send only one "
                       "of them", param="response_format", code="invalid_value")
    if asked is not None:
        return StructuredOutputsParams(asked.choice, asked.regex, asked.json_, asked.json_object, asked.grammar)
    if form is None or form.type == "text":
        return None
    if form.json_schema is None:
        return StructuredOutputsParams(json_object=True)
    return StructuredOutputsParams(json=form.json_schema.schema_)


def priority_of(body: GenerationRequest, caller: Caller) -> Priority:
    """Return the requested priority, or the key's default. Raise ApiError if the key does not allow the priority."""
    asked = body.priority
    if asked is None:
        return caller.default_priority
    priority = TIERS[asked] if isinstance(asked, str) else Priority(asked)
    if priority < caller.best_priority:
        raise ApiError(403, f"priority is {priority.name.lower()}, but the key {caller.name!r} may ask for "
                       f"{caller.best_priority.name.lower()} at best", param="priority", code="priority_not_allowed")
    return priority


def check_stream_options(body: GenerationRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs \"stream\": true", param="stream_options",
                       code="invalid_value")


def refused(error: ValueError, prompt_field: str, structure_field: str = "structured_outputs") -> ApiError:
    """Convert the engine's error about a request that it cannot serve.

    The message starts with the name of a field; otherwise it is about the prompt. ``structure_field`` is the field in
    which the client has said what the output must match.
    """
    message = str(error)
    if structure_field == "tools":
        message = tool_error(message)
    elif structure_field != "structured_outputs" and not message.startswith(NO_TOKEN_LEFT):
        message = re.sub(r"structured_outputs(\.\w+)?", structure_field, message)
    word = re.match(r"\w+", message)
    param = word[0] if word and word[0] in FIELDS else prompt_field
    is_long = "the context is" in message or "blocks" in message
    code = "context_length_exceeded" if param == prompt_field and is_long else "invalid_value"
    return ApiError(400, message, param=param, code=code)
