"""Sampling in plain Python: one token at a time, in double precision, without regard to speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mini_vllm.logit_rules import SamplerRow
from mini_vllm.request import SamplingParams

#: The number of standard deviations that a normal distribution exceeds once in ten million times.
ONCE_IN_TEN_MILLION = 5.2


def reference(logits: Sequence[float], row: SamplerRow) -> tuple[list[float], float]:
    """Return the probabilities by token id, all 0 if no token is left, and the smallest margin of any decision."""
    p, x = row.params, adjusted_logits(logits, row)
    highest = max(x)
    if highest == -math.inf:
        return [0.0] * len(x), 1.0
    if p.temperature == 0:
        best = x.index(highest)
        gap = min((highest - value for token, value in enumerate(x) if token != best), default=1.0)
        return [float(token == best) for token in range(len(x))], 1.0 if gap == 0 else min(1.0, gap)
    weight = [math.exp((value - highest) / p.temperature) for value in x]
    kept, nearest = kept_tokens(x, weight, p)
    total, probabilities = sum(weight[token] for token in kept), [0.0] * len(x)
    for token in kept:
        probabilities[token] = weight[token] / total
    return probabilities, nearest


def adjusted_logits(logits: Sequence[float], row: SamplerRow) -> list[float]:
    """Apply biases and penalties, and set the logits of forbidden tokens to -inf."""
    p, x, output = row.params, [float(value) for value in logits], list(row.output_token_ids)
    for token, bias in (p.logit_bias or {}).items():
        x[token] += bias
    for token in {*row.prompt_token_ids, *output}:
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    for token in output:
        x[token] -= p.frequency_penalty
    for token in set(output):
        x[token] -= p.presence_penalty
    for *beginning, last in row.bad_words:
        if output[len(output) - len(beginning):] == beginning:
            x[last] = -math.inf
    if p.allowed_token_ids is not None:
        allowed = set(p.allowed_token_ids)
        x = [value if token in allowed else -math.inf for token, value in enumerate(x)]
    if len(output) < p.min_tokens:
        for token in {*row.eos_token_ids, *(p.stop_token_ids or ())}:
            x[token] = -math.inf
    return x


def kept_tokens(x: Sequence[float], weight: Sequence[float], p: SamplingParams) -> tuple[list[int], float]:
    """Return the tokens that top-k, then top-p, then min-p keep, likeliest first, and the smallest margin."""
    nearest, kept = 1.0, sorted(range(len(x)), key=lambda token: (-x[token], token))
    if p.top_k and p.top_k < len(x):
        gap = x[kept[p.top_k - 1]] - x[kept[p.top_k]]
        nearest = min(nearest, gap if gap else 1.0)
        kept = kept[:p.top_k]
    if p.top_p < 1:
        total, mass = sum(weight[token] for token in kept), 0.0
        nucleus: list[int] = []
        for token in kept:
            if nucleus:
                nearest = min(nearest, abs(mass / total - p.top_p))
            if nucleus and mass / total >= p.top_p:
                break
            nucleus.append(token)
            mass += weight[token]
        kept = nucleus
    if p.min_p:
        nearest = min([nearest] + [abs(weight[token] - p.min_p) for token in kept if weight[token] not in (0, 1)])
    return [token for token in kept if weight[token] >= p.min_p], nearest


def chi_square_bound(freedom: int) -> float:
    """Return the chi-square value exceeded about once in ten million times (approximation of Wilson and Hilferty)."""
    if freedom == 0:
        return 1e-6
    part = 2 / (9 * freedom)
    return freedom * (1 - part + ONCE_IN_TEN_MILLION * math.sqrt(part)) ** 3
