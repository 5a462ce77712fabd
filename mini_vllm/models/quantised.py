"""Quantised matrices as MLX packs them: ``x.weight`` in 32-bit words, ``x.scales`` and, in one mode, ``x.biases``.

The bits per number and the numbers per scale follow from the shapes; the mode follows from the type of the scales. So
nothing here depends on what a config says about each layer. ``x.bias``, if present, is the bias of the layer, a plain
vector unrelated to packing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from mini_vllm.backend import mx
from mini_vllm.models.json_fields import LoadError

BITS, GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)
#: (bits, group size) → mode, for scales that are 8-bit floats: the modes have different pairs.
FLOAT_MODES = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}
MODES = ("affine", *FLOAT_MODES.values())


class Packing(NamedTuple):
    """The packing of a matrix; the fields are the arguments of MLX's own functions."""

    group_size: int
    bits: int
    mode: str


class Tensors(NamedTuple):
    """The tensors of a network by name, and the packing of the packed matrices."""

    arrays: dict[str, mx.array]
    #: By the matrix's name without ``.weight``
    packings: dict[str, Packing]


def packing_of(stem: str, shape: tuple[int, ...], weights: Mapping[str, mx.array]) -> Packing | None:
    """Return the packing of the matrix ``stem``, given its unpacked shape; None if it is not packed.

    Raise LoadError that names a tensor that does not fit.
    """
    scales, biases = weights.get(f"{stem}.scales"), weights.get(f"{stem}.biases")
    if scales is None:
        return None
    weight, (rows, columns) = weights[f"{stem}.weight"], shape
    if weight.dtype != mx.uint32:
        raise LoadError(f"the tensor {stem}.weight is of type {type_name(weight.dtype)}, expected uint32: it has "
                        "scales")
    if weight.ndim != 2 or weight.shape[0] != rows or weight.shape[1] * 32 % columns:
        raise LoadError(f"the tensor {stem}.weight has the shape {weight.shape}, which does not fit a packed matrix of "
                        f"the shape {shape}")
    if scales.ndim != 2 or scales.shape[0] != rows or columns % max(scales.shape[1], 1):
        raise LoadError(f"the tensor {stem}.scales has the shape {scales.shape}, expected {rows} rows, with one column "
                        f"for each group of the {columns} columns")
    bits, group_size = weight.shape[1] * 32 // columns, columns // scales.shape[1]
    if scales.dtype == mx.uint8:
        mode = FLOAT_MODES.get((bits, group_size))
    else:
        mode = "affine" if bits in BITS and group_size in GROUP_SIZES else None
        if biases is None:
            raise LoadError(f"the tensor {stem}.biases is missing")
        if biases.shape != scales.shape:
            raise LoadError(f"the tensor {stem}.biases has the shape {biases.shape}, expected {scales.shape}")
    if mode is None or (mode != "affine" and biases is not None):
        raise LoadError(f"{stem} has {bits} bits in groups of {group_size}, {type_name(scales.dtype)} scales and "
                        f"{'no ' if biases is None else ''}biases, which is none of the modes {', '.join(MODES)}")
    return Packing(group_size, bits, mode)


def unpacked(stem: str, packing: Packing, weights: Mapping[str, mx.array]) -> mx.array:
    """Return the matrix in float32. Scales are widened first: in half precision, every number would be rounded."""
    scales, biases = weights[f"{stem}.scales"], weights.get(f"{stem}.biases")
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    return mx.dequantize(weights[f"{stem}.weight"], scales, biases, *packing, dtype=mx.float32)


def in_floats(tensors: Tensors, kept: Container[Packing] = ()) -> Tensors:
    """Return everything in float32, also packed matrices, unless their packing is ``kept``."""
    floats = Tensors({}, {stem: packing for stem, packing in tensors.packings.items() if packing in kept})
    for name, array in tensors.arrays.items():
        stem, _, kind = name.rpartition(".")
        if stem not in tensors.packings or kind == "bias":
            floats.arrays[name] = array.astype(mx.float32)
        elif stem in floats.packings:
            floats.arrays[name] = array
        elif kind == "weight":
            floats.arrays[name] = unpacked(stem, tensors.packings[stem], tensors.arrays)
    return floats


def type_name(dtype: mx.Dtype) -> str:
    """Return the name of a type without that of the library."""
    return str(dtype).rpartition(".")[2]
