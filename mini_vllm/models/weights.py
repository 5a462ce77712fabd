"""From the tensors of a checkpoint to a network: each checked by name and shape, some stacked, some reordered."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from mini_vllm.backend import is_cpu, mx, nn
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.json_fields import LoadError, shown
from mini_vllm.models.network import Model
from mini_vllm.models.quantised import Packing, Tensors, in_floats, packing_of, type_name
from mini_vllm.models.shapes import checkpoint_shapes
from mini_vllm.models.stack_weights import stack

#: Seven matrices and two norms.
MIN_LAYER_TENSORS = 9


def make_model(config: ModelConfig, weights: dict[str, mx.array],
               kept: Callable[[ModelConfig], Container[Packing]] = lambda config: ()) -> Model:
    """Create a network with these weights. Raise LoadError that names a missing, unknown or wrongly shaped tensor.

    If MLX multiplies floats faster than packed matrices on this device, these are expanded unless their packing is
    ``kept``, and everything else is in float32.
    """
    if config.tie_word_embeddings is None:
        config = replace(config, tie_word_embeddings="lm_head.weight" not in weights)
    if config.tie_word_embeddings:
        if not _are_tied(weights):
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
    arrays, packings = stack(model, tensors)
    if packings:
        nn.quantize(model, class_predicate=lambda path, _: packings[path]._asdict() if path in packings else False)
    model.load_weights(list(arrays.items()))
    mx.eval(model.parameters())
    return model


def _are_tied(weights: Mapping[str, mx.array]) -> bool:
    head, embedding = weights.get("lm_head.weight"), weights.get("model.embed_tokens.weight")
    return head is None or embedding is None or bool(mx.array_equal(head, embedding, equal_nan=True).item())


def _check_tensors(config: ModelConfig, weights: Mapping[str, mx.array]) -> dict[str, Packing]:
    """Raise LoadError unless exactly the expected tensors are there. Return the packings of the matrices."""
    if config.num_layers * MIN_LAYER_TENSORS > len(weights):  # checked first: this number may be very large
        raise LoadError(f"the config has {config.num_layers} layers of at least {MIN_LAYER_TENSORS} tensors, the files "
                        f"have {len(weights)} tensors")
    packings, unknown = {}, set(weights)
    for name, shape in checkpoint_shapes(config).items():
        if name not in weights:
            raise LoadError(f"the tensor {name} is missing")
        stem, _, kind = name.rpartition(".")
        packing = packing_of(stem, shape, weights) if kind == "weight" and len(shape) == 2 else None
        if packing is not None:
            packings[stem] = packing
            unknown -= {f"{stem}.scales", f"{stem}.biases"}
        elif tuple(weights[name].shape) != shape:
            raise LoadError(f"the tensor {name} has the shape {tuple(weights[name].shape)}, expected {shape}")
        elif not mx.issubdtype(weights[name].dtype, mx.floating):
            raise LoadError(f"the tensor {name} is of type {type_name(weights[name].dtype)}, expected floats")
        unknown.remove(name)
    if unknown:
        raise LoadError(f"the tensor {shown(min(unknown))} does not belong to a {config.model_type} network "
                        f"({len(unknown)} such tensors)")
    return packings


def _in_half_order(name: str, array: mx.array, config: ModelConfig) -> mx.array:
    """Reorder the rows of queries and keys from pairs (0, 1), (2, 3), … to (0, d/2), (1, d/2 + 1), …"""
    if not re.search(r"\.[qk]_(proj|norm)\.", name):
        return array
    half = config.head_dim // 2
    pairs = array.reshape(-1, half, 2, *array.shape[1:])
    return mx.swapaxes(pairs, 1, 2).reshape(array.shape)
