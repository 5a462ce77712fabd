"""From what a request says to the engine's SamplingParams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mini_vllm.request import Priority, SamplingParams
from mini_vllm.server.access.caller import Caller
from mini_vllm.server.access.keys import TIERS
from mini_vllm.server.api.protocol import FIELDS, ChatRequest, CompletionRequest, GenerationRequest
from mini_vllm.server.errors import ApiError

#: Fields that mean the same here and there.
SAME = ("n", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "top_k", "min_p",
        "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "allowed_token_ids", "bad_words",
        "include_stop_str_in_output", "skip_special_tokens")


def sampling_params(body: GenerationRequest, of_model: Mapping[str, Any]) -> SamplingParams:
    """What is left open is as the model's makers advise, else as OpenAI's API has it. Raises ValueError naming the
    field that cannot be."""
    said = {name: value for name in SAME if (value := getattr(body, name)) is not None}
    if body.logit_bias is not None:
        said["logit_bias"] = {int(token_id): bias for token_id, bias in body.logit_bias.items()}
    if body.seed is not None:
        said["seed"] = body.seed % 2**64  # a negative one is a seed, too
    return SamplingParams(**{**of_model, **said, **_of_its_kind(body)})


def _of_its_kind(body: GenerationRequest) -> dict[str, Any]:
    """What is said in another way in a chat than in a completion."""
    if isinstance(body, CompletionRequest):
        return {} if body.logprobs is None else {"logprobs": body.logprobs}
    assert isinstance(body, ChatRequest)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, f"top_logprobs is {body.top_logprobs}, which goes only with \"logprobs\": true",
                       param="top_logprobs", code="invalid_value")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(400, "max_tokens and max_completion_tokens are the same; give one of them", param="max_tokens",
                       code="invalid_value")
    max_tokens = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    return {"max_tokens": max_tokens, "logprobs": (body.top_logprobs or 0) if body.logprobs else None}


def priority_of(body: GenerationRequest, caller: Caller) -> Priority:
    """What was asked for, no better than the caller's key may; what the key has, if nothing was asked for."""
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
        raise ApiError(400, "stream_options goes only with \"stream\": true", param="stream_options",
                       code="invalid_value")


def refused(error: ValueError, prompt_field: str) -> ApiError:
    """What the engine says of a request that it cannot serve: its message begins with the name of a field, or is about
    the prompt."""
    message = str(error)
    word = re.match(r"\w+", message)
    param = word[0] if word and word[0] in FIELDS else prompt_field
    is_long = "the context is" in message or "blocks" in message
    code = "context_length_exceeded" if param == prompt_field and is_long else "invalid_value"
    return ApiError(400, message, param=param, code=code)
