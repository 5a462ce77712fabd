"""Random configs, loaded by the engine and by transformers 5 in another interpreter: the logits must be the same.

The weights are random, in the shapes that transformers gives them. What the engine does not load it must refuse by
name; the refusals are counted and listed.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz import models
from fuzz.__main__ import REFUSED
from mini_vllm.backend import mx
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.config import DEFAULTS, FULL, SLIDING, LoadError, ModelConfig
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import write_byte_tokenizer

WORKER = Path(__file__).parent / "transformers_worker.py"
NUM_TOKENS, BLOCK_SIZE = 90, 8
LENGTHS = (8, 16, 32, 64, 512)
#: Differences beyond this share of the largest logit are no rounding.
TOLERANCE = 1e-3
EQUAL, BOTH = "with equal logits", "refused by both"
ENGINE_ONLY, TRANSFORMERS_ONLY = "refused by the engine only", "refused by transformers only"


class Transformers:
    """The other interpreter: started once, asked for each checkpoint."""

    def __init__(self, python: str) -> None:
        """Raise ValueError if ``python`` cannot import what the worker needs."""
        try:
            tried = subprocess.run([python, "-c", "import torch, transformers; print(transformers.__version__)"],
                                   capture_output=True, text=True)
        except OSError as error:
            raise ValueError(f"--transformers {python}: {error}") from None
        if tried.returncode or not tried.stdout.startswith("5."):
            found = (tried.stdout or tried.stderr).strip().rpartition("\n")[2]
            raise ValueError(f"--transformers {python}: must have torch and transformers 5: {found}")
        self._process = subprocess.Popen([python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)

    def ask(self, **question: object) -> str:
        """Write weights and logits into a folder with a config. Return the error, or an empty text."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the interpreter of --transformers ended with status {process.wait()}")
        return str(json.loads(line))


def run_both(peer: Transformers, seed: int, case: int) -> dict[str, int]:
    return {**models.run_case(seed, case), **compare_config(peer, seed, case)}


def compare_config(peer: Transformers, seed: int, case: int) -> dict[str, int]:
    """Draw a config and compare. Raise AssertionError with the config if the logits differ."""
    rng = random.Random(f"{seed}/{case}")
    config = draw_config(rng)
    token_ids = [rng.randrange(256) for _ in range(NUM_TOKENS)]
    counts = {"configs": 1, **dict.fromkeys((EQUAL, BOTH, ENGINE_ONLY, TRANSFORMERS_ONLY), 0)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        write_byte_tokenizer(folder)
        error = peer.ask(folder=name, token_ids=token_ids, seed=case, has_own_head=rng.random() < 0.05)
        try:
            got, positions = engine_logits(folder, token_ids, rng) if not error else _only_read(config)
        except (LoadError, ValueError) as refused:
            message = _without_values(str(refused).replace(f"{name}/config.json: ", ""))
            return {**counts, (BOTH if error else ENGINE_ONLY): 1, f"{REFUSED}{message}": 1}
        if error:
            return {**counts, TRANSFORMERS_ONLY: 1, f"{REFUSED}(transformers) {_without_values(error)}": 1}
        expected = np.load(folder / "logits.npy")
    difference = np.abs(got - expected[positions]).max()
    if not difference <= TOLERANCE * np.abs(expected).max():
        raise AssertionError(f"case {case} of seed {seed}: logits differ from transformers' by {difference:.4f}, the "
                             f"largest is {np.abs(expected).max():.4f}\n{json.dumps(config)}")
    return {**counts, EQUAL: 1}


def engine_logits(folder: Path, token_ids: Sequence[int],
                  rng: random.Random) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Return the logits after each of a few pieces of the text, and the positions of these tokens."""
    runner = ModelRunner(load(folder).model, num_blocks=NUM_TOKENS, block_size=BLOCK_SIZE)
    ends = sorted({*rng.sample(range(1, NUM_TOKENS), 4), NUM_TOKENS})
    table, rows = list(range(1, -(-NUM_TOKENS // BLOCK_SIZE) + 1)), []
    for start, end in zip([0, *ends], ends):
        rows.append(runner.step([RequestStep(token_ids[start:end], table, end, True)])[0])
    return np.array(mx.stack(rows)), [end - 1 for end in ends]


def _only_read(config: dict[str, Any]) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Read a config that transformers refuses, so that there are no weights."""
    ModelConfig.from_dict(config)
    return np.empty(0, np.float32), []


def _without_values(message: str) -> str:
    """Shorten a message to what it has in common with others of its kind."""
    return re.sub(r"(?<!\w)\d[\d.e+]*", "#", " ".join(message.splitlines()[:2]))[:150]


# ---- random configs in Hugging Face's layout, with everything that configs say in more than one way or leave out


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
