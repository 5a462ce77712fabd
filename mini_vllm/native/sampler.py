"""The sampler next to the step in C: it chooses tokens in C too, with the same noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.native.build import library
from mini_vllm.native.runner import usable_cores
from mini_vllm.native.weights import Array
from mini_vllm.sampler import Sampler, noise_keys
from mini_vllm.sampling.filters import drops_tokens, filter_scores
from mini_vllm.sampling.logit_rules import column
from mini_vllm.sampling.row import SamplerRow

CHOICE = np.dtype([("temperature", np.float32), ("key", np.uint32, 2), ("token", np.int32), ("largest", np.float32)])


#: For fewer logits than these it does not pay to wake the other threads.
MANY_NUMBERS = 2 ** 17


class NativeSampler(Sampler):
    """The same tokens as a Sampler's, unless two sums of score and noise are equal but for rounding. It is not lazy."""

    def greedy(self, logits: mx.array) -> mx.array:
        return mx.array(_choose(np.asarray(logits.astype(mx.float32)), np.zeros(len(logits), CHOICE))["token"])

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        return mx.array(self.choose(logits, rows, num_ahead)["token"])

    def choose(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> Array:
        """Return each row's token and its largest logit, NaN if it contains one, as fields of an array."""
        return self.choosing(rows, num_ahead)(np.asarray(logits.astype(mx.float32)))

    def choosing(self, rows: Sequence[SamplerRow], num_ahead: int) -> Callable[[Array], Array]:
        """Return ``choose`` for these rows as they are now, as a function of logits."""
        choices = np.zeros(len(rows), CHOICE)
        drawn = [index for index, row in enumerate(rows) if row.params.temperature > 0]
        if drawn:
            choices["temperature"][drawn] = column([rows[index].params.temperature for index in drawn])[:, 0]
            choices["key"][drawn] = noise_keys([rows[index] for index in drawn], num_ahead)
        filtered = [index for index in drawn if drops_tokens(rows[index])]

        def choose(logits: Array) -> Array:
            _choose(logits, choices)
            if filtered:
                again = choices[filtered]
                again["temperature"] = 1
                scores = filter_scores(mx.array(logits[filtered]), [rows[index] for index in filtered])
                choices["token"][filtered] = _choose(np.asarray(scores), again)["token"]
            return choices
        return choose


def _choose(logits: Array, choices: Array) -> Array:
    numbers = np.ascontiguousarray(logits)
    takes_long = choices["temperature"].any() and numbers.size > MANY_NUMBERS
    library().choose_tokens(numbers.ctypes, *numbers.shape, choices.ctypes, usable_cores() if takes_long else 1)
    return choices
