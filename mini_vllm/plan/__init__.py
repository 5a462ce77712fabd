"""How many machines a workload needs: the arithmetic of ``mini-vllm plan``, without a model's weights.

    shape          a model as numbers: its weights in bytes, and the keys and values of a token
    machines       a machine as numbers: memory, bandwidth, FLOP/s, and the fixed costs of a step
    this_machine   the same numbers, measured here
    estimate       a step, the tokens per second, and the replicas
    explain        the same as lines: each is a formula with its numbers
"""
