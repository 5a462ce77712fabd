"""What ``EngineConfig.precision`` changes: logits, likeliest tokens and perplexity, compared with "exact".

The model writes the texts itself, at temperature 1. Each text is computed in chunks of 64 tokens, whose products AMX
multiplies where there is one, and its second half token by token, which reads keys and values as decoding does.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from mini_vllm.engine_config import EngineConfig
from mini_vllm.llm import LLM
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.network import Model
from mini_vllm.native.runner import EXACT, PRECISIONS, NativeRunner, may_use_tiles, why_not
from mini_vllm.request import SamplingParams

PROMPT = "Once upon a time there was a little girl who lived with her grandmother at the edge of the forest, and"
CHUNK, NUM_TEXTS, NUM_TOKENS = 64, 8, 300
Floats = npt.NDArray[np.float32]


def run(arguments: argparse.Namespace) -> None:
    """Print a table for each model."""
    num_texts, num_tokens = (1, 8) if arguments.quick else (NUM_TEXTS, NUM_TOKENS)
    for name in arguments.model:
        llm = LLM(name)
        model = llm.engine.loaded.model
        if problem := why_not(model.config, 32, None):
            raise ValueError(f"the step in C does not compute {name} here: {problem}")
        params = [SamplingParams(max_tokens=num_tokens, temperature=1, seed=seed, ignore_eos=True)
                  for seed in range(num_texts)]
        texts = [output.prompt_token_ids + output.token_ids for output in llm.generate([PROMPT] * num_texts, params)]
        exact = [_logits(model, text, EXACT) for text in texts]
        print(f"{name}: {num_texts} texts of {len(texts[0])} tokens; AMX {'is' if may_use_tiles() else 'is not'} used; "
              f"largest logit {max(float(np.abs(logits).max()) for logits in exact):.1f}")
        for precision in PRECISIONS:
            print(_row(precision, texts, exact, [_logits(model, text, precision) for text in texts]), flush=True)


def _logits(model: Model, text: list[int], precision: str) -> Floats:
    """Return the logits after each token of the text."""
    size = EngineConfig().block_size
    blocks = list(range(1, -(-len(text) // size) + 1))
    runner = NativeRunner(model, len(blocks) + 1, size, precision=precision)
    half = len(text) // 2
    starts = [*range(0, half, CHUNK), *range(half, len(text))]
    return np.concatenate([np.array(runner.step([RequestStep(text[start:end], blocks, end, True, True)]))
                           for start, end in zip(starts, [*starts[1:], len(text)])])


def _row(precision: str, texts: list[list[int]], exact: list[Floats], rounded: list[Floats]) -> str:
    differences = [np.abs(ours - true) for ours, true in zip(rounded, exact)]
    squares = np.mean([np.mean(difference ** 2) for difference in differences])
    gaps = []
    for ours, true in zip(rounded, exact):
        changed = np.flatnonzero(ours.argmax(axis=-1) != true.argmax(axis=-1))
        gaps += [float(true[row].max() - true[row, ours[row].argmax()]) for row in changed]
    return (f"  {precision:<13}: logits differ by {max(float(each.max()) for each in differences):.1e} at most, "
            f"{squares ** 0.5:.1e} rms; {len(gaps)} of {sum(map(len, texts))} likeliest tokens differ"
            f"{f' (largest gap {max(gaps):.1e})' if gaps else ''}; perplexity {_perplexity(texts, rounded):.6f}")


def _perplexity(texts: list[list[int]], logits: list[Floats]) -> float:
    losses = []
    for text, rows in zip(texts, logits):
        scores = rows[:-1].astype(np.float64)
        totals = np.log(np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1)) + scores.max(axis=-1)
        losses.append(totals - scores[np.arange(len(scores)), text[1:]])
    return float(np.exp(np.mean(np.concatenate(losses))))
