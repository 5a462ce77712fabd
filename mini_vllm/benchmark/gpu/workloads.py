"""Whole workloads by us and by mlx-lm, with equally many requests at once."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

from mini_vllm.backend import mx, nn
from mini_vllm.benchmark.drawing import Drawing
from mini_vllm.benchmark.mlx_lm_peer import serve_by_peer
from mini_vllm.benchmark.results import BATCHED, BenchmarkResult
from mini_vllm.benchmark.throughput import serve
from mini_vllm.benchmark.workloads import Settings, Workload, make_workload
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.models.loader import LoadedModel

#: How nano-vllm, which defines the workload nano-256, draws its tokens.
DRAWING = Drawing(temperature=0.6)


@dataclass(frozen=True)
class WorkloadPair:
    """The results of one workload."""

    ours: BenchmarkResult
    peer: BenchmarkResult | None

    @property
    def ratio(self) -> float | None:
        return None if self.peer is None else self.ours.output_tokens_per_s / self.peer.output_tokens_per_s

    @property
    def worst_gap(self) -> float:
        """Our longest time between two tokens, divided by the median."""
        between = self.ours.between_tokens_s
        return between[100] / between[50]


def sized(workload: Workload) -> Workload:
    """Return the workload with a seat for every request, and a pool that holds them all."""
    num_blocks = sum(-(-(len(item.prompt) + item.num_tokens + 1) // DEFAULT_BLOCK_SIZE) for item in workload.items)
    settings = Settings(num_blocks=int(num_blocks * 1.02) + 2, max_num_seqs=len(workload.items))
    return replace(workload, settings=settings)


def shortened(workload: Workload) -> Workload:
    """Return as little of the workload as a smoke test needs."""
    items = [replace(item, prompt=item.prompt[:40], num_tokens=4) for item in workload.items[:4]]
    return replace(workload, items=items)


def measure(name: str, loaded: LoadedModel, peer: nn.Module | None, is_quick: bool = False) -> WorkloadPair:
    """Measure our engine and mlx-lm, each after a warm-up: shapes are compiled when they first occur.

    Both run as in a server: the garbage collector visits neither imported objects nor the engine of a warm-up.
    """
    workload = make_workload(name, loaded.config.vocab_size, loaded.config.max_position_embeddings)
    workload = sized(shortened(workload) if is_quick else workload)
    for _ in range(2):
        gc.freeze()
        ours, _ = serve(loaded, workload, BATCHED, _nobody, DRAWING)
        mx.clear_cache()
    theirs = None
    if peer is not None:
        warm_up = replace(workload, items=[replace(item, num_tokens=2) for item in workload.items])
        for each in (warm_up, workload):
            gc.freeze()
            theirs, _ = serve_by_peer(peer, loaded, each, _nobody, DRAWING, len(workload.items))
            mx.clear_cache()
    return WorkloadPair(ours, theirs)


def _nobody(num_finished: int, num_tokens: int) -> None:
    """Ignore the progress."""
