"""A course with a few tests of each lab: what a hostile file does to one test, it would do to forty."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from course.lab.lab import PROJECT_ROOT, Lab, discover, find_lab

_FILES = ("lab.json", "solution.py", "starter.py", "mutants.py", "wrong_pools.py")


def small_course(folder: Path, tests: Mapping[str, Collection[str]]) -> dict[str, Lab]:
    """Write these labs into ``folder``, each with only these tests, and the labs that they extend."""
    labs = discover(PROJECT_ROOT)
    shutil.copy(PROJECT_ROOT / "pyproject.toml", folder)
    for number, names in tests.items():
        lab: Lab | None = find_lab(number, labs)
        while lab is not None:
            _lay_down(lab, folder / lab.folder.relative_to(PROJECT_ROOT), names)
            lab = find_lab(lab.base, labs) if lab.base else None
    small = discover(folder)
    return {number: find_lab(number, small) for number in tests}


def _lay_down(lab: Lab, target: Path, names: Collection[str]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        if (lab.folder / name).is_file():
            shutil.copy(lab.folder / name, target)
    (target / "test_lab.py").write_text(only(lab.tests.read_text(encoding="utf-8"), names), encoding="utf-8")


def only(text: str, names: Collection[str]) -> str:
    """Return the text of a test module without the tests that are not named."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and node.name not in names:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            del lines[first - 1:node.end_lineno]
    return "".join(lines)
