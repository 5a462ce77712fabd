"""A sampler that chooses every token by calling a function with a list of numbers.

The reference draws by the Gumbel-max trick: it adds random numbers to the scores and takes the largest sum. So a
function that finds the largest number of a list can choose tokens at any temperature, given the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.sampler import Sampler, noisy_scores


def sampler_that_asks(choose: Callable[[list[float]], Any]) -> type[Sampler]:
    """Return a sampler class. ``choose`` gets the scores of all tokens, and returns the id of the largest."""
    class AskingSampler(Sampler):
        def greedy(self, logits: mx.array) -> mx.array:
            rows = cast(list[list[float]], logits.astype(mx.float32).tolist())
            return mx.array([_checked(choose(row), len(row)) for row in rows], dtype=mx.uint32)

        def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
            return self.greedy(noisy_scores(logits, rows, num_ahead))

    return AskingSampler


def _checked(token_id: Any, vocab_size: int) -> int:
    if type(token_id) is not int or not 0 <= token_id < vocab_size:
        raise ValueError(f"the function that chooses a token returned {token_id!r:.80}, must be an int from 0 to "
                         f"{vocab_size - 1}")
    return token_id
