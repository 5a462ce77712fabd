"""Random small networks, loaded and decoded by the engine, against mlx-lm on the same files.

A case is a checkpoint as somebody might have made it (any of the architectures, any shape, rope scaling, window and
quantisation that we support, in any float type) and a few greedy requests to an engine with small blocks, small chunks
and now and then too few blocks. Every token must be the one that mlx-lm's network, computed in float32, likes best.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np

from mini_vllm.backend import mx, nn
from mini_vllm.fast import tuning
from mini_vllm.llm import LLM
from mini_vllm.models import weights
from mini_vllm.models.config import FULL, SLIDING
from mini_vllm.models.random_model import random_weights, write_byte_tokenizer
from mini_vllm.request import SamplingParams

NUM_LAYERS = 2
NUM_TOKENS = 40
#: Two logits nearer than this may change places with the order in which numbers are added up.
TIE = 1e-4
RECIPES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")
BITS, GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)


@dataclass
class Case:
    """What was drawn. ``config`` is that of the float checkpoint; ``quantised`` says how it was then quantised."""

    config: dict[str, object]
    windows: list[int | None]
    dtype: str
    quantised: dict[str, object] | None
    stays_packed: bool
    as_on_gpu: bool
    settings: dict[str, object]
    prompts: list[list[int]] = field(repr=False)
    prompt_lens: list[int] = field(default_factory=list)


def run_case(seed: int, case: int) -> dict[str, int]:
    """Draw a case, decode it and compare. Raises AssertionError saying what was drawn and which token differs."""
    drawn = draw_case(np.random.default_rng([seed, case]))
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
            best = logits.argmax(axis=-1)
            gaps = logits.max(axis=-1) - logits[np.arange(len(output)), output]
            for place in np.flatnonzero(best != output):
                if gaps[place] >= TIE or not np.isfinite(gaps[place]):
                    raise AssertionError(f"case {case} of seed {seed}: token {place} of request {index} is "
                                         f"{output[place]}, mlx-lm's is {best[place]}, whose logit is "
                                         f"{gaps[place]:.6f} higher\n{drawn}")
            counts["ties"] += int((best != output).sum())
            counts["tokens"] += len(output)
    return counts


# ---- drawing


def draw_case(rng: np.random.Generator) -> Case:
    def chance(share: float) -> bool:
        return bool(rng.random() < share)

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
    if model_type in ("llama", "mistral"):
        config.update(attention_bias=chance(0.4), mlp_bias=chance(0.3))
    if model_type == "qwen2":  # mlx-lm computes its head size and knows no other
        config.update(hidden_size=num_kv_heads * group * head_dim)
        del config["head_dim"]
    if model_type != "qwen3":
        config.update(rope_traditional=chance(0.3))
    if chance(0.6):
        config.update(rope_scaling=_draw_scaling(rng))
    windows = _draw_windows(rng, config) if chance(0.5) else [None] * NUM_LAYERS
    stays_packed = quantised is not None and chance(0.5)
    prompts = _draw_prompts(rng)
    block_size = int(rng.integers(1, 17))
    needed = [-(-(len(prompt) + NUM_TOKENS) // block_size) for prompt in prompts]
    settings = dict(block_size=block_size, num_blocks=int(rng.integers(max(needed) + 3, sum(needed) + 8)),
                    max_num_seqs=int(rng.integers(1, 7)), max_num_batched_tokens=int(rng.integers(6, 80)),
                    max_num_chunk_tokens=int(rng.integers(1, 40)),
                    enable_lookahead=_one_of(rng, [None, True, False]))
    # What stays packed is computed in the type of its scales, which must be float32 to compare.
    dtype = "float32" if stays_packed else _one_of(rng, ["float32", "float16", "bfloat16"])
    return Case(config, windows, dtype, quantised, stays_packed, chance(0.3), settings, prompts,
                [len(prompt) for prompt in prompts])


def _one_of(rng: np.random.Generator, choices: Sequence) -> object:
    return choices[int(rng.integers(len(choices)))]


def _draw_quantisation(rng: np.random.Generator) -> dict[str, object]:
    """Arguments of mlx-lm's own function; ``recipe`` names or ``layer_bits`` lists what layers have of their own."""
    kind = _one_of(rng, ["plain", "plain", "recipe", "layers", "float"])
    if kind == "float":
        return dict(mode=_one_of(rng, ["mxfp4", "mxfp8", "nvfp4"]), group_size=None, bits=None)
    drawn = dict(mode="affine", group_size=_one_of(rng, GROUP_SIZES), bits=_one_of(rng, BITS))
    if kind == "recipe":
        drawn.update(recipe=_one_of(rng, RECIPES), group_size=_one_of(rng, (None, *GROUP_SIZES)))
    elif kind == "layers":  # 0: left as it is
        drawn["layer_bits"] = [int(bits) for bits in rng.choice((0, *BITS), 7 * NUM_LAYERS + 2)]
    return drawn


def _draw_scaling(rng: np.random.Generator) -> dict[str, object]:
    kind = _one_of(rng, ["linear", "llama3", "yarn", "yarn"])
    scaling = {_one_of(rng, ["rope_type", "type"]): kind, "factor": float(_one_of(rng, [1.0, 2.0, 4.0, 8.5, 32.0]))}
    if kind == "llama3":
        scaling.update(low_freq_factor=1.0, high_freq_factor=float(rng.integers(2, 6)),
                       original_max_position_embeddings=_one_of(rng, [16, 64, 8192]))
    if kind == "yarn":
        scaling.update(original_max_position_embeddings=_one_of(rng, [8, 64, 512, 32768]))
        if rng.random() < 0.4:
            scaling.update(beta_fast=_one_of(rng, [4, 16.0, 64]), beta_slow=_one_of(rng, [0.5, 1, 4]))
        if rng.random() < 0.4:
            scaling.update(mscale=_one_of(rng, [0.7, 1.0]), mscale_all_dim=_one_of(rng, [0, 0.7, 1.3]))
    return scaling


def _draw_windows(rng: np.random.Generator, config: dict[str, object]) -> list[int | None]:
    """Put a window into the config, in one of the ways its model type has; say which layers get it."""
    window, has_window = int(rng.integers(1, 50)), [bool(bit) for bit in rng.integers(0, 2, NUM_LAYERS)]
    config["sliding_window"] = window
    if config["model_type"] == "mistral" and rng.random() < 0.5:
        has_window = [True] * NUM_LAYERS
    elif config["model_type"].startswith("qwen") and rng.random() < 0.5:
        first = int(rng.integers(NUM_LAYERS + 1))
        config.update(use_sliding_window=True, max_window_layers=first)
        has_window = [layer >= first for layer in range(NUM_LAYERS)]
    else:
        config["layer_types"] = [SLIDING if is_sliding else FULL for is_sliding in has_window]
        if config["model_type"].startswith("qwen") and any(has_window):
            config["use_sliding_window"] = True
    return [window if is_sliding else None for is_sliding in has_window]


def _draw_prompts(rng: np.random.Generator) -> list[list[int]]:
    """A few, some of which begin alike."""
    start = rng.integers(0, 256, int(rng.integers(1, 40))).tolist()
    prompts = []
    for _ in range(int(rng.integers(1, 6))):
        own = rng.integers(0, 256, int(rng.integers(1, 40))).tolist()
        prompts.append(own if rng.random() < 0.6 else start[:int(rng.integers(len(start) + 1))] + own)
    return prompts


# ---- writing and decoding


def write_case(folder: Path, drawn: Case, seed: int) -> Path:
    """The checkpoint as files: in floats, and then as mlx-lm quantises it."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model, quantize_model
    dtype = getattr(mx, drawn.dtype)
    floats = {name: array.astype(dtype) for name, array in random_weights(drawn.config, seed).items()}
    config = drawn.config
    mx.save_safetensors(str(folder / "model.safetensors"), floats)
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    if drawn.quantised is not None:
        model = load_model(folder, model_config={"layer_types": None})[0]
        options = dict(drawn.quantised)
        predicate = _predicate(model, options.pop("recipe", None), options.pop("layer_bits", None), options)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it did
            model, config = quantize_model(model, config, options["group_size"], options["bits"], options["mode"],
                                           quant_predicate=predicate)
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def _predicate(model: nn.Module, recipe: str | None, layer_bits: list[int] | None, options: dict[str, object]):
    """What each layer has of its own; None: nothing."""
    if recipe is not None:
        from mlx_lm.convert import mixed_quant_predicate_builder
        return mixed_quant_predicate_builder(recipe, model, options["group_size"])
    if layer_bits is None:
        return None
    rest = iter(layer_bits)

    def predicate(path: str, module: nn.Module) -> bool | dict[str, object]:
        bits = next(rest)
        return {"bits": bits, "group_size": options["group_size"]} if bits else False

    return predicate


@contextlib.contextmanager
def _device_of(drawn: Case) -> Iterator[None]:
    """As if on a GPU, or on a device that multiplies packed weights faster, if the case says so."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(patch.object(weights, "dequantise_is_faster", lambda: not drawn.stays_packed))
        if drawn.as_on_gpu:
            patches.enter_context(patch.object(tuning, "is_cpu", lambda: False))
        yield


def decode(folder: Path, drawn: Case) -> list[list[int]]:
    with _device_of(drawn):
        llm = LLM(folder, **drawn.settings)
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
        return [output.token_ids for output in llm.generate(drawn.prompts, params)]


# ---- the oracle


def float32_oracle(folder: Path) -> nn.Module:
    """mlx-lm's network with all parameters in float32, packed ones expanded: what any other precision rounds."""
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model
    # It refuses layer types of which none is full; windows are ours to give, below.
    model = load_model(folder, model_config={"layer_types": None})[0]

    def in_floats(module: nn.Module) -> nn.Module:
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

    model.update_modules(tree_map(in_floats, model.leaf_modules(), is_leaf=nn.Module.is_module))
    model.set_dtype(mx.float32)
    return model


def oracle_logits(model: nn.Module, token_ids: Sequence[int], windows: Sequence[int | None]) -> mx.array:
    """Logits at every position [num_tokens, vocab_size], by mlx-lm's layers, each with the mask of its window."""
    from mlx_lm.models.base import create_causal_mask
    body = model.model
    x = body.embed_tokens(mx.array([token_ids]))
    for layer, window in zip(body.layers, windows, strict=True):
        x = layer(x, create_causal_mask(len(token_ids), window_size=window), None)
    x = body.norm(x)
    return (body.embed_tokens.as_linear(x) if model.args.tie_word_embeddings else model.lm_head(x))[0]
