"""What one request asks for: which tools the model may call, whether it must, and the form of its output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_vllm.request import SamplingParams
from mini_vllm.server.api.protocol import ChatRequest, Message
from mini_vllm.server.api.tools.fields import NamedTool, Tool
from mini_vllm.server.api.tools.formats import CallFormat, format_of
from mini_vllm.server.api.tools.grammar import NO_ARGUMENTS, call_grammar
from mini_vllm.server.errors import ApiError
from mini_vllm.server.models.loaded_model import ServedModel
from mini_vllm.structured.params import MAX_SCHEMA_DEPTH, MAX_SOURCE_CHARS, StructuredOutputsParams, depth_of

#: The maximum number of characters of all tools of a request together, as JSON.
MAX_TOOLS_CHARS = 2**16


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request."""

    #: All tools as the template gets them.
    definitions: list[dict[str, Any]]
    #: The tools that may be called: name and schema of the arguments.
    callable: list[tuple[str, Mapping[str, Any]]]
    must_call: bool
    is_parallel: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.callable)

    def format_for(self, served: ServedModel) -> CallFormat:
        """Return how the model writes calls. Raise ApiError if that is not known."""
        form = format_of(served.tokenizer.chat_template or "")
        if form is None:
            raise ApiError(400, f"tools cannot be used with the model {served.name!r}: its chat template does not "
                           "write tools, or it writes calls in a format that is not known; leave tools out, or send "
                           '"tool_choice": "none"', param="tools", code="tools_not_supported")
        return form

    def constrain(self, params: SamplingParams, form: CallFormat, served: ServedModel) -> SamplingParams:
        """Return the parameters with which the output is a call if it must be, and with which calls can be seen."""
        if served.tokenizer.is_special(form.marker) and form.end:
            params = replace(params, skip_special_tokens=False)
        if not self.must_call:
            return params
        grammar = call_grammar(self.callable, form, self.is_parallel)
        if len(grammar) > MAX_SOURCE_CHARS:
            raise _refused(f"tools have a grammar of {len(grammar)} characters, must be at most {MAX_SOURCE_CHARS}")
        return replace(params, structured_outputs=StructuredOutputsParams(grammar=grammar))


def tool_use(body: ChatRequest) -> ToolUse | None:
    """Return what ``body`` asks for; None if no tool is to be called.

    Raise ApiError for fields that contradict each other, and for tools that are too large.
    """
    choice, tools = body.tool_choice, body.tools or []
    if not tools and (isinstance(choice, NamedTool) or choice == "required"):
        raise ApiError(400, "tool_choice needs tools: send at least one", param="tool_choice", code="invalid_value")
    schemas = _checked(tools)
    if not tools or choice == "none":
        return None
    if isinstance(choice, NamedTool):
        name = choice.function.name
        schemas = [each for each in schemas if each[0] == name]
        if not schemas:
            raise ApiError(400, f"tool_choice names the function {name!r}, must be one of tools", param="tool_choice",
                           code="invalid_value")
    for field in ("response_format", "structured_outputs"):
        value = getattr(body, field)
        if value is not None and getattr(value, "type", None) != "text":
            raise ApiError(400, f"{field} and tools each decide what the output looks like; send only one of them, or "
                           '"tool_choice": "none"', param=field, code="invalid_value")
    return ToolUse([_definition(tool) for tool in tools], schemas,
                   must_call=isinstance(choice, NamedTool) or choice == "required",
                   is_parallel=body.parallel_tool_calls is not False and not isinstance(choice, NamedTool))


def _checked(tools: Sequence[Tool]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return name and schema of each tool. Raise ApiError if a name is not unique or a schema is not allowed."""
    schemas: dict[str, Mapping[str, Any]] = {}
    num_chars = 0
    for number, tool in enumerate(tools):
        function, where = tool.function, f"tools[{number}].function"
        if function.name in schemas:
            raise _refused(f"{where}.name is {function.name!r}, which another tool has; names must be unique")
        schema = NO_ARGUMENTS if function.parameters is None else function.parameters
        if schema.get("type", "object") != "object":
            raise _refused(f"{where}.parameters.type is {_shown(schema['type'])}, must be \"object\"")
        try:
            text = StructuredOutputsParams(json=schema).json
        except ValueError as error:
            raise _refused(str(error).replace("structured_outputs.json", f"{where}.parameters")) from None
        assert isinstance(text, str)
        num_chars += len(text) + len(function.name) + len(function.description or "")
        schemas[function.name] = schema
    if num_chars > MAX_TOOLS_CHARS:
        raise _refused(f"tools have {num_chars} characters, must have at most {MAX_TOOLS_CHARS}")
    return list(schemas.items())


def _definition(tool: Tool) -> dict[str, Any]:
    function = {name: value for name, value in tool.function.model_dump().items() if value is not None}
    return {"type": "function", "function": function}


def _shown(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) and len(value) <= 64 else f"a {type(value).__name__}"


def _refused(message: str) -> ApiError:
    return ApiError(400, message, param="tools", code="invalid_value")


def template_message(message: Message, roles: Mapping[str, str]) -> dict[str, Any]:
    """Return a message as chat templates read it: the arguments of calls are objects."""
    told: dict[str, Any] = {"role": roles.get(message.role, message.role), "content": message.text}
    if message.tool_calls:
        told["tool_calls"] = [{"id": call.id, "type": "function",
                               "function": {"name": call.function.name, "arguments": _parsed(call.function.arguments)}}
                              for call in message.tool_calls]
    if message.role == "tool":
        told["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            told["name"] = message.name
    return told


def _parsed(arguments: str) -> dict[str, Any] | str:
    """Return arguments as an object. A model may have written something else; that stays text."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and depth_of(value) <= MAX_SCHEMA_DEPTH else arguments
