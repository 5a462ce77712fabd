"""Advice on faster products for this machine: in full for ``doctor``, and as one line for commands that compute."""

from __future__ import annotations

import platform
import sys
from typing import TextIO

from mini_vllm import backend
from mini_vllm.backend import BlasInfo
from mini_vllm.native.runner import why_not_here

#: The package with a fast BLAS for each kind of processor; MLX on a Mac needs none.
BLAS_PACKAGES = {"aarch64": "nvpl-blas", "x86_64": "mkl"}
SYSTEM_PACKAGE = "apt install libopenblas0-pthread"


def install_commands() -> list[str]:
    """Return commands that each install a fast BLAS, the best first."""
    package = BLAS_PACKAGES.get(platform.machine())
    return [*([f"pip install {package}"] if package else []), SYSTEM_PACKAGE]


def slow_blas_line(blas: BlasInfo) -> str:
    """Return what to do if no fast BLAS was found; empty if there is one, or if the user chose the reference BLAS."""
    if blas.note != backend.NOT_FOUND:
        return ""
    return (f"mini-vllm: MLX multiplies with its slow reference BLAS; `{install_commands()[0]}` makes it several times "
            "as fast (mini-vllm doctor says more)")


def tell_slow_blas(stream: TextIO | None = None) -> None:
    """Print the advice, by default on standard error, if MLX will multiply. A command that computes calls this once."""
    line = slow_blas_line(backend.blas)
    if line and why_not_here():
        print(line, file=sys.stderr if stream is None else stream, flush=True)
