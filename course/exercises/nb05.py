"""The exercises of the fifth notebook: tokens that are computed, slots, and what filters leave."""

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
    """Where the token at position 19 of a request is written, whose block table is [3, 9, 5]."""
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
        why="24 tokens of the prompt are computed, then 11 of the output. The twelfth is said, and nobody asks what "
            "follows it.",
        hint="Count the prompt tokens that are not in the cache, then the output tokens that are fed in again.",
        slips={36: "The last token that is said is never computed: nobody asks what comes after it.",
               51: "16 of the 40 are found in the cache: nothing is computed for them.",
               52: "16 are found in the cache, and the last token that is said is never computed.",
               24: "These are the tokens of the prompt. The output's are computed too, all but the last."}),
    Exercise(
        answer=43, proof=slot,
        why="19 = 2 × 8 + 3: the third block of the table, which is block 5, and there the place 3. 5 × 8 + 3 = 43.",
        hint="position // 8 says which entry of the table, position % 8 which place in that block.",
        slips={19: "That is the position in the request. The table says where that lies in the pool.",
               75: "9 × 8 + 3: the entries of a table are counted from 0, and 19 // 8 is 2.",
               44: "Places in a block are counted from 0: 19 % 8 is 3."}),
    Exercise(
        answer=2, proof=tokens_left,
        why="Temperature 0.5 squares the weights: 64, 16, 4, 1, 1. Top-p 0.95 leaves 64, 16 and 4, and min-p 0.1 drops "
            "the 4, because it is below 6.4.",
        hint="In this order: divide the logits by the temperature, then top-p, then min-p of what is left.",
        slips={5: "That is without the temperature. It comes first: a logit divided by 0.5 is a weight squared.",
               3: "That is what top-p leaves. Then min-p asks for a weight of 0.1 × 64 = 6.4 at least."}),
)
