"""Where the time of a decode step goes: the whole step, and the step without one of its parts.

The time of a part is the difference. Building the graph, which Python does before anything is computed, is timed
separately and included in all of them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np

from mini_vllm.backend import blas, mx, nn
from mini_vllm.fast.paged_kv_cache import FastKVCache
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models import network
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.models.random_model import RANDOM_MODELS, load_random
from mini_vllm.models.rope import Rope
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler
from mini_vllm.sampling.row import SamplerRow, make_key

NUM_REQUESTS = (1, 4, 16, 64)
CONTEXT, STEPS, ROUNDS = 256, 10, 9
#: The number of requests in the summary line.
IN_SHORT = 16


def print_parts(model: str, rounds: int = ROUNDS, all_num_requests: tuple[int, ...] = NUM_REQUESTS) -> None:
    loaded = load_random(model) if model in RANDOM_MODELS else load(model)
    print(f"{model}, BLAS: {blas.name}: a decode step at contexts of {CONTEXT}, ms, median of {rounds} rounds; for "
          "each part, the time that the step saves without it")
    print(f"{'requests':>8} {'step':>8} {'building':>9} " + " ".join(f"{name:>14}" for name in (*LEFT_OUT, "sampling")))
    in_short = ""
    for num_requests in all_num_requests:
        taken = measure(loaded, num_requests, rounds)
        whole, cells = taken.pop("step"), []
        for name in LEFT_OUT:
            lost = whole - taken[name]
            cells.append(f"{f'{lost:.2f} ({lost / whole:.0%})':>14}")
        print(f"{num_requests:>8} {whole:>8.2f} {taken['building']:>9.2f} {' '.join(cells)} {taken['sampling']:>14.2f}",
              flush=True)
        if num_requests == IN_SHORT:
            shares = [(name.replace(",", " and"), (whole - taken[name]) / whole) for name in LEFT_OUT]
            told = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.01)
            in_short = (f"In short: a decode step of {num_requests} requests takes {whole:.1f} ms; Python spends "
                        f"{taken['building']:.1f} ms of it building the graph; time saved by leaving out one "
                        f"part: {told}")
    if in_short:
        print(in_short)


def measure(loaded: LoadedModel, num_requests: int, rounds: int) -> dict[str, float]:
    """Return the median time of each variant in milliseconds, measured in turn."""
    step = repeated_step(loaded, num_requests)
    sample = _sample(loaded, num_requests)
    ways: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[None]], Callable[[], object]]] = {
        "step": (contextlib.nullcontext, lambda: mx.eval(step())), "building": (contextlib.nullcontext, step),
        "sampling": (contextlib.nullcontext, lambda: mx.eval(sample())),
        **{name: (left_out, lambda: mx.eval(step())) for name, left_out in LEFT_OUT.items()}}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for nth in range(rounds + 1):
        for name, (context, run) in ways.items():
            with context():
                run()
                start_s = time.perf_counter()
                for _ in range(STEPS):
                    run()
                if nth:  # the first round starts threads and allocates memory
                    taken[name].append((time.perf_counter() - start_s) / STEPS * 1e3)
            mx.eval(step())
    return {name: statistics.median(values) for name, values in taken.items()}


def repeated_step(loaded: LoadedModel, num_requests: int, num_queries: int = 1) -> Callable[[], mx.array]:
    """Return a function that runs the same step each time: the same tokens, written to the same slots.

    The logits of all tokens are computed.
    """
    num_blocks = -(-CONTEXT // DEFAULT_BLOCK_SIZE)
    runner = ModelRunner(loaded.model, num_requests * num_blocks + 1, DEFAULT_BLOCK_SIZE)
    rng = np.random.default_rng(0)
    tables = (rng.permutation(num_requests * num_blocks) + 1).reshape(num_requests, -1).tolist()
    requests = [RequestStep(rng.integers(0, loaded.config.vocab_size, num_queries).tolist(), table, CONTEXT,
                            needs_logits=True, needs_all_logits=num_queries > 1) for table in tables]
    return lambda: runner.step(requests)


def _sample(loaded: LoadedModel, num_requests: int) -> Callable[[], mx.array]:
    logits = mx.random.normal((num_requests, loaded.config.vocab_size), key=mx.random.key(0))
    rows = [SamplerRow(SamplingParams(temperature=0.8), (), [1], (), make_key(index)) for index in range(num_requests)]
    mx.eval(logits)
    return lambda: Sampler().draw(logits, rows)


# ---- the step without one of its parts


@contextlib.contextmanager
def _patched(*patches: tuple[object, str, object]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(patch.object(owner, name, value))
        yield


def _no_product(x: mx.array, weight: mx.array, *rest: mx.array | str) -> mx.array:
    """Return an array with the shape of the product that depends on ``x``, without multiplying."""
    last = rest[0] if rest and isinstance(rest[0], mx.array) else weight  # for an MLP, its second weight
    return mx.broadcast_to(x[:, :1], (x.shape[0], last.shape[0]))


LEFT_OUT: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "products": lambda: _patched((network, "project", _no_product), (network, "gated_mlp", _no_product)),
    "attention": lambda: _patched((network.Attention, "__call__", _without_attention)),
    "norms, rope": lambda: _patched((nn.RMSNorm, "__call__", lambda self, x: x),
                                    (Rope, "rotate", staticmethod(lambda x, angles: x))),
    "writing": lambda: _patched((FastKVCache, "write", lambda *arguments: None)),
}


def _without_attention(self: network.Attention, x: mx.array, angles: tuple[mx.array, mx.array], layer: int,
                       attend: network.Attend, wanted: mx.array | None = None) -> mx.array:
    """Compute the products and everything between them, except attending and writing."""
    num_tokens, num_rotated = x.shape[0], self.num_heads + self.num_kv_heads
    heads = self.qkv_proj(x).reshape(num_tokens, num_rotated + self.num_kv_heads, self.head_dim)
    queries = self._turned(heads, angles)[:, :self.num_heads]
    return self.o_proj(queries.reshape(num_tokens, self.num_heads * self.head_dim))
