"""Read the points of a lab's tests from their source: no code of the student's runs here."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from course.core.result import TestResult, Verdict
from course.lab.lab import Lab, LabError

_TASK_IN_NAME = re.compile(r"test_task_(\d+)_")


@dataclass(frozen=True)
class GradedTest:
    name: str
    #: None if the mark is missing; ``course check`` reports such tests.
    points: int | None
    task: int | None
    takes_lab: bool
    #: Whether the test trusts a measurement made inside the grader's sandbox, and the reason that it gives.
    is_inside: bool = False
    why_inside: str = ""
    #: Whether the test keeps the score of an open lab.
    keeps_score: bool = False
    #: Whether the test is a step of that score, without which the score counts, too.
    is_step: bool = False

    @property
    def sentence(self) -> str:
        """The behaviour, in words: ``remove from the middle keeps order``."""
        return re.sub(r"^test_(task_\d+_)?", "", self.name).replace("_", " ")

    def result(self, verdict: Verdict, is_hidden: bool = False, cpu_s: float | None = None) -> TestResult:
        """Combine the test, its verdict and its CPU time into the entry of a result."""
        return TestResult(verdict.passed, verdict.error, verdict.message, verdict.printed, verdict.score,
                          name=self.name, points=self.points or 0, task=self.task, is_hidden=is_hidden,
                          is_inside=self.is_inside, is_step=self.is_step, cpu_s=cpu_s)


def graded_tests(lab: Lab) -> list[GradedTest]:
    """Return the tests of a lab, in the order of its tasks. Raise LabError if the test file is damaged."""
    try:
        tree = ast.parse(lab.tests.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise LabError(f"{lab.relative(lab.tests)} does not parse: {error}. It is the course's: `course update` or "
                       "`git checkout` restores it.") from None
    tests = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            marks = dict(filter(None, (_mark(decorator) for decorator in node.decorator_list)))
            in_name = _TASK_IN_NAME.match(node.name)
            task = int(in_name[1]) if in_name else marks.get("task")
            reasons = [reason for mark in node.decorator_list if (reason := _inside(mark)) is not None]
            arguments = {argument.arg for argument in node.args.args}
            tests.append(GradedTest(node.name, marks.get("points"), task, "lab" in arguments, bool(reasons),
                                    "".join(reasons).strip(), "keep_score" in arguments,
                                    any(map(_is_step, node.decorator_list))))
    return sorted(tests, key=lambda test: test.task or 0)


@dataclass(frozen=True)
class _HiddenHalf(Lab):
    """A lab whose tests are the hidden ones, so that the same code can read them."""

    @property
    def tests(self) -> Path:
        return self.folder / "test_hidden.py"


def hidden_graded_tests(lab: Lab, hidden: Path | None) -> list[GradedTest]:
    """Return an instructor's own tests of a lab, from the folder ``hidden``: ``2.1/test_hidden.py``."""
    folder = hidden / lab.number if hidden is not None else None
    if folder is None or not (folder / "test_hidden.py").is_file():
        return []
    return graded_tests(_HiddenHalf(lab.root, folder, lab.number))


def _inside(decorator: ast.expr) -> str | None:
    """Return the reason in ``@pytest.mark.inside("reason")``: "" if it is missing, None for any other mark."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr="inside"), args=[ast.Constant(value=str() as reason)]):
            return reason
        case ast.Call(func=ast.Attribute(attr="inside")) | ast.Attribute(attr="inside"):
            return ""
    return None


def _is_step(decorator: ast.expr) -> bool:
    """Return whether this is ``@pytest.mark.step``."""
    return isinstance(decorator, ast.Attribute) and decorator.attr == "step"


def _mark(decorator: ast.expr) -> tuple[str, int] | None:
    """Return ``("points", 3)`` for ``@pytest.mark.points(3)``, and None for any other mark."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr=("points" | "task") as name), args=[ast.Constant(value=int() as value)]):
            return name, value
    return None
