"""The same results, faster, where neither a step in C (``native``) nor kernels of a GPU (``gpu``) run.

    attention       paged attention of all decoding requests at once
    tuning          what is fastest on this machine, and every tuned number
    step_costs      what drafts cost
"""
