"""A step on a GPU, where starting an operation costs more than computing it, and a new shape more than both.

    network   the model's layers, each in nine operations instead of twenty
    runner    the ModelRunner of a GPU: shapes are rounded up, steps that only decode are compiled
    proof     the kernels against the plain pieces that they stand for, before an engine uses them
    choice    whether this engine uses them, and why not
"""
