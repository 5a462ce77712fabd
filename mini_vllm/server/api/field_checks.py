"""Checks of the fields of a request. Where pydantic would complain once per alternative of a union, these checks make
one sentence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mini_vllm.checks import MAX_TEXT_CHARS, MAX_TEXTS

#: The maximum lengths of the lists and objects of a request. Lengths are checked before entries.
MAX_FIELDS, MAX_STOPS, MAX_BIASES, MAX_METADATA = 64, 64, 1024, 16
MAX_STOP_TOKEN_IDS, MAX_ALLOWED_TOKEN_IDS, MAX_BAD_WORDS = 1024, 2**14, MAX_TEXTS
MAX_PROMPTS, MAX_MESSAGES, MAX_PARTS = 2048, 1024, 4096


def check_length(value: object, limit: int, what: str = "entries") -> object:
    """Reject a list or an object with more than ``limit`` entries, without looking at the entries."""
    if isinstance(value, (list, dict)) and len(value) > limit:
        raise PydanticCustomError("too_many", f"must have at most {limit} {what}, but has {len(value)}")
    return value


def at_most(limit: int) -> BeforeValidator:
    """Return a validator that applies ``check_length`` to a field."""
    return BeforeValidator(lambda value: check_length(value, limit))


class BoundedModel(BaseModel):
    """An object in a request: types are strict, unknown fields are rejected, and it has at most ``MAX_FIELDS``."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_num_fields(cls, fields: object) -> object:
        return check_length(fields, MAX_FIELDS, "fields")


def _check_prompt(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        kinds = set(map(type, value))
        if kinds == {int}:
            return value
        if kinds in ({str}, {list}):
            check_length(value, MAX_PROMPTS, "prompts")
        if kinds == {str} or kinds == {list} and all(item and set(map(type, item)) == {int} for item in value):
            return value
    raise PydanticCustomError("prompt", "must be a text, a list of texts, a list of token ids, or a list of such "
                              "lists, none of them empty")


def _check_stop(value: object) -> object:
    texts = value if isinstance(value, list) else [value]
    check_length(texts, MAX_STOPS)
    if value is None or all(isinstance(text, str) and 1 <= len(text) <= MAX_TEXT_CHARS for text in texts):
        return value
    raise PydanticCustomError("stop", f"must be a text of 1 to {MAX_TEXT_CHARS} characters, or a list of such texts")


def _check_priority(value: object) -> object:
    if value is None or value in ("high", "normal", "low") or type(value) is int and 0 <= value <= 2:
        return value
    raise PydanticCustomError("priority", "must be high, normal or low (0, 1 or 2)")


def _check_content(value: object) -> object:
    if isinstance(value, str) or isinstance(value, list) and value and all(map(_is_text_part, value)):
        return value
    raise PydanticCustomError("content", 'must be a text, or a list of parts like {"type": "text", "text": "…"}; '
                              "images and sounds are not supported")


def _is_text_part(part: object) -> bool:
    return (isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
            and isinstance(part["text"], str))


def _check_token_id_text(value: object) -> object:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
        return value
    raise PydanticCustomError("token_id", "must be a token id")


def _check_messages(value: object) -> object:
    check_length(value, MAX_MESSAGES)
    if isinstance(value, list):
        contents = [message.get("content") for message in value if isinstance(message, dict)]
        num_parts = sum(len(content) for content in contents if isinstance(content, list))
        if num_parts > MAX_PARTS:
            raise PydanticCustomError("too_many", f"must have at most {MAX_PARTS} parts, but have {num_parts}")
    return value


class TextPart(BoundedModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


TokenId = Annotated[int, Field(ge=0)]
#: The keys of a JSON object are always strings.
TokenIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}$"), BeforeValidator(_check_token_id_text)]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
StopTokenIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True),
                         at_most(MAX_STOP_TOKEN_IDS)]
AllowedTokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True),
                            at_most(MAX_ALLOWED_TOKEN_IDS)]
BadWords = Annotated[list[Text], Field(max_length=MAX_BAD_WORDS, fail_fast=True), at_most(MAX_BAD_WORDS)]
Metadata = Annotated[dict[str, str], Field(max_length=MAX_METADATA), at_most(MAX_METADATA)]
#: The model checks its range of token ids and its context; the schema only contains what holds for all models.
TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT = {"anyOf": [{"type": "string"}, TOKEN_IDS,
                    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
                    {"type": "array", "items": TOKEN_IDS, "minItems": 1, "maxItems": MAX_PROMPTS}]}
#: Checked once, by one function: for a union, pydantic would go through 200,000 token ids once per alternative.
Prompt = Annotated[str | list[str] | list[int] | list[list[int]], PlainValidator(_check_prompt), WithJsonSchema(PROMPT)]
LogitBias = Annotated[dict[TokenIdText, Annotated[float, Field(ge=-100, le=100)]],
                      Field(max_length=MAX_BIASES, json_schema_extra={"additionalProperties": False}),
                      at_most(MAX_BIASES)]
Stop = Annotated[Text | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None, BeforeValidator(_check_stop)]
PriorityName = Annotated[Literal["high", "normal", "low"] | Literal[0, 1, 2] | None, BeforeValidator(_check_priority)]
Content = Annotated[str | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)],
                    BeforeValidator(_check_content)]
Messages = BeforeValidator(_check_messages)
