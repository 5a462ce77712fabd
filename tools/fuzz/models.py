"""Random small networks, loaded and decoded by the engine, against mlx-lm on the same files.

A case is a realistic checkpoint (any of the architectures, and any shape, rope scaling, window and quantisation that we
support, in any float type) and a few greedy requests to an engine with small blocks, small chunks and sometimes too few
blocks. Every token must be the one with the highest logit in mlx-lm's network, computed in float32, except for ties.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from fuzz.oracle import float32_oracle, load_without_windows, oracle_logits
from mini_vllm.backend import mx, nn
from mini_vllm.fast import tuning
from mini_vllm.llm import LLM
from mini_vllm.models import weights
from mini_vllm.models.config import FULL, SLIDING
from mini_vllm.models.random_model import random_weights, write_byte_tokenizer
from mini_vllm.request import SamplingParams

NUM_LAYERS = 2
#: The number of tokens that each request decodes.
NUM_TOKENS = 24
RECIPES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")
BITS, GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)
#: Two logits closer than this may swap, depending on the order in which numbers are added.
TIE = 1e-4

#: The path of a layer and the layer → its own options. False: not quantised. True: the same as the others.
Predicate = Callable[[str, nn.Module], "bool | dict[str, object]"]


@dataclass
class Case:
    """A drawn case. ``config`` describes the float checkpoint; ``quantised`` says how mlx-lm then quantises it."""

    config: dict[str, object]
    windows: list[int | None]
    dtype: str
    quantised: dict[str, Any] | None
    stays_packed: bool
    as_on_gpu: bool
    #: Fields of EngineConfig.
    settings: dict[str, Any]
    prompts: list[list[int]] = field(repr=False)


# ---- the draws


def draw_case(rng: random.Random) -> Case:
    """Draw everything from one generator in a fixed order: adding or removing a draw changes the case."""
    model_type = rng.choice(["llama", "mistral", "qwen2", "qwen3"])
    quantised = _draw_quantisation(rng) if rng.random() < 0.6 else None
    config = _draw_config(rng, model_type, quantised is not None)
    windows: list[int | None] = [None] * NUM_LAYERS
    if model_type != "llama" and rng.random() < 0.7:
        windows = _draw_windows(rng, model_type, config)
    stays_packed = quantised is not None and rng.random() < 0.5
    start = _tokens(rng)
    prompts = [start[:rng.choice((0, 0, rng.randint(0, len(start))))] + _tokens(rng) for _ in range(rng.randint(1, 5))]
    # The pool holds the longest request, and sometimes no more than that.
    block_size = rng.randint(1, 16)
    needed = [-(-(len(prompt) + NUM_TOKENS) // block_size) for prompt in prompts]
    settings = dict(block_size=block_size, num_blocks=rng.randint(max(needed) + 3, sum(needed) + 7),
                    max_num_seqs=rng.randint(1, 6), max_num_batched_tokens=rng.randint(6, 79),
                    max_num_chunk_tokens=rng.randint(1, 39), enable_lookahead=rng.choice([None, True, False]))
    # Packed weights are computed in the type of their scales, which must be float32 for the comparison.
    dtype = "float32" if stays_packed else rng.choice(["float32", "float16", "bfloat16"])
    return Case(config, windows, dtype, quantised, stays_packed, rng.random() < 0.3, settings, prompts)


def _tokens(rng: random.Random) -> list[int]:
    return [rng.randrange(256) for _ in range(rng.randint(1, 39))]


def _draw_config(rng: random.Random, model_type: str, is_quantised: bool) -> dict[str, object]:
    """Draw a config without windows."""
    num_kv_heads, head_dim = rng.randint(1, 3), rng.choice([32, 64, 80, 128])
    num_heads = num_kv_heads * rng.randint(1, 8 if head_dim < 80 else 4)
    config: dict[str, object] = dict(
        model_type=model_type, vocab_size=rng.randint(257, 299), num_hidden_layers=NUM_LAYERS,
        hidden_size=128 * rng.randint(1, 2) if is_quantised else 2 * rng.randint(16, 99),
        intermediate_size=rng.randint(20, 199) if rng.random() < 0.3 else rng.choice([128, 192, 256]),
        num_attention_heads=num_heads, num_key_value_heads=num_kv_heads, head_dim=head_dim,
        max_position_embeddings=512, rms_norm_eps=rng.choice([1e-5, 1e-6]),
        rope_theta=rng.choice([1e4, 5e5, 1e6]), tie_word_embeddings=rng.random() < 0.5)
    if model_type == "llama":
        config.update(attention_bias=rng.random() < 0.4, mlp_bias=rng.random() < 0.4)
    if model_type == "qwen2":  # mlx-lm computes the head size of qwen2 and supports no other
        config.update(hidden_size=num_heads * head_dim)
        del config["head_dim"]
    if model_type != "qwen3":
        config.update(rope_traditional=rng.random() < 0.3)
    if rng.random() < 0.6:
        config.update(rope_scaling=_draw_scaling(rng))
    return config


def _draw_quantisation(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of mlx-lm's quantisation. ``recipe`` or ``layer_bits`` gives layers their own options."""
    kind = rng.choice(["plain", "plain", "recipe", "layers", "float"])
    if kind == "float":
        return dict(mode=rng.choice(["mxfp4", "mxfp8", "nvfp4"]), group_size=None, bits=None)
    drawn: dict[str, Any] = dict(mode="affine", group_size=rng.choice(GROUP_SIZES), bits=rng.choice(BITS))
    if kind == "recipe":
        drawn.update(recipe=rng.choice(RECIPES), group_size=rng.choice((None, *GROUP_SIZES)))
    elif kind == "layers":  # 0: this layer is not quantised
        drawn["layer_bits"] = [rng.choice((0, *BITS)) for _ in range(7 * NUM_LAYERS + 2)]
    return drawn


def _draw_scaling(rng: random.Random) -> dict[str, object]:
    kind = rng.choice(["linear", "llama3", "yarn", "yarn"])
    scaling: dict[str, object] = {rng.choice(["rope_type", "type"]): kind,
                                  "factor": rng.choice([1.0, 2.0, 4.0, 8.5, 32.0])}
    if kind == "llama3":
        scaling.update(low_freq_factor=1.0, high_freq_factor=float(rng.randint(2, 5)),
                       original_max_position_embeddings=rng.choice([16, 64, 8192]))
    if kind == "yarn":
        scaling.update(original_max_position_embeddings=rng.choice([8, 64, 512, 32768]))
        if rng.random() < 0.4:
            scaling.update(beta_fast=rng.choice([4, 16.0, 64]), beta_slow=rng.choice([0.5, 1, 4]))
        if rng.random() < 0.4:
            scaling.update(mscale=rng.choice([0.7, 1.0]), mscale_all_dim=rng.choice([0.7, 1.3]))
    return scaling


def _draw_windows(rng: random.Random, model_type: str, config: dict[str, object]) -> list[int | None]:
    """Add a window to the config, in one of the ways its model type has. Return the window of each layer."""
    window = rng.randint(1, 49)
    config["sliding_window"] = window
    if model_type == "mistral":
        return [window] * NUM_LAYERS
    config["use_sliding_window"] = True
    if rng.random() < 0.5:
        first = rng.randint(0, NUM_LAYERS)
        config["max_window_layers"] = first
        return [window if layer >= first else None for layer in range(NUM_LAYERS)]
    kinds = [rng.choice((SLIDING, FULL)) for _ in range(NUM_LAYERS)]
    config["layer_types"] = kinds
    return [window if kind == SLIDING else None for kind in kinds]


# ---- the comparison


def run_case(seed: int, case: int) -> dict[str, int]:
    """Draw a case, decode it and compare. Raise AssertionError that says what was drawn and which token differs."""
    drawn = draw_case(random.Random(f"models {seed} {case}"))
    counts = {"models": 1, "requests": len(drawn.prompts), "tokens": 0, "ties": 0,
              "quantised": int(drawn.quantised is not None), "windowed": int(any(drawn.windows)),
              "scaled": int("rope_scaling" in drawn.config)}
    with tempfile.TemporaryDirectory() as folder:
        path = write_case(Path(folder), drawn, seed=case)
        try:
            outputs = decode(path, drawn)
        except Exception as error:
            raise AssertionError(f"case {case} of seed {seed}: {type(error).__name__}: {error}\n{drawn}") from error
        oracle = float32_oracle(path)
        for index, (prompt, output) in enumerate(zip(drawn.prompts, outputs)):
            logits = np.array(oracle_logits(oracle, [*prompt, *output[:-1]], drawn.windows)[len(prompt) - 1:])
            try:
                counts["ties"] += count_ties(index, logits, output)
            except AssertionError as error:
                raise AssertionError(f"case {case} of seed {seed}: {error}\n{drawn}") from None
            counts["tokens"] += len(output)
    return counts


def count_ties(index: int, logits: npt.NDArray[np.float32], output: list[int]) -> int:
    """Count the tokens that are not the oracle's best but whose logit is closer to it than TIE.

    Raise AssertionError for any other token that is not the best.
    """
    best = logits.argmax(axis=-1)
    gaps = logits.max(axis=-1) - logits[np.arange(len(output)), output]
    for place in np.flatnonzero(best != output):
        if gaps[place] >= TIE or not np.isfinite(gaps[place]):
            raise AssertionError(f"token {place} of request {index} is {output[place]}, mlx-lm's is {best[place]}, "
                                 f"whose logit is {gaps[place]:.6f} higher")
    return int((best != output).sum())


def write_case(folder: Path, drawn: Case, seed: int) -> Path:
    """Write the checkpoint as files, first in floats, then quantised by mlx-lm."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import quantize_model
    dtype = getattr(mx, drawn.dtype)
    floats = {name: array.astype(dtype) for name, array in random_weights(drawn.config, seed).items()}
    config = drawn.config
    mx.save_safetensors(str(folder / "model.safetensors"), floats)
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    if drawn.quantised is not None:
        model, options = load_without_windows(folder), drawn.quantised
        with contextlib.redirect_stdout(io.StringIO()):  # mlx-lm prints its progress
            model, config = quantize_model(model, config, options["group_size"], options["bits"], options["mode"],
                                           quant_predicate=_predicate(model, options))
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def _predicate(model: nn.Module, options: dict[str, Any]) -> Predicate | None:
    """Return the quantisation options of each layer, or None if no layer has its own."""
    if "recipe" in options:
        from mlx_lm.convert import mixed_quant_predicate_builder
        return cast(Predicate, mixed_quant_predicate_builder(options["recipe"], model, options["group_size"]))
    if "layer_bits" not in options:
        return None
    rest = iter(options["layer_bits"])

    def predicate(path: str, module: nn.Module) -> bool | dict[str, object]:
        bits = next(rest)
        return {"bits": bits, "group_size": options["group_size"]} if bits else False

    return predicate


def decode(folder: Path, drawn: Case) -> list[list[int]]:
    """Decode the prompts, on a simulated GPU or a device that multiplies packed weights faster if the case says so."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(patch.object(weights, "is_cpu", lambda: not drawn.stays_packed))
        if drawn.as_on_gpu:
            patches.enter_context(patch.object(tuning, "is_cpu", lambda: False))
        llm = LLM(folder, **drawn.settings)
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
        return [output.token_ids for output in llm.generate(drawn.prompts, params)]
