"""Make the starter from the solution by removing the marked bodies. The solution is the single source."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from course.lab.lab import Lab, LabError

_TASK = re.compile(r"^(?P<indent>\s*)# TASK (?P<number>\d+): (?P<label>.+?)\s*$")
_END_TASK = re.compile(r"^\s*# END TASK\s*$")
_ONLY = re.compile(r"^\s*# SOLUTION ONLY\s*$")
_END_ONLY = re.compile(r"^\s*# END SOLUTION ONLY\s*$")


@dataclass(frozen=True)
class Stub:
    """A body that the student writes. The untouched starter raises its message."""

    number: int
    label: str

    @property
    def message(self) -> str:
        return f"Task {self.number}: {self.label}"


def make_starter(solution: str, name: str = "solution.py") -> tuple[str, list[Stub]]:
    """Return the text of the starter, and its stubs in order. Raise LabError if the markers do not pair up."""
    lines, stubs = [], []
    closing: re.Pattern[str] | None = None
    opened = ""
    for number, line in enumerate(solution.splitlines(), start=1):
        task = _TASK.match(line)
        if closing is not None:
            if closing.match(line):
                closing = None
            elif task or _ONLY.match(line):
                raise LabError(f"{name}:{number}: a marker inside the one opened at {opened}")
        elif task:
            stub = Stub(int(task["number"]), task["label"])
            stubs.append(stub)
            lines.append(f'{task["indent"]}raise NotImplementedError("{stub.message}")')
            closing, opened = _END_TASK, f"line {number}"
        elif _ONLY.match(line):
            closing, opened = _END_ONLY, f"line {number}"
        elif _END_TASK.match(line) or _END_ONLY.match(line):
            raise LabError(f"{name}:{number}: an end marker without its beginning")
        else:
            lines.append(line)
    if closing is not None:
        raise LabError(f"{name}: the marker opened at {opened} is never closed")
    if not stubs:
        raise LabError(f"{name}: there is no '# TASK n: label' marker, so there is nothing for the student to do")
    return "\n".join(lines) + "\n", stubs


def clean_solution(solution: str) -> str:
    """Return the solution without the markers, for readers."""
    patterns = (_TASK, _END_TASK, _ONLY, _END_ONLY)
    return "".join(line for line in solution.splitlines(keepends=True) if not any(p.match(line) for p in patterns))


def shipped_starter(lab: Lab) -> str:
    return make_starter(lab.solution.read_text(encoding="utf-8"), lab.relative(lab.solution))[0]


def unbegun_tasks(lab: Lab) -> dict[int, str]:
    """Return the tasks that the student has not begun, each with the names of the bodies to write."""
    _, stubs = make_starter(lab.solution.read_text(encoding="utf-8"), lab.relative(lab.solution))
    text = lab.starter.read_text(encoding="utf-8", errors="replace") if lab.starter.is_file() else ""
    begun = {stub.number for stub in stubs if f'NotImplementedError("{stub.message}")' not in text}
    unbegun: dict[int, list[str]] = {}
    for stub in stubs:
        if stub.number not in begun:
            unbegun.setdefault(stub.number, []).append(stub.label)
    return {number: ", ".join(labels) for number, labels in unbegun.items()}


def declarations(source: str) -> dict[str, tuple[str, str | None]]:
    """Return the public classes and functions of a module: qualified name → (signature, docstring)."""
    found: dict[str, tuple[str, str | None]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if not child.name.startswith("_") or child.name == "__init__":
                    found[prefix + child.name] = (f"({ast.unparse(child.args)})", ast.get_docstring(child))
            elif isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                fields = [ast.unparse(item) for item in child.body if isinstance(item, ast.AnnAssign)]
                found[prefix + child.name] = (f"({'; '.join(fields)})", ast.get_docstring(child))
                visit(child, prefix + child.name + ".")

    visit(ast.parse(source), "")
    return found


def declared_names(source: str) -> set[str]:
    """Return all names that a module's source defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
