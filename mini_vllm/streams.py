"""Two cores for what MLX computes on one.

A stream of the CPU is one thread. Matrix products use all cores whatever the stream, because the BLAS has threads of
its own; everything else (softmax, activations) runs on one, and ``exp`` takes 9 ns an element. So large pieces of such
work are cut in two, and take turns on two streams.
"""

from __future__ import annotations

import itertools
import threading

from mini_vllm.backend import mx


class Streams(threading.local):
    """The streams to take turns on: two of a CPU, one of anything else.

    Each thread of the program has its own: MLX's streams can be used by the thread that made them, and no other.
    """

    def __init__(self) -> None:
        device = mx.default_device()
        self._streams = [mx.default_stream(device)]
        if device == mx.Device(mx.cpu):
            self._streams.append(mx.new_stream(device))
        self._turns = itertools.cycle(self._streams)
        self.latest = self._streams[0]

    def __next__(self) -> mx.Stream:
        self.latest = next(self._turns)
        return self.latest

    def __len__(self) -> int:
        return len(self._streams)


streams = Streams()
