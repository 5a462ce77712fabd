"""The only module through which the engine imports MLX: ``from mini_vllm.backend import mx, nn``.

MLX for the CPU on Linux links the reference BLAS, which multiplies 64 rows no faster than 64 times one row, so batching
would gain nothing. A fast BLAS that is loaded into the process *before* MLX takes its place, because the dynamic linker
binds a name such as ``cblas_sgemm`` to the first library that offers it. So this module looks for a fast BLAS, loads
it, and only then imports MLX. Without one everything still works, but slower. On a Mac and on CUDA no BLAS is needed.
The search and the import are in one module, longer than most, because their order matters.

A BLAS is loaded with global visibility, so extension modules loaded later may bind to it too. With the CUDA build,
``MLX_MAX_OPS_PER_BUFFER`` and ``MLX_MAX_MB_PER_BUFFER`` are set, unless they already are. Nothing else about the
process changes. ``MINI_VLLM_BLAS`` overrides the search: the path of a library, or ``none`` for the reference BLAS.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: The libraries of one candidate in loading order; the last is the BLAS itself.
Libraries = tuple[str, ...]

#: Why the reference BLAS is in use.
NOT_FOUND = "no fast BLAS was found"
SWITCHED_OFF = "switched off by MINI_VLLM_BLAS=none"
TOO_LATE = "mlx.core was imported before mini_vllm.backend: too late to load a BLAS"

#: Debian and Arch build the second with threads, Fedora the first. ``ctypes.util.find_library`` would find no more, and
#: runs a compiler to do so; the dynamic linker resolves these names directly.
OPENBLAS_NAMES = ("libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so")

#: What NVPL's threads need.
GNU_OPENMP = "libgomp.so.1"


@dataclass(frozen=True)
class BlasInfo:
    """The BLAS that multiplies matrices, and why it was chosen.

    ``name`` is "nvpl", "mkl", "openblas", "custom" (named by the user and none of these), "reference" (MLX's own), or
    "metal" or "cuda" where MLX needs none. ``path`` is None when nothing was loaded.
    """

    name: str
    path: str | None
    note: str


def choose_blas() -> BlasInfo:
    """Load the best available BLAS into the process and describe it. Call this before MLX is imported.

    Raise ValueError if ``MINI_VLLM_BLAS`` names a library that cannot be used. Unusable candidates of the search are
    skipped.
    """
    build = mlx_build()
    if build != "cpu":
        return BlasInfo(build, None, "MLX brings its own kernels, no BLAS is needed")
    if "mlx.core" in sys.modules:
        return BlasInfo("reference", None, TOO_LATE)
    asked_for = os.environ.get("MINI_VLLM_BLAS", "").strip()
    if asked_for.lower() == "none":
        return BlasInfo("reference", None, SWITCHED_OFF)
    if asked_for:
        try:
            load_libraries((asked_for,))
        except OSError as error:
            raise ValueError(f"MINI_VLLM_BLAS is {asked_for!r}, which cannot be used: {error}. "
                             "Give the path of a BLAS library, or 'none', or unset it") from error
        known = [name for name in ("nvpl", "mkl", "openblas") if name in Path(asked_for).name]
        return BlasInfo(known[0] if known else "custom", asked_for, "named by MINI_VLLM_BLAS")
    for name, libraries, origin in candidates():
        try:
            load_libraries(libraries)
        except OSError:
            continue
        return BlasInfo(name, libraries[-1], origin)
    return BlasInfo("reference", None, NOT_FOUND)


def mlx_build() -> str:
    """Return the kind of MLX installed, "metal", "cuda" or "cpu", without importing it."""
    if sys.platform == "darwin":
        return "metal"
    for folder in package_folders("mlx"):
        if any(folder.parent.glob("mlx_cuda*.dist-info")):
            return "cuda"
    return "cpu"


def candidates() -> Iterator[tuple[str, Libraries, str]]:
    """Yield every BLAS that may be installed, best first: its name, its libraries, and where it was found."""
    for folder in package_folders("nvpl"):
        lib = folder / "lib"
        core = str(lib / "libnvpl_blas_core.so.0")
        # The threaded one ends the process at its first product if libgomp is missing, so libgomp is loaded first.
        yield "nvpl", (GNU_OPENMP, core, str(lib / "libnvpl_blas_lp64_gomp.so.0")), "package nvpl-blas"
        yield "nvpl", (core, str(lib / "libnvpl_blas_lp64_seq.so.0")), "package nvpl-blas, one thread: no libgomp"
    # The version number changes: libmkl_rt.so.2 until 2025, libmkl_rt.so.3 since.
    for mkl in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"), key=_library_version, reverse=True):
        yield "mkl", (str(mkl.with_name("libiomp5.so")), str(mkl)), "package mkl"
    for name in OPENBLAS_NAMES:
        yield "openblas", (name,), "the system's OpenBLAS"


def _library_version(path: Path) -> list[int]:
    """Return the version in a file name: ``libmkl_rt.so.3`` → [3]; [] without a number."""
    return [int(part) for part in path.name.partition(".so")[2].split(".") if part.isdecimal()]


def load_libraries(libraries: Libraries) -> None:
    """Load ``libraries`` in order and make the last one take precedence over libraries that are loaded later.

    Raise OSError if a library cannot be loaded, or if the last has no plain 32-bit ``cblas_sgemm``. In the second case
    that library is not made visible to others.
    """
    for path in libraries[:-1]:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(libraries[-1], mode=ctypes.RTLD_LOCAL)
    if not hasattr(library, "cblas_sgemm"):
        raise OSError(f"{libraries[-1]} has no symbol cblas_sgemm")
    if hasattr(library, "openblas_get_config"):
        library.openblas_get_config.restype = ctypes.c_char_p
        if b"USE64BITINT" in library.openblas_get_config():
            raise OSError(f"{libraries[-1]} takes 64-bit integers, MLX passes 32-bit ones")
    ctypes.CDLL(libraries[-1], mode=ctypes.RTLD_GLOBAL)


def package_folders(name: str) -> list[Path]:
    """Return the folders of the package ``name`` without importing it; an empty list if it is not installed."""
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


#: MLX submits work to an NVIDIA GPU in batches, limited by the number of operations (by default a few dozen) and by the
#: megabytes of their inputs (a few hundred). One pool of keys and values reaches the second limit, so every layer would
#: be a batch of its own. While many batches are in flight MLX waits, and the next step cannot begin early; with a few
#: large batches it can. MLX reads these limits when it first computes.
CUDA_PIECES = {"MLX_MAX_OPS_PER_BUFFER": "300", "MLX_MAX_MB_PER_BUFFER": "1000000"}

#: The BLAS that this process uses.
blas = choose_blas()
if mlx_build() == "cuda":
    for name, value in CUDA_PIECES.items():
        os.environ.setdefault(name, value)

try:
    import mlx.core as mx
    import mlx.nn as nn
except ImportError as error:  # not installed, or on Linux without the library that its extra installs
    how_to_get_it = "pip install mlx" if sys.platform == "darwin" else "pip install 'mlx[cpu]'"
    raise ImportError(f"MLX cannot be imported ({error}): {how_to_get_it}") from error

if hasattr(mx, "clear_streams"):
    atexit.register(mx.clear_streams)  # newer MLX needs this at the end of the program, as at the end of a thread


def device_name() -> str:
    """Return a readable name of the device MLX computes on: "cpu (aarch64, 2 cores)", "gpu (Apple M3)"."""
    if not is_cpu():
        info = mx.device_info() if hasattr(mx, "device_info") else mx.metal.device_info()  # the latter before MLX 0.30
        return f"gpu ({info.get('device_name', 'unknown')})"
    return f"cpu ({_cpu_model()}, {os.cpu_count()} cores)"


def is_cpu() -> bool:
    """Check whether MLX computes on a CPU. ``fast.tuning`` contains what depends on it."""
    return bool(mx.default_device().type == mx.cpu)


def on_cpu() -> mx.StreamContext:
    """Compute on the CPU, whatever the device is. Results computed there are known to be correct."""
    return mx.stream(mx.cpu)


def check_process() -> None:
    """Raise RuntimeError in a process that was forked from one that used MLX: its threads stayed there.

    Without this, the first computation would wait for them for ever.
    """
    global _used_in
    _used_in = _used_in or os.getpid()
    if _used_in != os.getpid():
        raise RuntimeError(f"process {os.getpid()} was forked from process {_used_in}, which has used MLX, so MLX does "
                           "not work here. Start it with subprocess, or with multiprocessing's method \"spawn\".")


#: The process that used MLX first.
_used_in: int | None = None


def _cpu_model() -> str:
    fallback = os.uname().machine
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return fallback
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), fallback)


__all__ = ["BlasInfo", "blas", "check_process", "device_name", "is_cpu", "mx", "nn", "on_cpu"]
