"""The exercises of the tour: what a request holds, what samples copy, what a hit saves."""

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
        why="The 29th token ends the request and never goes through the model, so K/V of 20 + 28 = 48 tokens is kept: "
            "six full blocks.",
        hint="Count the tokens that go through the model, of the prompt and of the output, and fill blocks of 8.",
        slips={7: "49 tokens would need 7 blocks, but the last token does not go through the model: it has no K/V.",
               3: "3 blocks hold the prompt. The request needs one more slot for every further token.",
               4: "4 blocks hold the new tokens alone. The prompt stays in memory.",
               48: "48 tokens have K/V. How many blocks of 8 is that?"}),
    Exercise(
        answer=(3, 0), proof=blocks_copied,
        why="20 tokens leave the third block half full. Four samples want to write into it, and the last one may keep "
            "the original. 24 tokens fill three blocks: the next token of each sample begins a new block, and no "
            "shared block is written.",
        hint="A copy is made when a sample is about to write into a block that other samples use. Which blocks are "
             "written after the prompt?",
        slips={(4, 0): "One of the four does not copy: when the other three have their copies, it is the only owner.",
               (3, 3): "24 is three whole blocks. Where does the first new token of a sample go?",
               (9, 9): "The full blocks are never written again, so they stay shared.",
               (2, 0): "2 copies are enough for three samples; here there are four."}),
    Exercise(
        answer=2, proof=first_token_in,
        why="21 tokens are found: 16 in whole blocks and 5 in a block that is copied. 19 are left: 10 in the first "
            "step and 9 in the second, which gives the first token.",
        hint="How many tokens are found, how many are left to compute, and how many of them may a step compute?",
        slips={4: "40 tokens would take 4 steps, but 21 of them are found.",
               3: "16 found tokens would leave 24, three steps. But the matching tokens inside the third block are "
                  "found too.",
               1: "19 tokens are left to compute, and a step computes at most 10."}),
)
