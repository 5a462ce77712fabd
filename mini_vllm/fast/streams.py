"""Two cores for work that MLX computes on one.

A CPU stream is one thread. Matrix products use all cores whatever the stream, because the BLAS has its own threads;
everything else (softmax, activations) runs on one core. So large pieces of such work are split in two, and alternate
between two streams.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from mini_vllm.backend import mx
from mini_vllm.fast import tuning


class Streams(threading.local):
    """The streams to alternate between: two on a CPU, one on any other device.

    Each thread of the program has its own: an MLX stream can be used only by the thread that created it.
    """

    def __init__(self) -> None:
        device = mx.default_device()
        turns = [mx.default_stream(device)]
        if tuning.has_two_streams():
            turns.append(mx.new_stream(device))
        self._turns = itertools.cycle(turns)

    def __next__(self) -> mx.Stream:
        return next(self._turns)


streams = Streams()


def in_halves(compute: Callable[..., mx.array], *arrays: mx.array, min_size: int) -> mx.array:
    """Compute ``compute(*arrays)`` with half of the first axis on each stream.

    The result for each index of the first axis must depend on that index alone. If the first array has fewer than
    ``min_size`` elements, one stream computes everything: a second one costs more than it saves.
    """
    if arrays[0].size < min_size or arrays[0].shape[0] < 2 or not tuning.halves_are_faster():
        return compute(*arrays)
    middle, halves = arrays[0].shape[0] // 2, []
    for half in (slice(None, middle), slice(middle, None)):
        with mx.stream(next(streams)):
            halves.append(compute(*(array[half] for array in arrays)))
    return mx.concatenate(halves)


def joined(parts: list[mx.array]) -> mx.array:
    """Concatenate partial results along the first axis; a single part is returned unchanged."""
    return mx.concatenate(parts) if len(parts) > 1 else parts[0]
