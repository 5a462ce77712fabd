"""``mini-vllm bench gpu``: what a GPU's owner wants to know in one command.

    agreement  our tokens against mlx-lm's, also with 4-bit weights
    steps      a decode step of 1, 16, 64 and 256 requests: ours, mlx-lm's, and the time that memory alone would take
    command    both, and whole workloads by us and by mlx-lm with an equally large batch
"""
