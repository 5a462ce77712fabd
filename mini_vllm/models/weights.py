"""From the tensors of a checkpoint to a network: each checked by name and shape, some stacked, some reordered.

Quantised matrices are packed as MLX packs them: ``x.weight`` in 32-bit words, ``x.scales`` and, in one mode,
``x.biases``. The bits per number and the numbers per scale follow from the shapes; the mode follows from the type of
the scales. So nothing here depends on what a config says about each layer. ``x.bias``, if present, is the bias of the
layer, a plain vector unrelated to packing.

Matrices that multiply the same input are separate in a checkpoint and one matrix in the network. On a CPU that decodes
one token, the number of products matters as much as their size. Parts that stay packed in different ways cannot be one
matrix; the network keeps those side by side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mini_vllm.backend import is_cpu, mx, nn
from mini_vllm.models.config import LoadError, ModelConfig
from mini_vllm.models.network import Model, SideBySide

#: The matrices that the network keeps as one, and their parts in a checkpoint, in order
STACKED = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
           "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}
BITS, GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)
#: (bits, group size) → mode, for scales that are 8-bit floats: the modes have different pairs.
FLOAT_MODES = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}
#: Seven matrices and two norms
MIN_LAYER_TENSORS = 9


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


def make_model(config: ModelConfig, weights: dict[str, mx.array],
               kept: Callable[[ModelConfig], Container[Packing]] = lambda config: ()) -> Model:
    """Create a network with these weights. Raise LoadError that names a missing, unknown or wrongly shaped tensor.

    If MLX multiplies floats faster than packed matrices on this device, these are expanded unless their packing is
    ``kept``, and everything else is in float32.
    """
    if config.tie_word_embeddings is None:
        config = replace(config, tie_word_embeddings="lm_head.weight" not in weights)
    if config.tie_word_embeddings:
        head, embedding = weights.get("lm_head.weight"), weights.get("model.embed_tokens.weight")
        if head is not None and embedding is not None and not mx.array_equal(head, embedding, equal_nan=True).item():
            raise LoadError("the tensor lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings "
                            "is true")
        weights = {name: array for name, array in weights.items() if not name.startswith("lm_head.")}
    tensors = Tensors(weights, _check_tensors(config, weights))
    if is_cpu():
        tensors = in_floats(tensors, kept(config))
    if config.rope_interleaved:
        tensors = Tensors({name: _in_half_order(name, array, config) for name, array in tensors.arrays.items()},
                          tensors.packings)
        config = replace(config, rope_interleaved=False)
    model = Model(config)
    arrays, packings = _stack(model, tensors)
    if packings:
        nn.quantize(model, class_predicate=lambda path, _: packings[path]._asdict() if path in packings else False)
    model.load_weights(list(arrays.items()))
    mx.eval(model.parameters())
    return model


def checkpoint_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor in a Hugging Face checkpoint of this network."""
    hidden, inner, width = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * width, config.num_kv_heads * width
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    matrices = {"self_attn.q_proj": (q_size, hidden, config.qkv_bias),
                "self_attn.k_proj": (kv_size, hidden, config.qkv_bias),
                "self_attn.v_proj": (kv_size, hidden, config.qkv_bias),
                "self_attn.o_proj": (hidden, q_size, config.output_bias),
                "mlp.gate_proj": (inner, hidden, config.mlp_bias), "mlp.up_proj": (inner, hidden, config.mlp_bias),
                "mlp.down_proj": (hidden, inner, config.mlp_bias)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, has_bias) in matrices.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        shapes[f"{prefix}input_layernorm.weight"] = shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        if config.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = shapes[f"{prefix}self_attn.k_norm.weight"] = (width,)
    return shapes


def _check_tensors(config: ModelConfig, weights: Mapping[str, mx.array]) -> dict[str, Packing]:
    """Raise LoadError unless exactly the expected tensors are there. Return the packings of the matrices."""
    if config.num_layers * MIN_LAYER_TENSORS > len(weights):  # checked first: this number may be very large
        raise LoadError(f"the config has {config.num_layers} layers of at least {MIN_LAYER_TENSORS} tensors, the files "
                        f"have {len(weights)} tensors")
    packings, unknown = {}, set(weights)
    for name, shape in checkpoint_shapes(config).items():
        if name not in weights:
            raise LoadError(f"the tensor {name} is missing")
        stem, array = name.removesuffix(".weight"), weights[name]
        packing = packing_of(stem, shape, weights) if len(shape) == 2 else None
        if packing is not None:
            packings[stem] = packing
            unknown -= {f"{stem}.scales", f"{stem}.biases"}
        elif array.shape != shape or not mx.issubdtype(array.dtype, mx.floating):
            raise LoadError(f"the tensor {name} has the shape {array.shape} and type {_type_name(array)}, expected "
                            f"{shape} and floats")
        unknown.remove(name)
    if unknown:
        raise LoadError(f"the tensor {min(unknown)} does not belong to a {config.model_type} network ({len(unknown)} "
                        "such tensors)")
    return packings


def packing_of(stem: str, shape: tuple[int, ...], weights: Mapping[str, mx.array]) -> Packing | None:
    """Return the packing of the matrix ``stem``, given its unpacked shape; None if it is not packed.

    Raise LoadError that shows its tensors if they do not fit.
    """
    weight, scales, biases = (weights.get(f"{stem}.{kind}") for kind in ("weight", "scales", "biases"))
    if weight is None or scales is None:
        return None
    rows, columns = shape
    if weight.dtype == mx.uint32 and weight.ndim == scales.ndim == 2 and weight.shape[0] == scales.shape[0] == rows:
        num_words, num_groups = weight.shape[1], scales.shape[1]
        bits, group_size = num_words * 32 // columns, columns // max(num_groups, 1)
        mode = None
        if (num_words * 32, num_groups * group_size) == (bits * columns, columns):
            if scales.dtype == mx.uint8 and biases is None:
                mode = FLOAT_MODES.get((bits, group_size))
            elif biases is not None and biases.shape == scales.shape and mx.issubdtype(scales.dtype, mx.floating):
                mode = "affine" if bits in BITS and group_size in GROUP_SIZES else None
        if mode is not None:
            return Packing(group_size, bits, mode)
    parts = [f"{stem}.{kind} {array.shape} of {_type_name(array)}" for kind, array in
             (("weight", weight), ("scales", scales), ("biases", biases)) if array is not None]
    raise LoadError(f"the tensors {', '.join(parts)} are not a matrix of the shape {shape}, packed in one of the modes "
                    f"affine, {', '.join(FLOAT_MODES.values())}")


def _type_name(array: mx.array) -> str:
    """Return the name of an array's type without that of the library."""
    return str(array.dtype).rpartition(".")[2]


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


def _in_half_order(name: str, array: mx.array, config: ModelConfig) -> mx.array:
    """Reorder the rows of queries and keys from pairs (0, 1), (2, 3), … to (0, d/2), (1, d/2 + 1), …"""
    if not re.search(r"\.[qk]_(proj|norm)\.", name):
        return array
    half = config.head_dim // 2
    pairs = array.reshape(-1, half, 2, *array.shape[1:])
    return mx.swapaxes(pairs, 1, 2).reshape(array.shape)


def _stack(model: Model, tensors: Tensors) -> Tensors:
    """Return the tensors of a checkpoint, stacked and renamed as the network keeps them.

    For matrices that stay side by side, the network gets separate modules.
    """
    config, stacked = model.config, Tensors(dict(tensors.arrays), dict(tensors.packings))
    for index, layer in enumerate(model.model.layers):
        prefix = f"model.layers.{index}."
        for whole, parts in STACKED.items():
            names = [f"{prefix}{part}" for part in parts]
            if len({tensors.packings.get(name) for name in names}) == 1:
                _put_on_top(stacked, names, f"{prefix}{whole}")
                continue
            owner, _, attribute = whole.partition(".")
            one = layer[owner][attribute]
            sizes = [tensors.arrays[f"{name}.weight"].shape[0] for name in names]
            setattr(layer[owner], attribute, SideBySide([nn.Linear(one.weight.shape[1], size, bias="bias" in one)
                                                         for size in sizes]))
            for number, name in enumerate(names):
                _put_on_top(stacked, [name], f"{prefix}{whole}.parts.{number}")
        if config.qk_norm:
            q_norm, k_norm = (stacked.arrays.pop(f"{prefix}self_attn.{x}_norm.weight") for x in "qk")
            stacked.arrays[f"{prefix}self_attn.qk_norm.weight"] = mx.stack(
                [q_norm] * config.num_heads + [k_norm] * config.num_kv_heads)
    return stacked


def _put_on_top(tensors: Tensors, names: Sequence[str], whole: str) -> None:
    """Stack matrices into one that are packed in the same way or not at all."""
    for kind in ("weight", "bias", "scales", "biases"):
        arrays = [tensors.arrays.pop(f"{name}.{kind}") for name in names if f"{name}.{kind}" in tensors.arrays]
        if arrays:
            tensors.arrays[f"{whole}.{kind}"] = mx.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    packing = [tensors.packings.pop(name, None) for name in names][0]
    if packing is not None:
        tensors.packings[whole] = packing
