"""What additional query tokens per request cost, as when drafts are verified: steps with one token and with several.

The cost is CPU time, which does not depend on how busy the machine is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from measure.parts import CONTEXT, repeated_step
from mini_vllm.backend import mx
from mini_vllm.models.loader import load

NUM_REQUESTS = 8
NUM_QUERIES = (1, 2, 4, 8)
#: The number of query tokens in the summary line.
DRAFTED = 4
STEPS, ROUNDS = 20, 7


def print_queries(model: str, rounds: int = ROUNDS) -> None:
    loaded = load(model)
    print(f"{model}: a step of {NUM_REQUESTS} requests at contexts of {CONTEXT}; the logits of all tokens are computed")
    print(f"{'query tokens':<14} {'CPU time, ms':>13} {'to one token':>13}")
    steps = [repeated_step(loaded, NUM_REQUESTS, num_queries) for num_queries in NUM_QUERIES]
    taken = [[cpu_ms(step) for step in steps] for _ in range(rounds + 1)][1:]  # the first round starts threads
    in_short = ""
    for nth, num_queries in enumerate(NUM_QUERIES):
        ratio = statistics.median(of_round[nth] / of_round[0] for of_round in taken)
        print(f"{f'{NUM_REQUESTS} × {num_queries}':<14} {statistics.median(each[nth] for each in taken):>13.2f} "
              f"{ratio:>12.2f}x")
        if num_queries == DRAFTED:
            in_short = (f"In short: if {NUM_REQUESTS} requests compute {num_queries} query tokens each, as they do to "
                        f"verify drafts, the step takes {ratio:.2f} times the CPU time of a step with one token each")
    print(in_short)


def cpu_ms(step: Callable[[], mx.array]) -> float:
    """Return the average CPU time of one step in milliseconds."""
    start_s = time.process_time()
    for _ in range(STEPS):
        mx.eval(step())
    return (time.process_time() - start_s) / STEPS * 1e3
