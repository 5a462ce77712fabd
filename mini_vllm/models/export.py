"""Writes a loaded model as a Hugging Face folder that other programs can load."""

from __future__ import annotations

import json
from pathlib import Path

from mini_vllm.backend import mx
from mini_vllm.models.config import FULL, SLIDING, ModelConfig
from mini_vllm.models.json_fields import LoadError
from mini_vllm.models.loader import LoadedModel
from mini_vllm.models.stack_weights import unstack


def export_folder(loaded: LoadedModel, folder: Path) -> None:
    """Write the weights and the config only; packed weights are expanded."""
    config = loaded.config
    if config.rope_factors is not None:
        raise LoadError(f"{loaded.path} divides its rotary frequencies, which a config.json cannot say")
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), unstack(loaded.model), {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": [f"{config.model_type.capitalize()}ForCausalLM"], "model_type": config.model_type,
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta, "rope_scaling": config.rope_scaling,
        "tie_word_embeddings": config.tie_word_embeddings, "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias, **_exported_windows(config)}, indent=2))


def _exported_windows(config: ModelConfig) -> dict[str, object]:
    if config.sliding_window is None or config.model_type == "mistral":  # which has windows in all layers or in none
        return {"sliding_window": config.sliding_window}
    return {"sliding_window": config.sliding_window, "use_sliding_window": True,
            "layer_types": [SLIDING if layer in config.sliding_layers else FULL for layer in range(config.num_layers)]}
