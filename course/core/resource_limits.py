"""Limits on what runs in this process: on its time, and on the files it writes.

Time is counted as the process computes, all its threads together: on a busy machine right code must not lose a test. A
wall clock beside it, far more generous, ends what only waits.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator

from course.core.failure_messages import TimeLimitExceeded

#: By the clock on the wall everything may take this many times the time that it may compute, and a test never less than
#: the second.
WALL_FACTOR, MIN_WALL_S = 10.0, 30.0
#: How long past its limit a test may go on computing before the kernel ends the process: it catches every exception, or
#: sits in C code.
GRACE_S = 1


def wall_limit(seconds: float) -> float:
    """How long by the clock on the wall a test may take that may compute for ``seconds``."""
    return max(WALL_FACTOR * seconds, MIN_WALL_S)


@contextlib.contextmanager
def time_limit(seconds: float, wall_s: float | None = None) -> Iterator[None]:
    """Raise TimeLimitExceeded inside the block once it has computed this long, or run ``wall_s`` by the clock; with 0
    it may go on for ever."""
    if seconds <= 0:
        yield
        return

    by_the_clock_s = wall_limit(seconds) if wall_s is None else wall_s

    def on_cpu(*_: object) -> None:
        raise TimeLimitExceeded(seconds, "of CPU time")

    def on_wall(*_: object) -> None:
        raise TimeLimitExceeded(by_the_clock_s, "by the clock")

    handlers = {signal.SIGPROF: on_cpu, signal.SIGALRM: on_wall}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    # Again each second, for loops that catch all.
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    signal.setitimer(signal.ITIMER_REAL, by_the_clock_s, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def kill_when_computing(seconds: float) -> None:
    """From now on the process may compute for ``seconds`` and a grace; then the kernel ends it by SIGXCPU."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(usage.ru_utime + usage.ru_stime + seconds) + 1 + GRACE_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def limit_memory(num_bytes: int) -> None:
    """From now on no more address space than this: what asks for more gets a MemoryError. macOS refuses to do it."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))


def limit_files(num_bytes: int) -> None:
    """From now on no file may grow past this: endless output ends in an error, and not in a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
