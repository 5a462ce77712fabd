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
        why="The 29th token ends the request and never goes through the model, so K/V of 20 + 28 = 48 tokens are kept: "
            "six full blocks.",
        hint="Count the tokens that go through the model, of the prompt and of the output, and fill blocks of 8.",
        slips={7: "49 tokens would need 7 blocks, but the last one is not sent through the model: it has no K/V.",
               3: "That holds the prompt. The request grows by a slot with every further token.",
               4: "That holds the new tokens alone. The prompt stays, too.",
               48: "That many tokens have K/V. How many blocks of 8 is that?"}),
    Exercise(
        answer=(3, 0), proof=blocks_copied,
        why="20 tokens leave the third block half full, four samples want to write into it, and the last one may have "
            "the original. 24 tokens fill three blocks: everybody's next token begins a new one, and nothing shared is "
            "written.",
        hint="A copy is made when somebody is about to write into a block that others use. Which blocks are written "
             "into after the prompt?",
        slips={(4, 0): "One of the four need not copy: when the others have their copies, the block is its own.",
               (3, 3): "24 is three whole blocks. Where does the first new token of a sample go?",
               (9, 9): "The whole blocks are never written into again, so they stay shared.",
               (2, 0): "That is for three samples; here there are four."}),
    Exercise(
        answer=2, proof=first_token_in,
        why="21 tokens are found, 16 in whole blocks and 5 in a block that is copied. 19 are left: 10 in the first "
            "step, 9 in the second, which gives the first token.",
        hint="How many tokens are found, how many are left to compute, and how many of them may a step compute?",
        slips={4: "40 tokens would take 4 steps, but 21 of them are found.",
               3: "16 found tokens would leave 24, three steps. But what is the same inside the third block is found "
                  "as well.",
               1: "19 tokens are left to compute, and a step computes at most 10."}),
)
