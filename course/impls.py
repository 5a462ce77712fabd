"""What a lab's tests test: the solution, the starter, the engine's module, or another file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course.labs import Lab, discover
from course.pieces import Pieces, choose, needed_for_all
from course.starters import is_as_shipped

CHOICES = ("auto", "starter", "solution", "engine")


@dataclass(frozen=True)
class Impl:
    """One thing under test: a file, or modules of the engine, of which ``path`` is the last."""

    lab: Lab
    label: str
    path: Path
    modules: tuple[str, ...] = ()

    @property
    def files(self) -> str:
        """What is under test, for people: paths from the root of the project."""
        paths = [self.lab.module_path(name) for name in self.modules] or [self.path]
        return " and ".join(map(self.lab.relative, paths))


def engines(labs: Sequence[Lab], choice: Choice) -> dict[str, Pieces]:
    """What the capstone tests: engines of nothing but solutions, or starters, or the starters of another folder."""
    found: dict[str, Pieces] = {}
    for wanted in choice.wanted:
        if wanted in ("auto", "solution"):
            found["solution"] = choose(labs, lambda lab: True, lambda lab: lab.solution)
        is_begun = wanted == "auto" and not any(is_as_shipped(lab) for lab in needed_for_all(labs))
        if wanted == "starter" or is_begun:
            found["starter"] = choose(labs, lambda lab: True, lambda lab: lab.starter)
        if wanted not in CHOICES:
            folder = choice.path(wanted)
            there = {lab.number: lab for lab in discover(folder)}
            found[folder.name] = choose(labs, lambda lab, there=there: lab.number in there,  # type: ignore[misc]
                                        lambda lab, there=there: there[lab.number].starter)  # type: ignore[misc]
    return found


class Choice:
    """What ``--impl`` asks for, several times perhaps. Paths are meant from the folder ``here``."""

    def __init__(self, wanted: Sequence[str], here: Path) -> None:
        self.wanted = list(wanted) or ["auto"]
        self._here = here
        #: The number of a lab → why it has more or fewer things under test than one would think.
        self.notes: dict[str, str] = {}

    @property
    def files(self) -> list[str]:
        """The choices that are paths."""
        return [choice for choice in self.wanted if choice not in CHOICES]

    def missing(self) -> str | None:
        """A path that leads nowhere, if there is one."""
        return next((choice for choice in self.files if not (self._here / choice).exists()), None)

    def path(self, choice: str) -> Path:
        return (self._here / choice).resolve()

    def impls(self, lab: Lab) -> list[Impl]:
        """Each once, in the order of the choices. Raises LabError for a lab whose settings cannot be read."""
        return list(dict.fromkeys(impl for choice in self.wanted for impl in self._of(lab, choice)))

    def _of(self, lab: Lab, choice: str) -> list[Impl]:
        solution, starter = Impl(lab, "solution", lab.solution), Impl(lab, "starter", lab.starter)
        match choice:
            case "auto":
                return self._solution_and_work(lab, solution, starter)
            case "solution":
                return [solution]
            case "starter":
                return [starter]
            case "engine":
                if not lab.engine:
                    self.notes[lab.number] = "this lab has no counterpart in the engine"
                    return []
                return [Impl(lab, "engine", lab.module_path(lab.engine[-1]), lab.engine)]
        path = self.path(choice)
        if path.is_dir():
            path = path / "starter.py"
        return [Impl(lab, path.stem, path)]

    def _solution_and_work(self, lab: Lab, solution: Impl, starter: Impl) -> list[Impl]:
        """The solution, and the starter from the moment the student has edited it."""
        if not lab.solution.is_file():
            return [starter]
        if not lab.starter.is_file() or is_as_shipped(lab):
            self.notes[lab.number] = "starter.py is untouched"
            return [solution]
        return [solution, starter]
