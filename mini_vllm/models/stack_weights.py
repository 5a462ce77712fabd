"""Matrices that multiply the same input: separate in a checkpoint, one matrix in the network.

    q_proj, k_proj, v_proj → qkv_proj      gate_proj, up_proj → gate_up_proj      q_norm, k_norm → qk_norm

On a CPU that decodes one token, the number of products matters as much as their size. Parts that stay packed in
different ways cannot be one matrix; the network keeps those side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.backend import mx, nn
from mini_vllm.models.network import Model, SideBySide
from mini_vllm.models.quantised import Packing, Tensors, in_floats
from mini_vllm.models.shapes import checkpoint_shapes

#: The matrices that the network keeps as one, and their parts in a checkpoint, in order
STACKED = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
           "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}
#: The names of a layer's tensors
KINDS = ("weight", "bias", "scales", "biases")


def stack(model: Model, tensors: Tensors) -> Tensors:
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
            else:
                _make_places(layer, whole, [tensors.arrays[f"{name}.weight"].shape[0] for name in names])
                for number, name in enumerate(names):
                    _put_on_top(stacked, [name], f"{prefix}{whole}.parts.{number}")
        if config.qk_norm:
            q_norm, k_norm = (stacked.arrays.pop(f"{prefix}self_attn.{x}_norm.weight") for x in "qk")
            stacked.arrays[f"{prefix}self_attn.qk_norm.weight"] = mx.stack(
                [q_norm] * config.num_heads + [k_norm] * config.num_kv_heads)
    return stacked


def _put_on_top(tensors: Tensors, names: Sequence[str], whole: str) -> None:
    """Stack matrices into one if they are packed in the same way or not at all."""
    for kind in KINDS:
        arrays = [tensors.arrays.pop(f"{name}.{kind}") for name in names if f"{name}.{kind}" in tensors.arrays]
        if arrays:
            tensors.arrays[f"{whole}.{kind}"] = mx.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    packing = [tensors.packings.pop(name, None) for name in names][0]
    if packing is not None:
        tensors.packings[whole] = packing


def _make_places(layer: nn.Module, whole: str, part_sizes: Sequence[int]) -> None:
    """Give the layer several matrices instead of one."""
    owner, _, attribute = whole.partition(".")
    one = layer[owner][attribute]
    setattr(layer[owner], attribute, SideBySide([nn.Linear(one.weight.shape[1], size, bias="bias" in one)
                                                 for size in part_sizes]))


def unstack(model: Model) -> dict[str, mx.array]:
    """Return the weights as a checkpoint has them: the inverse of ``stack``. Packed ones are expanded."""
    from mlx.utils import tree_flatten  # not at the top of the file: the backend must import MLX first
    config = model.config
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    modules = model.named_modules()
    packings = {path: Packing(module.group_size, module.bits, module.mode) for path, module in modules
                if hasattr(module, "bits")}
    if packings:
        weights = in_floats(Tensors(weights, packings)).arrays
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
