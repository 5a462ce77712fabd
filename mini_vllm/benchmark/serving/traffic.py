"""What comes when: requests with prompts of known length, at the times of a Poisson process. A seed decides it all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mini_vllm.models.tokenizer import Tokenizer

#: Prompts are put together from this many words, each a token by itself.
MAX_WORDS = 1000


@dataclass(frozen=True)
class Call:
    """One request to a server."""

    #: Seconds after the first moment. It is sent then, whatever became of the others.
    at_s: float
    prompt: str
    num_prompt_tokens: int
    max_tokens: int
    #: Only ours knows of it.
    priority: str = "normal"


@dataclass(frozen=True)
class Traffic:
    """Requests of one kind. ``draw`` gives a prompt and the number of tokens to put out."""

    name: str
    about: str
    draw: Callable[[Words], tuple[str, int, int]]

    def calls(self, words: Words, num_calls: int, rate: float) -> list[Call]:
        """``num_calls`` requests, at ``rate`` a second on average. At another rate the same ones come, in the same
        order, only closer together or further apart."""
        at_s, calls = 0.0, []
        for _ in range(num_calls):
            at_s += words.rng.expovariate(1.0)
            calls.append(Call(at_s, *self.draw(words)))
        return [replace(call, at_s=call.at_s / rate) for call in calls]


class Words:
    """Words that are one token each, also side by side, so that the length of a prompt is known."""

    def __init__(self, words: Sequence[str], seed: str) -> None:
        self.words, self.rng, self.seed = words, random.Random(seed), seed

    @classmethod
    def of(cls, tokenizer: Tokenizer, seed: str) -> Words:
        return cls(single_token_words(tokenizer), seed)

    def text(self, num_tokens: int) -> str:
        return "".join(self.rng.choices(self.words, k=num_tokens))


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Words of letters with a space before them, which stay one token when others stand beside them."""
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
    """The prefix is the same in every run, so that a server which keeps it has it from the second request on."""
    prefix = "".join(random.Random("the prefix").choices(words.words, k=num_shared))
    num_own = words.rng.randint(16, 96)
    return prefix + words.text(num_own), num_shared + num_own, words.rng.randint(16, 64)


def _short(words: Words) -> tuple[str, int, int]:
    num_prompt = words.rng.randint(8, 24)
    return words.text(num_prompt), num_prompt, words.rng.randint(4, 8)


TRAFFICS = {traffic.name: traffic for traffic in (
    Traffic("mixed", "prompts of 32–512 tokens, outputs of 16–128", _mixed),
    Traffic("shared", "prompts that share 1024 tokens and have 16–96 of their own, outputs of 16–64",
            partial(_shared, num_shared=1024)),
    Traffic("shared-512", "the same with 512 tokens shared", partial(_shared, num_shared=512)),
    Traffic("short", "prompts of 8–24 tokens, outputs of 4–8: for a quick look", _short),
)}
