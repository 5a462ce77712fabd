"""The sampler next to the step in C: it chooses tokens in C too, with the same noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow, column
from mini_vllm.native.build import library
from mini_vllm.native.runner import usable_cores
from mini_vllm.native.weights import Array
from mini_vllm.sampler import ChosenTokens, Sampler, drops_tokens, filter_scores, noise_keys

CHOICE = np.dtype([("temperature", np.float32), ("key", np.uint32, 2), ("token", np.int32), ("largest", np.float32)])


#: For fewer logits than these it does not pay to wake the other threads.
MANY_NUMBERS = 2 ** 17


class StartedTokens(ChosenTokens):
    """Tokens that are chosen when another thread has computed their logits."""

    def __init__(self, logits: Future[Array], choose: Callable[[Array], Array]) -> None:
        self._logits, self._choose = logits, choose

    @cached_property
    def _choices(self) -> Array:
        return self._choose(self._logits.result())

    @property
    def token_ids(self) -> mx.array:
        return mx.array(self._choices["token"])

    @property
    def largest(self) -> mx.array:
        return mx.array(self._choices["largest"][:, None])

    def end(self) -> None:
        self._logits.exception()


class NativeSampler(Sampler):
    """The same tokens as a Sampler's, unless two sums of score and noise are equal but for rounding. It is not lazy."""

    def greedy(self, logits: mx.array) -> mx.array:
        return mx.array(_choose(np.asarray(logits.astype(mx.float32)), np.zeros(len(logits), CHOICE))["token"])

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        return self.draw_and_check(logits, rows, num_ahead)[0]

    def draw_and_check(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0
                       ) -> tuple[mx.array, mx.array]:
        choices = _choosing(rows, num_ahead)(np.asarray(logits.astype(mx.float32)))
        return mx.array(choices["token"]), mx.array(choices["largest"][:, None])

    def choose(self, logits: mx.array | Future[Array], rows: Sequence[SamplerRow], num_ahead: int = 0) -> ChosenTokens:
        if isinstance(logits, Future):  # a step that was started early: all rows are plain
            return StartedTokens(logits, _choosing(rows, num_ahead))
        return super().choose(logits, rows, num_ahead)


def _choosing(rows: Sequence[SamplerRow], num_ahead: int) -> Callable[[Array], Array]:
    """Return a function of logits that gives the token of each row, as it is now, and the row's largest logit.

    The result has them as fields of an array; the largest is NaN if the row contains one.
    """
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
