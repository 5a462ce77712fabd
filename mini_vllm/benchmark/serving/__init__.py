"""``mini-vllm bench serve``: a server under requests that come when they come, whether it keeps up or not.

    traffic   what comes when: prompts, and the times of a Poisson process, from a seed
    client    sends it over loopback, and notes when each piece of an answer came
    answers   first token, time a token, end to end; which of the answers were good
    goodput   the highest rate at which enough of them are
    servers   ours and mlx-lm's, each in a process of its own, with the same weights in float32 and the same BLAS
    arms      both under the same traffic, in turns
    overload  high priority among low ones that hold every seat
    report    what is printed and saved
"""
