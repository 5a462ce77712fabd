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
from fuzz.config_cases import draw_config
from mini_vllm.backend import mx
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.config import LoadError, ModelConfig
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import write_byte_tokenizer

WORKER = Path(__file__).parent / "transformers_worker.py"
NUM_TOKENS, BLOCK_SIZE = 90, 8
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
