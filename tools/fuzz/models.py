"""Random small networks, loaded and decoded by the engine, against mlx-lm on the same files.

A case is a realistic checkpoint (any of the architectures, and any shape, rope scaling, window and quantisation that we
support, in any float type) and a few greedy requests to an engine with small blocks, small chunks and sometimes too few
blocks. Every token must be the one with the highest logit in mlx-lm's network, computed in float32, except for ties.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from fuzz.model_cases import NUM_TOKENS, Case, Quantisation, draw_case
from fuzz.oracle import float32_oracle, load_without_windows, oracle_logits
from mini_vllm.backend import mx, nn
from mini_vllm.fast import tuning
from mini_vllm.llm import LLM
from mini_vllm.models import weights
from mini_vllm.models.random_model import random_weights, write_byte_tokenizer
from mini_vllm.request import SamplingParams

#: Two logits closer than this may swap, depending on the order in which numbers are added.
TIE = 1e-4

Logits = npt.NDArray[np.float32]
#: The path of a layer and the layer → its own options. False: not quantised. True: the same as the others.
Predicate = Callable[[str, nn.Module], "bool | dict[str, object]"]


def run_case(seed: int, case: int) -> dict[str, int]:
    """Draw a case, decode it and compare. Raise AssertionError that says what was drawn and which token differs."""
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
            try:
                counts["ties"] += count_ties(index, logits, output)
            except AssertionError as error:
                raise AssertionError(f"case {case} of seed {seed}: {error}\n{drawn}") from None
            counts["tokens"] += len(output)
    return counts


def count_ties(index: int, logits: Logits, output: list[int]) -> int:
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
        parameters = model.parameters()
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(parameters)))
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def _predicate(model: nn.Module, options: Quantisation) -> Predicate | None:
    """Return the quantisation options of each layer, or None if no layer has its own."""
    if "recipe" in options:
        from mlx_lm.convert import mixed_quant_predicate_builder
        # mlx-lm takes None as its default group size, but its type hints do not say so.
        recipe = mixed_quant_predicate_builder(options["recipe"], model, cast(int, options["group_size"]))
        return cast(Predicate, recipe)
    if "layer_bits" not in options:
        return None
    rest = iter(options["layer_bits"])

    def predicate(path: str, module: nn.Module) -> bool | dict[str, object]:
        bits = next(rest)
        return {"bits": bits, "group_size": options["group_size"]} if bits else False

    return predicate


@contextlib.contextmanager
def _device_of(drawn: Case) -> Iterator[None]:
    """Simulate a GPU, or a device that multiplies packed weights faster, if the case says so."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(patch.object(weights, "is_cpu", lambda: not drawn.stays_packed))
        if drawn.as_on_gpu:
            patches.enter_context(patch.object(tuning, "is_cpu", lambda: False))
        yield


def decode(folder: Path, drawn: Case) -> list[list[int]]:
    with _device_of(drawn):
        llm = LLM(folder, **drawn.settings)
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
        return [output.token_ids for output in llm.generate(drawn.prompts, params)]
