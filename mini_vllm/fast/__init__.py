"""The same results, sooner: attention, products and activations for the machine at hand.

    tuning          what this machine is best at, and every number that was tuned on one
    streams         two cores for what MLX computes on one
    exp             exp of many numbers on a CPU
    products        products with weights, and the activation between them
    paged_kv_cache  keys and values, written faster
    attention       paged attention: plan a step (span, plan, split_plan), then attend
                    requests by themselves (gathered) or block by block (split_kv)
    compiled        many small operations as one, on a GPU
    kernels         paged attention, and what stands around it, as kernels of a GPU
"""
