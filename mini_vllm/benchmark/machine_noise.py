"""Checks whether the machine was quiet during a measurement: a ratio of times from a busy machine is worthless.

Two things are measured while each side of a comparison runs: how many cores other programs kept busy, and how long a
small product, always the same, takes before and after. The first detects other programs. The second also detects other
causes: a processor that slows down because it is hot, or a host that gives a virtual machine less.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TextIO

from mini_vllm.benchmark.cpu_time import CpuReading, my_cores, others_cores, quota_cores, read_cpu
from mini_vllm.benchmark.products import fastest_product_s
from mini_vllm.terminal import fold

#: The fraction of all cores that other programs may keep busy. On two quiet cores it was 0.01 to 0.02, next to one busy
#: program 0.5.
MAX_OTHERS = 0.1
#: The largest ratio of the small product's times. It was the most that two quiet cores of a virtual machine showed.
MAX_SLOWDOWN = 1.6
#: CPU time is counted in hundredths of a second, so a shorter interval says little.
MIN_STRETCH_S = 0.3
#: Marks a ratio that cannot be trusted, and the sentence that says why.
MARK = "?"


@dataclass(frozen=True)
class Noise:
    """The disturbances of a measurement."""

    #: Cores that other programs kept busy, out of all; for the side of the comparison that was disturbed most.
    others_cores: float
    num_cores: float
    #: The slowest time of the small product divided by its fastest.
    slowdown: float = 1.0

    @property
    def has_others(self) -> bool:
        return self.others_cores > MAX_OTHERS * self.num_cores

    @property
    def is_loud(self) -> bool:
        return bool(self.cause)

    @property
    def cause(self) -> str:
        """What disturbed the measurement, without a full stop; empty if the machine was quiet."""
        causes = [f"other programs kept {self._how_many()} busy"] * self.has_others
        causes += [f"the speed of the machine varied by a factor of {self.slowdown:.1f}"] * (
            self.slowdown > MAX_SLOWDOWN)
        return " and ".join(causes)

    def warning(self) -> str:
        """Return a sentence to print below the result; empty if the machine was quiet."""
        what_to_do = ("Close them and measure again" if self.has_others
                      else "Measure again when the machine is idle and cool")
        return f"{MARK} During the run, {self.cause}: do not trust these numbers. {what_to_do}." if self.is_loud else ""

    def warning_before(self) -> str:
        """Return a sentence to print before anything is measured; empty if the machine is quiet."""
        return (f"Other programs keep {self._how_many()} busy, so measurements will be unreliable. Close those "
                "programs first." if self.has_others else "")

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "cause": self.cause}

    def _how_many(self) -> str:
        return f"{self.others_cores:.1f} of {self.num_cores:g} {'core' if self.num_cores == 1 else 'cores'}"


class NoiseWatch:
    """Watches the machine while each side of a comparison runs, each under its name."""

    def __init__(self, read: Callable[[], CpuReading] = read_cpu, time_product: Callable[[], float] = fastest_product_s,
                 num_cores: float | None = None, num_mine: float | None = None) -> None:
        """Create a watch.

        ``num_mine`` is the share of ``num_cores`` that a container may use; activity on the rest is harmless.
        """
        self._read, self.time_product = read, time_product
        self.num_cores = len(my_cores()) if num_cores is None else num_cores
        quota = quota_cores() if num_mine is None else num_mine
        self._num_spare = 0.0 if quota is None else max(self.num_cores - quota, 0.0)
        self._product_s: list[float] = []
        #: Name → seconds that it ran, and CPU seconds of other programs meanwhile.
        self._sides: dict[str, tuple[float, float]] = {}

    @contextmanager
    def over(self, side: str = "") -> Iterator[None]:
        """Watch the machine while the block runs; a side may be watched several times."""
        self._product_s.append(self.time_product())
        earlier = self._read()
        yield
        later = self._read()
        seconds, of_others_s = self._sides.get(side, (0.0, 0.0))
        new_s = later.at_s - earlier.at_s
        self._sides[side] = seconds + new_s, of_others_s + new_s * others_cores(earlier, later)
        self._product_s.append(self.time_product())

    def add(self, other: NoiseWatch) -> None:
        """Add what another watch has measured."""
        self._product_s += other._product_s
        for side, (seconds, of_others_s) in other._sides.items():
            before = self._sides.get(side, (0.0, 0.0))
            self._sides[side] = before[0] + seconds, before[1] + of_others_s

    def noise(self) -> Noise:
        """Return the noise of all that has run so far. If all sides ran too briefly, they are counted together."""
        sides = list(self._sides.values())
        together = sum(seconds for seconds, _ in sides), sum(of_others_s for _, of_others_s in sides)
        long_sides = [side for side in sides if side[0] >= MIN_STRETCH_S] or [together]
        others = max(of_others_s / max(seconds, 1e-9) for seconds, of_others_s in long_sides)
        slowdown = max(self._product_s) / min(self._product_s) if self._product_s else 1.0
        return Noise(max(others - self._num_spare, 0.0), self.num_cores - self._num_spare, slowdown)


def look_around(watch: NoiseWatch | None = None, num_products: int = 10) -> Noise:
    """Measure the machine as it is now, over a few small products. They also wake it up."""
    watch = watch or NoiseWatch()
    with watch.over():
        for _ in range(num_products):
            watch.time_product()
    return watch.noise()


@contextmanager
def told_if_loud(stream: TextIO | None = None, make_watch: Callable[[], NoiseWatch] = NoiseWatch) -> Iterator[None]:
    """Warn before a benchmark that the machine is busy, and after it that its ratios cannot be trusted."""
    print_if_any(look_around(make_watch()).warning_before(), sys.stderr if stream is None else stream)
    watch = make_watch()
    with watch.over():
        yield
    print_if_any(watch.noise().warning(), sys.stdout if stream is None else stream)


def print_if_any(line: str, stream: TextIO) -> None:
    if line:
        print(fold(line), file=stream, flush=True)
