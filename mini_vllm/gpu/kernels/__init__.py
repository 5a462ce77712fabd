"""Paged attention, and what stands around it in a layer, as kernels of a GPU. docs/gpu.md explains them with drawings.

    kernel     a kernel: its source, in the words of CUDA or of Metal, and how it is called
    sources/   the sources: one text for both, and what differs between the two in cuda.h and metal.h
    paged      attention: decode.h, merge.h, chunk.h, and by tensor cores decode_tiles.h and chunk_tiles.h;
               ``KernelAttention`` is called like ``paged_attention``
    tables     block tables as one array, of which only what changed is written anew
    upload     a step's arrays, brought to the GPU's own memory at once: upload.h
    turn       queries and keys normalised and rotated, keys and values written into the pool: turn.h
    skinny     products of a few rows: skinny.h, on CUDA
    add_norm   what a layer adds, and the norm of the sum: add_norm.h
"""
