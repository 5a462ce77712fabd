"""The fields of a request that are about the form of its output: ``response_format``, ``tools`` and those around them.

The contents of schemas are not checked here, but by the engine, which compiles them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from mini_vllm.server.api.field_checks import BoundedModel, Text, at_most
from mini_vllm.structured.params import MAX_CHOICES, MAX_SOURCE_CHARS

#: The maximum number of tools of a request, of calls of a message, and of characters of a description.
MAX_TOOLS, MAX_CALLS, MAX_DESCRIPTION_CHARS = 128, 128, 2**14
NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"
NAME = "must be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64 and all(
        character.isascii() and (character.isalnum() or character in "_-") for character in value)


def _check_name(value: object) -> object:
    if _is_name(value):
        return value
    raise PydanticCustomError("name", NAME)


Name = Annotated[str, Field(pattern=NAME_PATTERN), BeforeValidator(_check_name)]
Description = Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARS)]
Source = Annotated[str, Field(min_length=1, max_length=MAX_SOURCE_CHARS)]
Schema = dict[str, Any]


class StructuredOutputs(BoundedModel):
    """What the output must match, in vLLM's form: exactly one of these."""

    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
                      at_most(MAX_CHOICES)] | None = None
    regex: Source | None = None
    json_: Schema | bool | Source | None = Field(None, alias="json")
    json_object: bool | None = None
    grammar: Source | None = None


class JsonSchema(BoundedModel):
    name: Name
    description: Description | None = None
    schema_: Schema = Field(alias="schema")
    #: The output matches the schema in any case.
    strict: bool | None = None


class ResponseFormat(BoundedModel):
    """What the output must match, in OpenAI's form."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("response_format", 'must have json_schema exactly if the type is "json_schema"')
        return self


class FunctionDefinition(BoundedModel):
    name: Name
    description: Description | None = None
    #: The JSON schema of the arguments, which are an object. Without it, the function has no arguments.
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(BoundedModel):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(BoundedModel):
    name: Name


class NamedTool(BoundedModel):
    type: Literal["function"]
    function: FunctionName


def _check_choice(value: object) -> object:
    if value is None or isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    if isinstance(value, dict) and value.keys() == {"type", "function"} and value["type"] == "function":
        function = value["function"]
        if isinstance(function, dict) and function.keys() == {"name"} and _is_name(function["name"]):
            return value
    raise PydanticCustomError("tool_choice", 'must be "none", "auto", "required", or '
                              '{"type": "function", "function": {"name": "…"}}')


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), at_most(MAX_TOOLS)]
ToolChoice = Annotated[Literal["none", "auto", "required"] | NamedTool | None, BeforeValidator(_check_choice)]


class FunctionCall(BoundedModel):
    name: Text
    #: The text that the model wrote, which need not be JSON.
    arguments: str
    #: The openai client's ``parse`` adds this. It is ignored.
    parsed_arguments: Any = None


class ToolCall(BoundedModel):
    """A call that the model has made earlier in the conversation."""

    id: Text
    type: Literal["function"]
    function: FunctionCall
    #: Clients that collect the events of a stream leave the number of the call in it.
    index: Annotated[int, Field(ge=0)] | None = None


ToolCalls = Annotated[list[ToolCall], Field(min_length=1, max_length=MAX_CALLS, fail_fast=True), at_most(MAX_CALLS)]
