"""``mini-vllm bench serve``: a server under requests that arrive at their times, whether it keeps up or not.

    traffic   which requests arrive when: prompts, and the times of a Poisson process, from a seed
    client    sends them over loopback, and records when each piece of an answer arrived
    answers   first token, time per token, end to end; which of the answers were good
    goodput   the highest rate at which enough of them are good
    servers   ours and mlx-lm's, each in a process of its own, with the same weights in float32 and the same BLAS
    arms      both under the same traffic, in turns
    overload  high priority among low-priority requests that fill the running batch
    report    what is printed and saved
"""
