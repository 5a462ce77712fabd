"""From the tensors of a checkpoint to a network: every one checked by name and shape, some stacked, some reordered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mini_vllm.backend import dequantise_is_faster, mx, nn
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.fields import LoadError
from mini_vllm.models.network import Linear, Model, SideBySide
from mini_vllm.models.packed import Packing, packing_of, type_name, unpacked

#: What the network keeps as one matrix, and the parts a checkpoint has of it, in order
STACKED = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
           "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}
#: What a layer's tensors are called
KINDS = ("weight", "bias", "scales", "biases")


def make_model(config: ModelConfig, weights: dict[str, mx.array]) -> Model:
    """A network with these weights. Raises LoadError naming a tensor that is missing, unknown or wrongly shaped.

    Packed matrices are expanded where the device multiplies floats faster, and all floats are of its best type then.
    """
    if config.tie_word_embeddings is None:
        config = replace(config, tie_word_embeddings="lm_head.weight" not in weights)
    if config.tie_word_embeddings:
        weights = {name: array for name, array in weights.items() if not name.startswith("lm_head.")}
    packings = _check_tensors(config, weights)
    if dequantise_is_faster():
        weights = _in_floats(weights, packings)
        packings = {}
    if config.rope_interleaved:
        weights = {name: _in_half_order(name, array, config) for name, array in weights.items()}
        config = replace(config, rope_interleaved=False)
    model = Model(config)
    weights = _stack(model, weights, packings)
    if packings:
        nn.quantize(model, class_predicate=lambda path, _: packings[path]._asdict() if path in packings else False)
    model.load_weights(list(weights.items()))
    mx.eval(model.parameters())
    return model


def _check_tensors(config: ModelConfig, weights: Mapping[str, mx.array]) -> dict[str, Packing]:
    """Whether every tensor is there and none else; and how those that are packed are."""
    last = f"model.layers.{config.num_layers - 1}.input_layernorm.weight"
    if last not in weights:  # looked at first: a wrong number of layers may be very large
        raise LoadError(f"the tensor {last} is missing")
    expected, packings = checkpoint_shapes(config), {}
    unknown = set(weights)
    for name, shape in expected.items():
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
        raise LoadError(f"the tensor {min(unknown)} has no place in a {config.model_type} network "
                        f"({len(unknown)} such tensors)")
    return packings


def _in_floats(weights: Mapping[str, mx.array], packings: Mapping[str, Packing]) -> dict[str, mx.array]:
    floats = {}
    for name, array in weights.items():
        stem, _, kind = name.rpartition(".")
        if stem not in packings or kind == "bias":
            floats[name] = array.astype(mx.float32)
        elif kind == "weight":
            floats[name] = unpacked(stem, packings[stem], weights)
    return floats


def checkpoint_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a Hugging Face checkpoint of this network has."""
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


def _stack(model: Model, weights: Mapping[str, mx.array], packings: dict[str, Packing]) -> dict[str, mx.array]:
    """Put matrices that multiply the same input on top of each other, as the network keeps them.

    Those that stay packed in different ways are put side by side instead, and the network gets a place for them. What
    they became takes their place in ``packings``.
    """
    config, weights = model.config, dict(weights)
    for index, layer in enumerate(model.model.layers):
        prefix = f"model.layers.{index}."
        for whole, parts in STACKED.items():
            names = [f"{prefix}{part}" for part in parts]
            ways = [packings.pop(name, None) for name in names]
            if len(set(ways)) == 1:
                new_names, ways = [f"{prefix}{whole}"], ways[:1]
                for kind in KINDS:
                    arrays = [weights.pop(f"{name}.{kind}") for name in names if f"{name}.{kind}" in weights]
                    if arrays:
                        weights[f"{prefix}{whole}.{kind}"] = mx.concatenate(arrays)
            else:
                new_names = [f"{prefix}{whole}.parts.{number}" for number in range(len(parts))]
                _put_side_by_side(layer, whole, [weights[f"{name}.weight"].shape[0] for name in names])
                for name, new_name in zip(names, new_names):
                    weights.update({f"{new_name}.{kind}": weights.pop(f"{name}.{kind}") for kind in KINDS
                                    if f"{name}.{kind}" in weights})
            packings.update({name: way for name, way in zip(new_names, ways) if way is not None})
        if config.qk_norm:
            q_norm, k_norm = (weights.pop(f"{prefix}self_attn.{x}_norm.weight") for x in "qk")
            weights[f"{prefix}self_attn.qk_norm.weight"] = mx.stack(
                [q_norm] * config.num_heads + [k_norm] * config.num_kv_heads)
    return weights


def _put_side_by_side(layer: nn.Module, whole: str, part_sizes: Sequence[int]) -> None:
    """Give the layer several matrices in place of one."""
    owner, _, attribute = whole.partition(".")
    one = layer[owner][attribute]
    setattr(layer[owner], attribute, SideBySide([Linear(one.weight.shape[1], size, bias="bias" in one)
                                                 for size in part_sizes]))


def unstack(model: Model) -> dict[str, mx.array]:
    """The weights as a checkpoint has them: the opposite of ``_stack``. Packed ones are expanded."""
    from mlx.utils import tree_flatten  # not above: the backend must be the first to import MLX
    config, weights = model.config, dict(tree_flatten(model.parameters()))
    packings = {path: Packing(module.group_size, module.bits, module.mode) for path, module in model.named_modules()
                if hasattr(module, "bits")}
    if packings:
        weights = _in_floats(weights, packings)
    shapes = checkpoint_shapes(config)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for whole, parts in STACKED.items():
            for kind in ("weight", "bias"):
                stacked = weights.pop(f"{prefix}{whole}.{kind}", None)
                start = 0
                for number, part in enumerate(parts):
                    name = f"{prefix}{part}.{kind}"
                    if stacked is not None:
                        weights[name] = stacked[start:start + shapes[name][0]]
                        start += shapes[name][0]
                    elif name in shapes:
                        weights[name] = weights.pop(f"{prefix}{whole}.parts.{number}.{kind}")
        if config.qk_norm:
            both = weights.pop(f"{prefix}self_attn.qk_norm.weight")
            weights[f"{prefix}self_attn.q_norm.weight"] = both[0]
            weights[f"{prefix}self_attn.k_norm.weight"] = both[-1]
    return weights


def _in_half_order(name: str, array: mx.array, config: ModelConfig) -> mx.array:
    """Reorder the rows of queries and keys from pairs (0, 1), (2, 3), … to (0, d/2), (1, d/2 + 1), …"""
    if not re.search(r"\.[qk]_(proj|norm)\.", name):
        return array
    half = config.head_dim // 2
    pairs = array.reshape(-1, half, 2, *array.shape[1:])
    return mx.swapaxes(pairs, 1, 2).reshape(array.shape)
