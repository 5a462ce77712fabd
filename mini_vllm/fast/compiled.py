"""Many small operations on large arrays as one: on a GPU each of them would read and write the whole array."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps

from mini_vllm.backend import mx
from mini_vllm.fast import tuning


def compiled_on_gpu(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Return ``function`` compiled by ``mx.compile`` on a GPU, and unchanged on a CPU."""
    compile_once = cache(lambda: mx.compile(function))

    @wraps(function)
    def call(*arrays: mx.array) -> mx.array:
        found: mx.array = compile_once()(*arrays) if tuning.has_gpu() else function(*arrays)
        return found

    return call
