"""Measurements that back what the documents say. Each prints ratios taken side by side in one run.

    python -m mini_vllm.benchmark allocator    an operation of the block pool, at 10³ and 10⁶ blocks
    python -m mini_vllm.benchmark blas         MLX with and without a fast BLAS
    python -m mini_vllm.benchmark single       one request, against mlx-lm on the same weights
    python -m mini_vllm.benchmark pool         a decode step with a small and with a large pool
    python -m mini_vllm.benchmark prefix       a shared prefix and a chat, with the cache on, off, and by mlx-lm
    python -m mini_vllm.benchmark attention    the ways to attend over blocks, which decided how the engine does it
"""
