"""The choice of tokens in a measurement: the most likely ones, or drawn, in the same way by us and by mlx-lm."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mini_vllm.request import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.backend import mx


@dataclass(frozen=True)
class Drawing:
    """The sampling of a measurement. Greedy if the temperature is 0."""

    temperature: float = 0.0
    top_p: float = 1.0

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Drawing:
        return cls(arguments.temperature, arguments.top_p)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--temperature", type=float, default=0.0,
                            help="above 0: draw tokens at random (default: greedy)")
        parser.add_argument("--top-p", type=float, default=1.0)

    def __post_init__(self) -> None:
        self.params(1, 0)  # rejects invalid values before a model is loaded

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def params(self, num_tokens: int, seed: int) -> SamplingParams:
        return SamplingParams(max_tokens=num_tokens, temperature=self.temperature, top_p=self.top_p, seed=seed,
                              ignore_eos=True)

    def peer_sampler(self) -> Callable[[mx.array], mx.array]:
        """Return the same sampling for mlx-lm. Its drawn tokens differ from ours: it has its own random generator."""
        from mlx_lm.sample_utils import make_sampler
        return make_sampler(self.temperature, 0.0 if self.top_p == 1 else self.top_p)

    def __str__(self) -> str:
        if self.is_greedy:
            return "greedy"
        return f"temperature {self.temperature:g}" + (f", top-p {self.top_p:g}" if self.top_p < 1 else "")


GREEDY = Drawing()
