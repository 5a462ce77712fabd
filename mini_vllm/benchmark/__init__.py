"""``mini-vllm bench``, and its tools. What is compared is measured side by side in one run.

    mini-vllm bench throughput    one request at a time, our batching, mlx-lm, vLLM, llama.cpp
    mini-vllm bench serve         our server and mlx-lm's, under the same requests over HTTP   (``serving/``)
    mini-vllm bench gpu           decode steps and workloads on a GPU                          (``gpu/``)
    mini-vllm bench speculation   decoding with and without drafts                             (``speculation``)
    course bench                  an operation of the block pool                               (``allocator``)

Measurements that are for the project and not for its users are in ``tools/measure``.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """Import ``BenchmarkResult`` and ``run_comparison_benchmark`` when first used: the second loads MLX."""
    if name == "BenchmarkResult":
        from mini_vllm.benchmark.results import BenchmarkResult
        return BenchmarkResult
    if name == "run_comparison_benchmark":
        from mini_vllm.benchmark.comparison import run_comparison_benchmark
        return run_comparison_benchmark
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
