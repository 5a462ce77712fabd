"""A step on a GPU, where starting an operation costs more than computing it, and a new shape costs more than both.

    network        the model's layers, each in nine operations instead of twenty
    runner         the ModelRunner of a GPU: shapes are rounded up, decode-only steps are compiled
    kernels        paged attention and the operations around it, as GPU kernels
    kernel_checks  the kernels against the plain operations that they replace, before an engine uses them
    select_runner  whether this engine uses them, and why not
"""
