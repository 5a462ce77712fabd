"""How long a decode step takes: requests whose contexts have some length already get a token each, again and again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mini_vllm.attention import PagedKVCache
from mini_vllm.backend import mx, nn
from mini_vllm.benchmark.drawing import GREEDY
from mini_vllm.benchmark.mlx_lm_peer import make_generator
from mini_vllm.benchmark.request_times import check_all_decode
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import SamplingParams

CONTEXT, LONG_CONTEXT = 512, 4096
#: Steps that are timed, after as many that are not; in a quick run; and the stretches they are timed in.
NUM_STEPS, QUICK_STEPS, NUM_STRETCHES = 32, 4, 4


@dataclass(frozen=True)
class Stepper:
    """What is timed: requests that all have their first token."""

    num_requests: int
    #: Returns to how many requests it gave a token.
    step: Callable[[], int]
    #: Wait for the device: a step may have begun the next one.
    settle: Callable[[], None]


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds a step. Raises ValueError if one is less than ``floor_ms``: then something else was measured."""

    num_requests: int
    context: int
    ours_ms: float
    peer_ms: float | None
    #: Weights and keys and values that every step must read, over the bandwidth of the memory; None: it is not known.
    floor_ms: float | None

    def __post_init__(self) -> None:
        for name, found_ms in (("ours", self.ours_ms), ("mlx-lm's", self.peer_ms)):
            if self.floor_ms is not None and found_ms is not None and found_ms < self.floor_ms:
                raise ValueError(f"a step of {self.num_requests} requests at contexts of {self.context}, {name}: "
                                 f"{found_ms:.3g} ms, but reading weights, keys and values takes at least "
                                 f"{self.floor_ms:.3g} ms at this bandwidth; what was measured is not such a step, or "
                                 "the bandwidth is higher (--bandwidth)")

    @property
    def ratio(self) -> float | None:
        return None if self.peer_ms is None else self.peer_ms / self.ours_ms


def prompts(num_requests: int, vocab_size: int, context: int, num_steps: int) -> list[list[int]]:
    """All different, and so long that the timed steps lie around ``context``."""
    rng = np.random.default_rng(num_requests)
    ids = rng.integers(0, min(vocab_size, 10_000), (num_requests, context - num_steps - num_steps // 2))
    found: list[list[int]] = ids.tolist()
    return found


def time_both(loaded: LoadedModel, peer: nn.Module | None, num_requests: int, context: int = CONTEXT,
              num_steps: int = NUM_STEPS) -> tuple[float, float | None]:
    """Milliseconds a step of our engine, and of mlx-lm's BatchGenerator if there is one."""
    all_prompts = prompts(num_requests, loaded.config.vocab_size, context, num_steps)
    steppers = [begin_ours(loaded, all_prompts, num_steps)]
    if peer is not None:
        steppers.append(begin_peer(peer, all_prompts, num_steps))
    ours_ms, *peer_ms = time_in_turns(steppers, num_steps)
    return ours_ms, peer_ms[0] if peer_ms else None


def begin_ours(loaded: LoadedModel, all_prompts: list[list[int]], num_steps: int) -> Stepper:
    """All prompts are computed and cached first. Otherwise the first requests would have to wait for the last prompt,
    decoding meanwhile, and at long contexts be done before it is."""
    num_requests, max_tokens = len(all_prompts), 4 * num_steps
    num_blocks = num_requests * -(-(len(all_prompts[0]) + max_tokens) // DEFAULT_BLOCK_SIZE) + 2
    engine = LLMEngine(EngineConfig(num_blocks=num_blocks, max_num_seqs=num_requests), loaded=loaded)
    for num_tokens in (1, max_tokens):
        params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
        for index, prompt in enumerate(all_prompts):
            engine.add_request(prompt, params, str(index))
        started: set[str] = set()
        while len(started) < num_requests:
            started.update(output.request_id for output in engine.step())
    return Stepper(num_requests, lambda: len({output.request_id for output in engine.step()}), mx.synchronize)


def begin_peer(model: nn.Module, all_prompts: list[list[int]], num_steps: int) -> Stepper:
    """Its first requests decode while the last prompts are computed: they may, the more tokens are allowed for it."""
    num_requests = len(all_prompts)
    generator = make_generator(model, GREEDY, num_requests)
    generator.insert(all_prompts, [4 * num_steps + len(all_prompts[0])] * num_requests)
    started: set[int] = set()
    while len(started) < num_requests:
        started.update(response.uid for response in generator.next()[1])
    return Stepper(num_requests, lambda: len({response.uid for response in generator.next()[1]}),
                   lambda: mx.synchronize(generator.stream))


def time_in_turns(steppers: Sequence[Stepper], num_steps: int) -> list[float]:
    """Of each the median of its stretches, in milliseconds a step: a step may begin the next, so one alone says little.

    They take turns, because a step is CPU time for the most part, and one second a CPU is half as fast again as the
    next. So both are measured in the same seconds. The first step of a turn, which has nothing begun, is not counted.
    Raises ValueError if a request got no token in a timed step.
    """
    for stepper in steppers:
        for _ in range(num_steps):
            stepper.step()
        stepper.settle()
    stretches: list[list[float]] = [[] for _ in steppers]
    num = num_steps // NUM_STRETCHES
    for _ in range(NUM_STRETCHES):
        for stepper, found in zip(steppers, stretches):
            stepper.step()
            start_s = time.perf_counter()
            num_decoding = [stepper.step() for _ in range(num)]
            found.append((time.perf_counter() - start_s) / num)
            check_all_decode(stepper.num_requests, num_decoding)
            stepper.settle()
    return [statistics.median(found) * 1000 for found in stretches]


def bytes_per_step(loaded: LoadedModel, num_requests: int, context: int = CONTEXT) -> int:
    """What a step must read at least: every weight once, and the keys and values of every request."""
    config = loaded.config
    per_token = PagedKVCache.block_bytes(config.num_layers, config.num_kv_heads, 1, config.head_dim,
                                         loaded.model.model.norm.weight.dtype)
    return loaded.num_bytes + per_token * context * num_requests
