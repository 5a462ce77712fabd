"""The exercises at the end of each notebook: a reader enters an answer, and the cell says whether it is right.

    from course.exercises import check
    answer = None
    check("02", 1, answer)          prints: Exercise 1: not answered yet.

The answers are in ``course.exercises.nb02`` and so on, each with a proof: a function that computes it with the engine.
``opening`` draws the picture that each notebook begins with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: Two numbers whose difference is at most this fraction of the right one are the same answer.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Exercise:
    """One question. ``answer`` is right because ``proof``, run on the engine, returns it."""

    answer: object
    proof: Callable[[], object]
    #: Printed for a right answer.
    why: str
    #: Printed for a wrong one.
    hint: str
    #: Common wrong answers, and what each overlooks.
    slips: Mapping[object, str] = field(default_factory=dict)


def exercises_of(notebook: str) -> Sequence[Exercise]:
    """The exercises of a notebook: ``exercises_of("02")``. Raises ValueError for a notebook without exercises."""
    try:
        found: Sequence[Exercise] = importlib.import_module(f"{__name__}.nb{notebook}").EXERCISES
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.nb{notebook}":
            raise
        raise ValueError(f"there is no notebook {notebook!r} with exercises; they are called 00 to 05") from None
    return found


def check(notebook: str, number: int, answer: object) -> None:
    """Print whether ``answer`` is right. None is no answer yet. Raises ValueError for an unknown exercise."""
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
    """Numbers may differ by a hundredth, texts in spaces and case, sequences in their type."""
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
