"""Whether the machine was quiet while something was measured: a ratio of times from a busy one is worth nothing.

Two things are looked at while each side of a comparison runs: how many cores other programs kept busy, and how long a
small product, always the same, takes before and after. The first finds other programs. The second also finds what
nobody is to blame for: a processor that slows down because it is hot, or a host that gives a virtual machine less.
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

#: The part of all cores that others may keep busy. On two quiet cores it was 0.01 to 0.02, beside one busy program 0.5.
MAX_OTHERS = 0.1
#: How many times as long the small product may take at one moment as at another. On two quiet cores of a virtual
#: machine it was 1.1 to 1.6 times.
MAX_SLOWDOWN = 2.0
#: CPU time is counted in hundredths of a second, so a shorter stretch says little.
MIN_STRETCH_S = 0.3
#: Stands at a ratio that is not to be trusted, and before the sentence that says why.
MARK = "?"


@dataclass(frozen=True)
class Noise:
    """What disturbed a measurement."""

    #: Cores that other programs kept busy, of those that are there; in the side of the comparison that had most of it.
    others_cores: float
    num_cores: float
    #: Of the small product: its slowest time over its fastest.
    slowdown: float = 1.0

    @property
    def has_others(self) -> bool:
        return self.others_cores > MAX_OTHERS * self.num_cores

    @property
    def is_loud(self) -> bool:
        return self.has_others or self.slowdown > MAX_SLOWDOWN

    def finding(self) -> str:
        """What was found, without a full stop; empty if it was quiet."""
        if self.has_others:
            return f"Other programs kept {self._how_many()} busy meanwhile"
        if self.is_loud:
            return f"This machine was at times {self.slowdown:.1f} times as slow as at others"
        return ""

    def warning(self) -> str:
        """A sentence to stand below the result; empty if it was quiet."""
        what_to_do = "Close them and run it again" if self.has_others else "Run it again when it is quiet and cool"
        return f"{MARK} {self.finding()}: do not trust these numbers. {what_to_do}." if self.is_loud else ""

    def warning_before(self) -> str:
        """The same before anything is measured."""
        return (f"Other programs keep {self._how_many()} busy: what is measured now will not be worth much. Close them "
                "first." if self.has_others else "")

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "is_loud": self.is_loud}

    def _how_many(self) -> str:
        return f"{self.others_cores:.1f} of {self.num_cores:g} {'core' if self.num_cores == 1 else 'cores'}"


class NoiseWatch:
    """Looks at the machine while each side of a comparison runs, each under its name."""

    def __init__(self, read: Callable[[], CpuReading] = read_cpu, time_product: Callable[[], float] = fastest_product_s,
                 num_cores: float | None = None, num_mine: float | None = None) -> None:
        """``num_mine``: cores that a container may use of ``num_cores``. What others do on the rest does no harm."""
        self._read, self.time_product = read, time_product
        self.num_cores = len(my_cores()) if num_cores is None else num_cores
        quota = quota_cores() if num_mine is None else num_mine
        self._num_spare = 0.0 if quota is None else max(self.num_cores - quota, 0.0)
        self._product_s: list[float] = []
        #: Name → seconds that it ran, and CPU seconds of others meanwhile.
        self._sides: dict[str, tuple[float, float]] = {}

    @contextmanager
    def over(self, side: str = "") -> Iterator[None]:
        """Look at the machine while the block runs; a side may come several times."""
        self._product_s.append(self.time_product())
        earlier = self._read()
        yield
        later = self._read()
        seconds, of_others_s = self._sides.get(side, (0.0, 0.0))
        new_s = later.at_s - earlier.at_s
        self._sides[side] = seconds + new_s, of_others_s + new_s * others_cores(earlier, later)
        self._product_s.append(self.time_product())

    def add(self, other: NoiseWatch) -> None:
        """What another watch has seen counts here as well."""
        self._product_s += other._product_s
        for side, (seconds, of_others_s) in other._sides.items():
            before = self._sides.get(side, (0.0, 0.0))
            self._sides[side] = before[0] + seconds, before[1] + of_others_s

    def noise(self) -> Noise:
        """Of all that has run so far. Sides that ran too briefly count together, if all did."""
        sides = list(self._sides.values())
        together = sum(seconds for seconds, _ in sides), sum(of_others_s for _, of_others_s in sides)
        long_sides = [side for side in sides if side[0] >= MIN_STRETCH_S] or [together]
        others = max(of_others_s / max(seconds, 1e-9) for seconds, of_others_s in long_sides)
        slowdown = max(self._product_s) / min(self._product_s) if self._product_s else 1.0
        return Noise(max(others - self._num_spare, 0.0), self.num_cores - self._num_spare, slowdown)


def look_around(watch: NoiseWatch | None = None, num_products: int = 10) -> Noise:
    """Of the machine as it is now, over a few small products. They also wake it up."""
    watch = watch or NoiseWatch()
    with watch.over():
        for _ in range(num_products):
            watch.time_product()
    return watch.noise()


@contextmanager
def told_if_loud(stream: TextIO | None = None, make_watch: Callable[[], NoiseWatch] = NoiseWatch) -> Iterator[None]:
    """Around a benchmark: says before it that the machine is busy, and after it that its ratios cannot be trusted."""
    print_if_any(look_around(make_watch()).warning_before(), sys.stderr if stream is None else stream)
    watch = make_watch()
    with watch.over():
        yield
    print_if_any(watch.noise().warning(), sys.stdout if stream is None else stream)


def print_if_any(line: str, stream: TextIO) -> None:
    if line:
        print(fold(line), file=stream, flush=True)
