"""The highest rate that a server keeps up with, searched on a ladder of rates, each a tenth above the last."""

from __future__ import annotations

from dataclasses import dataclass

#: The ratio of one rung of the ladder to the one below. A search ends when one is good and the next is not.
STEP = 1.1
#: Rungs per jump until both a good and a bad rate are known: about a factor of two.
JUMP = 7
#: A rate is given up after this many bad runs: a single one may be the machine's fault.
MAX_BAD_RUNS = 2
LOWEST, HIGHEST = -60, 80


@dataclass(frozen=True)
class Goodput:
    """The highest good rate, and the tokens generated at it; 0 if none was good."""

    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0


class GoodputSearch:
    """Chooses the next rate to try, and takes its result.

    The caller may do other work between two tries, so two searches can take turns.
    """

    def __init__(self, first_rate: float) -> None:
        if not first_rate > 0:
            raise ValueError(f"first_rate is {first_rate}, must be above 0")
        self._first_rate = first_rate
        self._rung: int | None = 0
        self._best: int | None = None
        self._worst: int | None = None
        #: Rung → how often it was bad.
        self._num_bad: dict[int, int] = {}

    def _rate(self, rung: int) -> float:
        return self._first_rate * STEP ** rung

    @property
    def next_rate(self) -> float | None:
        """The next rate to try; None when the search has ended."""
        return None if self._rung is None else self._rate(self._rung)

    @property
    def num_runs_here(self) -> int:
        """The number of times the next rate has been tried."""
        return self._num_bad.get(self._rung, 0) if self._rung is not None else 0

    @property
    def goodput(self) -> float:
        """The highest rate that was good; 0 if none was."""
        return 0.0 if self._best is None else self._rate(self._best)

    def note(self, is_good: bool) -> None:
        """Record the result of the next rate."""
        if self._rung is None:
            raise RuntimeError("the search has ended")
        rung = self._rung
        if is_good:
            self._best = rung
        else:
            self._num_bad[rung] = self._num_bad.get(rung, 0) + 1
            if self._num_bad[rung] < MAX_BAD_RUNS:
                return
            self._worst = rung
        self._rung = self._next_rung(rung)

    def _next_rung(self, rung: int) -> int | None:
        best, worst = self._best, self._worst
        if worst is None:
            return rung + JUMP if rung < HIGHEST else None
        if best is None:
            return rung - JUMP if rung > LOWEST else None
        return (best + worst) // 2 if worst - best > 1 else None
