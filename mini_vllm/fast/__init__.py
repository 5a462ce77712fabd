"""The same results, faster: attention, products and activations tuned for the machine.

    tuning          what is fastest on this machine, and every tuned number
    streams         two cores for work that MLX computes on one
    exp             exp of many numbers on a CPU
    products        products with weights, and the activation between them
    paged_kv_cache  keys and values, written faster
    attention       paged attention: plan a step (request_span, plan, split_plan), then attend
                    requests separately (gather_attention) or block by block (split_kv)
    compiled        many small operations as one, on a GPU

The kernels of a GPU are in ``mini_vllm.gpu``.
"""
