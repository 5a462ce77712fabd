"""How long a decode step takes: requests whose contexts have some length already get a token each, again and again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mini_vllm.attention import PagedKVCache
from mini_vllm.backend import nn
from mini_vllm.benchmark.drawing import GREEDY
from mini_vllm.benchmark.peer import make_generator
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import SamplingParams

CONTEXT = 512
#: Steps that are timed, after as many that are not; and in a quick run.
NUM_STEPS, QUICK_STEPS = 32, 4


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds a step."""

    num_requests: int
    ours_ms: float
    peer_ms: float | None
    #: Weights and keys and values that every step must read, over the bandwidth of the memory; None: it is not known.
    floor_ms: float | None

    @property
    def ratio(self) -> float | None:
        return None if self.peer_ms is None else self.peer_ms / self.ours_ms


def prompts(num_requests: int, vocab_size: int, context: int, num_steps: int) -> list[list[int]]:
    """All different, and so long that the timed steps lie around ``context``."""
    rng = np.random.default_rng(num_requests)
    ids = rng.integers(0, min(vocab_size, 10_000), (num_requests, context - num_steps - num_steps // 2))
    found: list[list[int]] = ids.tolist()
    return found


def time_ours(loaded: LoadedModel, num_requests: int, context: int = CONTEXT, num_steps: int = NUM_STEPS) -> float:
    """Milliseconds a step of our engine."""
    num_blocks = num_requests * -(-(context + 3 * num_steps) // DEFAULT_BLOCK_SIZE) + 2
    engine = LLMEngine(EngineConfig(num_blocks=num_blocks, max_num_seqs=num_requests), loaded=loaded)
    params = SamplingParams(max_tokens=4 * num_steps, temperature=0, ignore_eos=True)
    for index, prompt in enumerate(prompts(num_requests, loaded.config.vocab_size, context, num_steps)):
        engine.add_request(prompt, params, str(index))
    started: set[str] = set()
    while len(started) < num_requests:
        started.update(output.request_id for output in engine.step())
    return time_steps(lambda: engine.step(), num_steps)


def time_peer(model: nn.Module, vocab_size: int, num_requests: int, context: int = CONTEXT,
              num_steps: int = NUM_STEPS) -> float:
    """The same of mlx-lm's BatchGenerator."""
    generator = make_generator(model, GREEDY, num_requests)
    generator.insert(prompts(num_requests, vocab_size, context, num_steps), [4 * num_steps + context] * num_requests)
    started: set[int] = set()
    while len(started) < num_requests:
        started.update(response.uid for response in generator.next()[1])
    found_ms = time_steps(lambda: generator.next(), num_steps)
    generator.close()
    return found_ms


def time_steps(step: Callable[[], object], num_steps: int) -> float:
    """The median of four stretches, in milliseconds a step: a step may begin the next, so one alone says little."""
    for _ in range(num_steps):
        step()
    stretches, num = [], num_steps // 4
    for _ in range(4):
        start_s = time.perf_counter()
        for _ in range(num):
            step()
        stretches.append((time.perf_counter() - start_s) / num)
    return statistics.median(stretches) * 1000


def bytes_per_step(loaded: LoadedModel, num_requests: int, context: int = CONTEXT) -> int:
    """What a step must read at least: every weight once, and the keys and values of every request."""
    config = loaded.config
    per_token = PagedKVCache.block_bytes(config.num_layers, config.num_kv_heads, 1, config.head_dim,
                                         loaded.model.model.norm.weight.dtype)
    return loaded.num_bytes + per_token * context * num_requests
