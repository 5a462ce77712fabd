"""Several jobs at once, each of which waits for processes of its own; results in the order of the jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from course.verdicts import OnPoll

Result = TypeVar("Result")


class Stopped(Exception):
    """Raised inside a job whose result nobody waits for any more."""


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(jobs: Sequence[Callable[[OnPoll], Result]], num_at_once: int) -> Iterator[Result]:
    """The result of each job, as soon as it and those before it are over.

    A job calls the function that it is given many times a second. When the caller is interrupted, by Ctrl-C or by an
    error of a job, that function raises in all other jobs, and each ends its processes; this returns when all have.
    """
    stop = threading.Event()

    def on_poll() -> None:
        if stop.is_set():
            raise Stopped

    with ThreadPoolExecutor(num_at_once) as pool:
        futures = [pool.submit(job, on_poll) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        finally:
            stop.set()
            for future in futures:
                future.cancel()
