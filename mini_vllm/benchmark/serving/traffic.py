"""The arrival of requests: prompts of known length, at the times of a Poisson process.

Everything follows from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mini_vllm.models.tokenizer import Tokenizer

#: Prompts are composed of this many words, each a single token.
MAX_WORDS = 1000


@dataclass(frozen=True)
class Call:
    """One request to a server."""

    #: Seconds after the start. It is sent then, whatever happens to the others.
    at_s: float
    prompt: str
    num_prompt_tokens: int
    max_tokens: int
    #: Only our server knows this field.
    priority: str = "normal"


@dataclass(frozen=True)
class Traffic:
    """Requests of one kind. ``draw`` returns a prompt and the number of tokens to generate."""

    name: str
    about: str
    draw: Callable[[Words], tuple[str, int, int]]

    def calls(self, words: Words, num_calls: int, rate: float) -> list[Call]:
        """Return ``num_calls`` requests, at ``rate`` per second on average.

        At another rate the requests and their order are the same, only closer together or further apart.
        """
        at_s, calls = 0.0, []
        for _ in range(num_calls):
            at_s += words.rng.expovariate(1.0)
            calls.append(Call(at_s, *self.draw(words)))
        return [replace(call, at_s=call.at_s / rate) for call in calls]


class Words:
    """Words that are one token each, even next to each other, so that the length of a prompt is known."""

    def __init__(self, words: Sequence[str], seed: str) -> None:
        self.words, self.rng = words, random.Random(seed)

    @classmethod
    def of(cls, tokenizer: Tokenizer, seed: str) -> Words:
        return cls(single_token_words(tokenizer), seed)

    def text(self, num_tokens: int) -> str:
        return "".join(self.rng.choices(self.words, k=num_tokens))


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Return words of letters with a leading space that stay one token next to others."""
    found: list[str] = []
    for token_id in range(tokenizer.vocab_size):
        text = tokenizer.decode([token_id])
        if text.startswith(" ") and text[1:].isascii() and text[1:].isalpha() and tokenizer.encode(text) == [token_id]:
            found.append(text)
        if len(found) == MAX_WORDS:
            break
    return found


def _mixed(words: Words) -> tuple[str, int, int]:
    num_prompt = words.rng.randint(32, 512)
    return words.text(num_prompt), num_prompt, words.rng.randint(16, 128)


def _shared(words: Words, num_shared: int) -> tuple[str, int, int]:
    """Draw a request with a shared prefix.

    It is the same in every run, so a server can reuse it from the second request on.
    """
    prefix = "".join(random.Random("the prefix").choices(words.words, k=num_shared))
    num_own = words.rng.randint(16, 96)
    return prefix + words.text(num_own), num_shared + num_own, words.rng.randint(16, 64)


def _short(words: Words) -> tuple[str, int, int]:
    num_prompt = words.rng.randint(8, 24)
    return words.text(num_prompt), num_prompt, words.rng.randint(4, 8)


TRAFFICS = {traffic.name: traffic for traffic in (
    Traffic("mixed", "prompts of 32–512 tokens, outputs of 16–128", _mixed),
    Traffic("shared", "prompts with 1024 shared tokens and 16–96 different ones, outputs of 16–64",
            partial(_shared, num_shared=1024)),
    Traffic("shared-512", "prompts with 512 shared tokens and 16–96 different ones, outputs of 16–64",
            partial(_shared, num_shared=512)),
    Traffic("short", "prompts of 8–24 tokens, outputs of 4–8: only a smoke test", _short),
)}
