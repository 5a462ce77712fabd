"""The machine of a measurement: without it, a number cannot be compared with anything."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Collection
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import __version__, backend
from mini_vllm.backend import mx

ROOT = Path(__file__).parents[2]
#: The product that measures speed: x[num_rows, 512] @ W[1536, 512].T, the size of a small model's projections.
WIDTH_IN, WIDTH_OUT = 512, 1536


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
