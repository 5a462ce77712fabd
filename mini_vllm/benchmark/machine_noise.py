"""Checks whether the machine was quiet during a measurement: a ratio of times from a busy machine is worthless.

Two things are measured while a benchmark runs. The first is how many cores other programs kept busy, on
Linux. The second is how long a small product, always the same, takes before and after: it also detects a processor that
slows down because it is hot.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from mini_vllm.benchmark.machine import my_cores, product_times_s

#: The fraction of all cores that other programs may keep busy. On two quiet cores it was 0.01 to 0.02, next to one busy
#: program 0.5.
MAX_OTHERS = 0.1
#: The largest ratio of the small product's times. It was the most that two quiet cores of a virtual machine showed.
MAX_SLOWDOWN = 1.6
#: Marks a ratio that cannot be trusted, and the sentence that says why.
MARK = "?"
#: Fields of a line of /proc/stat, after its name: user, nice, system, irq, softirq, and what another virtual machine
#: took.
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
STAT, CPU_MAX = Path("/proc/stat"), Path("/sys/fs/cgroup/cpu.max")


class Clocks(NamedTuple):
    """The clocks at one moment, in seconds."""

    at_s: float
    #: CPU time of the processes that are measured.
    own_s: float
    #: CPU time of all processes, on the cores that this process may use. None: the system does not tell.
    all_s: float | None


def read_clocks() -> Clocks:
    """Read the clocks. This process and those that it started, directly or not, are the ones that are measured."""
    at_s = time.perf_counter()
    try:
        return Clocks(at_s, own_cpu_s(), busy_s(STAT.read_text(), my_cores(), os.sysconf("SC_CLK_TCK")))
    except (OSError, ValueError):  # no such file, or not as on Linux
        return Clocks(at_s, 0.0, None)


def busy_s(stat: str, cores: Collection[int], ticks_per_s: int) -> float:
    """Return the seconds that these cores were busy, by the text of /proc/stat. Raise ValueError if it does not
    tell."""
    lines = [line.split() for line in stat.splitlines()]
    ticks = [[int(tick) for tick in line[1:]] for line in lines if line and line[0] in {f"cpu{core}" for core in cores}]
    if not any(map(any, ticks)):  # some sandboxes show zeros
        raise ValueError("/proc/stat does not list these cores")
    return sum(of_core[field] for of_core in ticks for field in BUSY_FIELDS if field < len(of_core)) / ticks_per_s


def own_cpu_s() -> float:
    """Return the CPU time of this process and of all that it started, including those that have ended."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            stats[int(path.parent.name)] = [int(field) for field in path.read_text().rpartition(")")[2].split()[1:]]
    own, found = {os.getpid()}, 0
    while len(own) > found:
        found = len(own)
        own |= {process for process, (parent, *_) in stats.items() if parent in own}
    # the processes' own time, and that of their children that have ended, each for the user and for the system
    return sum(sum(stats[process][10:14]) for process in own & stats.keys()) / os.sysconf("SC_CLK_TCK")


def quota_cores() -> float:
    """Return how many cores' time a container may use at most; infinity without such a limit."""
    try:
        quota, period = CPU_MAX.read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return float("inf")


def fastest_product_s(seconds: float = 0.05) -> float:
    """Return the shortest time of a product of 16 rows.

    Interruptions by other programs do not change it; a machine that has become slower does.
    """
    return min(product_times_s(16, seconds))


@dataclass(frozen=True)
class Noise:
    """The disturbances of a measurement."""

    #: Cores that other programs kept busy, out of all.
    others_cores: float
    num_cores: float
    #: The slowest time of the small product divided by its fastest.
    slowdown: float = 1.0

    @property
    def has_others(self) -> bool:
        return self.others_cores > MAX_OTHERS * self.num_cores

    @property
    def cause(self) -> str:
        """What disturbed the measurement, without a full stop; empty if the machine was quiet."""
        causes = [f"other programs kept {self._how_many()} busy"] * self.has_others
        causes += [f"the speed of the machine varied by a factor of {self.slowdown:.1f}"] * (
            self.slowdown > MAX_SLOWDOWN)
        return " and ".join(causes)

    @property
    def mark(self) -> str:
        """What follows a ratio that cannot be trusted; empty if the machine was quiet."""
        return f" {MARK}" if self.cause else ""

    def warning(self) -> str:
        """Return a line to print below the result; empty if the machine was quiet."""
        return f"{MARK} During the run, {self.cause}: do not trust these numbers.\n" if self.cause else ""

    def warning_before(self) -> str:
        """Return a line to print before anything is measured; empty if no other program is busy."""
        return (f"Other programs keep {self._how_many()} busy, so measurements will be unreliable.\n"
                if self.has_others else "")

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "cause": self.cause}

    def _how_many(self) -> str:
        return f"{self.others_cores:.1f} of {self.num_cores:g} {'core' if self.num_cores == 1 else 'cores'}"


class NoiseWatch:
    """Watches the machine while something is measured, in one stretch or in several."""

    def __init__(self, read: Callable[[], Clocks] = read_clocks) -> None:
        self._read = read
        self._product_s: list[float] = []
        #: The time of all stretches, and the CPU time of other programs meanwhile.
        self._seconds = self._others_s = 0.0

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch the machine while the block runs."""
        self._product_s.append(fastest_product_s())
        before = self._read()
        yield
        after = self._read()
        self._seconds += after.at_s - before.at_s
        if before.all_s is not None and after.all_s is not None:
            self._others_s += max(after.all_s - before.all_s - (after.own_s - before.own_s), 0.0)
        self._product_s.append(fastest_product_s())

    def noise(self) -> Noise:
        """Return the noise of all stretches. What others do on cores beyond a container's quota is harmless."""
        num_cores = len(my_cores())
        num_mine = min(num_cores, quota_cores())
        others = self._others_s / self._seconds if self._seconds else 0.0
        slowdown = max(self._product_s) / min(self._product_s) if self._product_s else 1.0
        return Noise(max(others - (num_cores - num_mine), 0.0), num_mine, slowdown)


def warn_if_busy() -> None:
    """Print on standard error, before a benchmark, that the machine is busy now. The products also wake it up."""
    watch = NoiseWatch()
    with watch.over():
        product_times_s(16, 0.5)
    print(watch.noise().warning_before(), end="", file=sys.stderr, flush=True)
