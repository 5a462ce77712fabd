"""How fast MLX multiplies matrices with and without the fast BLAS, each in a separate process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.backend import mx

NUM_ROWS = (1, 2, 4, 8, 16, 64, 256)
ROUNDS = 3
#: The number of rows in the summary line.
IN_SHORT = 64


def _gflops(num_rows: int, blas: str | None) -> float:
    environment = {**os.environ, **({"MINI_VLLM_BLAS": blas} if blas else {})}
    code = f"from mini_vllm.benchmark.products import measure_gflops; print(measure_gflops({num_rows}))"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(run.stdout)


def print_blas(all_num_rows: Sequence[int] = NUM_ROWS, num_rounds: int = ROUNDS) -> None:
    """Print the speed of products with and without the fast BLAS."""
    from mini_vllm.backend import blas, mx
    from mini_vllm.benchmark.products import measure_gflops
    from mini_vllm.fast.products import project
    print(f"GFLOP/s of x[M, 512] @ W[1536, 512].T; fast: {blas.name} ({blas.note})")
    print("ours: the same product as the model computes it, weights first or token by token where that is faster")
    in_short = ""
    print(f"{'M':>4} {'reference':>10} {'fast':>8} {'ratio':>7} {'ours':>8} {'to fast':>8}")
    for num_rows in all_num_rows:
        pairs = [(_gflops(num_rows, "none"), _gflops(num_rows, None)) for _ in range(num_rounds)]
        slow, fast = (statistics.median(column) for column in zip(*pairs))
        both = [(measure_gflops(num_rows), measure_gflops(num_rows, multiply=lambda x, weight: mx.contiguous(
            project(x, weight)))) for _ in range(num_rounds)]
        ratio = statistics.median(ours / plain for plain, ours in both)
        ours = statistics.median(ours for _, ours in both)
        print(f"{num_rows:>4} {slow:>10.1f} {fast:>8.1f} {fast / slow:>6.1f}x {ours:>8.1f} {ratio:>7.2f}x")
        if num_rows == IN_SHORT:
            in_short = (f"In short: MLX multiplies {num_rows} rows {fast / slow:.0f} times as fast with the fast BLAS "
                        f"({fast:.0f} against {slow:.1f} GFLOP/s)")
    if in_short:
        print(in_short)


def print_exp(sizes: Sequence[int] = (2048, 4096, 8192, 16384, 32768, 65536), num_times: int = 200) -> None:
    """Print the times of MLX's exp, of e to a power and of our exp2, and the size from which ours is used."""
    import math

    from mini_vllm.backend import mx
    from mini_vllm.fast import tuning
    from mini_vllm.fast.exp import exp2
    ways: list[Callable[[mx.array], mx.array]] = [mx.exp, lambda x: mx.power(math.e, x), exp2]
    used = "power" if tuning.power_is_faster_than_exp() else "MLX"
    print(f"exp of an activation: microseconds, the shortest of {num_times} runs. The engine uses {used} for fewer "
          f"than {tuning.MIN_EXP_SIZE} numbers, and ours for that many or more.")
    print(f"{'numbers':>8} {'MLX':>8} {'power':>8} {'ours':>8}")
    for size in sizes:
        x = mx.random.normal((size,), key=mx.random.key(0))
        mx.eval(x)
        taken_us = [min(_seconds(way, x) for _ in range(num_times)) * 1e6 for way in ways]
        print(f"{size:>8} " + " ".join(f"{each_us:>8.0f}" for each_us in taken_us), flush=True)


def _seconds(compute: Callable[[mx.array], mx.array], x: mx.array) -> float:
    from mini_vllm.backend import mx
    start_s = time.perf_counter()
    mx.eval(compute(x))
    return time.perf_counter() - start_s


def print_orders(all_num_rows: Sequence[int] | None = None, seconds: float = 0.2,
                 models: Sequence[str] | None = None) -> None:
    """Print the faster operand order for each product of some models, and if ``tuning.WEIGHTS_FIRST`` agrees."""
    from mini_vllm.benchmark import orders
    print(f"milliseconds of one product, the shortest in {seconds} s; an MLP is two products and what is between them")
    print(orders.HEADER)
    for order in orders.measure_orders(models or tuple(orders.WIDTHS), all_num_rows or orders.NUM_ROWS, seconds):
        print(order, flush=True)
