"""The same seed gives the same tokens: requests are run one at a time, and all at once.

A batch computes the same logits as a request alone except for rounding, so a draw may occasionally differ. A request is
compared up to its first difference; after that its text is a different one.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.benchmark.workloads import Drawing
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.catalogue import cached_model
from mini_vllm.models.loader import LoadedModel, load

NUM_REQUESTS = 64


def generate(loaded: LoadedModel, drawing: Drawing, max_num_seqs: int, num_tokens: int, num_requests: int
             ) -> list[list[int]]:
    """Generate the token ids of all requests, ``max_num_seqs`` at once."""
    engine = LLMEngine(EngineConfig(max_num_seqs=max_num_seqs), loaded=loaded)
    rng = np.random.default_rng(0)
    for seed in range(num_requests):
        prompt = rng.integers(1, loaded.tokenizer.vocab_size, rng.integers(4, 60)).tolist()
        engine.add_request(prompt, drawing.params(num_tokens, seed), str(seed))
    results: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        results |= {output.request_id: output.token_ids for output in engine.step()}
    return [results[str(seed)] for seed in range(num_requests)]


def print_seeds(names: list[str] | None, num_tokens: int, drawing: Drawing, num_requests: int = NUM_REQUESTS) -> None:
    names = names or ["tiny-tales", *(["smollm2"] if cached_model("smollm2") else [])]
    print(f"{num_requests} requests of {num_tokens} tokens, {drawing}, drawn one at a time and all at once")
    in_short = []
    for name in names:
        loaded = load(name)
        alone, together = (generate(loaded, drawing, seats, num_tokens, num_requests) for seats in (1, num_requests))
        same = [next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), num_tokens)
                for a, b in zip(alone, together)]
        num_changed = sum(length < num_tokens for length in same)
        num_draws = sum(min(length + 1, num_tokens) for length in same)
        print(f"{name:<12} {num_changed} of {num_draws:,} draws changed; "
              f"{num_requests - num_changed} of {num_requests} texts are the same")
        in_short.append(f"{num_changed} of {num_draws:,} draws changed on `{name}`")
    print(f"In short: {num_requests} requests of {num_tokens} tokens, drawn one at a time and all at once: "
          + ", ".join(in_short))
