"""Networks with random weights in the shape of real ones, for measurements and tests that need no real text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import tokenizers

from mini_vllm.backend import mx
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.loader import LoadedModel
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.models.weights import checkpoint_shapes, make_model

END = "<|endoftext|>"

#: Name → config, as in a checkpoint.
RANDOM_MODELS: dict[str, dict[str, object]] = {
    "qwen3-27m": dict(model_type="qwen3", vocab_size=16384, hidden_size=512, intermediate_size=1536,
                      num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                      max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True),
    "qwen3-0.6b": dict(model_type="qwen3", vocab_size=151_936, hidden_size=1024, intermediate_size=3072,
                       num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                       max_position_embeddings=40_960, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True),
    "llama-3.2-1b": dict(model_type="llama", vocab_size=128_256, hidden_size=2048, intermediate_size=8192,
                         num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
                         max_position_embeddings=131_072, rms_norm_eps=1e-5, rope_theta=500_000.0,
                         tie_word_embeddings=True),
}


def load_random(name: str, seed: int = 0, dtype: mx.Dtype = mx.float32) -> LoadedModel:
    """Return a model of RANDOM_MODELS; the same seed gives the same weights. Raise ValueError for an unknown name."""
    if name not in RANDOM_MODELS:
        raise ValueError(f"there is no random model {name!r}, only {', '.join(RANDOM_MODELS)}")
    return replace(make_random(RANDOM_MODELS[name], seed, dtype), name=name)


def make_random(config: Mapping[str, object], seed: int = 0, dtype: mx.Dtype = mx.float32) -> LoadedModel:
    """Return the model that ``write_random_checkpoint`` writes, without a file."""
    model = make_model(ModelConfig.from_dict(config), random_weights(config, seed, dtype))
    backend = byte_tokenizer()
    end_id = backend.token_to_id(END)
    assert end_id is not None
    tokenizer = Tokenizer(backend, eos_token=END, eos_token_ids=frozenset({end_id}))
    return LoadedModel("random", Path("random"), model, model.config, tokenizer, {}, model.num_bytes)


def write_random_checkpoint(folder: Path, config: Mapping[str, object], seed: int = 0,
                            dtype: mx.Dtype = mx.float32) -> Path:
    """Write a checkpoint in Hugging Face layout, with weights so large that near-ties among its logits are rare."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), random_weights(config, seed, dtype))
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    return folder


def random_weights(config: Mapping[str, object], seed: int, dtype: mx.Dtype = mx.float32) -> dict[str, mx.array]:
    mx.random.seed(seed)
    return {name: (3 * mx.random.uniform(-1, 1, shape) * shape[-1] ** -0.5 if len(shape) > 1
                   else mx.random.normal(shape) * 0.1 + (1.0 if "norm" in name else 0.0)).astype(dtype)
            for name, shape in checkpoint_shapes(ModelConfig.from_dict(config)).items()}


def write_byte_tokenizer(folder: Path) -> None:
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer with one token per byte, and an end-of-text token."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer
