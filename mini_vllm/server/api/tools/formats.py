"""How a model writes a call of a tool. Its chat template shows it, because the template writes earlier calls the same.

    Hermes, Qwen     <tool_call>
                     {"name": "add", "arguments": {"a": 1}}
                     </tool_call>                                  several, one after the other
    Llama 3          {"name": "add", "parameters": {"a": 1}}       one, maybe after <|python_tag|>
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class CallFormat:
    """The texts around and inside a call, which is always a JSON object with a name and arguments."""

    name: str
    #: The text before a call.
    marker: str
    #: The text between the marker and the object, and after the object, where an output must be a call.
    opening: str
    closing: str
    #: The text after a call that a free output may lack.
    end: str
    #: The key of the arguments.
    key: str
    #: Whether a call at the beginning of an output needs no marker.
    may_be_bare: bool = False
    has_several: bool = False

    @functools.cached_property
    def head(self) -> re.Pattern[str]:
        """The beginning of a call, up to the brace that opens its arguments."""
        return re.compile(rf'\{{\s*"name"\s*:\s*"([a-zA-Z0-9_-]{{1,64}})"\s*,\s*"{self.key}"\s*:\s*\{{')


HERMES = CallFormat("Hermes", "<tool_call>", "<tool_call>\n", "\n</tool_call>", "</tool_call>", "arguments",
                    has_several=True)
LLAMA = CallFormat("Llama 3", "<|python_tag|>", "", "", "", "parameters", may_be_bare=True)

#: Formats that also mark a call with <tool_call>, but do not write it as JSON.
_NOT_JSON = re.compile(r"<function=|<arg_key>|<parameter=")


@functools.lru_cache(maxsize=64)
def format_of(template: str) -> CallFormat | None:
    """Return the format of the calls that a chat template writes; None if it writes none, or in an unknown format."""
    if not re.search(r"\btools\b", template):
        return None
    if HERMES.marker in template:
        return HERMES if _mentions(template, HERMES.key) and not _NOT_JSON.search(template) else None
    is_llama = "<|start_header_id|>" in template or LLAMA.marker in template
    return LLAMA if is_llama and _mentions(template, LLAMA.key) else None


def _mentions(template: str, key: str) -> bool:
    """Check whether the template writes ``key`` as a key of a JSON object; its quotation marks may be escaped."""
    return re.search(rf'"{key}\\?"\s*:', template) is not None
