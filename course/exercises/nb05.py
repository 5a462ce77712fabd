"""The exercises of notebook 05: computed tokens, slots, and the tokens that filters leave."""

from __future__ import annotations

import math

from course.exercises import Exercise
from course.exercises.served import num_computed, steps_of

BLOCK_SIZE = 8


def tokens_computed() -> int:
    """A prompt of 40 tokens, 16 of them in the cache already, and 12 tokens of output."""
    shared = list(range(100, 116))
    return num_computed(steps_of([[*shared, 500], [*shared, *range(200, 224)]], max_tokens=12, block_size=BLOCK_SIZE,
                                 num_blocks=20))


def slot() -> int:
    """The slot of the token at position 19 of a request whose block table is [3, 9, 5]."""
    import numpy as np

    from mini_vllm.attention import slot_mapping
    return int(slot_mapping([[3, 9, 5]], np.array([19]), [0, 1], BLOCK_SIZE)[0])


def tokens_left() -> int:
    """Of five tokens with the weights 8, 4, 2, 1, 1: temperature 0.5, top-p 0.95, min-p 0.1."""
    import numpy as np

    from mini_vllm.backend import mx
    from mini_vllm.request import SamplingParams
    from mini_vllm.sampling.filters import filter_scores
    from mini_vllm.sampling.row import SamplerRow, make_key
    params = SamplingParams(temperature=0.5, top_p=0.95, min_p=0.1)
    logits = mx.array([[math.log(weight) for weight in (8, 4, 2, 1, 1)]])
    scores = filter_scores(logits, [SamplerRow(params, [], [], (), make_key(0))])
    return int(np.isfinite(np.array(scores)).sum())


EXERCISES = (
    Exercise(
        answer=35, proof=tokens_computed,
        why="24 tokens of the prompt are computed, then 11 of the output. The twelfth is generated, but no token "
            "follows it.",
        hint="Count the prompt tokens that are not in the cache, then the output tokens that go through the network.",
        slips={36: "The last generated token is never computed: no token follows it.",
               51: "16 of the 40 are found in the cache: nothing is computed for them.",
               52: "16 are found in the cache, and the last generated token is never computed.",
               24: "24 tokens of the prompt are computed. The output tokens are computed too, all except the last."}),
    Exercise(
        answer=43, proof=slot,
        why="19 = 2 × 8 + 3: the third block of the table, which is block 5, at offset 3. 5 × 8 + 3 = 43.",
        hint="position // 8 is the entry of the table, position % 8 the offset in that block.",
        slips={19: "19 is the position in the request. The table says where that is in the pool.",
               75: "75 is 9 × 8 + 3. The entries of a table are counted from 0, and 19 // 8 is 2.",
               44: "Offsets in a block are counted from 0: 19 % 8 is 3."}),
    Exercise(
        answer=2, proof=tokens_left,
        why="Temperature 0.5 squares the weights: 64, 16, 4, 1, 1. Top-p 0.95 leaves 64, 16 and 4, and min-p 0.1 drops "
            "the 4, because it is below 6.4.",
        hint="Use this order: divide the logits by the temperature, apply top-p, then min-p to the rest.",
        slips={5: "5 would be left without the temperature, which is applied first: it squares the weights.",
               3: "Top-p leaves 3. Then min-p requires a weight of at least 0.1 × 64 = 6.4."}),
)
