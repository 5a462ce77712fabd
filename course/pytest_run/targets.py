"""What a lab's tests can test: the solution, the starter, the engine's module, or another file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course.lab.bare_starter import is_as_shipped
from course.lab.lab import Lab, discover
from course.lab.parts import Pieces, choose, needed_for_all, up_to_capstone

CHOICES = ("auto", "starter", "solution", "engine")


@dataclass(frozen=True)
class Impl:
    """One thing under test: a file, or modules of the engine, of which ``path`` is the last."""

    lab: Lab
    label: str
    path: Path
    modules: tuple[str, ...] = ()
    #: The path to show to people, if the file is outside the project.
    shown: str = field(default="", compare=False)

    @property
    def files(self) -> str:
        """The files under test, for people: paths relative to the root of the project, never absolute."""
        if self.shown:
            return self.shown
        paths = [self.lab.module_path(name) for name in self.modules] or [self.path]
        return " and ".join(map(self.lab.relative, paths))

    @property
    def is_course_owned(self) -> bool:
        """Whether this is the course's own answer and not a student's work."""
        return bool(self.modules) or self.path == self.lab.solution


def labels_of(choices: Sequence[str], here: Path) -> list[str]:
    """Return a label for each value of ``--impl``.

    A keyword is its own label. A path is labelled by its last part, preceded by as many further parts as distinguish it
    from the other paths and from the keywords.
    """
    parts = [_parts((here / choice).resolve()) for choice in choices]
    labels = []
    for choice, own in zip(choices, parts):
        others = [other for chosen, other in zip(choices, parts) if chosen not in CHOICES and other != own]
        lengths = [length for length in range(1, len(own) + 1) if "/".join(own[-length:]) not in CHOICES
                   and all(own[-length:] != other[-length:] for other in others)]
        labels.append(choice if choice in CHOICES else "/".join(own[-min(lengths, default=len(own)):]))
    return labels


def _parts(path: Path) -> tuple[str, ...]:
    return (path.with_suffix("") if path.suffix == ".py" else path).parts[1:]


def engines(labs: Sequence[Lab], choice: Choice) -> dict[str, Pieces]:
    """Return the engines that the capstone tests: all solutions, all starters, or all starters of another folder."""
    found: dict[str, Pieces] = {}
    labs = up_to_capstone(labs)
    for wanted in choice.wanted:
        if wanted in ("auto", "solution"):
            found["solution"] = choose(labs, lambda lab: True, lambda lab: lab.solution)
        is_begun = wanted == "auto" and not any(is_as_shipped(lab) for lab in needed_for_all(labs))
        if wanted == "starter" or is_begun:
            found["starter"] = choose(labs, lambda lab: True, lambda lab: lab.starter)
        if wanted not in CHOICES:
            folder = choice.path(wanted)
            there = {lab.number: lab for lab in discover(folder)}
            found[choice.labels[wanted]] = choose(labs, lambda lab, there=there: lab.number in there,  # type: ignore[misc]
                                        lambda lab, there=there: there[lab.number].starter)  # type: ignore[misc]
    return found


def file_in(folder: Path, lab: Lab) -> Path | None:
    """Return the file of ``lab`` in ``folder``, which may be that of a whole course, a phase, its labs, or this lab."""
    parts = lab.starter.relative_to(lab.root).parts
    for num_left_out in range(len(parts)):
        path = folder.joinpath(*parts[num_left_out:])
        is_of_another = len(parts) - num_left_out == 1 and folder.name.startswith("lab-") and (
            folder.name != lab.folder.name)
        if os.path.lexists(path) and not is_of_another:
            return path
    return None


class Choice:
    """The values of ``--impl``, which may be given several times. Paths are relative to the folder ``here``."""

    def __init__(self, wanted: Sequence[str], here: Path) -> None:
        self.wanted = list(wanted) or ["auto"]
        self._here = here
        self.labels = dict(zip(self.wanted, labels_of(self.wanted, here)))
        #: Lab number → why more or fewer things are under test than expected.
        self.notes: dict[str, str] = {}

    @property
    def files(self) -> list[str]:
        """The choices that are paths."""
        return [choice for choice in self.wanted if choice not in CHOICES]

    def missing(self) -> str | None:
        """Return a path that does not exist, if there is one."""
        return next((choice for choice in self.files if not (self._here / choice).exists()), None)

    def taken_for(self, root: Path) -> str | None:
        """Return a folder under test that pytest took for its root although the current folder is outside it."""
        return next((choice for choice in self.files if root.is_relative_to(self.path(choice))
                     and not self._here.resolve().is_relative_to(root)), None)

    def path(self, choice: str) -> Path:
        return (self._here / choice).resolve()

    def impls(self, lab: Lab) -> list[Impl]:
        """Return everything under test, without duplicates, in the order of the choices.

        Raise LabError for a lab whose settings cannot be read.
        """
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
            path = file_in(path, lab) or path / lab.starter.relative_to(lab.root)
        return [Impl(lab, self.labels[choice], path, shown=self._shown(path, lab, choice))]

    def _shown(self, path: Path, lab: Lab, choice: str) -> str:
        """Return the path relative to the root of the project or to the current folder.

        For any other path return its end, one part longer than the label.
        """
        for folder in (lab.root, self._here.resolve()):
            if path.is_relative_to(folder):
                return path.relative_to(folder).as_posix()
        chosen = self.path(choice)
        num_left = self.labels[choice].count("/") + (chosen == path)
        return path.relative_to(chosen.parents[min(num_left, len(chosen.parents) - 1)]).as_posix()

    def unfit(self, impls: Sequence[Impl]) -> str | None:
        """Return a chosen folder in which none of these labs finds its file, if there is one."""
        for choice in self.files:
            mine = [impl for impl in impls if impl.label == self.labels[choice]]
            if mine and self.path(choice).is_dir() and not any(impl.path.is_file() for impl in mine):
                return choice
        return None

    def _solution_and_work(self, lab: Lab, solution: Impl, starter: Impl) -> list[Impl]:
        """Return the solution, and the starter once the student has edited it."""
        if not lab.solution.is_file():
            return [starter]
        if not lab.starter.is_file() or is_as_shipped(lab):
            self.notes[lab.number] = "starter.py is untouched"
            return [solution]
        return [solution, starter]
