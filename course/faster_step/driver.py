"""Builds a network and a model runner for it where the file under test runs, and computes steps with them.

The file may run in the grader's sandbox. Steps cross the socket as data, and so do results; the network is on the
file's side. What a driver returns is what the file computed, or claims to have computed: the caller checks it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course.testing import measure

#: Name and numbers of each tensor of a checkpoint.
Weights = tuple[tuple[str, Any], ...]
#: The best token of a row of logits, its logit, and by how much it is better than the second best.
Best = tuple[int, float, float]


@dataclass(frozen=True)
class StepRequest:
    """The fields of the engine's RequestStep."""

    token_ids: Sequence[int]
    block_ids: Sequence[int]
    context_len: int
    needs_logits: bool
    needs_all_logits: bool = False


def make_driver(runner_class: Any, config: Mapping[str, Any] | str, weights: Weights, num_blocks: int, block_size: int
                ) -> Any:
    """Return a Driver for a runner of this class, where the file under test runs. ``config`` may be JSON text.

    The config crosses the socket as text. A dictionary would be shared with the sandbox, and the file could change the
    config from which the expected results are computed.
    """
    text = config if isinstance(config, str) else json.dumps(config)
    return measure.where.measure("make_driver", runner_class, text, weights, num_blocks, block_size)


@measure.beside_the_file
def _make_driver(runner_class: Any, config: str, weights: Weights, num_blocks: int, block_size: int) -> Driver:
    return Driver(runner_class, json.loads(config), dict(weights), num_blocks, block_size)


class Driver:
    """A model runner under test, and its network."""

    def __init__(self, runner_class: Any, config: dict[str, Any], weights: dict[str, Any], num_blocks: int,
                 block_size: int) -> None:
        # Imported here: sandboxes of labs without MLX contain this file, too.
        import mlx.core as mx

        from mini_vllm.models.config import ModelConfig
        from mini_vllm.models.weights import make_model
        self._mx = mx
        with self._on_cpu():
            model = make_model(ModelConfig.from_dict(config), weights)
            self._runner = runner_class(model, num_blocks, block_size, None)

    def _on_cpu(self) -> Any:
        """Compute on the CPU: the work of a GPU is not CPU time."""
        return self._mx.stream(self._mx.cpu)

    def step(self, requests: Sequence[tuple[Any, ...]], copies: Sequence[tuple[int, int]] = ()) -> Any:
        """Compute a step and return its logits. A request is a tuple of the fields of StepRequest."""
        made = [StepRequest(list(token_ids), list(block_ids), *rest) for token_ids, block_ids, *rest in requests]
        with self._on_cpu():
            return self._runner.step(made, list(copies))

    def best(self, requests: Sequence[tuple[Any, ...]]) -> list[Best]:
        """Compute a step and return the best token of each row of its logits."""
        import numpy as np
        logits = np.array(self.step(requests), dtype=np.float32)
        if not len(logits):
            self.wait()
            return []
        rows, best = np.arange(len(logits)), logits.argmax(axis=1)
        values = logits[rows, best]
        logits[rows, best] = -np.inf
        return list(zip(best.tolist(), values.tolist(), (values - logits.max(axis=1)).tolist()))

    def wait(self) -> None:
        """Compute the pools now, as the engine does after a step without logits."""
        self._mx.eval(self._runner.cache.pools)

    def pools(self) -> list[Any]:
        """Return the content of the pools, one array per layer."""
        return list(self._runner.cache.pools)

    def fill(self, value: float) -> None:
        """Fill all pools with one number."""
        pools = self._runner.cache.pools
        with self._on_cpu():
            pools[:] = [self._mx.full(pool.shape, value, pool.dtype) for pool in pools]
        self._mx.eval(pools)

    def num_copied_blocks(self) -> int:
        return int(self._runner.cache.num_copied_blocks)
