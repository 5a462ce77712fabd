"""Limits on what runs in this process: on its time, and on the files it writes."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator

from course.failures import TimeLimitExceeded


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitExceeded inside the block once it has run this long; with 0 it may run for ever."""
    if seconds <= 0:
        yield
        return

    def on_alarm(*_: object) -> None:
        raise TimeLimitExceeded

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again each second, for loops that catch all
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def limit_files(num_bytes: int) -> None:
    """From now on no file may grow past this: endless output ends in an error, and not in a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
