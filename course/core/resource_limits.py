"""Limits on what runs in this process: on its time, and on the files it writes.

Time means CPU time of the process, all threads together, so that correct code does not fail a test on a busy machine. A
far more generous wall-clock limit ends code that only waits.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator

from course.core.failure_messages import TimeLimitExceeded

#: The wall-clock limit is the CPU limit times the factor, and for a test never less than the minimum.
WALL_FACTOR, MIN_WALL_S = 10.0, 30.0
#: How long a test may compute past its limit before the kernel ends the process. A test gets that far if it catches
#: every exception or is inside C code.
GRACE_S = 1


def wall_limit(seconds: float) -> float:
    """Return the wall-clock limit of a test that may compute for ``seconds``."""
    return max(WALL_FACTOR * seconds, MIN_WALL_S)


@contextlib.contextmanager
def time_limit(seconds: float, wall_s: float | None = None) -> Iterator[None]:
    """Raise TimeLimitExceeded inside the block after ``seconds`` of CPU time or ``wall_s`` of wall-clock time.

    If ``seconds`` is 0, there is no limit.
    """
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
    # Repeat the signal every second, for loops that catch every exception.
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
    """Let the process compute for ``seconds`` plus a grace period; after that the kernel ends it with SIGXCPU."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(usage.ru_utime + usage.ru_stime + seconds) + 1 + GRACE_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def limit_memory(num_bytes: int) -> None:
    """Limit the address space of this process: allocations beyond it raise MemoryError. macOS does not support it."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))


def limit_files(num_bytes: int) -> None:
    """Limit the size of every file that is written, so that endless output raises an error before the disk is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
