"""Random configs in Hugging Face's layout, with everything that configs say in more than one way or leave out."""

from __future__ import annotations

import random
from typing import Any

from mini_vllm.models.config import DEFAULTS, FULL, SLIDING

LENGTHS = (8, 16, 32, 64, 512)


def draw_config(rng: random.Random) -> dict[str, Any]:
    """Draw a config. Most are valid; some contradict themselves or ask for what the engine does not support."""
    model_type = rng.choice([*DEFAULTS] * 8 + ["gemma"])
    group, num_kv_heads = rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 4))
    num_heads, head_dim = group * num_kv_heads, rng.choice((8, 16, 32))
    config: dict[str, Any] = dict(
        model_type=model_type, vocab_size=300, num_hidden_layers=rng.randint(1, 3), num_attention_heads=num_heads,
        intermediate_size=rng.choice((24, 40, 64)), num_key_value_heads=num_kv_heads, head_dim=head_dim,
        hidden_size=num_heads * (head_dim if rng.random() < 0.7 else rng.choice((8, 12, 24))))
    _change_heads(rng, config)
    _maybe(rng, config, "max_position_embeddings", 0.9, LENGTHS)
    _maybe(rng, config, "rms_norm_eps", 0.8, (1e-5, 1e-6, 1e-3))
    _maybe(rng, config, "tie_word_embeddings", 0.8, (True, False))
    _maybe(rng, config, "attention_bias", 0.4, (True, True, False))
    _maybe(rng, config, "mlp_bias", 0.3, (True, False))
    _maybe(rng, config, "hidden_act", 0.3, ("silu",) * 9 + ("gelu",))
    _draw_windows(rng, config)
    _draw_rotation(rng, config)
    return config


def _maybe(rng: random.Random, fields: dict[str, Any], name: str, share: float, values: tuple[Any, ...]) -> None:
    if rng.random() < share:
        fields[name] = rng.choice(values)


def _change_heads(rng: random.Random, config: dict[str, Any]) -> None:
    """Leave out or null what follows from other fields."""
    kind, chance = config["model_type"], rng.random()
    if chance < (0.25 if kind == "qwen3" else 0.4):
        del config["head_dim"]
    elif chance < 0.5 and kind in ("llama", "mistral"):
        config["head_dim"] = None
    if rng.random() < 0.08:
        config["num_key_value_heads"] = None
    elif rng.random() < 0.08:
        del config["num_key_value_heads"]
        config["num_attention_heads"] = {"mistral": 16, "qwen2": 32, "qwen3": 32}.get(kind, 4)
        config["hidden_size"] = config["num_attention_heads"] * 4
    if rng.random() < 0.02:
        config["head_dim"] = 15


def _draw_windows(rng: random.Random, config: dict[str, Any]) -> None:
    kind, num_layers = config["model_type"], config["num_hidden_layers"]
    _maybe(rng, config, "sliding_window", 0.6, (None, 1, 3, 7, 20, 50))
    if kind.startswith("qwen"):
        _maybe(rng, config, "use_sliding_window", 0.8, (True, True, False))
        _maybe(rng, config, "max_window_layers", 0.6, tuple(range(num_layers + 1)))
    if rng.random() < (0.3 if config.get("use_sliding_window") else 0.05):
        config["layer_types"] = [rng.choice((FULL, SLIDING)) for _ in range(num_layers)]


def _draw_rotation(rng: random.Random, config: dict[str, Any]) -> None:
    _maybe(rng, config, "rope_theta", 0.5, (1e4, 5e5, 1e6))
    place, rope = rng.random(), _draw_rope(rng, config)
    if place < 0.45:
        config["rope_scaling"] = rope
    elif place < 0.8:
        config["rope_parameters"] = rope
    elif place < 0.85:
        config.update(rope_scaling=dict(rope), rope_parameters=rope)
    elif place < 0.9:
        config.update(rope_scaling=_draw_rope(rng, config), rope_parameters=rope)
    elif place < 0.95:
        config.update(rope_scaling={} if rng.random() < 0.5 else None, rope_parameters=rope)


def _draw_rope(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    kind = rng.choice(("default", "linear", "llama3", "llama3", "yarn", "yarn", "yarn"))
    if rng.random() < 0.03:
        kind = rng.choice(("dynamic", "longrope", "proportional", "su"))
    rope: dict[str, Any] = {rng.choice(("rope_type", "rope_type", "type")): kind}
    if rng.random() < 0.03:
        rope["type"] = rng.choice(("linear", "yarn"))
    if kind != "default":
        _maybe(rng, rope, "factor", 0.97, (1.0, 2, 4.0, 8.5))
    if "rope_theta" not in config or rng.random() < 0.05:
        _maybe(rng, rope, "rope_theta", 0.7, (1e4, 5e5, 1e6))
    if kind in ("llama3", "yarn"):
        place = rng.random()
        _maybe(rng, rope, "original_max_position_embeddings", float(place < 0.65), LENGTHS)
        _maybe(rng, config, "original_max_position_embeddings", float(0.6 < place < 0.8), LENGTHS)
    if kind == "llama3":
        _maybe(rng, rope, "low_freq_factor", 0.97, (1.0, 0.5))
        _maybe(rng, rope, "high_freq_factor", 0.97, (4.0, 2, 8.0))
    if kind == "yarn":
        _maybe(rng, rope, "beta_fast", 0.2, (4, 16.0, 64))
        _maybe(rng, rope, "beta_slow", 0.2, (0.5, 1, 4))
        _maybe(rng, rope, "mscale", 0.3, (0, 0.7, 1.0))
        _maybe(rng, rope, "mscale_all_dim", 0.3, (0, 0.7, 1.3))
        _maybe(rng, rope, "attention_factor", 0.2, (0.8, 1.3))
        _maybe(rng, rope, "truncate", 0.06, (True, False))
    _maybe(rng, rope, "partial_rotary_factor", 0.03, (1.0, 0.5))
    return rope
