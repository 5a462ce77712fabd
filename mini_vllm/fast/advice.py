"""What makes products faster on this machine: for ``doctor``, and in one line for whoever waits for them."""

from __future__ import annotations

import platform
import sys
from typing import TextIO

from mini_vllm import backend
from mini_vllm.backend import BlasInfo

#: The package with a fast BLAS for a kind of processor; MLX on a Mac needs none.
BLAS_PACKAGES = {"aarch64": "nvpl-blas", "x86_64": "mkl"}
SYSTEM_PACKAGE = "apt install libopenblas0-pthread"


def install_commands() -> list[str]:
    """Each of them brings a fast BLAS, the best first."""
    package = BLAS_PACKAGES.get(platform.machine())
    return [*([f"pip install {package}"] if package else []), SYSTEM_PACKAGE]


def slow_blas_line(blas: BlasInfo) -> str:
    """What to do if no fast BLAS was found; empty if there is one, or whoever has none wants none."""
    if blas.note != backend.NOT_FOUND:
        return ""
    return (f"mini-vllm: MLX multiplies with its slow reference BLAS; `{install_commands()[0]}` makes it several times "
            "as fast (mini-vllm doctor says more)")


def tell_slow_blas(stream: TextIO | None = None) -> None:
    """To be called once by a command that computes. On standard error unless a stream is given."""
    line = slow_blas_line(backend.blas)
    if line:
        print(line, file=sys.stderr if stream is None else stream, flush=True)
