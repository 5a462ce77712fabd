"""The exercises of notebook 05: computed tokens, slots, and the tokens that filters keep."""

from __future__ import annotations

import math

from course.exercises import Exercise
from course.exercises.served import num_computed, steps_of

BLOCK_SIZE = 8


def tokens_computed() -> int:
    """Count the tokens computed for a 40-token prompt with 16 cached tokens and 12 output tokens."""
    shared = list(range(100, 116))
    return num_computed(steps_of([[*shared, 500], [*shared, *range(200, 224)]], max_tokens=12, block_size=BLOCK_SIZE,
                                 num_blocks=20))


def slot() -> int:
    """Compute the slot of the token at position 19 of a request whose block table is [3, 9, 5]."""
    import numpy as np

    from mini_vllm.attention import slot_mapping
    return int(slot_mapping([[3, 9, 5]], np.array([19]), [0, 1], BLOCK_SIZE)[0])


def tokens_left() -> int:
    """Count the tokens that temperature 0.5, top-p 0.95 and min-p 0.1 keep of the weights 8, 4, 2, 1, 1."""
    import numpy as np

    from mini_vllm.backend import mx
    from mini_vllm.logit_rules import SamplerRow, make_key
    from mini_vllm.request import SamplingParams
    from mini_vllm.sampler import filter_scores
    params = SamplingParams(temperature=0.5, top_p=0.95, min_p=0.1)
    logits = mx.array([[math.log(weight) for weight in (8, 4, 2, 1, 1)]])
    scores = filter_scores(logits, [SamplerRow(params, [], [], (), make_key(0))])
    return int(np.isfinite(np.array(scores)).sum())


EXERCISES = (
    Exercise(
        answer=35, proof=tokens_computed,
        why="24 tokens of the prompt are computed, and then 11 tokens of the output. The twelfth output token is "
            "generated but never computed, because no token follows it.",
        hint="Count the prompt tokens that are not in the cache, and then the output tokens that go through the model.",
        slips={36: "The last generated token is never computed: no token follows it.",
               51: "16 of the 40 prompt tokens are found in the cache, so they are not computed.",
               52: "16 tokens are found in the cache, and the last generated token is never computed.",
               24: "24 tokens of the prompt are computed. The output tokens are also computed, all except the last."}),
    Exercise(
        answer=43, proof=slot,
        why="19 = 2 × 8 + 3: the token is in the third block of the table, which is block 5, at offset 3. Its slot is "
            "5 × 8 + 3 = 43.",
        hint="position // 8 is the index in the block table, and position % 8 is the offset in that block.",
        slips={19: "19 is the position in the request. The block table says where in the pool that position is.",
               75: "75 is 9 × 8 + 3. But the entries of a table are counted from 0, and 19 // 8 is 2.",
               44: "Offsets in a block are counted from 0: 19 % 8 is 3."}),
    Exercise(
        answer=2, proof=tokens_left,
        why="Temperature 0.5 squares the weights: 64, 16, 4, 1, 1. Top-p 0.95 keeps 64, 16 and 4. Min-p 0.1 then "
            "removes the 4, because it is less than 0.1 × 64 = 6.4.",
        hint="Use this order: divide the logits by the temperature, apply top-p, and then apply min-p to the rest.",
        slips={5: "5 tokens would be left without the temperature. But it is applied first, and it squares the "
                  "weights.",
               3: "Top-p keeps 3 tokens. Then min-p requires a weight of at least 0.1 × 64 = 6.4."}),
)
