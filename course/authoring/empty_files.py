"""Files that contain nothing a student has written. No test of a lab may pass on one: points are for work."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from course.core.failure_messages import BROKEN_FILE, NOT_RUN
from course.core.result import Verdict
from course.lab.graded_tests import GradedTest
from course.lab.starters import make_starter

#: The name of each file, and its description.
FILES = {"anything": "a file in which everything exists and nothing is done (course/authoring/anything.py)",
         "nan": "a file in which everything exists and is NaN (course/authoring/anything.py)",
         "one": "a file in which everything is one and the same object (course/authoring/anything.py)",
         "unwritten": "a starter whose unwritten bodies return None"}

_ANYTHING = Path(__file__).with_name("anything.py")
_STUB = re.compile(r'^(\s*)raise NotImplementedError\("Task .*$', re.M)


def write_files(solution: str, folder: Path) -> list[Path]:
    """Write these files for a lab with this solution into ``folder``, each under its name.

    All of them contain the imports of the lab's starter, which the student does not have to write.
    """
    starter, _ = make_starter(solution)
    anything = f"{_ANYTHING.read_text(encoding='utf-8')}\n\n{_imports(starter)}\n"
    texts = {"anything": anything, "nan": anything.replace("IS_NAN = False", "IS_NAN = True"),
             "one": anything.replace("IS_ONE = False", "IS_ONE = True"),
             "unwritten": _STUB.sub(r"\1return None", starter)}
    paths = [folder / f"{name}.py" for name in FILES]
    for path in paths:
        path.write_text(texts[path.stem], encoding="utf-8")
    return paths


def _imports(source: str) -> str:
    return "\n".join(ast.unparse(node) for node in ast.parse(source).body
                     if isinstance(node, ast.Import | ast.ImportFrom)
                     and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"))


def points_for_nothing(tests: Iterable[GradedTest], verdicts: Mapping[str, Mapping[str, Verdict]]) -> list[str]:
    """Return the tests that pass on one of these files or were not run on it. ``verdicts`` must contain all of them."""
    problems = []
    for name, what in FILES.items():
        for test in tests:
            verdict = verdicts[name][test.name]
            if verdict.passed:
                problems.append(f"{test.name} passes on {what}, so it gives away {test.points} points: first assert "
                                "what must exist")
            elif verdict.error in (NOT_RUN, BROKEN_FILE):
                problems.append(f"{test.name} says nothing about {what}: {verdict.message}")
    return problems
