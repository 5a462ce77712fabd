"""What an output must match, as a caller asks for it. The names are those of vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm.checks import flag, refusal

#: The longest schema or grammar, the most choices, and the bytes (UTF-8) of all of them together.
MAX_SOURCE_CHARS, MAX_CHOICES, MAX_CHOICE_BYTES = 2**16, 1024, 8000
#: The fields of which exactly one is given.
KINDS = ("choice", "regex", "json", "json_object", "grammar")
#: Objects and lists inside of each other, in a schema.
MAX_SCHEMA_DEPTH = 64


@dataclass(frozen=True)
class StructuredOutputsParams:
    """Exactly one of these, which the whole output must match."""

    #: One of these texts.
    choice: Sequence[str] | None = None
    #: A regular expression; see ``structured.regex_tree`` for what is supported.
    regex: str | None = None
    #: A JSON schema, as a text or as an object.
    json: str | Mapping[str, Any] | bool | None = None
    #: Any JSON object.
    json_object: bool | None = None
    #: A grammar in the format of llguidance, which is close to Lark's.
    grammar: str | None = None
    #: The key that asks, in a server. Equal parameters of two owners share neither a parser nor what is known about it.
    owner: str | None = None

    def __post_init__(self) -> None:
        """Check every field. A schema becomes a text, so that equal parameters are equal keys."""
        given = [name for name in KINDS if getattr(self, name) not in (None, False)
                 or name == "json" and self.json is False]
        if len(given) != 1:
            raise ValueError(f"structured_outputs has {' and '.join(given) or 'nothing'}, must have exactly one of "
                             f"{', '.join(KINDS)}")
        if self.choice is not None:
            object.__setattr__(self, "choice", _checked_choice(self.choice))
        if self.json_object is not None:
            flag("structured_outputs.json_object", self.json_object)
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not 1 <= len(value) <= MAX_SOURCE_CHARS):
                raise refusal(f"structured_outputs.{name}", value, f"a text of 1 to {MAX_SOURCE_CHARS} characters")
        if self.json is not None:
            object.__setattr__(self, "json", _checked_schema(self.json))

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))


def _checked_choice(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(text, str) and text for text in value):
        raise refusal("structured_outputs.choice", value, "a list of at least one text, none of them empty")
    texts = tuple(dict.fromkeys(value))
    num_bytes = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    if len(value) > MAX_CHOICES or num_bytes > MAX_CHOICE_BYTES:
        raise ValueError(f"structured_outputs.choice has {len(value)} texts of {num_bytes} bytes (UTF-8) together, "
                         f"must have at most {MAX_CHOICES} texts of at most {MAX_CHOICE_BYTES} bytes together")
    return texts


def _checked_schema(value: object) -> str:
    """Return the schema as a text. Raise ValueError if it is not JSON, too long or too deep."""
    name = "structured_outputs.json"
    if isinstance(value, str) and len(value) > MAX_SOURCE_CHARS:
        raise refusal(name, value, f"at most {MAX_SOURCE_CHARS} characters long")
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    if not isinstance(schema, (Mapping, bool)):
        raise refusal(name, value, "a JSON schema: an object, or true or false")
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        raise refusal(name, value, f"at most {MAX_SCHEMA_DEPTH} objects and lists deep")
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    if len(text) > MAX_SOURCE_CHARS:
        raise refusal(name, text, f"at most {MAX_SOURCE_CHARS} characters long")
    return text


def depth_of(value: object) -> int:
    """Return how deep objects and lists are inside of each other; one more than the limit for anything deeper."""
    depth, level = 0, [value]
    while level and depth <= MAX_SCHEMA_DEPTH:
        level = [inner for each in level if isinstance(each, (Mapping, list, tuple))
                 for inner in (each.values() if isinstance(each, Mapping) else each)]
        depth += 1
    return depth
