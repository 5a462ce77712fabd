"""The exercises of the tour: blocks of a request, copies by samples, tokens that a cache hit saves."""

from __future__ import annotations

from course.exercises import Exercise
from course.exercises.served import steps_of

SIZES = {"block_size": 8, "num_blocks": 65, "max_num_seqs": 4}


def most_blocks_held() -> int:
    steps = steps_of([range(100, 120)], max_tokens=29, **SIZES)
    return max(len(table) for step in steps for table in step["tables"].values())


def blocks_copied() -> list[int]:
    runs = [steps_of([range(100, 100 + num_tokens)], max_tokens=4, n=4, **SIZES) for num_tokens in (20, 24)]
    return [sum(len(step["copies"]) for step in steps) for steps in runs]


def first_token_in() -> int:
    served, comes = range(100, 140), [*range(100, 121), *range(200, 219)]
    steps = steps_of([served, comes], max_tokens=1, max_num_batched_tokens=10, **SIZES)
    return next(number for number, step in enumerate(steps, 1) if step["sampled"])


EXERCISES = (
    Exercise(
        answer=6, proof=most_blocks_held,
        why="The 29th token ends the request and never goes through the model. So the cache holds K/V of 20 + 28 = 48 "
            "tokens: six full blocks.",
        hint="Count the prompt tokens and output tokens that go through the model, and divide them into blocks of 8.",
        slips={7: "49 tokens would need 7 blocks, but the last token does not go through the model, so it has no K/V.",
               3: "3 blocks hold the prompt. The generated tokens need more slots.",
               4: "4 blocks hold the generated tokens alone. The K/V of the prompt stays in memory.",
               48: "48 tokens have K/V. How many blocks of 8 is that?"}),
    Exercise(
        answer=(3, 0), proof=blocks_copied,
        why="20 tokens leave the third block half full. All four samples write into it: three make a copy first, and "
            "the last one keeps the original. 24 tokens fill three blocks. The next token of each sample begins a new "
            "block, so no sample writes into a shared block.",
        hint="A copy is made when a sample is about to write into a block that other samples also use. Into which "
             "blocks do the samples write after the prompt?",
        slips={(4, 0): "One of the four samples does not copy: after the other three have made their copies, it is the "
                       "only owner.",
               (3, 3): "24 tokens fill three whole blocks. Into which block does a sample write its first new token?",
               (9, 9): "No sample writes into the full blocks again, so they stay shared.",
               (2, 0): "2 copies would be enough for three samples, but there are four."}),
    Exercise(
        answer=2, proof=first_token_in,
        why="21 tokens are found: 16 in whole blocks, and 5 in a third block, which is copied. 19 tokens are left: the "
            "first step computes 10 and the second computes 9. The second step gives the first token.",
        hint="How many tokens are found, how many are left to compute, and how many of these may one step compute?",
        slips={4: "40 tokens would take 4 steps, but 21 of them are found in the cache.",
               3: "If 16 tokens were found, 24 would be left, which takes three steps. But the first 5 tokens of the "
                  "third block also match.",
               1: "19 tokens are left to compute, and a step computes at most 10."}),
)
