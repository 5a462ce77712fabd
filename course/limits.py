"""Limits on what runs in this process: on its time, and on the files it writes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from course.failures import TimeLimitExceeded


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitExceeded inside the block once it has run this long. 0 is no limit, nor is any without alarms."""
    if seconds <= 0 or not hasattr(signal, "SIGALRM"):
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
    import resource  # not on Windows, where there is no such limit either

    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
