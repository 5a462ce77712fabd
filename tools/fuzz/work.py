"""One request of the engine fuzzer, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from fuzz.faults import Poison
from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import Priority, RequestOutput, SamplingParams


@dataclass
class Work:
    name: str
    prompt: list[int]
    params: SamplingParams
    priority: Priority
    extra_keys: tuple[object, ...] | None
    poison: Poison | None
    #: The number of tokens and the text of each sequence seen so far.
    seen: dict[int, tuple[int, str]] = field(default_factory=dict)
    output: RequestOutput | None = None

    @property
    def last_output(self) -> RequestOutput:
        """The final output. Raises AssertionError if the request never ended."""
        if self.output is None:
            raise AssertionError(f"{self} never ended")
        return self.output

    @property
    def num_tokens_at_most(self) -> int:
        """The largest possible number of tokens, over all its sequences together."""
        return self.params.n * (len(self.prompt) + (self.params.max_tokens or 0))

    def __str__(self) -> str:
        changed = [f"{each.name}={getattr(self.params, each.name)!r}" for each in fields(self.params)
                   if getattr(self.params, each.name) != getattr(SamplingParams(), each.name)]
        reasons = [each.finish_reason for each in self.output.outputs] if self.output else "no end"
        return (f"{self.name}: prompt {short(self.prompt)}, {', '.join(changed)}, {self.priority.name}, "
                f"extra_keys={self.extra_keys}{f', {self.poison}' if self.poison else ''} → {reasons}")


def is_unseeded(params: SamplingParams) -> bool:
    """Check whether the tokens are drawn differently each time, so that there is nothing to compare them with."""
    return params.temperature > 0 and params.seed is None


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    return next((index for index, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def short(token_ids: Sequence[int]) -> str:
    return str(list(token_ids)) if len(token_ids) <= 100 else f"{str(list(token_ids[:100]))[:-1]}, … {len(token_ids)}]"


def changes(config: EngineConfig) -> str:
    """Describe the settings that differ from their defaults."""
    return ", ".join(f"{each.name}={getattr(config, each.name)!r}" for each in fields(config)
                     if getattr(config, each.name) != each.default)
