"""What the sampler knows about a request, and the rules that change its logits before a draw.

    logits ─▶ + logit_bias ─▶ repetition ─▶ presence, frequency, banned tokens ─▶ allowed tokens ─▶ grammar

Rows without rules keep their logits. If no row has any, ``adjust`` returns the array that it was given.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.backend import mx
from mini_vllm.checks import refusal
from mini_vllm.request import SamplingParams
from mini_vllm.structured.compiler import Cursor

#: The environment variable that makes requests without a seed repeatable.
SEED_VARIABLE = "MINI_VLLM_SEED"
#: The error of a request whose own parameters contradict each other.
NO_TOKEN_LEFT = ("allowed_token_ids, bad_words, logit_bias, min_tokens, stop_token_ids and structured_outputs leave no "
                 "possible next token")
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

#: Two 32-bit words, derived from the seed of a request and the index of the continuation.
Key = tuple[int, int]
Mask = NDArray[np.bool_]
#: Token ids of one row, and what to add to their logits.
Changes = tuple[NDArray[Any], NDArray[Any]]
NO_CHANGES: Changes = np.array([], dtype=np.int64), np.array([])


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

    # What does not change from step to step is computed once.

    @cached_property
    def is_plain(self) -> bool:
        """Whether the result is just a token: no logit depends on earlier tokens, and no log-probability is reported.

        Such tokens can be chosen before the preceding ones are known.
        """
        params = self.params
        return (params.repetition_penalty == 1 and params.presence_penalty == 0 and params.frequency_penalty == 0
                and not params.logit_bias and params.allowed_token_ids is None and not self.bad_words
                and params.min_tokens == 0 and params.logprobs is None and self.cursor is None)

    @cached_property
    def bias(self) -> Changes:
        """The bias. +inf becomes the largest finite number: infinities could not be subtracted from each other."""
        bias = self.params.logit_bias or {}
        return np.array(list(bias), dtype=np.int64), np.minimum(np.array(list(bias.values()), dtype=float), LARGEST)

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


class BadWords:
    """Forbidden token sequences, prepared once for all rows that have the same words.

    The last token of a sequence is banned when the output ends with the tokens before it. Those tokens are stored as
    bytes, which take a tenth of the memory of lists and a tenth of the time to compare.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        #: Second-to-last token of a sequence, if there is one → the tokens before the last one, and the last one.
        self._after: dict[tuple[int, ...], list[tuple[bytes, int]]] = defaultdict(list)
        self._max_len = 1
        for *beginning, last in filter(None, dict.fromkeys(map(tuple, sequences))):
            self._after[tuple(beginning[-1:])].append((_as_bytes(beginning), last))
            self._max_len = max(self._max_len, len(beginning))

    def __bool__(self) -> bool:
        return bool(self._after)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Yield the sequences."""
        for beginning, last in chain.from_iterable(self._after.values()):
            yield (*np.frombuffer(beginning, dtype=np.int64).tolist(), last)

    def banned_after(self, output: Sequence[int]) -> list[int]:
        """Return the tokens that must not be next."""
        candidates = [word for previous in {(), tuple(output[-1:])} for word in self._after.get(previous, ())]
        tail = _as_bytes(output[-self._max_len:]) if candidates else b""
        return [last for beginning, last in candidates if tail.endswith(beginning)]


def _as_bytes(token_ids: Sequence[int]) -> bytes:
    return np.array(token_ids, dtype=np.int64).tobytes()


# ---- the rules


def adjust(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Return ``logits`` after all rules but the grammar, with -inf for forbidden tokens. The argument is unchanged."""
    adjusted = _add(logits, [row.bias for row in rows])
    adjusted = _penalise_repetition(adjusted, rows)
    adjusted = _add(adjusted, [_penalties_and_bans(row) for row in rows])
    return keep_allowed(adjusted, [None if row.params.allowed_token_ids is None
                                   else _mask_of(row.allowed_ids, logits.shape[1]) for row in rows])


def leaves_a_token(row: SamplerRow, vocab_size: int) -> bool:
    """Check whether the rules leave a row any token to draw next."""
    left = np.ones(vocab_size, dtype=np.bool_)
    if row.params.allowed_token_ids is not None:
        left = _mask_of(row.allowed_ids, vocab_size)
    mask = None if row.cursor is None else row.cursor.allowed()
    if mask is not None:
        left &= mask[:vocab_size]
    for token_ids, amounts in (row.bias, _penalties_and_bans(row)):
        left[token_ids[(amounts == -np.inf) & (token_ids < vocab_size)]] = False
    return bool(left.any())


def check_token_ids(rows: Sequence[SamplerRow], vocab_size: int) -> None:
    """Raise ValueError if a parameter names a token id outside the vocabulary."""
    for index, row in enumerate(rows):
        for name, token_ids in (("logit_bias", row.bias[0]), ("allowed_token_ids", row.allowed_ids)):
            if (outside := token_ids[token_ids >= vocab_size]).size:
                raise ValueError(f"row {index}: {name} names token {outside[0]}, "
                                 f"but the vocabulary has {vocab_size} tokens")


def _add(logits: mx.array, changes: Sequence[Changes]) -> mx.array:
    """Add the changes of each row to its logits."""
    places = _places(changes, logits.shape[1])
    return logits if places is None else logits.at[places[:2]].add(places[2])


def _penalise_repetition(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Divide the logits of tokens that have occurred by the penalty; multiply them if they are negative."""
    places = _places([_repetitions(row) for row in rows], logits.shape[1])
    if places is None:
        return logits
    row_ids, token_ids, penalty = places
    old = logits[row_ids, token_ids]
    adjusted = mx.array(logits)
    # A token seen twice is written twice, both times with the same value.
    adjusted[row_ids, token_ids] = mx.minimum(mx.where(old > 0, old / penalty, old * penalty), LARGEST)
    return adjusted


def _repetitions(row: SamplerRow) -> Changes:
    """Return the tokens of prompt and output, each with the repetition penalty."""
    if row.params.repetition_penalty == 1:
        return NO_CHANGES
    seen = np.array([*row.prompt_token_ids, *row.output_token_ids], dtype=np.int64)
    return seen, np.full(len(seen), np.clip(row.params.repetition_penalty, SMALLEST, LARGEST))


def _penalties_and_bans(row: SamplerRow) -> Changes:
    """Return what to add after the repetition penalty: minus the penalties, and -inf for tokens that must not be next.

    The presence penalty counts once per token of the output, the frequency penalty once per occurrence. Banned are the
    ends of the text before ``min_tokens``, and the last token of a bad word's sequence.
    """
    params, output = row.params, row.output_token_ids
    token_ids, amounts = NO_CHANGES
    if params.presence_penalty or params.frequency_penalty:
        token_ids, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        amounts = -(params.presence_penalty + params.frequency_penalty * counts)
    words = row.bad_words if isinstance(row.bad_words, BadWords) else BadWords(row.bad_words)
    banned = words.banned_after(output)
    if len(output) < params.min_tokens:
        banned += [*row.eos_token_ids, *(params.stop_token_ids or ())]
    if not banned:
        return token_ids, amounts
    return np.append(token_ids, np.array(banned, dtype=np.int64)), np.append(amounts, np.full(len(banned), -np.inf))


def _places(changes: Sequence[Changes], vocab_size: int) -> tuple[mx.array, mx.array, mx.array] | None:
    """Return row, token id and amount of all changes; None without any. Ids outside the vocabulary have no logit."""
    row_ids = np.repeat(np.arange(len(changes)), [len(token_ids) for token_ids, _ in changes])
    if not row_ids.size:
        return None
    token_ids, amounts = map(np.concatenate, zip(*changes))
    inside = (token_ids >= 0) & (token_ids < vocab_size)
    return (mx.array(row_ids[inside].astype(np.int32)), mx.array(token_ids[inside].astype(np.int32)),
            mx.array(amounts[inside].astype(np.float32)))


def _mask_of(token_ids: NDArray[np.int64], vocab_size: int) -> Mask:
    mask = np.zeros(vocab_size, dtype=np.bool_)
    mask[token_ids] = True
    return mask


def grammar_masks(rows: Sequence[SamplerRow]) -> tuple[list[Mask | None], dict[int, ValueError]]:
    """Return the mask of each row's grammar, None without one, and the errors of grammars that give none."""
    masks: list[Mask | None] = [None] * len(rows)
    errors = {}
    for index, row in enumerate(rows):
        if row.cursor is not None:
            try:
                masks[index] = row.cursor.allowed()
            except ValueError as error:
                errors[index] = error
    return masks, errors


def keep_allowed(logits: mx.array, masks: Sequence[NDArray[np.bool_] | None]) -> mx.array:
    """Return the logits with -inf for every token that the mask of its row does not allow. None allows all tokens."""
    if all(mask is None for mask in masks):
        return logits
    all_tokens = np.ones(logits.shape[1], dtype=np.bool_)
    every = np.stack([all_tokens if mask is None else mask for mask in masks])
    return mx.where(mx.array(every), logits, -math.inf)


def column(values: Sequence[float], smallest: float = SMALLEST) -> mx.array:
    """Return one number per row as a column.

    Numbers outside the range of float32 are clipped, because they would be rounded to 0 or inf.
    """
    return mx.array(np.clip(values, smallest, LARGEST).astype(np.float32)[:, None])
