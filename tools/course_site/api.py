"""The API: a page for every module and package, in the groups and the order of the engine's map."""

from __future__ import annotations

import re
from pathlib import Path

from course_site.markdown import sections, shifted

#: The map's section "The modules" contains a table for each group; the first column names the modules and packages.
MAP = "docs/engine.md"
MODULES = "The modules"
PACKAGE = "mini_vllm"
#: The scheme of a link to a page with the source of a file.
SOURCE = "source:"
#: Packages that contain commands and test suites, but nothing to import.
_NOT_CALLED = ("cli", "demo", "benchmark", "fuzz", "tests")
#: Folders within a package that only tests use.
_NOT_SHOWN = ("browser",)
_NAME = re.compile(r"`(\w+)(\.py|/)`")


def _rows(text: str) -> list[str]:
    """Return the lines of all tables in a text, without their heads."""
    return [line for line in text.splitlines() if line.startswith("| `")]


def _first_column(row: str) -> str:
    return row.split("|")[1]


def modules_of_the_map(text: str) -> list[str]:
    """Return the modules and packages in the order of the map's tables: ``request``, ``block_pool``, …"""
    names = [name for row in _rows(sections(text)[MODULES]) for name, _ in _NAME.findall(_first_column(row))]
    return [name for name in names if name not in _NOT_CALLED]


def index_page(text: str) -> str:
    """Return the map's tables with the module names linked to their pages."""

    def linked(row: str) -> str:
        column = _first_column(row)
        names = _NAME.sub(lambda found: found[0] if found[1] in _NOT_CALLED else f"[{found[0]}]({found[1]}.md)", column)
        return row.replace(column, names, 1)

    section = sections(text)[MODULES]
    for row in _rows(section):
        section = section.replace(row, linked(row), 1)
    return shifted(section, -1).replace(f"# {MODULES}", "# The API", 1)


def modules_of(root: Path, name: str) -> list[str]:
    """Return the dotted names for the page of a module or package: the module, or the package and its modules."""
    folder = root / PACKAGE / name
    if not folder.is_dir():
        return [f"{PACKAGE}.{name}"]
    inner = [path.relative_to(folder).with_suffix("") for path in sorted(folder.rglob("*.py"))
             if not path.name.startswith(("test_", "conftest", "__"))]
    shown = [".".join(path.parts) for path in inner if not set(_NOT_SHOWN) & set(path.parts)]
    return [f"{PACKAGE}.{name}", *(f"{PACKAGE}.{name}.{each}" for each in shown)]


def module_page(root: Path, name: str) -> str:
    """Return a page with the docstrings of a module, or of all modules of a package."""
    parts = [f"# {name}"]
    for module in modules_of(root, name):
        inner = module.removeprefix(f"{PACKAGE}.{name}").lstrip(".")
        parts += [f"## {inner}"] if inner else []
        parts += [f"[`{_file(root, module)}`]({SOURCE}{_file(root, module)})",
                  f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```"]
    return "\n\n".join(parts) + "\n"


def _file(root: Path, module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if (root / path).is_dir() else f"{path}.py"
