"""Convert pydantic's errors about a request to one sentence: the field, its value, and the limit."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.checks import nearest
from mini_vllm.server.api.protocol import FIELDS, ChatRequest

#: The maximum number of characters of a value that are shown.
MAX_SHOWN = 60


def complaint(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None, str | None]:
    """Describe the first error: return a sentence, the field it is about, and a code."""
    error = errors[0]
    where = [part for part in error["loc"] if part not in ("body", "path", "query")]
    param = _dotted(where) or None
    kind, value = error["type"], error.get("input")
    if kind == "json_invalid":
        return f"the body is not JSON: {_reason(error)}, at character {error['loc'][-1]}", None, "invalid_json"
    if param is None:
        what = _bound(error) if kind == "too_many" else "must be a JSON object"
        return f"the body is {shown(value)}, {what}", None, "invalid_type"
    if kind == "missing":
        return f"{param} is missing", param, "missing_required_parameter"
    if kind == "extra_forbidden":
        return f"{param} is not a known field{_guess(error)}", param, "unknown_parameter"
    return f"{param} is {shown(value)}, {_bound(error)}", param, "invalid_value"


def shown(value: object) -> str:
    """Return a value as it was in the JSON, truncated if it is long. Only the beginning of a long list is read."""
    try:
        text = json.dumps(_beginning(value))
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN - 1]}…"


def _beginning(value: object, depth: int = 4) -> object:
    """Return the beginning of ``value``, slightly more than fits into MAX_SHOWN characters."""
    if isinstance(value, str):
        return value[:MAX_SHOWN]
    if isinstance(value, list):
        return [_beginning(each, depth - 1) for each in value[:MAX_SHOWN // 2 if depth else 0]]
    if isinstance(value, dict):
        pairs = itertools.islice(value.items(), MAX_SHOWN // 4 if depth else 0)
        return {key[:MAX_SHOWN]: _beginning(each, depth - 1) for key, each in pairs}
    return value


def _dotted(where: Sequence[int | str]) -> str:
    """Format a location like ``messages[0].content``, without pydantic's names for the branches of a union."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool", "dict"):
            text += f".{part}" if text else part
        elif not text:
            text = part if len(part) <= MAX_SHOWN else f"{part[:MAX_SHOWN - 1]}…"
    return text


def _bound(error: Mapping[str, Any]) -> str:
    message = re.sub("^(Input|String|List) should ", "must ", error["msg"])
    message = re.sub(" after validation, not [0-9]+$", "", message)
    for prefix in ("Value error, ", "Assertion failed, "):
        message = message.removeprefix(prefix)
    return message[:1].lower() + message[1:]


def _reason(error: Mapping[str, Any]) -> str:
    reason = str((error.get("ctx") or {}).get("error", "it cannot be read"))
    return reason[:1].lower() + reason[1:]


def _guess(error: Mapping[str, Any]) -> str:
    name = str(error["loc"][-1])
    if name in FIELDS:
        path = "/v1/chat/completions" if name in ChatRequest.model_fields else "/v1/completions"
        return f" here; it belongs to {path}"
    near = nearest(name[:MAX_SHOWN], FIELDS, cutoff=0.6)
    return f"; did you mean {near}?" if near else "; leave it out"
