"""The machine of a measurement, and whether it was quiet: without both, a number cannot be compared with anything.

Two things are measured while a benchmark runs. The first is how many cores other programs kept busy, on Linux. The
second is how long a small product, always the same, takes before and after: it also detects a processor that slows down
because it is hot.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mini_vllm import __version__, backend
from mini_vllm.backend import mx

ROOT = Path(__file__).parents[2]
#: The product that measures speed: x[num_rows, 512] @ W[1536, 512].T, the size of a small model's projections.
WIDTH_IN, WIDTH_OUT = 512, 1536
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


def provenance() -> dict[str, object]:
    """Return the machine of a saved result, and the versions."""
    try:
        mlx_lm: str | None = version("mlx-lm")
    except PackageNotFoundError:
        mlx_lm = None
    return {"device": backend.device_name(), "system": platform.system(), "cores": len(my_cores()),
            "blas": backend.blas.name, "python": platform.python_version(), "mini_vllm": __version__,
            "mlx": mx.__version__, "mlx_lm": mlx_lm}  # type: ignore[attr-defined]  # MLX's stubs leave it out


def describe_machine() -> list[str]:
    """Return lines with the device, the BLAS and the versions. There is no date, so equal runs look equal."""
    found = provenance()
    return [f"{found['device']}, {found['system']}", f"BLAS: {found['blas']}",
            f"MLX {found['mlx']}, mini_vllm {__version__}"]


def source(root: Path = ROOT) -> dict[str, Any]:
    """Return git's tree id of the running source, and the files that differ from it: all but those in ``benchmarks/``.

    The tree is None if this is no checkout.
    """
    tree = git(root, "rev-parse", "HEAD^{tree}") if (root / ".git").exists() else None
    changes = git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", ":!benchmarks")
    if tree is None or changes is None:
        return {"tree": None, "modified": []}
    return {"tree": tree.strip(), "modified": [line[3:] for line in changes.splitlines()]}


def git(root: Path, *command: str) -> str | None:
    """Return what a git command prints, or None if it fails."""
    try:
        return subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def my_cores() -> Collection[int]:
    """Return the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def memory_bytes() -> tuple[int, int | None]:
    """Return the machine's memory, total and available (None if the system does not report it)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return total, None
    return total, next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


# ---- the speed and the precision of MLX's matrix products


def product_times_s(num_rows: int, seconds: float) -> list[float]:
    """Return the times of one product after another: as many as fit into ``seconds``, and at least five."""
    x, weight = _operands(num_rows)
    mx.eval(x @ weight.T)  # the first product starts threads and allocates memory
    times_s: list[float] = []
    while len(times_s) < 5 or sum(times_s) < seconds:
        start_s = time.perf_counter()
        mx.eval(x @ weight.T)
        times_s.append(time.perf_counter() - start_s)
    return times_s


def measure_gflops(num_rows: int, seconds: float = 0.3) -> float:
    """Measure the GFLOP/s of products, including the cost of starting each."""
    if num_rows < 1:
        raise ValueError(f"num_rows is {num_rows}, must be at least 1")
    if seconds <= 0:
        raise ValueError(f"seconds is {seconds}, must be above 0")
    times_s = product_times_s(num_rows, seconds)
    return 2 * num_rows * WIDTH_IN * WIDTH_OUT * len(times_s) / sum(times_s) / 1e9


def product_error() -> float:
    """Return the largest difference between MLX's product and the same one in float64."""
    x, weight = _operands(num_rows=5)
    expected = np.array(x, dtype=np.float64) @ np.array(weight, dtype=np.float64).T
    return float(np.abs(np.array(x @ weight.T) - expected).max())


@cache
def _operands(num_rows: int) -> tuple[mx.array, mx.array]:
    x = mx.random.normal((num_rows, WIDTH_IN), key=mx.random.key(0))
    weight = mx.random.normal((WIDTH_OUT, WIDTH_IN), key=mx.random.key(1))
    mx.eval(x, weight)
    return x, weight


# ---- the noise of a measurement


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
    def _others(self) -> str:
        """What other programs kept busy; empty if that was little."""
        cores = "core" if self.num_cores == 1 else "cores"
        return (f"{self.others_cores:.1f} of {self.num_cores:g} {cores} busy"
                if self.others_cores > MAX_OTHERS * self.num_cores else "")

    @property
    def cause(self) -> str:
        """What disturbed the measurement, without a full stop; empty if the machine was quiet."""
        causes = [f"other programs kept {self._others}"] if self._others else []
        if self.slowdown > MAX_SLOWDOWN:
            causes.append(f"the speed of the machine varied by a factor of {self.slowdown:.1f}")
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
        return f"Other programs keep {self._others}, so measurements will be unreliable.\n" if self._others else ""

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "cause": self.cause}


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
