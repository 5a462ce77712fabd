"""Run several jobs at once, each of which waits for its own processes; the results are in the order of the jobs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TypeVar

from course.pytest_run.listeners import OnPoll

Result = TypeVar("Result")


class Stopped(Exception):
    """Raised inside a job whose result is no longer needed."""


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stay_on_a_core(index: int) -> None:
    """Pin the calling thread, and all processes that it starts from now on, to one of the cores it may use.

    MLX computes in a separate thread, which receives one small operation after another. On one core, scheduled as a
    batch job, the two threads take turns instead of waiting for each other's memory, and the same work takes less CPU
    time. If the system lacks such scheduling or forbids it, nothing changes.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(OSError):  # some containers forbid it
            os.sched_setaffinity(0, {cores[index % len(cores)]})
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def side_by_side(jobs: Sequence[Callable[[OnPoll], Result]], num_at_once: int) -> Iterator[Result]:
    """Yield the result of each job as soon as this job and all jobs before it are done.

    A job must call the function passed to it many times per second. When the caller is interrupted, by Ctrl-C or by an
    error in a job, that function raises in all other jobs, and each ends its processes. This generator returns after
    all of them have ended.
    """
    stop = threading.Event()

    def on_poll() -> None:
        if stop.is_set():
            raise Stopped

    indices = count()
    with ThreadPoolExecutor(num_at_once, initializer=lambda: stay_on_a_core(next(indices))) as pool:
        futures = [pool.submit(job, on_poll) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        finally:
            stop.set()
            for future in futures:
                future.cancel()
