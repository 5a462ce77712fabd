"""Measure the numbers of a Machine here: a few seconds of products, and of decode steps of the model that ships."""

from __future__ import annotations

import time

from mini_vllm import backend
from mini_vllm.backend import mx
from mini_vllm.benchmark.gpu.steps import time_both
from mini_vllm.benchmark.machine import memory_bytes
from mini_vllm.fast import tuning
from mini_vllm.models.loader import DEFAULT_MODEL, LoadedModel, load
from mini_vllm.plan.machines import HERE, Machine
from mini_vllm.plan.shape import find_shape

#: The width of the square matrix, which no cache holds, and the rows that multiply it fast: on a CPU, on a GPU.
WIDTHS, ROWS = (4096, 16_384), (64, 4096)
#: Decode steps: the number of requests, and the short and the long context.
REQUESTS, SHORT, LONG = 16, 128, 512


def measure_here() -> Machine:
    """Measure memory, bandwidth, FLOP/s and the costs of a step on this machine.

    Three kinds of steps are timed: one request, several, and several with long contexts. What reading and multiplying
    do not explain of the first is the cost of the layers; the second adds the cost of a request, and the third that of
    reading keys and values.
    """
    on_gpu = tuning.has_gpu()
    width, rows = WIDTHS[on_gpu], ROWS[on_gpu]
    number_bytes = 2 if on_gpu else 4
    bandwidth = width * width * number_bytes / _product_s(1, width, number_bytes)
    flops = 2 * rows * width * width / _product_s(rows, width, number_bytes)
    loaded, shape = load(DEFAULT_MODEL), find_shape(DEFAULT_MODEL)
    one_s, several_s, long_s = (_step_s(loaded, *kind) for kind in ((1, SHORT), (REQUESTS, SHORT), (REQUESTS, LONG)))
    kv_bytes, weight_bytes = shape.kv_bytes(number_bytes), shape.weights_per_token * number_bytes

    def products_s(requests: int) -> float:
        return max(weight_bytes / bandwidth, 2 * shape.weights_per_token * requests / flops)

    # The clock is not exact: no cost is negative, and keys and values are not read faster than weights.
    more_s = max(long_s - several_s, 0.0)
    kv_s = max(more_s / (REQUESTS * (LONG - SHORT) * kv_bytes), 1 / bandwidth)
    layers_s = max(one_s - products_s(1) - SHORT * kv_bytes * kv_s, 0.0)
    requests_s = max(several_s - layers_s - products_s(REQUESTS) - REQUESTS * SHORT * kv_bytes * kv_s, 0.0)
    return Machine(HERE, f"measured now on {backend.device_name()}", _memory(on_gpu), bandwidth, flops, 1 / kv_s,
                   layers_s / shape.layers, requests_s / REQUESTS, tuning.max_num_batched_tokens(), number_bytes)


def _product_s(num_rows: int, width: int, number_bytes: int, seconds: float = 0.5) -> float:
    """Return the shortest time of a product with a square matrix, among those that fit into ``seconds``."""
    dtype = mx.bfloat16 if number_bytes == 2 else mx.float32
    x, weight = mx.ones((num_rows, width), dtype), mx.ones((width, width), dtype)
    mx.eval(x, weight)
    times_s: list[float] = []
    while len(times_s) < 5 or sum(times_s) < seconds:
        start_s = time.perf_counter()
        mx.eval(x @ weight.T)
        times_s.append(time.perf_counter() - start_s)
    return min(times_s[1:])  # the first one allocates memory and compiles


def _step_s(loaded: LoadedModel, num_requests: int, context: int) -> float:
    return time_both(loaded, None, num_requests, context)[0] / 1000


def _memory(on_gpu: bool) -> float:
    if on_gpu and isinstance(size := mx.device_info().get("memory_size"), int):
        return float(size)
    return float(memory_bytes()[0])
