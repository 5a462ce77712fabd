"""The ways to attend over blocks, side by side. This is what decided how ``mini_vllm.attention`` does it.

Decoding requests of mixed lengths, one layer, the shape of a 27 M parameter model (8 KV heads of 64, 16 query heads):

    dense       K/V padded to the longest request and attended at once; what a server without pages does
    gather      every request's blocks brought together, one after the other, then attended
    pairs       every (request, block) pair multiplied straight out of the pool, no copy
    two streams the same, each half of the requests on its own stream (the engine's way for many)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from mini_vllm.attention import _attend_dense, _attend_pairs
from mini_vllm.backend import mx
from mini_vllm.fast.plan import AttentionPlan, BlockTable, PairPlan, Span
from mini_vllm.fast.streams import streams

NUM_KV_HEADS, NUM_HEADS, HEAD_DIM = 8, 16, 64
BATCHES = (1, 4, 16, 64)
BLOCK_SIZES = (16, 32, 64)
SHORTEST, LONGEST = 160, 640


def print_attention(rounds: int) -> None:
    print(f"attention of one layer, contexts of {SHORTEST} to {LONGEST} tokens; ms, median of {rounds} rounds")
    print(f"{'batch':>5} {'block':>6} {'dense':>9} {'gather':>9} {'pairs':>9} {'2 streams':>9}   best")
    for batch in BATCHES:
        for block_size in BLOCK_SIZES:
            ways = make_ways(batch, block_size)
            for way in ways.values():
                mx.eval(way())
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, way in ways.items():
                    start = time.perf_counter()
                    mx.eval(way())
                    times[name].append((time.perf_counter() - start) * 1e3)
            medians = {name: statistics.median(values) for name, values in times.items()}
            best = min(medians, key=medians.get)
            print(f"{batch:>5} {block_size:>6} " + " ".join(f"{medians[name]:>9.2f}" for name in ways) + f"   {best}")


def make_ways(batch: int, block_size: int) -> dict[str, Callable[[], mx.array]]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, batch)
    counts = [-(-int(length) // block_size) for length in lengths]
    num_blocks = sum(counts) + 1
    block_ids = rng.permutation(np.arange(1, num_blocks))
    spans, start = [], 0
    for length, count in zip(lengths, counts):
        spans.append(Span(block_ids[start:start + count].tolist(), 1, int(length)))
        start += count
    pool = mx.random.normal((num_blocks, 2 * NUM_KV_HEADS, block_size, HEAD_DIM))
    queries = mx.random.normal((batch, NUM_HEADS, HEAD_DIM))
    longest = int(max(lengths))
    keys, values = (mx.random.normal((batch, NUM_KV_HEADS, longest, HEAD_DIM)) for _ in range(2))
    mask = mx.array(np.arange(longest) < lengths[:, None])[:, None, None]
    plan = AttentionPlan(spans, block_size)
    pairs = PairPlan(spans, block_size)
    half = max(batch // 2, 1)
    halves = [PairPlan(part, block_size) for part in (spans[:half], spans[half:]) if part]

    def on_two_streams() -> mx.array:
        parts, scaled = [], queries * scale
        for start, part in zip((0, half), halves):
            with mx.stream(next(streams)):
                parts.append(_attend_pairs(scaled[start:start + part.num_requests], pool, part))
        return mx.concatenate(parts)

    tables = [BlockTable(span.block_ids) for span in spans]
    scale = HEAD_DIM ** -0.5
    mx.eval(pool, queries, keys, values, mask)
    return {
        "dense": lambda: mx.fast.scaled_dot_product_attention(queries[:, :, None], keys, values, scale=scale,
                                                              mask=mask),
        "gather": lambda: mx.concatenate([_attend_dense(queries[i:i + 1], pool, table, span, plan, scale)
                                          for i, (span, table) in enumerate(zip(spans, tables))]),
        "pairs": lambda: _attend_pairs(queries * scale, pool, pairs),
        "two streams": on_two_streams,
    }
