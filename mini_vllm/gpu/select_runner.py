"""Decides whether an engine uses the kernels, and if not, why.

``MINI_VLLM_KERNELS`` is 0 for no, and 1 for yes if they agree with the plain operations. Without it: yes on CUDA; no on
Metal, where they have not been tested yet. ``mini-vllm doctor`` tests them and says what to set.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import cache

from mini_vllm.backend import mlx_build, mx, nn
from mini_vllm.fast import tuning
from mini_vllm.fast.attention import FastAttention
from mini_vllm.gpu.kernel_checks import find_fault
from mini_vllm.gpu.kernels.paged import can_attend
from mini_vllm.gpu.runner import GpuRunner
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.network import Model
from mini_vllm.models.random_model import RANDOM_MODELS
from mini_vllm.native.runner import NativeRunner
from mini_vllm.native.runner import why_not as why_not_native
from mini_vllm.parts import ModelRunnerPart

SWITCH = "MINI_VLLM_KERNELS"
SWITCHED_OFF = f"switched off by {SWITCH}=0"
NOT_SEEN_YET = f"not tested on Metal yet: {SWITCH}=1 switches them on, `mini-vllm doctor` tests them"
NO_GPU = "MLX computes on a CPU"
COMPILING = "mini-vllm: compiling and testing the GPU kernels; this takes a while …"
#: One of RANDOM_MODELS.
USUAL_SHAPE = "qwen3-0.6b"


def runner_class(wanted: type[ModelRunnerPart], attention: object, model: Model, block_size: int,
                 native: bool | None = None) -> type[ModelRunnerPart]:
    """Return the class of an engine's runner.

    If no part of it was replaced, it is the GPU's runner, or on a CPU the native one if ``native`` or the environment
    switches it on. The GPU's kernels must agree with the plain operations; if they do not, that is reported once.
    """
    if wanted is not ModelRunner or attention is not FastAttention:
        return wanted
    if why_not_here():
        is_usual = type(model.model.embed_tokens) in (nn.Embedding, nn.QuantizedEmbedding)  # a test may replace it
        is_native = is_usual and uses_native(wanted, attention, model.config, block_size, native)
        return NativeRunner if is_native else ModelRunner
    fault = fault_of(_shape_of(model.config), block_size, model.model.norm.weight.dtype)
    return ModelRunner if fault else GpuRunner


def uses_native(wanted: object, attention: object, config: ModelConfig, block_size: int, native: bool | None) -> bool:
    """Check whether the native step computes such a model for an engine on a CPU."""
    is_plain = wanted is not ModelRunner or attention is not FastAttention or tuning.has_gpu()
    return not is_plain and not why_not_native(config, block_size, native)


def why_not_here() -> str:
    """Return why no engine of this process uses the kernels; empty if they may be used."""
    asked_for = os.environ.get(SWITCH, "").strip()
    if asked_for not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} is {asked_for!r}, must be 0 or 1")
    if not tuning.has_gpu():
        return NO_GPU
    if asked_for == "0":
        return SWITCHED_OFF
    return NOT_SEEN_YET if mlx_build() == "metal" and asked_for != "1" else ""


@cache
def fault_of(config: ModelConfig, block_size: int, dtype: mx.Dtype) -> str:
    """Return what is wrong with the kernels for such a model. They are checked, and the result reported, once."""
    if not can_attend(config.head_dim, dtype) or config.hidden_size % 8:
        fault = (f"they do not support heads of {config.head_dim} numbers of type {dtype} in a model with hidden_size "
                 f"{config.hidden_size}")
    else:
        if sys.stderr.isatty():  # a person is waiting
            print(COMPILING, file=sys.stderr, flush=True)
        fault = find_fault(config, block_size, dtype)
    if fault:
        print(f"mini-vllm: the GPU kernels are not used: {fault}. Continuing without them, at lower speed.",
              file=sys.stderr, flush=True)
    return fault


def try_kernels() -> tuple[str, str]:
    """Try the kernels on a model of a typical shape, for ``doctor``.

    Return the result, and what to do to use them; both are empty if there is no GPU.
    """
    why_not = why_not_here()
    if why_not == NO_GPU:
        return "", ""
    fault = find_fault(ModelConfig.from_dict(RANDOM_MODELS[USUAL_SHAPE]), DEFAULT_BLOCK_SIZE, mx.bfloat16)
    if fault:
        return f"do not use them: {fault}", ""
    if why_not:
        return "they agree with the simple attention, but are switched off", f"to switch them on: export {SWITCH}=1"
    return "they agree with the simple attention, and are used", ""


def _shape_of(config: ModelConfig) -> ModelConfig:
    """Return a config that is equal for equal shapes: other fields do not matter to the kernels, and may not be
    hashable."""
    return replace(config, rope_scaling=None, sliding_layers=tuple(config.sliding_layers))
