"""``mini-vllm bench gpu``: what a GPU's owner wants to know in one command.

    steps      a decode step of 1, 16, 64 and 256 requests: ours, mlx-lm's, and what the memory alone would take
    workloads  nano-64 and nano-256, by us and by mlx-lm with as large a batch
    agreement  our tokens against mlx-lm's
    quantised  the same model with weights of four bits
    report     what is printed and saved
"""
