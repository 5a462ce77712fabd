"""The layers of a package: which module may import which, determined from the source of its modules.

The tests of a package define its LAYERS, bottom up: ``mini_vllm/tests/test_layers.py`` and ``course/test_layers.py``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

RULE = "a unit may import only units further down (the order is LAYERS in test_layers.py)"

#: The dotted name of a module or of something in one, and all modules → its unit; None: may be imported everywhere.
UnitOf = Callable[[str, dict[str, str]], "str | None"]


@dataclass(frozen=True)
class Import:
    """One target of an import statement, as written in ``importer``; both are full dotted names."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.imported}"


def module_name(path: Path, package: Path) -> str:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if len(parts) > 2 and parts[-1] == "__init__" else parts)


def modules_of(package: Path) -> dict[str, str]:
    """Return name → source of every module that is not a test. A folder's name stands for its ``__init__``."""
    paths = [path for path in sorted(package.rglob("*.py")) if not path.name.startswith("test_")
             and path.name != "conftest.py" and "tests" not in path.relative_to(package).parts]
    return {module_name(path, package): path.read_text(encoding="utf-8") for path in paths}


@functools.cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(modules: dict[str, str]) -> list[Import]:
    """Return every import of every module: at the top, in a function, or for the type checker only."""
    found = []
    for importer, text in modules.items():
        for node in import_statements(text):
            if isinstance(node, ast.Import):
                found += [Import(importer, alias.name, node.lineno) for alias in node.names]
            else:
                base = _absolute(node, importer, modules)
                found += [Import(importer, f"{base}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _absolute(node: ast.ImportFrom, importer: str, modules: dict[str, str]) -> str:
    if not node.level:
        return node.module or ""
    is_package = any(name.startswith(f"{importer}.") for name in modules)
    parts = importer.removesuffix(".__init__").split(".")
    parts = parts[:len(parts) - node.level + (is_package or importer.endswith(".__init__"))]
    return ".".join([*parts, *([node.module] if node.module else [])])


def upward_imports(modules: dict[str, str], layers: Sequence[str], unit_of: UnitOf) -> list[str]:
    """Return a sentence for every import that breaks the rule."""
    (package,) = {name.split(".")[0] for name in modules}
    layer_of = {unit: layer for layer, unit in enumerate(layers)}
    problems = []
    for found in imports_of(modules):
        if found.imported.split(".")[0] != package:
            continue
        importer, imported = unit_of(found.importer, modules), unit_of(found.imported, modules)
        if layer_of.get(imported or "", -1) > layer_of.get(importer or "", len(layers)):
            problems.append(f"{found}: {imported} (layer {layer_of[imported or '']}) is above {importer} "
                            f"(layer {layer_of[importer or '']}); {RULE}")
    return problems


def cycles(modules: dict[str, str]) -> list[str]:
    """Return a sentence for a cycle of modules that import each other, and one for a cycle of folders."""
    files: dict[str, set[str]] = {}
    folders: dict[str, set[str]] = {}
    for found in imports_of(modules):
        target = found.imported if found.imported in modules else found.imported.rpartition(".")[0]
        if target not in modules or target == found.importer:
            continue
        files.setdefault(found.importer, set()).add(target)
        importer, imported = (_folder_of(name, modules) for name in (found.importer, target))
        if importer != imported and not imported.startswith(f"{importer}.") and not importer.startswith(f"{imported}."):
            folders.setdefault(importer, set()).add(imported)
    problems = []
    for what, graph in (("modules", files), ("folders", folders)):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            problems.append(f"{what} import each other in a circle: {' → '.join(error.args[1][::-1])}")
    return problems


def _folder_of(name: str, modules: dict[str, str]) -> str:
    """Return the folder of a module. The ``__init__`` of a folder counts as inside it."""
    return name if any(other.startswith(f"{name}.") for other in modules) else name.rpartition(".")[0]
