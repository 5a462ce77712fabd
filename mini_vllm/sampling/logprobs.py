"""Log-probabilities by the model's own distribution: before bias, penalties, temperature and filters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mini_vllm.backend import mx
from mini_vllm.request import Logprob, TokenLogprob


def report_logprobs(logits: mx.array, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprob]:
    """Return the log-probability of ``token_ids[i]`` by row i of ``logits``, and the ``num_top[i]`` likeliest
    tokens."""
    logits = logits.astype(mx.float32)
    rows = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    return [TokenLogprob(token_id, float(logprobs[token_id]), _likeliest(logprobs, k),
                         rank=1 + int((logprobs > logprobs[token_id]).sum()))
            for logprobs, token_id, k in zip(rows, token_ids, num_top)]


def _likeliest(logprobs: NDArray[np.float32], k: int) -> dict[int, Logprob]:
    """Return the ``k`` likeliest tokens, most likely first. Equals have the same rank, the lower id first."""
    if k == 0:
        return {}
    smallest = np.partition(logprobs, -k)[-k] if k < len(logprobs) else -math.inf
    candidates = np.flatnonzero(logprobs >= smallest)
    order = candidates[np.argsort(-logprobs[candidates], kind="stable")][:k]
    values = logprobs[order]
    ranks = 1 + np.searchsorted(-values, -values)
    return {int(token_id): Logprob(float(value), int(rank)) for token_id, value, rank in zip(order, values, ranks)}
