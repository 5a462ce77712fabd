"""Every choice that depends on the machine, and every number that was tuned on one.

``backend`` knows what the machine is: the device of MLX, and which BLAS multiplies. What follows from that is said here
and nowhere else. Modules ask ``tuning.name`` at the moment of the choice, so a test that sets ``tuning.is_cpu`` sees
all of them decide as on the other device.

The command beside a number measures what the number decides. Run it before and after changing one.
"""

from __future__ import annotations

import functools
import platform
from typing import NamedTuple

from mini_vllm import backend
from mini_vllm.backend import blas, is_cpu, mx

#: The first and the last number of each.
Ranges = tuple[tuple[int, int], ...]


class WeightsFirst(NamedTuple):
    """Numbers of tokens for which weights come first, by the product."""

    #: One product, which has to lay its result out anew.
    one: Ranges
    #: The two of an MLP, which share that.
    mlp: Ranges
    #: The one with the output matrix, whose result is large.
    head: Ranges


TOKENS_FIRST = WeightsFirst((), (), ())

# ---- attention

#: Up to this many decoding requests are attended one by one: few products of whole contexts, not many of blocks.
#: ``python tools/measure attention``, gather against split-KV.
MAX_GATHERED_DECODES = 2
#: Requests that compute up to this many tokens are attended together, as those with one: a draft is verified so.
#: ``python tools/measure queries``
MAX_SPLIT_QUERIES = 8
#: Query tokens of a chunk that are attended at once. Smaller tiles skip more keys that they do not see, larger ones
#: start fewer operations.
#: ``mini-vllm bench throughput --workload long-arrival``
QUERY_TILE = 128
#: With fewer (request, block) pairs than this, a second stream costs more than it saves.
#: ``python tools/measure attention``, split-KV against two streams.
MIN_SPLITS_FOR_TWO_STREAMS = 40
#: At most this many partial results of a request are added up at once: the more, the more filling for those with few.
#: ``python tools/measure attention``
MAX_PARTIALS_PER_SUM = 16
#: Requests that have about as many blocks are filled up to the same number, if that makes them at most this many times
#: as many. ``python tools/measure attention``
MAX_FILLED = 1.125
#: Tokens a run, on average, from which on writing run by run beats token by token; with 32 it is four times as fast.
#: ``python tools/measure pool``, the line with a prompt.
MIN_RUN = 8
#: A ``gather_mm`` of more products does not start on CUDA, which counts thread blocks in 16 bits.
CUDA_MAX_PRODUCTS, MAX_PRODUCTS = 65_535, 2**31 - 1
#: Kernels that multiply one vector far faster than two or three. ``python tools/measure blas``, M = 1 and 2.
FAST_WITH_ONE_VECTOR = ("nvpl", "mkl", "metal", "cuda")
#: Of more rows, NVPL multiplies even the smallest matrices by several threads, which takes four times as long.
#: ``python tools/measure queries``
NVPL_MAX_SMALL_ROWS = 8

# ---- everything else that a step computes

IS_X86 = platform.machine() in ("x86_64", "AMD64")
#: With fewer elements, starting the fifteen operations of our exp takes longer than they save.
#: ``python tools/measure blas``, the last lines.
MIN_EXP_SIZE = 16384 if IS_X86 else 32768
#: With fewer elements of an activation, a second stream costs more than it saves.
#: ``mini-vllm bench throughput --workload mixed-16``
MIN_ACTIVATION_TO_SPLIT = 131072
#: The same for the noise by which tokens are drawn. ``mini-vllm bench throughput --temperature 0.8``
MIN_NOISE_TO_SPLIT = 16384
#: BLAS → numbers of tokens for which ``weight @ x.T`` takes less time than ``x @ weight.T``, as ranges with both ends.
#: For a BLAS that is not here, tokens come first. Measured on two Neoverse-N1 cores (NVPL) and on two cores of a Xeon
#: (MKL); OpenBLAS and Accelerate were not. ``python tools/measure blas``
WEIGHTS_FIRST: dict[str, WeightsFirst] = {
    "nvpl": WeightsFirst(((3, 8), (13, 24)), mlp=((3, 8), (13, 64)), head=((3, 8), (13, 24))),
    "mkl": WeightsFirst(((9, 48),), mlp=((9, 48),), head=((9, 16),)),
}

# ---- how large a step is, and what it may begin early

#: Tokens a step may compute. On a CPU more is no faster, and delays first tokens.
#: ``mini-vllm bench throughput --workload mixed-16``
CPU_BATCHED_TOKENS, GPU_BATCHED_TOKENS = 256, 2048
#: Tokens of a prompt in a step in which others decode. Beside 16 that decode, such a step takes 2 to 3 times as long as
#: one without a prompt. ``mini-vllm bench throughput --workload long-arrival``
CPU_CHUNK_TOKENS = 96
#: Looking ahead made a model of 22 MB 1.2 times as fast for one request, 1.1 times for 2 to 4, no faster for more; one
#: of 109 MB 0.93 times. ``python tools/measure single``
CPU_MAX_LOOKAHEAD, CPU_SMALL_MODEL_BYTES = 4, 64_000_000
#: Beside MKL, whose products take a smaller part of a step, up to 16 gain from it.
MKL_MAX_LOOKAHEAD = 16


def has_gpu() -> bool:
    """Whether there is a GPU, for what can be done nowhere else: kernels, and ``mx.compile``, which would ask for a C++
    compiler. A test that sets ``is_cpu`` does not change it."""
    return not backend.is_cpu()


def has_two_streams() -> bool:
    """Whether attention takes turns on two streams; see ``streams``. Also beside MKL, where one request decoded 0.85 to
    0.9 times as fast as before with a single stream, and 1.05 times as fast with two."""
    return is_cpu()


def halves_are_faster() -> bool:
    """Whether work that MLX computes on one core is cut in two for two cores.

    Not beside MKL: between two products its threads spin on the other core. On two x86 cores 16 requests decoded 1.2 to
    1.5 times as fast in one piece. Telling them not to spin (KMP_BLOCKTIME=0) made everything 1.3 times as slow.
    """
    return is_cpu() and blas.name != "mkl"


def softmax_by_hand_is_faster() -> bool:
    """Whether softmax put together on two streams takes less time than MLX's attention: on a GPU that is one kernel."""
    return is_cpu()


def writing_runs_is_faster() -> bool:
    """Whether tokens that stand side by side in a block are written together: on a GPU a scatter is one kernel."""
    return is_cpu()


def writing_elements_is_faster() -> bool:
    """Whether tokens apart are written number by number: MLX's scatter of vectors takes two to three times as long on a
    CPU. On a GPU, where a step may write thousands of tokens, each number's place would have to be brought there."""
    return is_cpu()


def exp_by_hand_is_faster(x: mx.array) -> bool:
    """Whether ``exp.exp2`` takes less time than MLX's own."""
    return x.size >= MIN_EXP_SIZE and x.dtype == mx.float32 and is_cpu()


def power_is_faster_than_exp() -> bool:
    """Whether MLX computes ``e ** x`` faster as a power than as an exp. On x86 the power takes 11 ns an element and the
    exp 26, on aarch64 13 and 9. ``python tools/measure blas``, the last lines."""
    return IS_X86 and is_cpu()


def heads_apart_are_faster(num_rows: int, group: int) -> bool:
    """Whether the ``group`` query heads that share a KV head are better multiplied one by one than together, when each
    has ``num_rows`` vectors."""
    if num_rows == 1:
        return blas.name in FAST_WITH_ONE_VECTOR
    return blas.name == "nvpl" and num_rows * group > NVPL_MAX_SMALL_ROWS


def max_products() -> int:
    """How many products one ``gather_mm`` may have."""
    return CUDA_MAX_PRODUCTS if blas.name == "cuda" else MAX_PRODUCTS


def weights_first_is_faster(num_tokens: int, part: str = "one") -> bool:
    """Whether ``weight @ x.T`` takes less time than ``x @ weight.T``. The table is fixed, so that tokens do not depend
    on how busy the machine was when it was started."""
    return _is_listed(num_tokens, WEIGHTS_FIRST.get(blas.name, TOKENS_FIRST), part)


@functools.cache  # asked four times a layer
def _is_listed(num_tokens: int, table: WeightsFirst, part: str) -> bool:
    ranges: Ranges = getattr(table, part)
    return any(first <= num_tokens <= last for first, last in ranges)


def two_apart_are_faster(num_tokens: int) -> bool:
    """Whether two tokens are better multiplied each by itself: one is what NVPL is best at."""
    return blas.name == "nvpl" and num_tokens == 2


def dequantise_is_faster() -> bool:
    """Whether packed weights are better expanded once, at load.

    On a CPU they are: a product of 4-bit weights took about 7 times as long as one of floats. No command shows this.
    """
    return is_cpu()


def max_num_batched_tokens() -> int:
    """Tokens that a step may compute, where the user does not say."""
    return CPU_BATCHED_TOKENS if is_cpu() else GPU_BATCHED_TOKENS


def max_num_chunk_tokens() -> int | None:
    """Tokens of a prompt beside requests that decode, where the user does not say. None: as many as fit."""
    return CPU_CHUNK_TOKENS if is_cpu() else None


def max_lookahead(max_num_seqs: int, model_bytes: int) -> int:
    """Up to this many decoding requests the next step is begun while the last one computes.

    On a CPU, building a step takes a core that the products of the last one could use.
    """
    if not is_cpu():
        return max_num_seqs
    if model_bytes >= CPU_SMALL_MODEL_BYTES:
        return 0
    return MKL_MAX_LOOKAHEAD if blas.name == "mkl" else CPU_MAX_LOOKAHEAD
