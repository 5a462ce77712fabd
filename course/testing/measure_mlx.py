"""For the tests of labs with MLX: what a call holds and notes there. As ``measure``; all of it is inside.

Where something is said of pools, they are the ``pools`` of an object of the file under test: a list of arrays.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from course.testing import measure

#: MLX computes in a thread of its own, which may hold an array a moment longer than it needs it. So one calls it
#: several times; one that took more does not count.
NUM_TIMES = 5
#: Operations on so many numbers keep that thread busy for some milliseconds.
BUSY_OPERATIONS, BUSY_SIZE = 12, 20_000


def peak_mlx_bytes(make: Callable[[], Any], change: Callable[[Any], Any]) -> int:
    """What it takes at its highest to compute ``change(made).pools``, beside what there was after ``made = make()``."""
    peaks = []
    for _ in range(NUM_TIMES):
        made = make()
        before = int(measure.where.measure("begin_mlx_peak"))
        peaks.append(int(measure.where.measure("end_mlx_peak", change(made))) - before)
    return sorted(peaks)[-2]


def num_mlx_operations(owner: Any) -> int:
    """How many operations MLX has noted for ``owner.pools[0]`` and not computed yet."""
    return int(measure.where.measure("count_mlx_operations", owner))


def values_after(function: Callable[..., object], array: Any, *args: Any) -> Any:
    """What ``array`` holds after ``function(array, *args)``, as a list. It must be a function of the file's."""
    return measure.where.measure("call_and_list", function, array, *args)


# ---- these run where the file under test does


@measure.beside_the_file
def begin_mlx_peak() -> int:
    """How many bytes are in use now."""
    from mini_vllm.backend import mx
    _keep_busy()
    mx.reset_peak_memory()
    return int(mx.get_active_memory())


@measure.beside_the_file
def end_mlx_peak(owner: Any) -> int:
    """How many bytes were in use at the peak, when its pools are computed."""
    from mini_vllm.backend import mx
    _keep_busy()
    mx.eval(owner.pools)
    return int(mx.get_peak_memory())


def _keep_busy() -> None:
    """MLX's thread has something to do for a while. What is only noted then, and not computed, still holds its arrays
    when they are written, however fast the machine."""
    from mini_vllm.backend import mx
    busy = mx.zeros(BUSY_SIZE)
    for _ in range(BUSY_OPERATIONS):
        busy = mx.exp(busy) * 0
    mx.async_eval(busy)


@measure.beside_the_file
def count_mlx_operations(owner: Any) -> int:
    from mini_vllm.backend import mx
    graph = io.StringIO()
    mx.export_to_dot(graph, owner.pools[0])
    return graph.getvalue().count("label")


@measure.beside_the_file
def call_and_list(function: Callable[..., object], array: Any, *args: Any) -> Any:
    function(array, *args)
    return array.tolist()
