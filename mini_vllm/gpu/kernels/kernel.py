"""A kernel: the source of a function's body, compiled by MLX for the present GPU when it is first called.

The source is the same for CUDA and Metal. What differs, such as the name of shared memory, is in ``sources/cuda.h`` and
``sources/metal.h``, which are meant to be read side by side. Parameters that decide how much a thread keeps in its
registers (``HEADS``, ``HEAD_DIM``, …) are compile-time constants, and so are a model's own numbers; each combination is
compiled separately, which takes about a second. All other parameters are shapes of the inputs: ``tables_shape[1]``, the
width of the block tables, or ``num_blocks``, the number of thread blocks. Both reach the GPU with the call.

No number is passed in an array of its own. MLX keeps arrays of up to eight bytes in the CPU's memory, and others that
the CPU has created wherever they were last touched; every thread block would fetch them from there, over and over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy as np

from mini_vllm.backend import mlx_build, mx

#: The number of threads that run in lockstep: it is the same for CUDA and Metal.
WARP = 32


@dataclass(frozen=True)
class Dialect:
    """The text that makes the sources CUDA or Metal."""

    name: str
    #: The index of the thread block, their number, and the index of the thread in it.
    opening: str


CUDA = Dialect("cuda", "const uint3 block = blockIdx;\nconst dim3 num_blocks = gridDim;\n"
                       "const int thread_id = threadIdx.x;\n")
METAL = Dialect("metal", "const uint3 block = threadgroup_position_in_grid;\n"
                         "const uint3 num_blocks = threadgroups_per_grid;\n"
                         "const int thread_id = thread_position_in_threadgroup.x;\n")


@cache
def dialect_here() -> Dialect:
    return METAL if mlx_build() == "metal" else CUDA


@cache
def read_source(name: str) -> str:
    return (resources.files(__package__) / "sources" / f"{name}.h").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Kernel:
    """A kernel made of one or several sources, and its arguments."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: Sources that it needs besides ``common.h``.
    headers: tuple[str, ...] = ()
    #: The sources before and after its own, which it shares with another kernel.
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def header(self, dialect: Dialect) -> str:
        return "".join(map(read_source, (dialect.name, "common", *self.headers)))

    def source(self, dialect: Dialect) -> str:
        return dialect.opening + self.body

    @property
    def body(self) -> str:
        return "".join(map(read_source, (*self.before, self.name, *self.after)))

    @cached_property
    def _compiled(self) -> Any:
        dialect = dialect_here()
        make = mx.fast.metal_kernel if dialect is METAL else mx.fast.cuda_kernel
        return make(name=f"mini_vllm_{self.name}", input_names=list(self.inputs), output_names=list(self.outputs),
                    source=self.source(dialect), header=self.header(dialect))

    def __call__(self, inputs: Sequence[mx.array], parameters: Mapping[str, object],
                 thread_blocks: tuple[int, int, int], num_warps: int,
                 outputs: Sequence[tuple[tuple[int, ...], mx.Dtype]]) -> list[mx.array]:
        """Run ``thread_blocks`` of ``num_warps`` warps each. ``outputs`` are shapes and types."""
        num_threads = num_warps * WARP
        found: list[mx.array] = self._compiled(
            inputs=list(inputs), template=list(parameters.items()),
            grid=(thread_blocks[0] * num_threads, *thread_blocks[1:]), threadgroup=(num_threads, 1, 1),
            output_shapes=[shape for shape, _ in outputs], output_dtypes=[dtype for _, dtype in outputs])
        return found


def bits_of(number: float) -> int:
    """Return the four bytes of a float32 as a whole number, since parameters must be whole: ``as_float`` in the
    sources."""
    return int(np.float32(number).view(np.int32))
