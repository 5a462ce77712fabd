"""The same seed gives the same tokens: requests are run one at a time, and all at once.

A batch computes the same logits as a request alone except for rounding, so a draw may occasionally differ. A request is
compared up to its first difference; after that its text is a different one.

The last line compares with inverse CDF sampling, which maps one random number to a token: how many draws change with
either method when random logits are changed as much as a batch rounds them.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.logit_rules import SamplerRow, make_key
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler

NUM_REQUESTS, NUM_TOKENS, TEMPERATURE = 64, 400, 0.8
#: The approximate difference between the logits of a batch and those of a request alone.
ROUNDING = 1e-6
NUM_ROUNDED, VOCAB_SIZE = 25_600, 4096

Floats = npt.NDArray[np.float32]


def run(arguments: argparse.Namespace) -> None:
    num_requests, num_tokens = (4, 8) if arguments.quick else (NUM_REQUESTS, NUM_TOKENS)
    print(f"{num_requests} requests of {num_tokens} tokens, temperature {TEMPERATURE}, drawn one at a time and all at "
          "once")
    in_short = []
    for name in arguments.model:
        loaded = load(name)
        alone, together = (generate(loaded, seats, num_tokens, num_requests) for seats in (1, num_requests))
        same = [next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), num_tokens)
                for a, b in zip(alone, together)]
        num_changed = sum(length < num_tokens for length in same)
        num_draws = sum(min(length + 1, num_tokens) for length in same)
        print(f"{name:<12} {num_changed} of {num_draws:,} draws changed; "
              f"{num_requests - num_changed} of {num_requests} texts are the same")
        in_short.append(f"{num_changed} of {num_draws:,} draws changed on `{name}`")
    num_rounded = 256 if arguments.quick else NUM_ROUNDED
    by_noise, by_line = count_changes(num_rounded)
    print(f"{num_rounded:,} draws with logits rounded again: {by_noise} changed by noise, {by_line} by inverse CDF")
    print(f"In short: {num_requests} requests of {num_tokens} tokens, drawn one at a time and all at once: "
          + ", ".join(in_short))


def generate(loaded: LoadedModel, max_num_seqs: int, num_tokens: int, num_requests: int) -> list[list[int]]:
    """Generate the token ids of all requests, ``max_num_seqs`` at once."""
    engine = LLMEngine(EngineConfig(max_num_seqs=max_num_seqs), loaded=loaded)
    rng = np.random.default_rng(0)
    for seed in range(num_requests):
        prompt = rng.integers(1, loaded.tokenizer.vocab_size, rng.integers(4, 60)).tolist()
        params = SamplingParams(max_tokens=num_tokens, temperature=TEMPERATURE, seed=seed, ignore_eos=True)
        engine.add_request(prompt, params, str(seed))
    results: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        results |= {output.request_id: output.token_ids for output in engine.step()}
    return [results[str(seed)] for seed in range(num_requests)]


def count_changes(num_draws: int) -> tuple[int, int]:
    """Count the draws that change when logits are rounded as in a batch: with our sampler, and by inverse CDF."""
    random, by_noise, by_line = np.random.default_rng(0), 0, 0
    for _ in range(0, num_draws, 256):
        logits = random.normal(scale=3.0, size=(256, VOCAB_SIZE)).astype(np.float32)
        rounded = logits + random.normal(scale=ROUNDING, size=logits.shape).astype(np.float32)
        rows = [SamplerRow(SamplingParams(temperature=TEMPERATURE), (), (), (), make_key(int(key)))
                for key in random.integers(2**40, size=256)]
        drawn = [Sampler().sample(mx.array(values), rows).token_ids for values in (logits, rounded)]
        by_noise += sum(one != other for one, other in zip(*drawn))
        uniform = random.random((256, 1)).astype(np.float32)
        places = [_inverse_cdf(values, uniform) for values in (logits, rounded)]
        by_line += int((places[0] != places[1]).sum())
    return by_noise, by_line


def _inverse_cdf(logits: Floats, uniform: Floats) -> npt.NDArray[np.int64]:
    """Return the tokens that numbers from 0 to 1 select by inverse CDF, in single precision."""
    weights = np.exp((logits - logits.max(axis=-1, keepdims=True)) / np.float32(TEMPERATURE))
    edges = np.cumsum(weights, axis=-1, dtype=np.float32)
    return np.asarray((edges <= uniform * edges[:, -1:]).sum(axis=-1))
