"""The score of an open lab: what ``lab.json`` says about it, and the module that computes it.

A higher score is better. ``course board`` computes it on the student's machine; a graded test computes it for the class
and hands it to the fixture ``keep_score``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Protocol

#: A score is at most this, and at least its negative.
MAX_SCORE = 1e6


@dataclass(frozen=True)
class ScoreSettings:
    """The entry ``score`` of a ``lab.json``."""

    #: A module of the course, with the functions of ``ScoreModule``.
    module: str
    #: The name in the lab's file that is scored.
    name: str
    #: What the number says, after a score: ``the naive policy scores 0, the optimum 100``.
    meaning: str
    #: How a score is written: the number of its decimals, and its unit.
    decimals: int = 1
    unit: str = ""
    #: A score must be less than this, and why no honest file reaches it.
    below: float = math.inf
    why_below: str = ""
    #: How long ``course board`` may compute, in seconds of CPU time.
    limit_s: float = 60.0

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> ScoreSettings:
        """Read an entry. Raise ValueError for a key that is missing, unknown or of a wrong type."""
        known = {field.name: field for field in fields(cls)}
        missing = [name for name, field in known.items() if field.default is MISSING and name not in entry]
        if missing or not entry.keys() <= known.keys():
            raise ValueError(f"score has the keys {', '.join(entry)}; it must have module, name and meaning, and may "
                             f"have {', '.join([*known][3:])}")
        for name, value in entry.items():
            is_right = (isinstance(value, (int, float)) and not isinstance(value, bool) if known[name].type == "float"
                        else type(value).__name__ == known[name].type)
            if not is_right:
                raise ValueError(f"score: {name} is {value!r}, must be of type {known[name].type}")
        settings = cls(**entry)
        if not 0 <= settings.decimals <= 2:
            raise ValueError(f"score: decimals is {settings.decimals}, must be 0, 1 or 2")
        if not settings.limit_s > 0:
            raise ValueError(f"score: limit_s is {settings.limit_s:g}, must be more than 0")
        if math.isfinite(settings.below) and not settings.why_below:
            raise ValueError("score: below needs why_below, the reason why no honest file reaches that number")
        return settings

    def text(self, score: float) -> str:
        """Return the score as people read it: ``64.9``, or ``1.23 times``."""
        return f"{score:.{self.decimals}f} {self.unit}".rstrip()

    def problem_with(self, score: object) -> str:
        """Return why this cannot be a score of the lab, in a sentence; "" if it can.

        Only Python's own numbers are accepted. An object that behaves like one may come from the file under test.
        """
        if not isinstance(score, (int, float)) or type(score) not in (int, float):
            return f"The score is of type {type(score).__name__}, must be an int or a float."
        if not -MAX_SCORE <= score <= MAX_SCORE:  # NaN, too
            shown = score if isinstance(score, float) else f"a whole number of {score.bit_length()} bits"
            return f"The score is {shown}, must be from {-MAX_SCORE:,.0f} to {MAX_SCORE:,.0f}."
        if score >= self.below:
            return f"The score is {self.text(score)}, must be less than {self.below:g}. {self.why_below}"
        return ""


class ScoreModule(Protocol):
    """The module that ``lab.json`` names. What ``score`` measures is its own affair; the others only read it."""

    def score(self, scored: Any | None) -> Any:
        """Measure the student's class or function, and the known solutions next to it; None: only these.

        Raise an exception, with a sentence for the student, if the student's part breaks the rules.
        """

    def table(self, measured: Any) -> str:
        """Format the measurement as a table for a terminal."""

    def total(self, measured: Any) -> float:
        """Return the student's score. Called only if there was something to score."""

    def landmarks(self, measured: Any) -> dict[str, float]:
        """Return the scores of the known solutions: ``{"naive": 0.0, "reference": 36.9, "optimum": 100.0}``."""
