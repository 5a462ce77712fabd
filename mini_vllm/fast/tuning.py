"""Every choice that depends on the machine, and every tuned number.

``backend`` knows what the machine is: the device of MLX, and which BLAS multiplies. The consequences are decided here
and nowhere else. Modules call ``tuning.name`` at the moment of the choice, so a test that sets ``tuning.is_cpu`` sees
all of them decide as on the other device.

The command next to a number measures what the number decides. Run it before and after changing the number.
"""

from __future__ import annotations

import functools
import platform
from typing import NamedTuple

from mini_vllm import backend
from mini_vllm.backend import blas, is_cpu, mx
from mini_vllm.fast.step_costs import DraftCost, StepCosts

#: Ranges of numbers of tokens: the first and the last number of each range.
Ranges = tuple[tuple[int, int], ...]


class WeightsFirst(NamedTuple):
    """Numbers of tokens for which ``weight @ x.T`` is used, by the product."""

    #: A single product, whose result must be transposed.
    one: Ranges
    #: The two products of an MLP, which share one transposition.
    mlp: Ranges
    #: The product with the output matrix, whose result is large.
    head: Ranges


TOKENS_FIRST = WeightsFirst((), (), ())

# ---- attention

#: Up to this many decoding requests are attended one by one: few products of whole contexts, not many of blocks.
#: ``python tools/measure attention``, gather against split-KV.
MAX_GATHERED_DECODES = 2
#: Requests that compute up to this many tokens are attended together, like those with one, to verify drafts. ``python
#: tools/measure queries``
MAX_SPLIT_QUERIES = 8
#: Query tokens of a chunk that are attended at once. Smaller tiles skip more keys that they do not see; larger ones
#: start fewer operations. ``mini-vllm bench throughput --workload long-arrival``
QUERY_TILE = 128
#: With fewer (request, block) pairs than this, a second stream costs more than it saves. ``python tools/measure
#: attention``, split-KV against two streams.
MIN_SPLITS_FOR_TWO_STREAMS = 40
#: The most partial results of a request that are added at once. More means more padding for requests with few. ``python
#: tools/measure attention``
MAX_PARTIALS_PER_SUM = 16
#: Requests with about equally many blocks are padded to the same number, if that multiplies the blocks by at most this
#: factor. ``python tools/measure attention``
MAX_FILLED = 1.125
#: Average tokens per run from which writing run by run is faster than token by token; with 32 it is four times as fast.
#: ``python tools/measure pool``, the line with a prompt.
MIN_RUN = 8
#: A ``gather_mm`` of more products does not start on CUDA, which counts thread blocks in 16 bits.
CUDA_MAX_PRODUCTS, MAX_PRODUCTS = 65_535, 2**31 - 1
#: Kernels that multiply one vector far faster than two or three. ``python tools/measure blas``, M = 1 and 2.
FAST_WITH_ONE_VECTOR = ("nvpl", "mkl", "metal", "cuda")
#: With more rows than this, NVPL multiplies even the smallest matrices with several threads, which takes four times as
#: long. ``python tools/measure queries``
NVPL_MAX_SMALL_ROWS = 8

# ---- everything else that a step computes

IS_X86 = platform.machine() in ("x86_64", "AMD64")
#: With fewer elements, starting the fifteen operations of our exp takes longer than they save. ``python tools/measure
#: blas``, the last lines.
MIN_EXP_SIZE = 16384 if IS_X86 else 32768
#: With fewer elements of an activation, a second stream costs more than it saves. ``mini-vllm bench throughput
#: --workload mixed-16``
MIN_ACTIVATION_TO_SPLIT = 131072
#: The same for the noise that draws tokens. ``mini-vllm bench throughput --temperature 0.8``
MIN_NOISE_TO_SPLIT = 16384
#: BLAS → numbers of tokens for which ``weight @ x.T`` takes less time than ``x @ weight.T``, as inclusive ranges. For a
#: BLAS that is not listed, ``x @ weight.T`` is used. Measured on two Neoverse-N1 cores (NVPL) and on two cores of a
#: Xeon (MKL); OpenBLAS and Accelerate were not measured. ``python tools/measure blas``
WEIGHTS_FIRST: dict[str, WeightsFirst] = {
    "nvpl": WeightsFirst(((3, 8), (13, 24)), mlp=((3, 8), (13, 64)), head=((3, 8), (13, 24))),
    "mkl": WeightsFirst(((9, 48),), mlp=((9, 48),), head=((9, 16),)),
}

# ---- the size of a step, and look-ahead

#: Tokens a step may compute. On a CPU more is no faster, and delays first tokens. ``mini-vllm bench throughput
#: --workload mixed-16``
CPU_BATCHED_TOKENS, GPU_BATCHED_TOKENS = 256, 2048
#: Tokens of a prompt in a step in which other requests decode. With 16 decoding requests, such a step takes 2 to 3
#: times as long as one without a prompt. ``mini-vllm bench throughput --workload long-arrival``
CPU_CHUNK_TOKENS = 96
#: With a model of 22 MB, looking ahead made decoding 1.2 times as fast for one request, 1.1 times as fast for 2 to 4
#: requests, and no faster for more requests. With a model of 109 MB, it made decoding slower: 0.93 times as fast.
#: ``python tools/measure single``
CPU_MAX_LOOKAHEAD, CPU_SMALL_MODEL_BYTES = 4, 64_000_000
#: What drafts cost, in steps without them. ``python tools/measure drafts``, on two Neoverse-N1 cores and on an H200.
CPU_DRAFT_COSTS = StepCosts((DraftCost(1, 0.7, 0.09), DraftCost(2, 0.25, 0.1), DraftCost(4, 0.0, 0.35, 3),
                             DraftCost(8, 0.0, 0.55, 3), DraftCost(16, 0.0, 0.75, 3)))
CPU_SMALL_DRAFT_COSTS = StepCosts((DraftCost(1, 0.55, 0.05), DraftCost(2, 0.3, 0.15), DraftCost(4, 0.1, 0.23),
                                   DraftCost(8, 0.2, 0.28), DraftCost(16, 0.25, 0.34)), no_lookahead=0.15)
GPU_DRAFT_COSTS = StepCosts((DraftCost(1, 1.0, 0.03), DraftCost(16, 1.0, 0.1)), no_lookahead=0.4)
#: With MKL, whose products take a smaller part of a step, up to 16 requests gain from it.
MKL_MAX_LOOKAHEAD = 16


def has_gpu() -> bool:
    """Check whether there is a GPU, for what only a GPU can do: kernels, and ``mx.compile``.

    On a CPU ``mx.compile`` would need a C++ compiler. A test that sets ``is_cpu`` does not change the result.
    """
    return not backend.is_cpu()


def has_two_streams() -> bool:
    """Check whether attention alternates between two streams; see ``streams``.

    With MKL it does, but no work is split in halves (see ``halves_are_faster``). One request decoded 1.05 times as fast
    as with two streams and halves; with a single stream it decoded only 0.85 to 0.9 times as fast.
    """
    return is_cpu()


def halves_are_faster() -> bool:
    """Check whether work that MLX computes on one core is split for two cores.

    With MKL it is not: between two products MKL's threads spin on the other core. On two x86 cores 16 requests decoded
    1.2 to 1.5 times as fast in one piece. Telling the threads not to spin (KMP_BLOCKTIME=0) made everything 1.3 times
    as slow.
    """
    return is_cpu() and blas.name != "mkl"


def softmax_by_hand_is_faster() -> bool:
    """Check whether softmax composed on two streams is faster than MLX's attention, which is one kernel on a GPU."""
    return is_cpu()


def writing_runs_is_faster() -> bool:
    """Check whether adjacent tokens of a block are written together.

    On a GPU they are not: there a scatter is one kernel.
    """
    return is_cpu()


def writing_elements_is_faster() -> bool:
    """Check whether scattered tokens are written number by number.

    On a CPU they are: MLX's scatter of vectors takes two to three times as long. On a GPU, where a step may write
    thousands of tokens, the index of each number would have to be transferred.
    """
    return is_cpu()


def exp_by_hand_is_faster(x: mx.array) -> bool:
    """Check whether ``exp.exp2`` is faster than MLX's own exp."""
    return x.size >= MIN_EXP_SIZE and x.dtype == mx.float32 and is_cpu()


def power_is_faster_than_exp() -> bool:
    """Check whether MLX computes ``e ** x`` faster as a power than as an exp.

    On x86 the power takes 11 ns per element and the exp 26, on aarch64 13 and 9. ``python tools/measure blas``, the
    last lines.
    """
    return IS_X86 and is_cpu()


def heads_apart_are_faster(num_rows: int, group: int) -> bool:
    """Check whether the ``group`` query heads that share a KV head are multiplied faster separately than together.

    Each head has ``num_rows`` vectors.
    """
    if num_rows == 1:
        return blas.name in FAST_WITH_ONE_VECTOR
    return blas.name == "nvpl" and num_rows * group > NVPL_MAX_SMALL_ROWS


def max_products() -> int:
    """Return the most products that one ``gather_mm`` may have."""
    return CUDA_MAX_PRODUCTS if blas.name == "cuda" else MAX_PRODUCTS


def weights_first_is_faster(num_tokens: int, part: str = "one") -> bool:
    """Check whether ``weight @ x.T`` is faster than ``x @ weight.T``.

    The table is fixed, so that tokens do not depend on how busy the machine was at the start.
    """
    return _is_listed(num_tokens, WEIGHTS_FIRST.get(blas.name, TOKENS_FIRST), part)


@functools.cache  # called four times per layer
def _is_listed(num_tokens: int, table: WeightsFirst, part: str) -> bool:
    ranges: Ranges = getattr(table, part)
    return any(first <= num_tokens <= last for first, last in ranges)


def two_apart_are_faster(num_tokens: int) -> bool:
    """Check whether two tokens are multiplied faster one by one: NVPL is fastest with one."""
    return blas.name == "nvpl" and num_tokens == 2


def dequantise_is_faster() -> bool:
    """Check whether packed weights should be expanded once, at load.

    On a CPU they should: a product of 4-bit weights took about 7 times as long as one of floats. No command measures
    this.
    """
    return is_cpu()


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
