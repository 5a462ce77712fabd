"""The ratio of CPU times of two model runners: the reference's and another, in alternating runs on the same steps.

    round       0          1             2             3
    reference   ████       ████          ████          ████
    yours           ███        ███           ███           ███
                warm-up     ratio 1       ratio 2       ratio 3      the result is the median of the ratios

At home both run in this process. In the grader each has a sandbox, and the kernel tells the CPU time of its process:
all threads, from the end of the warm-up to the end of the last round. What a file computes while it is not its turn
counts, too. Every round has new random tokens, and every best token and its logit must be the reference's.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.faster_step.driver import Best, make_driver
from course.faster_step.rounds import BLOCK_SIZE, NUM_BLOCKS, StepData, make_round
from course.testing import measure

REFERENCE, REFERENCE_CLASS = "course.faster_step.reference", "ReferenceRunner"
#: Rounds after the warm-up: for a score, and where only the tokens matter.
NUM_ROUNDS, FEW_ROUNDS = 7, 2
#: A slow runner computes fewer rounds in the graded test, so that it does not reach the time limit: slowness costs no
#: points.
BUDGET_S = 6.0
#: By how much a logit may differ from the reference's; logits are up to about 25. Sums in another order differed by
#: 0.00001, keys and values of 16 bits by 0.004.
ATOL = 3e-4


class WrongTokens(AssertionError):
    """A runner's results differ from the reference's."""


@dataclass
class Side:
    """One runner of a comparison, and the clock of the process in which it runs."""

    best: Callable[[StepData], Sequence[Best]]
    cpu_s: Callable[[], float]
    #: Whether the process serves only this runner, so that all its CPU time counts.
    is_alone: bool
    #: The CPU time of each round.
    used_s: list[float] = field(default_factory=list)
    _counted_s: float = 0.0

    def play(self, steps: Sequence[StepData]) -> list[list[Best]]:
        """Compute the steps, and note the CPU time since this side's last round; if not alone, since now."""
        if not self.is_alone:
            self._counted_s = self.cpu_s()
        answers = [_copied(self.best(step)) for step in steps]
        now_s = self.cpu_s()
        self.used_s.append(now_s - self._counted_s)
        self._counted_s = now_s
        return answers


def race(sides: Sequence[Side], num_rounds: int, rng: random.Random, vocab_size: int, budget_s: float = math.inf
         ) -> list[list[float]]:
    """Let the sides play in turn, a warm-up and then ``num_rounds`` rounds. Return each side's ratio in each round.

    The first side is the reference: a ratio is its CPU time divided by the side's. There are no more rounds once a side
    has used more than ``budget_s`` after the warm-up. Raise WrongTokens if another side's results
    are not the reference's.
    """
    for number in range(1 + num_rounds):
        if number > 1 and max(sum(side.used_s[1:]) for side in sides) > budget_s:
            break
        steps = make_round(rng, vocab_size)
        expected, *others = [side.play(steps) for side in sides]
        for answers in others:
            check_answers(answers, expected, steps)
    reference = sides[0].used_s[1:]
    return [[one / max(other, 1e-9) for one, other in zip(reference, side.used_s[1:])] for side in sides]


def check_answers(answers: Sequence[Sequence[Any]], expected: Sequence[Sequence[Best]], steps: Sequence[StepData]
                  ) -> None:
    """Raise WrongTokens unless every row has the reference's best token and its logit.

    Where two tokens are equally good but for rounding, either is right.
    """
    for number, (rows, rows_expected, step) in enumerate(zip(answers, expected, steps)):
        call = f"step {number} of the comparison, with {_size_of(step)}"
        if len(rows) != len(rows_expected):
            raise WrongTokens(f"{call}, gave {len(rows)} rows of logits, expected {len(rows_expected)}: one per "
                              "request that needs logits")
        for row, (got, (token, logit, margin)) in enumerate(zip(rows, rows_expected)):
            got_token, got_logit = _numbers(got, call)
            if got_token != token and margin > ATOL:
                raise WrongTokens(f"{call}: row {row} has its largest logit at token {got_token}, the reference at "
                                  f"token {token}: a faster step computes the same tokens")
            if not abs(got_logit - logit) <= ATOL:
                raise WrongTokens(f"{call}: the largest logit of row {row} is {got_logit:.4f}, the reference's is "
                                  f"{logit:.4f}; they may differ by {ATOL}: every token sees its whole context, in the "
                                  "precision of the weights")


def _copied(rows: Any) -> list[Any]:
    """Return a copy of a side's answer to a step. The sandbox shares the list itself, and could fill it in later, when
    it knows the other steps of the round and can compute all of them at once."""
    if type(rows) is not list:
        raise WrongTokens(f"a step of the comparison gave a {type(rows).__name__}, expected a list")
    return rows.copy()


def _numbers(got: Any, call: str) -> tuple[int, float]:
    """Return the token and the logit that a side claims. Another process may send anything."""
    if type(got) is not tuple or len(got) != 3 or type(got[0]) is not int or type(got[1]) is not float:
        raise WrongTokens(f"{call}: the result is not a list of tokens and logits")
    return got[0], got[1]


def _size_of(step: StepData) -> str:
    num_tokens = sum(len(token_ids) for token_ids, *_ in step)
    return (f"{len(step)} request{'' if len(step) == 1 else 's'} and "
            f"{num_tokens} token{'' if num_tokens == 1 else 's'}")


def ratio_of(runner_class: Any) -> float | None:
    """Return how many times faster than the reference a runner of the file under test is. For the lab's graded test.

    There are many rounds in the grader, and few at home, where ``course board`` tells the ratio. Return None if the
    file could let another process compute, whose time would not count. Raise WrongTokens if its tokens are not the
    reference's.
    """
    config, weights = tiny_tales()
    where = measure.where
    is_at_home = where is measure.HERE
    # Nobody can predict the numbers of the system; those of random.Random follow from earlier ones.
    rng = random.Random(0) if is_at_home else random.SystemRandom()
    with where.reference(REFERENCE) as (elsewhere, module):
        own = make_driver(runner_class, config, weights, NUM_BLOCKS, BLOCK_SIZE)
        known = elsewhere.measure("make_driver", getattr(module, REFERENCE_CLASS), json.dumps(config), weights,
                                  NUM_BLOCKS, BLOCK_SIZE)
        sides = [Side(known.best, elsewhere.cpu_s, elsewhere.is_alone), Side(own.best, where.cpu_s, where.is_alone)]
        num_rounds = FEW_ROUNDS if is_at_home else NUM_ROUNDS
        ratios = race(sides, num_rounds, rng, vocab_size_of(config), BUDGET_S)[1]
    return statistics.median(ratios) if where.is_one_process() else None


def tiny_tales() -> tuple[dict[str, Any], tuple[tuple[str, Any], ...]]:
    """Return the config and the weights of the model that ships with the engine, as data."""
    import mini_vllm
    from mini_vllm.backend import mx
    from mini_vllm.models.config import read_object
    from mini_vllm.models.folder import read_folder
    folder = Path(mini_vllm.__file__ or "").parent / "assets" / "tiny-tales"
    _, weights = read_folder(folder)
    in_floats = tuple((name, array.astype(mx.float32)) for name, array in weights.items())
    return read_object(folder / "config.json"), in_floats


def vocab_size_of(config: dict[str, Any]) -> int:
    return int(config["vocab_size"])
