"""What the fields of a request may hold. Where pydantic would have a complaint for each thing that a value could have
been, there is one sentence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_TEXT_CHARS = 256


def _check_prompt(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        kinds = {type(item) for item in value}
        if kinds in ({str}, {int}):
            return value
        if kinds == {list} and all(item and {type(token_id) for token_id in item} == {int} for item in value):
            return value
    raise PydanticCustomError("prompt", "must be a text, a list of texts, a list of token ids, or a list of such "
                              "lists, none of them empty")


def _check_stop(value: object) -> object:
    texts = value if isinstance(value, list) else [value]
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
                              "images and sounds are not understood")


def _is_text_part(part: object) -> bool:
    return (isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
            and isinstance(part["text"], str))


def _check_token_id_text(value: object) -> object:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
        return value
    raise PydanticCustomError("token_id", "must be a token id")


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text"]
    text: str


TokenId = Annotated[int, Field(ge=0)]
#: JSON has no other keys than texts.
TokenIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}$"), BeforeValidator(_check_token_id_text)]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
#: The model knows how many token ids there are, and says so; what is certain beforehand is in the schema.
PromptTokenId = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
PromptTokenIds = Annotated[list[PromptTokenId], Field(min_length=1)]
Prompt = Annotated[str | Annotated[list[str], Field(min_length=1)] | PromptTokenIds |
                   Annotated[list[PromptTokenIds], Field(min_length=1)], BeforeValidator(_check_prompt)]
LogitBias = Annotated[dict[TokenIdText, Annotated[float, Field(ge=-100, le=100)]],
                      Field(json_schema_extra={"additionalProperties": False})]
Stop = Annotated[Text | list[Text] | None, BeforeValidator(_check_stop)]
PriorityName = Annotated[Literal["high", "normal", "low"] | Literal[0, 1, 2] | None, BeforeValidator(_check_priority)]
Content = Annotated[str | Annotated[list[TextPart], Field(min_length=1)], BeforeValidator(_check_content)]
