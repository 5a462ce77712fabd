"""Notice when a student saves a starter, during a test run and between runs."""

from __future__ import annotations

import time
from pathlib import Path

from course.lab.lab import Lab

POLL_S = 0.3


class SavedMeanwhile(Exception):
    """A starter was saved while tests ran: their verdicts are about a version that no longer exists."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(str(lab))
        self.lab = lab


class Saves:
    """The starters that were saved since the last look."""

    def __init__(self, labs: list[Lab]) -> None:
        self._labs = labs
        self._before = self._stamps()

    def look(self) -> Lab | None:
        """Return a lab whose starter was saved since the last call, the last one if there are several, or None."""
        before, self._before = self._before, self._stamps()
        saved = [lab for lab, stamp in self._before.items() if stamp is not None and stamp != before[lab]]
        return saved[-1] if saved else None

    def wait(self) -> Lab:
        """Wait until a starter is saved, and return its lab."""
        while (lab := self.look()) is None:
            time.sleep(POLL_S)
        return lab

    def interrupt(self) -> None:
        """Raise SavedMeanwhile if a starter was saved since the last look."""
        lab = self.look()
        if lab is not None:
            raise SavedMeanwhile(lab)

    def _stamps(self) -> dict[Lab, tuple[int, int] | None]:
        return {lab: _stamp(lab.starter) for lab in self._labs}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
        return stat.st_mtime_ns, stat.st_size
    except FileNotFoundError:  # some editors save by deleting and renaming
        return None
