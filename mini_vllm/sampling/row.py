"""The sampler's view of one request, and the source of its randomness."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mini_vllm.checks import refusal
from mini_vllm.request import SamplingParams
from mini_vllm.sampling.bad_words import BadWords
from mini_vllm.structured.compiler import Cursor

#: The environment variable that makes requests without a seed repeatable.
SEED_VARIABLE = "MINI_VLLM_SEED"
#: Two 32-bit words, derived from the seed of a request and the index of the continuation.
Key = tuple[int, int]


@dataclass
class SamplerRow:
    """The parameters and the tokens so far of the request that one row of the logits belongs to."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    #: Like the stop ids, not sampled until there are ``min_tokens`` output tokens.
    eos_token_ids: Collection[int]
    #: From ``make_key``. Together with the number of output tokens so far, it determines the draw.
    key: Key
    #: Token sequences of ``params.bad_words``; the engine has converted them into BadWords.
    bad_words: Sequence[tuple[int, ...]] | BadWords = ()
    #: The place in the grammar that the output must match; None if it is free.
    cursor: Cursor | None = None

    # What does not change from step to step, as arrays.

    @cached_property
    def biased_ids(self) -> NDArray[np.int64]:
        return np.array(list(self.params.logit_bias or ()), dtype=np.int64)

    @cached_property
    def biases(self) -> NDArray[np.float64]:
        return np.array(list((self.params.logit_bias or {}).values()), dtype=np.float64)

    @cached_property
    def allowed_ids(self) -> NDArray[np.int64]:
        return np.array(self.params.allowed_token_ids or (), dtype=np.int64)


def row_after(row: SamplerRow, token_ids: Sequence[int]) -> SamplerRow:
    """Return the row as it would be if the request had got ``token_ids``."""
    if not token_ids:
        return row
    following = copy(row)
    following.output_token_ids = [*row.output_token_ids, *token_ids]
    if row.cursor is not None:
        following.cursor = row.cursor.after(token_ids)
    return following


def make_key(seed: int | None, index: int = 0) -> Key:
    """Return the key of continuation ``index`` of a request.

    A request without a seed gets the seed in ``MINI_VLLM_SEED``; if that variable is not set, a new one each time.
    Raise ValueError if the variable is not a whole number, 0 or more.
    """
    entropy = _default_seed() if seed is None else seed
    first, second = np.random.SeedSequence(entropy, spawn_key=(index,)).generate_state(2)
    return int(first), int(second)


def _default_seed() -> int | None:
    text = os.environ.get(SEED_VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise refusal(SEED_VARIABLE, text, "a whole number, at least 0")
    return int(text)


def is_plain(params: SamplingParams) -> bool:
    """Check whether the result is just a token: no logit depends on earlier tokens, and no log-probability is reported.

    Such tokens can be chosen before the preceding ones are known.
    """
    return params.structured_outputs is None and draws_plainly(params)


def draws_plainly(params: SamplingParams) -> bool:
    """Check whether the result is just a token, and at most a grammar says which tokens are possible."""
    return (params.repetition_penalty == 1 and params.presence_penalty == 0 and params.frequency_penalty == 0
            and not params.logit_bias and params.allowed_token_ids is None and not params.bad_words
            and params.min_tokens == 0 and params.logprobs is None)
