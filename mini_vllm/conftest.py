"""Small random checkpoints in Hugging Face layout, for the tests of the engine."""

import contextlib
import gc
import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

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
#: Factor for the number of random examples: `make thorough` tries more of them.
THOROUGH = int(os.environ.get("THOROUGH", "1"))

# The examples are the same in every run, except in a thorough one, and a slow machine fails no test.
settings.register_profile("repeatable", deadline=None, derandomize=THOROUGH == 1)
settings.load_profile("repeatable")


def examples(number: int) -> int:
    """Return the number of random examples to try: ``number``, or a multiple of it in a thorough run."""
    return number * THOROUGH


@contextlib.contextmanager
def without_garbage_collector():
    """Disable the garbage collector, so that an object is freed only when its last reference is dropped."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def checkpoint_width() -> int:
    """Return the hidden size of ``checkpoints``: eight heads of 8 numbers.

    On a GPU it is eight heads of 32: the GPU kernels support no smaller head, and on a GPU the tests are about them.
    """
    from mini_vllm.fast import tuning
    return 256 if tuning.has_gpu() else SHAPE["hidden_size"]


def write_checkpoint(folder: Path, seed: int = 0, shards: int = 1, **changes: object) -> Path:
    """Write a small random network; with ``shards`` above 1, as several files and an index."""
    from mini_vllm.backend import mx
    from mini_vllm.models.random_model import random_weights, write_byte_tokenizer, write_random_checkpoint
    config = {**SHAPE, **changes}
    if shards == 1:
        return write_random_checkpoint(folder, config, seed)
    folder.mkdir(parents=True, exist_ok=True)
    weights = random_weights(config, seed)
    files = {name: f"model-{1 + i % shards:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(sorted(weights))}
    for file in set(files.values()):
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in weights if files[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    return folder


def make_talker(checkpoints, folder: Path) -> Path:
    """Write a random model with a chat template into a new folder inside ``folder``."""
    talker = folder / "talker"
    shutil.copytree(checkpoints("llama2"), talker)
    config = {"eos_token": "<|endoftext|>",
              "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"}
    (talker / "tokenizer_config.json").write_text(json.dumps(config))
    return talker


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Map a name to the folder of a random checkpoint of that architecture, created when first used."""
    root, made = tmp_path_factory.mktemp("checkpoints"), {}

    def get(name: str, num_hidden_layers: int = SHAPE["num_hidden_layers"], hidden_size: int | None = None) -> Path:
        hidden_size = hidden_size or checkpoint_width()
        key = f"{name}-{num_hidden_layers}-{hidden_size}"
        if key not in made:
            made[key] = write_checkpoint(root / key, **{**ARCHITECTURES[name], "num_hidden_layers": num_hidden_layers,
                                                        "hidden_size": hidden_size})
        return made[key]

    return get


@pytest.fixture(scope="session")
def shallow(checkpoints):
    """Return ``checkpoints`` with two layers, for tests about requests and blocks: a step takes two thirds of the time.

    The tests of networks, attention, sharing and preemption cover a layer that is neither the first nor the last.
    """
    return partial(checkpoints, num_hidden_layers=2)


@pytest.fixture
def used(monkeypatch):
    """Collect the sampling parameters of requests as they reach the engine."""
    from mini_vllm.engine import LLMEngine
    params, real = [], LLMEngine.add_request

    def add_request(self, prompt, sampling_params=None, *args, **kwargs):
        params.append(sampling_params)
        return real(self, prompt, sampling_params, *args, **kwargs)

    monkeypatch.setattr(LLMEngine, "add_request", add_request)
    return params


@pytest.fixture
def hardly_measured(monkeypatch):
    """Make the doctor measure for only a millisecond, for tests of its output."""
    from mini_vllm.benchmark.machine import measure_gflops
    monkeypatch.setattr(measure_gflops, "__defaults__", (0.001,))


@pytest.fixture
def few_products(monkeypatch):
    """Make the speed check of a benchmark, which multiplies before and after every arm, take only a millisecond.

    It takes longer for a reliable number; this is for tests that need none.
    """
    from mini_vllm.benchmark.machine import fastest_product_s
    monkeypatch.setattr(fastest_product_s, "__defaults__", (0.001,))
