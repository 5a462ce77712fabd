"""A GGUF file: config, weights and tokenizer in one, under names of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from mini_vllm.backend import is_cpu, mx
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.gguf_file import GGUFFile
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
ROPE_FIELDS = {"rope_type": "type", "factor": "factor", "original_max_position_embeddings": "original_context_length",
               "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
GGUF_FIELDS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
    **{f"rope_scaling.{field}": f"rope.scaling.{key}" for field, key in ROPE_FIELDS.items()},
}
#: What ``rope.scaling.factor`` was called once
OLD_FACTOR = "rope.scale_linear"
#: Fields about rotation that change nothing, or are checked below; others are refused.
OTHER_ROPE_FIELDS = {OLD_FACTOR, "rope.dimension_count", "rope.scaling.finetuned"}
#: A tensor that divides the rotary frequencies, in the files of Llama 3.1 and later
ROPE_FACTORS = "rope_freqs.weight"


def read_gguf(file: Path) -> tuple[ModelConfig, dict[str, mx.array], Tokenizer]:
    """Read a GGUF file. Raise LoadError or TokenizerError that names the missing or invalid field as in the file."""
    content = GGUFFile(file)
    config, weights = _read_config(file, content.fields), dict[str, mx.array]()
    for name, arrays in content.tensors(mx.float32 if is_cpu() else mx.float16):
        if name == ROPE_FACTORS:
            config = _with_rope_factors(file, config, arrays[name])
        else:
            weights.update((_name_from_gguf(part), array) for part, array in arrays.items())
    return config, weights, tokenizer_from_gguf(content.fields)


def _read_config(file: Path, metadata: Mapping[str, object]) -> ModelConfig:
    architecture = metadata.get("general.architecture")
    keys = {field: f"{architecture}.{key}" for field, key in GGUF_FIELDS.items()}
    fields = {field: metadata.get(key) for field, key in keys.items() if "." not in field}
    tokens = metadata.get("tokenizer.ggml.tokens")
    try:
        config = ModelConfig.from_dict({
            **fields, "model_type": architecture, "rope_scaling": _read_scaling(architecture, metadata, keys),
            "vocab_size": len(tokens) if tokens and isinstance(tokens, list) else 1,  # the tokenizer will complain
            # Files of the llama architecture store queries and keys in the order of interleaved pairs.
            "rope_traditional": architecture == "llama"})
        num_rotated = metadata.get(f"{architecture}.rope.dimension_count", config.head_dim)
        if num_rotated != config.head_dim:
            raise FieldError(f"{architecture}.rope.dimension_count", f"is {num_rotated}, supported: {config.head_dim}, "
                                                                     "the size of a head")
        return config
    except FieldError as error:
        raise LoadError(f"{file}: {keys.get(error.field, error.field)} {error.complaint}") from None
    except ValueError as error:
        raise LoadError(f"{file}: {error}") from None


def _read_scaling(architecture: object, metadata: Mapping[str, object],
                  keys: dict[str, str]) -> dict[str, object] | None:
    """Return ``rope_scaling`` as in a config.json. As in llama.cpp, a factor without a type scales linearly."""
    known = {*keys.values(), *(f"{architecture}.{field}" for field in OTHER_ROPE_FIELDS)}
    for key, value in metadata.items():
        if key.startswith(f"{architecture}.rope.") and key not in known:
            raise FieldError(key, f"is {value!r}, which is not supported")
    scaling = {name: metadata.get(keys[f"rope_scaling.{name}"]) for name in ROPE_FIELDS}
    old = metadata.get(f"{architecture}.{OLD_FACTOR}")
    if old is not None and scaling["factor"] not in (None, old):
        raise FieldError("rope_scaling.factor", f"is {scaling['factor']}, but {architecture}.{OLD_FACTOR} is {old}")
    if old is not None:
        scaling["factor"], keys["rope_scaling.factor"] = old, f"{architecture}.{OLD_FACTOR}"
    if scaling["rope_type"] is None and scaling["factor"] is not None:
        scaling["rope_type"] = "linear"
    return None if scaling["rope_type"] in (None, "none") else scaling


def _with_rope_factors(file: Path, config: ModelConfig, factors: mx.array) -> ModelConfig:
    num_pairs = config.head_dim // 2
    if factors.shape != (num_pairs,) or not mx.all((factors > 0) & (factors < mx.inf)).item():
        raise LoadError(f"{file}: the tensor {ROPE_FACTORS} must have {num_pairs} numbers above 0, one per pair")
    return replace(config, rope_factors=tuple(np.array(factors, np.float32).tolist()))


def _name_from_gguf(name: str) -> str:
    """Translate a name: ``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``"""
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block:
        return f"model.layers.{block[1]}.{GGUF_NAMES.get(block[2], block[2])}.{kind}"
    return f"{GGUF_NAMES.get(stem, stem)}.{kind}"
