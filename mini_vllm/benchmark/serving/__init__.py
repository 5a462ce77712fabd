"""``mini-vllm bench serve``: a server under requests that arrive at their times, whether it keeps up or not.

    traffic   which requests arrive when: prompts, and the times of a Poisson process, from a seed
    client    sends them over loopback; the times of the answers, and which of them are good
    servers   ours and mlx-lm's, each in a process of its own, with the same weights in float32 and the same BLAS
    command   both under the same traffic, the highest rate that each sustains, and high priority under overload
"""
