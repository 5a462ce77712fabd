"""The tensors of a Hugging Face checkpoint of the Llama family: their names and shapes follow from the config."""

from __future__ import annotations

from mini_vllm.models.config import ModelConfig


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
