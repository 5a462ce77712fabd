"""The exercises at the end of each notebook. The reader enters an answer, and the cell prints whether it is right.

    from course.exercises import check
    answer = None
    check("02", 1, answer)          prints: Exercise 1: not answered yet.

The modules ``course.exercises.nb00`` to ``nb06`` contain the answers. Each answer has a proof: a function that computes
the answer with the engine. The module ``opening`` draws the picture at the beginning of each notebook.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: A number counts as right if it differs from the right answer by at most this fraction of it.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Exercise:
    """One question. ``proof`` computes ``answer`` with the engine."""

    answer: object
    proof: Callable[[], object]
    #: Printed for a right answer.
    why: str
    #: Printed for a wrong answer that is not in ``slips``.
    hint: str
    #: Common wrong answers, and the text that is printed for each.
    slips: Mapping[object, str] = field(default_factory=dict)


def exercises_of(notebook: str) -> Sequence[Exercise]:
    """Return the exercises of a notebook, for example of "02". Raise ValueError if it has none."""
    try:
        found: Sequence[Exercise] = importlib.import_module(f"{__name__}.nb{notebook}").EXERCISES
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.nb{notebook}":
            raise
        raise ValueError(f"there is no notebook {notebook!r} with exercises; the notebooks are 00 to 06") from None
    return found


def check(notebook: str, number: int, answer: object) -> None:
    """Print whether ``answer`` is right. None means no answer yet. Raise ValueError for an unknown exercise."""
    exercises = exercises_of(notebook)
    if not 1 <= number <= len(exercises):
        raise ValueError(f"notebook {notebook} has exercises 1 to {len(exercises)}, not {number}")
    print(f"Exercise {number}: {verdict(exercises[number - 1], answer)}")


def verdict(exercise: Exercise, answer: object) -> str:
    if answer is None or answer is ...:
        return "not answered yet."
    if is_same(answer, exercise.answer):
        return f"right. {exercise.why}"
    slip = next((told for wrong, told in exercise.slips.items() if is_same(answer, wrong)), exercise.hint)
    return f"not yet. {slip}"


def is_same(given: object, right: object) -> bool:
    """Compare two answers. Numbers may differ by a hundredth, texts in spaces and case, sequences in their type."""
    if isinstance(given, bool) or isinstance(right, bool):
        return given is right
    if isinstance(right, (int, float)):
        return isinstance(given, (int, float)) and abs(given - right) <= TOLERANCE * abs(right)
    if isinstance(right, str):
        return isinstance(given, str) and given.strip().casefold() == right.strip().casefold()
    if isinstance(right, (list, tuple)):
        return (isinstance(given, (list, tuple)) and len(given) == len(right)
                and all(map(is_same, given, right)))
    if isinstance(right, (set, frozenset)):
        return isinstance(given, (set, frozenset, list, tuple)) and set(given) == right
    return given == right
