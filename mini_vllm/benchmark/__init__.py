"""Measurements that back what the documents say. What is compared is measured side by side in one run.

    python -m mini_vllm.benchmark allocator    an operation of the block pool, at 10³ and 10⁶ blocks, and without checks
    python -m mini_vllm.benchmark blas         MLX with and without a fast BLAS; which way round its products are faster
    python -m mini_vllm.benchmark single       one request, against mlx-lm on the same weights
    python -m mini_vllm.benchmark parts        where the time of a decode step goes
    python -m mini_vllm.benchmark queries      a step in which each request computes several tokens, as drafts need
    python -m mini_vllm.benchmark pool         a decode step with a small and with a large pool
    python -m mini_vllm.benchmark tree         a lookup among 1,000 and among 16,000 prompts that begin alike, or do not
    python -m mini_vllm.benchmark prefix       a shared prefix and a chat, with the cache on, off, and by mlx-lm
    python -m mini_vllm.benchmark seeds        how many draws change between a request alone and in a batch
    python -m mini_vllm.benchmark stall        what a caller with a huge prompt does to the others
    python -m mini_vllm.benchmark quiz         easy questions to a chat model, by how it is sampled
    python -m mini_vllm.benchmark attention    the ways to attend over blocks, which decided how the engine does it

    mini-vllm bench throughput                 one request at a time, our batching, mlx-lm's BatchGenerator
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """``BenchmarkResult`` and ``run_comparison_benchmark``, imported when asked for: the second loads MLX."""
    if name == "BenchmarkResult":
        from mini_vllm.benchmark.results import BenchmarkResult
        return BenchmarkResult
    if name == "run_comparison_benchmark":
        from mini_vllm.benchmark.comparison import run_comparison_benchmark
        return run_comparison_benchmark
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
