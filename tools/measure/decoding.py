"""An engine whose requests decode and do not end, to measure its steps."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import SamplingParams


class Decoding:
    """An engine with one request per element of ``all_params``, all with the same number of prompt tokens."""

    def __init__(self, loaded: LoadedModel, all_params: Sequence[SamplingParams], context: int, num_steps: int,
                 **options: object) -> None:
        """Create the engine; ``start`` runs its prompts. ``options`` are fields of EngineConfig."""
        self._num_steps, self._num_requests = num_steps, len(all_params)
        blocks = sum(-(-(context + (params.max_tokens or 0)) // 32) + 2 for params in all_params) + 2
        self.engine = LLMEngine(EngineConfig(model=loaded.name, num_blocks=blocks, enable_prefix_caching=False,
                                             **options), loaded=loaded)  # type: ignore[arg-type]
        for index, params in enumerate(all_params):
            self.engine.add_request([1 + (7 * index + i) % 90 for i in range(context)], params, str(index))

    def start(self) -> Decoding:
        """Step until all requests decode, and a few steps more."""
        started: set[str] = set()
        while len(started) < self._num_requests:
            started.update(output.request_id for output in self.engine.step())
        for _ in range(4):
            self.engine.step()
        return self

    def step_ms(self) -> float:
        """Return the average time of a step."""
        mx.synchronize()
        start_s = time.perf_counter()
        for _ in range(self._num_steps):
            self.engine.step()
        mx.synchronize()
        return (time.perf_counter() - start_s) / self._num_steps * 1e3
