"""From the tensors of a checkpoint to a network: every one checked by name and shape, some stacked, some reordered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mini_vllm.backend import mx, nn
from mini_vllm.model import Model, ModelConfig

#: What the network keeps as one matrix, and the parts a checkpoint has of it, in order
STACKED = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
           "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}


class LoadError(ValueError):
    """A model that cannot be loaded; the message names the file, tensor or field."""


def make_model(config: ModelConfig, weights: dict[str, mx.array]) -> Model:
    """A network with these weights. Raises LoadError naming a tensor that is missing, unknown or wrongly shaped."""
    if config.tie_word_embeddings is None:
        config = replace(config, tie_word_embeddings="lm_head.weight" not in weights)
    if config.tie_word_embeddings:
        weights = {name: array for name, array in weights.items() if not name.startswith("lm_head.")}
    _check_tensors(config, weights)
    if config.rope_interleaved:
        weights = {name: _in_half_order(name, array, config) for name, array in weights.items()}
        config = replace(config, rope_interleaved=False)
    weights = _stack(config, weights)
    model = Model(config)
    if any(name.endswith(".scales") for name in weights):
        nn.quantize(model, class_predicate=lambda path, module: _quantised_as(path, module, weights))
    model.load_weights(list(weights.items()))
    mx.eval(model.parameters())
    return model


def _check_tensors(config: ModelConfig, weights: Mapping[str, mx.array]) -> None:
    expected = checkpoint_shapes(config)
    for name, shape in expected.items():
        if name not in weights:
            raise LoadError(f"the tensor {name} is missing")
        is_packed = name.replace(".weight", ".scales") in weights
        actual = tuple(weights[name].shape)
        if actual != shape and not (is_packed and actual[0] == shape[0]):
            raise LoadError(f"the tensor {name} has the shape {actual}, expected {shape}")
    known = expected.keys() | {f"{name[:-7]}.{kind}" for name in expected for kind in ("scales", "biases")}
    unknown = sorted(weights.keys() - known)
    if unknown:
        raise LoadError(f"the tensor {unknown[0]} has no place in a {config.model_type} network "
                        f"({len(unknown)} such tensors)")


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


def _stack(config: ModelConfig, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Put matrices that multiply the same input on top of each other, as the network keeps them."""
    weights = dict(weights)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for whole, parts in STACKED.items():
            for kind in ("weight", "bias", "scales", "biases"):
                names = [f"{prefix}{part}.{kind}" for part in parts]
                if names[0] in weights:
                    weights[f"{prefix}{whole}.{kind}"] = mx.concatenate([weights.pop(name) for name in names])
        if config.qk_norm:
            q_norm, k_norm = (weights.pop(f"{prefix}self_attn.{x}_norm.weight") for x in "qk")
            weights[f"{prefix}self_attn.qk_norm.weight"] = mx.stack(
                [q_norm] * config.num_heads + [k_norm] * config.num_kv_heads)
    return weights


def unstack(config: ModelConfig, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The opposite of ``_stack``, for float weights."""
    weights, shapes = dict(weights), checkpoint_shapes(config)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for whole, parts in STACKED.items():
            for kind in ("weight", "bias"):
                stacked = weights.pop(f"{prefix}{whole}.{kind}", None)
                start = 0
                for part in parts if stacked is not None else ():
                    rows = shapes[f"{prefix}{part}.{kind}"][0]
                    weights[f"{prefix}{part}.{kind}"] = stacked[start:start + rows]
                    start += rows
        if config.qk_norm:
            both = weights.pop(f"{prefix}self_attn.qk_norm.weight")
            weights[f"{prefix}self_attn.q_norm.weight"] = both[0]
            weights[f"{prefix}self_attn.k_norm.weight"] = both[-1]
    return weights


def _quantised_as(path: str, module: nn.Module, weights: Mapping[str, mx.array]) -> bool | dict[str, int]:
    if f"{path}.scales" not in weights or not hasattr(module, "to_quantized"):
        return False
    num_groups = weights[f"{path}.scales"].shape[-1]
    num_inputs = module.weight.shape[-1]
    return {"group_size": num_inputs // num_groups, "bits": weights[f"{path}.weight"].shape[-1] * 32 // num_inputs}


def _in_half_order(name: str, array: mx.array, config: ModelConfig) -> mx.array:
    """Reorder the rows of queries and keys from pairs (0, 1), (2, 3), … to (0, d/2), (1, d/2 + 1), …"""
    if not re.search(r"\.[qk]_(proj|norm)\.", name):
        return array
    half = config.head_dim // 2
    pairs = array.reshape(-1, half, 2, *array.shape[1:])
    return mx.swapaxes(pairs, 1, 2).reshape(array.shape)
