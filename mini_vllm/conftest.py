"""Small random checkpoints in Hugging Face layout, for the suites of the engine."""

import json
from pathlib import Path

import pytest

SHAPE = dict(vocab_size=300, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=8,
             num_key_value_heads=4, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0,
             tie_word_embeddings=False)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
ARCHITECTURES = {
    "llama2": dict(model_type="llama", num_key_value_heads=8),
    "llama3": dict(model_type="llama", rope_scaling=LLAMA3_ROPE, rope_theta=500000.0),
    "llama-interleaved": dict(model_type="llama", rope_traditional=True),
    "llama-bias": dict(model_type="llama", attention_bias=True, mlp_bias=True),
    "mistral": dict(model_type="mistral", tie_word_embeddings=True, sliding_window=None),
    "qwen2": dict(model_type="qwen2"),
    "qwen3": dict(model_type="qwen3", head_dim=32),
}


def write_tokenizer(folder: Path) -> None:
    """One token a byte, and an end-of-text token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


def write_checkpoint(folder: Path, seed: int = 0, shards: int = 1, **changes: object) -> Path:
    """A random network with weights large enough that its choices are no near-ties."""
    from mini_vllm.backend import mx
    from mini_vllm.model import ModelConfig
    from mini_vllm.weights import checkpoint_shapes
    folder.mkdir(parents=True, exist_ok=True)
    config = {**SHAPE, **changes}
    mx.random.seed(seed)
    weights = {name: 3 * mx.random.uniform(-1, 1, shape) * shape[-1] ** -0.5 if len(shape) > 1
               else mx.random.normal(shape) * 0.1 + (1.0 if "norm" in name else 0.0)
               for name, shape in checkpoint_shapes(ModelConfig.from_dict(config)).items()}
    names = sorted(weights)
    if shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), weights)
    else:
        files = {name: f"model-{1 + i % shards:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
        for file in set(files.values()):
            mx.save_safetensors(str(folder / file), {n: weights[n] for n in names if files[n] == file})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Name → folder of a random checkpoint of that architecture, made when first asked for."""
    root, made = tmp_path_factory.mktemp("checkpoints"), {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = write_checkpoint(root / name, **ARCHITECTURES[name])
        return made[name]

    return get
