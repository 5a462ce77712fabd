"""Speed and precision of MLX's matrix products on this machine, for ``doctor``."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from mini_vllm.backend import mx

#: The measured product: x[num_rows, 512] @ W[1536, 512].T, the size of a small model's projections.
WIDTH_IN, WIDTH_OUT = 512, 1536


def measure_gflops(num_rows: int, seconds: float = 0.3) -> float:
    """Measure GFLOP/s of one product after another for at least ``seconds``, including the cost of starting each."""
    if num_rows < 1:
        raise ValueError(f"num_rows is {num_rows}, must be at least 1")
    if seconds <= 0:
        raise ValueError(f"seconds is {seconds}, must be above 0")
    x, weight = _operands(num_rows)
    mx.eval(x @ weight.T)  # the first product starts threads and allocates memory
    num_products = 0
    start = time.perf_counter()
    while (elapsed_s := time.perf_counter() - start) < seconds:
        mx.eval(x @ weight.T)
        num_products += 1
    return 2 * num_rows * WIDTH_IN * WIDTH_OUT * num_products / elapsed_s / 1e9


def fastest_product_s(seconds: float = 0.05, num_rows: int = 16) -> float:
    """Return the shortest time of one product, among those that fit into ``seconds``, and at least five.

    Interruptions by other programs do not change it; a machine that has become slower does.
    """
    x, weight = _operands(num_rows)
    mx.eval(x @ weight.T)
    times_s: list[float] = []
    while len(times_s) < 5 or sum(times_s) < seconds:
        start_s = time.perf_counter()
        mx.eval(x @ weight.T)
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def product_error() -> float:
    """Return the largest difference between MLX's product and the same one in float64."""
    x, weight = _operands(num_rows=5)
    expected = np.array(x, dtype=np.float64) @ np.array(weight, dtype=np.float64).T
    return float(np.abs(np.array(x @ weight.T) - expected).max())


@cache
def _operands(num_rows: int) -> tuple[mx.array, mx.array]:
    x = mx.random.normal((num_rows, WIDTH_IN), key=mx.random.key(0))
    weight = mx.random.normal((WIDTH_OUT, WIDTH_IN), key=mx.random.key(1))
    mx.eval(x, weight)
    return x, weight
