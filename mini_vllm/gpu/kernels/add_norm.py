"""Adds the input and the output of half a layer (attention or MLP), and computes the norm of the sum, in one kernel."""

from __future__ import annotations

from mini_vllm.backend import mx
from mini_vllm.gpu.kernels.kernel import WARP, Kernel, bits_of

ADD_NORM = Kernel("add_norm", ("x", "added", "weight"), ("total", "normed"))
#: Warps of a thread block, which handles one token. A thread takes eight numbers at once, in one or several passes.
WARPS = 4


def add_norm(x: mx.array, added: mx.array, weight: mx.array, eps: float) -> tuple[mx.array, mx.array]:
    """Return ``x + added`` [num_tokens, hidden_size] and its RMS norm; ``hidden_size`` is a multiple of 8.

    ``added`` may be in parts, [num_parts, num_tokens, hidden_size].
    """
    num_tokens, hidden_size = x.shape
    parameters = {"T": x.dtype, "ADDED": added.dtype, "PARTS": added.shape[0] if added.ndim == 3 else 1,
                  "PASSES": -(-hidden_size // (WARPS * WARP * 8)), "WARPS": WARPS, "EPS": bits_of(eps)}
    total, normed = ADD_NORM([x, added, weight], parameters, (num_tokens, 1, 1), WARPS, [(x.shape, x.dtype)] * 2)
    return total, normed
