"""Paged attention and the operations around it in a layer, as GPU kernels. docs/gpu.md explains them with drawings.

    kernel              a kernel: its source, in CUDA or Metal, and how it is called
    sources/            the sources: one text for both; what differs between the two is in cuda.h and metal.h
    paged               attention: decode.h, merge.h, chunk.h, and with tensor cores decode_tiles.h and chunk_tiles.h;
                        ``KernelAttention`` is called like ``paged_attention``
    tables              block tables as one array, of which only changes are written
    step_upload         a step's arrays, copied to the GPU's own memory at once: upload.h
    rope_and_write      queries and keys normalised and rotated, keys and values written into the pool: turn.h
    small_batch_matmul  products of a few rows: skinny.h, on CUDA
    add_norm            what a layer adds, and the norm of the sum: add_norm.h
"""
