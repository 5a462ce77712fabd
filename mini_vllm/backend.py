"""The one place through which the engine imports MLX: ``from mini_vllm.backend import mx, nn``.

MLX for the CPU on Linux links the reference BLAS, which multiplies 64 rows no faster than 64 times one row: batching
would gain nothing. A fast BLAS that is loaded into the process *before* MLX takes its place, because the dynamic linker
binds a name such as ``cblas_sgemm`` to the first library that offers it. So this module looks for one, loads it, and
only then imports MLX. Without one everything still works, slower. On a Mac and on CUDA nothing is needed. Search and
import stand in one module, longer than most, because their order is what matters.

**Importing this module changes the whole process**, where MLX is the one for the CPU on Linux:

- a BLAS is loaded for all to see, so other extension modules that are loaded later may bind to it as well;
- ``OMP_WAIT_POLICY`` or ``OPENBLAS_THREAD_TIMEOUT`` is set, unless it already is: a BLAS reads it when it starts its
  threads, and child processes inherit it;
- glibc's malloc is told to keep freed memory (``mallopt``), so the process looks larger from outside than what it uses.

Where it is the one for CUDA, ``MLX_MAX_OPS_PER_BUFFER`` and ``MLX_MAX_MB_PER_BUFFER`` are set, unless they already are.

``MINI_VLLM_BLAS`` overrides the search: the path of a library, or ``none`` for the reference BLAS.
``MINI_VLLM_PLAIN=1`` switches all of that off: the process stays as it was, and is slower.
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

#: Libraries of one candidate, in the order to load; the last is the BLAS itself.
Libraries = tuple[str, ...]

#: Why the reference BLAS is in use.
NOT_FOUND = "no fast BLAS was found"
SWITCHED_OFF = "switched off by MINI_VLLM_BLAS=none"
LEFT_PLAIN = "switched off by MINI_VLLM_PLAIN: no BLAS, no change of malloc or the environment"
TOO_LATE = "mlx.core was imported before mini_vllm.backend: too late to load a BLAS"

#: Debian and Arch build the second with threads, Fedora the first. ``ctypes.util.find_library`` would find no more,
#: and runs a compiler to do so; the dynamic linker knows these names by itself.
OPENBLAS_NAMES = ("libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so")

#: Its threads spin while they wait for work, unless told before they start not to. On an idle machine both are equally
#: fast; with one of two cores busy, spinning makes the product of one row three times slower.
GNU_OPENMP = "libgomp.so.1"
#: OpenBLAS's threads do the same, for 2 to this power of clock ticks; by default 26, a fiftieth of a second.
OPENBLAS_TIMEOUT = "16"

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
#: Older versions of glibc refuse the larger one.
MALLOC_KEEPS_BYTES = (1 << 30, 32 << 20)


@dataclass(frozen=True)
class BlasInfo:
    """Which BLAS multiplies matrices, and why that one.

    ``name`` is "nvpl", "mkl", "openblas", "custom" (named by the user and none of these), "reference" (MLX's own), or
    "metal" or "cuda" where MLX needs none. ``path`` is None when nothing was loaded.
    """

    name: str
    path: str | None
    note: str


def choose_blas() -> BlasInfo:
    """Load the best BLAS at hand into the process and say which it is. To be called before MLX is imported.

    Raises ValueError if ``MINI_VLLM_BLAS`` names a library that cannot serve; candidates found by the search that
    cannot serve are passed over.
    """
    build = mlx_build()
    if build != "cpu":
        return BlasInfo(build, None, "MLX brings its own kernels, no BLAS is needed")
    if is_plain():
        return BlasInfo("reference", None, LEFT_PLAIN)
    if "mlx.core" in sys.modules:
        return BlasInfo("reference", None, TOO_LATE)
    asked_for = os.environ.get("MINI_VLLM_BLAS", "").strip()
    if asked_for.lower() == "none":
        return BlasInfo("reference", None, SWITCHED_OFF)
    if asked_for:
        try:
            load_libraries((asked_for,))
        except OSError as error:
            raise ValueError(f"MINI_VLLM_BLAS is {asked_for!r}, which cannot serve: {error}. "
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


def is_plain() -> bool:
    """Whether the user asked that importing this module leave the process as it is."""
    return os.environ.get("MINI_VLLM_PLAIN", "").strip() not in ("", "0")


def mlx_build() -> str:
    """The kind of MLX installed: "metal", "cuda" or "cpu". Found out without importing it."""
    if sys.platform == "darwin":
        return "metal"
    for folder in package_folders("mlx"):
        if any(folder.parent.glob("mlx_cuda*.dist-info")):
            return "cuda"
    return "cpu"


def candidates() -> Iterator[tuple[str, Libraries, str]]:
    """Every BLAS that may be here, best first: its name, its libraries, where it comes from."""
    for folder in package_folders("nvpl"):
        lib = folder / "lib"
        core = str(lib / "libnvpl_blas_core.so.0")
        # The threaded one ends the process at its first product if there is no libgomp, so that is loaded first.
        yield "nvpl", (GNU_OPENMP, core, str(lib / "libnvpl_blas_lp64_gomp.so.0")), "package nvpl-blas"
        yield "nvpl", (core, str(lib / "libnvpl_blas_lp64_seq.so.0")), "package nvpl-blas, one thread: no libgomp"
    # Its number changes with the years: libmkl_rt.so.2 until 2025, libmkl_rt.so.3 since.
    for mkl in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"), key=_library_version, reverse=True):
        yield "mkl", (str(mkl.with_name("libiomp5.so")), str(mkl)), "package mkl"
    for name in OPENBLAS_NAMES:
        yield "openblas", (name,), "the system's OpenBLAS"


def _library_version(path: Path) -> list[int]:
    """``libmkl_rt.so.3`` → [3]; without a number, []."""
    return [int(part) for part in path.name.partition(".so")[2].split(".") if part.isdecimal()]


def load_libraries(libraries: Libraries) -> None:
    """Load ``libraries`` in order and put the last one before all that are loaded later.

    Raises OSError if one cannot be loaded, or if the last has no plain 32-bit ``cblas_sgemm``; that one is then not
    visible to others.
    """
    if GNU_OPENMP in libraries:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "openblas" in Path(libraries[-1]).name:
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", OPENBLAS_TIMEOUT)
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
    """Where the package ``name`` lies, without importing it; empty if it is not installed."""
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def keep_freed_memory() -> bool:
    """Make malloc keep what is freed: a step's large temporaries would otherwise page-fault anew in every step.

    Returns whether malloc agreed; only glibc's can.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    return all(any(libc.mallopt(option, num_bytes) for num_bytes in MALLOC_KEEPS_BYTES)
               for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))


#: MLX hands work to an NVIDIA GPU in pieces of so many operations, or of inputs of so many megabytes: by default a few
#: dozen, and a few hundred. A pool of keys and values is as large as that by itself, so that every layer would be a
#: piece of its own. And while many pieces are under way MLX waits, so that the next step cannot be begun: with a few
#: large ones it can. ``MINI_VLLM_PLAIN=1 mini-vllm bench gpu`` measures without.
CUDA_PIECES = {"MLX_MAX_OPS_PER_BUFFER": "300", "MLX_MAX_MB_PER_BUFFER": "1000000"}


def hand_over_large_pieces() -> None:
    """Say so to MLX, unless the user has said something else. It reads this when it first computes."""
    for name, value in CUDA_PIECES.items():
        os.environ.setdefault(name, value)


#: What this process multiplies with.
blas = choose_blas()
if mlx_build() == "cuda" and not is_plain():
    hand_over_large_pieces()
if mlx_build() == "cpu" and not is_plain():
    keep_freed_memory()

try:
    import mlx.core as mx
    import mlx.nn as nn
except ImportError as error:  # not installed, or on Linux without the library that comes with its extra
    how_to_get_it = "pip install mlx" if sys.platform == "darwin" else "pip install 'mlx[cpu]'"
    raise ImportError(f"MLX cannot be imported ({error}): {how_to_get_it}") from error

if hasattr(mx, "clear_streams"):
    atexit.register(mx.clear_streams)  # newer MLX wants it at the end of the program, as at the end of a thread


def device_name() -> str:
    """The device MLX computes on, for people: "cpu (aarch64, 2 cores)", "gpu (Apple M3)"."""
    if not is_cpu():
        info = mx.device_info() if hasattr(mx, "device_info") else mx.metal.device_info()  # the latter before MLX 0.30
        return f"gpu ({info.get('device_name', 'unknown')})"
    return f"cpu ({_cpu_model()}, {os.cpu_count()} cores)"


def is_cpu() -> bool:
    """Whether MLX computes on a CPU. What follows from that, ``fast.tuning`` says."""
    return bool(mx.default_device().type == mx.cpu)


def on_cpu() -> mx.StreamContext:
    """Compute on the CPU, whatever the device: what is computed there is known to be right."""
    return mx.stream(mx.cpu)


def _cpu_model() -> str:
    fallback = os.uname().machine
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return fallback
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), fallback)


__all__ = ["BlasInfo", "blas", "device_name", "is_cpu", "mx", "nn", "on_cpu"]
