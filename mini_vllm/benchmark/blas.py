"""How fast MLX multiplies matrices with and without the fast BLAS, each in a process of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

NUM_ROWS = (1, 2, 4, 8, 16, 64, 256)
ROUNDS = 3


def _gflops(num_rows: int, blas: str | None) -> float:
    environment = {**os.environ, **({"MINI_VLLM_BLAS": blas} if blas else {})}
    code = f"from mini_vllm.benchmark.products import measure_gflops; print(measure_gflops({num_rows}))"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(run.stdout)


def print_blas(all_num_rows: Sequence[int] = NUM_ROWS, num_rounds: int = ROUNDS) -> None:
    from mini_vllm.backend import blas, mx
    from mini_vllm.benchmark.products import measure_gflops
    from mini_vllm.fast.products import project
    print(f"GFLOP/s of x[M, 512] @ W[1536, 512].T; fast: {blas.name} ({blas.note})")
    print("ours: the same product as the model computes it, weights first or token by token where that is faster")
    print(f"{'M':>4} {'reference':>10} {'fast':>8} {'ratio':>7} {'ours':>8} {'to fast':>8}")
    for num_rows in all_num_rows:
        pairs = [(_gflops(num_rows, "none"), _gflops(num_rows, None)) for _ in range(num_rounds)]
        slow, fast = (statistics.median(column) for column in zip(*pairs))
        both = [(measure_gflops(num_rows), measure_gflops(num_rows, multiply=lambda x, weight: mx.contiguous(
            project(x, weight)))) for _ in range(num_rounds)]
        ratio = statistics.median(ours / plain for plain, ours in both)
        ours = statistics.median(ours for _, ours in both)
        print(f"{num_rows:>4} {slow:>10.1f} {fast:>8.1f} {fast / slow:>6.1f}x {ours:>8.1f} {ratio:>7.2f}x")
