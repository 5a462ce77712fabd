"""What more query tokens per request cost: a step in which each of some requests computes one token, or a few, as when
drafts are verified. CPU time, which does not depend on how busy the machine is."""

from __future__ import annotations

import statistics
import time

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.loader import LoadedModel, load

NUM_REQUESTS, CONTEXT = 8, 256
NUM_QUERIES = (1, 2, 4, 8)
STEPS, ROUNDS = 20, 7


def print_queries(model: str, rounds: int = ROUNDS) -> None:
    loaded = load(model)
    print(f"{model}: a step of {NUM_REQUESTS} requests at contexts of {CONTEXT}; the logits of all tokens are computed")
    print(f"{'query tokens':<14} {'CPU time, ms':>13} {'to one token':>13}")
    steps = [Steps(loaded, num_queries) for num_queries in NUM_QUERIES]
    taken = [[each.cpu_ms() for each in steps] for _ in range(rounds + 1)][1:]  # the first starts threads
    for nth, num_queries in enumerate(NUM_QUERIES):
        ratio = statistics.median(of_round[nth] / of_round[0] for of_round in taken)
        print(f"{f'{NUM_REQUESTS} × {num_queries}':<14} {statistics.median(each[nth] for each in taken):>13.2f} "
              f"{ratio:>12.2f}x")


class Steps:
    """One step again and again: the same tokens, written to the same slots."""

    def __init__(self, loaded: LoadedModel, num_queries: int) -> None:
        num_blocks = -(-CONTEXT // DEFAULT_BLOCK_SIZE)
        self._runner = ModelRunner(loaded.model, NUM_REQUESTS * num_blocks + 1, DEFAULT_BLOCK_SIZE)
        rng = np.random.default_rng(0)
        tables = (rng.permutation(NUM_REQUESTS * num_blocks) + 1).reshape(NUM_REQUESTS, -1).tolist()
        self._requests = [RequestStep(rng.integers(0, loaded.config.vocab_size, num_queries).tolist(), table, CONTEXT,
                                      needs_logits=True, needs_all_logits=num_queries > 1) for table in tables]

    def cpu_ms(self) -> float:
        """Of one step, on average."""
        start_s = time.process_time()
        for _ in range(STEPS):
            mx.eval(self._runner.step(self._requests))
        return (time.process_time() - start_s) / STEPS * 1e3
