"""The duration of a decode step: requests with contexts of some length get one token each, again and again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mini_vllm.attention import PagedKVCache
from mini_vllm.backend import mx, nn
from mini_vllm.benchmark.peers import make_generator
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import SamplingParams

CONTEXT, LONG_CONTEXT = 512, 4096
#: The number of timed steps, which follow equally many untimed steps; this number in a quick run; and the number of
#: stretches into which the timed steps are divided.
NUM_STEPS, QUICK_STEPS, NUM_STRETCHES = 32, 4, 4


@dataclass(frozen=True)
class Stepper:
    """The requests that are timed: all of them have their first token."""

    num_requests: int
    #: Returns the number of requests that got a token.
    step: Callable[[], int]
    #: Waits for the device: a step may have begun the next one.
    settle: Callable[[], None]


def check_floor(what: str, found_ms: float | None, floor_ms: float | None) -> None:
    """Raise ValueError if a step took less than ``floor_ms``: then something else was measured."""
    if floor_ms is not None and found_ms is not None and found_ms < floor_ms:
        raise ValueError(f"{what}: {found_ms:.3g} ms, but reading weights, keys and values takes at least "
                         f"{floor_ms:.3g} ms at this bandwidth; either the measurement is wrong, or the bandwidth is "
                         "higher (--bandwidth)")


def prompts(num_requests: int, vocab_size: int, context: int, num_steps: int) -> list[list[int]]:
    """Return different prompts, of a length that puts the timed steps around ``context``."""
    rng = np.random.default_rng(num_requests)
    ids = rng.integers(0, min(vocab_size, 10_000), (num_requests, context - num_steps - num_steps // 2))
    found: list[list[int]] = ids.tolist()
    return found


def time_both(loaded: LoadedModel, peer: nn.Module | None, num_requests: int, context: int = CONTEXT,
              num_steps: int = NUM_STEPS) -> tuple[float, float | None]:
    """Measure milliseconds per step of our engine, and of mlx-lm's BatchGenerator if there is one."""
    all_prompts = prompts(num_requests, loaded.config.vocab_size, context, num_steps)
    steppers = [begin_ours(loaded, all_prompts, num_steps)]
    if peer is not None:
        steppers.append(begin_peer(peer, all_prompts, num_steps))
    ours_ms, *peer_ms = time_in_turns(steppers, num_steps)
    return ours_ms, peer_ms[0] if peer_ms else None


def begin_ours(loaded: LoadedModel, all_prompts: list[list[int]], num_steps: int) -> Stepper:
    """Start our engine, with all prompts computed and cached first.

    Otherwise the first requests would decode while the last prompts are computed, and at long contexts end before that.
    """
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
    """Start mlx-lm.

    Its first requests decode while the last prompts are computed, so more tokens are allowed for that.
    """
    num_requests = len(all_prompts)
    generator = make_generator(model, batch_size=num_requests)
    generator.insert(all_prompts, [4 * num_steps + len(all_prompts[0])] * num_requests)
    started: set[int] = set()
    while len(started) < num_requests:
        started.update(response.uid for response in generator.next()[1])
    return Stepper(num_requests, lambda: len({response.uid for response in generator.next()[1]}),
                   lambda: mx.synchronize(generator.stream))


def time_in_turns(steppers: Sequence[Stepper], num_steps: int) -> list[float]:
    """Return the median of each stepper's stretches, in milliseconds per step.

    A step may begin the next, so a single one says little. The steppers take turns, because a step is mostly CPU time,
    and a CPU may be half as fast again from one second to the next: so both are measured in the same seconds. The first
    step of a turn, for which nothing was begun, is not counted. Raise ValueError if a request got no token in a timed
    step.
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
            if min(num_decoding) < stepper.num_requests:  # such a step does less work than reported
                raise ValueError(f"all {stepper.num_requests} requests must decode in every timed step, but in one "
                                 f"step only {min(num_decoding)} got a token; the measurement does not count")
            stepper.settle()
    return [statistics.median(found) * 1000 for found in stretches]


def bytes_per_step(loaded: LoadedModel, num_requests: int, context: int = CONTEXT) -> int:
    """Return the bytes that a step must read at least: every weight once, and the keys and values of every request."""
    config = loaded.config
    token_bytes = PagedKVCache.block_bytes(config.num_layers, config.num_kv_heads, 1, config.head_dim,
                                           loaded.model.model.norm.weight.dtype)
    return loaded.num_bytes + token_bytes * context * num_requests
