"""The grammar of an output that must be a call: every tool has its own rule, with the schema of its arguments.

    start: call
    call: "{\\"name\\": " tool "}"
    tool: tool_0 | tool_1
    tool_0: "\\"add\\", \\"parameters\\": " %json {"type": "object", …}
    tool_1: …

A schema is not copied into a larger one, so that ``$ref`` in it still points into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.server.api.tools.formats import CallFormat

#: Spaces as templates write them, so that the model sees what it knows. There is only one text for each value.
SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
#: The line of the first tool's rule, counted from 1.
FIRST_LINE = 4


def call_grammar(tools: Sequence[tuple[str, Mapping[str, Any]]], form: CallFormat, is_parallel: bool) -> str:
    """Return the grammar of one call, or of several, of ``tools``: their names and the schemas of their arguments."""
    before, after = json.dumps(f'{form.opening}{{"name": '), json.dumps(f"}}{form.closing}")
    lines = [r'start: call ("\n" call)*' if is_parallel and form.has_several else "start: call",
             f"call: {before} tool {after}",
             f"tool: {' | '.join(f'tool_{number}' for number in range(len(tools)))}"]
    for number, (name, schema) in enumerate(tools):
        head = json.dumps(f'"{name}", "{form.key}": ')
        lines.append(f"tool_{number}: {head} %json {json.dumps({'type': 'object', **schema, 'x-guidance': SPACES})}")
    return "\n".join(lines)


def tool_error(message: str) -> str:
    """Return an engine's error about the grammar as an error about tools, which names the tool if there is one."""
    match = re.match(r"structured_outputs\.grammar: .*?\bat (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*)",
                     message, re.DOTALL)
    if match is not None and int(match[1]) >= FIRST_LINE:
        return f"tools[{int(match[1]) - FIRST_LINE}].function.parameters: {match[2]}"
    return re.sub(r"structured_outputs(\.\w+)?", "tools", message)
