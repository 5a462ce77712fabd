"""Every choice that depends on the machine, and every tuned number.

``backend`` knows what the machine is: the device of MLX, and which BLAS multiplies. The consequences are decided here.
Modules call ``tuning.name`` at the moment of the choice, so a test that sets ``tuning.is_cpu`` sees all of them decide
as on the other device.

The command next to a number measures what the number decides. Run it before and after changing the number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps

from mini_vllm import backend
from mini_vllm.backend import blas, is_cpu, mx
from mini_vllm.fast.step_costs import DraftCost, StepCosts

#: Tokens a step may compute. On a CPU more is no faster, and delays first tokens. ``mini-vllm bench throughput
#: --workload mixed-16``
CPU_BATCHED_TOKENS, GPU_BATCHED_TOKENS = 256, 2048
#: Tokens of a prompt in a step in which other requests decode. With 16 decoding requests, such a step takes 2 to 3
#: times as long as one without a prompt. ``mini-vllm bench throughput --workload long-arrival``
CPU_CHUNK_TOKENS = 96
#: With a model of 22 MB, looking ahead made decoding 1.2 times as fast for one request, 1.1 times as fast for 2 to 4
#: requests, and no faster for more requests. With a model of 109 MB, it made decoding slower: 0.93 times as fast.
CPU_MAX_LOOKAHEAD, CPU_SMALL_MODEL_BYTES = 4, 64_000_000
#: With MKL, whose products take a smaller part of a step, up to 16 requests gain from it.
MKL_MAX_LOOKAHEAD = 16
#: What drafts cost, in steps without them, measured on two Neoverse-N1 cores and on an H200.
CPU_DRAFT_COSTS = StepCosts((DraftCost(1, 0.7, 0.09), DraftCost(2, 0.25, 0.1), DraftCost(4, 0.0, 0.35, 3),
                             DraftCost(8, 0.0, 0.55, 3), DraftCost(16, 0.0, 0.75, 3)))
CPU_SMALL_DRAFT_COSTS = StepCosts((DraftCost(1, 0.55, 0.05), DraftCost(2, 0.3, 0.15), DraftCost(4, 0.1, 0.23),
                                   DraftCost(8, 0.2, 0.28), DraftCost(16, 0.25, 0.34)), no_lookahead=0.15)
GPU_DRAFT_COSTS = StepCosts((DraftCost(1, 1.0, 0.03), DraftCost(16, 1.0, 0.1)), no_lookahead=0.4)


def has_gpu() -> bool:
    """Check whether there is a GPU, for what only a GPU can do: kernels, and ``mx.compile``.

    A test that sets ``is_cpu`` does not change the result.
    """
    return not backend.is_cpu()


def compiled_on_gpu(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Return ``function`` compiled by ``mx.compile`` on a GPU, where each of many small operations would read and write
    a whole array. On a CPU, for which ``mx.compile`` would need a C++ compiler, return it unchanged."""
    compile_once = cache(lambda: mx.compile(function))

    @wraps(function)
    def call(*arrays: mx.array) -> mx.array:
        found: mx.array = compile_once()(*arrays) if has_gpu() else function(*arrays)
        return found

    return call


def max_num_batched_tokens() -> int:
    """Return the default number of tokens that a step may compute."""
    return CPU_BATCHED_TOKENS if is_cpu() else GPU_BATCHED_TOKENS


def max_num_chunk_tokens() -> int | None:
    """Return the default number of prompt tokens in a step with decoding requests. None: as many as fit."""
    return CPU_CHUNK_TOKENS if is_cpu() else None


def max_lookahead(max_num_seqs: int, model_bytes: int) -> int:
    """Return the most decoding requests for which the next step is begun while the last one is computed.

    On a CPU, building a step takes a core from the products of the last one.
    """
    if not is_cpu():
        return max_num_seqs
    if model_bytes >= CPU_SMALL_MODEL_BYTES:
        return 0
    return MKL_MAX_LOOKAHEAD if blas.name == "mkl" else CPU_MAX_LOOKAHEAD


def draft_costs(model_bytes: int) -> StepCosts:
    """Return what drafted tokens cost, relative to a plain step. ``mini-vllm bench speculation``"""
    if not is_cpu():
        return GPU_DRAFT_COSTS
    return CPU_SMALL_DRAFT_COSTS if model_bytes < CPU_SMALL_MODEL_BYTES else CPU_DRAFT_COSTS
