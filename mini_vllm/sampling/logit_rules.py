"""Rules that change the logits before a draw: bias, penalties, and forbidden tokens.

    logits ─▶ + logit_bias ─▶ repetition ─▶ presence, frequency ─▶ forbidden tokens ─▶ allowed tokens only ─▶ grammar

Each rule takes all rows at once and leaves rows that do not ask for it unchanged; if no row asks, it returns the same
array object that it was given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.backend import mx
from mini_vllm.sampling.bad_words import BadWords
from mini_vllm.sampling.row import SamplerRow

LARGEST = float(np.finfo(np.float32).max)
TokenIds = Sequence[int] | NDArray[np.int64]


def adjust(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Return ``logits`` after bias and penalties, with -inf for forbidden tokens. The argument is unchanged."""
    adjusted = logits
    for rule in (_add_bias, _penalise_repetition, _subtract_penalties, _ban, _keep_allowed, _keep_grammatical):
        adjusted = rule(adjusted, rows)
    return adjusted if adjusted is logits else mx.minimum(adjusted, LARGEST)


def check_token_ids(rows: Sequence[SamplerRow], vocab_size: int) -> None:
    """Raise ValueError if a parameter names a token id outside the vocabulary."""
    for index, row in enumerate(rows):
        for name, token_ids in (("logit_bias", row.biased_ids), ("allowed_token_ids", row.allowed_ids)):
            if (outside := token_ids[token_ids >= vocab_size]).size:
                raise ValueError(f"row {index}: {name} names token {outside[0]}, "
                                 f"but the vocabulary has {vocab_size} tokens")


def leaves_a_token(row: SamplerRow, vocab_size: int) -> bool:
    """Check whether the rules leave a row any token to draw next."""
    banned = {*_banned_token_ids(row), *row.biased_ids[row.biases == -np.inf].tolist()}
    mask = None if row.cursor is None else row.cursor.allowed()
    if mask is not None:
        banned.update(np.flatnonzero(~mask[:vocab_size]).tolist())
    if row.params.allowed_token_ids is not None:
        return not banned.issuperset(row.params.allowed_token_ids)
    return len(banned) < vocab_size or not banned.issuperset(range(vocab_size))


def _add_bias(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    biased = {i: row.biased_ids for i, row in enumerate(rows) if row.params.logit_bias}
    if not biased:
        return logits
    # A bias of +inf becomes the largest finite number: infinities could not be subtracted from each other.
    bias = np.minimum(np.concatenate([rows[i].biases for i in biased]), LARGEST)
    return logits.at[_places(biased, logits.shape[1])].add(mx.array(bias.astype(np.float32)))


def _penalise_repetition(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    seen = {i: list(chain(row.prompt_token_ids, row.output_token_ids)) for i, row in enumerate(rows)
            if row.params.repetition_penalty != 1}
    if not seen:
        return logits
    row_ids, token_ids = _places(seen, logits.shape[1])
    penalty = column([row.params.repetition_penalty for row in rows])[row_ids, 0]
    old = logits[row_ids, token_ids]
    adjusted = mx.array(logits)
    # A token seen twice is written twice, both times with the same value.
    adjusted[row_ids, token_ids] = mx.where(old > 0, old / penalty, old * penalty)
    return adjusted


def _subtract_penalties(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    penalties = {i: _penalties(row) for i, row in enumerate(rows)
                 if (row.params.presence_penalty or row.params.frequency_penalty) and row.output_token_ids}
    if not penalties:
        return logits
    places = _places({i: token_ids for i, (token_ids, _) in penalties.items()}, logits.shape[1])
    amounts = np.concatenate([amounts for _, amounts in penalties.values()])
    return logits.at[places].add(mx.array(-amounts.astype(np.float32)))


def _penalties(row: SamplerRow) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distinct tokens of the output, and what to subtract from their logits.

    The presence penalty counts once per token, the frequency penalty once per occurrence.
    """
    token_ids, counts = np.unique(np.asarray(row.output_token_ids), return_counts=True)
    return token_ids, row.params.presence_penalty + row.params.frequency_penalty * counts


def _ban(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    banned = {i: token_ids for i, row in enumerate(rows) if (token_ids := _banned_token_ids(row))}
    return logits.at[_places(banned, logits.shape[1])].minimum(-math.inf) if banned else logits


def _banned_token_ids(row: SamplerRow) -> list[int]:
    """Return the tokens that must not be next: ends before ``min_tokens``, and the last token of a bad word's
    sequence."""
    banned: list[int] = []
    output = row.output_token_ids
    if len(output) < row.params.min_tokens:
        banned += [*row.eos_token_ids, *(row.params.stop_token_ids or ())]
    words = row.bad_words if isinstance(row.bad_words, BadWords) else BadWords(row.bad_words)
    return banned + words.banned_after(output)


def _keep_allowed(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    allowed = {i: row.allowed_ids for i, row in enumerate(rows) if row.params.allowed_token_ids is not None}
    if not allowed:
        return logits
    walls = np.zeros(logits.shape, dtype=np.float32)
    for i, token_ids in allowed.items():
        walls[i] = -np.inf
        walls[i, token_ids] = 0.0
    return logits + mx.array(walls)


def _keep_grammatical(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    return keep_allowed(logits, [None if row.cursor is None else row.cursor.allowed() for row in rows])


def keep_allowed(logits: mx.array, masks: Sequence[NDArray[np.bool_] | None]) -> mx.array:
    """Return the logits with -inf for every token that the mask of its row does not allow. None allows all tokens."""
    if all(mask is None for mask in masks):
        return logits
    all_tokens = np.ones(logits.shape[1], dtype=np.bool_)
    every = np.stack([all_tokens if mask is None else mask for mask in masks])
    return mx.where(mx.array(every), logits, -math.inf)


def _places(token_ids_of_row: Mapping[int, TokenIds], vocab_size: int) -> tuple[mx.array, mx.array]:
    """Return the row numbers and token ids of all places as two arrays. Tokens outside the vocabulary have no logit."""
    row_ids = np.repeat(list(token_ids_of_row), [len(token_ids) for token_ids in token_ids_of_row.values()])
    token_ids = np.concatenate([np.asarray(each, dtype=np.int64) for each in token_ids_of_row.values()])
    inside = (token_ids >= 0) & (token_ids < vocab_size)
    return mx.array(row_ids[inside].astype(np.int32)), mx.array(token_ids[inside].astype(np.int32))


def column(values: Sequence[float], smallest: float = float(np.finfo(np.float32).tiny)) -> mx.array:
    """Return one number per row as a column.

    Numbers outside the range of float32 are clipped, because they would be rounded to 0 or inf.
    """
    return mx.array(np.clip(values, smallest, LARGEST).astype(np.float32)[:, None])
