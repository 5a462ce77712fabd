"""A contest: an open lab whose file is compared, trace by trace, with a naive solution, the engine and a bound.

The score is measured on published traces. A file may know these by heart, so the lab's tests also play others of the
same kinds. In the grader their seed has 64 random bits, and a file plays each of them once: it can neither contain what
comes nor remember it.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from course.lab.load_module import load_file
from course.testing import measure

T = TypeVar("T")
R = TypeVar("R")


class Line(NamedTuple):
    """The results on one trace."""

    trace: Any
    naive: Any
    reference: Any
    bound: float
    #: None if no file was given.
    yours: Any = None


@dataclass
class Contest(Generic[T, R]):
    """The traces of an open lab, what its files are compared with on them, and how.

    ``score``, ``table``, ``total`` and ``landmarks`` are those of ``ScoreModule``.
    """

    #: The module that defines the contest, and the name in a student's file that takes part.
    module: str
    scored: str
    #: The names of the published traces. ``make(name, None)`` makes one, and with a seed another one of its kind, whose
    #: name contains the seed.
    names: Sequence[str]
    make: Callable[[str, int | None], T]
    #: Play a trace. It raises ``foul`` if the student's part breaks the rules.
    play: Callable[[T, Any], R]
    foul: type[Exception]
    naive: Callable[[T], R]
    reference: Callable[[T], R]
    bound: Callable[[T], float]
    #: The head of the table, and by what a number is multiplied in it.
    title: str
    scale: Callable[[T], float]
    #: How a number is written in a sentence: ``{:.0f} hits``.
    unit: str
    #: The number of a result; results are numbers unless this says otherwise.
    value: Callable[[Any], float] = float
    bound_name: str = "bound"
    #: More columns of the table: head → what it shows of the student's result, or else of the reference's.
    columns: Mapping[str, Callable[[Any], float]] = field(default_factory=dict)
    #: Whether steps are parts of the gap from the reference to the bound, or from naive to the bound.
    is_from_reference: bool = True
    #: How many unseen traces there are for each published one. On them a step needs ``margin`` less of the gap, but
    #: more than 0, and the total may be ``max_drop`` less.
    num_unseen: int = 1
    margin: float = 0.3
    max_drop: float = 10.0

    def __post_init__(self) -> None:
        self.trace = functools.lru_cache(maxsize=256)(self.make)
        self._marks = functools.lru_cache(maxsize=256)(
            lambda trace: (self.naive(trace), self.reference(trace), self.bound(trace)))
        self._played: dict[int, tuple[Any, dict[str, Any]]] = {}

    @functools.cached_property
    def unseen_seeds(self) -> list[int]:
        """The seeds of the unseen traces. In the grader no file can know them, and every run has others."""
        first = 1000 + int(measure.salt() or "0", 16)
        return [first + number for number in range(self.num_unseen)]

    # ---- the score

    def score(self, scored: Any | None, seed: int | None = None) -> list[Line]:
        """Return one line per published trace, or with a seed for others of the same kinds. Raise ``foul`` if the
        student's part breaks the rules."""
        return [self.line(trace, None if scored is None else self.play(trace, scored))
                for trace in (self.trace(name, seed) for name in self.names)]

    def line(self, trace: T, yours: R | None = None) -> Line:
        return Line(trace, *self._marks(trace), yours)

    def way(self, line: Line, result: Any) -> float:
        """Return the part of the gap between naive and bound that ``result`` closes: 0 for naive, 1 for the bound.

        If naive and bound are equal, return 1 for that number and 0 for any other.
        """
        number, naive = self.value(result), self.value(line.naive)
        if line.bound == naive:
            return 1.0 if number == naive else 0.0
        return (number - naive) / (line.bound - naive)

    def total(self, lines: Sequence[Line]) -> float:
        """Return the number to improve: the percentage of the gap between naive and bound that is closed.

        It is the mean over all lines, so that no trace counts more than another. Naive has 0, the bound 100. What is
        worse than naive has less than 0. Raise ValueError if a line has no result of a student.
        """
        for line in lines:
            if line.yours is None:
                raise ValueError(f"total: the line of {line.trace.name!r} has no result of {self.scored}")
        return 100.0 * sum(self.way(line, line.yours) for line in lines) / len(lines)

    def landmarks(self, lines: Sequence[Line]) -> dict[str, float]:
        """Return the totals of the known solutions, by name."""
        of_reference = 100.0 * sum(self.way(line, line.reference) for line in lines) / len(lines)
        return {"naive": 0.0, "reference": of_reference, self.bound_name: 100.0}

    def table(self, lines: Sequence[Line]) -> str:
        """Format the lines as a table; its last row is the total."""
        width = max(12, len(self.title) + 1)
        rows = [f"{self.title:<{width}}{'naive':>8}{'reference':>11}{self.bound_name:>9}{'yours':>8}"
                + "".join(f"{head:>{len(head) + 2}}" for head in self.columns)]
        for line in lines:
            shown = [self.scale(line.trace) * number for number in (
                self.value(line.naive), self.value(line.reference), line.bound)]
            yours = None if line.yours is None else self.scale(line.trace) * self.value(line.yours)
            of_whom = line.reference if line.yours is None else line.yours
            rows.append(_row(line.trace.name, width, shown, yours) + "".join(
                f"{show(of_whom):>{len(head) + 2}.1f}" for head, show in self.columns.items()))
        total = None if any(line.yours is None for line in lines) else self.total(lines)
        return "\n".join([*rows, _row("total", width, list(self.landmarks(lines).values()), total)])

    def main(self, argv: Sequence[str] | None = None) -> None:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=f"Score a {self.scored}.")
        parser.add_argument("file", nargs="?", type=Path, help=f"a file that contains a class {self.scored}")
        parser.add_argument("--seed", type=int, help="take other traces of the same kinds")
        arguments = parser.parse_args(argv)
        if sys.stderr.isatty():
            print(f"Scoring {arguments.file or 'the known solutions'} …", file=sys.stderr)
        scored = getattr(load_file(arguments.file), self.scored) if arguments.file else None
        print(self.table(self.score(scored, arguments.seed)))

    # ---- the lab's tests

    def played(self, lab: Any, name: str, seed: int | None = None) -> Line:
        """Return the line of a module on a trace. A module plays a trace once, however that ends: it could remember
        what came."""
        trace: Any = self.trace(name, seed)
        # Not per class: a module may return a new one each time. The module is kept, so that its id stays its.
        _, results = self._played.setdefault(id(lab), (lab, {}))
        if trace.name not in results:
            results[trace.name] = AssertionError(f"trace {trace.name!r} was not played to its end in an earlier test")
            try:
                results[trace.name] = self.play(trace, getattr(lab, self.scored))
            except self.foul as error:
                results[trace.name] = AssertionError(str(error))
            except Exception as error:
                results[trace.name] = error
        result = results[trace.name]
        if isinstance(result, Exception):
            raise result
        return self.line(trace, result)

    def check_step(self, lab: Any, names: Sequence[str], part: float, in_words: str) -> None:
        """Check that over these traces together a module closes ``part`` of the gap, and more than 0.

        On unseen traces of the same kinds, ``part - margin`` is enough.
        """
        __tracebackhide__ = True
        seen = self._gap(lab, names, [None])
        assert seen.closed >= part and seen.closed > 0, f"{seen.text}. {in_words} is needed"
        unseen, enough = self._gap(lab, names, self.unseen_seeds), max(part - self.margin, 0.0)
        assert unseen.closed >= enough and unseen.closed > 0, (
            f"{unseen.text}. {f'{enough:.0%}' if enough else 'More than 0 %'} is needed there. On the published traces "
            f"{seen.closed:.0%} is closed: what is tuned to the published traces does not count")

    def _gap(self, lab: Any, names: Sequence[str], seeds: Sequence[int | None]) -> _Gap:
        lines = [self.played(lab, name, seed) for name in names for seed in seeds]
        got, low, high = (sum(numbers) / len(lines) for numbers in zip(*(
            (self.value(line.yours), self.value(line.reference if self.is_from_reference else line.naive), line.bound)
            for line in lines)))
        closed = (got - low) / (high - low)
        names_of = ", ".join(map(repr, names)) + (f" of seeds {seeds[0]} on" if seeds[0] is not None else "")
        got_text, low_text, high_text = map(self.unit.format, (got, low, high))
        return _Gap(closed, f"trace {names_of}{', on average' * (len(lines) > 1)}: {self.scored} has {got_text}; "
                            f"{'the reference' if self.is_from_reference else 'naive'} has {low_text}, the "
                            f"{self.bound_name} is {high_text}, and {closed:.1%} of the gap is closed")

    def checked_total(self, lab: Any) -> float:
        """Return the total on the published traces. Check that it is at most ``max_drop`` less on unseen ones."""
        __tracebackhide__ = True
        known = self.total([self.played(lab, name) for name in self.names])
        unseen = self.total([self.played(lab, name, seed) for name in self.names for seed in self.unseen_seeds])
        assert unseen >= known - self.max_drop, (
            f"{self.scored} closes {known:.1f} % of the gap between naive and {self.bound_name} on the published "
            f"traces, and {unseen:.1f} % on others of the same kinds; at most {self.max_drop:g} less is allowed: what "
            "is tuned to the published traces does not count")
        return known


class _Gap(NamedTuple):
    #: The part of the gap that is closed.
    closed: float
    text: str


def _row(name: str, width: int, known: Sequence[float], yours: float | None) -> str:
    shown = "–" if yours is None else f"{yours:.1f}"
    return f"{name:<{width}}{known[0]:>8.1f}{known[1]:>11.1f}{known[2]:>9.1f}{shown:>8}"
