"""mlx-lm's network in float32: the reference for the engine's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mini_vllm.backend import mx, nn


def load_without_windows(folder: Path) -> nn.Module:
    """Load a checkpoint with full attention in every layer: mlx-lm refuses models in which no layer is full.

    ``oracle_logits`` applies the windows.
    """
    from mlx_lm.utils import load_model
    return load_model(folder, model_config={"layer_types": None})[0]


def float32_oracle(folder: Path) -> nn.Module:
    """Load mlx-lm's network with all parameters in float32 and packed ones expanded, before any rounding."""
    from mlx.utils import tree_map
    model = load_without_windows(folder)

    leaves = model.leaf_modules()
    model.update_modules(tree_map(_in_floats, leaves, is_leaf=nn.Module.is_module))
    model.set_dtype(mx.float32)
    return model


def _in_floats(module: nn.Module) -> nn.Module:
    if not hasattr(module, "bits"):
        return module
    scales, biases = module.scales, module.get("biases")
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    plain = nn.Embedding(1, 1) if isinstance(module, nn.QuantizedEmbedding) else nn.Linear(1, 1, "bias" in module)
    plain.weight = mx.dequantize(module.weight, scales, biases, module.group_size, module.bits, mode=module.mode,
                                 dtype=mx.float32)
    if "bias" in module:
        plain.bias = module.bias
    return plain


def oracle_logits(model: nn.Module, token_ids: Sequence[int], windows: Sequence[int | None]) -> mx.array:
    """Return the logits of all positions [num_tokens, vocab_size] from mlx-lm's layers, each masked by its window."""
    from mlx_lm.models.base import create_causal_mask
    body = model.model
    x = body.embed_tokens(mx.array([token_ids]))
    for layer, window in zip(body.layers, windows, strict=True):
        x = layer(x, create_causal_mask(len(token_ids), window_size=window), None)
    x = body.norm(x)
    logits: mx.array = body.embed_tokens.as_linear(x) if model.args.tie_word_embeddings else model.lm_head(x)
    return logits[0]
