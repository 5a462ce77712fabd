"""A GGUF file, as far as MLX reads it: config, weights and tokenizer in one, under names of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mini_vllm.backend import mx
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.gguf_header import check_gguf
from mini_vllm.models.gguf_tokenizer import tokenizer_from_gguf
from mini_vllm.models.json_fields import FieldError, LoadError
from mini_vllm.models.tokenizer import Tokenizer

#: Parameter names of a GGUF file → those of a Hugging Face checkpoint
GGUF_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

#: Fields of a config.json → what a GGUF file calls them, after the name of the architecture
ROPE_FIELDS = {"rope_type": "type", "factor": "factor", "original_max_position_embeddings": "original_context_length"}
GGUF_FIELDS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
    **{f"rope_scaling.{field}": f"rope.scaling.{key}" for field, key in ROPE_FIELDS.items()},
}


def read_gguf(file: Path) -> tuple[ModelConfig, dict[str, mx.array], Tokenizer]:
    """Read a GGUF file. Raise LoadError or TokenizerError that names the missing or invalid field as in the file."""
    check_gguf(file)
    try:
        loaded = mx.load(str(file), return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise LoadError(f"{file}: {error}") from None
    arrays, values = loaded
    assert isinstance(arrays, dict) and isinstance(values, dict)  # true of every GGUF file
    metadata = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in values.items()}
    config = _read_config(file, metadata)
    weights = {_name_from_gguf(name): array for name, array in arrays.items()}
    return config, weights, tokenizer_from_gguf(metadata)


def _read_config(file: Path, metadata: Mapping[str, object]) -> ModelConfig:
    architecture = metadata.get("general.architecture")
    keys = {field: f"{architecture}.{key}" for field, key in GGUF_FIELDS.items()}
    scaling = {name: metadata.get(keys[f"rope_scaling.{name}"]) for name in ROPE_FIELDS}
    is_scaled = scaling["rope_type"] not in (None, "none")
    tokens = metadata.get("tokenizer.ggml.tokens")
    try:
        return ModelConfig.from_dict({
            **{field: metadata.get(key) for field, key in keys.items() if "." not in field},
            "model_type": architecture, "rope_scaling": scaling if is_scaled else None,
            "vocab_size": len(tokens) if tokens and isinstance(tokens, list) else 1,  # the tokenizer will complain
            # Files of the llama architecture store queries and keys in the order of interleaved pairs.
            "rope_traditional": architecture == "llama"})
    except FieldError as error:
        raise LoadError(f"{file}: {keys.get(error.field, error.field)} {error.complaint}") from None
    except ValueError as error:
        raise LoadError(f"{file}: {error}") from None


def _name_from_gguf(name: str) -> str:
    """Translate a name: ``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``"""
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block:
        return f"model.layers.{block[1]}.{GGUF_NAMES.get(block[2], block[2])}.{kind}"
    return f"{GGUF_NAMES.get(stem, stem)}.{kind}"
