"""``mini-vllm bench``. What is compared is measured side by side in one run.

    mini-vllm bench throughput    one request at a time, our batching, mlx-lm, vLLM, llama.cpp   (``throughput``)
    mini-vllm bench serve         our server and mlx-lm's, under the same requests over HTTP     (``serving``)
    mini-vllm bench gpu           decode steps and workloads on a GPU                            (``gpu/``)
    mini-vllm bench speculation   decoding with and without drafts                               (``speculation``)
    course bench                  an operation of the block pool                                 (``allocator``)

``results`` has the numbers, the table and the file of all, ``peers`` the other engines, ``traffic`` the requests over
HTTP and their client, ``machine`` the check that the machine was quiet. Measurements that are for the project and not
for its users are in ``tools/measure``.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """Import ``BenchmarkResult`` and ``run_comparison_benchmark`` when first used: they load MLX."""
    if name in ("BenchmarkResult", "run_comparison_benchmark"):
        from mini_vllm.benchmark import throughput
        return getattr(throughput, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
