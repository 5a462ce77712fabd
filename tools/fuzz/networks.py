"""Tiny networks for the fuzzers: several architectures with random weights, loaded once."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

from mini_vllm.backend import mx, nn
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.models.random_model import write_random_checkpoint

MAX_POSITION_EMBEDDINGS = 512
#: Two layers, so that keys and values of the second depend on all earlier tokens.
SHAPE: dict[str, object] = dict(
    vocab_size=259, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=MAX_POSITION_EMBEDDINGS, rms_norm_eps=1e-5, rope_theta=10000.0,
    tie_word_embeddings=False)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
NETWORKS: dict[str, dict[str, object]] = {
    "llama": dict(model_type="llama", rope_scaling=LLAMA3_ROPE),
    "llama, no groups": dict(model_type="llama", num_key_value_heads=4),
    "llama, one group": dict(model_type="llama", num_key_value_heads=1),
    "mistral, tied": dict(model_type="mistral", tie_word_embeddings=True),
    "qwen2": dict(model_type="qwen2"),
    "qwen3": dict(model_type="qwen3", head_dim=16),
}


@functools.cache
def network_folder(name: str) -> Path:
    """Write a checkpoint of one of NETWORKS and return its folder, which is deleted when the program ends."""
    folder = tempfile.TemporaryDirectory(prefix="mini-vllm-fuzz-")
    _FOLDERS.append(folder)
    return write_random_checkpoint(Path(folder.name), {**SHAPE, **NETWORKS[name]})


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # kept as long as the module


@functools.cache
def network(name: str, is_broken: bool = False) -> LoadedModel:
    """Load one of NETWORKS, or a model by its name.

    If it ``is_broken``, ``break_token`` can make a token unreadable for it. The network is loaded in and for the
    current thread: MLX arrays belong to the thread that made them.
    """
    loaded = load(network_folder(name) if name in NETWORKS else name)
    if is_broken:
        body = loaded.model.model
        body.embed_tokens = BrokenEmbedding(body.embed_tokens)
    return replace(loaded, name=f"{name}, broken" if is_broken else name)


def break_token(loaded: LoadedModel, token_id: int) -> None:
    """Make this token's embedding NaN in a broken network from now on."""
    loaded.model.model.embed_tokens.broken = token_id


class BrokenEmbedding(nn.Embedding):
    """An embedding whose vectors for the token ``broken`` are NaN."""

    def __init__(self, whole: nn.Embedding) -> None:
        super().__init__(*whole.weight.shape)
        self.weight, self.broken = whole.weight, -1

    def __call__(self, token_ids: mx.array) -> mx.array:
        vectors: mx.array = super().__call__(token_ids)  # type: ignore[no-untyped-call]  # MLX has no types for it
        return mx.where((token_ids == self.broken)[:, None], mx.nan, vectors)
