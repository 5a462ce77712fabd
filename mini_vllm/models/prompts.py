"""The forms of a prompt that callers may give, and their conversion into token ids.

    "a text"   {"prompt": "a text"}   [17, 4, 99]   {"prompt_token_ids": [17, 4, 99]}   a numpy array of ids

Reading needs no engine, only its tokenizer and its limits, so a server tokenizes long texts outside the engine's
thread.
"""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from mini_vllm.backend import check_process
from mini_vllm.checks import refusal, token_ids
from mini_vllm.models.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, object]

KINDS = "a text, a list of token ids, {'prompt': text} or {'prompt_token_ids': ids}"


@dataclass(frozen=True)
class PromptTokens:
    """A tokenized prompt."""

    #: None if the prompt was given as token ids.
    text: str | None
    token_ids: list[int]


@dataclass(frozen=True)
class PromptReader:
    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int

    def read(self, prompt: Prompt | PromptTokens) -> PromptTokens:
        """Convert a prompt into token ids. Raise ValueError if it is not a prompt or leaves no room for an output."""
        check_process()
        if isinstance(prompt, PromptTokens):
            return prompt
        value = _from_mapping(prompt) if isinstance(prompt, Mapping) else prompt
        if isinstance(value, str):
            read = PromptTokens(value, self._encode(value))
        elif hasattr(value, "tolist"):
            self._check_length(getattr(value, "size", 0))
            read = PromptTokens(None, token_ids("the prompt", value, self.vocab_size))
        elif isinstance(value, (list, tuple, range)):
            self._check_length(len(value))
            read = PromptTokens(None, token_ids("the prompt", value, self.vocab_size))
        else:
            raise refusal("the prompt", value, KINDS)
        if not read.token_ids:
            raise ValueError("the prompt is empty: it has 0 tokens, at least 1 is needed")
        self._check_length(len(read.token_ids))
        return read

    def _check_length(self, num_tokens: int) -> None:
        """Raise ValueError if the prompt is too long.

        Called before the ids are checked: a list of millions would take seconds.
        """
        if num_tokens >= self.max_model_len:
            raise ValueError(f"the prompt has {num_tokens} tokens; {self._room()}")

    def _encode(self, text: str) -> list[int]:
        """Encode a text, but reject one that is certainly too long unread: encoding could take seconds."""
        at_least = self.tokenizer.min_num_tokens(text)
        if at_least >= self.max_model_len:
            raise ValueError(f"the prompt has {len(text)} characters, at least {at_least} tokens; {self._room()}")
        return self.tokenizer.encode(text)

    def _room(self) -> str:
        return f"the context is {self.max_model_len}, and at least one must be left for the output"


def _from_mapping(prompt: Mapping[str, object]) -> object:
    if len(prompt) != 1 or not prompt.keys() <= {"prompt", "prompt_token_ids"}:
        raise ValueError(f"the prompt is a mapping with the keys {reprlib.repr(list(prompt))}, must be {KINDS}")
    (kind, value), = prompt.items()
    if (kind == "prompt") != isinstance(value, str):
        raise refusal(f"the prompt's {kind!r}", value, "a text" if kind == "prompt" else "a list of token ids")
    return value


def as_list(prompts: object) -> list[Prompt]:
    """Return a list of prompts, given one prompt or a list of them. A list of whole numbers is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if getattr(prompts, "ndim", None) == 1:
        return [cast(Prompt, prompts)]  # an array of ids
    if not isinstance(prompts, Iterable) or isinstance(prompts, (bytes, bytearray, set, frozenset)):
        raise refusal("prompts", prompts, f"a prompt ({KINDS}) or a list of prompts")
    items: list[Prompt] = list(prompts)
    is_one = items and all(isinstance(item, numbers.Integral) and not isinstance(item, bool) for item in items)
    return [cast(Prompt, items)] if is_one else items
