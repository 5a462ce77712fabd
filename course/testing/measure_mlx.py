"""For the tests of labs with MLX: the memory that a call uses, and the operations that it records.

These functions work like those of ``measure``, and all of them measure inside. Pools are always the ``pools`` of an
object of the file under test: a list of arrays.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from course.testing import measure

#: MLX computes in a separate thread, which may keep an array a moment longer than needed. So a call is measured several
#: times, and the highest peak is ignored.
NUM_TIMES = 5
#: The number and size of the array operations that keep that thread busy for some milliseconds.
BUSY_OPERATIONS, BUSY_SIZE = 12, 20_000


def peak_mlx_bytes(make: Callable[[], Any], change: Callable[[Any], Any]) -> int:
    """Return the peak memory of computing ``change(made).pools``, beyond that in use after ``made = make()``."""
    peaks = []
    for _ in range(NUM_TIMES):
        made = make()
        before = int(measure.where.measure("begin_mlx_peak"))
        peaks.append(int(measure.where.measure("end_mlx_peak", change(made))) - before)
    return sorted(peaks)[-2]


def num_mlx_operations(owner: Any) -> int:
    """Return how many operations MLX has recorded for ``owner.pools[0]`` but not computed yet."""
    return int(measure.where.measure("count_mlx_operations", owner))


def values_after(function: Callable[..., object], array: Any, *args: Any) -> Any:
    """Return the content of ``array`` after ``function(array, *args)`` as a list. The function must be the file's."""
    return measure.where.measure("call_and_list", function, array, *args)


# ---- these run where the file under test does


@measure.beside_the_file
def begin_mlx_peak() -> int:
    """Reset the peak, and return how many bytes are in use now."""
    from mini_vllm.backend import mx
    _keep_busy()
    mx.reset_peak_memory()
    return int(mx.get_active_memory())


@measure.beside_the_file
def end_mlx_peak(owner: Any) -> int:
    """Compute the owner's pools, and return how many bytes were in use at the peak."""
    from mini_vllm.backend import mx
    _keep_busy()
    mx.eval(owner.pools)
    return int(mx.get_peak_memory())


def _keep_busy() -> None:
    """Keep MLX's thread busy for a while.

    While the thread is busy, MLX only records new operations and computes them later. A recorded operation keeps its
    arrays in memory, even while the next operation writes to them. So the peak is the same on fast and slow machines.
    """
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
