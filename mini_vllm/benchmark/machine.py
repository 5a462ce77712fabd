"""The machine of a measurement: without it, a number cannot be compared with anything."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mini_vllm import __version__
from mini_vllm.benchmark.cpu_time import my_cores

ROOT = Path(__file__).parents[2]


def provenance() -> dict[str, object]:
    """Return the machine of a saved result, and the versions."""
    from mini_vllm.backend import blas, device_name, mx
    try:
        mlx_lm: str | None = version("mlx-lm")
    except PackageNotFoundError:
        mlx_lm = None
    return {"device": device_name(), "system": platform.system(), "cores": len(my_cores()), "blas": blas.name,
            "python": platform.python_version(), "mini_vllm": __version__,
            "mlx": mx.__version__, "mlx_lm": mlx_lm}  # type: ignore[attr-defined]


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


def describe_machine() -> list[str]:
    """Return device and system, the BLAS and the versions of what was measured.

    There is no date, so equal runs look equal.
    """
    from mini_vllm.backend import blas, device_name, mx
    mac = platform.mac_ver()[0]
    system = f"macOS {mac}" if mac else f"{platform.system()} {platform.release().partition('-')[0]}"
    mlx: str = mx.__version__  # type: ignore[attr-defined]  # MLX's stubs leave it out
    return [f"{device_name()}, {system}", f"BLAS: {blas.name}", f"MLX {mlx}, mini_vllm {__version__}"]


def memory_bytes() -> tuple[int, int | None]:
    """Return the machine's memory, total and available (None if the system does not report it)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return total, None
    return total, next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
