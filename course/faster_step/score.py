"""Lab 5.4: how many times less CPU time a model runner takes than the reference, for the same tokens.

    python -m course.faster_step.score                  the reference and the engine's own runner
    python -m course.faster_step.score FILE             also FILE's ModelRunner
    python -m course.faster_step.score --ideas          the reference with each of three ideas, and with all of them

All of them run in this process, one after the other in every round. The grader compares two processes instead.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.core.child_process import ONE_THREAD
from course.faster_step.driver import make_driver
from course.faster_step.race import NUM_ROUNDS, Side, race, tiny_tales, vocab_size_of
from course.faster_step.rounds import BLOCK_SIZE, NUM_BLOCKS
from course.lab.load_module import load_file
from course.testing import measure

REFERENCE, ENGINE, YOURS = "reference", "engine", "yours"


@dataclass(frozen=True)
class Line:
    """One runner of a comparison."""

    name: str
    #: CPU seconds per round.
    median_s: float
    #: The reference's CPU time divided by this runner's, in each round.
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def score(scored: Any | None) -> list[Line]:
    """Compare the reference, the engine's own runner, and the class ``scored``, if there is one.

    Raise WrongTokens if the class does not compute the reference's tokens.
    """
    return compare(_known() | ({YOURS: scored} if scored is not None else {}))


def compare(runner_classes: Mapping[str, Any], num_rounds: int = NUM_ROUNDS, seed: int | None = None) -> list[Line]:
    """Compare runners; the first is the reference. Without a seed, every call draws other tokens."""
    config, weights = tiny_tales()
    sides = [Side(make_driver(each, config, weights, NUM_BLOCKS, BLOCK_SIZE).best, measure.HERE.cpu_s, False)
             for each in runner_classes.values()]
    ratios = race(sides, num_rounds, random.Random(seed), vocab_size_of(config))
    return [Line(name, statistics.median(side.used_s[1:]), tuple(of_side))
            for name, side, of_side in zip(runner_classes, sides, ratios)]


def _known() -> dict[str, Any]:
    from course.faster_step.reference import ReferenceRunner
    from mini_vllm.fast.attention import FastAttention
    from mini_vllm.model_runner import ModelRunner

    class Engine(ModelRunner):
        """The engine's own runner on MLX's operations, with the attention of ``fast``."""

        def __init__(self, model: Any, num_blocks: int, block_size: int, attention: Any = None) -> None:
            super().__init__(model, num_blocks, block_size, FastAttention)

    return {REFERENCE: ReferenceRunner, ENGINE: Engine}


def table(lines: Sequence[Line]) -> str:
    """Format the comparison as a table: CPU time per round, and the ratio in the median, lowest and highest round."""
    rows = [f"{'runner':<12}{'CPU per round':>14}{'ratio':>8}{'lowest':>9}{'highest':>9}"]
    rows += [f"{line.name:<12}{1000 * line.median_s:>11.0f} ms{line.ratio:>8.2f}{min(line.ratios):>9.2f}"
             f"{max(line.ratios):>9.2f}" for line in lines]
    return "\n".join(rows)


def total(lines: Sequence[Line]) -> float:
    """Return the number to improve: the median ratio of the student's runner. Raise ValueError if there is none."""
    for line in lines:
        if line.name == YOURS:
            return line.ratio
    raise ValueError("total: no runner of a student was compared")


def landmarks(lines: Sequence[Line]) -> dict[str, float]:
    """Return the scores of the known runners."""
    return {line.name: line.ratio for line in lines if line.name != YOURS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m course.faster_step.score",
                                     description="Compare the CPU times of model runners.")
    parser.add_argument("file", nargs="?", type=Path, help="a file that contains a class ModelRunner")
    parser.add_argument("--ideas", action="store_true", help="show what three ideas are worth on the reference")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, help="rounds to compare (default: %(default)s)")
    arguments = parser.parse_args()
    if not 1 <= arguments.rounds <= 1000:
        parser.error(f"--rounds is {arguments.rounds}, must be from 1 to 1000")
    if not ONE_THREAD.items() <= os.environ.items():  # a BLAS reads these when it is loaded
        os.execve(sys.executable, [sys.executable, "-m", "course.faster_step.score", *sys.argv[1:]],
                  {**os.environ, **ONE_THREAD})
    classes = _known()
    if arguments.file:
        classes[YOURS] = load_file(arguments.file).ModelRunner
    if arguments.ideas:
        from course.faster_step.ideas import IDEAS
        classes |= IDEAS
    print(table(compare(classes, arguments.rounds)))


if __name__ == "__main__":
    main()
