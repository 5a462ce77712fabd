"""Wrong solutions, each with the test that must catch it. If the tests miss one, the course has a bug."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from course.lab.lab import Lab, LabError
from course.lab.load_module import load_file


@dataclass(frozen=True)
class Mutant:
    """The solution with ``replace``, which occurs in it exactly once, changed to ``by``.

    ``breaks`` quotes the part of the lab's contract that no longer holds, with its place: ``invariant 3: a call that
    raises``, ``BlockPool.touch: nothing changes then``. There are several quotes if one promise is a special case of
    another.
    """

    name: str
    story: str
    replace: str
    by: str
    killed_by: str
    breaks: str | tuple[str, ...] = ()
    #: Whether the mutant relies on objects in the process of the tests. In the grader's sandbox it finds none of them
    #: and behaves like the correct solution.
    only_in_process: bool = False

    @property
    def quotes(self) -> tuple[str, ...]:
        return (self.breaks,) if isinstance(self.breaks, str) else self.breaks

    def apply(self, solution: str) -> str:
        """Return the wrong solution's text. Raise LabError if this mutant no longer fits the solution."""
        count = solution.count(self.replace)
        if count != 1:
            raise LabError(f"mutant {self.name}: its 'replace' text occurs {count} times in solution.py, must be once")
        if self.replace == self.by:
            raise LabError(f"mutant {self.name}: it changes nothing")
        text = solution.replace(self.replace, self.by)
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise LabError(f"mutant {self.name}: it does not parse: {error}") from None
        return text

    def write(self, solution: str, folder: Path) -> Path:
        """Write the mutant into ``folder``. ``apply`` must have accepted it; it is not checked again."""
        path = folder / f"{self.name}.py"
        path.write_text(solution.replace(self.replace, self.by), encoding="utf-8")
        return path


def mutants_of(lab: Lab) -> list[Mutant]:
    if not lab.mutants.is_file():
        raise LabError(f"{lab.relative(lab.mutants)} is missing")
    mutants: list[Mutant] = load_file(lab.mutants).MUTANTS
    return mutants


def unobservable_in(lab: Lab) -> dict[str, str]:
    """Return the lab's promises whose violation no test can observe, each with the reason."""
    unobservable: dict[str, str] = getattr(load_file(lab.mutants), "UNOBSERVABLE", {})
    return unobservable
