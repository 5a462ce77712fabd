"""Which files a pytest run tests, with which tests, and which files it rejects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from course.lab.graded_tests import GradedTest, graded_tests
from course.lab.lab import Lab, LabError
from course.pytest_run.points import Points
from course.pytest_run.targets import CHOICES, Choice, Impl


class Tested:
    """The files that ``--impl`` selects for each lab. Each answer is computed once, because every test asks."""

    def __init__(self, choice: Choice, root: Path) -> None:
        self._choice = choice
        self._impls: dict[Lab, list[Impl]] = {}
        self._graded: dict[Lab, list[GradedTest]] = {}
        if missing := choice.missing():
            raise pytest.UsageError(f"--impl {missing}: not one of {', '.join(CHOICES)}, and there is no such file")
        if taken := choice.taken_for(root):
            raise pytest.UsageError(f"pytest took {taken} for the project to test: name the labs before --impl, or "
                                    f"write --impl={taken}, in one word")

    def impls(self, lab: Lab) -> list[Impl]:
        """Return what is tested for the lab. Cached, because a gallery of mutants is long."""
        if lab not in self._impls:
            try:
                self._impls[lab] = self._choice.impls(lab)
            except LabError as error:
                raise pytest.UsageError(str(error)) from None
        return self._impls[lab]

    def graded(self, lab: Lab) -> list[GradedTest]:
        """Return the graded tests of a lab, read before any code of the student's runs."""
        if lab not in self._graded:
            self._graded[lab] = graded_tests(lab)
        return self._graded[lab]

    def expect(self, impls: Sequence[Impl], points: Points) -> None:
        """Tell ``points`` what can be earned."""
        for impl in impls:
            points.expect(impl.lab.number, impl.label, self.graded(impl.lab), self._note_on_score(impl))

    def _note_on_score(self, impl: Impl) -> str:
        if not impl.is_course_owned:
            return ""
        untested = self._choice.notes.get(impl.lab.number)
        return "the course's own solution: no score" + (f"; {untested} and was not tested" if untested else "")

    def lines(self, impls: Sequence[Impl]) -> list[str]:
        """Return one line per file under test, which says that it is tested."""
        notes = {impl.lab.number: self._choice.notes.get(impl.lab.number) for impl in impls}
        return [f"lab {impl.lab.number} tests {impl.files}"
                + (f"  ({notes[impl.lab.number]})" if notes[impl.lab.number] else "") for impl in impls]

    def refuse_what_does_not_fit(self, impls: Sequence[Impl]) -> None:
        """Raise UsageError if one file is to be tested as several labs, or a folder contains no file for any lab."""
        labs: dict[Path, list[str]] = {}
        for impl in impls:
            labs.setdefault(impl.path, []).append(str(impl.lab))
        for impl in impls:
            if len(set(labs[impl.path])) > 1:
                raise pytest.UsageError(f"--impl {impl.files} is one file, but several labs are selected: "
                                        f"{', '.join(labs[impl.path])}")
        if unfit := self._choice.unfit(impls):
            first = impls[0].lab
            raise pytest.UsageError(f"--impl {unfit}: this folder contains no starter.py, and it is not a copy of "
                                    f"the course: it does not contain {first.relative(first.starter)}")
