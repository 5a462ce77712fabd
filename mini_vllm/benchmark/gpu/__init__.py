"""``mini-vllm bench gpu``: what a GPU's owner wants to know in one command.

    steps      a decode step of 1, 16, 64 and 256 requests: ours, mlx-lm's, and the time that memory alone would take
    workloads  nano-64 and nano-256, by us and by mlx-lm with an equally large batch
    agreement  our tokens against mlx-lm's
    quantised  the same model with 4-bit weights
    report     what is printed and saved
"""
