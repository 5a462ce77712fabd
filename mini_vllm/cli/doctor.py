"""``mini-vllm doctor``: what is this machine, how fast does it multiply, and what would make it faster?"""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

from mini_vllm import backend
from mini_vllm.backend import BlasInfo, mx
from mini_vllm.benchmark.machine import measure_gflops, memory_bytes, product_error
from mini_vllm.fast import tuning
from mini_vllm.gpu.select_runner import try_kernels
from mini_vllm.models import catalogue
from mini_vllm.native.advice import install_commands
from mini_vllm.native.runner import why_not_here

#: The largest allowed error of a product against float64, for sums of WIDTH_IN terms of size 1. The reference BLAS
#: stays within 1e-4.
TOLERANCE = 1e-2
#: The same on a GPU. By default an NVIDIA GPU multiplies float32 numbers rounded to 10 bits: off by 0.03.
GPU_TOLERANCE = 0.2

NOTHING_TO_DO = "nothing"
ADVICE = {
    backend.SWITCHED_OFF: "for faster matrix products: unset MINI_VLLM_BLAS",
    backend.TOO_LATE: "for faster matrix products: import mini_vllm before mlx.core",
}


def models_at_hand() -> list[tuple[str, Path]]:
    """Return name and path of every model that needs no download: first the shipped ones, then those pulled."""
    shipped = sorted(Path(__file__).parents[1].glob("assets/*/config.json"))
    models = [(config.parent.name, config.parent) for config in shipped]
    return models + [(name, path) for name in catalogue.KNOWN if (path := catalogue.cached_model(name))]


def advice(blas: BlasInfo) -> str:
    """Return one line that says what the user can do to make products faster."""
    if blas.note == backend.NOT_FOUND:
        return f"for faster matrix products: {', or '.join(install_commands())}"
    return ADVICE.get(blas.note, NOTHING_TO_DO)


def advice_for_cuda() -> str:
    """Return what to do if the CPU's MLX was installed with the one for CUDA; empty otherwise."""
    names = {distribution.metadata["Name"] for distribution in distributions()}
    cuda = next((name for name in names if name.startswith("mlx-cuda-")), None)
    if cuda is None or "mlx-cpu" not in names:
        return ""
    return (f"for the GPU, since mlx-cpu and {cuda} replace each other's files: pip uninstall -y mlx-cpu && "
            f"pip install --force-reinstall --no-deps {cuda}")


def describe_step() -> str:
    """Return what computes a step on this CPU."""
    why_not = why_not_here()
    return f"MLX's operations, since the step in C is not used: {why_not}" if why_not else "one call of C"


def run_doctor(complaint: str | None = None) -> int:
    """Print the findings and what to do about them. Return 0, or 1 if the machine multiplies wrongly.

    ``complaint`` says what is wrong with MINI_VLLM_BLAS if the backend had to be imported without it; then return 1.
    """
    total, available = memory_bytes()
    memory = f"{total / 2**30:.1f} GiB" + (f", {available / 2**30:.1f} GiB available" if available is not None else "")
    blas = backend.blas
    kernels, to_do_for_kernels = try_kernels()
    rows = [
        ("device", backend.device_name()),
        ("MLX", mx.__version__),  # type: ignore[attr-defined]  # MLX's stubs leave it out
        ("BLAS", f"{blas.name}: {blas.note}" + (f"\n{blas.path}" if blas.path else "")),
        ("speed", "\n".join(f"{measure_gflops(num_rows):7.1f} GFLOP/s at {num_rows} {unit}"
                            for num_rows, unit in ((1, "row"), (64, "rows")))),
        *([("step", describe_step())] if not tuning.has_gpu() else []),
        *([("kernels", kernels)] if kernels else []),
        ("memory", memory),
        ("models", "\n".join(f"{name}: {path}" for name, path in models_at_hand()) or "none yet"),
    ]
    error = product_error()
    limit = GPU_TOLERANCE if tuning.has_gpu() else TOLERANCE
    is_right = error < limit
    kind, instead = ("GPU", "") if tuning.has_gpu() else ("BLAS", "; set MINI_VLLM_BLAS=none")
    to_do = advice(blas) if is_right else (f"do not use this {kind}: a product is off by {error:.3g}, the limit is "
                                           f"{limit}{instead}")
    to_dos = [to_do if to_do != NOTHING_TO_DO else "", to_do_for_kernels, advice_for_cuda()]
    if complaint is not None:
        rows.insert(0, ("wrong", f"{complaint}\nThe rest of this report describes the machine without that setting."))
        to_dos.insert(0, "unset MINI_VLLM_BLAS")
    rows.append(("what to do", "; ".join(filter(None, to_dos)) or NOTHING_TO_DO))
    for title, text in rows:
        for line in text.splitlines():
            print(f"{title:<12}{line}")
            title = ""
    return 0 if is_right and complaint is None else 1
