"""The steps that both runners compute in a comparison: one request, then eight, then sixteen, on a common prompt.

A round stands alone: it begins with prompts of its own, in blocks of its own, and reads nothing that an earlier round
wrote. Every token is drawn at random, also those that a request "generates", so no runner can begin a step before the
step is handed to it. Every step wants logits, also the first chunk of the prompt, so no runner can put a step off and
compute it together with the next one.
"""

from __future__ import annotations

import random

BLOCK_SIZE, NUM_BLOCKS = 16, 200
#: The common prompt fills this many blocks. It is computed in two chunks.
MIN_PROMPT_BLOCKS, MAX_PROMPT_BLOCKS = 10, 13
#: The tokens of a request's own part of the prompt.
MIN_SUFFIX, MAX_SUFFIX = 4, 12
#: How many requests decode together, and for how many steps. Those that join compute their own part one step earlier.
PHASES = ((1, 5), (8, 5), (16, 8))

#: Tokens, block table, length of the context, whether logits are needed: the fields of a RequestStep, as data.
RequestData = tuple[tuple[int, ...], tuple[int, ...], int, bool]
StepData = tuple[RequestData, ...]


def make_round(rng: random.Random, vocab_size: int) -> list[StepData]:
    """Return the steps of one round. Requests that compute one token come first in each step."""
    free = rng.sample(range(1, NUM_BLOCKS), NUM_BLOCKS - 1)  # block 0 is the null block
    num_shared = rng.randint(MIN_PROMPT_BLOCKS, MAX_PROMPT_BLOCKS)
    shared = tuple(free.pop() for _ in range(num_shared))
    num_requests = max(size for size, _ in PHASES)
    tables = [(*shared, free.pop(), free.pop()) for _ in range(num_requests)]
    lengths = [num_shared * BLOCK_SIZE] * num_requests

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    def compute(request: int, count: int) -> RequestData:
        lengths[request] += count
        return tokens(count), tables[request], lengths[request], True

    half = num_shared // 2 * BLOCK_SIZE
    steps: list[StepData] = [((tokens(half), shared, half, True),),
                             ((tokens(lengths[0] - half), shared, lengths[0], True),)]
    num_running = 0
    for size, num_steps in PHASES:
        joining = range(num_running, size)
        steps.append((*(compute(request, 1) for request in range(num_running)),
                      *(compute(request, rng.randint(MIN_SUFFIX, MAX_SUFFIX)) for request in joining)))
        steps += [tuple(compute(request, 1) for request in range(size)) for _ in range(num_steps)]
        num_running = size
    return steps
