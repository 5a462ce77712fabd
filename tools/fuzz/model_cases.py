"""The cases of the model fuzzer: a realistic checkpoint, an engine and prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar

import numpy as np

from mini_vllm.models.config import FULL, SLIDING

NUM_LAYERS = 2
#: The number of tokens that each request decodes.
NUM_TOKENS = 24
RECIPES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")
BITS, GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)

T = TypeVar("T")


class _AllLayers(TypedDict):
    mode: str
    group_size: int | None
    bits: int | None


class Quantisation(_AllLayers, total=False):
    """Arguments of mlx-lm's quantisation. ``recipe`` or ``layer_bits`` gives layers their own options."""

    recipe: str
    #: 0: this layer is not quantised
    layer_bits: list[int]


class Settings(TypedDict):
    """Fields of the EngineConfig."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_chunk_tokens: int
    enable_lookahead: bool | None


@dataclass
class Case:
    """A drawn case. ``config`` describes the float checkpoint; ``quantised`` says how it was then quantised."""

    config: dict[str, object]
    windows: list[int | None]
    dtype: str
    quantised: Quantisation | None
    stays_packed: bool
    as_on_gpu: bool
    settings: Settings
    prompts: list[list[int]] = field(repr=False)
    prompt_lens: list[int] = field(default_factory=list)


def draw_case(rng: np.random.Generator) -> Case:
    """Draw everything from one generator in a fixed order: adding or removing a draw changes the case."""
    model_type, quantised, config = _draw_config(rng)
    windows: list[int | None] = [None] * NUM_LAYERS
    if model_type != "llama" and _chance(rng, 0.7):
        windows = _draw_windows(rng, model_type, config)
    stays_packed = quantised is not None and _chance(rng, 0.5)
    prompts = _draw_prompts(rng)
    settings = _draw_settings(rng, prompts)
    # Packed weights are computed in the type of their scales, which must be float32 for the comparison.
    dtype = "float32" if stays_packed else _one_of(rng, ["float32", "float16", "bfloat16"])
    return Case(config, windows, dtype, quantised, stays_packed, _chance(rng, 0.3), settings, prompts,
                [len(prompt) for prompt in prompts])


def _draw_config(rng: np.random.Generator) -> tuple[str, Quantisation | None, dict[str, object]]:
    """Draw the model type, its quantisation, and its config without windows."""
    def chance(share: float) -> bool:
        return _chance(rng, share)

    model_type = _one_of(rng, ["llama", "mistral", "qwen2", "qwen3"])
    num_kv_heads, head_dim = int(rng.integers(1, 4)), _one_of(rng, [32, 64, 80, 128])
    group = int(rng.integers(1, 9)) if head_dim < 80 else int(rng.integers(1, 5))
    quantised = _draw_quantisation(rng) if chance(0.6) else None
    config: dict[str, object] = dict(
        model_type=model_type, vocab_size=int(rng.integers(257, 300)), num_hidden_layers=NUM_LAYERS,
        hidden_size=128 * int(rng.integers(1, 3)) if quantised else 2 * int(rng.integers(16, 100)),
        intermediate_size=int(rng.integers(20, 200)) if chance(0.3) else _one_of(rng, [128, 192, 256]),
        num_attention_heads=num_kv_heads * group, num_key_value_heads=num_kv_heads, head_dim=head_dim,
        max_position_embeddings=512, rms_norm_eps=_one_of(rng, [1e-5, 1e-6]),
        rope_theta=_one_of(rng, [1e4, 5e5, 1e6]), tie_word_embeddings=chance(0.5))
    if model_type == "llama":
        config.update(attention_bias=chance(0.4), mlp_bias=chance(0.4))
    if model_type == "qwen2":  # mlx-lm computes the head size of qwen2 and supports no other
        config.update(hidden_size=num_kv_heads * group * head_dim)
        del config["head_dim"]
    if model_type != "qwen3":
        config.update(rope_traditional=chance(0.3))
    if chance(0.6):
        config.update(rope_scaling=_draw_scaling(rng))
    return model_type, quantised, config


def _draw_settings(rng: np.random.Generator, prompts: Sequence[Sequence[int]]) -> Settings:
    """Draw settings whose pool holds the longest request, and sometimes no more than that."""
    block_size = int(rng.integers(1, 17))
    needed = [-(-(len(prompt) + NUM_TOKENS) // block_size) for prompt in prompts]
    return Settings(block_size=block_size, num_blocks=int(rng.integers(max(needed) + 3, sum(needed) + 8)),
                    max_num_seqs=int(rng.integers(1, 7)), max_num_batched_tokens=int(rng.integers(6, 80)),
                    max_num_chunk_tokens=int(rng.integers(1, 40)),
                    enable_lookahead=_one_of(rng, [None, True, False]))


def _chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def _one_of(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _draw_quantisation(rng: np.random.Generator) -> Quantisation:
    kind = _one_of(rng, ["plain", "plain", "recipe", "layers", "float"])
    if kind == "float":
        return Quantisation(mode=_one_of(rng, ["mxfp4", "mxfp8", "nvfp4"]), group_size=None, bits=None)
    drawn = Quantisation(mode="affine", group_size=_one_of(rng, GROUP_SIZES), bits=_one_of(rng, BITS))
    if kind == "recipe":
        drawn["recipe"] = _one_of(rng, RECIPES)
        drawn["group_size"] = _one_of(rng, (None, *GROUP_SIZES))
    elif kind == "layers":
        drawn["layer_bits"] = [int(bits) for bits in rng.choice((0, *BITS), 7 * NUM_LAYERS + 2)]
    return drawn


def _draw_scaling(rng: np.random.Generator) -> dict[str, object]:
    kind = _one_of(rng, ["linear", "llama3", "yarn", "yarn"])
    scaling: dict[str, object] = {_one_of(rng, ["rope_type", "type"]): kind,
                                  "factor": _one_of(rng, [1.0, 2.0, 4.0, 8.5, 32.0])}
    if kind == "llama3":
        scaling.update(low_freq_factor=1.0, high_freq_factor=float(rng.integers(2, 6)),
                       original_max_position_embeddings=_one_of(rng, [16, 64, 8192]))
    if kind == "yarn":
        scaling.update(original_max_position_embeddings=_one_of(rng, [8, 64, 512, 32768]))
        if rng.random() < 0.4:
            scaling.update(beta_fast=_one_of(rng, [4, 16.0, 64]), beta_slow=_one_of(rng, [0.5, 1, 4]))
        if rng.random() < 0.4:
            scaling.update(mscale=_one_of(rng, [0.7, 1.0]), mscale_all_dim=_one_of(rng, [0.7, 1.3]))
    return scaling


def _draw_windows(rng: np.random.Generator, model_type: str, config: dict[str, object]) -> list[int | None]:
    """Add a window to the config, in one of the ways its model type has. Return the window of each layer."""
    window, has_window = int(rng.integers(1, 50)), [bool(bit) for bit in rng.integers(0, 2, NUM_LAYERS)]
    config["sliding_window"] = window
    if model_type == "mistral":
        return [window] * NUM_LAYERS
    config["use_sliding_window"] = True
    if rng.random() < 0.5:
        first = int(rng.integers(NUM_LAYERS + 1))
        config["max_window_layers"] = first
        has_window = [layer >= first for layer in range(NUM_LAYERS)]
    else:
        config["layer_types"] = [SLIDING if is_sliding else FULL for is_sliding in has_window]
    return [window if is_sliding else None for is_sliding in has_window]


def _draw_prompts(rng: np.random.Generator) -> list[list[int]]:
    """Draw a few prompts, some of which share a prefix."""
    start = rng.integers(0, 256, int(rng.integers(1, 40))).tolist()
    prompts: list[list[int]] = []
    for _ in range(int(rng.integers(1, 6))):
        own = rng.integers(0, 256, int(rng.integers(1, 40))).tolist()
        prompts.append(own if rng.random() < 0.6 else start[:int(rng.integers(len(start) + 1))] + own)
    return prompts
