"""Writes a loaded model as a Hugging Face folder that other programs can load: the way back from ``loader``."""

from __future__ import annotations

import json
from pathlib import Path

from mini_vllm.backend import mx
from mini_vllm.models.config import FULL, SLIDING, LoadError
from mini_vllm.models.loader import LoadedModel
from mini_vllm.models.network import Model
from mini_vllm.models.weights import STACKED, Packing, Tensors, checkpoint_shapes, in_floats


def export_folder(loaded: LoadedModel, folder: Path) -> None:
    """Write the weights and the config only; packed weights are expanded."""
    config = loaded.config
    if config.rope_factors is not None:
        raise LoadError(f"{loaded.path} divides its rotary frequencies, which a config.json cannot say")
    windows: dict[str, object] = {"sliding_window": config.sliding_window}
    if config.sliding_window is not None and config.model_type != "mistral":  # which has them in all layers or in none
        windows.update(use_sliding_window=True, layer_types=[
            SLIDING if layer in config.sliding_layers else FULL for layer in range(config.num_layers)])
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), _checkpoint_weights(loaded.model), {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": [f"{config.model_type.capitalize()}ForCausalLM"], "model_type": config.model_type,
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta, "rope_scaling": config.rope_scaling,
        "tie_word_embeddings": config.tie_word_embeddings, "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias, **windows}, indent=2))


def _checkpoint_weights(model: Model) -> dict[str, mx.array]:
    """Return the weights as a checkpoint has them: stacked matrices in their parts, packed ones expanded."""
    from mlx.utils import tree_flatten  # not at the top of the file: the backend must import MLX first
    config = model.config
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    packings = {path: Packing(module.group_size, module.bits, module.mode) for path, module in model.named_modules()
                if hasattr(module, "bits")}
    if packings:
        weights = in_floats(Tensors(weights, packings)).arrays
    shapes = checkpoint_shapes(config)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for whole, parts in STACKED.items():
            for kind in ("weight", "bias"):
                stacked, start = weights.pop(f"{prefix}{whole}.{kind}", None), 0
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
