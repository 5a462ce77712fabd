"""Random draws for the fuzzers: engine settings, prompts with much in common, and sampling parameters of all kinds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from typing import Any

from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import SamplingParams

BLOCK_SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 64)


def draw_config(rng: random.Random, max_prompt: int) -> EngineConfig:
    """Draw any settings. The pool often holds only about one prompt, so that requests lose their blocks."""
    block_size, max_num_seqs = rng.choice(BLOCK_SIZES), rng.choice((1, 2, 3, 4, 5, 8, 16))
    num_slots = rng.choice((rng.randint(max_prompt, 2 * max_prompt), rng.randint(max_prompt, 4 * max_prompt), 2000))
    return EngineConfig(
        block_size=block_size, num_blocks=max(num_slots // block_size, 1) + rng.randint(1, 3),
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + rng.choice((0, 1, 3, 16, 40, 256)),
        max_num_chunk_tokens=rng.choice((None, 1, 4, 17)), watermark=rng.choice((0.0, 0.01, 0.1, 0.5)),
        max_model_len=rng.choice((None, None, None, rng.randint(2, 2 * max_prompt))),
        aging_rate=rng.choice((0.0, 0.1, 100.0)), enable_prefix_caching=rng.random() < 0.8,
        enable_lookahead=rng.choice((True, True, False, None)), preempt_for_priority=rng.random() < 0.5)


class PromptDraw:
    """Draws prompts related to earlier texts: the same text, a prefix, a branch, a continuation, or a new text."""

    def __init__(self, rng: random.Random, vocab_size: int, max_len: int, unwanted: Collection[int] = ()) -> None:
        self.rng, self.max_len = rng, max_len
        self.alphabet = [token for token in range(vocab_size) if token not in unwanted]
        if rng.random() < 0.5:  # few tokens: prompts also share prefixes by chance
            self.alphabet = rng.sample(self.alphabet, rng.randint(2, 8))
        #: Texts to start from: a few random ones, then all prompts, alone and with their outputs.
        self.texts = [self.fresh(rng.randint(1, max_len)) for _ in range(rng.randint(1, 3))]

    def fresh(self, count: int) -> list[int]:
        return [self.rng.choice(self.alphabet) for _ in range(count)]

    def draw(self) -> list[int]:
        rng, text = self.rng, self.rng.choice(self.texts)
        match rng.choice(("fresh", "the same", "a part", "branch", "branch", "and on", "and on")):
            case "fresh":
                prompt = self.fresh(rng.randint(1, self.max_len))
            case "the same":
                prompt = list(text)
            case "a part":
                prompt = text[:rng.randint(1, len(text))]
            case "branch":
                prompt = text[:rng.randint(1, len(text))] + self.fresh(rng.randint(1, 9))
            case "and on":
                prompt = text + self.fresh(rng.randint(0, 9))
        prompt = prompt[:2 * self.max_len]
        self.texts.append(prompt)
        return prompt


def draw_params(rng: random.Random, vocab_size: int, eos_token_ids: Collection[int], max_tokens: int) -> SamplingParams:
    """Draw sampling parameters: half of them greedy, most of the others with a seed.

    Each other field differs from its default one time in six.
    """
    def rarely(field: str, draw: Callable[[], object]) -> dict[str, object]:
        return {field: draw()} if rng.random() < 1 / 6 else {}

    max_tokens = rng.randint(1, max_tokens)
    fields: dict[str, Any] = dict(max_tokens=max_tokens, ignore_eos=rng.random() < 0.6, temperature=0.0,
                        n=rng.choice((1, 1, 1, 1, 2, 3, 5)))
    if rng.random() < 0.5:
        fields |= dict(temperature=rng.choice((0.05, 0.7, 1.0, 1.0, 1.5, 10.0)), seed=rng.randrange(2**32))
        fields |= rarely("seed", lambda: None)
        fields |= rarely("top_k", lambda: rng.choice((1, 2, 10, vocab_size, vocab_size + 5)))
        fields |= rarely("top_p", lambda: rng.choice((1e-6, 0.3, 0.9, 0.999)))
        fields |= rarely("min_p", lambda: rng.choice((0.01, 0.3, 1.0)))
    fields |= rarely("presence_penalty", lambda: rng.choice((-2.0, 0.3, 2.0)))
    fields |= rarely("frequency_penalty", lambda: rng.choice((-2.0, 0.2, 2.0)))
    fields |= rarely("allowed_token_ids", lambda: rng.sample(range(vocab_size), rng.randint(1, vocab_size)))
    fields |= rarely("bad_words", lambda: [chr(rng.randrange(33, 127)) * rng.randint(1, 2)])
    fields |= rarely("prompt_logprobs", lambda: rng.choice((0, 1, 3)))
    fields |= rarely("include_stop_str_in_output", lambda: True)
    fields |= rarely("skip_special_tokens", lambda: False)
    fields |= rarely("repetition_penalty", lambda: rng.choice((0.8, 1.1, 2.0)))
    fields |= rarely("logit_bias", lambda: _draw_bias(rng, vocab_size, eos_token_ids))
    fields |= rarely("min_tokens", lambda: rng.randint(0, max_tokens))
    fields |= rarely("stop_token_ids", lambda: [rng.randrange(vocab_size) for _ in range(rng.randint(1, 3))])
    fields |= rarely("stop", lambda: [chr(rng.randrange(33, 127)) for _ in range(rng.randint(1, 3))])
    fields |= rarely("logprobs", lambda: rng.choice((0, 1, 2, 20)))
    return SamplingParams(**fields)


def _draw_bias(rng: random.Random, vocab_size: int, eos_token_ids: Collection[int]) -> dict[int, float]:
    """Draw biases that make some tokens likelier or impossible.

    Often these are end tokens, which a random network seldom generates.
    """
    tokens = [*rng.sample(range(vocab_size), rng.randint(0, 3)), *rng.choice((eos_token_ids, ()))]
    return {token: rng.choice((-math.inf, -100.0, -2.0, 1.0, 6.0, 6.0)) for token in tokens}
