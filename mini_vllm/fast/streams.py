"""Two cores for what MLX computes on one.

A stream of the CPU is one thread. Matrix products use all cores whatever the stream, because the BLAS has threads of
its own; everything else (softmax, activations) runs on one. So large pieces of such work are cut in two, and take turns
on two streams.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from mini_vllm.backend import mx
from mini_vllm.fast import tuning


class Streams(threading.local):
    """The streams to take turns on: two of a CPU, one of anything else.

    Each thread of the program has its own: MLX's streams can be used by the thread that made them, and no other.
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
    """``compute(*arrays)``, whose result for each index of the first axis depends on that index alone: half of them on
    each stream.

    With fewer than ``min_size`` elements in the first array, all on one: a second costs more than it saves.
    """
    if arrays[0].size < min_size or arrays[0].shape[0] < 2 or not tuning.halves_are_faster():
        return compute(*arrays)
    middle, halves = arrays[0].shape[0] // 2, []
    for half in (slice(None, middle), slice(middle, None)):
        with mx.stream(next(streams)):
            halves.append(compute(*(array[half] for array in arrays)))
    return mx.concatenate(halves)


def joined(parts: list[mx.array]) -> mx.array:
    """What was computed in parts, along the first axis; a single part as it is."""
    return mx.concatenate(parts) if len(parts) > 1 else parts[0]
