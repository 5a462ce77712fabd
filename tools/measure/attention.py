"""The ways to attend over blocks, side by side. This comparison decided how ``mini_vllm.fast`` does it.

Decoding requests of mixed lengths, one layer, the shape of a 27 M parameter model (8 KV heads of 64, 16 query heads):

    dense       K/V padded to the longest request and attended at once; what a server without pages does
    plain       ``attention.paged_attention``, what the course teaches
    gather      every request's blocks gathered into one array, one request after another, then attended
    split-KV    every (request, block) pair multiplied directly from the pool, without a copy
    two streams the same, each half of the requests on its own stream (the engine's way for many)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx
from mini_vllm.fast.gather_attention import CausalMasks, GatherPlan, attend_gathered
from mini_vllm.fast.request_span import Span
from mini_vllm.fast.split_kv import attend_splits
from mini_vllm.fast.split_plan import SplitPlan
from mini_vllm.fast.streams import streams

NUM_KV_HEADS, NUM_HEADS, HEAD_DIM = 8, 16, 64
BATCHES = (1, 4, 16, 64)
BLOCK_SIZES = (16, 32, 64)
SHORTEST, LONGEST = 160, 640


def print_attention(rounds: int) -> None:
    print(f"attention of one layer, contexts of {SHORTEST} to {LONGEST} tokens; ms, median of {rounds} rounds")
    print(f"{'batch':>5} {'block':>6} {'dense':>9} {'plain':>9} {'gather':>9} {'split-KV':>9} {'2 streams':>9}   best")
    for batch in BATCHES:
        for block_size in BLOCK_SIZES:
            medians = measure(make_ways(batch, block_size), rounds)
            best = min(medians, key=lambda name: medians[name])
            print(f"{batch:>5} {block_size:>6} " + " ".join(f"{ms:>9.2f}" for ms in medians.values()) + f"   {best}")


def measure(ways: dict[str, Callable[[], mx.array]], rounds: int) -> dict[str, float]:
    """Return the median time of each way in ms, measured in turn."""
    for way in ways.values():
        mx.eval(way())
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            mx.eval(way())
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def make_ways(batch: int, block_size: int) -> dict[str, Callable[[], mx.array]]:
    """Return a function for each way to attend, over the same random K/V, with its plan made beforehand."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, batch).tolist()
    block_ids = rng.permutation(np.arange(1, sum(-(-length // block_size) for length in lengths) + 1)).tolist()
    pool = mx.random.normal((len(block_ids) + 1, 2 * NUM_KV_HEADS, block_size, HEAD_DIM))
    queries, scale = mx.random.normal((batch, NUM_HEADS, HEAD_DIM)), HEAD_DIM ** -0.5
    tables = [[block_ids.pop() for _ in range(-(-length // block_size))] for length in lengths]
    spans, starts = [Span(table, 1, length) for table, length in zip(tables, lengths)], list(range(batch + 1))
    keys, values = (mx.random.normal((batch, NUM_KV_HEADS, max(lengths), HEAD_DIM)) for _ in range(2))
    mask = mx.array(np.arange(max(lengths)) < np.array(lengths)[:, None])[:, None, None]
    gathered = [GatherPlan(span, NUM_KV_HEADS, block_size, CausalMasks(None)) for span in spans]
    halves = [SplitPlan(half, NUM_HEADS, NUM_KV_HEADS, block_size)
              for half in (spans[:batch // 2], spans[batch // 2:]) if half]
    whole = SplitPlan(spans, NUM_HEADS, NUM_KV_HEADS, block_size)

    def on_two_streams() -> mx.array:
        outs, scaled, start = [], queries * scale, 0
        for half in halves:
            with mx.stream(next(streams)):
                outs.append(attend_splits(scaled[start:start + half.num_requests], pool, half))
            start += half.num_requests
        return mx.concatenate(outs)

    mx.eval(pool, queries, keys, values, mask)
    return {
        "dense": lambda: mx.fast.scaled_dot_product_attention(queries[:, :, None], keys, values, scale=scale,
                                                              mask=mask),
        "plain": lambda: paged_attention(queries, pool, tables, lengths, starts, scale),
        "gather": lambda: mx.concatenate([attend_gathered(queries[i:i + 1], pool, plan, scale)
                                          for i, plan in enumerate(gathered)]),
        "split-KV": lambda: attend_splits(queries * scale, pool, whole),
        "two streams": on_two_streams,
    }
